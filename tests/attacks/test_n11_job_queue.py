"""N11: nobody's jobs wait behind all those of somebody else, and a key fills no queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from thumbwheel.app.job_kinds import job_kinds
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Busy
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import claims, queue, store
from thumbwheel.jobs.types import Job, JobsConfig, JobState, WorkerRow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NEEDS = {"import": (), "train": ("heavy",), "deploy": (), "loop approve": ()}
URGENT = ("deploy", "loop approve", "notify")


@pytest.fixture
def five_jobs_a_key(tmp_path: Path) -> Iterator[Workspace]:
    sources = Sources({"jobs": {"queued_per_key": 5}}, "thumbwheel.yaml", {})
    with Workspace.open(Home.at(tmp_path / "home").prepare(), sources) as ws:
        row = WorkerRow("wrk_a", "elsewhere", 1, 1, "settings", 0, NOW, NOW)
        ws.db.write(lambda connection: store.add_worker(connection, row))
        yield ws


def done_next(ws: Workspace, minute: int) -> Job | None:
    """Claim the next job and end it."""
    now = NOW + timedelta(minutes=minute)

    def work(connection: sa.Connection) -> Job | None:
        job = claims.claim(connection, "wrk_a", NEEDS, JobsConfig(), now, URGENT)
        if job is not None:
            claims.finish(connection, job, JobState.SUCCEEDED, now)
        return job

    return ws.db.write(work)


def order(ws: Workspace, count: int) -> list[str]:
    jobs = [done_next(ws, minute) for minute in range(count)]
    return [f"{job.agent} {job.kind}" for job in jobs if job is not None]


def test_agents_take_turns(five_jobs_a_key: Workspace) -> None:
    for _ in range(300):
        queue.enqueue(five_jobs_a_key, "import", {}, agent="flood")
    for _ in range(2):
        queue.enqueue(five_jobs_a_key, "import", {}, agent="beta")
    queue.enqueue(five_jobs_a_key, "import", {}, agent="gamma")
    queue.enqueue(five_jobs_a_key, "import", {})
    first = order(five_jobs_a_key, 7)
    assert first[:4] == ["flood import", "beta import", "gamma import", "None import"]
    assert first[4:] == ["flood import", "beta import", "flood import"]


def test_an_agent_takes_its_own_jobs_in_order(five_jobs_a_key: Workspace) -> None:
    asked = [
        queue.enqueue(five_jobs_a_key, "import", {"n": n}, agent="support").id for n in range(30)
    ]
    done = [done_next(five_jobs_a_key, minute) for minute in range(30)]
    assert [job.id for job in done if job is not None] == asked


def test_what_people_see_goes_before_trainings(five_jobs_a_key: Workspace) -> None:
    for _ in range(40):
        queue.enqueue(five_jobs_a_key, "train", {}, agent="alpha")
    for _ in range(40):
        queue.enqueue(five_jobs_a_key, "import", {}, agent="beta")
    queue.enqueue(five_jobs_a_key, "deploy", {}, agent="alpha")
    queue.enqueue(five_jobs_a_key, "loop approve", {}, agent="beta")
    assert order(five_jobs_a_key, 2) == ["alpha deploy", "beta loop approve"]
    assert [name for name, kind in job_kinds().items() if kind.is_urgent] == list(URGENT)


def test_a_busy_resource_hides_nobody_elses_job(five_jobs_a_key: Workspace) -> None:
    """Trainings of one agent that cannot begin are no reason for others to wait."""
    for _ in range(300):
        queue.enqueue(five_jobs_a_key, "train", {}, agent="flood")
    queue.enqueue(five_jobs_a_key, "import", {}, agent="beta")
    config = JobsConfig(heavy=1)

    def claim(connection: sa.Connection) -> Job | None:
        return claims.claim(connection, "wrk_a", NEEDS, config, NOW, URGENT)

    first, second = five_jobs_a_key.db.write(claim), five_jobs_a_key.db.write(claim)
    assert first is not None and first.kind == "train"
    assert second is not None and second.agent == "beta"


def test_a_key_has_a_most_number_of_jobs_that_wait(five_jobs_a_key: Workspace) -> None:
    jobs = [
        queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_1", key=f"k{n}")
        for n in range(5)
    ]
    with pytest.raises(Busy, match="5 of your jobs are already waiting"):
        queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_1")
    assert queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_1", key="k0").id == jobs[0].id
    queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_2")
    for _ in range(9):
        queue.enqueue(five_jobs_a_key, "import", {}, asked_by="local")


def test_jobs_that_were_cancelled_come_back_within_the_bound(five_jobs_a_key: Workspace) -> None:
    first = [queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_1") for _ in range(5)]
    for job in first:
        queue.cancel(five_jobs_a_key, job.id)
    for _ in range(5):
        queue.enqueue(five_jobs_a_key, "import", {}, asked_by="key_1")
    with pytest.raises(Busy, match="already waiting"):
        queue.resume(five_jobs_a_key, first[0].id)
