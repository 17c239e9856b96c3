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
from thumbwheel.rewards.calls import MOST_CALLS, Call, of_steps, of_text, of_value
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status, Unjudgeable

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
        """Whether the argument may be left out."""
        return not self.exact and any(
            isinstance(one, str) and one == OPTIONAL for one in self.arguments[name]
        )


class ToolMatch(RewardFunction[ToolMatchConfig]):
    """See the module."""

    Config = ToolMatchConfig
    case_settings = frozenset({"exact_text", "ordered", "partial"})
    version = 3
    reads = frozenset({"text", "reference", "steps"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """The tool calls, else the answer; and what is expected."""
        calls = tuple(one for one in case.steps if one.kind == "tool")
        return {"reference": case.reference, "steps": calls, "text": "" if calls else case.text}

    def judge(self, case: Case) -> Score:
        """The part that is right; evidence: how many calls were expected and made, and what is
        wrong about each expected one."""
        if case.reference is None:
            return Score.none(Status.NOT_APPLICABLE, "the case names no calls that it expects")
        expected = expectations(case.reference)
        made = of_steps(case.steps)
        written = None if made else of_text(case.text)
        made = (made or written or [])[:MOST_CALLS]
        well_formed = None if not expected or (made and written is None) else bool(made)
        evidence: dict[str, Any] = {
            "expected": len(expected),
            "made": len(made),
            "from": "answer" if written else "steps",
        }
        if not expected or not made:
            return Score(
                float(not expected and not made), evidence=evidence, well_formed=well_formed
            )
        worth = [[self._pair(one, call) for call in made] for one in expected]
        chosen = self._assign(worth)
        whole = math.fsum(worth[row][column] for row, column in chosen.items()) / max(
            len(expected), len(made)
        )
        right = sum(worth[row][column] == 1 for row, column in chosen.items())
        exact = right == len(expected) == len(made)
        missed: list[dict[str, Any]] = [
            {"call": one.name, "worth": round(worth[row][chosen[row]], 3) if row in chosen else 0}
            for row, one in enumerate(expected)
        ]
        evidence |= {"right": right, "wrong": [one for one in missed if one["worth"] < 1][:20]}
        value = 1.0 if exact else min(whole, 1 - 1e-9) if self.config.partial else 0.0
        return Score(value, evidence=evidence, well_formed=well_formed)

    def _assign(self, worth: list[list[float]]) -> dict[int, int]:
        """Expected call -> made call."""
        if self.config.ordered:
            return {place: place for place in range(min(len(worth), len(worth[0])))}
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(worth, maximize=True)
        return dict(zip(rows.tolist(), columns.tolist(), strict=True))

    def _pair(self, expected: Expected, call: Call) -> float:
        if expected.name.replace(".", "_") != call.name.replace(".", "_"):
            return 0.0
        given = dict(zip(expected.arguments, call.places, strict=False)) | dict(call.arguments)
        surplus = max(0, len(call.places) - len(expected.arguments))
        names = [*expected.arguments, *(name for name in given if name not in expected.arguments)]
        right = sum(self._right(expected, name, given) for name in names)
        return (1 + right) / (1 + len(names) + surplus)

    def _right(self, expected: Expected, name: str, given: Mapping[str, Any]) -> bool:
        if name not in expected.arguments:
            return False
        if name not in given:
            return expected.optional(name)
        return any(
            self._fits(given[name], allowed, expected.exact) for allowed in expected.arguments[name]
        )

    def _fits(self, given: Any, allowed: Any, exact: bool) -> bool:
        """Whether a value is the allowed one; in an object each key may have the values of a list,
        unless it is `exact`."""
        if isinstance(allowed, Mapping) and exact:
            return (
                isinstance(given, Mapping)
                and given.keys() == allowed.keys()
                and all(self._fits(given[key], value, exact) for key, value in allowed.items())
            )
        if isinstance(allowed, Mapping):
            return isinstance(given, Mapping) and self._fits_object(given, allowed)
        if isinstance(allowed, Sequence) and not isinstance(allowed, str):
            both = (
                isinstance(given, Sequence)
                and not isinstance(given, str)
                and len(given) == len(allowed)
            )
            return both and all(
                self._fits(one, other, exact) for one, other in zip(given, allowed, strict=True)
            )
        if isinstance(given, bool) or isinstance(allowed, bool):
            return given is allowed
        if isinstance(given, int | float) and isinstance(allowed, int | float):
            return same_number(given, allowed)
        if isinstance(given, str) and isinstance(allowed, str) and not self.config.exact_text:
            return LOOSE.sub("", given.casefold()) == LOOSE.sub("", allowed.casefold())
        return type(given) is type(allowed) and bool(given == allowed)

    def _fits_object(self, given: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
        one_of = {
            key: value if isinstance(value, list) else [value] for key, value in allowed.items()
        }
        if any(key not in one_of for key in given):
            return False
        return all(
            any(self._fits(given[key], value, False) for value in [*values, values])
            if key in given
            else OPTIONAL in values
            for key, values in one_of.items()
        )


def same_number(left: float, right: float) -> bool:
    """Whether both are one number. Whole numbers are compared exactly, 3 and 3.0 are one; fractions
    up to the rounding of a float64.

    >>> same_number(1000000001, 1000000000), same_number(3, 3.0), same_number(0.1 + 0.2, 0.3)
    (False, True, True)
    """
    if left == right:
        return True
    whole = [isinstance(one, int) or one.is_integer() for one in (left, right)]
    return not any(whole) and math.isclose(left, right, rel_tol=ROUNDING)


def expectations(reference: Any) -> list[Expected]:
    """The expected calls of a reference; raises Unjudgeable for one that is no list of calls."""
    found: list[Expected] = []
    for one in (
        [reference]
        if isinstance(reference, Mapping)
        else reference
        if isinstance(reference, list)
        else [None]
    ):
        if isinstance(one, list):
            found += expectations(one)
        elif _lists_values(one):
            (name, arguments), *_ = one.items()
            found.append(Expected(name, {key: list(values) for key, values in arguments.items()}))
        else:
            calls = of_text(one) if isinstance(one, str) else of_value(one)
            if not calls:
                raise Unjudgeable(
                    f"the reference is no list of calls such as {{'name': {{'argument': "
                    f"[value]}}}}: {str(one)[:80]}"
                )
            found += [Expected(call.name, exactly(call), exact=True) for call in calls]
    return found[:MOST_CALLS]


def exactly(call: Call) -> dict[str, list[Any]]:
    """Each argument with its one value; arguments by place are named by their place."""
    return {str(place): [value] for place, value in enumerate(call.places)} | {
        name: [value] for name, value in call.arguments.items()
    }


def _lists_values(one: Any) -> TypeGuard[Mapping[str, Mapping[str, list[Any]]]]:
    """Whether it is of the form {name: {argument: [values]}}."""
    if not isinstance(one, Mapping) or len(one) != 1:
        return False
    (arguments,) = one.values()
    return isinstance(arguments, Mapping) and all(
        isinstance(values, list) for values in arguments.values()
    )
