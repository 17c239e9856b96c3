"""A process that runs reward functions for judge.py: `python -m thumbwheel.training.judge_process
PARENT FUNCTIONS`, the functions as a JSON object, name -> settings.

One JSON line in; `READY` when the function and what it needs are there, and the clock may run; one
JSON line out. Whatever a function prints goes nowhere, so that it cannot be taken for an answer.
What a function does to this process (a loop, an exit, a crash, all the memory) costs one judgement;
judge.py starts another process.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from numbers import Real
from typing import Any, TextIO

from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.rewards.checker import checker
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.training.judge import READY
from thumbwheel.training.process import die_with

MEMORY = 4 << 30
"""Bytes of address space; what needs more raises MemoryError (Linux; other systems do not enforce
it)."""
LONGEST_REASON = 300
SETTINGS: dict[str, Mapping[str, Any]] = {}
"""Name of a function of the table -> its settings here; of `checker`, the settings of the functions
that rows name."""


def main(parent: int, functions: Mapping[str, Mapping[str, Any]]) -> None:
    """Report which of the functions cannot be used, then judge until the pipe is closed."""
    die_with(parent)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    # The pipe is taken away from the standard streams, to which functions may print.
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(devnull, standard)

    SETTINGS.update(functions)
    failures: dict[str, Any] = {}
    for name in functions:
        failure = guarded(partial(check_function, name))
        if failure:
            failures[name] = failure
    _say(replies, failures)
    for line in requests:
        request = json.loads(line)
        begin = partial(_say, replies, READY)
        _say(replies, guarded(partial(judged, **request, begin=begin)))


def _say(replies: TextIO, value: Mapping[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def guarded(step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the reply of `step`: `value` (or None), `well_formed`, and if it failed `failure` (its
    class) and `reason`."""
    try:
        return step()
    except ThumbwheelError as error:
        return failed("blocked", str(error))
    except BaseException as error:  # noqa: BLE001 - SystemExit too: a function does not end the process
        return failed(f"raised {type(error).__name__}", str(error))


def check_function(name: str) -> dict[str, Any]:
    """Load the function of this name and return an empty reply. Raises any error that prevents its
    use."""
    if ":" in name:
        imported(name)
    elif name != "checker":
        of_table(name)
    return {}


def judged(
    name: str, answer: Mapping[str, Any], seconds: float, begin: Callable[[], None]
) -> dict[str, Any]:
    """Judge one answer by one function, which has `seconds` from the call of `begin` on."""
    row, prompt, text, finish = answer["row"], answer["prompt"], answer["text"], answer["finish"]
    reference = row.get("reference")
    if ":" in name:
        function = imported(name)
        begin()
        fields = {key: value for key, value in row.items() if key not in ("prompt", "reference")}
        fields["finish"] = finish
        return number(function(prompt=prompt, answer=text, reference=reference, **fields))
    case = Case(text, reference, prompt, tools=row.get("tools"), finish=finish, metadata=row)
    if name == "checker":
        reward_function = checker(
            row.get("checker"),
            row.get("checker_config"),
            reference,
            f"row {row.get('row_id', '')!r}",
            SETTINGS.get(name, {}),
        )
    else:
        reward_function = of_table(name)
    ready = reward_function.ready(seconds)
    begin()
    return scored(ready.score([case])[0])


@cache
def imported(name: str) -> Any:
    """Import the function "module:function". Raises any error that prevents it."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


@cache
def of_table(name: str) -> RewardFunction[Any]:
    """Return the function of the table with its settings. Raises NotFound and ConfigError."""
    return FUNCTIONS.get(name).create(SETTINGS.get(name), "reward_settings")


def scored(score: Score) -> dict[str, Any]:
    """Return a score as a reply; a score that does not apply is no failure."""
    if score.status in (JudgementStatus.OK, JudgementStatus.NOT_APPLICABLE):
        return {"value": score.value, "well_formed": score.well_formed}
    reply = failed(str(score.status), str(score.evidence.get("reason", "")))
    return reply | {"well_formed": score.well_formed}


def number(value: Any) -> dict[str, Any]:
    """Return a function's result as a reply: a finite number, a truth value as 0 or 1, or None if
    the function does not apply; any other result is a failure."""
    if value is None:
        return {"value": None}
    if not isinstance(value, Real) and type(value).__name__ not in ("bool_", "bool"):
        return failed(f"returned {type(value).__name__}", repr(value))
    reward = float(value)
    if not math.isfinite(reward):
        return failed(f"returned {reward}", "a reward is a finite number")
    return {"value": reward}


def failed(kind: str, reason: str) -> dict[str, Any]:
    """Return a reply without a value, with the failure and its reason."""
    return {"value": None, "failure": kind, "reason": " ".join(reason.split())[:LONGEST_REASON]}


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
