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

from thumbwheel.capture.otlp.assemble import is_complete, records_of
from thumbwheel.capture.otlp.request import SPAN
from thumbwheel.capture.otlp.span import Span, span_of_row
from thumbwheel.capture.source import Item, item_of
from thumbwheel.db.batches import batches
from thumbwheel.db.schema import agents, waiting_spans
from thumbwheel.db.workspace import OWNER_OF_HOME

QUIET = timedelta(seconds=2)
"""Since the last span of a complete run; SDKs send children before or together with their root."""
ABANDONED = timedelta(minutes=2)
"""Since the last span of a run whose root or parents are missing."""
MOST_TRACES = 500
"""Runs that are put together at once."""


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
        return item_of(number, text, lambda: records_of(self.spans))


def check_span(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return (trace id, span id) of a row. Raises Unreadable if it is not a span."""
    span = span_of_row(row)
    return span.trace_id, span.span_id


def save_spans(connection: sa.Connection, agent_id: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Store spans that are not stored yet and return their number. Raises Unreadable."""
    spans = {check_span(row): dict(row) for row in rows}
    stored: set[tuple[str, str]] = set()
    for part in batches({trace_id for trace_id, _ in spans}, MOST_TRACES):
        query = sa.select(waiting_spans.c.trace_id, waiting_spans.c.span_id).where(
            waiting_spans.c.agent_id == agent_id, waiting_spans.c.trace_id.in_(part)
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
    connection: sa.Connection, now: datetime, *, everything: bool = False
) -> Iterator[SettledRun]:
    """Yield at most `MOST_TRACES` runs for which no more spans are expected; with `everything`, any
    waiting runs."""
    last = sa.func.max(waiting_spans.c.recorded_at)
    query = (
        sa.select(agents.c.slug, waiting_spans.c.agent_id, waiting_spans.c.trace_id, last)
        .join(agents, agents.c.id == waiting_spans.c.agent_id)
        .group_by(agents.c.slug, waiting_spans.c.agent_id, waiting_spans.c.trace_id)
        .order_by(last)
    )
    if not everything:
        query = query.having(last <= now - QUIET)
    count = 0
    for slug, agent_id, trace_id, last_recorded_at in connection.execute(query).all():
        if count == MOST_TRACES:
            return
        of_run = sa.and_(waiting_spans.c.agent_id == agent_id, waiting_spans.c.trace_id == trace_id)
        contents = connection.execute(sa.select(waiting_spans.c.content).where(of_run)).scalars()
        spans = [span_of_row(content) for content in contents]
        is_old = last_recorded_at <= now - ABANDONED
        if everything or is_old or is_complete(spans):
            count += 1
            yield SettledRun(slug, trace_id, spans)


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
