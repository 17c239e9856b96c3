"""Lines on their way into the database, with everything that can be computed before the
transaction: names and hashes of their records, the rows that these lead to, and the form in which
the driver takes them. While a transaction is open, others wait.

Not here: which of it is new (`store.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import sqlalchemy as sa

from thumbwheel.capture.erased import Reference, references
from thumbwheel.capture.rows import NamedRecord, Rows, Scope, case_objection, named_record
from thumbwheel.db.encoded_rows import Row, encoded
from thumbwheel.db.schema import cases, feedback, messages, steps, traces
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import TraceRecord, Unreadable


@dataclass(frozen=True)
class NamedLine:
    """A line with the names of its records, or with the reason why it is refused."""

    line: Line
    records: Sequence[NamedRecord] = ()
    reason: str | None = None
    references: Sequence[Reference] = ()
    """What the line names that may have been erased."""


@dataclass(frozen=True)
class PreparedLines:
    """Lines that are ready to be stored. Storing them changes nothing here, so it can be done again
    after a transaction that was lost."""

    scope: Scope
    candidates: Sequence[NamedLine]
    versions: Mapping[str, str]
    """Name or id of a model version of the agent -> its id."""
    _rows: Mapping[int, Rows] = field(default_factory=dict, repr=False)
    """`id()` of a named record -> its rows. The candidates keep these records alive."""

    def rows_of(self, named: NamedRecord) -> Rows:
        """Return the rows of a record; they are computed here if its name or time was changed."""
        rows = self._rows.get(id(named))
        return rows if rows is not None else _rows(self.scope, named, self.versions)


def prepare(
    scope: Scope, lines: Iterable[Line], versions: Mapping[str, str], dialect: sa.Dialect
) -> PreparedLines:
    """Compute what `lines` lead to, for a database of this dialect. Raises what encoding a value
    raises that no database can store."""
    candidates = [_candidate(scope, line) for line in lines]
    rows_by_record: dict[int, Rows] = {}
    for named in all_records(candidates):
        if not _is_known(named, versions):
            continue  # the line is refused
        rows = _rows(scope, named, versions)
        rows.traces = [encoded(traces, row, dialect) for row in rows.traces]
        rows.steps = [encoded(steps, row, dialect) for row in rows.steps]
        rows.feedback = [encoded(feedback, row, dialect) for row in rows.feedback]
        rows.cases = [encoded(cases, row, dialect) for row in rows.cases]
        histories: dict[str, Row] = {}
        for message_id, row in rows.messages.items():
            histories[message_id] = encoded(messages, row, dialect)
        rows.messages = histories
        rows_by_record[id(named)] = rows
    return PreparedLines(scope, candidates, versions, rows_by_record)


def all_records(candidates: Iterable[NamedLine]) -> list[NamedRecord]:
    """Return the records of all candidates, in order."""
    return list(chain.from_iterable(candidate.records for candidate in candidates))


def named_versions(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the model versions that steps in `lines` name."""
    for line in lines:
        for record in line.records:
            if isinstance(record, TraceRecord):
                for step in record.steps:
                    if step.model_version:
                        yield step.model_version


def _candidate(scope: Scope, line: Line) -> NamedLine:
    mentions = references(scope, line)
    try:
        records = [named_record(scope, record) for record in line.records]
    except Unreadable as error:
        return NamedLine(line, reason=str(error), references=mentions)
    reason = case_objection(line.records, scope.case_rule)
    return NamedLine(line, records, reason, mentions)


def _is_known(named: NamedRecord, versions: Mapping[str, str]) -> bool:
    """Return whether the record names only model versions that exist."""
    if not isinstance(named.record, TraceRecord):
        return True
    return all(
        not step.model_version or step.model_version in versions for step in named.record.steps
    )


def _rows(scope: Scope, named: NamedRecord, versions: Mapping[str, str]) -> Rows:
    rows = Rows(scope, versions)
    rows.add(named)
    return rows
