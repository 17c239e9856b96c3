"""Spans that wait for the rest of their run: stored as they arrive, and made into traces when the
run is complete and nothing more of it came for a while.

A run whose root never comes is put together as it is after `ABANDONED`. What is put together goes
the way of every other line. Spans that come later than that become further steps of its traces,
and are refused where they contradict them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.batches import batches
from thumbwheel.db.schema import agents, waiting_spans
from thumbwheel.db.workspace import OWNER_OF_HOME
from thumbwheel.importers.otlp.assemble import is_complete, records_of
from thumbwheel.importers.otlp.request import SPAN
from thumbwheel.importers.otlp.span import Span, span_of_row
from thumbwheel.importers.source import Item, Refused, item_of

QUIET = timedelta(seconds=2)
"""Since the last span of a complete run; SDKs send children before or together with their root."""
ABANDONED = timedelta(minutes=2)
"""Since the last span of a run whose root or parents are missing."""
MOST_TRACES = 500
"""Runs that are put together at once."""
MOST_SPANS = 10_000
"""Spans of one run that wait for the rest of it. Further ones come late."""


@dataclass(frozen=True)
class SettledRun:
    """The spans of a run of which nothing more is expected."""

    agent: str
    trace_id: str
    spans: Sequence[Span]

    @property
    def senders(self) -> frozenset[str]:
        """Who sent them."""
        return frozenset(span.sender or OWNER_OF_HOME for span in self.spans)

    def item(self, number: int) -> Item:
        """Return the run as a line for ingestion."""
        names = [span.name for span in self.spans]
        text = json.dumps({"type": SPAN, "trace_id": self.trace_id, "spans": names})
        try:
            return item_of(number, text, lambda: records_of(self.spans))
        except Exception as error:  # noqa: BLE001 - one run must not hold up all others
            return Refused(number, f"it cannot be put together: {error!r}", text)


def check_span(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return (trace id, span id) of a row. Raises Unreadable if it is not a span."""
    span = span_of_row(row)
    return span.trace_id, span.span_id


def save_spans(connection: sa.Connection, agent_id: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Store spans that are not stored yet and return their number. Raises Unreadable."""
    spans = {check_span(row): dict(row) for row in rows}
    stored: set[tuple[str, str]] = set()
    for part in batches(list(spans), MOST_TRACES):
        # by both names: a run may have thousands of spans beside those that have come now
        query = sa.select(waiting_spans.c.trace_id, waiting_spans.c.span_id).where(
            waiting_spans.c.agent_id == agent_id,
            waiting_spans.c.trace_id.in_({trace_id for trace_id, _ in part}),
            waiting_spans.c.span_id.in_({span_id for _, span_id in part}),
        )
        stored |= {(row.trace_id, row.span_id) for row in connection.execute(query)}
    now = datetime.now(UTC)
    new = [
        {
            "agent_id": agent_id,
            "trace_id": trace_id,
            "span_id": span_id,
            "content": content,
            "recorded_at": now,
        }
        for (trace_id, span_id), content in spans.items()
        if (trace_id, span_id) not in stored
    ]
    if new:
        connection.execute(waiting_spans.insert(), new)
    return len(new)


def settled_runs(
    connection: sa.Connection,
    now: datetime,
    incomplete: dict[tuple[str, str], datetime],
    *,
    everything: bool = False,
) -> Iterator[SettledRun]:
    """Yield at most `MOST_TRACES` runs for which no more spans are expected; with `everything`, any
    waiting runs.

    `incomplete` is the caller's memory: (agent, run) -> the time of its last span when it was seen
    to lack one. Such a run is read again when another span of it has come.
    """
    last, n_spans = sa.func.max(waiting_spans.c.recorded_at), sa.func.count()
    query = (
        sa.select(agents.c.slug, waiting_spans.c.agent_id, waiting_spans.c.trace_id, last, n_spans)
        .join(agents, agents.c.id == waiting_spans.c.agent_id)
        .group_by(agents.c.slug, waiting_spans.c.agent_id, waiting_spans.c.trace_id)
        .order_by(last)
    )
    if not everything:
        query = query.having(sa.or_(last <= now - QUIET, n_spans >= MOST_SPANS))
    rows = connection.execute(query).all()
    for gone in incomplete.keys() - {(row.agent_id, row.trace_id) for row in rows}:
        del incomplete[gone]
    count = 0
    for slug, agent_id, trace_id, last_recorded_at, n_of_run in rows:
        if count == MOST_TRACES:
            return
        is_due = everything or last_recorded_at <= now - ABANDONED or n_of_run >= MOST_SPANS
        if not is_due and incomplete.get((agent_id, trace_id)) == last_recorded_at:
            continue
        of_run = sa.and_(waiting_spans.c.agent_id == agent_id, waiting_spans.c.trace_id == trace_id)
        contents = connection.execute(sa.select(waiting_spans.c.content).where(of_run)).scalars()
        spans = [span_of_row(content) for content in contents]
        if is_due or is_complete(spans):
            count += 1
            incomplete.pop((agent_id, trace_id), None)
            yield SettledRun(slug, trace_id, spans)
        else:
            incomplete[agent_id, trace_id] = last_recorded_at


def remove_spans(connection: sa.Connection, agent_id: str, run: SettledRun) -> None:
    """Delete the spans of a run that has become a trace; spans that came meanwhile stay."""
    for span_ids in batches([span.span_id for span in run.spans], MOST_TRACES):
        connection.execute(
            waiting_spans.delete().where(
                waiting_spans.c.agent_id == agent_id,
                waiting_spans.c.trace_id == run.trace_id,
                waiting_spans.c.span_id.in_(span_ids),
            )
        )
