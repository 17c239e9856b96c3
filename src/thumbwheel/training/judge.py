"""What fresh answers are worth: reward functions in processes beside the model, a reward model, and
their weighted mean.

A function is `checker` (the one that the row names), a name of the reward functions' table, or
"module:function" of the user's:

    def reward(prompt, answer, reference, **row) -> float | None

`prompt` is the list of messages, `answer` the text, `reference` that of the row (or None), `row`
its other fields and `finish` ("stop" or "length"). None means that it does not apply. What raises,
takes too long, ends its process or returns no finite number is a failure: it has a class, no value,
and leaves the denominator like all that is missing; it is never 0.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ConfigError
from thumbwheel.core.log import say
from thumbwheel.core.private import UMASK
from thumbwheel.rewards.combine import CHECKER, weighted_mean

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardModel

MODEL = "reward_model"
"""The reward model's name among the parts of a reward."""
START = 60.0
"""Seconds in which a process has to be ready."""
PATIENCE = 2.0
"""Seconds that it gets at the end, to close its sandboxes."""
LONGEST_REPLY = 1 << 16
READY: dict[str, Any] = {"ready": True}
"""What a judge_process says when the clock of an answer may run."""

Message = dict[str, Any]
Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """An answer to judge: its text and why it ended, for a row with its prompt."""

    row: Mapping[str, Any]
    text: str
    finish: str
    prompt: list[Message]


@dataclass(frozen=True, slots=True)
class PendingJudgement:
    """An answer whose functions are at work: name -> what it will say."""

    ask: JudgeRequest
    replies: Mapping[str, Future[Reply]]


@dataclass(frozen=True, slots=True)
class Reward:
    """`value` is the weighted mean of the `parts` that have a value, None where none has;
    `failures`: part -> class of failure."""

    value: float | None
    parts: Mapping[str, float | None]
    failures: Mapping[str, str]
    well_formed: bool | None


class Judge:
    """Judges with `functions` (name -> weight) and with `model`, each function at most `timeout`
    seconds on an answer. `settings` are those of the functions, `checkers` those that the owner
    gives functions which rows name.

    Raises ConfigError for a function that cannot be had and for weights that give no mean. Close
    it: it holds processes.
    """

    def __init__(
        self,
        functions: Mapping[str, float],
        model: RewardModel | None = None,
        model_weight: float = 1.0,
        timeout: float = 5.0,
        workers: int = 1,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        checkers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._weights = dict(functions) | ({} if model is None else {MODEL: model_weight})
        _check(self._weights)
        self._functions, self._model, self._timeout = list(functions), model, timeout
        self._said: set[tuple[str, str]] = set()
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        function_settings = {name: dict((settings or {}).get(name, {})) for name in self._functions}
        _check_settings(function_settings, settings or {})
        if CHECKER in function_settings:
            function_settings[CHECKER] = dict(checkers or {})
        self._processes = [_Process(function_settings) for _ in range(workers if functions else 0)]
        self._pool = ThreadPoolExecutor(max(workers, 1), "judge")
        for refused in list(self._pool.map(_Process.start, self._processes)):
            for name, failure in refused.items():
                self.close()
                raise ConfigError(
                    f"reward function {name!r}",
                    f"it cannot be used ({failure['failure']}: {failure['reason']})",
                    "Name checker, one of the table (with its reward_settings), or a "
                    "module:function that can be imported from here",
                )
        for process in self._processes:
            self._idle.put(process)

    def judge(self, asks: Sequence[JudgeRequest]) -> list[Reward]:
        """The rewards of `asks`, in their order."""
        return self.finish([self.start(request) for request in asks])

    def start(self, ask: JudgeRequest) -> PendingJudgement:
        """Let the functions judge `ask` in their processes while the caller goes on."""
        fields = {"row": dict(ask.row), "text": ask.text, "finish": ask.finish, "prompt": ask.prompt}
        return PendingJudgement(
            ask, {name: self._pool.submit(self._reply, name, fields) for name in self._functions}
        )

    def finish(self, started: Sequence[PendingJudgement]) -> list[Reward]:
        """Their rewards, in this order. The reward model judges now, all together, on the caller's
        thread: it shares the policy's base."""
        modelled: list[Reply] = [{} for _ in started]
        if self._model is not None and started:
            modelled = [
                {MODEL: _finite(value)}
                for value in self._opinions(self._model, [judging.ask for judging in started])
            ]
        waited = [{name: reply.result() for name, reply in one.replies.items()} for one in started]
        return [self._reward(own | more) for own, more in zip(waited, modelled, strict=True)]

    def _opinions(self, model: RewardModel, asks: Sequence[JudgeRequest]) -> list[float]:
        """What the reward model pays for each; answers to one row stand side by side in `asks` and
        are read after one prompt."""
        from thumbwheel.engine.reward_model import RewardInput

        by_row = [list(asked) for _, asked in groupby(asks, key=lambda ask: id(ask.row))]
        paid = model.training_rewards(
            [
                [
                    RewardInput(ask.prompt, ask.text, ask.finish, ask.row.get("tools"))
                    for ask in asked
                ]
                for asked in by_row
            ]
        )
        return [value for group in paid for value in group]

    def close(self) -> None:
        """End the processes; what was submitted is given up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _reply(self, name: str, ask: Mapping[str, Any]) -> Reply:
        process = self._idle.get()
        try:
            return process.ask({"name": name, "ask": ask}, self._timeout)
        finally:
            self._idle.put(process)

    def _reward(self, replies: dict[str, Reply]) -> Reward:
        parts = {name: reply.get("value") for name, reply in replies.items()}
        failures = {
            name: str(reply["failure"]) for name, reply in replies.items() if "failure" in reply
        }
        for name, kind in failures.items():
            if (name, kind) not in self._said:
                self._said.add((name, kind))
                say(
                    f"Reward function {name!r}: {kind} ({replies[name]['reason']}). No reward "
                    "from it; further ones are only counted."
                )
        forms = [
            reply["well_formed"]
            for reply in replies.values()
            if reply.get("well_formed") is not None
        ]
        return Reward(
            weighted_mean(parts, self._weights), parts, failures, all(forms) if forms else None
        )


def _check(weights: Mapping[str, float]) -> None:
    if (
        not weights
        or not any(weights.values())
        or any(not (math.isfinite(weight) and weight >= 0) for weight in weights.values())
    ):
        raise ConfigError(
            f"rewards with the weights {dict(weights)!r}",
            "a mean needs at least one weight above zero, and none below",
            "Set reward_functions or reward_model",
        )


def _check_settings(functions: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name not in functions or ":" in name or name == CHECKER:
            raise ConfigError(
                f"settings of reward function {name!r}",
                "it is none of the table that judges here",
                f"Functions that judge: {', '.join(functions)}; settings of a row's checker stand "
                f"under rewards: {{checkers: ...}}, "
                "and a function of yours has its own",
            )


def _finite(value: float) -> Reply:
    return (
        {"value": value}
        if math.isfinite(value)
        else _failure(f"returned {value}", "a reward is a finite number")
    )


def _failure(kind: str, reason: str) -> Reply:
    return {"failure": kind, "reason": reason}


class _Process:
    """A judge_process, started again when it was lost."""

    def __init__(self, functions: Mapping[str, Mapping[str, Any]]) -> None:
        self._functions = functions
        self._child: subprocess.Popen[bytes] | None = None
        self._read = b""
        self._closed = False

    def start(self) -> dict[str, Reply]:
        """Start it, until it has loaded the functions; the ones that it cannot use."""
        self._read = b""
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "thumbwheel.training.judge_process",
                str(os.getpid()),
                json.dumps(self._functions),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            umask=UMASK,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        )
        refused = self._answered(b"")
        return dict.fromkeys(self._functions, refused) if "failure" in refused else refused

    def ask(self, request: Mapping[str, Any], timeout: float) -> Reply:
        """The reply to `request`, or the failure that none came."""
        if self._closed:
            return _failure("closed", "the judge was closed")
        if self._child is None and (refused := self.start()):
            return next(iter(refused.values()))
        return self._answered(
            json.dumps({**request, "seconds": timeout}, default=str).encode() + b"\n", timeout
        )

    def _answered(self, line: bytes, timeout: float = START) -> Reply:
        assert self._child is not None  # noqa: S101 - narrows the type
        assert self._child.stdin is not None  # noqa: S101 - narrows the type
        try:
            self._child.stdin.write(line)
            self._child.stdin.flush()
            reply: Reply = json.loads(self._line(START))
            if reply == READY:
                reply = json.loads(self._line(timeout))
        except TimeoutError:
            self._end()
            return _failure(
                "timed out",
                f"no reply within {timeout:g} s, or it was not ready within {START:g} s",
            )
        except (OSError, EOFError, ValueError):
            return _failure("process died", f"exit status {self._end()}")
        return reply

    def _line(self, timeout: float) -> bytes:
        """The next line; raises TimeoutError, and EOFError where the process ended or says too
        much."""
        assert self._child is not None  # noqa: S101 - narrows the type
        assert self._child.stdout is not None  # noqa: S101 - narrows the type
        until = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(until - time.monotonic(), 0)):
                    raise TimeoutError
                more = os.read(self._child.stdout.fileno(), LONGEST_REPLY)
                self._read += more
                if not more or len(self._read) > LONGEST_REPLY:
                    raise EOFError
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _end(self, patience: float = 0.0) -> int | None:
        """Let it end within `patience` seconds, then kill it with all that it started; the status
        that it has ended with."""
        child, self._child = self._child, None
        if child is None:
            return None
        if patience and child.stdin is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                child.stdin.close()
                child.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        return status

    def close(self) -> None:
        """End it for good."""
        self._closed = True
        self._end(PATIENCE)
