"""One turn of the wheel by one command: it goes as far as the feedback carries, and after a kill at
any step it goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from tests.worlds.animals_world import LEARNS, write_world
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.db import schema
from thumbwheel.db.dialects import backend_at
from thumbwheel.db.engine import Database
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import routing, running
from thumbwheel.models.base import Base
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent

STEPS = ("train sft", "train kto", "compare", "evaluate", "export", "deploy", "report")
TURN = (
    "--base",
    "base",
    "--methods",
    "sft",
    "--methods",
    "kto",
    "--export",
    "merged",
    "--deploy",
    "embedded",
)


@pytest.fixture
def imported_home(command_line: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files imported into the home of the command line, and settings with which a random base
    learns them."""
    write_world(tmp_path)
    for path, more in (("world.jsonl", ()), ("gold.jsonl", ("--gold",))):
        assert command_line("import", "jsonl", path, "--agent", "animals", *more)[0] == 0
    declared = (
        "--margin-anchors",
        "9",
        "--max-growth",
        "99",
    )  # the base is random: its answers have any length
    assert command_line("gate", "declare", "--agent", "animals", *declared)[0] == 0
    for method in ("SFT", "KTO"):
        for name, value in LEARNS.items():
            monkeypatch.setenv(f"THUMBWHEEL_TRAIN__{method}__{name.upper()}", str(value))
    return tmp_path


def rows_of(home: Path, table: sa.Table) -> list[sa.RowMapping]:
    with Workspace.open(Home.at(home), Sources({}, "", {})) as ws, ws.db.read() as connection:
        return list(connection.execute(sa.select(table)).mappings())


@pytest.mark.slow
def test_a_turn_that_is_killed_at_each_step_ends_as_one_that_is_not(
    imported_home: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    command = [
        sys.executable,
        "-m",
        "thumbwheel",
        "loop",
        "run",
        "--agent",
        "animals",
        *TURN,
        "--json",
    ]
    environment = os.environ | {
        "THUMBWHEEL_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for step in STEPS:
        with subprocess.Popen(
            command,
            cwd=imported_home,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as turn:
            assert turn.stderr is not None
            for line in turn.stderr:
                if line.startswith(f"> {step}"):
                    os.kill(turn.pid, signal.SIGKILL)
        assert turn.returncode == -signal.SIGKILL, step
    finished = subprocess.run(
        command, cwd=imported_home, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    cycle = json.loads(finished.stdout)
    try:
        assert cycle["verdict"] == "approved"
        assert Path(cycle["report"]).is_file()
        assert (Path(cycle["exports"][0]["path"]) / "model.safetensors").is_file()
        assert Counter(row["state"] for row in rows_of(home, schema.runs)) == {"finished": 2}
        assert len(rows_of(home, schema.evaluations)) == 1
        formats = Counter(row["format"] for row in rows_of(home, schema.exports))
        assert formats == {"merged": 1, "adapter": 1}  # the target has one of its own
        with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
            behind_live = routing.route(ws, Agent.named("animals"), "live").deployment
        assert behind_live is not None
        assert behind_live.version == cycle["version"]
        assert not (home / "cycles" / "animals" / "cycle.json").exists()
    finally:
        with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
            running.stop(ws, Agent.named("animals"))


@pytest.mark.slow
def test_a_turn_with_its_rows_in_postgresql(
    homes_in_postgresql: dict[Path, str], imported_home: Path, command_line: Run, tmp_path: Path
) -> None:
    """Training, gate, export and deployment by processes of their own; then the home moves to
    SQLite, where everything is as it was."""
    home = tmp_path / "home"
    command = [sys.executable, "-m", "thumbwheel", "loop", "run", "--agent", "animals"]
    command += ["--base", "base", "--methods", "sft", "--export", "merged", "--deploy", "embedded"]
    environment = os.environ | {
        "THUMBWHEEL_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command += ["--json"]
    turn = subprocess.run(
        command, cwd=imported_home, env=environment, capture_output=True, text=True, check=False
    )
    try:
        assert turn.returncode == 0, turn.stderr
        assert json.loads(turn.stdout)["verdict"] == "approved"
        with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
            behind_live = routing.route(ws, Agent.named("animals"), "live").deployment
        assert behind_live is not None
    finally:
        with Workspace.open(Home.at(home), Sources({}, "", {})) as ws:
            running.stop(ws, Agent.named("animals"))
    assert not (home / "thumbwheel.db").exists()

    url = homes_in_postgresql.pop(home)
    fingerprints = [row["fingerprint"] for row in rows_of_url(home, url, schema.datasets)]
    assert fingerprints
    subprocess.run(
        [sys.executable, "-m", "thumbwheel", "db", "copy", url, "sqlite"],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert [row["fingerprint"] for row in rows_of_url(home, "", schema.datasets)] == fingerprints


def rows_of_url(home: Path, url: str, table: sa.Table) -> list[sa.RowMapping]:
    """The rows of a home whose database is at `url`, oldest first."""
    database = Database(backend_at(Home.at(home), url, "test"))
    try:
        with database.read() as connection:
            return list(connection.execute(sa.select(table).order_by(table.c.id)).mappings())
    finally:
        database.close()


def test_a_turn_says_what_it_would_do_and_why_it_does_nothing(
    command_line: Run, tmp_path: Path
) -> None:
    lines = [
        {"type": "trace", "id": "t", "input": "hi", "output": "hello"},
        {"type": "feedback", "target": {"trace": "t"}, "kind": "thumb", "value": True},
    ]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command_line("import", "jsonl", "few.jsonl", "--agent", "a")[0] == 0
    for dry in ((), ("--dry-run",)):
        code, out, err = command_line("loop", "run", "--agent", "a", "--base", "base", *dry)
        assert code == (0 if dry else 1)
        assert "Do not train yet" in out + err
    code, out, _ = command_line("loop", "run", "--agent", "a", "--base", "base", "--json")
    assert json.loads(out)["candidates"] == []
    code, _, err = command_line("loop", "run", "--agent", "nobody", "--base", "base")
    assert code != 0
    assert "nobody" in err


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        (("--methods", "sfft"), "sft"),
        (("--methods", "reward"), "thumbwheel train reward"),
        (("--export", "ggufs"), "gguf"),
        (("--deploy", "olama"), "ollama"),
        (("--export", "merged", "--quant", "q8_0"), "Leave --quant out"),
        (("--report-to", "report.json"), "HTML"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_trained(
    command_line: Run, tmp_path: Path, option: tuple[str, str], hint: str
) -> None:
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws:
        ensure_agent(ws, "a")
    code, _, err = command_line(
        "loop", "run", "--agent", "a", "--base", "base", "--methods", "sft", *option
    )
    assert code not in (0, 1)
    assert hint in err
    assert list((tmp_path / "home" / "runs").iterdir()) == []


def judged_once(home: Path, version: str) -> None:
    """A turn that goes on after its evaluation takes that one, whatever answers by then, and finds
    files without a record."""
    from thumbwheel.loop import cycle as steps
    from thumbwheel.loop.cycle_state import CycleState
    from thumbwheel.loop.cycle_types import CycleConfig, CycleReport

    def again(*_: object) -> None:
        raise AssertionError("it was judged before")

    config = CycleConfig(export=("merged",), export_to=home.parent)
    with (
        Workspace.open(Home.at(home), Sources({}, "", {})) as ws,
        CycleState.open(home / "cycles" / "x", {}) as state,
    ):
        first, second = (
            CycleReport("animals", version=version),
            CycleReport("animals", version=version),
        )
        steps.release_candidate(ws, first, config, state=state)
        ws.db.write(lambda connection: connection.execute(schema.exports.delete()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "evaluate", again)
            steps.release_candidate(ws, second, config, state=state)
        assert first.evaluation is not None
        assert second.evaluation is not None
        assert (second.evaluation.id, second.verdict) == (first.evaluation.id, first.verdict)
        assert [export.path for export in second.exports] == [
            export.path for export in first.exports
        ]


@pytest.mark.repeat
def test_the_best_of_several_methods_is_found_without_the_gate(
    imported_home: Path, command_line: Run
) -> None:
    code, out, err = command_line(
        "train",
        "auto",
        "--agent",
        "animals",
        "--base",
        "base",
        "--methods",
        "sft",
        "--methods",
        "kto",
        "--json",
    )
    assert code == 0, err
    report = json.loads(out)
    assert [candidate["method"] for candidate in report["candidates"]] == ["sft", "kto"]
    assert report["version"] in {candidate["version"] for candidate in report["candidates"]}
    assert rows_of(imported_home / "home", schema.evaluations) == []
    judged_once(imported_home / "home", report["version"])
    code, out, _ = command_line(
        "train", "auto", "--agent", "animals", "--base", "base", "--dry-run"
    )
    assert code == 0
    assert "nothing was trained" in out


def test_two_turns_of_an_agent_do_not_run_at_once(tmp_path: Path) -> None:
    from thumbwheel.loop.cycle_state import CycleState
    from thumbwheel.loop.cycle_types import Candidate

    with CycleState.open(tmp_path, {"base": "b"}) as state:
        state.note(methods=["sft"], runs={"sft": "run_1"})
        state.note(candidates={"sft": Candidate("sft", "v1", "run_1")})
        with (
            pytest.raises(Conflict, match="another process"),
            CycleState.open(tmp_path, {"base": "b"}),
        ):
            pass
    with CycleState.open(tmp_path, {"base": "b"}) as state:
        assert (state.runs, state.candidates["sft"].version) == ({"sft": "run_1"}, "v1")
    with CycleState.open(tmp_path, {"base": "other"}) as state:
        assert (state.methods, state.candidates) == ([], {})
    with CycleState.open(tmp_path, {"base": "b"}, anew=True) as state:
        assert (state.methods, state.candidates) == ([], {})
    (tmp_path / "cycle.json").write_text("{")
    with CycleState.open(tmp_path, {"base": "b"}) as state:
        assert state.candidates == {}


def test_an_interrupted_training_ends_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thumbwheel.loop import cycle
    from thumbwheel.loop.cycle_state import CycleState
    from thumbwheel.training.types import RunResult, RunState

    asked = []

    def stopped(_: Workspace, agent: str, method: str, base: str, *, run_id: str) -> RunResult:
        asked.append(method)
        return RunResult(run_id, RunState.STOPPED, "interrupted", {})

    monkeypatch.setattr(cycle, "train", stopped)
    with (
        Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws,
        CycleState.open(tmp_path, {}) as state,
    ):
        ensure_agent(ws, "a")
        with pytest.raises(KeyboardInterrupt):
            cycle.train_candidates(
                ws, Agent.named("a"), Base("base", tmp_path, "f"), ["kto", "dpo"], state
            )
    assert asked == ["kto"]


def test_ctrl_c_after_the_last_training_step_ends_the_turn_and_keeps_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thumbwheel.loop import cycle
    from thumbwheel.loop.cycle_state import CycleState
    from thumbwheel.training.types import RunResult, RunState

    trained = []

    def finished(_: Workspace, agent: str, method: str, base: str, *, run_id: str) -> RunResult:
        trained.append(method)
        with suppress(KeyboardInterrupt):  # as the supervisor of a run does
            signal.raise_signal(signal.SIGINT)
        return RunResult(run_id, RunState.FINISHED, None, {}, "ver_1", "v1")

    monkeypatch.setattr(cycle, "train", finished)
    with (
        Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws,
        CycleState.open(tmp_path, {}) as state,
    ):
        ensure_agent(ws, "a")
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            cycle.train_candidates(
                ws, Agent.named("a"), Base("base", tmp_path, "f"), ["kto", "dpo"], state
            )
        assert signal.getsignal(signal.SIGINT) is handler
    assert trained == ["kto"]
    with CycleState.open(tmp_path, {}) as state:
        assert state.candidates["kto"].version == "v1"


def test_an_export_that_was_changed_since_is_not_taken_for_the_one_that_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thumbwheel.core import ids
    from thumbwheel.loop import cycle
    from thumbwheel.loop.cycle_types import CycleConfig

    folder = tmp_path / "a-v1-merged"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    files = {"model.safetensors": {"sha256": ids.file_hash(folder / "model.safetensors")}}
    earlier = SimpleNamespace(format="merged", path=folder, files=files, host=None)
    version = SimpleNamespace(id="ver_1", agent="a", name="v1")
    config = CycleConfig(export_to=tmp_path)
    monkeypatch.setattr(cycle, "exports", lambda ws, version_id: [earlier])
    assert cycle.export_once(None, version, "merged", config) is earlier  # type: ignore[arg-type]
    (folder / "model.safetensors").write_text("other weights")
    with pytest.raises(Conflict, match=r"model\.safetensors was changed"):
        cycle.export_once(None, version, "merged", config)  # type: ignore[arg-type]

    # The same files without their record: the cycle was killed before it could write that.
    manifest = {"version_id": "ver_1", "files": files}
    (folder / "thumbwheel.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(cycle, "exports", lambda ws, version: [])
    with pytest.raises(Conflict, match=r"model\.safetensors was changed"):
        cycle.export_once(None, version, "merged", config)  # type: ignore[arg-type]
    assert (folder / "model.safetensors").read_text() == "other weights"


def test_a_single_candidate_without_dev_rows_goes_to_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thumbwheel.evaluation.rows import NoDevRows
    from thumbwheel.loop import cycle
    from thumbwheel.loop.cycle_state import CycleState
    from thumbwheel.loop.cycle_types import Candidate, CycleReport

    def no_rows(*_: object) -> None:
        raise NoDevRows("agent 'a'", "its dev rows have no recorded answer", "Collect thumbs")

    monkeypatch.setattr(cycle, "compare_on_dev", no_rows)
    monkeypatch.setattr(cycle.versions, "version", lambda ws, agent, name: name)
    first, second = Candidate("grpo", "v1", "run_1"), Candidate("ppo", "v2", "run_2")
    with CycleState.open(tmp_path, {}) as state:
        alone = CycleReport("a", candidates=[first])
        assert cycle.choose(None, Agent.named("a"), alone, state) == "v1"  # type: ignore[arg-type]
        assert state.chosen == "v1"
        with pytest.raises(NoDevRows):
            state.chosen = None
            both = CycleReport("a", candidates=[first, second])
            cycle.choose(None, Agent.named("a"), both, state)  # type: ignore[arg-type]


def test_a_turn_over_a_base_that_was_changed_since_has_to_begin_anew(tmp_path: Path) -> None:
    from thumbwheel.loop.cycle_state import CycleState

    before, after = (Base("base", tmp_path, fingerprint) for fingerprint in ("old", "new"))
    with CycleState.open(tmp_path, {}) as state:
        state.check_base(before)
        state.note(base="base", base_fingerprint="old")
    with CycleState.open(tmp_path, {}) as state:
        state.check_base(before)
        with pytest.raises(Conflict, match="--anew"):
            state.check_base(after)
    with CycleState.open(tmp_path, {}, anew=True) as state:
        state.check_base(after)
