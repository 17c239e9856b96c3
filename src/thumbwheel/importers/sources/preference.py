"""Pairs of answers of which people preferred one.

Forms: {chosen, rejected} as texts or chat lists, with the prompt in `prompt`, `instruction` (and
`input`), `question`, `query` or `input`, and `system` and `history` beside it; chat lists, and
texts without any other text, may have it as their common beginning, which is said for texts; the
hh-rlhf dialogue ("\\n\\nHuman: ... \\n\\nAssistant: ..."); PandaLM (instruction, input,
response1, response2, annotator1..n with 0 for a tie), where each annotator is a rater with a
judgement of their own: contradictions are kept here and resolved by a named rule later.
"""

from __future__ import annotations

import re
from typing import Any

from thumbwheel.importers.messages import tools_of
from thumbwheel.importers.pairs import (
    CHATS,
    PROMPTS,
    SYSTEMS,
    Verdict,
    distinct_records,
    pair_of_row,
    pair_records,
    rejected_answers,
    with_context,
)
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, Rater, Unreadable

ANNOTATOR = re.compile(r"annotator_?\d+")
USED = frozenset(
    {*PROMPTS, *CHATS, *SYSTEMS, "context", "history", "tools", "images", "chosen", "rejected"}
)
PANDALM = ("instruction", "input", "response1", "response2")
VERDICTS = {0: [[0, 1]], 1: [[0], [1]], 2: [[1], [0]]}
EXAMPLE = (
    '{"prompt": "Name a red fruit.", "chosen": "A cherry.", "rejected": "A banana."}\n'
    '{"chosen": "\\n\\nHuman: Hi\\n\\nAssistant: Hello!", "rejected": "\\n\\nHuman: '
    'Hi\\n\\nAssistant: What?"}\n'
    '{"instruction": "...", "input": "", "response1": "Yes.", "response2": "No.", "annotator1": '
    '1, "annotator2": 0}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a pair: chosen and rejected, or two responses with annotators."""
    if "conversations" in row:
        return False  # ShareGPT's: what was asked is there
    if {"chosen", "rejected"} <= row.keys():
        return True
    return {"response1", "response2"} <= row.keys() and any(map(ANNOTATOR.fullmatch, row))


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return two traces and one preference for each rater. Raises Unreadable if an answer is
    missing."""
    if "response1" in row or "response2" in row:
        return _pandalm(row)
    for key in ("chosen", "rejected"):
        if row.get(key) is None:
            raise Unreadable(f"key {key!r} is missing")
    rest = {key: value for key, value in row.items() if key not in USED and value is not None}
    tools = tools_of(row.get("tools"))
    about = {"metadata": {"tools": tools}} if tools else {}
    records: list[AnyRecord] = []
    remarks: list[str] = []
    for rejected in rejected_answers(row["rejected"]):
        prompt, answers, remark = pair_of_row(row, row["chosen"], rejected)
        records += pair_records(prompt, answers, [(None, [[0], [1]])], rest, **about)
        remarks += [remark] if remark else []
    return distinct_records(records, remarks)


def _pandalm(row: dict[str, Any]) -> list[AnyRecord]:
    instruction, context, first, second = (_text(row, key) for key in PANDALM)
    names = [key for key in row if ANNOTATOR.fullmatch(key)]
    if not names:
        raise Unreadable("it has no annotator1, annotator2, ...: nobody judged the two responses")
    verdicts: list[Verdict] = []
    for name in names:
        if type(row[name]) is not int or row[name] not in VERDICTS:
            raise Unreadable(f"{name} {row[name]!r} is none of 0 (tie), 1, 2")
        verdicts.append((Rater(id=name, kind="person"), VERDICTS[row[name]]))
    text = with_context(instruction, context) if context else instruction
    prompt = [{"role": "user", "content": text}]
    rest = {key: value for key, value in row.items() if key not in PANDALM and key not in names}
    return pair_records(prompt, (first, second), verdicts, rest)


def _text(row: Row, key: str) -> str:
    """Return the text at `key`. The published file holds answers such as a bare true, which are
    read as the word. Raises Unreadable for a value that is no text, boolean or number."""
    value = row.get(key, "" if key == "input" else None)
    if not isinstance(value, str | bool | int | float):
        raise Unreadable(f"key {key!r} is {value!r}, not a text")
    return str(value)


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    reason="a pair has chosen and rejected, or two responses with annotators",
)
