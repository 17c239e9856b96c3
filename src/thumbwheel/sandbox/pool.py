"""Warm sandboxes: programs in, outcomes out, in their order.

Each worker has a sandbox for candidates and, once there are tests, one for the judge. Verdicts are
put together here, outside of both: the judge asks, the question goes to the candidate, its data
goes back. A program that ends early, prints or overwrites anything gains nothing.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from thumbwheel.core import log
from thumbwheel.sandbox.bubblewrap import (
    DeadlineExceeded,
    Ended,
    ProtocolError,
    Sandbox,
    SandboxRun,
)
from thumbwheel.sandbox.inside import protocol
from thumbwheel.sandbox.types import (
    Level,
    Limits,
    SandboxJob,
    SandboxOutcome,
    SandboxRefused,
    SandboxResult,
)

MAX_DETAIL = 2000
KILLED = -9
CPU_SHARE = 0.9
"""A program that was killed after this share of its processor time had used it up."""


class Pool:
    """Workers with sandboxes; thread-safe. `trusted`: plain processes without a sandbox, for code
    that its owner trusts."""

    def __init__(
        self,
        limits: Limits | None = None,
        workers: int | None = None,
        level: Level = Level.STANDARD,
        trusted: bool = False,
    ) -> None:
        self.workers, self.level, self.trusted = workers or os.cpu_count() or 1, level, trusted
        self.limits = limits or Limits()
        if level is Level.LIMITED and not trusted:
            self.limits = fit_to_memory(self.limits, self.workers)
        self._idle: queue.LifoQueue[PoolWorker] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(PoolWorker(self))
        if trusted:
            log.logger.warning(
                "trusted_code is set: code from answers runs as a plain process of this user, "
                "without a sandbox"
            )

    def run(self, jobs: Sequence[SandboxJob]) -> list[SandboxResult]:
        """Run the jobs and return one outcome per job. Programs do not see each other. Never on the
        caller's thread, where a signal could end a run halfway."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(self._run_on_worker, jobs))

    def _run_on_worker(self, job: SandboxJob) -> SandboxResult:
        worker = self._idle.get()
        try:
            return worker.run(job)
        except BaseException as error:
            worker.close()  # half a run is still in its sandboxes, and would answer the next job
            if isinstance(error, SandboxRefused | ValueError):
                return SandboxResult(SandboxOutcome.BROKEN, str(error))
            raise
        finally:
            self._idle.put(worker)

    def warm(self) -> None:
        """Start the sandboxes of the worker that runs next. Raises Refused if one does not
        start."""
        worker = self._idle.get()
        try:
            worker.warm()
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        for _ in range(self.workers):
            self._idle.get().close()

    def sandbox(self) -> Sandbox:
        """Return a new sandbox of this pool's kind."""
        return Sandbox(
            self.limits,
            sealed=not self.trusted,
            grouped=self.level is Level.STANDARD and not self.trusted,
        )


class PoolWorker:
    """Runs one job at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._sandboxes = pool, dict[str, Sandbox]()

    def run(self, job: SandboxJob) -> SandboxResult:
        """Return the outcome of a job. Raises Refused if its sandbox does not start, ValueError if
        the job is too long to be sent."""
        self.warm(("candidate", "judge") if job.tests else ("candidate",))
        deadline = time.monotonic() + self._pool.limits.wall_seconds
        for _ in range(2):
            result = (
                self._run_with_tests(job, deadline)
                if job.tests
                else self._run_without_tests(job, deadline)
            )
            if result is not None:
                return result
            if time.monotonic() >= deadline:
                break
        return SandboxResult(SandboxOutcome.DIED, "the sandbox itself ended while this ran")

    def warm(self, kinds: Sequence[str] = ("candidate", "judge")) -> None:
        """Start the sandboxes that are not up, so that no program pays for it. Raises Refused if
        one does not start."""
        for kind in kinds:
            if kind not in self._sandboxes:
                self._sandboxes[kind] = self._pool.sandbox()

    def _begin(self, kind: str, job: dict[str, Any]) -> SandboxRun:
        self.warm((kind,))
        return self._sandboxes[kind].begin(job)

    def _run_without_tests(self, job: SandboxJob, deadline: float) -> SandboxResult | None:
        run = self._begin("candidate", {"kind": job.language, "code": job.code})
        answer = _answer(run, None, deadline)
        if isinstance(answer, tuple) or "ended" not in answer:
            return self._outcome(run, *_started(answer))
        return self._outcome(run, SandboxOutcome.DIED, "", ended=int(answer["ended"]))

    def _run_with_tests(self, job: SandboxJob, deadline: float) -> SandboxResult | None:
        assert job.tests is not None  # noqa: S101 - the caller asked
        number = secrets.token_hex(16)
        tests = {"kind": "judge", **asdict(job.tests), "tests": job.tests.asserts}
        protocol.pack(tests)  # too long is known before anything runs
        program = {"kind": "python", "code": job.code, "id": number, "questions": True}
        run = self._begin("candidate", program)
        state, detail = _started(_answer(run, number, deadline))
        passed: tuple[bool, ...] = ()
        if state is SandboxOutcome.DONE:
            judge = self._begin("judge", tests)
            state, detail, passed = _relay(judge, run, deadline)
            if "code" not in judge.finish():
                self._drop("judge")
        return self._outcome(run, state, detail, passed)

    def _outcome(
        self,
        run: SandboxRun,
        state: SandboxOutcome,
        detail: str,
        passed: tuple[bool, ...] = (),
        ended: int | None = None,
    ) -> SandboxResult | None:
        """Return the outcome, with the report of the program's parent about its end, or with the
        exit code `ended` that a watcher saw; None if the sandbox was lost."""
        exit_status = run.finish()
        if "code" not in exit_status:
            self._drop("candidate")
            return None
        limits = self._pool.limits
        code = exit_status["code"] if ended is None else ended
        if state is SandboxOutcome.DIED and run.stopped:
            state, detail = SandboxOutcome.TIMEOUT, "it closed the conversation and went on"
        elif state is SandboxOutcome.DIED and code == KILLED:
            spent = exit_status["cpu"] >= CPU_SHARE * limits.cpu_seconds
            if spent:
                state, detail = SandboxOutcome.TIMEOUT, "processor time used up"
            else:
                state, detail = SandboxOutcome.MEMORY, "killed, out of memory"
        elif state is SandboxOutcome.DIED:
            detail = f"it ended with {code} before its end"
        shown = detail[:MAX_DETAIL].encode(errors="replace").decode()
        return SandboxResult(state, shown, run.output, passed, round(exit_status["cpu"], 3))

    def _drop(self, kind: str) -> None:
        self._sandboxes.pop(kind).close()

    def close(self) -> None:
        for kind in list(self._sandboxes):
            self._drop(kind)


def _started(answer: dict[str, Any] | tuple[SandboxOutcome, str]) -> tuple[SandboxOutcome, str]:
    """Return how the program itself went, before any question."""
    if isinstance(answer, tuple):
        return answer
    if answer.get("lied"):
        return SandboxOutcome.LIED, "it said something on the line by which its end is told"
    if answer.get("done"):
        return SandboxOutcome.DONE, ""
    text = str(answer.get("text"))
    if answer.get("raised") == "MemoryError":
        return SandboxOutcome.MEMORY, text
    return (SandboxOutcome.LEFT if answer.get("exit") else SandboxOutcome.RAISED), text


def _answer(
    run: SandboxRun, number: str | None, deadline: float
) -> dict[str, Any] | tuple[SandboxOutcome, str]:
    """Return the candidate's answer, or its end as state and reason. `number`: the id of the
    question; None if no candidate has the conversation."""
    try:
        answer = run.receive(deadline)
    except Ended:
        return SandboxOutcome.DIED, "it ended without an answer"
    except DeadlineExceeded:
        return SandboxOutcome.TIMEOUT, "no answer in time"
    except ProtocolError as error:
        return SandboxOutcome.LIED, str(error)
    if answer.get("id") != number:
        return SandboxOutcome.LIED, "an answer to something that was not asked"
    return answer


def _relay(
    judge: SandboxRun, candidate: SandboxRun, deadline: float
) -> tuple[SandboxOutcome, str, tuple[bool, ...]]:
    """Carry questions and answers between the judge and the candidate until there is a verdict."""
    asked = False
    while True:
        try:
            message = judge.receive(deadline)
        except DeadlineExceeded:
            return SandboxOutcome.TIMEOUT, "its answers could not be judged in time", ()
        except (Ended, ProtocolError):
            # once an answer is there, what it died of came from the candidate
            state = SandboxOutcome.TIMEOUT if asked else SandboxOutcome.BROKEN
            return state, "the judge ended without a verdict", ()
        if "verdict" in message:
            verdict = message["verdict"]
            if "broken" in verdict:
                return SandboxOutcome.BROKEN, f"the tests cannot run: {verdict['broken']}", ()
            return SandboxOutcome.DONE, verdict["detail"], tuple(verdict["passed"])
        answer = _ask_candidate(candidate, message, deadline, asked)
        if isinstance(answer, tuple):
            return *answer, ()
        asked = True
        failed = _pass_answer(judge, answer, deadline)
        if failed:
            return *failed, ()


def _ask_candidate(
    candidate: SandboxRun, question: dict[str, Any], deadline: float, asked: bool
) -> dict[str, Any] | tuple[SandboxOutcome, str]:
    """Return the candidate's answer to a question of the judge; `asked`: it may hold earlier
    answers."""
    number = secrets.token_hex(16)
    try:
        candidate.send({**question, "id": number}, deadline)
    except DeadlineExceeded:
        return SandboxOutcome.TIMEOUT, "no answer in time"
    except Ended:
        return SandboxOutcome.DIED, "it ended before all tests were asked"
    except ValueError as error:  # too long, with its number
        state = SandboxOutcome.LIED if asked else SandboxOutcome.BROKEN
        return state, f"a question that cannot be sent: {error}"
    return _answer(candidate, number, deadline)


def _pass_answer(
    judge: SandboxRun, answer: dict[str, Any], deadline: float
) -> tuple[SandboxOutcome, str] | None:
    """Hand an answer to the judge; return state and reason if that fails, else None."""
    try:
        judge.send(answer, deadline)
    except (DeadlineExceeded, Ended):
        return SandboxOutcome.TIMEOUT, "the judge ended over its answers"
    except ValueError as error:
        return SandboxOutcome.LIED, f"an answer that cannot be handed on: {error}"
    return None


def fit_to_memory(limits: Limits, workers: int) -> Limits:
    """Return limits whose processes, each at its own limit of memory, fit into half of the
    machine's. Raises Refused if not even one fits."""
    budget = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2 // workers // (1 << 20)
    most = (budget - limits.files_mb) // limits.memory_mb
    if most < 1:
        raise SandboxRefused(
            f"no cgroup here, and {workers} programs of {limits.memory_mb} MB do not fit into "
            "half of this machine's memory",
            "Lower memory_mb, or run under: systemd-run --user --scope -p Delegate=yes",
        )
    return limits.model_copy(update={"processes": min(limits.processes, most)})
