"""Phoenix (Arize): traces and annotations of a running server, by its REST API.

Its spans follow OpenInference. An annotation of a trace, or of a span of it, becomes an opinion
where its name says so (`importers/opinions.py`), else a label.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from thumbwheel.importers.fields import name_of, object_at, objects_at
from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.marks import Scales
from thumbwheel.importers.opinions import OPINIONS, judgement, named_opinions
from thumbwheel.importers.otlp.server_traces import (
    ListedTrace,
    Loaded,
    SpanJudgement,
    first_start,
    items_of_pages,
)
from thumbwheel.importers.otlp.span import Span, sdk_span
from thumbwheel.importers.server_api import Connection, ServerApi, checked, connected, is_server
from thumbwheel.importers.source import Item, Row, numbered
from thumbwheel.importers.types import FeedbackRecord, TargetRef, Unreadable, parse_time

PROJECT = "project"
PAGE = 100
"""Traces of one page of the list."""
MANY = 1_000
"""Rows of other pages; also how many spans a question about annotations may name."""
IN_ADDRESS = 100
"""Ids in one question: they stand in its address, which servers bound."""
RATERS = {"HUMAN": "person", "LLM": "model", "CODE": "checker"}


@dataclass(frozen=True)
class Phoenix:
    """The source. `?project=NAME` of the address names the project, where there are several with
    traces."""

    connection: Connection = field(default_factory=Connection)
    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)
    example: str = "http://127.0.0.1:6006/?project=support"
    about: str = (
        "traces and annotations of a running Phoenix: thumbwheel import phoenix "
        "http://127.0.0.1:6006 --agent AGENT --key NAME"
    )

    def claims(self, row: Row) -> bool:
        """Return False: the source reads servers only."""
        return False

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is the address of a server."""
        return is_server(path)

    def connected(self, connection: Connection) -> Phoenix:
        return replace(self, connection=connection)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Phoenix:
        """Return a copy in which `columns` says which annotation name is a thumb, a rating or a
        score."""
        return replace(self, opinions={**self.opinions, **named_opinions(columns)}, scales=scales)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        with connected(path, "Phoenix", [PROJECT], self.connection.key) as api:
            project = f"/v1/projects/{quote(_project(api), safe='')}"
            start = first_start(self.connection, api.url.since)
            pages = self._pages(api, project, start)
            load = partial(_load, api, project)
            yield from numbered(items_of_pages(pages, load, self.connection))

    def _pages(
        self, api: ServerApi, project: str, start: datetime | None
    ) -> Iterator[list[ListedTrace]]:
        """Yield the project's traces page by page, the oldest first."""
        parameters: dict[str, Any] = {"order": "asc", "limit": PAGE, "include_spans": "true"}
        if start:
            parameters["start_time"] = start.isoformat()
        for rows in _pages_of(api, f"{project}/traces", parameters):
            yield self._listed(api, project, rows)

    def _listed(
        self, api: ServerApi, project: str, rows: Sequence[dict[str, Any]]
    ) -> list[ListedTrace]:
        trace_of_span = {}
        for row in rows:
            for span in objects_at(row, "spans"):
                trace_of_span[str(span.get("span_id"))] = str(row.get("trace_id"))
        judgements: dict[str, list[SpanJudgement]] = {str(row.get("trace_id")): [] for row in rows}
        for annotation in _annotations(
            api, f"{project}/trace_annotations", "trace_ids", judgements
        ):
            judgements[str(annotation.get("trace_id"))].append(self._judgement(annotation, "trace"))
        spans_url = f"{project}/span_annotations"
        for annotation in _annotations(api, spans_url, "span_ids", trace_of_span):
            trace_id = trace_of_span[str(annotation.get("span_id"))]
            judgements[trace_id].append(self._judgement(annotation, "span"))
        return [
            ListedTrace(
                id=trace_id,
                started_at=parse_time(row.get("start_time")),
                is_finished=True,  # a span is sent when it has ended
                text=json.dumps(row, ensure_ascii=False),
                judgements=judgements[trace_id],
            )
            for trace_id, row in zip(judgements, rows, strict=True)
        ]

    def _judgement(self, annotation: dict[str, Any], kind: str) -> SpanJudgement:
        time = parse_time(annotation.get("updated_at") or annotation.get("created_at"))
        name = f"{kind}:{annotation.get('id')}/{time:%Y%m%dT%H%M%S.%f}"
        span_id = name_of(annotation.get("span_id"))
        return SpanJudgement(name, span_id, partial(self._feedback, annotation, name, time))

    def _feedback(
        self, annotation: dict[str, Any], name: str, time: datetime, target: TargetRef
    ) -> FeedbackRecord:
        about = str(checked(annotation).get("name") or "annotation")
        annotator = str(annotation.get("annotator_kind"))
        rater = name_of(annotation.get("user_id"))
        if annotator != "HUMAN":
            rater = f"{annotator}: {about}"
        result = object_at(annotation, "result")
        shared = {
            "id": name,
            "targets": [target],
            "occurred_at": time,
            "rater": {"id": rater, "kind": RATERS.get(annotator)} if rater else None,
            "comment": result.get("explanation") or None,
            "metadata": object_at(annotation, "metadata") or None,
        }
        score, label = result.get("score"), result.get("label")
        signal = judgement(about, score, label, self.opinions, self.scales)
        return FeedbackRecord.model_validate(shared | signal)


def _pages_of(
    api: ServerApi, path: str, parameters: Mapping[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a list, at least one."""
    cursor: str | None = ""
    while cursor is not None:
        page = dict(parameters) | ({"cursor": cursor} if cursor else {})
        reply = api.get(path, page)
        yield api.objects(reply, "data")
        cursor = reply.get("next_cursor") or None


def _annotations(
    api: ServerApi, path: str, parameter: str, ids: Iterable[str]
) -> Iterator[dict[str, Any]]:
    distinct = list(ids)
    for start in range(0, len(distinct), IN_ADDRESS):
        part = distinct[start : start + IN_ADDRESS]
        parameters = {parameter: part, "limit": MANY}
        for rows in _pages_of(api, path, parameters):
            yield from rows


def _project(api: ServerApi) -> str:
    """Return the id of the project in the address, else of the only project with traces. Raises
    InputError, which lists the projects, if none or several match."""
    wanted = api.url.parameters.get(PROJECT)
    projects = []
    for rows in _pages_of(api, "/v1/projects", {"limit": MANY}):
        projects += rows
    if wanted is not None:
        for project in projects:
            if wanted in (project.get("name"), project.get("id")):
                return str(project["id"])
    else:
        projects = [project for project in projects if _has_traces(api, str(project["id"]))]
        if len(projects) == 1:
            return str(projects[0]["id"])
    raise api.ambiguous(PROJECT, wanted, [str(project.get("name")) for project in projects])


def _has_traces(api: ServerApi, project: str) -> bool:
    path = f"/v1/projects/{quote(project, safe='')}/traces"
    return bool(api.objects(api.get(path, {"limit": 1}), "data"))


def _load(api: ServerApi, project: str, trace_ids: Collection[str]) -> dict[str, Loaded]:
    spans_by_trace: dict[str, list[Span]] = {trace_id: [] for trace_id in trace_ids}
    problems: dict[str, Loaded] = {}
    parameters = {"trace_id": list(trace_ids), "order": "asc", "limit": MANY}
    for rows in _pages_of(api, f"{project}/spans", parameters):
        for row in rows:
            trace_id = str(object_at(row, "context").get("trace_id"))
            try:
                span = sdk_span(checked(row))
            except Unreadable as error:
                problems[trace_id] = error
                continue
            kind = row.get("span_kind")
            if kind and "openinference.span.kind" not in span.attributes:
                attributes = {**span.attributes, "openinference.span.kind": kind}
                span = replace(span, attributes=attributes)
            spans_by_trace.setdefault(trace_id, []).append(span)
    return {**spans_by_trace, **problems}


SOURCE = Phoenix()
