"""Open WebUI: the feedback export (Admin > Evaluations > Export) and exported chats whose messages
carry an annotation.

The rated message and what came before it are in the snapshot of the chat. A rating of 1 or -1 is a
thumb, `details.rating` a rating from 1 to 10, an edited answer (`originalContent`) a correction.
Where the same prompt was answered by other models at once, the thumb is a preference over each of
them as well (the leaderboard of Open WebUI counts it so). Feedback without a snapshot waits for its
trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.capture.fields import (
    Messages,
    clip,
    content_text,
    list_at,
    moment,
    name_of,
    number_of,
    object_at,
)
from thumbwheel.capture.source import JsonLines, Row
from thumbwheel.capture.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    Scale,
    TargetRef,
    TraceRecord,
    Unreadable,
)
from thumbwheel.core import ids

THUMBS = {1: True, -1: False}
TEN = Scale(min=1, max=10)
EXAMPLE = (
    '{"id": "f1", "user_id": "u1", "version": 0, "type": "rating", "data": {"rating": 1, '
    '"model_id": "llama3.2", "sibling_model_ids": null,'
    ' "reason": "accurate_information", "comment": "", "details": {"rating": 9}}, "meta": '
    '{"chat_id": "c1", "message_id": "m2"},'
    ' "snapshot": {"chat": {"id": "c1", "user_id": "u1", "chat": {"history": {"messages":'
    ' {"m1": {"id": "m1", "parentId": null, "role": "user", "content": "Hi"},'
    ' "m2": {"id": "m2", "parentId": "m1", "role": "assistant", "content": "Hello!", "model": '
    '"llama3.2"}}}}}},'
    ' "created_at": 1767600000, "updated_at": 1767600000}'
)


def claims(row: Row) -> bool:
    """Feedback about a message of a chat, or a chat with its history."""
    meta, chat = row.get("meta"), row.get("chat")
    if isinstance(chat, dict) and isinstance(chat.get("history"), dict):
        return True
    if not isinstance(meta, dict) or not {"message_id", "chat_id", "arena"} & meta.keys():
        return False
    return "data" in row and "type" in row


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The rated message as a trace, and what was said about it; for a chat, every message that was
    rated."""
    if "data" not in row and "chat" in row:
        return _chat(row)
    data, meta = object_at(row, "data"), object_at(row, "meta")
    message_id = name_of(meta.get("message_id"))
    if message_id is None:
        raise Unreadable("its meta names no message_id: nobody can say which answer is meant")
    stored = object_at(object_at(row, "snapshot"), "chat")
    session = name_of(meta.get("chat_id") or stored.get("id"))
    time = moment(row.get("updated_at", row.get("created_at")))
    state = f"{time.timestamp():.0f}" if isinstance(time, datetime) else time
    rating = _Rating(name_of(row.get("id")), state, name_of(row.get("user_id")), time, data)
    return _rated(_history(stored), message_id, session, name_of(stored.get("user_id")), rating)


@dataclass(frozen=True)
class _Rating:
    """What somebody said about a message."""

    id: str | None
    state: str | None
    """Changes when the rating is changed."""
    rater: str | None
    time: datetime | str | None
    data: Row

    def record(self, what: str, targets: list[TargetRef], **fields: Any) -> FeedbackRecord:
        """A signal; a rating that was changed since has another state, so it is another one, and
        the newest of a rater counts."""
        shared = {
            "id": f"{self.id}/{self.state}/{what}" if self.id else None,
            "rater": Rater(id=self.rater) if self.rater else None,
            "targets": targets,
            "occurred_at": self.time,
        }
        return FeedbackRecord.model_validate(shared | fields)


def _chat(row: Row) -> list[AnyRecord]:
    stored = {"id": row.get("id"), "chat": row.get("chat")}
    history, user = _history(stored), name_of(row.get("user_id"))
    records: list[AnyRecord] = []
    refused: list[str] = []
    for message_id, message in history.items():
        annotation = object_at(message, "annotation")
        if annotation.get("rating") is None:
            continue
        state = ids.fingerprint(annotation)[:12]
        rating = _Rating(name_of(message.get("feedbackId")), state, user, None, annotation)
        try:
            records += _rated(history, message_id, name_of(row.get("id")), user, rating)
        except Unreadable as error:
            refused.append(str(error))
    if not records:
        raise Unreadable(refused[0] if refused else "none of its messages was rated")
    return list({record.name_and_fingerprint(): record for record in records}.values())


def _history(stored: Row) -> dict[str, dict[str, Any]]:
    messages = object_at(object_at(object_at(stored, "chat"), "history"), "messages")
    for key, message in messages.items():
        if not isinstance(message, dict):
            raise Unreadable(f"message {key!r} of the history is no object")
    return messages


def _rated(
    history: Mapping[str, Row],
    message_id: str,
    session: str | None,
    user: str | None,
    rating: _Rating,
) -> list[AnyRecord]:
    """The traces of the rated message and of those that it is compared with, and the signals."""
    target = TargetRef(kind="trace", id=message_id)
    message = history.get(message_id, {})
    signals = _signals(target, rating, message)
    if not message:
        return [*signals]
    traces = {message_id: _trace(history, message_id, session, user)}
    thumb = _thumb(rating.data)
    if thumb is None:
        return [*traces.values(), *signals]
    ranking = [[0], [1]] if thumb == 1 else [[1], [0]]
    for sibling in _siblings(history, message, rating.data):
        try:
            traces[sibling] = _trace(history, sibling, session, user)
        except Unreadable:
            continue  # it failed, so there is nothing to compare with
        both = [target, TargetRef(kind="trace", id=sibling)]
        signals.append(
            rating.record(f"over {sibling}", both, kind="preference", value={"ranking": ranking})
        )
    return [*traces.values(), *signals]


def _signals(target: TargetRef, rating: _Rating, message: Row) -> list[FeedbackRecord]:
    data = rating.data
    comment = (content_text(data.get("comment")) or "").strip() or None
    metadata = {key: data[key] for key in ("reason", "tags") if data.get(key)}
    about = {"metadata": metadata or None, "comment": comment}
    thumb, of_ten = _thumb(data), object_at(data, "details").get("rating")
    signals = []
    if thumb is not None:
        value = THUMBS[thumb]
        signals.append(rating.record("thumb", [target], kind="thumb", value=value, **about))
    if of_ten not in (None, ""):
        number = number_of(of_ten, "details.rating")
        signals.append(
            rating.record("rating", [target], kind="rating", value=number, scale=TEN, **about)
        )
    original = content_text(message.get("originalContent"))
    content = content_text(message.get("content"))
    if original and content and original != content:
        signals.append(rating.record("correction", [target], kind="correction", value=content))
    if not signals and comment:
        signals.append(rating.record("comment", [target], kind="comment", value=comment))
    if not signals:
        raise Unreadable("it holds neither a rating nor a comment")
    return signals


def _thumb(data: Row) -> int | None:
    rating = data.get("rating")
    if rating in (None, ""):
        return None
    value = number_of(rating, "rating")
    if value not in THUMBS:
        raise Unreadable(f"rating {clip(rating)} is neither 1 (up) nor -1 (down)")
    return int(value)


def _siblings(history: Mapping[str, Row], message: Row, data: Row) -> list[str]:
    """The answers of other models to the same message, where the rating names these models."""
    models = list_at(data, "sibling_model_ids")
    parent = history.get(str(message.get("parentId")), {})
    children = [str(child) for child in list_at(parent, "childrenIds")]
    others = [child for child in children if child in history and child != message.get("id")]
    return [other for other in others if _model(history[other]) in models]


def _model(message: Row) -> Any:
    """The model that answered; in an arena `model` is the arena."""
    return message.get("selectedModelId") or message.get("model")


def _trace(
    history: Mapping[str, Row], message_id: str, session: str | None, user: str | None
) -> TraceRecord:
    message = history[message_id]
    answer = content_text(message.get("originalContent")) or content_text(message.get("content"))
    if message.get("role") != "assistant" or not answer:
        raise Unreadable(f"message {message_id!r} is no answer of the assistant")
    prompt = _before(history, message_id)
    if not prompt:
        raise Unreadable(f"nothing comes before message {message_id!r}")
    fields = {
        "id": message_id,
        "session": session,
        "subject": user,
        "occurred_at": moment(message.get("timestamp")),
    }
    step = {"served_model": name_of(_model(message))}
    return TraceRecord.model_validate(fields | {"input": prompt, "output": answer, "steps": [step]})


def _before(history: Mapping[str, Row], message_id: str) -> Messages:
    """The messages from the first one to the one before this one."""
    messages: Messages = []
    visited = {message_id}
    parent_id = history[message_id].get("parentId")
    while isinstance(parent_id, str) and parent_id in history and parent_id not in visited:
        visited.add(parent_id)
        parent = history[parent_id]
        text = content_text(parent.get("content"))
        if text:
            messages.append({"role": parent.get("role"), "content": text})
        parent_id = parent.get("parentId")
    return messages[::-1]


SOURCE = JsonLines(parse, claims, EXAMPLE)
