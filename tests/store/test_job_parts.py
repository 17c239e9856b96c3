"""Parts of one job are done by workers of two hosts, whoever is killed, stopped or cut off."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.servers.job_worker import WorkerProcess, started
from tests.servers.postgres_server import Databases
from tests.store.test_cluster import opened, variables
from tests.waiting import until
from thumbwheel.core.config import Home
from thumbwheel.db import cluster
from thumbwheel.db.schema import agents, job_parts
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, store
from thumbwheel.jobs.types import Job, JobState

pytestmark = pytest.mark.postgresql
LEASE = 2.0
N_PARTS = 5


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


@pytest.fixture
def ws(tmp_path: Path, url: str) -> Iterator[Workspace]:
    """The first of two hosts."""
    opened(tmp_path / "first", url, None).__exit__(None, None, None)
    cluster.initialise(Home.at(tmp_path / "first"), variables(url))
    cluster.join(Home.at(tmp_path / "second"), variables(url))
    with opened(tmp_path / "first", url) as workspace:
        yield workspace


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Callable[[str], WorkerProcess]]:
    processes: list[WorkerProcess] = []

    def start(host: str) -> WorkerProcess:
        options = ("--lease", str(LEASE))
        process = started(tmp_path / host, *options, environment=variables(url))
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.end(signal.SIGKILL)


def enqueue(ws: Workspace, tmp_path: Path, **spec: Any) -> Job:
    content = {"name": "p", "parts": N_PARTS, "folder": str(tmp_path), **spec}
    return queue.enqueue(ws, "shared", content)


def worker_ids(ws: Workspace) -> set[str]:
    with ws.db.read() as connection:
        return {row.id for row in store.all_workers(connection)}


def effects(ws: Workspace) -> list[str]:
    """Number and place of each part that was done."""
    with ws.db.read() as connection:
        slugs = connection.execute(sa.select(agents.c.slug).order_by(agents.c.slug)).scalars()
        return [slug.rpartition("-")[0] for slug in slugs]


def parts(ws: Workspace) -> list[sa.Row[Any]]:
    with ws.db.read() as connection:
        return [*connection.execute(sa.select(job_parts).order_by(job_parts.c.number))]


def ended(ws: Workspace, job: Job) -> Job:
    until(lambda: queue.job(ws, job.id).has_ended)
    return queue.job(ws, job.id)


def release(folder: Path, names: Sequence[str]) -> None:
    """Let those go on that wait."""
    for name in names:
        (folder / name).touch()


def numbers_of(job: Job) -> list[int]:
    return [result["number"] for result in job.result["results"]]


def places_of(job: Job) -> list[str]:
    return [result["where"] for result in job.result["results"]]


def test_workers_of_two_hosts_share_a_job_and_each_part_is_done_once(
    ws: Workspace, start: Callable[[str], WorkerProcess], tmp_path: Path
) -> None:
    for host in ("first", "second"):
        start(host)
    until(lambda: len(worker_ids(ws)) == 2)
    # one of the two has the job; while it waits in a part, the other one does the rest
    names = [f"here-{number}" for number in range(N_PARTS)]
    job = enqueue(ws, tmp_path, holds=names)
    until(lambda: len(effects(ws)) == N_PARTS - 1)
    release(tmp_path, names)
    job = ended(ws, job)
    assert job.state is JobState.SUCCEEDED and numbers_of(job) == [*range(N_PARTS)]
    assert places_of(job).count("here") == 1 and places_of(job).count("there") == N_PARTS - 1
    assert len(effects(ws)) == N_PARTS and parts(ws) == []


@pytest.fixture
def pair(
    ws: Workspace, start: Callable[[str], WorkerProcess], tmp_path: Path
) -> Callable[..., tuple[Job, WorkerProcess, WorkerProcess]]:
    """Begin a job; return it, the worker that has it, and the one that helps."""

    def begin(**spec: Any) -> tuple[Job, WorkerProcess, WorkerProcess]:
        processes = {host: start(host) for host in ("first", "second")}
        until(lambda: len(worker_ids(ws)) == 2)
        job = enqueue(ws, tmp_path, **spec)
        until(lambda: queue.job(ws, job.id).worker_id is not None)
        holder = queue.job(ws, job.id).worker_id
        with ws.db.read() as connection:
            rows = store.all_workers(connection)
        pids = {row.id == holder: row.pid for row in rows}
        by_pid = {process.process.pid: process for process in processes.values()}
        return job, by_pid[pids[True]], by_pid[pids[False]]

    return begin


@pytest.mark.slow
def test_a_part_whose_worker_is_killed_is_done_by_another(
    ws: Workspace, pair: Callable[..., tuple[Job, WorkerProcess, WorkerProcess]], tmp_path: Path
) -> None:
    there = [f"there-{number}" for number in range(N_PARTS)]
    here = [f"here-{number}" for number in range(N_PARTS)]
    job, _, helper = pair(holds=[*there, *here])
    until(lambda: any((tmp_path / f"at-{name}").exists() for name in there))
    release(tmp_path, here)
    until(lambda: len(effects(ws)) == N_PARTS - 1)  # the worker of the job waits for one part
    helper.end(signal.SIGKILL)
    job = ended(ws, job)
    assert places_of(job) == ["here"] * N_PARTS and len(effects(ws)) == N_PARTS
    assert job.crashes == 0  # the job has lost nothing


@pytest.mark.slow
def test_nothing_of_a_part_lands_twice_when_its_worker_wakes_up_again(
    ws: Workspace, pair: Callable[..., tuple[Job, WorkerProcess, WorkerProcess]], tmp_path: Path
) -> None:
    there = [f"there-{number}" for number in range(N_PARTS)]
    here = [f"here-{number}" for number in range(N_PARTS)]
    job, _, zombie = pair(holds=[*there, *here])
    until(lambda: any((tmp_path / f"at-{name}").exists() for name in there))
    zombie.send(signal.SIGSTOP)
    until(lambda: len(worker_ids(ws)) == 1)  # taken for dead after a lease
    release(tmp_path, here)
    until(lambda: len(effects(ws)) == N_PARTS)
    release(tmp_path, there)
    zombie.send(signal.SIGCONT)
    assert zombie.process.wait(60) != 0
    job = ended(ws, job)
    assert places_of(job) == ["here"] * N_PARTS
    assert effects(ws) == [f"p-{number}-by-here" for number in range(N_PARTS)]


@pytest.mark.slow
def test_parts_stay_done_when_the_worker_of_the_job_is_killed(
    ws: Workspace, pair: Callable[..., tuple[Job, WorkerProcess, WorkerProcess]], tmp_path: Path
) -> None:
    here = [f"here-{number}" for number in range(N_PARTS)]
    job, holder, _ = pair(holds=here)
    until(lambda: len(effects(ws)) == N_PARTS - 1)
    before = effects(ws)
    holder.end(signal.SIGKILL)
    release(tmp_path, here)
    job = ended(ws, job)
    assert job.state is JobState.SUCCEEDED and job.attempts == 2 and job.crashes == 1
    assert set(before) < set(effects(ws)) and len(effects(ws)) == N_PARTS
    assert numbers_of(job) == [*range(N_PARTS)]


def test_a_host_on_which_a_part_fails_gets_no_other_and_the_job_goes_on(
    ws: Workspace, pair: Callable[..., tuple[Job, WorkerProcess, WorkerProcess]], tmp_path: Path
) -> None:
    here = [f"here-{number}" for number in range(N_PARTS)]
    job, _, helper = pair(holds=here, fails="there")
    until(lambda: any(row.unfit for row in parts(ws)))
    assert sum(row.crashes for row in parts(ws)) == 1
    release(tmp_path, here)
    job = ended(ws, job)
    assert places_of(job) == ["here"] * N_PARTS and len(effects(ws)) == N_PARTS
    assert helper.process.poll() is None


def test_a_cancelled_job_takes_its_parts_from_whoever_does_them(
    ws: Workspace, pair: Callable[..., tuple[Job, WorkerProcess, WorkerProcess]], tmp_path: Path
) -> None:
    names = [f"{where}-{number}" for number in range(N_PARTS) for where in ("here", "there")]
    job, _, helper = pair(holds=names)
    until(lambda: len([*tmp_path.glob("at-*")]) == 2)
    before = worker_ids(ws)
    queue.cancel(ws, job.id)
    assert ended(ws, job).state is JobState.CANCELLED
    assert parts(ws) == []
    until(lambda: not before & worker_ids(ws))  # fresh processes go on
    release(tmp_path, names)
    assert effects(ws) == [] and helper.process.poll() is None


def test_on_one_host_no_part_becomes_a_row(
    ws: Workspace, start: Callable[[str], WorkerProcess], tmp_path: Path
) -> None:
    start("first")
    job = enqueue(ws, tmp_path, holds=["here-1"])
    until((tmp_path / "at-here-1").exists)
    assert effects(ws) == ["p-0-by-here"] and parts(ws) == []
    (tmp_path / "here-1").touch()
    assert places_of(ended(ws, job)) == ["here"] * N_PARTS
