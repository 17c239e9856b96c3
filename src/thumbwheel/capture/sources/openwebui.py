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
    about = isinstance(meta, dict) and (
        "message_id" in meta or "chat_id" in meta or "arena" in meta
    )
    return (about and "data" in row and "type" in row) or (
        isinstance(chat, dict) and isinstance(chat.get("history"), dict)
    )


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
    at = moment(row.get("updated_at", row.get("created_at")))
    given = _Given(name_of(row.get("id")), _seconds(at), name_of(row.get("user_id")), at, data)
    return _rated(_history(stored), message_id, session, name_of(stored.get("user_id")), given)


class _Given:
    """One rating: its own id and state, who gave it when, and its data."""

    def __init__(self, id: str | None, state: Any, rater: str | None, at: Any, data: Row) -> None:
        self.id, self.state, self.rater, self.at, self.data = id, state, rater, at, data

    def record(self, what: str, targets: list[TargetRef], **fields: Any) -> FeedbackRecord:
        """A signal; a rating that was changed since has another state, so it is another one, and
        the newest of a rater counts."""
        shared = {
            "id": f"{self.id}/{self.state}/{what}" if self.id else None,
            "rater": Rater(id=self.rater) if self.rater else None,
        }
        return FeedbackRecord.model_validate(
            shared | {"targets": targets, "occurred_at": self.at} | fields
        )


def _seconds(at: Any) -> Any:
    return f"{at.timestamp():.0f}" if hasattr(at, "timestamp") else at


def _chat(row: Row) -> list[AnyRecord]:
    stored = {"id": row.get("id"), "chat": row.get("chat")}
    history, user = _history(stored), name_of(row.get("user_id"))
    found: list[AnyRecord] = []
    refused: list[str] = []
    for message_id, message in history.items():
        annotation = object_at(message, "annotation")
        if annotation.get("rating") is not None:
            given = _Given(
                name_of(message.get("feedbackId")),
                ids.fingerprint(annotation)[:12],
                user,
                None,
                annotation,
            )
            try:
                found += _rated(history, message_id, name_of(row.get("id")), user, given)
            except Unreadable as error:
                refused.append(str(error))
    if not found:
        raise Unreadable(refused[0] if refused else "none of its messages was rated")
    return list({one.name_and_fingerprint(): one for one in found}.values())


def _history(stored: Row) -> dict[str, dict[str, Any]]:
    messages = object_at(object_at(object_at(stored, "chat"), "history"), "messages")
    if bad := [key for key, value in messages.items() if not isinstance(value, dict)]:
        raise Unreadable(f"message {bad[0]!r} of the history is no object")
    return messages


def _rated(
    history: Mapping[str, Row],
    message_id: str,
    session: str | None,
    user: str | None,
    given: _Given,
) -> list[AnyRecord]:
    target = TargetRef(kind="trace", id=message_id)
    message = history.get(message_id, {})
    signals = _signals(target, given, message)
    if not message:
        return [*signals]
    traces = {message_id: _trace(history, message_id, session, user)}
    rating = _rating(given.data)
    ranking = [[0], [1]] if rating == 1 else [[1], [0]]
    for sibling in _siblings(history, message, given.data) if rating is not None else []:
        try:
            traces[sibling] = _trace(history, sibling, session, user)
        except Unreadable:
            continue  # it failed, so there is nothing to compare with
        both = [target, TargetRef(kind="trace", id=sibling)]
        signals.append(
            given.record(f"over {sibling}", both, kind="preference", value={"ranking": ranking})
        )
    return [*traces.values(), *signals]


def _signals(target: TargetRef, given: _Given, message: Row) -> list[FeedbackRecord]:
    data = given.data
    comment = (content_text(data.get("comment")) or "").strip() or None
    about = {
        "metadata": {key: data[key] for key in ("reason", "tags") if data.get(key)} or None,
        "comment": comment,
    }
    rating, detail = _rating(data), object_at(data, "details").get("rating")
    found = []
    if rating is not None:
        found.append(given.record("thumb", [target], kind="thumb", value=THUMBS[rating], **about))
    if detail not in (None, ""):
        found.append(
            given.record(
                "rating",
                [target],
                kind="rating",
                value=number_of(detail, "details.rating"),
                scale=TEN,
                **about,
            )
        )
    original, content = (
        content_text(message.get("originalContent")),
        content_text(message.get("content")),
    )
    if original and content and original != content:
        found.append(given.record("correction", [target], kind="correction", value=content))
    if not found and comment:
        found.append(given.record("comment", [target], kind="comment", value=comment))
    if not found:
        raise Unreadable("it holds neither a rating nor a comment")
    return found


def _rating(data: Row) -> int | None:
    rating = data.get("rating")
    if rating in (None, ""):
        return None
    value = number_of(rating, "rating")
    if value not in THUMBS:
        raise Unreadable(f"rating {clip(rating)} is neither 1 (up) nor -1 (down)")
    return int(value)


def _siblings(history: Mapping[str, Row], message: Row, data: Row) -> list[str]:
    """The answers of other models to the same message, where the rating names these models."""
    others = list_at(data, "sibling_model_ids")
    parent = history.get(str(message.get("parentId")), {})
    children = [str(one) for one in list_at(parent, "childrenIds")]
    return [
        one
        for one in children
        if one in history and one != message.get("id") and _model(history[one]) in others
    ]


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
    found: Messages = []
    met = {message_id}
    parent = history[message_id].get("parentId")
    while isinstance(parent, str) and parent in history and parent not in met:
        met.add(parent)
        text = content_text(history[parent].get("content"))
        if text:
            found.append({"role": history[parent].get("role"), "content": text})
        parent = history[parent].get("parentId")
    return found[::-1]


SOURCE = JsonLines(parse, claims, EXAMPLE)
