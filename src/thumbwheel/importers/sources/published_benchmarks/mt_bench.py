"""Questions of MT-Bench: {question_id, category, turns, reference}. Each turn with a reference is a
case.

The case of a later turn has the references of the earlier ones as the answers before it; all of a
question are one group. A question without references is refused: there is nothing to judge an
answer by.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import clip, list_at, name_of
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, CaseRecord, Unreadable

EXAMPLE = (
    '{"question_id": 900, "category": "math", "turns": ["2 + 2?", "And twice that?"], "reference": '
    '["4", "8"]}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a question of turns."""
    return {"question_id", "turns"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return a case for every turn that has a reference. Raises Unreadable if none has."""
    turns, references = list_at(row, "turns"), list_at(row, "reference")
    name = name_of(row.get("question_id"))
    if not turns or name is None:
        raise Unreadable("it has no turns" if name else "it has no question_id")
    if not references:
        raise Unreadable("it has no reference: there is nothing to judge an answer by")
    for text in (*turns, *references):
        if not isinstance(text, str):
            raise Unreadable(f"{clip(text)} is no text")
    category = row.get("category")
    slices = {"category": category} if isinstance(category, str) and category else None
    cases: list[AnyRecord] = []
    before: list[dict[str, str]] = []
    for number, (turn, reference) in enumerate(zip(turns, references, strict=False), start=1):
        prompt = [*before, {"role": "user", "content": turn}]
        fields = {
            "id": f"{name}/{number}",
            "input": prompt,
            "reference": reference,
            "group": name,
            "slices": slices,
        }
        cases.append(CaseRecord.model_validate(fields))
        before = [*prompt, {"role": "assistant", "content": reference}]
    return cases


SOURCE = JsonLines(parse, claims, EXAMPLE, reason="a question of turns")
