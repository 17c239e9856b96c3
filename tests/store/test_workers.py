"""Workers as processes: killed, stopped and woken, interrupted, and cut off from the database."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers.job_worker import BORDERS, WorkerProcess, opened, started
from tests.servers.postgres_server import Databases, PostgresServer
from tests.waiting import until
from thumbwheel.db.dialects import VARIABLE
from thumbwheel.db.schema import agents
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, store
from thumbwheel.jobs.supervisor import SPENT
from thumbwheel.jobs.types import Job, JobState, WorkerRow
from thumbwheel.jobs.worker import LOST

LEASE = 2.0


@pytest.fixture
def workers_ws(tmp_path: Path) -> Iterator[Workspace]:
    with opened(tmp_path / "home") as ws:
        yield ws


@pytest.fixture
def start(workers_ws: Workspace) -> Iterator[Callable[..., WorkerProcess]]:
    processes: list[WorkerProcess] = []

    def start(*options: str) -> WorkerProcess:
        processes.append(started(workers_ws.home.path, "--lease", str(LEASE), *options))
        return processes[-1]

    yield start
    for process in processes:
        process.end(signal.SIGKILL)


def steps(ws: Workspace, **spec: object) -> Job:
    return queue.enqueue(ws, "steps", {"name": "s", "steps": 4, **spec})


def in_state(ws: Workspace, job: Job, state: JobState) -> Callable[[], bool]:
    return lambda: queue.job(ws, job.id).state is state


def effects(ws: Workspace) -> list[str]:
    with ws.db.read() as connection:
        return [*connection.execute(sa.select(agents.c.slug).order_by(agents.c.id)).scalars()]


def workers(ws: Workspace) -> list[WorkerRow]:
    with ws.db.read() as connection:
        return store.all_workers(connection)


@pytest.mark.slow
def test_nothing_of_a_zombie_lands_and_its_job_is_taken_over_after_a_lease(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    """It is on another host, where nobody can kill it."""
    gate = tmp_path / "gate"
    job = steps(workers_ws, holds_until=str(gate))
    zombie = start("--host", "elsewhere")
    until(in_state(workers_ws, job, JobState.RUNNING))
    first = queue.job(workers_ws, job.id).worker_id
    heir = start()
    until(lambda: len(workers(workers_ws)) == 2)
    zombie.send(signal.SIGSTOP)
    until(lambda: queue.job(workers_ws, job.id).worker_id not in (first, None))
    assert queue.job(workers_ws, job.id).fence == 3  # two claims, and the release between them
    gate.touch()
    zombie.send(signal.SIGCONT)
    until(in_state(workers_ws, job, JobState.SUCCEEDED))
    assert zombie.process.wait(120) != 0
    assert {slug.rpartition("-")[2] for slug in effects(workers_ws)} == {str(heir.process.pid)}
    assert len(effects(workers_ws)) == 4


def test_a_job_waits_for_the_worker_whose_host_has_its_label(
    workers_ws: Workspace, start: Callable[..., WorkerProcess]
) -> None:
    start("--needs", '{"steps": {"labels": ["big"]}}')
    until(lambda: len(workers(workers_ws)) == 1)
    assert workers(workers_ws)[0].lacks == {"steps": "label big"}
    job = steps(workers_ws)
    code = queue.enqueue(workers_ws, "code", {"code": "pass"})
    until(in_state(workers_ws, code, JobState.SUCCEEDED))  # it looks, and leaves the other alone
    assert queue.job(workers_ws, job.id).state is JobState.QUEUED
    start("--needs", '{"steps": {"labels": ["big"]}}', "--labels", "big")
    until(in_state(workers_ws, job, JobState.SUCCEEDED))


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_that_stands_still_on_this_host_is_killed_before_its_job_is_taken(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = steps(workers_ws, holds_until=str(gate))
    stuck = start()
    until(in_state(workers_ws, job, JobState.RUNNING))
    start()
    stuck.send(signal.SIGSTOP)
    assert stuck.process.wait(120) == -signal.SIGKILL
    gate.touch()
    until(in_state(workers_ws, job, JobState.SUCCEEDED))
    assert len(effects(workers_ws)) == 4 and len(list(workers_ws.home.workers.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_killed_at_every_border_a_job_is_done_once(
    workers_ws: Workspace, start: Callable[..., WorkerProcess]
) -> None:
    kills = [(1, border) for border in BORDERS[:3]] + [(4, "end")]
    job = steps(workers_ws, kills=kills)
    for _ in kills:
        assert start().process.wait(60) == -signal.SIGKILL
    start()
    until(in_state(workers_ws, job, JobState.SUCCEEDED))
    ended = queue.job(workers_ws, job.id)
    assert (ended.result, ended.crashes, ended.attempts) == ({"name": "s", "steps": 4}, 4, 5)
    assert [slug.partition("-by-")[0] for slug in effects(workers_ws)] == [
        "s-0",
        "s-1",
        "s-2",
        "s-3",
    ]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_server_that_is_killed_takes_its_workers_along_and_the_next_one_goes_on(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = steps(workers_ws, steps=40, holds_until=str(gate), holds_from=4)
    server = start("--serve", "1")
    until(lambda: len(effects(workers_ws)) == 4)
    server.end(signal.SIGKILL)
    until(in_state(workers_ws, job, JobState.QUEUED))  # its worker was told, and gave the job back
    assert queue.job(workers_ws, job.id).crashes == 0
    until(lambda: workers(workers_ws) == [])
    assert len(effects(workers_ws)) == 4
    gate.touch()
    start("--until-idle")
    until(in_state(workers_ws, job, JobState.SUCCEEDED))
    assert len(effects(workers_ws)) == 40


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_cancelled_job_stops_at_once_and_goes_on_where_it_was(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = steps(workers_ws, steps=60, holds_until=str(gate), holds_from=4)
    start()
    until(lambda: len(effects(workers_ws)) == 4)
    queue.cancel(workers_ws, job.id)
    until(in_state(workers_ws, job, JobState.CANCELLED))
    gate.touch()
    assert len(effects(workers_ws)) == 4
    queue.resume(workers_ws, job.id)
    until(in_state(workers_ws, job, JobState.SUCCEEDED))
    assert len(effects(workers_ws)) == 60


def code(ws: Workspace, *lines: str) -> Job:
    return queue.enqueue(ws, "code", {"code": "\n".join(lines)})


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_interrupt_waits_for_the_end_of_an_import(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    (tmp_path / "heavy_package.py").write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(1.5)\n"
        f"pathlib.Path({str(over)!r}).touch()\n"
    )
    job = code(
        workers_ws, f"sys.path.append({str(tmp_path)!r})", "import heavy_package", "time.sleep(60)"
    )
    worker = start("--supervised")
    until(begun.exists)
    queue.cancel(workers_ws, job.id)
    until(in_state(workers_ws, job, JobState.CANCELLED), 30)
    assert over.exists()
    assert worker.process.wait(30) == SPENT, "its process ends after an interrupt"


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("line", ["raise TypeError('bad call flags')", "sys.exit(3)"])
def test_a_crash_ends_its_process_and_its_traceback_is_in_the_log(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], line: str
) -> None:
    for number in range(queue.CRASHES_IN_A_ROW):
        assert queue.crashing(workers_ws) is None
        job = code(workers_ws, line)
        assert start("--supervised").process.wait(30) == SPENT
        ended = queue.job(workers_ws, job.id)
        assert ended.state is JobState.FAILED and ended.error is not None
        assert ended.error["kind"] == "Crash" and "with the log of the server" in ended.error["fix"]
        text = workers_ws.home.path.with_suffix(".log").read_text()
        assert text.count("Traceback (most recent call last)") == number + 1
        assert f"job {job.id} crashed" in text
    problem = queue.crashing(workers_ws)
    assert problem is not None and job.id in problem and "bad call flags" not in problem
    steps(workers_ws)
    start("--until-idle")
    until(lambda: queue.crashing(workers_ws) is None)


@pytest.mark.slow
@pytest.mark.sqlite
def test_what_an_interrupted_attempt_had_started_ends_before_its_job_is_free(
    workers_ws: Workspace, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    """A server with a session of its own, as that of a deployment, goes on."""
    pids = tmp_path / "pids"
    program = "[sys.executable, '-c', 'import time; time.sleep(600)']"
    job = code(
        workers_ws,
        "import subprocess",
        f"helper = subprocess.Popen({program}, process_group=0)",
        f"server = subprocess.Popen({program}, start_new_session=True)",
        f"open({str(pids)!r}, 'w').write(f'{{helper.pid}} {{server.pid}}')",
        "time.sleep(600)",
    )
    start()
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    helper, server = map(int, pids.read_text().split())
    queue.cancel(workers_ws, job.id)
    until(in_state(workers_ws, job, JobState.CANCELLED), 30)
    assert not Path(f"/proc/{helper}").exists()
    os.kill(server, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.sqlite
def test_kills_at_random_lose_nothing_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of benchmarks/jobs.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    report = importlib.import_module("jobs").run(tmp_path / "bench", kills=15, figures=False)
    assert report.kills >= 15 and report.takeovers > 3
    assert (report.lost, report.wrong, report.repeated_steps) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.postgresql
def test_a_server_that_is_away_for_some_leases_costs_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker, cut off, ends itself; the next one waits for the server."""
    server = PostgresServer().create().start()
    try:
        databases = Databases(server.url())
        monkeypatch.setenv(VARIABLE, databases.migrated())
        with opened(tmp_path / "home") as ws:
            gate = tmp_path / "gate"
            job = steps(ws, steps=60, holds_until=str(gate), holds_from=4)
            first = started(ws.home.path, "--lease", str(LEASE))
            try:
                until(lambda: len(effects(ws)) == 4)
                server.stop("immediate")
                assert first.process.wait(120) == LOST
            finally:
                first.end(signal.SIGKILL)
            gate.touch()
            time.sleep(LEASE)
            second = started(ws.home.path, "--lease", str(LEASE))
            time.sleep(1)
            server.start()
            try:
                if second.process.poll() is not None:  # it did not wait so long
                    second = started(ws.home.path, "--lease", str(LEASE))
                until(in_state(ws, job, JobState.SUCCEEDED))
            finally:
                second.end(signal.SIGKILL)
            assert len(effects(ws)) == 60
    finally:
        server.close()
