"""A long command computes itself, unless workers with its settings are alive; what a job gave or
why it failed is what the command says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.command_line import Run
from tests.worlds.api_world import commands_client
from thumbwheel.app.open import Opener
from thumbwheel.core.present import json_text
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import claims, queue, store
from thumbwheel.jobs.types import Job, JobKind, JobsConfig, JobState, WorkerRow
from thumbwheel.server.api import endpoint
from thumbwheel.server.api.invocation import run

LINE = {"type": "trace", "id": "t1", "input": "Where is it?", "output": "On its way."}


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(LINE) + "\n")
    return path


def alive(
    ws: Workspace,
    silent_for: timedelta = timedelta(),
    settings: str | None = None,
    lacks: dict[str, str] | None = None,
) -> None:
    """A worker, as its row shows it."""
    beaten_at = now() - silent_for
    fingerprint = settings or Opener(ws.home.path, None).settings_fingerprint()
    row = WorkerRow("wrk_a", "elsewhere", 1, 1, fingerprint, 0, beaten_at, beaten_at, lacks=lacks)
    ws.db.write(lambda connection: store.add_worker(connection, row))


def done_by(ws: Workspace, do: Callable[[Job], None], kind: str = "import") -> threading.Thread:
    """Does the next job as a worker would."""
    deadline = time.monotonic() + 120

    def work() -> None:
        while time.monotonic() < deadline:
            time.sleep(0.02)
            job = ws.db.write(
                lambda connection: claims.claim(
                    connection, "wrk_a", {kind: ()}, JobsConfig(), now()
                )
            )
            if job is not None:
                do(job)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def finish(ws: Workspace, job: Job, state: JobState, **values: Any) -> None:
    ws.db.write(lambda connection: claims.finish(connection, job, state, now(), **values))


def test_a_command_waits_for_no_worker_whose_host_lacks_what_it_needs(
    command_line: Run, file: Path, empty_ws: Workspace
) -> None:
    alive(empty_ws, lacks={"import": "label fast-disk"})
    code, out, _ = command_line("import", "jsonl", str(file), "--agent", "a", "--json")
    assert code == 0 and json.loads(out)["stored"] == 1


def test_hosts_with_labels_of_their_own_have_the_same_settings(tmp_path: Path) -> None:
    fingerprints = set()
    for number, text in enumerate(("", "host: {labels: [gpu], address: gpu-1}\n")):
        settings = tmp_path / f"{number}.yaml"
        settings.write_text(text + "jobs: {heavy: 2}\n")
        fingerprints.add(Opener(tmp_path, settings).settings_fingerprint())
    assert len(fingerprints) == 1
    settings.write_text("jobs: {heavy: 3}\n")
    assert Opener(tmp_path, settings).settings_fingerprint() not in fingerprints


def test_without_workers_the_command_computes_itself(
    command_line: Run, file: Path, empty_ws: Workspace
) -> None:
    code, out, _ = command_line("import", "jsonl", str(file), "--agent", "a", "--json")
    assert code == 0 and json.loads(out)["stored"] == 1
    assert queue.jobs(empty_ws)[0] == []


@pytest.mark.parametrize("how", ["other settings", "silent", "--here"])
def test_a_worker_that_is_not_for_this_command_is_left_alone(
    command_line: Run, file: Path, empty_ws: Workspace, how: str
) -> None:
    settings = "x" if how == "other settings" else None
    alive(empty_ws, timedelta(hours=1 if how == "silent" else 0), settings)
    options = ["--here"] if how == "--here" else []
    code, _, err = command_line("import", "jsonl", str(file), "--agent", "a", *options)
    assert code == 0 and queue.jobs(empty_ws)[0] == []
    assert ("have other settings" in err) == (how == "other settings")


def test_where_a_worker_is_alive_the_command_shows_what_it_does(
    command_line: Run, file: Path, empty_ws: Workspace
) -> None:
    alive(empty_ws)
    result: dict[str, Any] = {}

    def do(job: Job) -> None:
        from thumbwheel.capture.jobs import ImportSpec, run_import

        report = run_import(empty_ws, ImportSpec.model_validate(job.spec))
        result.update(json.loads(json_text(report)))
        finish(empty_ws, job, JobState.SUCCEEDED, result=result)

    worker = done_by(empty_ws, do)
    code, out, err = command_line("import", "jsonl", "rows.jsonl", "--agent", "a", "--json")
    worker.join()
    (job,) = queue.jobs(empty_ws)[0]
    assert code == 0 and json.loads(out) == result and job.id in err
    assert job.spec["path"] == str(file) and job.agent == "a"  # whatever its folder is


def test_a_request_that_waits_for_its_job_calls_command_and_handler_once(
    command_line: Run, file: Path, empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line("import", "jsonl", str(file), "--agent", "a")[0] == 0
    alive(empty_ws)
    commands, jobs = [], []

    def counted(home: Any, signature: Any, arguments: Any) -> Any:
        commands.append(signature.function)
        return run(home, signature, arguments)

    def do(job: Job) -> None:
        from thumbwheel.rewards.jobs import RewardRunSpec, run_rewards

        jobs.append(job.id)
        report = run_rewards(empty_ws, RewardRunSpec.model_validate(job.spec))
        finish(empty_ws, job, JobState.SUCCEEDED, result=json.loads(json_text(report)))

    monkeypatch.setattr(endpoint, "run", counted)
    worker = done_by(empty_ws, do, "reward run")
    with commands_client(empty_ws) as client:
        answer = client.post("/api/agents/a/rewards?wait=60", json={})
    worker.join()
    assert answer.status_code == 200 and answer.json()["traces"] == 1
    assert (len(commands), len(jobs)) == (1, 1)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_what_became_of_the_job_is_the_commands_error(
    command_line: Run, file: Path, empty_ws: Workspace, state: JobState
) -> None:
    alive(empty_ws)
    error = {"kind": "StorageError", "what": "disk", "why": "it is full", "fix": "Free some"}

    def do(job: Job) -> None:
        if state is JobState.FAILED:
            finish(empty_ws, job, state, error=error)
            return
        queue.cancel(empty_ws, job.id)
        empty_ws.db.write(lambda connection: claims.give_back(connection, job, now()))

    worker = done_by(empty_ws, do)
    code, _, err = command_line("import", "jsonl", str(file), "--agent", "a")
    worker.join()
    if state is JobState.FAILED:
        assert code == 7 and "disk: it is full. Free some" in err
    else:
        assert code == 3 and "jobs resume" in err


def test_ctrl_c_ends_the_watching_and_not_the_job(
    command_line: Run, file: Path, empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thumbwheel.app import run_or_submit

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    alive(empty_ws)
    monkeypatch.setattr(run_or_submit, "show_progress", interrupted)
    code, _, err = command_line("import", "jsonl", str(file), "--agent", "a")
    (job,) = queue.jobs(empty_ws)[0]
    assert code == 130 and f"thumbwheel jobs cancel {job.id}" in err
    assert job.state is JobState.QUEUED


def test_jobs_are_listed_shown_and_stopped(command_line: Run, empty_ws: Workspace) -> None:
    job = queue.enqueue(empty_ws, "import", {"path": "x"}, agent="a")
    code, out, err = command_line("jobs", "list", "--state", "queued", "--of-agent", "a")
    assert code == 0 and "queued" in out and "no worker is alive" in err
    code, out, _ = command_line("jobs", "cancel", job.id, "--json")
    assert (code, json.loads(out)["state"]) == (0, "cancelled")
    code, out, _ = command_line("jobs", "logs", job.id)
    assert code == 0 and "[queued]" in out and "[cancelled]" in out
    assert command_line("jobs", "retry", job.id)[0] == 3
    code, out, _ = command_line("jobs", "resume", job.id)
    assert code == 0 and "queued" in out
    code, _, err = command_line("jobs", "list", "--state", "quued")
    assert code == 2 and "Did you mean 'queued'" in err


def test_a_schedule_is_checked_when_it_is_added(command_line: Run) -> None:
    add = ("schedule", "add", "nightly", "--agent", "a", "--cron")
    code, out, _ = command_line(
        *add, "30 3 * * *", "--job", "loop run", "--set", "deploy=x", "--json"
    )
    assert code == 0 and json.loads(out)["spec"] == {"agent": "a", "options": {"deploy": "x"}}
    for cron, job, option, why in (
        ("30 3 * *", "loop run", "deploy=x", "cron expression"),
        ("30 3 * * *", "loop rum", "deploy=x", "Did you mean 'loop run'"),
        ("30 3 * * *", "loop run", "deploi=x", "deploi"),
        ("30 3 * * *", "import", "path=x", "source"),
        ("30 3 * * *", "loop run", "deploy", "--set 'deploy'"),
    ):
        code, _, err = command_line(*add, cron, "--job", job, "--set", option)
        assert code == 2 and why in err, (cron, job, err)
    code, _, err = command_line(*add, "* * * * *", "--job", "loop run", "--missed", "never")
    assert code == 2 and "Known: once, skip, all" in err


def test_a_plugins_handler_that_does_not_say_its_result_may_give_anything() -> None:
    def handler(ws, spec):  # type: ignore[no-untyped-def]
        return 3

    assert JobKind(BaseModel, handler).result is Any
