"""Argilla: records of a dataset as `records.to_json()`, `to_dict` and the older FeedbackDataset
write them: `fields`, `responses`, `suggestions`, `metadata`; and as they stand in a table,
`QUESTION.responses` and `QUESTION.responses.users` (`to_datasets()`), or a list of answers in the
column of a question (the older form).

The fields and the answers to the questions are columns of a table, guessed by their names or named
by `--column rating=QUESTION`; every person who answered is a rater. Suggestions are no answers.
Drafts and discarded responses say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.record_table import RecordTable
from thumbwheel.importers.source import Row
from thumbwheel.importers.types import Unreadable

SUBMITTED = "submitted"
FLAT = ".responses"
"""How the column of the answers to a question ends."""
RATER = "rater"
NUMBERED = re.compile(r"(.+?)[-_ ]?([0-9ab])")
"""Names of one of several answers: response1, response-b."""
EXAMPLE = (
    '{"id": "r1", "fields": {"prompt": "Open?", "response": "Until six."}, "metadata": {}, '
    '"suggestions": {}, "responses": {"rating": [{"value": 4, "user_id": "u1"}]}}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a record with fields and the responses to its questions."""
    fields, responses = unpacked(row.get("fields")), unpacked(row.get("responses"))
    if isinstance(fields, dict) and isinstance(responses, dict | list):
        return True
    return any(key.endswith(FLAT) for key in row) or any(map(_are_answers, row.values()))


def _are_answers(value: Any) -> bool:
    """Return whether it is what people answered to a question, as older tables have it."""
    answers = unpacked(value)
    first = answers[0] if isinstance(answers, list) and answers else None
    return isinstance(first, dict) and {"user_id", "value", "status"} <= first.keys()


def _nested(record: Row) -> Row:
    """Return a row of a table as a record with its fields and responses."""
    fields: dict[str, Any] = {}
    responses: dict[str, list[dict[str, Any]]] = {}
    for key, value in record.items():
        if _are_answers(value):
            responses[key] = unpacked(value)
        elif key.endswith(FLAT):
            question = key.removesuffix(FLAT)
            users, states = (
                unpacked(record.get(f"{key}.{part}")) or [] for part in ("users", "status")
            )
            responses[question] = [
                {
                    "value": answer,
                    "user_id": users[index] if index < len(users) else None,
                    "status": states[index] if index < len(states) else SUBMITTED,
                }
                for index, answer in enumerate(unpacked(value) or [])
            ]
    for key, value in record.items():
        question = re.split(r"[.-](?:responses|suggestion)\b", key)[0]
        if question not in responses and question == key:
            fields[key] = value
    name = fields.pop("id", None) or fields.pop("external_id", None)
    return {"fields": fields, "responses": responses, "id": name}


def rows_of(record: Row) -> list[dict[str, Any]]:
    """Return a record as rows of a table: one for every person who answered, or one without
    answers."""
    if "fields" not in record:
        record = _nested(record)
    fields, responses = unpacked(record.get("fields")), unpacked(record.get("responses"))
    if not isinstance(fields, dict):
        raise Unreadable("it has no fields")
    answers: dict[str, dict[str, Any]] = {}
    for user, question, value in _answers(responses):
        answers.setdefault(user, {})[question] = value
    common = {**_asked_and_answered(fields), "id": record.get("id") or record.get("external_id")}
    rows = []
    for user, user_answers in answers.items():
        row = {**common, RATER: user or None}
        for question, value in user_answers.items():
            row = _with_answer(row, question, value)
        rows.append(row)
    return rows or [common]


def _asked_and_answered(fields: Row) -> dict[str, Any]:
    """Return the fields with a chat that ends in an answer as its prompt and its response."""
    asked: dict[str, Any] = {}
    for name, value in fields.items():
        messages = unpacked(value)
        is_answered = is_chat(messages) and messages[-1].get("role") == "assistant"
        if is_answered and not {"prompt", "response"} & fields.keys():
            asked |= {"prompt": messages[:-1], "response": messages[-1]}
        else:
            asked[name] = value
    return asked


def _with_answer(row: dict[str, Any], question: str, value: Any) -> dict[str, Any]:
    """Return the row with what somebody answered to a question; one that compares two of the fields
    makes them the better and the worse answer. Raises Unreadable if it prefers neither."""
    ranks = _ranks(value, row)
    if ranks is None:
        return {**row, question: value}
    (first, rank), (second, other_rank) = ranks.items()
    if rank == other_rank:
        raise Unreadable(f"{question} prefers neither {first} nor {second}")
    better, worse = (first, second) if rank < other_rank else (second, first)
    rest = {name: part for name, part in row.items() if name not in ranks}
    return {**rest, "chosen": row[better], "rejected": row[worse]}


def _ranks(value: Any, row: Row) -> dict[str, int] | None:
    """Return the rank of each of two answers in a ranking of them, or in a choice of one; None if
    it is neither. Raises Unreadable for a ranking of more answers."""
    ranked = [value] if isinstance(value, dict) else value
    if isinstance(ranked, list) and all(isinstance(part, dict) for part in ranked):
        ranks = {str(part.get("value")): part.get("rank") for part in ranked}
        if not ranks or not ranks.keys() <= row.keys():
            return None
        if len(ranks) > 2 or not all(type(rank) is int for rank in ranks.values()):
            raise Unreadable("it ranks more than two answers; write them as responses and ranks")
        if len(ranks) == 1:
            value = next(iter(ranks))
        else:
            return {name: int(str(rank)) for name, rank in ranks.items()}
    (choice,) = value if isinstance(value, list) and len(value) == 1 else [value]
    numbered = NUMBERED.fullmatch(choice) if isinstance(choice, str) else None
    if numbered is None or choice not in row:
        return None
    stem = numbered[1]
    names = [name for name in row if (match := NUMBERED.fullmatch(name)) and match[1] == stem]
    return {name: int(name != choice) for name in names} if len(names) == 2 else None


def _answers(responses: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (user, question, value) for every answer that was submitted."""
    if isinstance(responses, dict):
        for question, question_answers in responses.items():
            for answer in question_answers if isinstance(question_answers, list) else ():
                if isinstance(answer, dict) and answer.get("status", SUBMITTED) == SUBMITTED:
                    yield str(answer.get("user_id") or ""), question, answer.get("value")
        return
    for response in responses if isinstance(responses, list) else ():
        values = response.get("values") if isinstance(response, dict) else None
        if not isinstance(values, dict) or response.get("status", SUBMITTED) != SUBMITTED:
            continue
        for question, answer in values.items():
            value = answer.get("value") if isinstance(answer, dict) else answer
            yield str(response.get("user_id") or ""), question, value


SOURCE = RecordTable.of(
    rows_of,
    claims,
    EXAMPLE,
    about="records of Argilla with people's responses",
    reason="a record with fields and the responses to its questions",
)
"""The source."""
