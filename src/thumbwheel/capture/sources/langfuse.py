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
import re
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

OPINIONS: Mapping[str, str] = {
    "user-feedback": "thumb",
    "feedback": "thumb",
    "thumbs": "thumb",
    "thumb": "thumb",
    "user-rating": "rating",
    "rating": "rating",
    "stars": "rating",
    "user-score": "score",
    "quality": "score",
    "helpfulness": "score",
    "correctness": "score",
}
"""Name of a score in small letters with hyphens -> the kind of opinion that it is."""
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
    score = {"name", "dataType"} <= keys and bool({"traceId", "sessionId", "observationId"} & keys)
    trace = {"id", "timestamp", "input", "output"} <= keys and bool(
        {"sessionId", "userId", "tags", "release"} & keys
    )
    return (
        {"trace", "observations"} <= keys
        or score
        or trace
        or ({"data", "meta"} == keys and isinstance(row["data"], list))
    )


@dataclass(frozen=True)
class Langfuse(JsonLines):
    """The source with the names of scores that are opinions."""

    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Langfuse:
        """The same, where `columns` says which name of a score is a thumb, a rating or a score."""
        told = {_plain(name): kind for kind, name in columns.items()}
        own = replace(self, opinions={**self.opinions, **told}, scales=scales)
        return replace(own, parse=own.records)

    def items(self, found: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """The elements of a page are rows of their own, so that one that cannot be taken costs no
        other."""
        return super().items(_unpaged(found), parse)

    def records(self, row: dict[str, Any]) -> list[AnyRecord]:
        """The records of a row of any form."""
        if "trace" in row and "observations" in row:
            trace = _cameled(object_at(row, "trace"))
            return self._trace(
                trace, objects_at(row, "observations") or objects_at(trace, "observations")
            )
        row = _cameled(row)
        if "dataType" in row:
            return [self._score(row, None)]
        return self._trace(
            row, [one for one in _list(row.get("observations")) if isinstance(one, dict)]
        )

    def _trace(self, row: Row, observations: list[dict[str, Any]]) -> list[AnyRecord]:
        name = name_of(row.get("id"))
        if name is None:
            raise Unreadable("it has no id of a trace")
        seen = sorted(
            (_cameled(one) for one in observations), key=lambda one: str(one.get("startTime"))
        )
        calls = [one for one in seen if one.get("type") == "GENERATION"]
        given = _first([row.get("input"), *(one.get("input") for one in [*_roots(seen), *calls])])
        answer = _first(
            [row.get("output"), *(one.get("output") for one in [*_roots(seen), *calls[::-1]])]
        )
        if given is None:
            raise Unreadable("neither the trace nor an observation of it holds an input")
        about = {
            key: row[key]
            for key in ("name", "tags", "release", "version", "environment")
            if row.get(key)
        }
        tools = next((found for one in calls if (found := _tools(one.get("input")))), None)
        fields = {
            "id": name,
            "session": name_of(row.get("sessionId")),
            "subject": name_of(row.get("userId")),
            "input": _asked(given),
            "output": None if answer is None else _answer(answer),
            "steps": [_step(one) for one in seen] or [{}],
            "occurred_at": moment(row.get("timestamp")),
            "metadata": (about | ({"tools": tools} if tools else {})) or None,
        }
        scores = _list(row.get("scores"))
        judged = [
            self._score(_cameled(one), name)
            for one in [*scores, *_list(row.get("corrections"))]
            if isinstance(one, dict)
        ]
        return [TraceRecord.model_validate(fields), *judged]

    def _score(self, row: Row, trace: str | None) -> FeedbackRecord:
        """A score that was changed since has another time, so it is another one, and the newest of
        a rater counts."""
        called, kind = row.get("name"), row.get("dataType")
        target, source, at = (
            _target(row, trace),
            row.get("source"),
            moment(row.get("updatedAt") or row.get("timestamp")),
        )
        at = parse_time(at) if at is not None else None  # tables and downloads write it in two ways
        rater = name_of(row.get("authorUserId")) or (
            f"{source}: {called}" if source == "EVAL" else None
        )
        name = name_of(row.get("id"))
        shared = {
            "id": f"{name}/{at:%Y%m%dT%H%M%S.%f}" if name and at else name,
            "targets": [target],
            "occurred_at": at,
            "rater": {"id": rater, "kind": RATERS.get(str(source))} if rater else None,
            "comment": row.get("comment") or None,
        }
        text = row.get("longStringValue") or row.get("stringValue")
        if kind == "CORRECTION" or (
            kind != "CATEGORICAL" and called == "output" and row.get("longStringValue")
        ):
            return FeedbackRecord.model_validate(shared | {"kind": "correction", "value": text})
        if kind == "CATEGORICAL" or (kind == "TEXT" and text):
            return FeedbackRecord.model_validate(
                shared | {"kind": "label", "name": called, "value": text}
            )
        return FeedbackRecord.model_validate(
            shared | self._numeric(str(called), row.get("value"), kind == "BOOLEAN")
        )

    def _numeric(self, name: str, given: Any, boolean: bool) -> dict[str, Any]:
        value = number_of(given, f"score {name}")
        opinion = self.opinions.get(_plain(name))
        if boolean or (opinion == "thumb" and value in (1, 0, -1)):
            return (
                {"kind": "thumb", "value": value > 0}
                if opinion
                else {"kind": "label", "name": name, "value": value > 0}
            )
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


def _unpaged(found: Iterator[FileRow]) -> Iterator[FileRow]:
    """Rows, and what stands in pages of them, numbered on."""
    more = 0
    for one in found:
        page = (
            one.row.get("data")
            if one.row is not None and one.row.keys() <= {"data", "meta"}
            else None
        )
        if not isinstance(page, list):
            yield replace(one, number=one.number + more)
            continue
        for place, row in enumerate(page):
            known = row if isinstance(row, dict) else None
            yield FileRow(
                one.number + more + place,
                known,
                json.dumps(row, ensure_ascii=False),
                "" if known else "it is no object",
            )
        more += len(page) - 1


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().casefold())


def _camel(key: str) -> str:
    head, *parts = key.split("_")
    return head + "".join(part.capitalize() for part in parts)


def _cameled(row: Row) -> dict[str, Any]:
    """Exports to blob storage and API rows spell their keys in two ways."""
    return {_camel(key): value for key, value in row.items()}


def _list(value: Any) -> list[Any]:
    value = unpacked(value)
    return value if isinstance(value, list) else []


def _roots(observations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in observations if not one.get("parentObservationId")]


def _first(values: list[Any]) -> Any:
    return next(
        (found for one in values if (found := unpacked(one)) not in (None, "", [], {})), None
    )


def _target(row: Row, trace: str | None) -> TargetRef:
    found = trace or name_of(row.get("traceId"))
    if found:
        return TargetRef(kind="trace", id=found)
    session = name_of(row.get("sessionId"))
    if session is None:
        raise Unreadable("the score names neither a trace nor a session")
    return TargetRef(kind="session", id=session)


def _asked(value: Any) -> list[dict[str, Any]]:
    """The chat that an input of any framework holds; what is unknown is the JSON that was given."""
    value = unpacked(value)
    if is_chat(value):
        return chat(value)
    if isinstance(value, dict):
        for key in ("messages", "contents", "prompt", "input", "query", "question", "args"):
            inner = unpacked(value.get(key))
            if is_chat(inner) or (isinstance(inner, str) and inner):
                return _asked(inner)
            if (
                key == "args"
                and isinstance(inner, list)
                and len(inner) == 1
                and isinstance(inner[0], str)
            ):
                return _asked(inner[0])
    return [
        {
            "role": "user",
            "content": value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        }
    ]


def _answer(value: Any) -> str:
    """The text that an output of any framework holds; what is unknown is the JSON that was given."""
    value = unpacked(value)
    if is_chat(value):
        answers = [
            text
            for one in value
            if one.get("role") in ("assistant", "model") and (text := content_text(one))
        ]
        value = answers[-1] if answers else value
    elif isinstance(value, dict):
        for key in ("choices", "candidates"):
            if isinstance(value.get(key), list) and value[key]:
                value = content_text(value[key][0]) or value
                break
        else:
            value = next(
                (
                    value[key]
                    for key in ("output", "response", "answer", "raw")
                    if isinstance(value.get(key), str)
                ),
                content_text(value) or value,
            )
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tools(value: Any) -> list[Any] | None:
    value = unpacked(value)
    tools = value.get("tools") if isinstance(value, dict) else None
    return (
        tools
        if isinstance(tools, list) and tools and all(isinstance(one, dict) for one in tools)
        else None
    )


def _step(row: Row) -> dict[str, Any]:
    kind = KINDS.get(str(row.get("type")), "task")
    usage = unpacked(row.get("usageDetails"))
    usage = usage if isinstance(usage, dict) else {}
    counts = {
        key: usage[name]
        for key, name in (("prompt", "input"), ("completion", "output"))
        if type(usage.get(name)) is int
    }
    step = StepRecord.model_validate(
        {
            "kind": kind,
            "name": row["name"][:512] if isinstance(row.get("name"), str) else None,
            "input": unpacked(row.get("input")),
            "output": unpacked(row.get("output")),
            "status": "error" if row.get("level") == "ERROR" else "ok",
            "started_at": moment(row.get("startTime")),
            "ended_at": moment(row.get("endTime")),
        }
    )
    if kind != "llm":
        return step.model_dump()
    sampling = unpacked(row.get("modelParameters"))
    more = {
        "served_model": name_of(row.get("model")),
        "sampling": sampling if isinstance(sampling, dict) else None,
    }
    return step.model_dump() | more | {"tokens": Tokens.model_validate(counts) if counts else None}


SOURCE = Langfuse(Langfuse.records, claims, EXAMPLE).with_mapping({}, {})  # type: ignore[arg-type]
