"""Answers that are JSON: strict parsing within bounds, and comparison.

The whole answer is one JSON object (space around it is allowed, a code fence or a sentence is not)
without repeated fields and without NaN. Booleans are no numbers; 1 and 1.0 are equal.
"""

from __future__ import annotations

import json
import re
from typing import Any

from thumbwheel.rewards.function import DEEPEST_JSON, Unjudgeable

STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""Texts of JSON. One that never ends is read once, not again from each quote inside it."""
LONGEST_NUMBER = 400


def parse_object(text: str) -> dict[str, Any]:
    """Parse `text` as a JSON object. Raises ValueError if it is none, and Unjudgeable for nesting
    or numbers beyond the bounds."""
    if depth(text) > DEEPEST_JSON:
        raise Unjudgeable(f"JSON nested deeper than {DEEPEST_JSON}")
    value = json.loads(
        text,
        object_pairs_hook=_unique,
        parse_constant=_refuse,
        parse_int=_integer,
        parse_float=_float,
    )
    if not isinstance(value, dict):
        raise ValueError(f"the answer is a JSON {type(value).__name__}, not an object")
    return value


def depth(text: str) -> int:
    """Return the deepest nesting of brackets outside of strings."""
    deepest = now = 0
    for character in STRINGS.sub("", text):
        if character in "[{":
            now += 1
            deepest = max(deepest, now)
        elif character in "]}":
            now -= 1
    return deepest


def equal(left: Any, right: Any) -> bool:
    """Return whether both are equal as JSON: types count, except that 1 and 1.0 are the same
    number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands there twice")
    return fields


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise Unjudgeable(
            f"a number of {len(digits)} digits; at most {LONGEST_NUMBER} are compared"
        )
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise Unjudgeable("a number beyond the range of a float64")
    return value
