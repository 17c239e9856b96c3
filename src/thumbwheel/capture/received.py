"""What arrives over HTTP as lines of the inbox: checked as an import checks them, with an id for
each, so that whoever sent them can name them and may send them again.

Lives here: the meaning of bodies. Not here: HTTP (`routes.py`), spans (`otlp/`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.importers.fields import name_of, number_of
from thumbwheel.importers.json_text import json_value
from thumbwheel.importers.messages import converted
from thumbwheel.importers.opinions import judgement, langfuse_signal, opinion_of
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import RECEIVED, SOURCE
from thumbwheel.importers.types import FeedbackKind, Unreadable
from thumbwheel.importers.voice import Row, Voice

SHORT_TARGETS = ("trace", "session", "step")
"""Keys by which a judgement in the short form names its target."""
SIGNALS: tuple[str, ...] = tuple(FeedbackKind.__args__)  # type: ignore[attr-defined]
"""Keys by which a judgement in the short form says what it is."""
MOST_ROWS = 10_000
"""Rows of one request."""
MOST_TARGETS = 1_000
"""Targets of one request beyond two a row: each is a row of the database, and a name takes few
bytes."""


@dataclass
class Received:
    """The rows of a request: a line of the inbox and an id for each that can be stored, the reason
    for each other."""

    lines: list[bytes] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a complete row."""
        self.lines.append(json.dumps(row, ensure_ascii=False).encode("utf-8"))
        self.ids.append(str(row["id"]))

    def refuse(self, reason: str) -> None:
        self.refused.append({"index": len(self.ids), "reason": reason})
        self.ids.append(None)


Spell = Callable[[Row], Row]
"""A row of somebody's dialect as a line of ours; raises Unreadable."""


def rows_of(content: bytes, is_lines: bool) -> list[Any]:
    """Return the rows of a body: a JSON object, an array of them, or JSON lines. Raises
    Unreadable."""
    if is_lines:
        rows = [json_value(line) for line in content.splitlines() if line.strip()]
    else:
        value = json_value(content)
        rows = value if isinstance(value, list) else [value]
    if not rows:
        raise Unreadable("it holds no rows")
    if len(rows) > MOST_ROWS:
        raise Unreadable(f"it holds {len(rows):,} rows, more than the {MOST_ROWS:,} of one request")
    return rows


def count_further_targets(rows: Iterable[Any]) -> int:
    """Return how many targets the rows have beyond two each, which is a pair."""
    targets = (row.get("targets") for row in rows if isinstance(row, dict))
    return sum(max(0, len(names) - 2) for names in targets if isinstance(names, list))


def received(
    rows: Iterable[Any], spell: Spell, agent: str | None, key: str | None, voice: Voice
) -> Received:
    """Return the rows as lines of the inbox. `agent` is the agent of rows that name none; `key`,
    which the client repeats with the request, gives rows without an id the same id each time."""
    result = Received()
    for index, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise Unreadable(f"it is a JSON {type(row).__name__}, not an object")
            line = voice.spoken(spell(dict(row)))
            line.setdefault("agent", agent)
            line["agent"] = _slug(line["agent"])
            if line.get("id") in (None, ""):
                line["id"] = voice.row_name(key, index) if key else uuid.uuid4().hex
            if line.get("occurred_at") is None:
                line.pop("occurred_at", None)
                line[RECEIVED] = datetime.now(UTC).isoformat()
            _check(line)
        except Unreadable as error:
            result.refuse(str(error))
        else:
            result.add(line)
    return result


def trace_row(row: Row) -> Row:
    """Return a trace in the line format, with its type. Raises Unreadable for another type."""
    return {**row, "type": _type(row, "trace")}


def feedback_row(row: Row) -> Row:
    """Return a judgement in the line format; the row may have the short form `{"trace": id,
    "thumb": true}`, with any one signal and `rater`, `comment` and other keys of the line. Raises
    Unreadable."""
    row["type"] = _type(row, "feedback")
    for key in SHORT_TARGETS:
        if key in row:
            if "target" in row or "targets" in row:
                raise Unreadable(f"it has both {key} and target; give one of them")
            row["target"] = {key: row.pop(key)}
    if "kind" in row or row.get("retracts"):
        return row
    kinds = [kind for kind in SIGNALS if kind in row]
    if len(kinds) == 2 and "comment" in kinds:
        kinds.remove("comment")  # beside another signal it is that signal's remark
    if len(kinds) != 1:
        signals = ", ".join(SIGNALS)
        raise Unreadable(f"it has {len(kinds)} of {signals}; give one, or kind and value")
    (kind,) = kinds
    row["kind"], row["value"] = kind, row.pop(kind)
    return row


def tensorzero_row(row: Row) -> Row:
    """Return the feedback that clients of TensorZero's gateway post: `metric_name`, `inference_id`
    or `episode_id`, `value`, `tags`. Raises Unreadable."""
    metric = row.get("metric_name")
    if not isinstance(metric, str) or not metric:
        raise Unreadable(f"metric_name {metric!r} is no text")
    inference, episode = name_of(row.get("inference_id")), name_of(row.get("episode_id"))
    if (inference is None) == (episode is None):
        raise Unreadable("it names not exactly one of inference_id and episode_id")
    target = {"trace": inference} if inference else {"session": episode}
    line: Row = {"type": "feedback", "target": target, "id": row.get("id")}
    tags = row.get("tags")
    if isinstance(tags, dict) and tags:
        line["metadata"] = {"tags": tags}
    value = row.get("value")
    if metric == "comment":
        return {**line, "kind": "comment", "value": value}
    if metric == "demonstration":
        return {**line, "kind": "correction", "value": _demonstrated(value)}
    return {**line, **_measured(metric, value)}


def _demonstrated(value: Any) -> str:
    """Return the text of a demonstration: a text, blocks of content from chat functions, or the
    object of a JSON function. Raises Unreadable."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    (*_, message) = converted({"role": "assistant", "content": value})
    content = message.get("content")
    if message.get("tool_calls") or not isinstance(content, str) or not content:
        raise Unreadable("the demonstration is no text; a call of a tool cannot be a correction")
    return content


def langfuse_row(row: Row) -> Row:
    """Return the feedback for a score that clients of Langfuse post: `name`, `value`, `traceId` or
    `sessionId`, `dataType`, `comment`. Raises Unreadable."""
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise Unreadable(f"name {name!r} is no text")
    trace, session = name_of(row.get("traceId")), name_of(row.get("sessionId"))
    if trace is None and session is None:
        raise Unreadable("it names neither traceId nor sessionId")
    line: Row = {
        "type": "feedback",
        "target": {"trace": trace} if trace else {"session": session},
        "id": row.get("id"),
        "comment": row.get("comment"),
        "metadata": row.get("metadata"),
    }
    line = {key: value for key, value in line.items() if value is not None}
    value, data_type = row.get("value"), row.get("dataType")
    is_measure = data_type in (None, "NUMERIC", "BOOLEAN") and not isinstance(value, str)
    if is_measure and opinion_of(name) is None:
        if data_type == "BOOLEAN":
            value = number_of(value, f"score {name}") > 0
        return {**line, **_measured(name, value)}
    return {**line, **langfuse_signal(name, value, data_type)}


def langfuse_events(content: bytes) -> list[Row]:
    """Return the events of a batch that Langfuse's SDKs post. Raises Unreadable."""
    value = json_value(content)
    events = value.get("batch") if isinstance(value, dict) else None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise Unreadable("it is not an object with a batch of events")
    if len(events) > MOST_ROWS:
        raise Unreadable(f"it holds {len(events):,} events, more than the {MOST_ROWS:,} of one")
    return events


def langfuse_event_row(event: Row) -> Row:
    """Return the feedback for the score in an event. Raises Unreadable for an event of another
    type."""
    body = event.get("body")
    if event.get("type") != "score-create" or not isinstance(body, dict):
        raise Unreadable(
            f"type {event.get('type')!r} is not taken here, only score-create; spans go to "
            "/api/public/otel/v1/traces"
        )
    line = langfuse_row(body)
    if line.get("id") is None:
        line["id"] = event.get("id")
    if isinstance(event.get("timestamp"), str):
        line["occurred_at"] = event["timestamp"]
    return line


def _measured(name: str, value: Any) -> Row:
    """Return the signal for a named value: an opinion if the name is that of an opinion, else an
    outcome. A number outside 0 to 1 becomes a label, because it is unknown whether more of it is
    better."""
    if opinion_of(name) is not None:
        return judgement(name, value, None)
    if isinstance(value, bool):
        return {"kind": "outcome", "name": name, "value": value}
    number = number_of(value, f"metric {name}")
    if 0 <= number <= 1:
        return {"kind": "outcome", "name": name, "value": number}
    return {"kind": "label", "name": name, "value": f"{number:g}"}


def _type(row: Mapping[str, Any], expected: str) -> str:
    if row.get("type", expected) != expected:
        raise Unreadable(f"type {row['type']!r} is not {expected!r}, which is taken here")
    return expected


def _slug(agent: Any) -> str:
    if not isinstance(agent, str) or not agent:
        raise Unreadable(
            "it names no agent; give the key agent, the header x-thumbwheel-agent, or /a/AGENT/"
        )
    try:
        return ids.slug_of(agent)
    except InputError as error:
        raise Unreadable(str(error)) from None


def _check(line: Row) -> None:
    """Raise Unreadable for what an import would refuse."""
    content = {key: value for key, value in line.items() if key != "agent"}
    item = SOURCE.item(1, content, "")
    if not isinstance(item, Line):
        raise Unreadable(item.reason)
