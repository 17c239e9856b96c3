"""Traces as a file: those that match the filters of the list, the selected ones, or a replay."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fastapi.responses import Response, StreamingResponse

from thumbwheel.capture.trace_types import TraceSummary
from thumbwheel.capture.traces import list_traces
from thumbwheel.core.spreadsheet import cell
from thumbwheel.evaluation.replay_csv import csv_of
from thumbwheel.evaluation.trace_replay import show_replay
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.rendering import HEADERS, PRIVATE
from thumbwheel.server.pages.traces import ListQuery

AT_ONCE = 500
MEDIA = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


def export_response(asked: PageRequest, form: str) -> StreamingResponse:
    """Return the traces that match the query of the list as a download. Raises NotFound for an
    unknown agent, ConfigError for an unknown filter."""
    query = asked.parsed(ListQuery)
    write = FORMS[form]
    name = f"{asked.agent.slug}-traces.{form}"
    headers = {"content-disposition": f'attachment; filename="{name}"', **HEADERS, **PRIVATE}
    return StreamingResponse(
        write(_matching(asked, query)), headers=headers, media_type=MEDIA[form]
    )


def replay_response(asked: PageRequest) -> Response:
    """Return all pairs of a replay as a CSV file."""
    replay = show_replay(asked.ws, asked.agent, asked.parts["replay"])
    name = f"{asked.agent.slug}-{replay.id}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"', **HEADERS, **PRIVATE}
    return Response(csv_of(replay), headers=headers, media_type=MEDIA["csv"])


def _matching(asked: PageRequest, query: ListQuery) -> Iterator[TraceSummary]:
    """Yield every trace that matches, newest first."""
    slug, wanted = asked.agent.slug, query.wanted()
    after = None
    while True:
        page = list_traces(asked.ws, slug, wanted, limit=AT_ONCE, after=after)
        yield from page.traces
        after = page.after
        if after is None:
            return


def _json_lines(traces: Iterator[TraceSummary]) -> Iterator[str]:
    for trace in traces:
        yield json.dumps(_row(trace), ensure_ascii=False) + "\n"


def _csv_lines(traces: Iterator[TraceSummary]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line)
    has_heading = False
    for trace in traces:
        row = _row(trace)
        if not has_heading:
            writer.writerow(row)
            has_heading = True
        writer.writerow([cell(value) for value in row.values()])
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _row(trace: TraceSummary) -> dict[str, Any]:
    row = asdict(trace)
    for key in ("occurred_at", "recorded_at"):
        row[key] = None if row[key] is None else row[key].isoformat()
    return row


FORMS: Mapping[str, Callable[[Iterator[TraceSummary]], Iterator[str]]] = {
    "csv": _csv_lines,
    "jsonl": _json_lines,
}
