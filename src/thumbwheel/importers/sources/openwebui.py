"""Open WebUI: a running server (its ratings and chats), the feedback export (Admin > Evaluations >
Export), and exported chats whose messages carry an annotation.

The rated message and what came before it are in the snapshot of the chat. What the model thought
and the tools that it called, which Open WebUI keeps in blocks of the answer, become steps. A rating
of 1 or -1 is a thumb, 0 a draw, `details.rating` a rating from 1 to 10, an edited answer
(`originalContent`) a correction.
Where the same prompt was answered by other models at once, the thumb is a preference over each of
them as well (the leaderboard of Open WebUI counts it so). Feedback without a snapshot waits for its
trace. An answer of a running server that the gateway recorded is not stored again: feedback about
it is about the recorded call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from thumbwheel.core import ids
from thumbwheel.importers.assistant_turn import AssistantTurn
from thumbwheel.importers.counterparts import MessageKeys, SourceAnswer, aimed, counterpart
from thumbwheel.importers.fields import (
    clip,
    content_text,
    list_at,
    moment,
    name_of,
    number_of,
    object_at,
)
from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.messages import Messages, is_chat
from thumbwheel.importers.openwebui_messages import read_turn, user_message
from thumbwheel.importers.openwebui_server import (
    MODEL,
    PARAMETERS,
    PRODUCT,
    ListedItem,
    OpenWebUiServer,
    whose_chats,
)
from thumbwheel.importers.server_api import Connection, ServerApi, checked, connected, is_server
from thumbwheel.importers.source import (
    Item,
    JsonLines,
    LeftOut,
    Line,
    Refused,
    Row,
    Unwanted,
    item_of,
    numbered,
)
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    Records,
    Scale,
    TargetRef,
    TraceRecord,
    Unreadable,
)

THUMBS = {1: True, -1: False}
RANKINGS = {1: [[0], [1]], -1: [[1], [0]], 0: [[0, 1]]}
"""Rating -> how the rated answer and one beside it compare."""
TEN = Scale(min=1, max=10)
TOGETHER = 100
"""Ratings, or answers of a chat, that are looked up among recorded calls at once."""
SIGNALS = ("thumb", "rating", "correction", "comment")
"""How the feedback of a rating may be called."""
GATEWAY_KEYS = MessageKeys(message="openwebui_message_id", task="openwebui_task")
NOT_LEARNED_FROM = "it is no text that answers a question"
ABOUT = (
    "ratings and chats of a running Open WebUI: thumbwheel import openwebui "
    "http://127.0.0.1:8080 --agent AGENT --key NAME; or its feedback export"
)
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
    """Return whether the row is feedback about a message of a chat, or a chat with its history."""
    meta, chat = row.get("meta"), row.get("chat")
    if isinstance(chat, dict) and (isinstance(chat.get("history"), dict) or _are_listed(chat)):
        return True
    if not isinstance(meta, dict) or not {"message_id", "chat_id", "arena"} & meta.keys():
        return False
    return "data" in row and "type" in row


def _are_listed(chat: Row) -> bool:
    """Return whether a chat has its messages as a list, as the first versions wrote them."""
    messages = chat.get("messages")
    return isinstance(messages, list) and is_chat(messages) and "models" in chat


def _listed(messages: list[Row]) -> dict[str, Any]:
    """Return a list of messages as the history that later versions have: each after the one before
    it, and its rating as an annotation."""
    history: dict[str, Any] = {}
    parent = None
    for position, message in enumerate(messages):
        name = str(message.get("id") or position)
        linked = {**message, "id": name, "parentId": parent}
        if linked.get("rating") is not None:
            linked.setdefault("annotation", {"rating": linked["rating"]})
        history[name] = linked
        parent = name
    return history


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the rated message as a trace with its feedback; for a chat, every message that was
    rated. Raises Unreadable if the feedback names no message."""
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
    rating = _MessageRating(name_of(row.get("id")), state, name_of(row.get("user_id")), time, data)
    chat = _Chat.of(stored, session, name_of(stored.get("user_id")))
    return _rated(chat, message_id, rating)


@dataclass(frozen=True)
class _MessageRating:
    """What somebody said about a message."""

    id: str | None
    state: str | None
    """Changes when the rating is changed."""
    rater: str | None
    time: datetime | str | None
    data: Row

    def record(self, what: str, targets: list[TargetRef], **fields: Any) -> FeedbackRecord:
        """Build a feedback record. A rating that was edited has a new state and so a new id; the
        newest of a rater counts."""
        shared = {
            "id": f"{self.id}/{self.state}/{what}" if self.id else None,
            "rater": Rater(id=self.rater) if self.rater else None,
            "targets": targets,
            "occurred_at": self.time,
        }
        return FeedbackRecord.model_validate(shared | fields)


@dataclass(frozen=True)
class _Chat:
    """The messages of a chat, its system text, its id and the user whose it is."""

    history: Mapping[str, Row]
    system: str
    session: str | None
    user: str | None

    @classmethod
    def of(cls, stored: Row, session: str | None, user: str | None) -> _Chat:
        """Read a chat in its stored form. Raises Unreadable."""
        chat = object_at(stored, "chat")
        messages = object_at(object_at(chat, "history"), "messages")
        if not messages and _are_listed(chat):
            messages = _listed(chat["messages"])
        for key, message in messages.items():
            if not isinstance(message, dict):
                raise Unreadable(f"message {key!r} of the history is no object")
        parameters = chat.get("params")
        parameters = parameters if isinstance(parameters, dict) else {}
        system = content_text(parameters.get("system")) or content_text(chat.get("system")) or ""
        return cls(messages, system.strip(), session, user)


def _chat(row: Row) -> list[AnyRecord]:
    user = name_of(row.get("user_id"))
    chat = _Chat.of({"chat": row.get("chat")}, name_of(row.get("id")), user)
    records: list[AnyRecord] = []
    refused: list[str] = []
    for message_id, message in chat.history.items():
        annotation = object_at(message, "annotation")
        if annotation.get("rating") is None:
            continue
        state = ids.fingerprint(annotation)[:12]
        rating = _MessageRating(name_of(message.get("feedbackId")), state, user, None, annotation)
        try:
            records += _rated(chat, message_id, rating)
        except Unreadable as error:
            refused.append(str(error))
    if not records:
        raise Unreadable(refused[0] if refused else "none of its messages was rated")
    remarks = [f"a rated message was left out: {reason}" for reason in dict.fromkeys(refused)]
    distinct = {record.name_and_fingerprint(): record for record in records}
    return Records(distinct.values(), remarks)


def _rated(chat: _Chat, message_id: str, rating: _MessageRating) -> list[AnyRecord]:
    """Return the traces of the rated message and of the answers it is compared with, and the
    feedback. Raises Unreadable if there is no feedback."""
    target = TargetRef(kind="trace", id=message_id)
    message = chat.history.get(message_id, {})
    thumb = _thumb(rating.data)
    signals = _signals(target, rating, message)
    if not signals and thumb is None:
        raise Unreadable("it holds neither a rating nor a comment")
    if not message:
        return [*signals]
    traces = {message_id: _trace(chat, message_id)}
    if thumb is None:
        return [*traces.values(), *signals]
    ranking = RANKINGS[thumb]
    for sibling in _siblings(chat.history, message, rating.data):
        try:
            traces[sibling] = _trace(chat, sibling)
        except Unreadable:
            continue  # it failed, so there is nothing to compare with
        both = [target, TargetRef(kind="trace", id=sibling)]
        signals.append(
            rating.record(f"over {sibling}", both, kind="preference", value={"ranking": ranking})
        )
    if not signals:
        raise Unreadable("its rating is a draw, and the other answer is not in the chat")
    return [*traces.values(), *signals]


def _signals(target: TargetRef, rating: _MessageRating, message: Row) -> list[FeedbackRecord]:
    data = rating.data
    comment = (content_text(data.get("comment")) or "").strip() or None
    metadata = {key: data[key] for key in ("reason", "tags") if data.get(key)}
    about = {"metadata": metadata or None, "comment": comment}
    thumb, of_ten = _thumb(data), object_at(data, "details").get("rating")
    signals = []
    if thumb in THUMBS:
        value = THUMBS[thumb]
        signals.append(rating.record("thumb", [target], kind="thumb", value=value, **about))
    if of_ten not in (None, ""):
        number = number_of(of_ten, "details.rating")
        signals.append(
            rating.record("rating", [target], kind="rating", value=number, scale=TEN, **about)
        )
    if content_text(message.get("originalContent")):
        original, content = read_turn(message, "originalContent").answer, read_turn(message).answer
        if original and content and original != content:
            signals.append(rating.record("correction", [target], kind="correction", value=content))
    if not signals and comment:
        signals.append(rating.record("comment", [target], kind="comment", value=comment))
    return signals


def _thumb(data: Row) -> int | None:
    rating = data.get("rating")
    if rating in (None, ""):
        return None
    value = number_of(rating, "rating")
    if value not in RANKINGS:
        raise Unreadable(f"rating {clip(rating)} is neither 1 (up) nor -1 (down) nor 0 (a draw)")
    return int(value)


def _siblings(history: Mapping[str, Row], message: Row, data: Row) -> list[str]:
    """Return the ids of other models' answers to the same message, if the rating names these
    models."""
    models = list_at(data, "sibling_model_ids")
    parent = history.get(str(message.get("parentId")), {})
    children = [str(child) for child in list_at(parent, "childrenIds")]
    others = [child for child in children if child in history and child != message.get("id")]
    return [other for other in others if _model(history[other]) in models]


def _model(message: Row) -> Any:
    """Return the model that answered; in an arena, `model` is the arena itself."""
    return message.get("selectedModelId") or message.get("model")


def _trace(chat: _Chat, message_id: str) -> TraceRecord:
    message = chat.history[message_id]
    if message.get("role") != "assistant":
        raise Unreadable(f"message {message_id!r} is no answer of the assistant")
    if message.get("done") is False:
        raise Unreadable(f"message {message_id!r} was not finished")
    if message.get("error"):
        raise Unreadable(f"message {message_id!r} ended in an error")
    turn = _turn(message)
    if not turn.answer:
        raise Unreadable(f"message {message_id!r} is no answer of the assistant")
    prompt = _before(chat, message_id)
    if not prompt:
        raise Unreadable(f"nothing comes before message {message_id!r}")
    fields = {
        "id": message_id,
        "session": chat.session,
        "subject": chat.user,
        "input": prompt,
        "output": turn.answer,
        "steps": turn.steps(name_of(_model(message))),
        "occurred_at": moment(message.get("timestamp")),
    }
    # by its id: every snapshot has the message as it was then, and people edit their chats
    return TraceRecord.model_validate(fields).with_identity({"message": message_id})


def _turn(message: Row) -> AssistantTurn:
    """Read the model's answer as it was before anyone edited it."""
    if content_text(message.get("originalContent")):
        original = read_turn(message, "originalContent")
        if original.answer:
            return original
    return read_turn(message)


def _before(chat: _Chat, message_id: str) -> Messages:
    """Return the messages from the first to the one before this one, as a model sees them."""
    turns: list[Messages] = []
    visited = {message_id}
    parent_id = chat.history[message_id].get("parentId")
    while isinstance(parent_id, str) and parent_id in chat.history and parent_id not in visited:
        visited.add(parent_id)
        parent = chat.history[parent_id]
        if parent.get("role") == "assistant":
            turns.append(read_turn(parent).messages())
        else:
            turns.append(user_message(parent))
        parent_id = parent.get("parentId")
    messages = [message for turn in reversed(turns) for message in turn]
    if messages and chat.system and messages[0]["role"] != "system":
        return [{"role": "system", "content": chat.system}, *messages]
    return messages


@dataclass(frozen=True)
class OpenWebUi(JsonLines):
    """The source: a file, or the address of a server. `?model=NAME` of the address leaves out what
    other models answered, `?chats=all` reads everybody's chats, `?chats=none` none."""

    connection: Connection = field(default_factory=Connection)

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is the address of a server."""
        return is_server(path)

    def connected(self, connection: Connection) -> OpenWebUi:
        return replace(self, connection=connection)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        if not is_server(path):
            yield from super().read(path, on_position)
            return
        with connected(path, PRODUCT, PARAMETERS, self.connection.key) as api:
            yield from numbered(_Reading(api, self.connection).items())


class _Reading:
    """One import of a server."""

    def __init__(self, api: ServerApi, connection: Connection) -> None:
        self._connection = connection
        self._whose = whose_chats(api.url.parameters)
        self._model = api.url.parameters.get(MODEL)
        self._since = api.url.since
        self._server = OpenWebUiServer(api)
        # a key of another name may see what this one does not
        self._key_name = connection.key.name if connection.key else ""
        self._reached = dict((connection.position or {}).get(self._key_name, {}))
        self._rated: set[str] = set()

    def items(self) -> Iterator[Item]:
        """Yield the ratings, then the answers of the chats."""
        yield from self._ratings()
        yield from self._chats()

    def _after(self, noun: str) -> int:
        if self._since:
            return int(self._since.timestamp()) - 1
        return int(self._reached.get(noun, 0))

    def _reach(self, noun: str, entry: ListedItem, rest: Sequence[ListedItem]) -> None:
        """Report that everything up to this entry has been yielded; `rest` follows it."""
        time = entry.updated_at
        if rest and rest[0].updated_at == time:
            time -= 1
        self._reached[noun] = max(time, self._reached.get(noun, 0))
        position = {**(self._connection.position or {}), self._key_name: dict(self._reached)}
        self._connection.reached(position)

    def _ratings(self) -> Iterator[Item]:
        entries = self._server.ratings(self._after("ratings"))
        for start in range(0, len(entries), TOGETHER):
            part = entries[start : start + TOGETHER]
            items = [self._rating(entry) for entry in self._unstored(part)]
            self._rated.update(trace.external_id for trace in _traces(items))
            yield from self._matched(items)
            self._reach("ratings", part[-1], entries[start + TOGETHER :])

    def _unstored(self, entries: Sequence[ListedItem]) -> list[ListedItem]:
        names: dict[str, ListedItem] = {}
        for entry in entries:
            for signal in SIGNALS:
                names[f"{entry.id}/{entry.updated_at}/{signal}"] = entry
        stored = {names[name].id for name in self._connection.stored("feedback", names)}
        return [entry for entry in entries if entry.id not in stored]

    def _rating(self, entry: ListedItem) -> Item:
        row = self._server.rating(entry)
        if row is None:
            return LeftOut(0, "it was deleted meanwhile", entry.id)
        shown = row
        if isinstance(row, dict):
            shown = {key: value for key, value in row.items() if key != "snapshot"}
        text = json.dumps(shown, ensure_ascii=False)
        return item_of(0, text, partial(self._rating_records, row))

    def _rating_records(self, row: Any) -> list[AnyRecord]:
        if not isinstance(row, dict):
            raise Unreadable(f"{clip(row)} is no rating")
        model = object_at(row, "data").get("model_id")
        if self._model is not None and model != self._model:
            raise Unwanted(f"it is about another model than {self._model}")
        return parse(checked(row))

    def _chats(self) -> Iterator[Item]:
        entries = self._server.chats(self._whose, self._after("chats"))
        for number, entry in enumerate(entries, 1):
            chat = self._server.chat(entry)
            if chat is None:
                yield LeftOut(0, "it was deleted meanwhile", entry.id)
            else:
                yield from self._answers(entry, chat)
            self._reach("chats", entry, entries[number:])

    def _answers(self, entry: ListedItem, chat: Any) -> Iterator[Item]:
        """Yield the answers of a chat that are not stored yet; Refused if the chat cannot be
        read."""
        try:
            if not isinstance(chat, dict):
                raise Unreadable(f"{clip(chat)} is no chat")
            user = name_of(chat.get("user_id"))
            whole = _Chat.of({"chat": object_at(checked(chat), "chat")}, entry.id, user)
        except Unreadable as error:
            yield Refused(0, str(error), entry.id)
            return
        answers = [name for name, message in whole.history.items() if self._is_answer(message)]
        answers = [name for name in answers if name not in self._rated]
        stored = self._connection.stored("trace", answers)
        names = [name for name in answers if name not in stored]
        for start in range(0, len(names), TOGETHER):
            items = []
            for name in names[start : start + TOGETHER]:
                records = partial(_answer_records, whole, name)
                items.append(item_of(0, json.dumps({"chat": entry.id, "message": name}), records))
            yield from self._matched(items)

    def _is_answer(self, message: Row) -> bool:
        """Return whether a message is a complete answer of the requested model."""
        if message.get("role") != "assistant" or message.get("error"):
            return False
        is_whole = message.get("done") is not False and bool(read_turn(message).answer)
        return is_whole and self._model in (None, _model(message))

    def _matched(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items without the traces of answers that another source has recorded."""
        traces = _traces(items)
        recorded: dict[str, SourceAnswer] = {}
        for message, answers in self._connection.recorded(traces) if traces else ():
            answer = counterpart(message, answers, GATEWAY_KEYS)
            if answer is not None:
                recorded[message.trace.external_id] = answer
        for item in items:
            yield _without_recorded(item, recorded) if isinstance(item, Line) else item


def _traces(items: Sequence[Item]) -> list[TraceRecord]:
    traces: list[TraceRecord] = []
    for item in items:
        if isinstance(item, Line):
            traces += [record for record in item.records if isinstance(record, TraceRecord)]
    return traces


def _answer_records(chat: _Chat, message_id: str) -> list[AnyRecord]:
    try:
        return [_trace(chat, message_id)]
    except Unreadable as error:
        raise Unwanted(NOT_LEARNED_FROM) from error


def _without_recorded(line: Line, recorded: Mapping[str, SourceAnswer]) -> Item:
    """Return the line with its feedback aimed at recorded answers instead of traces of its own;
    LeftOut if nothing remains."""
    records: list[AnyRecord] = []
    for record in line.records:
        if isinstance(record, FeedbackRecord):
            records.append(aimed(record, recorded))
        elif record.external_id not in recorded:
            records.append(record)
    if not records:
        return LeftOut(line.number, "its call is recorded", line.text)
    return replace(line, records=records)


SOURCE = OpenWebUi(
    parse,
    claims,
    EXAMPLE,
    about=ABOUT,
    reason="feedback about a message of a chat, or a chat with its history",
)
