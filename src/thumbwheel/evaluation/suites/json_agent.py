"""`json_agent`: for agents that answer with JSON: how often each field is right, how often the
answer cannot be parsed, and why.

Fields are those of the reference (or those that the case's `json_fields` checker names); of a list
of objects, the values of each field in any order. Text is compared without case, and spaces,
hyphens and underscores are equal, so that PROJECT is Project. `details` has a report for each of
the two responders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, HeldOutCase, Measure
from thumbwheel.rewards.function import Case as Answered
from thumbwheel.rewards.function import Unjudgeable
from thumbwheel.rewards.json_answer import equal, parse_object

ALL = "all fields right"
PARSED = "answers that parse"
SHARE = "share of fields right"
REWARD = "mean reward"
ERROR_EXAMPLES = 5
PROMPT = 100
"""Characters of a prompt that an error example shows."""
RESPONSE = 200
"""Characters of an answer that an error example shows."""

Fields = dict[str, bool]
"""Field -> whether the answer has it right."""


@dataclass(frozen=True)
class JsonCase:
    """A case with its reference as an object."""

    case: HeldOutCase
    reference: dict[str, Any]


@dataclass(frozen=True)
class JsonAnswer:
    """An answer to a case. `fields` is None where it is not a JSON object."""

    case: JsonCase
    text: str
    fields: Fields | None

    @property
    def all_right(self) -> float:
        return float(self.fields is not None and all(self.fields.values()))

    @property
    def share_right(self) -> float:
        return sum(self.fields.values()) / len(self.fields) if self.fields else 0.0


class JsonAgent(Suite):
    name: ClassVar[str] = "json_agent"
    default: ClassVar[bool] = True
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        return "" if self.cases else "no held-out case has a JSON object or list as its reference"

    @cached_property
    def cases(self) -> list[JsonCase]:
        """Cases whose reference is a JSON object or list."""
        cases = []
        for case in self.context.cases:
            if case.checker in (None, "json_fields"):
                reference = reference_of(case)
                if reference:
                    cases.append(JsonCase(case, reference))
        return cases

    def asks(self) -> list[Ask]:
        """Return the prompts of the cases."""
        return [Ask(case.case.prompt, self.config.max_new_tokens) for case in self.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure all fields first, then parsing, the mean share, every field, and the agent's
        reward."""
        answers_before = []
        answers_after = []
        for case, first, second in zip(self.cases, before, after, strict=True):
            if first and second:
                answers_before.append(_json_answer(case, first[0].text.strip()))
                answers_after.append(_json_answer(case, second[0].text.strip()))
        dropped = Counter({"a side has no answer": len(self.cases) - len(answers_before)})
        dropped = +dropped  # without zeros
        if not answers_before:
            return SuiteMeasures(None, dropped=dropped)

        groups = [answer.case.case.group for answer in answers_before]
        level = self.config.level

        def measure(name: str, value: Callable[[JsonAnswer], float], level: float) -> Measure:
            values_before = [value(answer) for answer in answers_before]
            values_after = [value(answer) for answer in answers_after]
            return compare.measure(name, values_before, values_after, groups, level)

        measures = [
            measure(PARSED, lambda answer: float(answer.fields is not None), level),
            measure(SHARE, lambda answer: answer.share_right, level),
        ]
        names: dict[str, None] = {}
        for answer in answers_before:
            names.update(dict.fromkeys(answer.case.reference))
        measures += [_field_measure(name, answers_before, answers_after, level) for name in names]
        reward = self._reward_measure(answers_before, answers_after, groups)
        if reward is not None:
            measures.append(reward)
        return SuiteMeasures(
            lambda level: measure(ALL, lambda answer: answer.all_right, level),
            tuple(measures),
            details={"before": details(answers_before), "after": details(answers_after)},
            judges=("json_fields",),
            dropped=dropped,
        )

    def _reward_measure(
        self,
        before: Sequence[JsonAnswer],
        after: Sequence[JsonAnswer],
        groups: Sequence[str],
    ) -> Measure | None:
        """Compare the agent's reward of the fresh answers; None unless it judges all of them."""
        values_before, values_after = self._rewards(before), self._rewards(after)
        if not values_before or values_after is None:
            return None
        bounded = all(0 <= value <= 1 for value in (*values_before, *values_after))
        span = 1.0 if bounded else None
        return compare.measure(REWARD, values_before, values_after, groups, self.config.level, span)

    def _rewards(self, answers: Sequence[JsonAnswer]) -> list[float] | None:
        """Return the reward of each answer; None if an answer has no reward."""
        judged = []
        for answer in answers:
            case = answer.case.case
            metadata = {"checker": case.checker, "checker_config": case.checker_config}
            judged.append(Answered(answer.text, case.reference, case.prompt, metadata=metadata))
        scores = self.context.rewards(judged).get("", [])
        values = [score.value for score in scores if score.value is not None]
        return values if len(values) == len(scores) else None


def _json_answer(case: JsonCase, text: str) -> JsonAnswer:
    return JsonAnswer(case, text, fields_of(text, case.reference))


def _field_measure(
    name: str, before: Sequence[JsonAnswer], after: Sequence[JsonAnswer], level: float
) -> Measure:
    """Measure how often this field is right, over the cases whose reference has it."""
    values_before = []
    values_after = []
    groups = []
    for first, second in zip(before, after, strict=True):
        if name in first.case.reference:
            values_before.append(float((first.fields or {}).get(name, False)))
            values_after.append(float((second.fields or {}).get(name, False)))
            groups.append(first.case.case.group)
    return compare.measure(f"field {name}", values_before, values_after, groups, level)


def reference_of(case: HeldOutCase) -> dict[str, Any]:
    """Return the fields that are asked for; empty if the reference is no JSON object or list."""
    reference = case.reference
    try:
        if isinstance(reference, str):
            reference = parse(reference)
        elif isinstance(reference, list):
            reference = columns(reference)
    except (ValueError, Unjudgeable):
        return {}
    if not isinstance(reference, dict):
        return {}
    named = None
    if case.checker == "json_fields":
        named = (case.checker_config or {}).get("fields")
    return {name: value for name, value in reference.items() if not named or name in named}


def parse(text: str) -> dict[str, Any]:
    """Return the fields of an answer. Raises ValueError for text that is neither a JSON object nor
    a list, Unjudgeable for one that is too large."""
    if text.startswith("["):
        return columns(parse_object(f'{{"items": {text}}}')["items"])
    return parse_object(text)


def columns(items: list[Any]) -> dict[str, Any]:
    """Return a list of objects as fields: the sorted values of each field, and the number of
    objects.

    >>> columns([{"type": "Conflict"}, {"type": "Relation"}])
    {'items': 2, 'type': ['conflict', 'relation']}
    """
    values_of: dict[str, list[Any]] = {}
    for item in items:
        if isinstance(item, dict):
            for name, value in item.items():
                values_of.setdefault(name, []).append(plain(value))
    fields: dict[str, Any] = {"items": len(items)}
    for name, values in values_of.items():
        fields[name] = sorted(values, key=json.dumps)
    return fields


def fields_of(text: str, reference: dict[str, Any]) -> Fields | None:
    """Return which fields of the answer are right; None for an answer that is no JSON object."""
    try:
        answer = parse(text)
    except (ValueError, Unjudgeable):
        return None
    return {
        name: name in answer and equal(plain(answer[name]), plain(value))
        for name, value in reference.items()
    }


def plain(value: Any) -> Any:
    """Return text without case, and with one kind of space.

    >>> plain(["COLD_STORAGE", "Cold storage"])
    ['cold storage', 'cold storage']
    """
    if isinstance(value, str):
        return " ".join(value.casefold().replace("_", " ").replace("-", " ").split())
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return value


def details(answers: Sequence[JsonAnswer]) -> dict[str, Any]:
    """Return the report of one responder's answers."""
    asked = Counter[str]()
    right = Counter[str]()
    wrong = []
    for index, answer in enumerate(answers):
        asked.update(answer.case.reference.keys())
        right.update(name for name, is_right in (answer.fields or {}).items() if is_right)
        if not answer.all_right:
            wrong.append(index)
    unparsed = sum(answer.fields is None for answer in answers)

    unparsed_first = sorted(wrong, key=lambda index: (answers[index].fields is not None, index))
    error_examples = []
    for index in unparsed_first[:ERROR_EXAMPLES]:
        answer = answers[index]
        case = answer.case.case
        example = {
            "index": index,
            "case": case.id,
            "prompt": str(case.prompt[-1].get("content"))[:PROMPT],
            "response": answer.text[:RESPONSE],
            "error": _error(answer),
        }
        error_examples.append(example)
    return {
        "accuracy": (len(answers) - len(wrong)) / len(answers),
        "accuracy_by_field": {name: right[name] / count for name, count in asked.items()},
        "error_rate": unparsed / len(answers),
        "total_examples": len(answers),
        "correct": len(answers) - len(wrong),
        "errors": unparsed,
        "error_examples": error_examples,
    }


def _error(answer: JsonAnswer) -> str:
    """Describe the error in the answer."""
    if answer.fields is None:
        try:
            parse(answer.text)
        except (ValueError, Unjudgeable) as error:
            return f"no JSON: {error}"
    wrong = []
    for name, is_right in (answer.fields or {}).items():
        if not is_right:
            wrong.append(f"{name} (not {json.dumps(answer.case.reference[name])[:60]})")
    return f"wrong: {', '.join(wrong)}"
