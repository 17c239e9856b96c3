"""Argilla: records of a dataset as `records.to_json()`, `to_dict` and the older FeedbackDataset
write them: `fields`, `responses`, `suggestions`, `metadata`.

The fields and the answers to the questions are columns of a table, guessed by their names or named
by `--column rating=QUESTION`; every person who answered is a rater. Suggestions are no answers.
Drafts and discarded responses say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from thumbwheel.capture.fields import unpacked
from thumbwheel.capture.lines import OnPosition, ignore_position
from thumbwheel.capture.mapping import ColumnMapping, TableColumns, map_columns, row_records
from thumbwheel.capture.marks import Scales
from thumbwheel.capture.rowfile import read_rows
from thumbwheel.capture.source import Item, JsonLines, Row
from thumbwheel.capture.types import AnyRecord, Records, Unreadable
from thumbwheel.core.errors import InputError

SUBMITTED = "submitted"
RATER = "rater"
EXAMPLE = (
    '{"id": "r1", "fields": {"prompt": "Open?", "response": "Until six."}, "metadata": {}, '
    '"suggestions": {}, "responses": {"rating": [{"value": 4, "user_id": "u1"}]}}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a record with fields and the responses to its questions."""
    fields, responses = unpacked(row.get("fields")), unpacked(row.get("responses"))
    return isinstance(fields, dict) and isinstance(responses, dict | list)


def rows_of(record: Row) -> list[dict[str, Any]]:
    """Return the record as rows of a table: one for each person who answered, or one without
    answers if nobody did. Raises Unreadable if the record has no fields."""
    fields, responses = unpacked(record.get("fields")), unpacked(record.get("responses"))
    if not isinstance(fields, dict):
        raise Unreadable("it has no fields")
    answers: dict[str, dict[str, Any]] = {}
    for user, question, value in _answers(responses):
        answers.setdefault(user, {})[question] = value
    common = {**fields, "id": record.get("id") or record.get("external_id")}
    rows = [
        {**common, **user_answers, RATER: user or None} for user, user_answers in answers.items()
    ]
    return rows or [common]


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


@dataclass(frozen=True)
class Argilla(JsonLines):
    """The source."""

    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Argilla:
        return replace(self, columns=columns, scales=scales)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read all answers first, because they show the type of each question; then yield the
        items."""
        records = (row.row for row in read_rows(path, ignore_position) if row.row is not None)
        table = TableColumns(self.columns)
        for record in filter(claims, records):
            for row in rows_of(record):
                table.add(row)
        if table.marks:
            mapping = map_columns(table, self.scales, f"file {str(path)!r}")
            yield from self.items(read_rows(path, on_position), partial(parse, mapping=mapping))
        else:
            yield from self.items(read_rows(path, on_position), self.parse)


def parse(record: dict[str, Any], mapping: ColumnMapping | None = None) -> list[AnyRecord]:
    """Return the trace or pair with the feedback of every person. Raises Unreadable if no row can
    be read; unreadable answers beside readable ones become remarks."""
    rows = rows_of(record)
    if mapping is None:
        table = TableColumns({})
        for row in rows:
            table.add(row)
        try:
            mapping = map_columns(table, {}, "the record")
        except InputError as error:
            raise Unreadable(str(error)) from None
    records: dict[Any, AnyRecord] = {}
    remarks: list[str] = []
    problems = []
    for row in rows:
        try:
            understood = row_records(row, mapping)
        except Unreadable as error:
            problems.append(str(error))
            continue
        remarks += understood.remarks if isinstance(understood, Records) else ()
        records |= {(type(part), part.name_and_fingerprint()): part for part in understood}
    if not records:
        raise Unreadable(problems[0])
    remarks += [f"an answer was left out: {problem}" for problem in problems]
    return Records(records.values(), dict.fromkeys(remarks))


SOURCE = Argilla(
    parse,
    claims,
    EXAMPLE,
    about="records of Argilla with people's responses",
    reason="a record with fields and the responses to its questions",
)
"""The source."""
