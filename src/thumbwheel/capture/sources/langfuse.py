"""Langfuse: a trace as downloaded ({trace, observations}), rows of the exported tables of traces
and of scores, pages of its API.

Input and output are opened whatever framework wrote them: chats, prompts, parts, JSON in a text.
Observations become steps. A correction is a correction. Of the scores only those that are named as
opinions (OPINIONS, or `--column score=NAME`, `thumb=`, `rating=`) are taken as such; any other
score, say toxicity or a judge's metric, is kept as a label with its value as text, because nobody
says whether more of it is better. A trace without input and output of its own has those of its
observations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thumbwheel.capture.fields import (
    chat,
    content_text,
    is_chat,
    moment,
    name_of,
    number_of,
    object_at,
    objects_at,
    unpacked,
)
from thumbwheel.capture.mapping import Scales
from thumbwheel.capture.opinions import OPINIONS, plain
from thumbwheel.capture.rowfile import FileRow
from thumbwheel.capture.source import Item, JsonLines, Parse, Row
from thumbwheel.capture.types import (
    SCALES,
    AnyRecord,
    FeedbackRecord,
    Scale,
    StepRecord,
    TargetRef,
    Tokens,
    TraceRecord,
    Unreadable,
    parse_time,
)

KINDS = {"GENERATION": "llm", "EMBEDDING": "llm", "TOOL": "tool"}
RATERS = {"ANNOTATION": "person", "EVAL": "model"}
EXAMPLE = (
    '{"trace": {"id": "t1", "timestamp": "2026-01-05T09:00:00.000Z", "input": "\\"Hi\\"", '
    '"output": "\\"Hello!\\"", "sessionId": "s1",'
    ' "userId": "u1", "scores": [{"id": "x1", "traceId": "t1", "name": "user-feedback", "value": '
    '1, "dataType": "NUMERIC", "source":'
    ' "API", "comment": null}], "corrections": []}, "observations": []}\n'
    '{"id": "x2", "trace_id": "t1", "name": "rating", "value": 4, "data_type": "NUMERIC", '
    '"source": "ANNOTATION"}'
)


def claims(row: Row) -> bool:
    """A trace with its observations, a row of one of the tables, or a page of the API."""
    keys = {_camel(key) for key in row}
    if {"trace", "observations"} <= keys:
        return True
    if {"name", "dataType"} <= keys and {"traceId", "sessionId", "observationId"} & keys:
        return True  # a score
    if {"id", "timestamp", "input", "output"} <= keys:
        return bool({"sessionId", "userId", "tags", "release"} & keys)  # a trace
    return {"data", "meta"} == keys and isinstance(row["data"], list)


@dataclass(frozen=True)
class Langfuse(JsonLines):
    """The source with the names of scores that are opinions."""

    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Langfuse:
        """The same, where `columns` says which name of a score is a thumb, a rating or a score."""
        named = {plain(name): kind for kind, name in columns.items()}
        mapped = replace(self, opinions={**self.opinions, **named}, scales=scales)
        return replace(mapped, parse=mapped.records)

    def items(self, rows: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """The elements of a page are rows too, so that one that cannot be taken costs no other."""
        return super().items(_unpaged(rows), parse)

    def records(self, row: dict[str, Any]) -> list[AnyRecord]:
        """The records of a row of any form."""
        if "trace" in row and "observations" in row:
            trace = _cameled(object_at(row, "trace"))
            observations = objects_at(row, "observations") or objects_at(trace, "observations")
            return self._trace(trace, observations)
        row = _cameled(row)
        if "dataType" in row:
            return [self._score(row, None)]
        return self._trace(row, _objects(row.get("observations")))

    def _trace(self, row: Row, observations: list[dict[str, Any]]) -> list[AnyRecord]:
        name = name_of(row.get("id"))
        if name is None:
            raise Unreadable("it has no id of a trace")
        observations = [_cameled(observation) for observation in observations]
        observations.sort(key=lambda observation: str(observation.get("startTime")))
        roots = [step for step in observations if not step.get("parentObservationId")]
        calls = [step for step in observations if step.get("type") == "GENERATION"]

        # what the trace does not say itself, its observations do
        inputs = [row.get("input"), *(step.get("input") for step in [*roots, *calls])]
        outputs = [row.get("output"), *(step.get("output") for step in [*roots, *calls[::-1]])]
        prompt, answer = _first(inputs), _first(outputs)
        if prompt is None:
            raise Unreadable("neither the trace nor an observation of it holds an input")
        keys = ("name", "tags", "release", "version", "environment")
        metadata = {key: row[key] for key in keys if row.get(key)}
        for call in calls:
            tools = _tools(call.get("input"))
            if tools:
                metadata["tools"] = tools
                break
        fields = {
            "id": name,
            "session": name_of(row.get("sessionId")),
            "subject": name_of(row.get("userId")),
            "input": _messages(prompt),
            "output": None if answer is None else _answer(answer),
            "steps": list(map(_step, observations)) or [{}],
            "occurred_at": moment(row.get("timestamp")),
            "metadata": metadata or None,
        }
        scores = [*_objects(row.get("scores")), *_objects(row.get("corrections"))]
        feedback = [self._score(_cameled(score), name) for score in scores]
        return [TraceRecord.model_validate(fields), *feedback]

    def _score(self, row: Row, trace: str | None) -> FeedbackRecord:
        """A score that was changed since has another time, so it is another one, and the newest of
        a rater counts."""
        score_name, data_type, origin = row.get("name"), row.get("dataType"), row.get("source")
        target = _target(row, trace)
        time = moment(row.get("updatedAt") or row.get("timestamp"))
        time = parse_time(time) if time is not None else None  # written in two ways
        rater = name_of(row.get("authorUserId"))
        if not rater and origin == "EVAL":
            rater = f"{origin}: {score_name}"
        score_id = name_of(row.get("id"))
        if score_id and time:
            score_id = f"{score_id}/{time:%Y%m%dT%H%M%S.%f}"
        shared = {
            "id": score_id,
            "targets": [target],
            "occurred_at": time,
            "rater": {"id": rater, "kind": RATERS.get(str(origin))} if rater else None,
            "comment": row.get("comment") or None,
        }

        text = row.get("longStringValue") or row.get("stringValue")
        is_edited = score_name == "output" and row.get("longStringValue")
        if data_type == "CORRECTION" or (data_type != "CATEGORICAL" and is_edited):
            signal = {"kind": "correction", "value": text}
        elif data_type == "CATEGORICAL" or (data_type == "TEXT" and text):
            signal = {"kind": "label", "name": score_name, "value": text}
        else:
            signal = self._numeric(str(score_name), row.get("value"), data_type == "BOOLEAN")
        return FeedbackRecord.model_validate(shared | signal)

    def _numeric(self, name: str, number: Any, is_boolean: bool) -> dict[str, Any]:
        value = number_of(number, f"score {name}")
        opinion = self.opinions.get(plain(name))
        if is_boolean and not opinion:
            return {"kind": "label", "name": name, "value": value > 0}
        if is_boolean or (opinion == "thumb" and value in (1, 0, -1)):
            return {"kind": "thumb", "value": value > 0}
        if opinion is None:
            return {"kind": "label", "name": name, "value": f"{value:g}"}
        kind = "score" if opinion == "thumb" else opinion
        low, high = self.scales.get(name) or self.scales.get(kind) or SCALES[kind]
        if not low <= value <= high:
            raise Unreadable(
                f"score {name} {value:g} is outside {low:g} to {high:g}; another scale: --scale "
                f"{name}=LOW:HIGH"
            )
        return {"kind": kind, "value": value, "scale": Scale(min=low, max=high)}


def _unpaged(rows: Iterator[FileRow]) -> Iterator[FileRow]:
    """Rows, and the elements of pages of them, numbered on."""
    shift = 0
    for row in rows:
        page = None
        if row.row is not None and row.row.keys() <= {"data", "meta"}:
            page = row.row.get("data")
        if not isinstance(page, list):
            yield replace(row, number=row.number + shift)
            continue
        for index, element in enumerate(page):
            number, text = row.number + shift + index, json.dumps(element, ensure_ascii=False)
            if isinstance(element, dict):
                yield FileRow(number, element, text)
            else:
                yield FileRow(number, None, text, "it is no object")
        shift += len(page) - 1


def _camel(key: str) -> str:
    head, *parts = key.split("_")
    return head + "".join(part.capitalize() for part in parts)


def _cameled(row: Row) -> dict[str, Any]:
    """Exports to blob storage and API rows spell their keys in two ways."""
    return {_camel(key): value for key, value in row.items()}


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list, which may be JSON in a text; none where it is no list."""
    elements = unpacked(value)
    if not isinstance(elements, list):
        return []
    return [element for element in elements if isinstance(element, dict)]


def _first(values: list[Any]) -> Any:
    """The first value that is not empty."""
    opened = map(unpacked, values)
    return next((value for value in opened if value not in (None, "", [], {})), None)


def _target(row: Row, trace: str | None) -> TargetRef:
    trace = trace or name_of(row.get("traceId"))
    if trace:
        return TargetRef(kind="trace", id=trace)
    session = name_of(row.get("sessionId"))
    if session is None:
        raise Unreadable("the score names neither a trace nor a session")
    return TargetRef(kind="session", id=session)


def _messages(value: Any) -> list[dict[str, Any]]:
    """The chat that an input of any framework holds; what is unknown is the JSON that was given."""
    value = unpacked(value)
    if is_chat(value):
        return chat(value)
    if isinstance(value, dict):
        for key in ("messages", "contents", "prompt", "input", "query", "question"):
            inner = unpacked(value.get(key))
            if is_chat(inner) or (isinstance(inner, str) and inner):
                return _messages(inner)
        arguments = unpacked(value.get("args"))
        if is_chat(arguments) or (isinstance(arguments, str) and arguments):
            return _messages(arguments)
        if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str):
            return _messages(arguments[0])
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [{"role": "user", "content": text}]


def _answer(value: Any) -> str:
    """The text that an output of any framework holds; what is unknown is the JSON that was
    given."""
    value = unpacked(value)
    answer = value
    if is_chat(value):
        replies = [message for message in value if message.get("role") in ("assistant", "model")]
        texts = [text for text in map(content_text, replies) if text]
        answer = texts[-1] if texts else value
    elif isinstance(value, dict):
        wrapped = _wrapped_answer(value)
        answer = value if wrapped is None else wrapped
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _wrapped_answer(output: Row) -> str | None:
    """The text in an object that a model's API or a framework returned."""
    for key in ("choices", "candidates"):
        if isinstance(output.get(key), list) and output[key]:
            return content_text(output[key][0]) or None
    for key in ("output", "response", "answer", "raw"):
        if isinstance(output.get(key), str):
            return str(output[key])
    return content_text(output) or None


def _tools(value: Any) -> list[Any] | None:
    value = unpacked(value)
    tools = value.get("tools") if isinstance(value, dict) else None
    is_list = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    return tools if is_list and tools else None


def _step(row: Row) -> dict[str, Any]:
    kind = KINDS.get(str(row.get("type")), "task")
    fields = {
        "kind": kind,
        "name": row["name"][:512] if isinstance(row.get("name"), str) else None,
        "input": unpacked(row.get("input")),
        "output": unpacked(row.get("output")),
        "status": "error" if row.get("level") == "ERROR" else "ok",
        "started_at": moment(row.get("startTime")),
        "ended_at": moment(row.get("endTime")),
    }
    step = StepRecord.model_validate(fields).model_dump()
    if kind != "llm":
        return step
    usage = unpacked(row.get("usageDetails"))
    counts = {}
    if isinstance(usage, dict):
        names = {"prompt": "input", "completion": "output"}
        counts = {key: usage[name] for key, name in names.items() if type(usage.get(name)) is int}
    sampling = unpacked(row.get("modelParameters"))
    return step | {
        "served_model": name_of(row.get("model")),
        "sampling": sampling if isinstance(sampling, dict) else None,
        "tokens": Tokens.model_validate(counts) if counts else None,
    }


SOURCE = Langfuse(Langfuse.records, claims, EXAMPLE).with_mapping({}, {})  # type: ignore[arg-type]
