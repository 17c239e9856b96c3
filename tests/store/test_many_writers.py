"""Several processes write one home in PostgreSQL at the same moment: nothing is lost, nothing is
done twice, and what has an order has one order."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases
from tests.store import many_writers
from tests.store.many_writers import AGENT, ROUNDS, Host, lines
from tests.waiting import until
from thumbwheel.access import audit
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.feedback import feedback_stats
from thumbwheel.capture.ingest import save, scope_of
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Fenced
from thumbwheel.datasets.build import datasets
from thumbwheel.db import schema
from thumbwheel.db.dialects import VARIABLE, Postgresql
from thumbwheel.db.engine import Database
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ACCESS, JOBS, ROWS, WHOLE_HOME, WriteLock, of_agent
from thumbwheel.jobs import claims, queue, store
from thumbwheel.jobs.types import JobsConfig, JobState, WorkerRow
from thumbwheel.models import versions
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.types import Origin, QueueConfig

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]

PROCESSES = 3
Together = Callable[[Callable[[Workspace, Host], Any]], list[Any]]


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.store.many_writers"])
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        yield pool


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


@pytest.fixture
def ws(url: str, tmp_path: Path) -> Iterator[Workspace]:
    sources = Sources({}, "none", {VARIABLE: url})
    with Workspace.open(Home.at(tmp_path / "home"), sources) as opened:
        versions.ensure_agent(opened, AGENT)
        yield opened


@pytest.fixture
def together(processes: ProcessPoolExecutor, ws: Workspace, url: str, tmp_path: Path) -> Together:
    """Run one of `many_writers` in every process at once; return what each returned."""
    numbers = itertools.count()

    def run(action: Callable[[Workspace, Host], Any]) -> list[Any]:
        meeting = tmp_path / f"meeting-{next(numbers)}"
        meeting.mkdir()
        hosts = [Host(ws.home.path, url, number, PROCESSES, meeting) for number in range(PROCESSES)]
        answers = [processes.submit(host.run, action) for host in hosts]
        return [answer.result(timeout=300) for answer in answers]

    return run


def rows(ws: Workspace, query: Any) -> list[Any]:
    with ws.db.read() as connection:
        return list(connection.execute(query))


def test_versions_get_one_number_each(together: Together, ws: Workspace) -> None:
    numbers = list(itertools.chain(*together(many_writers.add_versions)))
    # the base is version 0, and registered once
    assert sorted(numbers) == list(range(1, PROCESSES * ROUNDS + 1))


def test_the_switches_of_an_alias_are_one_chain(together: Together, ws: Workspace) -> None:
    for number in range(4):
        versions.ensure_base(ws, AGENT, f"base {number}", f"{number}" * 64)
    together(many_writers.point_alias)
    agent = versions.require_agent(ws, AGENT)
    switches = versions.switches(ws, agent, "canary")
    assert len(switches) == PROCESSES * ROUNDS
    # each begins where another one ended: no two began at the same version of the alias
    begins = Counter(switch.from_id for switch in switches)
    ends = Counter(switch.to_id for switch in switches)
    ends[None] += 1
    last = versions.aliases_of(ws, agent)["canary"]
    assert ends - begins == Counter([last])
    assert begins[None] == 1


def test_the_audit_log_is_one_chain(together: Together, ws: Workspace) -> None:
    together(many_writers.write_audit)
    result = audit.verify(ws)
    assert result.problem is None
    assert result.rows == PROCESSES * ROUNDS


def test_a_job_is_claimed_once_and_no_more_run_than_may(together: Together, ws: Workspace) -> None:
    kinds = ["train", "import", "turn"]
    expected = []
    for number in range(30):
        job = queue.enqueue(ws, kinds[number % 3], {"number": number}, agent=AGENT)
        expected.append(job.id)
    done = list(itertools.chain(*together(many_writers.claim_jobs)))
    assert sorted(job_id for job_id, *_ in done) == sorted(expected)
    most: dict[str, int] = {}
    for _, kind, running in done:
        most[kind] = max(most.get(kind, 0), running)
    assert most["train"] == most["turn"] == 1
    attempts = rows(ws, sa.select(schema.jobs.c.attempts, schema.jobs.c.fence, schema.jobs.c.state))
    assert set(attempts) == {(1, 1, JobState.SUCCEEDED)}


def test_a_key_makes_one_job(together: Together, ws: Workspace) -> None:
    ids = together(many_writers.enqueue_once)
    assert all(of_process == ids[0] for of_process in ids)
    assert len(rows(ws, sa.select(schema.jobs.c.id))) == ROUNDS


def test_feedback_finds_its_trace_whichever_comes_first(together: Together, ws: Workspace) -> None:
    together(many_writers.answer_and_judge)
    stats = feedback_stats(ws, AGENT)
    assert stats.signals["thumb"].count == 5 * ROUNDS
    assert stats.unresolved == 0


def test_of_contradicting_answers_one_is_stored(together: Together, ws: Workspace) -> None:
    stored = together(many_writers.contradict)
    assert [sum(of_turn) for of_turn in zip(*stored, strict=True)] == [1] * ROUNDS


def test_a_rater_is_stored_with_one_weight(together: Together, ws: Workspace) -> None:
    stored = together(many_writers.weigh_rater)
    assert [sum(of_turn) for of_turn in zip(*stored, strict=True)] == [1] * ROUNDS
    assert len(rows(ws, sa.select(schema.feedback.c.id))) == ROUNDS


def test_agents_share_messages(together: Together, ws: Workspace) -> None:
    assert together(many_writers.share_messages) == [20 * ROUNDS] * PROCESSES
    assert len(rows(ws, sa.select(schema.messages.c.id))) == 21 * ROUNDS


def test_a_dataset_is_stored_once(together: Together, ws: Workspace) -> None:
    ids = together(many_writers.freeze_dataset)
    assert all(of_process == ids[0] for of_process in ids)
    assert len(datasets(ws, AGENT)) == ROUNDS
    assert len(rows(ws, sa.select(schema.artifacts.c.sha256))) == 1


def test_an_evaluation_is_stored_once(together: Together, ws: Workspace) -> None:
    for number in range(2):
        versions.ensure_base(ws, AGENT, f"base {number}", f"{number}" * 64)
    ids = together(many_writers.store_evaluations)
    assert all(of_process == ids[0] for of_process in ids)
    assert len(rows(ws, sa.select(schema.evaluations.c.id))) == ROUNDS


def test_a_case_is_reviewed_once(together: Together, ws: Workspace) -> None:
    together(many_writers.review_case)
    _, cases = list_cases(ws, AGENT, limit=100)
    assert len(cases) == ROUNDS
    assert {case["basis"] for case in cases} == {"gold"}


def test_an_item_is_handed_out_as_often_as_wanted(together: Together, ws: Workspace) -> None:
    traces = [
        {"type": "trace", "id": f"t{number}", "input": f"{number}?", "output": "Yes."}
        for number in range(12)
    ]
    save(ws, scope_of(ws, AGENT, "sdk"), lines(*traces))
    agent = versions.require_agent(ws, AGENT)
    create(ws, agent, "q", QueueConfig(overlap=2), QueueSelection(Origin.TRACES))
    rated = list(itertools.chain(*together(many_writers.rate_items)))
    assert set(Counter(rated).values()) == {2}
    assert len(set(rated)) == 12
    assert len(rows(ws, sa.select(schema.feedback.c.id))) == 24


def waits_for_lock(ws: Workspace) -> bool:
    """Whether a transaction of this database waits for another one."""
    query = sa.text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with ws.db.read() as connection:
        return bool(connection.execute(query).scalar_one())


def test_a_takeover_waits_for_a_write_that_passed_the_guard(ws: Workspace, url: str) -> None:
    now = datetime.now(UTC)
    row = WorkerRow("wrk_a", "elsewhere", 1, 1, "settings", 0, now, now)
    ws.db.write(lambda connection: store.add_worker(connection, row), JOBS)
    queue.enqueue(ws, "import", {}, agent=AGENT)
    claimed = partial(
        claims.claim, worker_id="wrk_a", needs=many_writers.JOBS_OF, config=JobsConfig(), now=now
    )
    job = ws.db.write(claimed, JOBS)
    assert job is not None
    passed, may_commit = threading.Event(), threading.Event()

    def effect(connection: sa.Connection) -> None:
        passed.set()
        assert may_commit.wait(60)
        connection.execute(sa.update(schema.agents).values(slug="changed by the zombie"))

    zombie = ws.db.guarded(claims.guard(job))
    other = Database(Postgresql.from_url(url, "test"))
    try:
        written = zombie.submit(effect, of_agent("agt_x"))
        assert passed.wait(60)
        taken_over = other.submit(
            lambda connection: claims.take_over(connection, row, JobsConfig(), now), JOBS
        )
        until(lambda: waits_for_lock(ws))
        assert not taken_over.done()
        may_commit.set()
        written.result(60)
        assert [lost.id for lost in taken_over.result(60)] == [job.id]
        passed.clear()
        with pytest.raises(Fenced):
            zombie.write(effect, of_agent("agt_x"))
        assert not passed.is_set()
    finally:
        other.close()


def test_a_worker_that_beats_meanwhile_is_not_taken_over(ws: Workspace) -> None:
    now = datetime.now(UTC)
    row = WorkerRow("wrk_a", "elsewhere", 1, 1, "settings", 0, now, now)
    ws.db.write(lambda connection: store.add_worker(connection, row), JOBS)
    ws.db.write(lambda connection: store.beat(connection, "wrk_a", now), ROWS)
    taken_over = partial(claims.take_over, worker=row, config=JobsConfig(), now=now)
    assert ws.db.write(taken_over, JOBS) == []
    assert len(queue.live_workers(ws)) == 1


@pytest.mark.parametrize(
    ("first", "second", "excludes"),
    [
        (WHOLE_HOME, WHOLE_HOME, True),
        (WHOLE_HOME, ROWS, True),
        (ROWS, WHOLE_HOME, True),
        (of_agent("a"), WHOLE_HOME, True),
        (of_agent("a"), of_agent("a"), True),
        (of_agent("a"), of_agent("a") & JOBS, True),
        (JOBS, of_agent("a") & JOBS, True),
        (ROWS, ROWS, False),
        (of_agent("a"), of_agent("b"), False),
        (of_agent("a"), JOBS, False),
        (JOBS, ACCESS, False),
    ],
)
def test_which_writes_exclude_each_other(
    ws: Workspace, url: str, first: WriteLock, second: WriteLock, excludes: bool
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def stay(_: sa.Connection) -> None:
        begun.set()
        assert may_end.wait(60)

    other = Database(Postgresql.from_url(url, "test"))
    try:
        staying = ws.db.submit(stay, first)
        assert begun.wait(60)
        coming = other.submit(lambda _: "written", second)
        if excludes:
            until(lambda: waits_for_lock(ws))
            assert not coming.done()
        else:
            assert coming.result(60) == "written"
        may_end.set()
        staying.result(60)
        assert coming.result(60) == "written"
    finally:
        may_end.set()
        other.close()
