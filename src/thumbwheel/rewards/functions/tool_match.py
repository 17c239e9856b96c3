"""`tool_match`: the tool calls of a run, or those written in an answer, against the calls that its
task expects.

The reference is a list of calls. Of the form `{"name": {"argument": [value, ...]}}` (that of BFCL's
answers) each argument may have any of its values, and may be left out where "" is among them; lists
and objects inside are compared the same way. `{"name": ..., "arguments": {...}}` and a Python call
as text name exact values. Lists of lists (several turns) are taken one after the other; an empty
list expects no call at all. Calls may come in any order unless `ordered`.

Each expected call is paired with at most one that was made, so that the sum is highest. A pair is
worth (1 + right arguments) / (1 + all arguments, superfluous ones included) where the names agree
and nothing where they do not; the score is the sum over the number of expected or made calls,
whichever is more. It is 1 exactly where everything is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from thumbwheel.core.config import Config
from thumbwheel.rewards.calls import MOST_CALLS, Call, calls_of_steps, calls_of_text, calls_of_value
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score, Unjudgeable

LOOSE = re.compile(r"(?<!\d)[\s,'\"]+|[\s,'\"]+(?!\d)|(?<=\d),(?=\d{3}(?!\d))|(?<!\d)[._/-](?!\d)")
"""What does not tell one text from another; what stands between digits does, except the comma of
thousands."""
ROUNDING = 1e-14
"""Relative difference of two fractions that is nothing but the rounding of a float64."""
OPTIONAL = ""


class ToolMatchConfig(Config):
    """Settings of `tool_match`."""

    ordered: bool = False
    """The calls have to come in the order of the reference."""
    partial: bool = True
    """Give the part that is right; otherwise 1 where everything is right, else 0."""
    exact_text: bool = False
    """Texts are equal to the letter; otherwise case, spaces, commas, quotes and hyphens between
    letters are the same."""


@dataclass(frozen=True)
class Expected:
    """One call that is expected: the values that each argument may have."""

    name: str
    arguments: Mapping[str, Sequence[Any]]
    exact: bool = False
    """Each argument has its one value, so that a list is a value and an empty text is no permission
    to leave it out."""

    def optional(self, name: str) -> bool:
        """Return whether the argument may be left out."""
        return not self.exact and any(
            isinstance(value, str) and value == OPTIONAL for value in self.arguments[name]
        )


class ToolMatch(RewardFunction[ToolMatchConfig]):
    Config = ToolMatchConfig
    case_settings = frozenset({"exact_text", "ordered", "partial"})
    version = 3
    reads = frozenset({"text", "reference", "steps"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the reference, and the tool calls, or the answer if there are none."""
        calls = tuple(step for step in case.steps if step.kind == "tool")
        return {"reference": case.reference, "steps": calls, "text": "" if calls else case.text}

    def judge(self, case: Case) -> Score:
        """Return the share that is right; evidence: how many calls were expected and made, and the
        error of each expected one."""
        if case.reference is None:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE, "the case names no calls that it expects"
            )
        expected = expectations(case.reference)

        # The calls of the run; without any, those written in the answer.
        from_steps = calls_of_steps(case.steps)
        written = None if from_steps else calls_of_text(case.text)
        calls = (from_steps or written or [])[:MOST_CALLS]
        well_formed: bool | None = bool(calls)
        if not expected or from_steps:
            well_formed = None  # no call had to be written
        evidence: dict[str, Any] = {
            "expected": len(expected),
            "made": len(calls),
            "from": "answer" if written else "steps",
        }
        if not expected or not calls:
            neither = not expected and not calls
            return Score(float(neither), evidence=evidence, well_formed=well_formed)

        # Pair each expected call with at most one call, so that the sum is highest.
        worth = [[self._pair(expectation, call) for call in calls] for expectation in expected]
        assigned = self._assign(worth)
        worth_of = {row: worth[row][column] for row, column in assigned.items()}
        total = math.fsum(worth_of.values()) / max(len(expected), len(calls))
        right = sum(pair_worth == 1 for pair_worth in worth_of.values())

        wrong: list[dict[str, Any]] = []
        for row, expectation in enumerate(expected):
            shown = round(worth_of[row], 3) if row in worth_of else 0
            if shown < 1:
                wrong.append({"call": expectation.name, "worth": shown})
        evidence |= {"right": right, "wrong": wrong[:20]}
        if right == len(expected) == len(calls):
            value = 1.0
        elif self.config.partial:
            value = min(total, 1 - 1e-9)
        else:
            value = 0.0
        return Score(value, evidence=evidence, well_formed=well_formed)

    def _assign(self, worth: list[list[float]]) -> dict[int, int]:
        """Return expected call -> made call."""
        if self.config.ordered:
            return {index: index for index in range(min(len(worth), len(worth[0])))}
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(worth, maximize=True)
        return dict(zip(rows.tolist(), columns.tolist(), strict=True))

    def _pair(self, expected: Expected, call: Call) -> float:
        if expected.name.replace(".", "_") != call.name.replace(".", "_"):
            return 0.0
        arguments = dict(zip(expected.arguments, call.positional, strict=False)) | dict(
            call.arguments
        )
        surplus = max(0, len(call.positional) - len(expected.arguments))
        names = [
            *expected.arguments,
            *(name for name in arguments if name not in expected.arguments),
        ]
        right = sum(self._right(expected, name, arguments) for name in names)
        return (1 + right) / (1 + len(names) + surplus)

    def _right(self, expected: Expected, name: str, arguments: Mapping[str, Any]) -> bool:
        if name not in expected.arguments:
            return False
        if name not in arguments:
            return expected.optional(name)
        return any(
            self._fits(arguments[name], allowed, expected.exact)
            for allowed in expected.arguments[name]
        )

    def _fits(self, value: Any, allowed: Any, exact: bool) -> bool:
        """Return whether a value is the allowed one; in an object each key may have the values of a
        list, unless it is `exact`."""
        if isinstance(allowed, Mapping) and exact:
            return (
                isinstance(value, Mapping)
                and value.keys() == allowed.keys()
                and all(
                    self._fits(value[key], allowed_value, exact)
                    for key, allowed_value in allowed.items()
                )
            )
        if isinstance(allowed, Mapping):
            return isinstance(value, Mapping) and self._fits_object(value, allowed)
        if isinstance(allowed, Sequence) and not isinstance(allowed, str):
            both = (
                isinstance(value, Sequence)
                and not isinstance(value, str)
                and len(value) == len(allowed)
            )
            return both and all(
                self._fits(item, allowed_item, exact)
                for item, allowed_item in zip(value, allowed, strict=True)
            )
        if isinstance(value, bool) or isinstance(allowed, bool):
            return value is allowed
        if isinstance(value, int | float) and isinstance(allowed, int | float):
            return same_number(value, allowed)
        if isinstance(value, str) and isinstance(allowed, str) and not self.config.exact_text:
            return LOOSE.sub("", value.casefold()) == LOOSE.sub("", allowed.casefold())
        return type(value) is type(allowed) and bool(value == allowed)

    def _fits_object(self, value: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
        if any(key not in allowed for key in value):
            return False
        for key, listed in allowed.items():
            values = listed if isinstance(listed, list) else [listed]
            if key not in value:
                if OPTIONAL not in values:
                    return False
                continue
            # the list may also be the value itself
            if not any(self._fits(value[key], other, False) for other in [*values, values]):
                return False
        return True


def same_number(left: float, right: float) -> bool:
    """Return whether both are the same number. Whole numbers are compared exactly, 3 and 3.0 are
    equal; fractions up to the rounding of a float64.

    >>> same_number(1000000001, 1000000000), same_number(3, 3.0), same_number(0.1 + 0.2, 0.3)
    (False, True, True)
    """
    if left == right:
        return True
    whole = [isinstance(number, int) or number.is_integer() for number in (left, right)]
    return not any(whole) and math.isclose(left, right, rel_tol=ROUNDING)


def expectations(reference: Any) -> list[Expected]:
    """Return the expected calls of a reference. Raises Unjudgeable for one that is no list of
    calls."""
    if isinstance(reference, Mapping):
        items: list[Any] = [reference]
    else:
        items = reference if isinstance(reference, list) else [None]
    expected: list[Expected] = []
    for item in items:
        if isinstance(item, list):
            expected += expectations(item)
        elif _lists_values(item):
            (name, arguments), *_ = item.items()
            allowed = {key: list(values) for key, values in arguments.items()}
            expected.append(Expected(name, allowed))
        else:
            calls = calls_of_text(item) if isinstance(item, str) else calls_of_value(item)
            if not calls:
                raise Unjudgeable(
                    f"the reference is no list of calls such as {{'name': {{'argument': "
                    f"[value]}}}}: {str(item)[:80]}"
                )
            expected += [Expected(call.name, exactly(call), exact=True) for call in calls]
    return expected[:MOST_CALLS]


def exactly(call: Call) -> dict[str, list[Any]]:
    """Return each argument with its one value; positional arguments are named by their position."""
    return {str(position): [value] for position, value in enumerate(call.positional)} | {
        name: [value] for name, value in call.arguments.items()
    }


def _lists_values(value: Any) -> TypeGuard[Mapping[str, Mapping[str, list[Any]]]]:
    """Return whether `value` has the form {name: {argument: [values]}}."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return False
    (arguments,) = value.values()
    return isinstance(arguments, Mapping) and all(
        isinstance(values, list) for values in arguments.values()
    )
