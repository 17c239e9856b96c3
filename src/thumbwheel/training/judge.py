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
from itertools import chain, groupby
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ConfigError
from thumbwheel.core.log import say
from thumbwheel.core.private import UMASK
from thumbwheel.rewards.combine import weighted_mean
from thumbwheel.rewards.presets import CHECKER

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

    request: JudgeRequest
    replies: Mapping[str, Future[Reply]]


@dataclass(frozen=True, slots=True)
class Reward:
    """`value` is the weighted mean of the `parts` that have a value, None where none has;
    `failures`: part -> class of failure."""

    value: float | None
    parts: Mapping[str, float | None]
    failures: Mapping[str, str]
    well_formed: bool | None


class RewardJudge:
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
        self._weights = dict(functions)
        if model is not None:
            self._weights[MODEL] = model_weight
        _check_weights(self._weights)
        settings = settings or {}
        self._functions, self._model, self._timeout = list(functions), model, timeout
        self._reported: set[tuple[str, str]] = set()
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        function_settings = {name: dict(settings.get(name, {})) for name in self._functions}
        _check_settings(function_settings, settings)
        if CHECKER in function_settings:
            function_settings[CHECKER] = dict(checkers or {})

        # All processes load the functions before anything is judged.
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

    def judge(self, requests: Sequence[JudgeRequest]) -> list[Reward]:
        """Return the rewards, in the order of `requests`."""
        return self.finish([self.start(request) for request in requests])

    def start(self, request: JudgeRequest) -> PendingJudgement:
        """Start judging a request in the functions' processes while the caller goes on; return the
        pending judgement."""
        fields = {
            "row": dict(request.row),
            "text": request.text,
            "finish": request.finish,
            "prompt": request.prompt,
        }
        replies = {name: self._pool.submit(self._reply, name, fields) for name in self._functions}
        return PendingJudgement(request, replies)

    def finish(self, pending: Sequence[PendingJudgement]) -> list[Reward]:
        """Return the rewards of `pending`, in this order."""
        requests = [judgement.request for judgement in pending]
        return self.rewards(requests, self.replies(pending))

    def replies(self, pending: Sequence[PendingJudgement]) -> list[dict[str, Reply]]:
        """Return name -> what each function says, for each of `pending`, once all have spoken."""
        return [
            {name: reply.result() for name, reply in judgement.replies.items()}
            for judgement in pending
        ]

    def rewards(
        self, requests: Sequence[JudgeRequest], replies: Sequence[Mapping[str, Reply]]
    ) -> list[Reward]:
        """Return the rewards of `requests`, of which the functions say `replies`. The reward model
        judges now, all together, on the caller's thread: it shares the policy's base."""
        model_replies: list[dict[str, Reply]] = [{} for _ in requests]
        if self._model is not None and requests:
            values = self._model_rewards(self._model, requests)
            model_replies = [{MODEL: _finite(value)} for value in values]
        return [
            self._reward({**of_functions, **of_model})
            for of_functions, of_model in zip(replies, model_replies, strict=True)
        ]

    def _model_rewards(self, model: RewardModel, requests: Sequence[JudgeRequest]) -> list[float]:
        """Return the reward model's reward of each request; answers to one row stand side by side
        in `requests` and are read after one prompt."""
        from thumbwheel.engine.reward_model import RewardInput

        groups: list[list[RewardInput]] = []
        for _, requests_of_row in groupby(requests, key=lambda request: id(request.row)):
            groups.append(
                [
                    RewardInput(
                        request.prompt, request.text, request.finish, request.row.get("tools")
                    )
                    for request in requests_of_row
                ]
            )
        return list(chain.from_iterable(model.training_rewards(groups)))

    def close(self) -> None:
        """End the processes; pending requests are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _reply(self, name: str, fields: Mapping[str, Any]) -> Reply:
        process = self._idle.get()
        try:
            return process.ask({"name": name, "answer": fields}, self._timeout)
        finally:
            self._idle.put(process)

    def _reward(self, replies: dict[str, Reply]) -> Reward:
        parts = {name: reply.get("value") for name, reply in replies.items()}
        failures = {
            name: str(reply["failure"]) for name, reply in replies.items() if "failure" in reply
        }
        for name, kind in failures.items():
            if (name, kind) not in self._reported:
                self._reported.add((name, kind))
                say(
                    f"Reward function {name!r}: {kind} ({replies[name]['reason']}). No reward "
                    "from it; further ones are only counted."
                )
        forms = [reply.get("well_formed") for reply in replies.values()]
        known_forms = [form for form in forms if form is not None]
        well_formed = all(known_forms) if known_forms else None
        return Reward(weighted_mean(parts, self._weights), parts, failures, well_formed)


def _check_weights(weights: Mapping[str, float]) -> None:
    valid = all(math.isfinite(weight) and weight >= 0 for weight in weights.values())
    if not valid or not any(weights.values()):
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
                "it is not one of the functions that judge here",
                f"Functions that judge: {', '.join(functions)}; settings of a row's checker stand "
                f"under rewards: {{checkers: ...}}, "
                "and a function of yours has its own",
            )


def _finite(value: float) -> Reply:
    if math.isfinite(value):
        return {"value": value}
    return _failure(f"returned {value}", "a reward is a finite number")


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
        """Start the process and wait until it has loaded the functions; return the failures of
        those that it cannot use."""
        self._read = b""
        module = "thumbwheel.training.judge_process"
        functions = json.dumps(self._functions)
        # The user's own functions may be in the working folder. It comes last, because a file
        # json.py in it would take the place of Python's own.
        search_path = [*sys.path, str(Path.cwd())]
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid()), functions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            umask=UMASK,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path), "OMP_NUM_THREADS": "1"},
        )
        refused = self._reply_to(b"")
        if "failure" in refused:  # of the process itself
            return dict.fromkeys(self._functions, refused)
        return refused

    def ask(self, request: Mapping[str, Any], timeout: float) -> Reply:
        """Return the reply to `request`, or a failure if none came within `timeout` seconds."""
        if self._closed:
            return _failure("closed", "the judge was closed")
        if self._child is None and (refused := self.start()):
            return next(iter(refused.values()))
        line = json.dumps({**request, "seconds": timeout}, default=str).encode() + b"\n"
        return self._reply_to(line, timeout)

    def _reply_to(self, line: bytes, timeout: float = START) -> Reply:
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
        """Return the next line. Raises TimeoutError, and EOFError if the process ended or its line
        is too long."""
        assert self._child is not None  # noqa: S101 - narrows the type
        assert self._child.stdout is not None  # noqa: S101 - narrows the type
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError
                chunk = os.read(self._child.stdout.fileno(), LONGEST_REPLY)
                self._read += chunk
                if not chunk or len(self._read) > LONGEST_REPLY:
                    raise EOFError
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _end(self, patience: float = 0.0) -> int | None:
        """Let the process end within `patience` seconds, then kill it with everything that it
        started; return its exit status, or None if it was not running."""
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
        """End the process for good."""
        self._closed = True
        self._end(PATIENCE)
