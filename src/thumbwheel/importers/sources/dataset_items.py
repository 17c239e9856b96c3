"""Questions with their right answers, as tools keep them for evaluations and trainers for
reinforcement learning: Langfuse's, LangSmith's and Braintrust's datasets, OpenAI's reinforcement
fine-tuning and evals, TRL's and verl's prompts.

Each is a case. Nothing is learned from it as an answer of the model.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, CaseRecord, Unreadable
from thumbwheel.importers.wrapped import known_answer, prompt_in

ASKED = ("messages", "prompt", "inputs", "input")
"""Keys of the question, the surest first."""
REFERENCES = (
    "reference_answer",
    "reference_output",
    "expected_output",
    "expectedOutput",
    "expected",
    "ideal",
    "ground_truth",
    "solution",
)
"""Keys of the right answer."""
ANSWERED = frozenset({"output", "response", "answer", "completion", "completions", "chosen"})
OF_LANGSMITH = frozenset({"inputs", "outputs", "dataset_id"})
EXAMPLE = (
    '{"messages": [{"role": "user", "content": "2 + 2?"}], "reference_answer": "4"}\n'
    '{"id": "i1", "datasetId": "d1", "input": {"question": "2 + 2?"}, "expectedOutput": "4"}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a question in messages or in an object, with its right answer and
    no answer of a model."""
    asked = _asked(row)
    is_structured = isinstance(asked, dict) or (
        is_chat(asked) and asked[-1].get("role") != "assistant"
    )
    has_answer = any(row.get(key) is not None for key in ANSWERED)
    return is_structured and not has_answer and _reference(row) is not None


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the case. Raises Unreadable if the row has no reference."""
    reference = _reference(row)
    if reference is None:
        raise Unreadable("it has no right answer")
    message = known_answer(reference) if isinstance(reference, dict | list) else None
    if message is not None and message["content"]:
        reference = message["content"]
    return [CaseRecord.model_validate({"input": prompt_in(_asked(row)), "reference": reference})]


def _asked(row: Row) -> Any:
    return next((unpacked(row[key]) for key in ASKED if row.get(key) is not None), None)


def _reference(row: Row) -> Any:
    """Return the right answer; None if the row has none."""
    graded = row.get("reward_model")
    if isinstance(graded, dict) and graded.get("ground_truth") is not None:
        return graded["ground_truth"]
    if row.keys() >= OF_LANGSMITH and "run_type" not in row:
        return unpacked(row["outputs"])
    return next((unpacked(row[key]) for key in REFERENCES if row.get(key) is not None), None)


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    about="questions with their right answers, as cases",
    reason="a question in messages or in an object, with its right answer and no answer of a model",
)
"""The source."""
