"""Traces of a server that keeps spans (MLflow, Phoenix): what of a page of its list is new, and its
items.

The list is read from some time before the latest import on. Spans are asked for only of traces that
are not stored, and of those whose spans somebody judged since. Not here: how a server spells its
list (`sources/`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from thumbwheel.importers.otlp.assemble import NoRun, SpanRun, is_complete, runs_of, target_of
from thumbwheel.importers.otlp.span import Span
from thumbwheel.importers.server_api import Connection, Position
from thumbwheel.importers.source import Item, Unwanted, item_of
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    TargetRef,
    Unreadable,
    parse_time,
)

LOOKBACK = timedelta(days=30)
"""Traces that began so long before the newest one of the latest import are looked over again for
new opinions."""
LATE = timedelta(days=1)
"""A trace may arrive so long after it began. What is not stored of older ones was looked at before,
and is not wanted."""
UNFINISHED = timedelta(hours=1)
"""A trace without its root is taken as it is when it began so long ago."""
LOADED = 20
"""Traces whose spans are held at once."""


@dataclass(frozen=True)
class SpanJudgement:
    """What somebody said about a trace, or about a span of it."""

    name: str
    """Its external id, another one when it is changed."""
    span_id: str | None
    record: Callable[[TargetRef], FeedbackRecord]
    """The feedback about a target; raises Unreadable."""


@dataclass(frozen=True)
class ListedTrace:
    """A trace as the list of its server has it."""

    id: str
    started_at: datetime
    is_finished: bool
    text: str
    judgements: Sequence[SpanJudgement]


Loaded = Sequence[Span] | Unreadable
"""The spans of a trace, or why they cannot be read."""
Load = Callable[[Collection[str]], Mapping[str, Loaded]]
"""What the spans of these traces are."""


def first_start(connection: Connection, since: datetime | None) -> datetime | None:
    """Return the time from which traces are listed; None for all. `since` is the user's own
    limit."""
    latest = latest_start(connection.position)
    if since is not None or latest is None:
        return since
    return latest - LOOKBACK


def latest_start(position: Position | None) -> datetime | None:
    """Return the start of the newest trace that earlier imports saw; None before the first
    import."""
    return parse_time(position["started_at"]) if position else None


def items_of_pages(
    pages: Iterable[Sequence[ListedTrace]], load: Load, connection: Connection
) -> Iterator[Item]:
    """Yield the items of pages of traces, the oldest first, and report the position to
    `connection`."""
    latest = latest_start(connection.position)
    looked_at_before = latest - LATE if latest else None
    for page in pages:
        yield from _items_of_page(page, load, connection, looked_at_before)
        if page:
            starts = [trace.started_at for trace in page]
            latest = max([*starts, latest] if latest else starts)
            connection.reached({"started_at": latest.isoformat()})


def _items_of_page(
    page: Sequence[ListedTrace],
    load: Load,
    connection: Connection,
    looked_at_before: datetime | None,
) -> Iterator[Item]:
    # what of it is new
    stored_traces = connection.stored("trace", [trace.id for trace in page])
    names = [judgement.name for trace in page for judgement in trace.judgements]
    stored_judgements = connection.stored("feedback", names)
    wanted: list[tuple[ListedTrace, Sequence[SpanJudgement]]] = []
    for trace in page:
        judgements = [
            judgement for judgement in trace.judgements if judgement.name not in stored_judgements
        ]
        is_old = looked_at_before is not None and trace.started_at < looked_at_before
        if trace.id in stored_traces:
            if judgements:
                wanted.append((trace, judgements))
        elif not is_old:
            wanted.append((trace, judgements))

    # its spans, a few traces at a time
    for start in range(0, len(wanted), LOADED):
        part = wanted[start : start + LOADED]
        unloaded = [
            trace.id
            for trace, new_judgements in part
            if trace.id not in stored_traces
            or any(judgement.span_id for judgement in new_judgements)
        ]
        spans = load(unloaded) if unloaded else {}
        for trace, new_judgements in part:
            records = partial(
                _records,
                trace,
                new_judgements,
                spans.get(trace.id, ()),
                is_stored=trace.id in stored_traces,
            )
            yield item_of(0, trace.text, records)


def _records(
    trace: ListedTrace,
    judgements: Sequence[SpanJudgement],
    spans: Loaded,
    *,
    is_stored: bool,
) -> list[AnyRecord]:
    runs: list[SpanRun] = []
    records: list[AnyRecord] = []
    is_whole = trace.is_finished and not isinstance(spans, Unreadable) and is_complete(spans)
    is_recent = datetime.now(UTC) - trace.started_at < UNFINISHED
    if not is_stored and is_recent and not is_whole:
        raise Unwanted("it has not ended; a later import reads it")
    if isinstance(spans, Unreadable):
        raise spans
    try:
        runs = runs_of(spans) if spans else []
    except NoRun as error:
        if not is_stored:
            raise Unwanted(str(error)) from None
    if not is_stored:
        if not runs:
            raise Unwanted("its server has no spans of it")
        records += [run.trace for run in runs]
    for judgement in judgements:
        target = target_of(runs, judgement.span_id) if judgement.span_id else None
        records.append(judgement.record(target or TargetRef(kind="trace", id=trace.id)))
    return records
