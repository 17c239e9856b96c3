"""Questions with a known answer, and solutions of models that were graded right or wrong (the GSM8K form).

A line is {question, ground_truth | answer, <model>: {is_correct, solution}, ...}. It becomes one case (its reference is the final
answer), one trace for each solution and one label "correct" on each. A line without solutions is a case alone.
"""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.capture.source import AnyRecord, JsonLines, Row
from thumbwheel.capture.types import CaseRecord, FeedbackRecord, Rater, StepRecord, TargetRef, TraceRecord, Unreadable

MARKS = ("####", "A:")
GRADER = Rater(id="grader", kind="checker")
EXAMPLE = '{"question": "3 + 4?", "ground_truth": "3 + 4 = 7\\n#### 7", "model-a": {"is_correct": false, "solution": "A: 8"}}'


def claims(row: Row) -> bool:
    """A question with an answer that ends in '#### answer' or 'A: answer'."""
    answer = row.get("ground_truth", row.get("answer"))
    return isinstance(row.get("question"), str) and isinstance(answer, str) and bool(_marked(answer))


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The case, then trace and label of every solution."""
    question, truth = row.get("question"), row.get("ground_truth", row.get("answer"))
    if not isinstance(question, str) or not question.strip():
        raise Unreadable(f"question {question!r} is no text")
    case = CaseRecord.model_validate({"input": question, "reference": _final(truth), "checker": "exact_answer"})
    rest = {key: value for key, value in row.items() if key not in ("question", "ground_truth", "answer")}
    extra = {key: value for key, value in rest.items() if not isinstance(value, dict)}
    records: list[AnyRecord] = [case]
    for model, graded in rest.items():
        if model not in extra:
            records += _solution(question, case.identified()[0], model, graded, extra)
    return records


def _final(truth: Any) -> str:
    """What stands after the last "####" or "A:" that begins a line, without thousands separators."""
    found = _marked(truth) if isinstance(truth, str) else []
    if not found:
        raise Unreadable(f"the answer {str(truth)[-60:]!r} does not end in '#### answer' or 'A: answer'")
    return str(re.sub(r"(?<=\d),(?=\d{3})", "", found[-1]))


def _marked(truth: str) -> list[str]:
    lines = [line.strip() for line in truth.splitlines()]
    return [text for line in lines for mark in MARKS if line.startswith(mark) and (text := line.removeprefix(mark).strip())]


def _solution(question: str, case: str, model: str, graded: Row, extra: dict[str, Any]) -> list[AnyRecord]:
    correct, solution = graded.get("is_correct"), graded.get("solution")
    if not isinstance(correct, bool) or not isinstance(solution, str) or graded.keys() - {"is_correct", "solution"}:
        raise Unreadable(f"{model!r} is no {{is_correct: true or false, solution: text}}")
    step = StepRecord(served_model=model)
    trace = TraceRecord.model_validate({"input": question, "output": solution, "case": case, "steps": [step], "metadata": extra or None})
    target = TargetRef(kind="trace", id=trace.identified()[0])
    return [trace, FeedbackRecord(kind="label", name="correct", value=correct, targets=[target], rater=GRADER)]


SOURCE = JsonLines(parse, claims, EXAMPLE)
