"""What `feedback()` accepts: the same as an import, checked at the call, where the mistake can
still be seen.

Not here: how it is written down (`record`), the rules for lines of files (`importers/types.py`,
which a test holds to be the same).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

SIGNALS = ("thumb", "rating", "score", "correction", "label", "outcome", "comment", "preference")
"""The kinds of feedback that `feedback()` takes as keywords."""
BESIDE = (
    "name",
    "scale",
    "occurred_at",
    "supersedes",
    "retracts",
    "comment",
    "metadata",
    "source",
    "shown",
)
"""Further keywords."""
SCALES = {"rating": (1.0, 5.0), "score": (0.0, 1.0), "outcome": (0.0, 1.0)}
LONGEST_NAME = 512


def check_agent(agent: str) -> None:
    """Raise TypeError or ValueError if `agent` cannot name an agent."""
    if not isinstance(agent, str):
        raise TypeError(f"agent {agent!r} is no text")
    if not any(letter.isascii() and letter.isalnum() for letter in agent):
        raise ValueError(
            f"agent {agent!r} has neither a letter nor a digit; give a name such as 'support'"
        )


def check_feedback(targets: Sequence[Any], rater: Any, signal: Mapping[str, Any]) -> str:
    """Check a judgement and return its kind. Raises TypeError or ValueError with the value that was
    passed and the values that are possible."""
    kind = _kind(signal)
    unknown = sorted(signal.keys() - {*SIGNALS, *BESIDE})
    if unknown:
        raise TypeError(
            f"feedback() has no keyword {unknown[0]!r}; it takes "
            f"{', '.join((*SIGNALS, 'rater', 'id', *BESIDE))}"
        )
    _check_targets(kind, targets)
    if rater is not None and not isinstance(rater, Mapping):
        _check_name("rater", rater)
    for key in ("supersedes", "retracts"):
        if signal.get(key) is not None:
            _check_name(key, signal[key])
    if signal.get("supersedes") is not None and signal.get("retracts") is not None:
        raise ValueError("feedback() both supersedes and retracts; it can do one of them")
    _check_beside(signal)
    CHECKS[kind](kind, signal[kind], targets, signal)
    _check_json([list(targets), rater, dict(signal)])
    return kind


def _check_json(value: Any) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
        json.dumps(value, ensure_ascii=False).encode()  # refuses half characters
    except TypeError as error:
        raise TypeError(f"feedback() takes JSON values only: {error}") from None
    except ValueError as error:
        raise ValueError(
            f"feedback() takes JSON values and whole characters only: {error}"
        ) from None
    if "\\u0000" in text:
        raise ValueError(
            "feedback() takes no NUL characters, which a database cannot keep in a text"
        )


def _check_beside(signal: Mapping[str, Any]) -> None:
    for key, longest in (("name", 256), ("source", 64), ("comment", None)):
        value = signal.get(key)
        if value is None:
            continue
        if not isinstance(value, str):
            raise TypeError(f"{key} {value!r} is no text")
        if longest is not None and not 1 <= len(value) <= longest:
            raise ValueError(f"{key} {value!r:.60} has 1 to {longest} characters")
    if signal.get("metadata") is not None and not isinstance(signal["metadata"], Mapping):
        raise TypeError(f"metadata {signal['metadata']!r:.60} is not a mapping")
    if signal.get("scale") is not None:
        _scale("rating", signal["scale"])
    if signal.get("occurred_at") is not None:
        datetime.fromisoformat(signal["occurred_at"])  # says itself what is wrong


def _kind(signal: Mapping[str, Any]) -> str:
    kinds = [kind for kind in SIGNALS if kind in signal]
    if len(kinds) == 2 and "comment" in kinds:
        kinds.remove("comment")  # beside another signal it is that signal's remark
    if len(kinds) != 1:
        raise TypeError(
            f"feedback() takes exactly one of {', '.join(SIGNALS)}; got "
            f"{', '.join(kinds) or 'none'}"
        )
    return kinds[0]


def _check_name(what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"{what} {value!r} is no id; give a text")
    if not str(value).strip() or len(str(value)) > LONGEST_NAME:
        raise ValueError(f"{what} {value!r:.60} is no id: it has 1 to {LONGEST_NAME} characters")


def _check_targets(kind: str, targets: Sequence[Any]) -> None:
    for target in targets:
        _check_name("target", target)
    if kind == "preference" and len(targets) < 2:
        raise ValueError(f"a preference compares two or more traces; {len(targets)} is given")
    if kind != "preference" and len(targets) != 1:
        raise ValueError(f"a {kind} is about one trace; {len(targets)} are given")
    if len(set(targets)) < len(targets):
        raise ValueError(f"the same trace is named twice: {list(targets)!r:.200}")


def _thumb(kind: str, value: Any, targets: Sequence[Any], signal: Mapping[str, Any]) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"thumb {value!r} is neither True (up) nor False (down)")


def _number(kind: str, value: Any, targets: Sequence[Any], signal: Mapping[str, Any]) -> None:
    if kind == "outcome" and isinstance(value, bool):
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{kind} {value!r} is no number")
    low, high = _scale(kind, signal.get("scale"))
    if not low <= value <= high:
        raise ValueError(
            f"{kind} {value!r} is outside its scale, {low:g} to {high:g}; for another one: "
            f"scale={{'min': 1, 'max': 10}}"
        )


def _scale(kind: str, scale: Any) -> tuple[float, float]:
    """Return the ends of a number's scale. Raises ValueError for a scale that is none."""
    if scale is None:
        return SCALES[kind]
    ends = []
    if isinstance(scale, Mapping) and len(scale) == 2:
        ends = [scale.get("min"), scale.get("max")]
    numbers = [
        end
        for end in ends
        if isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end)
    ]
    if len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise ValueError(f"scale {scale!r} is none; it looks like {{'min': 1, 'max': 10}}")
    return numbers[0], numbers[1]


def _text(kind: str, value: Any, targets: Sequence[Any], signal: Mapping[str, Any]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{kind} {value!r} is no text")
    if not value.strip() and signal.get("retracts") is None:
        raise ValueError(f"{kind} {value!r} is empty")


def _label(kind: str, value: Any, targets: Sequence[Any], signal: Mapping[str, Any]) -> None:
    if not isinstance(value, str | bool) or value == "":
        raise TypeError(f"label {value!r} is neither a text nor True or False")
    if isinstance(value, bool) and not signal.get("name"):
        raise ValueError(
            f"label {value!r} has no name; give label='spam', or name='spam' with label=True or "
            "False"
        )


def _preference(kind: str, value: Any, targets: Sequence[Any], signal: Mapping[str, Any]) -> None:
    if value is None or isinstance(value, Mapping):  # a tie; a ranking is checked by the import
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"preference {value!r} is neither the index of the better trace nor None for a tie"
        )
    if not 0 <= value < len(targets):
        raise ValueError(
            f"preference {value!r} is no index of {len(targets)} traces: 0 is the first"
        )


CHECKS: Mapping[str, Callable[[str, Any, Sequence[Any], Mapping[str, Any]], None]] = {
    "thumb": _thumb,
    "rating": _number,
    "score": _number,
    "correction": _text,
    "label": _label,
    "outcome": _number,
    "comment": _text,
    "preference": _preference,
}
"""What each kind demands of its value."""
