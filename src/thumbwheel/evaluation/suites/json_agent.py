"""`json_agent`: agents that answer with JSON: how often each field is right, how often the answer
cannot be read, and why.

Fields are those of the reference (or those that the case's `json_fields` checker names); of a list
of objects, the values of each field in any order. Words count as equal whatever their case, and
spaces, hyphens and underscores are one, so that PROJECT is Project. The figures of the seeds'
report stand in `details`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Case, Measure
from thumbwheel.rewards.function import Case as Answered
from thumbwheel.rewards.function import Unjudgeable
from thumbwheel.rewards.json_answer import equal, parse_object

ALL, PARSED, SHARE, REWARD = (
    "all fields right",
    "answers that parse",
    "share of fields right",
    "mean reward",
)
SAMPLES, PROMPT, RESPONSE = 5, 100, 200
"""Errors that are shown, and the characters of their prompts and answers."""


class JsonAgent(Suite):
    """See the module."""

    name: ClassVar[str] = "json_agent"
    default: ClassVar[bool] = True
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without a reference that is JSON."""
        return "" if self.cases else "no held-out case has a JSON object or list as its reference"

    @cached_property
    def cases(self) -> list[tuple[Case, dict[str, Any]]]:
        """Cases with their references as objects."""
        read = [
            (one, reference_of(one))
            for one in self.material.cases
            if one.checker in (None, "json_fields")
        ]
        return [(one, reference) for one, reference in read if reference]

    def asks(self) -> list[Ask]:
        """Their prompts."""
        return [Ask(case.prompt, self.config.max_new_tokens) for case, _ in self.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """All fields first, then parsing, the mean share, every field, and the agent's own reward."""
        both = [place for place in range(len(self.cases)) if before[place] and after[place]]
        if not both:
            return SuiteMeasures(None, dropped=Counter({"a side has no answer": len(self.cases)}))
        texts = [[replies[place][0].text.strip() for place in both] for replies in (before, after)]
        cases = [self.cases[place] for place in both]
        sides = [
            [fields_of(text, reference) for text, (_, reference) in zip(side, cases, strict=True)]
            for side in texts
        ]
        groups = [case.group for case, _ in cases]

        def measure(name: str, of: Any, level: float = self.config.level) -> Measure:
            return compare.measure(
                name, [of(one) for one in sides[0]], [of(one) for one in sides[1]], groups, level
            )

        names = list(dict.fromkeys(name for _, reference in cases for name in reference))
        measures = [measure(PARSED, lambda one: float(one is not None)), measure(SHARE, _share)]
        measures += [
            found for name in names if (found := self._field(name, cases, sides)) is not None
        ]
        measures += self._rewards(cases, texts)
        return SuiteMeasures(
            lambda level: measure(ALL, _whole, level),
            tuple(measures),
            details={
                "before": details(cases, texts[0], sides[0]),
                "after": details(cases, texts[1], sides[1]),
            },
            judges=("json_fields",),
            dropped=Counter(
                {"a side has no answer": n} if (n := len(self.cases) - len(both)) else {}
            ),
        )

    def _field(
        self,
        name: str,
        cases: Sequence[tuple[Case, Any]],
        sides: Sequence[Sequence[dict[str, bool] | None]],
    ) -> Measure | None:
        places = [place for place, (_, reference) in enumerate(cases) if name in reference]
        values = [
            [float((side[place] or {}).get(name, False)) for place in places] for side in sides
        ]
        return compare.measure(
            f"field {name}",
            values[0],
            values[1],
            [cases[place][0].group for place in places],
            self.config.level,
        )

    def _rewards(
        self, cases: Sequence[tuple[Case, Any]], texts: Sequence[Sequence[str]]
    ) -> list[Measure]:
        """What the agent's reward functions make of the fresh answers, where they judge all of
        them."""
        sides = []
        for side in texts:
            answered = [
                Answered(
                    text,
                    case.reference,
                    case.prompt,
                    metadata={"checker": case.checker, "checker_config": case.checker_config},
                )
                for text, (case, _) in zip(side, cases, strict=True)
            ]
            sides.append([one.value for one in self.material.rewards(answered).get("", [])])
        incumbent, candidate = ([value for value in side if value is not None] for side in sides)
        if not sides[0] or len(incumbent) + len(candidate) < len(sides[0]) + len(sides[1]):
            return []
        bounded = 1.0 if all(0 <= value <= 1 for value in (*incumbent, *candidate)) else None
        groups = [case.group for case, _ in cases]
        return [compare.measure(REWARD, incumbent, candidate, groups, self.config.level, bounded)]


def reference_of(case: Case) -> dict[str, Any]:
    """The fields that are asked for; none where the reference is no JSON object."""
    found = case.reference
    try:
        found = (
            parse(found)
            if isinstance(found, str)
            else columns(found)
            if isinstance(found, list)
            else found
        )
    except (ValueError, Unjudgeable):
        return {}
    named = (case.checker_config or {}).get("fields") if case.checker == "json_fields" else None
    return (
        {name: value for name, value in found.items() if not named or name in named}
        if isinstance(found, dict)
        else {}
    )


def parse(text: str) -> dict[str, Any]:
    """The fields of an answer. Raises ValueError for what is neither a JSON object nor a list,
    Unjudgeable for one beyond the bounds."""
    if text.startswith("["):
        return columns(parse_object(f'{{"items": {text}}}')["items"])
    return parse_object(text)


def columns(items: list[Any]) -> dict[str, Any]:
    """A list of objects as fields: the values of each, in an order of their own, and how many
    objects there are.

    >>> columns([{"type": "Conflict"}, {"type": "Relation"}])
    {'items': 2, 'type': ['conflict', 'relation']}
    """
    names = dict.fromkeys(name for one in items if isinstance(one, dict) for name in one)
    values = {
        name: [plain(one[name]) for one in items if isinstance(one, dict) and name in one]
        for name in names
    }
    return {
        "items": len(items),
        **{name: sorted(found, key=json.dumps) for name, found in values.items()},
    }


def fields_of(text: str, reference: dict[str, Any]) -> dict[str, bool] | None:
    """Which fields of the answer are right; None for an answer that is no JSON object."""
    try:
        found = parse(text)
    except (ValueError, Unjudgeable):
        return None
    return {
        name: name in found and equal(plain(found[name]), plain(value))
        for name, value in reference.items()
    }


def plain(value: Any) -> Any:
    """Words without case, and with one sort of space.

    >>> plain(["COLD_STORAGE", "Cold storage"])
    ['cold storage', 'cold storage']
    """
    if isinstance(value, str):
        return " ".join(value.casefold().replace("_", " ").replace("-", " ").split())
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _whole(one: dict[str, bool] | None) -> float:
    return float(one is not None and all(one.values()))


def _share(one: dict[str, bool] | None) -> float:
    return sum(one.values()) / len(one) if one else 0.0


def details(
    cases: Sequence[tuple[Case, dict[str, Any]]],
    texts: Sequence[str],
    found: Sequence[dict[str, bool] | None],
) -> dict[str, Any]:
    """The report of one side."""
    wrong = [place for place, one in enumerate(found) if not _whole(one)]
    return {
        "accuracy": sum(map(_whole, found)) / len(found),
        "accuracy_by_field": _by_field(cases, found),
        "error_rate": sum(one is None for one in found) / len(found),
        "total_examples": len(found),
        "correct": len(found) - len(wrong),
        "errors": sum(one is None for one in found),
        "error_examples": [
            {
                "index": place,
                "case": cases[place][0].id,
                "prompt": str(cases[place][0].prompt[-1].get("content"))[:PROMPT],
                "response": texts[place][:RESPONSE],
                "error": _problem(texts[place], found[place], cases[place][1]),
            }
            for place in sorted(wrong, key=lambda place: (found[place] is not None, place))[
                :SAMPLES
            ]
        ],
    }


def _by_field(
    cases: Sequence[tuple[Case, dict[str, Any]]], found: Sequence[dict[str, bool] | None]
) -> dict[str, float]:
    asked = Counter(name for _, reference in cases for name in reference)
    right = Counter(name for one in found if one for name, good in one.items() if good)
    return {name: right[name] / count for name, count in asked.items()}


def _problem(text: str, found: dict[str, bool] | None, reference: dict[str, Any]) -> str:
    if found is None:
        try:
            parse(text)
        except (ValueError, Unjudgeable) as error:
            return f"no JSON: {error}"
    return "wrong: " + ", ".join(
        f"{name} (not {json.dumps(reference[name])[:60]})"
        for name, good in (found or {}).items()
        if not good
    )
