"""Jobs as rows: who may claim, what a fence keeps out, what becomes of jobs whose worker died, and
schedules under clocks that jump."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.waiting import until
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError, Conflict, Fenced, InputError, NotFound
from thumbwheel.db.engine import Database
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.purge import mentions
from thumbwheel.jobs import claims, host_needs, queue, schedules, store
from thumbwheel.jobs import worker as worker_module
from thumbwheel.jobs.host import Host, boot_id, process_started
from thumbwheel.jobs.host_needs import HostNeeds, HostOffer, lacks
from thumbwheel.jobs.types import (
    MOVES,
    EventKind,
    Job,
    JobsConfig,
    JobState,
    Missed,
    Schedule,
    WorkerRow,
)
from thumbwheel.jobs.worker import Pulse, Worker
from thumbwheel.models.versions import ensure_agent

CONFIG = JobsConfig(crashes=3)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NEEDS = {
    "import": (),
    "train": ("heavy",),
    "loop run": ("heavy", "cycle of {agent}"),
    "turn": ("cycle of {agent}",),
}


def worker(ws: Workspace, name: str = "wrk_a", host: str = "elsewhere") -> WorkerRow:
    row = WorkerRow(name, host, 1, 1, "settings", 0, NOW, NOW)
    ws.db.write(lambda connection: store.add_worker(connection, row))
    return row


def claim(ws: Workspace, worker_id: str = "wrk_a", config: JobsConfig = CONFIG) -> Job | None:
    return ws.db.write(lambda connection: claims.claim(connection, worker_id, NEEDS, config, NOW))


def claimed(ws: Workspace, worker_id: str = "wrk_a") -> Job:
    job = claim(ws, worker_id)
    assert job is not None
    return job


def finish(ws: Workspace, job: Job, state: JobState = JobState.SUCCEEDED, **values: Any) -> None:
    ws.db.write(lambda connection: claims.finish(connection, job, state, NOW, **values))


def take_over(ws: Workspace, row: WorkerRow) -> list[Job]:
    return ws.db.write(lambda connection: claims.take_over(connection, row, CONFIG, NOW))


@contextmanager
def pulsing(ws: Workspace, now: Clock) -> Iterator[None]:
    """Beside a worker with this clock, which does no jobs."""
    idle = Worker(lambda: ws, {}, CONFIG, "settings", now=now)
    pulse = Pulse(idle, ws, claims.WorkerWatch(CONFIG.lease_seconds, Host("h", ws.home.path)))
    pulse.register()
    thread = threading.Thread(target=pulse.run)
    thread.start()
    try:
        yield
    finally:
        pulse.stopped.set()
        thread.join()
        ws.db.write(lambda connection: store.remove_worker(connection, idle.id))


def states(ws: Workspace, job: Job) -> list[str]:
    events = queue.events(ws, job.id, kinds=[EventKind.STATE])
    return [event.content["state"] for event in events]


def test_a_job_from_the_request_to_its_result(empty_ws: Workspace) -> None:
    asked = queue.enqueue(empty_ws, "import", {"path": "a"}, agent="support", asked_by="key 1")
    job = claimed(empty_ws)
    assert (job.id, job.state, job.fence, job.attempts) == (asked.id, JobState.RUNNING, 1, 1)
    assert claim(empty_ws) is None
    finish(empty_ws, job, result={"stored": 2})
    ended = queue.job(empty_ws, asked.id[:12])
    assert (ended.state, ended.result, ended.worker_id) == (JobState.SUCCEEDED, {"stored": 2}, None)
    assert [event.number for event in queue.events(empty_ws, job.id)] == [1, 2, 3]
    assert states(empty_ws, job) == ["queued", "running", "succeeded"]


def test_a_key_makes_a_request_repeatable(empty_ws: Workspace) -> None:
    first = queue.enqueue(empty_ws, "import", {"path": "a"}, key="k")
    assert queue.enqueue(empty_ws, "import", {"path": "a"}, key="k").id == first.id
    with pytest.raises(Conflict, match=first.id):
        queue.enqueue(empty_ws, "import", {"path": "b"}, key="k")


def test_a_row_and_its_job_come_together_or_not_at_all(empty_ws: Workspace) -> None:
    def work(connection: sa.Connection) -> None:
        queue.enqueued(connection, "import", {})
        raise InputError("this", "is refused", "so nothing is kept")

    with pytest.raises(InputError):
        empty_ws.db.write(work)
    assert queue.jobs(empty_ws) == ([], None)


def test_jobs_are_claimed_by_priority_and_then_by_age(empty_ws: Workspace) -> None:
    first = queue.enqueue(empty_ws, "import", {"n": 1})
    second = queue.enqueue(empty_ws, "import", {"n": 2})
    urgent = queue.enqueue(empty_ws, "import", {"n": 3}, priority=5)
    queue.enqueue(empty_ws, "unheard of", {}, priority=9)
    assert [claimed(empty_ws).id for _ in range(3)] == [urgent.id, first.id, second.id]
    assert claim(empty_ws) is None


def test_one_computes_with_models_while_imports_run_beside_and_an_agent_turns_once(
    empty_ws: Workspace,
) -> None:
    for kind, agent in (("train", "a"), ("loop run", "b"), ("turn", "a"), ("turn", "a")):
        queue.enqueue(empty_ws, kind, {}, agent=agent)
    queue.enqueue(empty_ws, "import", {}, agent="a")
    assert [
        (job.kind, job.agent) for job in (claimed(empty_ws), claimed(empty_ws), claimed(empty_ws))
    ] == [
        ("train", "a"),
        ("turn", "a"),
        ("import", "a"),
    ]
    assert claim(empty_ws) is None
    two = JobsConfig(heavy=2)
    assert (other := claim(empty_ws, config=two)) is not None and other.agent == "b"
    assert claim(empty_ws, config=two) is None


def test_each_host_computes_with_models_while_an_agent_turns_once_in_all(
    empty_ws: Workspace,
) -> None:
    for name, host in (("wrk_a", "one"), ("wrk_b", "one"), ("wrk_c", "other")):
        worker(empty_ws, name, host)
    for agent in ("a", "b", "c"):
        queue.enqueue(empty_ws, "train", {}, agent=agent)
    queue.enqueue(empty_ws, "turn", {}, agent="d")
    queue.enqueue(empty_ws, "turn", {}, agent="d")
    assert claimed(empty_ws, "wrk_a").kind == "train"
    assert claimed(empty_ws, "wrk_b").kind == "turn"
    assert claim(empty_ws, "wrk_b") is None
    assert claimed(empty_ws, "wrk_c").kind == "train"
    assert claim(empty_ws, "wrk_c") is None


def test_cancel_resume_and_retry_say_what_they_are_for(empty_ws: Workspace) -> None:
    job = queue.enqueue(empty_ws, "import", {})
    assert queue.cancel(empty_ws, job.id).state is JobState.CANCELLED
    assert queue.cancel(empty_ws, job.id).state is JobState.CANCELLED
    with pytest.raises(Conflict, match=f"jobs resume {job.id}"):
        queue.retry(empty_ws, job.id)
    assert queue.resume(empty_ws, job.id).state is JobState.QUEUED
    running = claimed(empty_ws)
    assert queue.cancel(empty_ws, job.id).state is JobState.CANCELLING
    with pytest.raises(Conflict, match="cancelling"):
        queue.resume(empty_ws, job.id)
    empty_ws.db.write(lambda connection: claims.give_back(connection, running, NOW))
    assert queue.job(empty_ws, job.id).state is JobState.CANCELLED
    queue.resume(empty_ws, job.id)
    error = {"kind": "DataError", "what": "w", "why": "y", "fix": "f"}
    finish(empty_ws, claimed(empty_ws), JobState.FAILED, error=error)
    with pytest.raises(Conflict, match=f"jobs retry {job.id}"):
        queue.resume(empty_ws, job.id)
    with pytest.raises(Conflict, match="failed already"):
        queue.cancel(empty_ws, job.id)
    assert queue.retry(empty_ws, job.id).error is None
    with pytest.raises(NotFound):
        queue.job(empty_ws, "job_nothing")


def test_no_state_is_left_by_a_move_that_is_none(empty_ws: Workspace) -> None:
    assert MOVES.keys() == set(JobState)
    job = queue.enqueue(empty_ws, "import", {})
    for state in set(JobState) - MOVES[JobState.QUEUED]:
        with pytest.raises(Conflict, match="cannot become"):
            empty_ws.db.write(lambda connection, to=state: store.move(connection, job, to, NOW))
    assert queue.job(empty_ws, job.id) == job


def test_a_worker_that_gives_its_job_back_lets_another_go_on(empty_ws: Workspace) -> None:
    queue.enqueue(empty_ws, "import", {})
    job = claimed(empty_ws)
    empty_ws.db.write(
        lambda connection: store.set_values(connection, job.id, notes={"run": "run_1"})
    )
    empty_ws.db.write(lambda connection: claims.give_back(connection, job, NOW))
    again = claimed(empty_ws, "wrk_b")
    assert (again.id, again.notes, again.crashes) == (job.id, {"run": "run_1"}, 0)
    with pytest.raises(Fenced):
        finish(empty_ws, job)


def test_a_job_that_is_released_has_another_fence_before_anybody_claims_it(
    empty_ws: Workspace,
) -> None:
    queue.enqueue(empty_ws, "import", {})
    job = claimed(empty_ws)
    empty_ws.db.write(lambda connection: claims.give_back(connection, job, NOW))
    assert queue.job(empty_ws, job.id).fence == job.fence + 1
    dead = worker(empty_ws)
    again = claimed(empty_ws)
    assert [lost.id for lost in take_over(empty_ws, dead)] == [job.id]
    assert queue.job(empty_ws, job.id).fence == again.fence + 1


def test_nothing_of_a_zombie_reaches_the_database(empty_ws: Workspace) -> None:
    """Not by its own road and not by that of any stage."""
    dead = worker(empty_ws)
    queue.enqueue(empty_ws, "train", {})
    lost = claimed(empty_ws)
    zombie = Database(empty_ws.db.backend)
    zombie.guard = claims.guard(lost)
    zombie_home = Workspace(empty_ws.home, zombie, empty_ws.sources)
    try:
        ensure_agent(zombie_home, "while-alive")
        assert [job.id for job in take_over(empty_ws, dead)] == [lost.id]
        with pytest.raises(Fenced):
            ensure_agent(zombie_home, "after-takeover")
        heir = claimed(empty_ws, "wrk_b")
        for write in (
            lambda: ensure_agent(zombie_home, "after-claim"),
            lambda: finish(empty_ws, lost),
        ):
            with pytest.raises(Fenced):
                write()
        finish(empty_ws, heir, result=1)
        with pytest.raises(Fenced):
            ensure_agent(zombie_home, "after-end")
    finally:
        zombie.close()
    with empty_ws.db.read() as connection:
        assert connection.execute(sa.text("SELECT slug FROM agents")).scalars().all() == [
            "while-alive"
        ]
    assert queue.job(empty_ws, lost.id).result == 1


def test_a_sign_of_life_that_came_first_keeps_the_job(empty_ws: Workspace) -> None:
    row = worker(empty_ws)
    queue.enqueue(empty_ws, "import", {})
    job = claimed(empty_ws)
    empty_ws.db.write(lambda connection: store.beat(connection, row.id, NOW))
    assert take_over(empty_ws, row) == []
    finish(empty_ws, job)
    with pytest.raises(Fenced):  # who was declared dead hears of it by its next beat
        empty_ws.db.write(lambda connection: store.beat(connection, "wrk_gone", NOW))


def test_a_job_under_which_workers_die_again_and_again_fails(empty_ws: Workspace) -> None:
    queue.enqueue(empty_ws, "train", {})
    for number in range(CONFIG.crashes):
        row = worker(empty_ws, f"wrk_{number}")
        job = claimed(empty_ws, row.id)
        take_over(empty_ws, row)
    failed = queue.job(empty_ws, job.id)
    assert failed.state is JobState.FAILED and failed.error is not None
    assert "3 workers died" in failed.error["why"]
    assert queue.retry(empty_ws, job.id).crashes == 0


def test_a_job_that_was_to_be_cancelled_is_so_when_its_worker_dies(empty_ws: Workspace) -> None:
    row = worker(empty_ws)
    queue.enqueue(empty_ws, "import", {})
    job = claimed(empty_ws)
    queue.cancel(empty_ws, job.id)
    take_over(empty_ws, row)
    assert queue.job(empty_ws, job.id).state is JobState.CANCELLED


def test_a_worker_is_dead_when_its_beat_stands_still_whatever_the_clocks_say(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    """Wall clocks that jump by a year, or differ, change nothing."""
    time = 0.0
    watch = claims.WorkerWatch(15, Host("h", tmp_path), clock=lambda: time)
    row = worker(empty_ws)

    def look() -> list[str]:
        with empty_ws.db.read() as connection:
            watch.update(store.all_workers(connection))
        return [dead.id for dead in watch.dead()]

    assert look() == []
    for wall in (NOW + timedelta(days=365), NOW - timedelta(days=365)):
        time += 14
        empty_ws.db.write(lambda connection, moment=wall: store.beat(connection, row.id, moment))
        assert look() == []
    time += 14.9
    assert look() == []
    time += 0.2
    assert look() == [row.id]


def test_a_worker_of_this_host_whose_process_is_gone_is_dead_after_a_second(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    time = 0.0
    watch = claims.WorkerWatch(3600, Host("h", tmp_path), clock=lambda: time)
    row = worker(empty_ws, host="h")
    watch.update([row])
    assert watch.dead() == []
    time = claims.GONE_SECONDS
    assert watch.dead() == [row]


def test_a_worker_of_a_copied_home_is_not_killed(empty_ws: Workspace, tmp_path: Path) -> None:
    """The rows of a copy name processes that run for the original."""
    import os

    pid = os.getpid()
    row = WorkerRow("wrk_a", "h", pid, process_started(pid), "", 0, NOW, NOW)
    Host("h", tmp_path).kill(row)  # this process goes on


def test_a_worker_of_another_folder_on_this_kernel_is_judged_by_its_lease_alone(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    """Two containers share a boot id, and neither sees the lock files of the other."""
    here, there = Home.at(tmp_path / "here").prepare(), Home.at(tmp_path / "there").prepare()
    host = Host.of(here)
    assert host == Host.of(here) and host.id.endswith(f"@{boot_id()}")
    assert host.id != Host.of(there).id
    time = 0.0
    watch = claims.WorkerWatch(15, host, clock=lambda: time)
    row = worker(empty_ws, host=Host.of(there).id)
    watch.update([row])
    time = 14.9
    assert watch.dead() == []
    host.kill(row)
    time = 15.1
    assert watch.dead() == [row]


def test_a_job_with_a_file_is_done_by_a_worker_of_its_folder(empty_ws: Workspace) -> None:
    bound = queue.enqueue(empty_ws, "import", {}, folder="here")
    free = queue.enqueue(empty_ws, "import", {})

    def claim(folder: str) -> str | None:
        work = claims.claim
        job = empty_ws.db.write(
            lambda connection: work(connection, "wrk_a", {"import": ()}, CONFIG, NOW, folder=folder)
        )
        return job.id if job else None

    assert [claim("there"), claim("there"), claim("here")] == [free.id, None, bound.id]


def test_a_host_takes_the_kinds_whose_needs_it_meets() -> None:
    offer = HostOffer(labels=["gpu", "eu"], cpus=8)
    offer.__dict__ |= {"memory_gb": 31.5, "gpus": 2}
    needs = {
        "train": HostNeeds(gpus=2, memory_gb=31, cpus=8, labels=["eu", "gpu"]),
        "evaluate": HostNeeds(gpus=3),
        "export": HostNeeds(memory_gb=32),
        "import": HostNeeds(labels=["eu", "nights", "us"]),
        "deploy": HostNeeds(cpus=9),
    }
    assert lacks(needs, needs, offer) == {
        "evaluate": "3 GPUs (it has 2)",
        "export": "32 GB of memory (it has 31.5)",
        "import": "label nights, us",
        "deploy": "9 processors (it has 8)",
    }
    with pytest.raises(ConfigError, match=r"'jobs.needs': 'trian'.*Did you mean 'train'"):
        lacks(needs, {"trian": HostNeeds()}, offer)


def test_gpus_are_counted_without_loading_torch_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_needs, "COUNT_GPUS", "print('warning'); print(2)")
    assert HostOffer().gpus == 2
    monkeypatch.setattr(host_needs, "COUNT_GPUS", "raise SystemExit('no driver')")
    with pytest.raises(ConfigError, match="GPUs of this host cannot be counted"):
        HostOffer().lack(HostNeeds(gpus=1))
    assert HostOffer().lack(HostNeeds()) is None  # nothing is counted for nothing


def test_a_worker_passes_over_jobs_that_its_host_cannot_do(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them wait at the head of the queue."""
    monkeypatch.setattr(claims, "CLAIMABLE", 3)
    for number in range(4):
        queue.enqueue(empty_ws, "train", {}, agent=f"agent-{number}", priority=1)
    job = queue.enqueue(empty_ws, "import", {})
    claimed = empty_ws.db.write(
        lambda connection: claims.claim(connection, "wrk_a", {"import": ()}, CONFIG, NOW)
    )
    assert claimed is not None and claimed.id == job.id
    with empty_ws.db.read() as connection:
        assert [row.id for row in store.queued(connection, 1, ["import"])] == []


def test_who_waits_for_a_host_with_more_is_told(empty_ws: Workspace) -> None:
    job = queue.enqueue(empty_ws, "train", {})
    now = datetime.now(UTC)
    here = Host.of(empty_ws.home).id
    small = WorkerRow("wrk_a", here, 1, 1, "", 0, now, now, lacks={"train": "2 GPUs (it has 0)"})
    empty_ws.db.write(lambda connection: store.add_worker(connection, small))
    assert queue.standstill(empty_ws) is None  # it has not waited long
    message = str(queue.standstill(empty_ws, -1.0))
    assert job.id in message
    assert "needs of 'train' (jobs.needs): this host lacks 2 GPUs (it has 0)" in message
    assert queue.obstacle(empty_ws, job) is not None
    large = replace(small, id="wrk_b", lacks=None)
    empty_ws.db.write(lambda connection: store.add_worker(connection, large))
    assert queue.standstill(empty_ws, -1.0) is None
    assert queue.obstacle(empty_ws, job) is None


def test_orphans_go_back_to_the_queue(empty_ws: Workspace) -> None:
    queue.enqueue(empty_ws, "import", {})
    job = claimed(empty_ws, "wrk_never_there")
    with empty_ws.db.read() as connection:
        orphans = claims.orphaned(connection)
    assert [orphan.id for orphan in orphans] == [job.id]
    for _ in range(2):
        empty_ws.db.write(lambda connection: claims.release_orphan(connection, orphans[0], NOW))
    assert states(empty_ws, job) == ["queued", "running", "queued"]


def test_pages_of_jobs_go_to_the_end_and_filters_hold(empty_ws: Workspace) -> None:
    asked = [queue.enqueue(empty_ws, "import", {"n": n}, agent="ab"[n % 2]).id for n in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = queue.jobs(empty_ws, after=cursor, limit=3)
        seen += [job.id for job in page]
        if cursor is None:
            break
    assert sorted(seen) == sorted(asked) and len(seen) == 7
    assert len(queue.jobs(empty_ws, agents=["a"])[0]) == 4
    assert queue.jobs(empty_ws, states=[JobState.FAILED])[0] == []
    for broken in ("x", "W10=", "WyIyMDI2LTAxLTAxIiwgImoiXQ=="):
        with pytest.raises(InputError, match="cursor"):
            queue.jobs(empty_ws, after=broken)


def test_an_erased_subject_leaves_no_trace_in_jobs(empty_ws: Workspace) -> None:
    spec = {"path": "/data/ada@example.org.jsonl", "tag": ["ada@example.org", "other"]}
    job = queue.enqueue(empty_ws, "import", spec)
    running = claimed(empty_ws)

    def log(connection: sa.Connection) -> None:
        content = {"text": "refused: ada@example.org said so"}
        store.add_event(connection, job.id, EventKind.LOG, content, NOW)

    empty_ws.db.write(log)
    finish(empty_ws, running, result={"refusals": [{"reason": "ada@example.org"}], "x7": "x7"})
    mentioned = mentions({"ada@example.org", "x7"[:2]})
    assert empty_ws.db.write(lambda connection: queue.forget(connection, mentioned)) == 2
    left = queue.job(empty_ws, job.id)
    assert left.spec == {"path": queue.ERASED, "tag": [queue.ERASED, "other"]}
    assert left.result == {"refusals": [{"reason": queue.ERASED}], queue.ERASED: queue.ERASED}
    assert "ada" not in str(queue.events(empty_ws, job.id))


# schedules

Add = Callable[..., Schedule]


@pytest.fixture
def add(empty_ws: Workspace) -> Add:
    def add(cron: str, now: datetime = NOW, **options: Any) -> Schedule:
        return schedules.add(empty_ws, "nightly", "import", {"path": "a"}, cron, now=now, **options)

    return add


def fire(ws: Workspace, now: datetime) -> list[str]:
    jobs = ws.db.write(lambda connection: schedules.fire(connection, now))
    for job in jobs:
        ws.db.write(
            lambda connection, job=job: store.move(
                connection, job, JobState.CANCELLED, now, ended_at=now
            )
        )
    return [str(job.key).split()[1] for job in jobs]


def next_at(ws: Workspace) -> str:
    row = schedules.schedules(ws)[0]
    return row.next_at.isoformat() if row.next_at else ""


def test_a_schedule_fires_once_at_its_time_whoever_looks(empty_ws: Workspace, add: Add) -> None:
    """Two schedulers look at the same clock."""
    add("30 3 * * *", agent="support")
    instant = datetime(2026, 3, 2, 3, 30, tzinfo=UTC)
    assert fire(empty_ws, instant - timedelta(seconds=1)) == []
    other = Database(empty_ws.db.backend)
    try:
        first = empty_ws.db.submit(lambda connection: schedules.fire(connection, instant))
        second = other.submit(lambda connection: schedules.fire(connection, instant))
        fired = first.result() + second.result()
    finally:
        other.close()
    assert [job.agent for job in fired] == ["support"]
    assert next_at(empty_ws) == "2026-03-03T03:30:00+00:00"


@pytest.mark.parametrize(
    ("rule", "days"),
    [(Missed.ONCE, [4]), (Missed.SKIP, []), (Missed.ALL, [2, 3, 4])],
    ids=lambda value: str(value),
)
def test_runs_that_nobody_was_there_to_start(
    empty_ws: Workspace, add: Add, rule: Missed, days: list[int]
) -> None:
    add("30 3 * * *", missed=rule)
    fired = fire(empty_ws, datetime(2026, 3, 4, 9, tzinfo=UTC))
    assert fired == [f"2026-03-{day:02}T03:30:00+00:00" for day in days]
    assert next_at(empty_ws) == "2026-03-05T03:30:00+00:00"
    # a run that comes in time is none that was missed
    assert len(fire(empty_ws, datetime(2026, 3, 5, 3, 30, 20, tzinfo=UTC))) == 1


def test_a_clock_that_jumps_starts_nothing_twice_and_forgets_nothing(
    empty_ws: Workspace, add: Add
) -> None:
    add("0 * * * *")
    hour = timedelta(hours=1)
    assert len(fire(empty_ws, NOW + hour)) == 1
    # A year ahead: the missed runs are one run. And back: it goes on with the hours to come.
    assert len(fire(empty_ws, NOW + timedelta(days=365))) == 1
    assert fire(empty_ws, NOW + hour) == []
    assert next_at(empty_ws) == (NOW + 2 * hour).isoformat()
    assert len(fire(empty_ws, NOW + 2 * hour)) == 1
    # Back by an hour: what was started is not started again.
    assert fire(empty_ws, NOW + hour) == []
    assert fire(empty_ws, NOW + 2 * hour) == []
    assert len(fire(empty_ws, NOW + 3 * hour)) == 1


def test_a_worker_whose_clock_was_ahead_moves_no_schedule_away(
    empty_ws: Workspace, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is right sets the schedule right, although its own never jumped."""
    monkeypatch.setattr(worker_module, "SCHEDULE_CHECK_SECONDS", 3600.0)
    add("30 3 * * *", utc_now())
    (daily,) = schedules.schedules(empty_ws)
    first = daily.next_at
    assert first is not None
    with pulsing(empty_ws, lambda: utc_now() + timedelta(days=1)):
        until(lambda: next_at(empty_ws) == (first + timedelta(days=1)).isoformat())
    with pulsing(empty_ws, utc_now):
        until(lambda: next_at(empty_ws) == first.isoformat())
    assert fire(empty_ws, first) == []  # that day's job was asked for by the clock that was ahead


def test_a_worker_whose_clock_is_behind_asks_for_nothing_that_is_over(
    empty_ws: Workspace, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SCHEDULE_CHECK_SECONDS", 0.0)
    add("30 3 * * *", utc_now())
    first = next_at(empty_ws)
    looks: list[datetime] = []

    def behind() -> datetime:
        looks.append(utc_now() - timedelta(days=1))
        return looks[-1]

    with pulsing(empty_ws, behind):
        until(lambda: len(looks) >= 20)
    assert next_at(empty_ws) == first


@pytest.mark.parametrize(
    ("cron", "start", "instants"),
    [
        # 29 March 2026: 2:00 in Berlin becomes 3:00
        ("30 2 * * *", (2026, 3, 28, 12), ["03-29T01:00", "03-30T00:30"]),
        ("0 * * * *", (2026, 3, 29, 0, 30), ["03-29T01:00", "03-29T02:00"]),
        # 25 October 2026: 3:00 becomes 2:00
        ("30 2 * * *", (2026, 10, 24, 12), ["10-25T00:30", "10-26T01:30"]),
        ("30 * * * *", (2026, 10, 25, 0), ["10-25T00:30", "10-25T01:30", "10-25T02:30"]),
    ],
)
def test_days_on_which_the_clock_is_changed(
    empty_ws: Workspace, add: Add, cron: str, start: tuple[int, ...], instants: list[str]
) -> None:
    now = datetime(*start, tzinfo=UTC)  # type: ignore[arg-type,misc]
    add(cron, now, timezone="Europe/Berlin", missed=Missed.SKIP)
    fired: list[str] = []
    while len(fired) < len(instants):
        now += timedelta(minutes=30)
        fired += fire(empty_ws, now)
    assert fired == [f"2026-{instant}:00+00:00" for instant in instants]


def test_in_the_hour_that_comes_twice_the_next_time_is_to_come(
    empty_ws: Workspace, add: Add
) -> None:
    add("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), timezone="Europe/Berlin")
    assert fire(empty_ws, datetime(2026, 10, 25, 1, 10, tzinfo=UTC)) == [
        "2026-10-25T00:30:00+00:00"
    ]
    assert next_at(empty_ws) == "2026-10-26T01:30:00+00:00"
    (daily,) = schedules.schedules(empty_ws)
    assert not schedules.is_ahead(daily, datetime(2026, 10, 25, 1, 15, tzinfo=UTC))


def test_a_schedule_whose_last_job_goes_on_waits(empty_ws: Workspace, add: Add) -> None:
    add("0 * * * *")
    hour = timedelta(hours=1)
    empty_ws.db.write(lambda connection: schedules.fire(connection, NOW + hour))
    assert fire(empty_ws, NOW + 2 * hour) == []
    finish(empty_ws, claimed(empty_ws))
    assert len(fire(empty_ws, NOW + 3 * hour)) == 1


def test_pause_leaves_out_and_remove_ends(empty_ws: Workspace, add: Add) -> None:
    add("0 * * * *")
    later = NOW + timedelta(hours=5)
    assert schedules.pause(empty_ws, "nightly").paused
    assert fire(empty_ws, later) == []
    schedules.pause(empty_ws, "nightly", paused=False, now=later)
    assert fire(empty_ws, later + timedelta(minutes=1)) == []
    assert len(fire(empty_ws, later + timedelta(hours=1))) == 1
    with pytest.raises(Conflict, match="with that name"):
        add("0 * * * *")
    schedules.remove(empty_ws, "nightly")
    with pytest.raises(NotFound):
        schedules.remove(empty_ws, "nightly")


def test_what_is_no_schedule_is_refused(empty_ws: Workspace, add: Add) -> None:
    with pytest.raises(InputError, match="cron expression 'soon'"):
        add("soon")
    with pytest.raises(InputError, match="Bad day-of-month"):
        add("0 0 31 2 *")
    with pytest.raises(InputError, match="time zone 'Mars/Base'"):
        add("0 0 * * *", timezone="Mars/Base")
    with pytest.raises(InputError, match=r"\.\./etc"):
        add("0 0 * * *", timezone="../etc")
