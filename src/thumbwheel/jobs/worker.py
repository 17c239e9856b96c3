"""A worker: a process that claims jobs and does them, one at a time. Read this first.

Two threads. The main one claims a job, opens the home and runs the handler, because children that
die with their parent follow the thread that started them. `Pulse` beats, looks after other workers,
fires schedules, writes down what the job says, and interrupts the main thread where the job is
cancelled or stands still. An interrupt is a KeyboardInterrupt, as Ctrl-C: every verb stops at a
state from which it can go on.

An interrupt, and a crash, may leave anything behind in the memory of the process. So it ends after
such an attempt, and a fresh one goes on. Inside an import an interrupt waits until that is over.

A worker that cannot show a sign of life for a lease ends itself at once, and its children with it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError

from thumbwheel.core import ids, log, present
from thumbwheel.core.child import end_children
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import Fenced, InputError, StorageError, ThumbwheelError
from thumbwheel.core.home_paths import located, portable
from thumbwheel.core.imports import is_importing
from thumbwheel.core.locks import try_lock
from thumbwheel.db.dialects import SQLITE
from thumbwheel.db.host_software import as_row, software_of_host
from thumbwheel.db.hosts import HostConfig, set_software
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS, ROWS, WriteLock
from thumbwheel.jobs import claims, current, part_store, parts, schedules, store
from thumbwheel.jobs.host import Host, process_started
from thumbwheel.jobs.host_needs import HostOffer, lacks
from thumbwheel.jobs.part_types import JobPart, PartKind
from thumbwheel.jobs.sink import JobSink, PartSink
from thumbwheel.jobs.types import Job, JobKind, JobsConfig, JobState, Schedule, WorkerRow

T = TypeVar("T")

TICK = 0.25
"""Seconds between two looks at the database; a look costs microseconds."""
BEATS = 4
"""Signs of life in a lease."""
SCHEDULE_CHECK_SECONDS = 30.0
"""Between two looks for schedules that wait too long, because a worker set the next time whose
clock was wrong."""
AGAIN = 1.0
"""Seconds before something is tried again that the database refused."""
LOST = 75
"""Exit code of a worker that ended itself."""
WEIGHTY = "torch"
"""A process that has loaded it keeps hundreds of megabytes, so it is replaced by a fresh one."""


@dataclass
class Attempt:
    """A job that this worker has."""

    job: Job
    sink: JobSink
    stop_reason: str | None = None
    """Why it is interrupted: cancelled or stalled."""
    interrupted_at: float | None = None
    ending: bool = False
    """Its end is being written down."""
    n_interrupts: int = 0
    part: JobPart | None = None
    """The part that it does for the worker of the job; None if it has the job itself."""


@dataclass
class Worker:
    """`run` does jobs until it is told to stop (SIGTERM, SIGINT); use it in the main thread."""

    open_home: Callable[[], Workspace]
    kinds: Mapping[str, JobKind]
    config: JobsConfig
    settings: str
    """Fingerprint of the settings that it works with."""
    host: Host | None = None
    """Which host it runs on; None for that of its home's folder."""
    now: Clock = utc_now
    stop_when_idle: bool = False
    """Return once nothing waits."""
    id: str = field(default_factory=lambda: ids.new("wrk"))
    part_kinds: Mapping[str, PartKind] = field(default_factory=dict)
    """What it can do of the jobs of workers on other hosts, while it has no job."""
    lacks: dict[str, str] = field(default_factory=dict)
    """Kind that this worker leaves to others -> what its host lacks."""
    attempt: Attempt | None = None
    draining: bool = False
    interrupt_waits: bool = False
    """An interrupt came during an import; `Pulse` sends it again."""
    interrupts_itself: bool = False
    """The next SIGINT is of `Pulse`, and does not tell the worker to stop."""
    _wake: threading.Event = field(default_factory=threading.Event)
    _interruptible: bool = False

    def run(self) -> bool:
        """Do jobs until stopped or spent; return whether a fresh process should go on."""
        signal.signal(signal.SIGTERM, self._signalled)
        signal.signal(signal.SIGINT, self._signalled)
        with self.open_home() as ws:
            if ws.is_shared:
                set_software(ws.db, ws.home, as_row(software_of_host()))
            host = self.host or Host.of(ws.home)
            self.lacks = self._lacks(ws)
            host.locks.mkdir(mode=0o700, exist_ok=True)
            handle = try_lock(host.locks / self.id)
            watch = claims.WorkerWatch(self.config.lease_seconds, host)
            pulse = Pulse(self, ws, watch)
            pulse.register()
            thread = threading.Thread(target=pulse.run, name="pulse", daemon=True)
            thread.start()
            try:
                is_spent = self._work(pulse)
            finally:
                pulse.stopped.set()
                thread.join()
                with suppress(StorageError):
                    ws.db.write(lambda connection: store.remove_worker(connection, self.id), JOBS)
                (host.locks / self.id).unlink(missing_ok=True)
                if handle is not None:
                    os.close(handle)
        return is_spent and not self.draining

    def _lacks(self, ws: Workspace) -> dict[str, str]:
        """Return the kinds that this worker leaves to others, with what its host lacks."""
        needs = {name: kind.host_needs for name, kind in self.kinds.items() if kind.host_needs}
        offer = HostOffer(ws.settings(HostConfig, "host").labels)
        return lacks(self.kinds, needs | self.config.needs, offer)

    def _work(self, pulse: Pulse) -> bool:
        """Do jobs; return True if this process must not do another one, False if there is nothing
        more to do."""
        while True:
            # cleared before the check: a signal between the two must not be forgotten
            self._wake.clear()
            if self.draining:
                return False
            job = pulse.claim()
            if job is not None:
                # its row names files from the home on
                job = replace(
                    job,
                    spec=located(job.spec, pulse.home),
                    notes=located(job.notes, pulse.home),
                )
                is_sound = self._do(job, pulse)
                if not is_sound or (WEIGHTY in sys.modules and not self.stop_when_idle):
                    return True
                continue
            part = pulse.claim_part()
            if part is not None:
                is_sound = self._help(part, pulse)
                if not is_sound or (WEIGHTY in sys.modules and not self.stop_when_idle):
                    return True
            elif self.stop_when_idle:
                return False
            else:
                self._wake.wait()

    def wake(self) -> None:
        """Wake the main thread to look for work."""
        self._wake.set()

    def _signalled(self, _: int, frame: FrameType | None) -> None:
        if self.interrupts_itself:
            self.interrupts_itself = False
        else:
            self.draining = True
        self._wake.set()
        if not self._interruptible:
            return
        if is_importing(frame):
            self.interrupt_waits = True
            return
        raise KeyboardInterrupt

    def _do(self, job: Job, pulse: Pulse) -> bool:
        """Make one attempt at a job, from its claim to the record of its end; return whether this
        process may do another job."""
        log.say(f"job {job.id}: {job.kind}" + (f" for {job.agent}" if job.agent else ""))
        sink = JobSink(job, pulse.home)
        attempt = self.attempt = Attempt(job, sink)
        state, result, error = JobState.SUCCEEDED, None, None
        is_sound = True
        try:
            result = self._run_handler(job, attempt)
        except KeyboardInterrupt:
            is_sound = False
            state, error = self._interrupted(attempt)
        except Fenced:
            log.say(f"job {job.id}: another worker has it now")
            self.attempt = None
            return True
        except ThumbwheelError as refusal:
            state, error = JobState.FAILED, claims.error_of(job, refusal)
            log.logger.debug("job %s failed", job.id, exc_info=True)
        except BaseException as crash:  # noqa: BLE001 - whatever it was, the job's owner must read it
            is_sound = False
            log.logger.error("job %s crashed", job.id, exc_info=True)
            if self.draining or attempt.stop_reason is not None:
                # An interrupt comes out of foreign code as anything.
                state, error = self._interrupted(attempt)
            else:
                state, error = JobState.FAILED, claims.error_of(job, crash)
        if not is_sound:
            # Who claims the job next must not meet what this attempt had started.
            end_children()
        try:
            state = pulse.finish(attempt, state, result, error)
            log.say(f"job {job.id}: {state}")
        except Fenced:
            log.say(f"job {job.id}: another worker has it now")
        self.attempt = None
        return is_sound

    def _help(self, part: JobPart, pulse: Pulse) -> bool:
        """Do parts of the job of another worker while it has some and no job waits here; return
        whether this process may do more."""
        job = pulse.job_of(part)
        log.say(f"job {job.id}: this worker helps with its parts ({part.kind})")
        attempt = self.attempt = Attempt(job, PartSink(job, pulse.home), part=part)
        is_sound, has_failed = True, False
        try:
            self._do_parts(attempt, pulse)
        except KeyboardInterrupt:
            is_sound = False
            log.say(f"job {job.id}: this worker leaves its part to others")
        except Fenced:
            log.say(f"job {job.id}: it goes on without this worker")
        except BaseException as error:  # noqa: BLE001 - the worker of the job does the part itself
            is_sound = isinstance(error, ThumbwheelError)
            has_failed = not self.draining and attempt.stop_reason is None
            log.say(f"job {job.id}: this host does no parts of it: {error}")
            log.logger.debug("a part of job %s failed", job.id, exc_info=True)
        if not is_sound:
            end_children()
        pulse.release_part(attempt, is_unfit=has_failed)
        self.attempt = None
        return is_sound

    def _do_parts(self, attempt: Attempt, pulse: Pulse) -> None:
        assert attempt.part is not None  # noqa: S101 - narrows the type
        kind = self.part_kinds[attempt.part.kind]

        def current_part() -> JobPart:
            assert attempt.part is not None  # noqa: S101 - as long as its parts are done
            return attempt.part

        with log.sent_to(attempt.sink), self.open_home() as ws:
            ws.db.guard = parts.guard(current_part)
            try:
                self.interrupt_waits = False
                self._interruptible = True
                if self.draining or attempt.stop_reason is not None:
                    raise KeyboardInterrupt
                with kind.opened(ws) as do:
                    while attempt.part is not None:
                        parts.finish(ws, attempt.part, do(attempt.part.spec))
                        attempt.sink.moved_at = attempt.sink.clock()
                        attempt.part = pulse.next_part(attempt.part)
            finally:
                self._interruptible = False

    def _run_handler(self, job: Job, attempt: Attempt) -> Any:
        kind = self.kinds[job.kind]
        try:
            spec = kind.spec.model_validate(job.spec)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InputError(
                f"{job.kind}: {name}", str(first["msg"]), "Ask for a new job with a correct spec"
            ) from None
        with log.sent_to(attempt.sink), self.open_home() as ws, current.doing(job):
            ws.db.guard = claims.guard(job)
            try:
                self.interrupt_waits = False
                self._interruptible = True
                if self.draining or attempt.stop_reason is not None:
                    raise KeyboardInterrupt
                result = kind.handler(ws, spec)
            finally:
                self._interruptible = False
        return json.loads(present.json_text(result))

    def _interrupted(self, attempt: Attempt) -> tuple[JobState, dict[str, str] | None]:
        """Return (the state to set, the error of a failed job or None)."""
        job = attempt.job
        if attempt.stop_reason == STALLED:
            return JobState.FAILED, {
                "kind": "Stalled",
                "what": f"job {job.id!r}",
                "why": f"it stood still for {self.config.stall_minutes:g} minutes",
                "fix": f"Look into its log, then: thumbwheel jobs retry {job.id}",
            }
        if self.draining or attempt.stop_reason is not None:
            return JobState.QUEUED, None
        return JobState.FAILED, {
            "kind": "Interrupted",
            "what": f"job {job.id!r}",
            "why": "what it runs was interrupted from outside",
            "fix": f"To go on: thumbwheel jobs retry {job.id}",
        }


CANCELLED = "cancelled"
STALLED = "stalled"


class Pulse:
    """The second thread of a worker, and all that it writes."""

    def __init__(self, worker: Worker, ws: Workspace, watch: claims.WorkerWatch) -> None:
        self._worker, self._db, self._watch = worker, ws.db, watch
        self.home = ws.home.path
        self._config = worker.config
        self._needs = {
            name: kind.needs for name, kind in worker.kinds.items() if name not in worker.lacks
        }
        self._part_kinds = worker.part_kinds if ws.is_shared else {}
        self._urgent = [name for name, kind in worker.kinds.items() if kind.is_urgent]
        self._changes = ws.db.changes()
        self._marker: object = None
        self._schedules: list[Schedule] = []
        self._alive_at = self._beat_at = time.monotonic()
        self._complained = False
        self._looked_at_clock = worker.now()
        self._checked_at = -math.inf
        self.stopped = threading.Event()

    def register(self) -> None:
        """Insert the worker into the database."""
        worker, now = self._worker, self._worker.now()
        row = WorkerRow(
            id=worker.id,
            host=self._watch.host.id,
            pid=os.getpid(),
            process_started=process_started(os.getpid()),
            settings=worker.settings,
            lacks=worker.lacks or None,
            beat=0,
            beaten_at=now,
            recorded_at=now,
        )
        self._db.write(lambda connection: store.add_worker(connection, row), JOBS)
        self._alive_at = self._beat_at = time.monotonic()

    def run(self) -> None:
        """Tick until stopped."""
        while not self.stopped.wait(TICK):
            try:
                self._tick()
                self._complained = False
            except Fenced as error:
                self._end(str(error))
            except Exception as error:  # noqa: BLE001 - whatever the driver raises: next time again
                if not self._complained:
                    log.say(f"worker: {error}")
                self._complained = True
                self._check_lease()
        self._changes.close()

    def _tick(self) -> None:
        if time.monotonic() - self._beat_at >= self._config.lease_seconds / BEATS:
            self._beat()
        marker = self._changes.marker()
        if marker != self._marker:
            self._look()
            self._marker = marker
        for row in self._watch.dead():
            self._take_over(row)
        self._mind_schedules()
        self._mind_attempt()

    def _beat(self) -> None:
        began = time.monotonic()
        self._write(
            lambda connection: store.beat(connection, self._worker.id, self._worker.now()), ROWS
        )
        # The lease is counted from before the write: others count it from after.
        self._alive_at = self._beat_at = began

    def _look(self) -> None:
        """Read the rows after a change: release orphans, wake the main thread for queued jobs, and
        stop a cancelled attempt."""
        with self._db.read() as connection:
            waiting = store.queued(connection, 1, self._needs)
            rows = store.all_workers(connection)
            self._schedules = store.all_schedules(connection)
            orphans = claims.orphaned(connection)
            has_orphans = bool(self._part_kinds) and part_store.has_orphans(connection)
            if self._part_kinds and part_store.is_waiting(connection):
                self._worker.wake()
            attempt = self._worker.attempt
            held = store.by_id(connection, attempt.job.id) if attempt else []
        self._watch.update(row for row in rows if row.id != self._worker.id)
        for orphan in orphans:
            self._release(orphan)
        if has_orphans:
            self._write(part_store.release_orphans)
        if waiting:
            self._worker.wake()
        if attempt is not None and held:
            is_cancelled = held[0].state is JobState.CANCELLING
            if attempt.part is not None:
                is_over = is_cancelled or held[0].has_ended
            else:
                is_over = is_cancelled and held[0].fence == attempt.job.fence
            if is_over and not attempt.stop_reason:
                self._stop(attempt, CANCELLED)

    def _release(self, orphan: Job) -> None:
        self._write(
            lambda connection: claims.release_orphan(connection, orphan, self._worker.now())
        )

    def _take_over(self, row: WorkerRow) -> None:
        log.say(f"worker {row.id} is dead")
        self._watch.host.kill(row)
        lost = self._write(
            lambda connection: claims.take_over(connection, row, self._config, self._worker.now())
        )
        for job in lost:
            log.say(f"job {job.id} goes back to the queue")

    def _mind_schedules(self) -> None:
        now = self._worker.now()
        is_set_back = now < self._looked_at_clock
        self._looked_at_clock = now
        if any(schedules.is_due(schedule, now) for schedule in self._schedules):
            self._write(lambda connection: schedules.fire(connection, self._worker.now()))
        elif is_set_back or time.monotonic() - self._checked_at > SCHEDULE_CHECK_SECONDS:
            self._check_schedules()
            self._checked_at = time.monotonic()

    def _check_schedules(self) -> None:
        """Fire schedules whose next time is too late, by the database's clock: a worker whose own
        clock is behind would enqueue jobs for times that have passed."""
        if not self._schedules:
            return
        with self._db.read() as connection:
            now = store.database_time(connection)
        if any(schedules.is_ahead(schedule, now) for schedule in self._schedules):
            self._write(lambda connection: schedules.fire(connection, now))

    def _mind_attempt(self) -> None:
        """Write down the job's lines and progress, and interrupt the job if it has to stop."""
        attempt = self._worker.attempt
        if attempt is None:
            return
        if self._worker.interrupt_waits:
            self._worker.interrupt_waits = False
            self._interrupt()
        if attempt.sink.due():
            try:
                attempt.sink.flush(partial(self._write, lock=ROWS), self._worker.now(), end=False)
            except Fenced:
                if not attempt.ending:
                    raise
        now = time.monotonic()
        if attempt.stop_reason is None:
            if now - attempt.sink.moved_at > 60 * self._config.stall_minutes:
                self._stop(attempt, STALLED)
        elif now - (attempt.interrupted_at or now) > self._config.stop_seconds:
            if attempt.n_interrupts > 1:
                self._end(f"job {attempt.job.id} does not stop")
            self._stop(attempt, attempt.stop_reason)  # as a second Ctrl-C, which kills

    def _stop(self, attempt: Attempt, reason: str) -> None:
        attempt.stop_reason = reason
        attempt.interrupted_at = time.monotonic()
        attempt.n_interrupts += 1
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt the main thread, as Ctrl-C does."""
        self._worker.interrupts_itself = True
        main = threading.main_thread().ident
        assert main is not None  # noqa: S101 - a started thread has one
        signal.pthread_kill(main, signal.SIGINT)

    def _write(self, work: Callable[[sa.Connection], T], lock: WriteLock = JOBS) -> T:
        """Write to the database, for at most the rest of the lease; end the process if it takes
        longer.

        With SQLite it may take longer: a write waits there for another process that writes, and
        nobody can take this worker's job over before its turn has come.
        """
        if self._db.backend.address == SQLITE:
            return self._db.write(work, lock)
        answer: Future[T] = self._db.submit(work, lock)
        try:
            return answer.result(timeout=max(0.1, self._lease_end() - time.monotonic()))
        except TimeoutError:
            self._end("the database did not answer for a lease")
            raise

    def _lease_end(self) -> float:
        return self._alive_at + self._config.lease_seconds

    def _check_lease(self) -> None:
        if time.monotonic() > self._lease_end() and self._db.backend.address != SQLITE:
            self._end("it could not show a sign of life for a lease")

    def _end(self, why: str) -> None:
        """End this process at once; its children die with it."""
        log.complain(f"worker {self._worker.id} ends itself: {why}")
        os._exit(LOST)

    # called by the main thread

    def claim(self) -> Job | None:
        """Claim a job for this worker and return it; None if there is none or the database does not
        answer."""
        return self._claimed(
            lambda connection: claims.claim(
                connection,
                self._worker.id,
                self._needs,
                self._config,
                self._worker.now(),
                self._urgent,
                self._watch.host.folder,
                part_store.helpers(connection) if self._part_kinds else (),
            )
        )

    def claim_part(self, job_id: str | None = None) -> JobPart | None:
        """Claim a part of a job of another host and return it; None if there is none or the
        database does not answer. With a `job_id`, only of that job."""
        if not self._part_kinds:
            return None
        return self._claimed(
            lambda connection: claims.claim_part(
                connection,
                self._worker.id,
                self._part_kinds,
                self._needs,
                self._config,
                self._watch.host.folder,
                job_id,
            )
        )

    def _claimed(self, work: Callable[[sa.Connection], T | None]) -> T | None:
        """Return what a claim gives; None where the database does not answer, after a pause."""
        try:
            return self._db.write(work, JOBS)
        except StorageError as error:
            log.say(f"worker: {error}")
            time.sleep(AGAIN)
            self._worker.wake()
            return None

    def next_part(self, part: JobPart) -> JobPart | None:
        """Claim the next part of the same job and kind; None if there is none, or if a job waits
        that this worker can do."""
        if self._worker.draining:
            return None
        with self._db.read() as connection:
            job = next(
                claims.claimable(
                    connection,
                    self._worker.id,
                    self._needs,
                    self._config,
                    self._urgent,
                    self._watch.host.folder,
                    part_store.helpers(connection),
                ),
                None,
            )
        if job is not None:
            return None
        following = self.claim_part(part.job_id)
        if following is not None and following.kind != part.kind:
            self._db.write(lambda connection: part_store.release(connection, following), JOBS)
            return None
        return following

    def job_of(self, part: JobPart) -> Job:
        """Return the job of a part."""
        with self._db.read() as connection:
            return store.by_id(connection, part.job_id)[0]

    def release_part(self, attempt: Attempt, *, is_unfit: bool) -> None:
        """Let others have the part of an attempt that ended before it was done; `is_unfit`: this
        host gets no other part of the job."""
        part, folder = attempt.part, self._watch.host.folder
        if part is None:
            return
        attempt.ending = True
        while True:
            try:
                if is_unfit:
                    self._db.write(
                        lambda connection: part_store.refuse(connection, part, folder), JOBS
                    )
                else:
                    self._db.write(lambda connection: part_store.release(connection, part), JOBS)
                return
            except StorageError as refusal:
                log.say(f"worker: {refusal}")
                if self._worker.draining:
                    return  # others take it when this worker is gone
                time.sleep(AGAIN)

    def finish(
        self, attempt: Attempt, state: JobState, result: Any, error: dict[str, str] | None
    ) -> JobState:
        """Store how the attempt ended, retrying until the database accepts it; return the job's
        state. QUEUED returns it to the queue, or cancels a job that is to be cancelled."""
        job = attempt.job
        attempt.ending = True

        def work(connection: sa.Connection) -> JobState:
            now = self._worker.now()
            if state is JobState.QUEUED:
                return claims.give_back(connection, job, now)
            claims.finish(
                connection,
                job,
                state,
                now,
                portable(result, self.home),
                portable(error, self.home),
            )
            return state

        while True:
            try:
                attempt.sink.flush(partial(self._db.write, lock=ROWS), self._worker.now(), end=True)
                return self._db.write(work, JOBS)
            except StorageError as refusal:
                log.say(f"worker: {refusal}")
                time.sleep(AGAIN)
