"""Whether a line would bring back what was erased: the names that a record goes by, as tombstones
have them.

Pure: it knows no database. A tombstone of a subject, a session or a rater covers only what happened
up to the erasure, so that somebody who comes back later is not turned away; a trace, a case or a
piece of feedback that was erased stays erased. Subjects and raters go by the name that the sources
give them, whichever source it is; everything else by our id, which names its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from thumbwheel.capture.rows import PREFIXES, TARGET_PREFIX, Scope, row_id
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    TraceRecord,
    Unreadable,
)

DATED = ("subject", "session", "rater")
"""Kinds of tombstone that say nothing about what happened afterwards."""
NAME = "name"
"""Kind of tombstone of a trace's own name in whatever source; it counts only for feedback that has
found no trace."""
Mark = tuple[str, str]
"""(kind, key) of a tombstone."""


@dataclass(frozen=True)
class Reference:
    """Something that a line names, and that a tombstone could be about."""

    mark: Mark
    happened: datetime | None
    """When the record happened that names it."""
    name: str
    """Its plain name."""


def references(scope: Scope, line: Line) -> list[Reference]:
    """Return all references in `line` that a tombstone could match."""
    if scope.seal is None:
        return []
    references = []
    for record in line.records:
        happened = None if isinstance(record, CaseRecord) else record.occurred_at
        try:
            for kind, name in _names(scope, record):
                mark = kind, scope.seal.of(kind, name)
                references.append(Reference(mark, happened, name))
        except Unreadable:
            continue  # the line is refused for that anyway
    return references


def is_erased(mark: Mark, happened: datetime | None, erased: Mapping[Mark, datetime]) -> bool:
    """Return whether a tombstone covers data of that time. `erased` maps each tombstone to the time
    when it was set."""
    erased_at = erased.get(mark)
    if erased_at is None:
        return False
    kind, _ = mark
    return kind not in DATED or happened is None or happened <= erased_at


def _names(scope: Scope, record: AnyRecord) -> Iterator[Mark]:
    """Yield (kind, plain name) for everything that the record names."""
    source = record.source or scope.source
    record_id = row_id(PREFIXES[type(record)], scope.agent, source, record.external_id)
    if isinstance(record, TraceRecord):
        yield "trace", record_id
        if record.subject is not None:
            yield "subject", record.subject
            return
        if record.session is not None:
            yield "session", row_id("ses", scope.agent, source, record.session)
        if record.parent is not None:
            yield "trace", scope.id_of("trc", record.parent, source)
    elif isinstance(record, FeedbackRecord):
        yield "feedback", record_id
        yield from _about(scope, record, source)
    else:
        yield "case", record_id


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


def any_erased(
    references: Sequence[Reference],
    erased: Mapping[Mark, datetime],
    trace_names: frozenset[str],
) -> bool:
    """Return whether a tombstone covers anything that a line names. `trace_names` are names of
    existing traces, for which a tombstone of the bare name does not count."""
    for reference in references:
        kind, _ = reference.mark
        if kind == NAME and reference.name in trace_names:
            continue
        if is_erased(reference.mark, reference.happened, erased):
            return True
    return False
