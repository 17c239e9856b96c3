"""LibreChat: exported conversations (the menu of a conversation, Export, JSON), as a list of
messages or as a tree.

A message with thumbs (`feedback.rating`, thumbsUp or thumbsDown) becomes a trace with what came
before it, and a thumb with its tag and text. What the model thought and the tools that it called
become steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.importers.assistant_turn import AssistantTurn, ToolUse
from thumbwheel.importers.fields import content_text, moment, name_of, objects_at, unpacked
from thumbwheel.importers.marks import Reading
from thumbwheel.importers.messages import Messages, converted
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.thoughts import without_thoughts
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Records,
    TargetRef,
    TraceRecord,
    Unreadable,
)

LISTS = ("messages", "messagesTree")
THUMB = Reading("feedback.rating", "thumb")
EXAMPLE = (
    '{"conversationId": "c1", "endpoint": "openAI", "title": "Hours", "messages": [{"messageId": '
    '"m1", "parentMessageId": null, "sender": "User", "text": "Open?", "isCreatedByUser": true}, '
    '{"messageId": "m2", "parentMessageId": "m1", "sender": "GPT", "text": "Until six.", '
    '"isCreatedByUser": false, "feedback": {"rating": "thumbsUp"}}]}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a conversation whose messages say whether the user created them."""
    messages = _top_messages(row)
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    return "isCreatedByUser" in messages[0] and "messageId" in messages[0]


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return every rated message as a trace with its thumb. Raises Unreadable if none was rated."""
    key = next((key for key in LISTS if row.get(key) is not None), "messages")
    history = {}
    for message in _flat(objects_at(row, key), None):
        history[str(message.get("messageId"))] = message
    session, user = name_of(row.get("conversationId")), name_of(row.get("user"))
    options = row.get("options")
    options = options if isinstance(options, dict) else {}
    system = content_text(options.get("promptPrefix") or options.get("system")) or ""
    records: list[AnyRecord] = []
    refused: list[str] = []
    for name, message in history.items():
        feedback = message.get("feedback")
        if isinstance(feedback, str):
            feedback = {"rating": feedback}
        if not isinstance(feedback, dict) or message.get("isCreatedByUser"):
            continue
        try:
            signal = _signal(feedback)
            if signal is None:
                continue
            trace = _trace(history, name, session, user, system)
        except Unreadable as error:
            refused.append(str(error))
            continue
        target = TargetRef(kind="trace", id=name)
        records += [trace, FeedbackRecord.model_validate({"targets": [target], **signal})]
    if not records:
        raise Unreadable(refused[0] if refused else "none of its messages was rated")
    return Records(records, [f"a rated message was left out: {reason}" for reason in refused])


def _top_messages(row: Row) -> Any:
    return next((row[key] for key in LISTS if row.get(key) is not None), None)


def _flat(messages: list[dict[str, Any]], parent: str | None) -> Iterator[dict[str, Any]]:
    """Yield the messages of a list or tree, each with the id of its parent."""
    waiting = [(message, parent) for message in reversed(messages)]
    while waiting:
        message, above = waiting.pop()
        known_parent = message.get("parentMessageId") or above
        yield {**message, "parentMessageId": known_parent}
        name = str(message.get("messageId"))
        waiting += [(child, name) for child in reversed(objects_at(message, "children"))]


def _signal(feedback: Mapping[str, Any]) -> dict[str, Any] | None:
    thumb = THUMB.signal(feedback.get("rating"))
    if thumb is None:
        return None
    tag = feedback.get("tag")
    if isinstance(tag, dict):
        tag = tag.get("key") or tag.get("label")
    text = feedback.get("text")
    return {
        **thumb,
        "comment": text if isinstance(text, str) and text.strip() else None,
        "metadata": {"tag": tag} if tag else None,
    }


def _trace(
    history: Mapping[str, dict[str, Any]],
    name: str,
    session: str | None,
    user: str | None,
    system: str,
) -> TraceRecord:
    message = history[name]
    turn = _turn(message)
    if not turn.answer or message.get("error") or message.get("unfinished"):
        raise Unreadable(f"message {name!r} is no whole answer")
    turns: list[Messages] = []
    visited = {name}
    parent = message.get("parentMessageId")
    while isinstance(parent, str) and parent in history and parent not in visited:
        visited.add(parent)
        before = history[parent]
        if before.get("isCreatedByUser"):
            turns.append(_asked(before))
        else:
            turns.append(_turn(before).messages())
        parent = before.get("parentMessageId")
    prompt = [message for turn in reversed(turns) for message in turn]
    if not prompt:
        raise Unreadable(f"nothing comes before message {name!r}")
    if system:
        prompt = [{"role": "system", "content": system}, *prompt]
    fields = {
        "id": name,
        "session": session,
        "subject": user,
        "input": prompt,
        "output": turn.answer,
        "steps": turn.steps(name_of(message.get("model"))),
        "occurred_at": moment(message.get("createdAt")),
    }
    return TraceRecord.model_validate(fields).with_identity({"message": name})


def _asked(message: Mapping[str, Any]) -> Messages:
    """Return the user's message, with the names of its files."""
    parts: list[Any] = [message.get("content") or message.get("text") or ""]
    for file in message.get("files") or message.get("image_urls") or ():
        if isinstance(file, dict):
            url = str(file.get("filepath") or file.get("url") or file.get("filename") or "file")
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return converted({"role": "user", "content": parts})


def _turn(message: Mapping[str, Any]) -> AssistantTurn:
    """Read the assistant's turn from the parts of its content, or from its text."""
    turn = AssistantTurn()
    content = message.get("content")
    if not isinstance(content, list) or not content:
        content = [{"type": "text", "text": message.get("text") or ""}]
    for part in content:
        if not isinstance(part, dict):
            continue
        call = part.get("tool_call")
        if part.get("type") == "think":
            thought = content_text(part.get("think")) or content_text(part.get("text"))
            turn.thoughts += [thought] if thought else []
        elif part.get("type") == "tool_call" and isinstance(call, dict):
            call_id = str(call.get("id") or f"call_{len(turn.parts)}")
            arguments = unpacked(call.get("args") or {})
            name = str(call.get("name") or "tool")
            turn.parts.append(ToolUse(call_id, name, arguments, call.get("output")))
        else:
            text = part.get("text")
            text = text.get("value") if isinstance(text, dict) else text
            thought, text = without_thoughts(text if isinstance(text, str) else "")
            turn.thoughts += [thought] if thought else []
            turn.parts += [text.strip()] if text.strip() else []
    return turn


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    about="conversations exported from LibreChat",
    reason="a conversation whose messages say whether the user created them",
)
"""The source."""
