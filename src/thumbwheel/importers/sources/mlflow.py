"""MLflow: traces and assessments of a running server, by its REST API (3.0 and later), or in files:
`mlflow traces search --output json`, `Trace.to_json()`, and the rows of `search_traces()`.

A feedback becomes an opinion where its name says so (`importers/opinions.py`), else a label. An
expectation of the response, which a person wrote, is a correction; any other is a label.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from thumbwheel.importers.fields import is_empty, moment, name_of, object_at, objects_at, unpacked
from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.marks import Scales, plain
from thumbwheel.importers.messages import answer_fields
from thumbwheel.importers.opinions import OPINIONS, judgement, named_opinions
from thumbwheel.importers.otlp.assemble import NoRun, runs_of, target_of
from thumbwheel.importers.otlp.server_traces import (
    ListedTrace,
    Loaded,
    SpanJudgement,
    first_start,
    items_of_pages,
)
from thumbwheel.importers.otlp.span import Span, otlp_json_spans
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.server_api import (
    Connection,
    NotAnswered,
    ServerApi,
    checked,
    connected,
    is_server,
)
from thumbwheel.importers.source import Item, Refused, Row, item_of, numbered
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Records,
    TargetRef,
    TraceRecord,
    Unreadable,
    explain,
    parse_time,
)
from thumbwheel.importers.wrapped import answer_in, prompt_in

EXPERIMENT = "experiment"
PAGE = 200
"""Traces of one page of the list; a server takes up to 500."""
RATERS = {"HUMAN": "person", "LLM_JUDGE": "model", "CODE": "checker"}
RESPONSES = ("expected-response", "expected-answer", "expected-output")
"""Names of an expectation that is the whole right answer, as `plain` spells them."""


@dataclass(frozen=True)
class Mlflow:
    """The source. `?experiment=NAME` of the address names the experiment, where there are several
    with traces."""

    connection: Connection = field(default_factory=Connection)
    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)
    example: str = "http://127.0.0.1:5000/?experiment=support"
    about: str = (
        "traces and assessments of a running MLflow: thumbwheel import mlflow "
        "http://127.0.0.1:5000 --agent AGENT --key NAME"
    )
    reason: str = "a trace with its info and spans, or a row of search_traces"

    def claims(self, row: Row) -> bool:
        """Return whether the row is a trace with its info and spans, or a row of search_traces."""
        info = row.get("info")
        if isinstance(info, dict) and isinstance(row.get("data"), dict):
            return bool({"trace_id", "request_id"} & info.keys())
        keys = row.keys()
        is_row = {"request", "response"} <= keys and bool({"trace_id", "request_id"} & keys)
        return is_row and bool({"assessments", "spans", "request_time", "timestamp_ms"} & keys)

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is the address of a server."""
        return is_server(path)

    def connected(self, connection: Connection) -> Mlflow:
        return replace(self, connection=connection)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Mlflow:
        """Return a copy in which `columns` says which feedback name is a thumb, a rating or a
        score."""
        return replace(self, opinions={**self.opinions, **named_opinions(columns)}, scales=scales)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        if not is_server(path):
            for row in read_rows(path, on_position):
                if row.row is None:
                    yield Refused(row.number, row.reason, row.text)
                else:
                    yield item_of(row.number, row.text, partial(self._of_file, row.row))
            return
        with connected(path, "MLflow", [EXPERIMENT], self.connection.key) as api:
            experiment = _experiment(api)
            start = first_start(self.connection, api.url.since)
            pages = self._pages(api, experiment, start)
            yield from numbered(items_of_pages(pages, partial(_load, api), self.connection))

    def _pages(
        self, api: ServerApi, experiment: str, start: datetime | None
    ) -> Iterator[list[ListedTrace]]:
        """Yield the experiment's traces page by page, the oldest first."""
        request = _search(experiment, PAGE)
        request["order_by"] = ["timestamp_ms ASC"]
        if start:
            request["filter"] = f"timestamp_ms >= {int(start.timestamp() * 1000)}"
        token: str | None = ""
        while token is not None:
            reply = api.post("/api/3.0/mlflow/traces/search", request | {"page_token": token})
            rows = api.objects(reply, "traces")
            yield [self._listed(row) for row in rows]
            token = reply.get("next_page_token") or None

    def _of_file(self, row: Row) -> list[AnyRecord]:
        """Return the records of a trace in a file. If it has no spans, its request and response are
        the prompt and the answer. Raises Unreadable."""
        checked(dict(row))
        if not self.claims(row):
            raise Unreadable(
                "it is no trace: it has neither info and data nor request and response"
            )
        info = object_at(row, "info") or row
        trace_id = str(info.get("trace_id") or info.get("request_id"))
        data = object_at(row, "data")
        spans = []
        for span in unpacked(data.get("spans", row.get("spans"))) or []:
            span = unpacked(span)
            if isinstance(span, dict):
                spans.append(span)
        metadata = info.get("trace_metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        loaded = _spans(spans, trace_id, metadata)
        if isinstance(loaded, Unreadable):
            raise loaded
        started = moment(info.get("request_time") or info.get("timestamp_ms"))
        started_at = parse_time(started) if started is not None else None
        runs = []
        if loaded:
            with suppress(NoRun):
                runs = runs_of(loaded)
        traces = [run.trace for run in runs] or [_without_spans(row, info, trace_id, started_at)]
        records: list[AnyRecord] = [*traces]
        remarks = []
        for assessment in unpacked(info.get("assessments")) or []:
            if not isinstance(assessment, dict) or assessment.get("valid") is False:
                continue
            span_id = name_of(assessment.get("span_id"))
            target = target_of(runs, _hex(span_id)) if span_id else None
            target = target or TargetRef(kind="trace", id=trace_id)
            try:
                records.append(self._in_file(assessment, target, started_at))
            except ValidationError as error:
                remarks.append(f"an assessment was left out: {explain(error)}")
            except Unreadable as error:
                remarks.append(f"an assessment was left out: {error}")
        return Records(records, remarks)

    def _in_file(
        self, assessment: dict[str, Any], target: TargetRef, started_at: datetime | None
    ) -> FeedbackRecord:
        """Convert an assessment, which may have neither id nor time, to feedback."""
        said_at = assessment.get("last_update_time") or assessment.get("create_time")
        time = parse_time(moment(said_at)) if said_at is not None else started_at
        name = name_of(assessment.get("assessment_id"))
        if name and time:
            name = f"{name}/{time:%Y%m%dT%H%M%S.%f}"
        return self._feedback(assessment, name, time, target)

    def _listed(self, row: Row) -> ListedTrace:
        judgements = []
        for assessment in objects_at(row, "assessments"):
            is_overridden = assessment.get("valid") is False
            if not is_overridden and "issue" not in assessment:
                judgements.append(self._judgement(assessment))
        return ListedTrace(
            id=str(row.get("trace_id")),
            started_at=parse_time(row.get("request_time")),
            is_finished=row.get("state") != "IN_PROGRESS",
            text=json.dumps(row, ensure_ascii=False),
            judgements=judgements,
        )

    def _judgement(self, assessment: dict[str, Any]) -> SpanJudgement:
        time = parse_time(assessment.get("last_update_time") or assessment.get("create_time"))
        name = f"{assessment.get('assessment_id')}/{time:%Y%m%dT%H%M%S.%f}"
        span_id = name_of(assessment.get("span_id"))
        return SpanJudgement(name, span_id, partial(self._feedback, assessment, name, time))

    def _feedback(
        self,
        assessment: dict[str, Any],
        name: str | None,
        time: datetime | None,
        target: TargetRef,
    ) -> FeedbackRecord:
        about = str(assessment.get("assessment_name") or assessment.get("name") or "feedback")
        source = object_at(checked(assessment), "source")
        source_type, rater = str(source.get("source_type")), name_of(source.get("source_id"))
        if rater is None and source_type != "HUMAN":
            rater = f"{source_type}: {about}"
        shared = {
            "id": name,
            "targets": [target],
            "occurred_at": time,
            "rater": {"id": rater, "kind": RATERS.get(source_type)} if rater else None,
            "comment": name_of(assessment.get("rationale")),
        }
        return FeedbackRecord.model_validate(shared | self._signal(assessment, about, source_type))

    def _signal(self, assessment: Row, about: str, source_type: str) -> dict[str, Any]:
        expectation = object_at(assessment, "expectation")
        if expectation:
            value = expectation.get(
                "value", object_at(expectation, "serialized_value").get("value")
            )
            is_answer = plain(about) in RESPONSES and source_type == "HUMAN"
            if is_answer and isinstance(value, str):
                return {"kind": "correction", "value": value}
            return judgement(about, value, value, opinions={})
        feedback = object_at(assessment, "feedback")
        if feedback.get("error"):
            raise Unreadable(f"assessment {about!r} failed and says nothing")
        value = feedback.get("value")
        return judgement(about, value, value, self.opinions, self.scales)


def _without_spans(row: Row, info: Row, trace_id: str, started_at: datetime | None) -> TraceRecord:
    """Build the trace from a request and its response. Raises Unreadable if there is no request."""
    asked = next((part[key] for part, key in _said(row, info, "request")), None)
    answered = next((part[key] for part, key in _said(row, info, "response")), None)
    if asked is None:
        raise Unreadable("it has neither spans nor a request")
    fields = {
        "id": trace_id,
        "input": prompt_in(asked),
        "occurred_at": started_at,
    }
    if answered is not None:
        fields |= answer_fields(answer_in(answered))
    return TraceRecord.model_validate(fields)


def _said(row: Row, info: Row, what: str) -> Iterator[tuple[Row, str]]:
    """Yield (object, key) for every place with a request or response that is not empty."""
    data = object_at(row, "data")
    for part, key in ((row, what), (data, what), (info, what), (info, f"{what}_preview")):
        if not is_empty(part.get(key)):
            yield part, key


def _search(experiment: str, limit: int) -> dict[str, Any]:
    location = {
        "type": "MLFLOW_EXPERIMENT",
        "mlflow_experiment": {"experiment_id": experiment},
    }
    return {"locations": [location], "max_results": limit}


def _experiment(api: ServerApi) -> str:
    """Return the id of the experiment in the address, else of the only experiment with traces.
    Raises InputError, which lists the experiments, if none or several match."""
    wanted = api.url.parameters.get(EXPERIMENT)
    experiments = list(_experiments(api))
    if wanted is not None:
        for experiment in experiments:
            if wanted in (experiment.get("name"), experiment.get("experiment_id")):
                return str(experiment["experiment_id"])
    else:
        experiments = [row for row in experiments if _has_traces(api, str(row["experiment_id"]))]
        if len(experiments) == 1:
            return str(experiments[0]["experiment_id"])
    raise api.ambiguous(EXPERIMENT, wanted, [str(row.get("name")) for row in experiments])


def _experiments(api: ServerApi) -> Iterator[dict[str, Any]]:
    token: str | None = ""
    while token is not None:
        request = {"max_results": 500, "page_token": token}
        reply = api.post("/api/2.0/mlflow/experiments/search", request)
        yield from api.objects(reply, "experiments")
        token = reply.get("next_page_token") or None


def _has_traces(api: ServerApi, experiment: str) -> bool:
    reply = api.post("/api/3.0/mlflow/traces/search", _search(experiment, 1))
    return bool(api.objects(reply, "traces"))


def _load(api: ServerApi, trace_ids: Collection[str]) -> dict[str, Loaded]:
    """Return the spans of each of these traces by MLflow's trace id."""
    try:
        parameters = {"trace_ids": list(trace_ids)}
        reply = api.get("/api/3.0/mlflow/traces/batchGet", parameters)
    except NotAnswered:
        # an older client put the spans of some of them into files, which this question cannot read
        return {trace_id: _load_file(api, trace_id) for trace_id in trace_ids}
    spans_by_trace = {}
    for row in api.objects(reply, "traces"):
        info = object_at(row, "trace_info")
        trace_id = str(info.get("trace_id"))
        metadata = object_at(info, "trace_metadata")
        spans_by_trace[trace_id] = _spans(objects_at(row, "spans"), trace_id, metadata)
    return spans_by_trace


def _load_file(api: ServerApi, trace_id: str) -> Loaded:
    try:
        info = api.get(f"/api/3.0/mlflow/traces/{quote(trace_id, safe='')}")
        file = api.get("/ajax-api/2.0/mlflow/get-trace-artifact", {"request_id": trace_id})
    except NotAnswered as error:
        return Unreadable(error.why)
    trace_info = object_at(object_at(info, "trace"), "trace_info")
    return _spans(api.objects(file, "spans"), trace_id, object_at(trace_info, "trace_metadata"))


def _spans(rows: Sequence[dict[str, Any]], trace_id: str, metadata: Mapping[str, Any]) -> Loaded:
    try:
        return [replace(_span(checked(row)), trace_id=trace_id, resource=metadata) for row in rows]
    except Unreadable as error:
        return error


def _span(row: dict[str, Any]) -> Span:
    """Parse an OTLP span from protobuf's JSON: names in snake case, ids in base64. In a file its
    attributes are an object of JSON texts."""
    attributes = row.get("attributes")
    in_file = isinstance(attributes, Mapping)
    span = _camel_case({**row, "attributes": [], "events": []} if in_file else row)
    for key in ("traceId", "spanId", "parentSpanId"):
        if span.get(key):
            span[key] = _hex(span[key], 32 if key == "traceId" else 16)
    (otlp_span,) = otlp_json_spans({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    if not isinstance(attributes, Mapping):
        return otlp_span
    values = {str(name): unpacked(value) for name, value in attributes.items()}
    return replace(otlp_span, attributes=values)


def _camel_case(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_camel(key): _camel_case(part) for key, part in value.items()}
    return list(map(_camel_case, value)) if isinstance(value, list) else value


def _camel(key: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), key)


def _hex(text: Any, length: int = 16) -> str:
    """Return a span id as hexadecimal digits: decoded from base64 as protobuf writes it, unchanged
    if it is hexadecimal as in MLflow 2, else a hash cut to `length` digits. Raises Unreadable if it
    is no text."""
    if not isinstance(text, str):
        raise Unreadable(f"{text!r} is no id")
    digits = text.removeprefix("0x")
    if re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{32}", digits):
        return digits
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if len(decoded) in (8, 16):
        return decoded.hex()
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:length]


SOURCE = Mlflow()
