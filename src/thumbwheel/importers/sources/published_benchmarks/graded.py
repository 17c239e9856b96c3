"""Questions with a known answer, and solutions of models that were graded right or wrong (the GSM8K
form).

A line is {question, ground_truth | answer, <model>: {is_correct, solution}, ...}. It becomes one
case (its reference is the final answer), one trace for each solution and one label "correct" on
each, by a rater of the kind `reference`: it was graded against the answer that the file holds, so
it may be held out for the gate. A line without solutions is a case alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from thumbwheel.importers.source import Item, JsonLines, Line, Parse, Row
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    StepRecord,
    TraceRecord,
    Unreadable,
)

ANSWER = re.compile(r"(####|A:)(?P<text>.*)", re.DOTALL)
GRADER = Rater(id="grader", kind="reference")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
"""The separators in 1,000,000."""
EXAMPLE = (
    '{"question": "3 + 4?", "ground_truth": "3 + 4 = 7\\n#### 7", "model-a": {"is_correct": false, '
    '"solution": "A: 8"}}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a question and an answer that ends in '#### answer' or 'A:
    answer'."""
    answer = row.get("ground_truth", row.get("answer"))
    return (
        isinstance(row.get("question"), str) and isinstance(answer, str) and bool(_marked(answer))
    )


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the case, then the trace and label of every solution. Raises Unreadable."""
    question, truth = row.get("question"), row.get("ground_truth", row.get("answer"))
    if not isinstance(question, str) or not question.strip():
        raise Unreadable(f"question {question!r} is no text")
    case = CaseRecord.model_validate(
        {"input": question, "reference": _final(truth), "checker": "exact_answer"}
    )
    solutions, extra = {}, {}
    for key, value in row.items():
        if key in ("question", "ground_truth", "answer"):
            continue
        if isinstance(value, dict):
            solutions[key] = value
        else:
            extra[key] = value
    records: list[AnyRecord] = [case]
    for model, graded in solutions.items():
        records += _solution(question, case.external_id, model, graded, extra)
    return records


def _final(truth: Any) -> str:
    """Return the text after the last "####" or "A:" that begins a line, without thousands
    separators. Raises Unreadable if there is none."""
    answers = _marked(truth) if isinstance(truth, str) else []
    if not answers:
        raise Unreadable(
            f"the answer {str(truth)[-60:]!r} does not end in '#### answer' or 'A: answer'"
        )
    return THOUSANDS.sub("", answers[-1])


def _marked(truth: str) -> list[str]:
    """Return the text after each "####" or "A:" that begins a line."""
    answers = [ANSWER.match(line.strip()) for line in truth.splitlines()]
    texts = [answer.group("text").strip() for answer in answers if answer]
    return [text for text in texts if text]


def _solution(
    question: str, case: str, model: str, graded: Row, extra: dict[str, Any]
) -> list[AnyRecord]:
    correct, solution = graded.get("is_correct"), graded.get("solution")
    is_graded = isinstance(correct, bool) and isinstance(solution, str)
    if not is_graded or graded.keys() != {"is_correct", "solution"}:
        raise Unreadable(f"{model!r} is no {{is_correct: true or false, solution: text}}")
    fields = {
        "input": question,
        "output": solution,
        "case": case,
        "steps": [StepRecord(served_model=model)],
        "metadata": extra or None,
    }
    trace = TraceRecord.model_validate(fields)
    label = FeedbackRecord(
        kind="label", name="correct", value=correct, targets=[trace.as_target()], rater=GRADER
    )
    return [trace, label]


@dataclass(frozen=True)
class Graded(JsonLines):
    """The source, with a remark where a label says something else than the final answers do."""

    def item(self, number: int, row: dict[str, Any], text: str, parse: Parse | None = None) -> Item:
        item = super().item(number, row, text, parse)
        if not isinstance(item, Line):
            return item
        return replace(item, remarks=tuple(_contradictions(row)))


def _contradictions(row: Row) -> Iterator[str]:
    reference = _comparable(_final(row.get("ground_truth", row.get("answer"))))
    for graded in row.values():
        if not isinstance(graded, dict):
            continue
        answers = _marked(str(graded.get("solution")))
        if not answers:
            continue  # it gives no final answer that could be compared
        equal = _comparable(answers[-1]) == reference
        if equal and graded.get("is_correct") is False:
            yield "a solution is labelled wrong, and its final answer is the reference"
        if not equal and graded.get("is_correct") is True:
            yield "a solution is labelled right, and its final answer is not the reference"


def _comparable(answer: str) -> Decimal | str:
    """Return the answer as a number, without currency and percent signs around it, or as casefolded
    text if it is no number."""
    text = THOUSANDS.sub("", answer).strip(" $€£%.").casefold()
    try:
        return Decimal(text)
    except InvalidOperation:
        return " ".join(text.split())


SOURCE = Graded(
    parse,
    claims,
    EXAMPLE,
    reason="a question with an answer that ends in '#### answer' or 'A: answer'",
)
