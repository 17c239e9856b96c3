"""Whether a line would bring back what was erased: the names that a record goes by, as tombstones
have them.

Pure: it knows no database. What is known of a subject, a session or a rater counts only up to the
erasure, so that somebody who comes back later is not turned away; a trace, a case or a piece of
feedback that was erased stays erased. Subjects and raters go by the name that the sources give
them, whichever source it is; everything else by our id, which names its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from thumbwheel.capture.rows import PREFIXES, TARGET_PREFIX, Scope, row_id
from thumbwheel.capture.source import AnyRecord, Line
from thumbwheel.capture.types import CaseRecord, FeedbackRecord, TraceRecord, Unreadable

DATED = ("subject", "session", "rater")
"""Kinds of tombstone that say nothing about what happened afterwards."""
NAME = "name"
"""Kind of tombstone of a trace's own name in whatever source; it counts only for feedback that has
found no trace."""
Mark = tuple[str, str]
"""(kind, key) of a tombstone."""


def marks(scope: Scope, line: Line) -> list[tuple[Mark, datetime | None, str]]:
    """(mark, when the record happened, its plain name) of everything in `line` that a tombstone
    could be about."""
    if scope.seal is None:
        return []
    found = []
    for record in line.records:
        happened = None if isinstance(record, CaseRecord) else record.occurred_at
        try:
            found += [
                ((kind, scope.seal.of(kind, name)), happened, name)
                for kind, name in _names(scope, record)
            ]
        except Unreadable:
            continue  # the line is refused for that anyway
    return found


def stands(mark: Mark, happened: datetime | None, erased: Mapping[Mark, datetime]) -> bool:
    """Whether a tombstone covers this."""
    at = erased.get(mark)
    return at is not None and (mark[0] not in DATED or happened is None or happened <= at)


def _names(scope: Scope, record: AnyRecord) -> Iterator[Mark]:
    source = record.source or scope.source
    own = row_id(PREFIXES[type(record)], scope.agent, source, record.identified()[0])
    if isinstance(record, TraceRecord):
        yield "trace", own
        if record.subject is not None:
            yield "subject", record.subject
            return
        if record.session is not None:
            yield "session", row_id("ses", scope.agent, source, record.session)
        if record.parent is not None:
            yield "trace", scope.id_of("trc", record.parent, source)
    elif isinstance(record, FeedbackRecord):
        yield "feedback", own
        yield from _about(scope, record, source)
    else:
        yield "case", own


def _about(scope: Scope, record: FeedbackRecord, source: str) -> Iterator[Mark]:
    for target in record.targets:
        kind = "session" if target.kind == "session" else "trace"
        yield kind, scope.id_of(TARGET_PREFIX[target.kind], target.id, target.source or source)
        if kind == "trace":
            yield NAME, target.id
    for earlier in (record.supersedes, record.retracts):
        if earlier is not None:
            yield "feedback", scope.id_of("fbk", earlier, source)
    if record.rater is not None:
        yield "rater", record.rater.id


def covered(
    found: Sequence[tuple[Mark, datetime | None, str]],
    erased: Mapping[Mark, datetime],
    there: frozenset[str],
) -> bool:
    """Whether one of the marks of a line is covered; `there` are names of traces that exist, so
    that a name alone proves nothing."""
    return any(
        stands(mark, at, erased) and not (mark[0] == NAME and name in there)
        for mark, at, name in found
    )
