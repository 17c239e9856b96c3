"""Recorded answers are judged, and programs are run, by workers of two hosts: the same scores, each
once, and nothing of a worker that was taken for dead."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.part_helper import Helper, doing, take_over
from tests.servers.postgres_server import Databases
from tests.store.test_cluster import opened, variables
from tests.waiting import until
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, Fenced, ThumbwheelError
from thumbwheel.db import cluster
from thumbwheel.db.schema import job_parts, rewards
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import program_parts
from thumbwheel.evaluation.program_parts import program_scorer, running
from thumbwheel.jobs import queue
from thumbwheel.jobs.part_types import JobPart
from thumbwheel.rewards import judge_parts, ledger
from thumbwheel.rewards.function import Case, JudgementStatus, Score
from thumbwheel.rewards.functions.code_execution import CodeExecution
from thumbwheel.rewards.functions.regex import Regex
from thumbwheel.rewards.judge_parts import judging
from thumbwheel.rewards.judge_traces import judge_traces
from thumbwheel.rewards.types import JudgeReport

pytestmark = pytest.mark.postgresql
N_TRACES = 20
N_PARTS = 4


def settings(pattern: str = "answer 1") -> dict[str, Any]:
    component = {"weight": 1.0, "settings": {"pattern": pattern}}
    return {"rewards": {"preset": "none", "components": {"regex": component}}}


def world() -> FeedbackWorld:
    rows = FeedbackWorld()
    for number in range(N_TRACES):
        rows.trace(f"t{number}", f"question {number // 2}", f"answer {number}")
    return rows


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


@contextmanager
def open_host(tmp_path: Path, url: str, name: str, **changes: Any) -> Iterator[Workspace]:
    home = Home.at(tmp_path / name)
    with Workspace.open(home, Sources(settings(**changes), "none", variables(url))) as ws:
        yield ws


@pytest.fixture
def ws(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """The first of two hosts."""
    monkeypatch.setattr(queue, "LIVE_SECONDS", math.inf)  # the helper gives no sign of life
    monkeypatch.setattr(judge_parts, "TRACES_A_PART", N_TRACES // N_PARTS)
    monkeypatch.setattr(program_parts, "PROGRAMS_A_PART", N_TRACES // N_PARTS)
    opened(tmp_path / "first", url, None).__exit__(None, None, None)
    cluster.initialise(Home.at(tmp_path / "first"), variables(url))
    cluster.join(Home.at(tmp_path / "second"), variables(url))
    with open_host(tmp_path, url, "first") as first:
        world().write(first)
        yield first


@contextmanager
def helping(second: Workspace, kind: str, opener: Any) -> Iterator[Helper]:
    helper = Helper(second, kind, opener)
    try:
        yield helper
    finally:
        helper.ended.set()
        if helper.is_alive():
            helper.join(60)


def wait_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_time: Any) -> list[Any]:
    """Let a function wait the first time that this thread calls it; return its calls here."""
    main, calls, function = threading.current_thread(), list[Any](), getattr(owner, name)

    def waiting(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is main:
            if not calls:
                until(is_time)
            calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, waiting)
    return calls


def ledger_rows(ws: Workspace) -> list[tuple[str, float | None]]:
    query = sa.select(rewards.c.target_id, rewards.c.value).order_by(rewards.c.target_id)
    with ws.db.read() as connection:
        return [(row.target_id, row.value) for row in connection.execute(query)]


def stored_parts(ws: Workspace) -> list[Any]:
    with ws.db.read() as connection:
        return [*connection.execute(sa.select(job_parts))]


def alone(folder: Path) -> tuple[JudgeReport, list[tuple[str, float | None]]]:
    with world().into(folder / "alone") as world_ws:
        home = world_ws.home
    with Workspace.open(home, Sources(settings(), "none", {})) as ws:
        return judge_traces(ws, AGENT), ledger_rows(ws)


def test_two_hosts_judge_the_answers_of_an_agent_as_one_does(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, expected_rows = alone(tmp_path)
    with (
        open_host(tmp_path, url, "second") as second,
        helping(second, "scores", judging) as helper,
        doing(ws),
    ):
        helper.start()
        calls = wait_first(
            monkeypatch, ledger, "run", lambda: helper.error or helper.n_done >= N_PARTS - 1
        )
        report = judge_traces(ws, AGENT)
    assert report == expected and report.components["regex"].judged == N_TRACES
    assert ledger_rows(ws) == expected_rows and len(expected_rows) == N_TRACES
    assert helper.error is None
    assert helper.n_done + len(calls) == N_PARTS and stored_parts(ws) == []


def test_an_answer_that_a_dead_worker_had_judged_is_not_judged_again(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[int] = []

    def do_and_die(part: JobPart) -> None:
        # killed between its rows and the note that the part is done
        with judging(helper.ws) as judge:
            judge(part.spec)
        take_over(ws, helper.row())
        died.append(part.number)
        helper.ended.set()

    judged = Counter[str]()
    score = Regex.score

    def counted(self: Regex, cases: Any) -> list[Score]:
        judged.update(case.target_id for case in cases)
        return score(self, cases)

    monkeypatch.setattr(Regex, "score", counted)
    with (
        open_host(tmp_path, url, "second") as second,
        helping(second, "scores", judging) as helper,
        doing(ws),
    ):
        monkeypatch.setattr(helper, "do", do_and_die)
        helper.start()
        wait_first(monkeypatch, ledger, "run", lambda: helper.error or died)
        # the helper calls it as well, in its own thread
        judge_traces(ws, AGENT)
    assert helper.error is None and len(died) == 1
    assert len(judged) == N_TRACES and set(judged.values()) == {1}
    assert len(ledger_rows(ws)) == N_TRACES


def test_a_zombie_writes_no_score(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[list[Any]] = []

    def die_and_wake_up(part: JobPart) -> None:
        take_over(ws, helper.row())
        with pytest.raises(Fenced):
            Helper.do(helper, part)
        wrote.append(ledger_rows(ws))
        helper.ended.set()

    with (
        open_host(tmp_path, url, "second") as second,
        helping(second, "scores", judging) as helper,
        doing(ws),
    ):
        monkeypatch.setattr(helper, "do", die_and_wake_up)
        helper.start()
        wait_first(monkeypatch, ledger, "run", lambda: helper.error or wrote)
        judge_traces(ws, AGENT)
    assert wrote == [[]] and helper.error is None
    assert ledger_rows(ws) == alone(tmp_path)[1]


def spec_of(ws: Workspace) -> dict[str, Any]:
    (part,) = [part for part in ledger_components(ws) if part.name == "regex"]
    components = {part.name: part.version}
    bounds = {"first": None, "last": None}
    return {"agent": AGENT, "components": components, "retry": False, "as_of": None, **bounds}


def ledger_components(ws: Workspace) -> list[Any]:
    from thumbwheel.rewards.component import components

    return components(ws, AGENT, ledger.settings(ws, AGENT))


def test_a_host_with_other_settings_judges_nothing(ws: Workspace, tmp_path: Path, url: str) -> None:
    with (
        open_host(tmp_path, url, "second", pattern="other") as second,
        judging(second) as judge,
        pytest.raises(Conflict, match="this host would judge otherwise"),
    ):
        judge(spec_of(ws))
    assert ledger_rows(ws) == []


def test_what_a_host_cannot_judge_is_judged_by_that_of_the_job(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        open_host(tmp_path, url, "second") as second,
        judging(second) as judge,
        monkeypatch.context() as patch,
    ):
        patch.setattr(Regex, "score", lambda self, cases: [BLOCKED] * len(cases))
        with pytest.raises(Conflict, match="cannot judge on this host: no sandbox"):
            judge(spec_of(ws))
    judge_traces(ws, AGENT)
    assert ledger_rows(ws) == alone(tmp_path)[1]


BLOCKED = Score.none(JudgementStatus.BLOCKED, "no sandbox")


def fake_score(self: CodeExecution, cases: Any) -> list[Score]:
    """Run nothing: a program that says so passes."""
    return [Score(float("1" in case.text), evidence={"output": case.text}) for case in cases]


PROGRAMS = [
    Case(f"program {number}", {"tests": ["x"]}, [{"role": "user", "content": "?"}])
    for number in range(N_TRACES)
]


def test_programs_of_an_evaluation_are_run_by_two_hosts(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeExecution, "score", fake_score)
    function = CodeExecution.create({"partial": True})
    expected = function.score(PROGRAMS)
    with (
        open_host(tmp_path, url, "second") as second,
        helping(second, "programs", running) as helper,
        doing(ws),
    ):
        helper.start()
        calls = wait_first(
            monkeypatch,
            CodeExecution,
            "score",
            lambda: helper.error or helper.n_done >= N_PARTS - 1,
        )
        assert program_scorer(ws, AGENT)(function, PROGRAMS) == expected
    assert helper.error is None
    assert helper.n_done + len(calls) == N_PARTS and stored_parts(ws) == []


def test_equal_parts_are_run_once(
    ws: Workspace, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [PROGRAMS[1]] * N_TRACES
    monkeypatch.setattr(CodeExecution, "score", fake_score)
    function = CodeExecution.create({"partial": True})
    expected = function.score(programs)
    with (
        open_host(tmp_path, url, "second") as second,
        helping(second, "programs", running) as helper,
        doing(ws),
    ):
        calls = wait_first(monkeypatch, CodeExecution, "score", lambda: True)
        assert program_scorer(ws, AGENT)(function, programs) == expected
    assert helper.error is None
    assert len(calls) == 1 and stored_parts(ws) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda spec: spec | {"identity": "other"}, "this host would judge otherwise"),
        (lambda spec: spec, "this host may not run code: no sandbox"),
        (lambda spec: spec | {"settings": {"trusted_code": True}}, "only the owner's settings"),
    ],
)
def test_a_host_that_would_judge_otherwise_or_runs_no_code_runs_no_programs(
    ws: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    why: str,
) -> None:
    monkeypatch.setattr(CodeExecution, "score", lambda self, cases: [BLOCKED] * len(cases))
    function = CodeExecution.create({"partial": True})
    spec = {
        "agent": AGENT,
        "settings": {"partial": True},
        "identity": program_parts._identity(function),
        "cases": [],
    }
    spec["cases"] = [program_parts._case_to_json(PROGRAMS[0])]
    with running(ws) as run, pytest.raises(ThumbwheelError, match=why):
        run(change(spec))


def test_on_one_host_all_programs_are_run_together(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeExecution, "score", fake_score)
    calls = wait_first(monkeypatch, CodeExecution, "score", lambda: True)
    assert len(program_scorer(ws, AGENT)(CodeExecution.create(), PROGRAMS)) == N_TRACES
    assert len(calls) == 1
