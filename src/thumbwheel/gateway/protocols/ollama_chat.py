"""Ollama's `/api/chat`: JSON lines, which are streamed unless the request says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import ollama_context
from thumbwheel.gateway.ollama_api import add_end, is_done, sampling
from thumbwheel.gateway.openai_reply import OTHER_ROLES, content_text, thoughts_of
from thumbwheel.gateway.protocol import Protocol
from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.gateway.translation.ollama import CHAT
from thumbwheel.importers.chat_messages import (
    image_part,
    objects,
    openai_message,
    openai_tools,
)
from thumbwheel.importers.recordable import BoundedCopier


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the conversation; images become references, arguments JSON text."""
    chat = []
    for message in recorder.objects(body.get("messages")):
        copy = openai_message(message, recorder)
        images = message.get("images")
        if isinstance(images, list) and images:
            parts = [{"type": "text", "text": copy["content"] or ""}]
            copy["content"] = [*parts, *(image_part(image, recorder) for image in images)]
        for key, name in (("thinking", "reasoning_content"), ("tool_name", "name")):
            if isinstance(message.get(key), str):
                copy[name] = recorder.text(message[key])
        chat.append(copy)
    return chat


def add(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a line, or a whole reply, which has the same form."""
    message = value.get("message")
    if isinstance(message, Mapping) and draft.is_answer(message.get("role"), OTHER_ROLES):
        draft.add_text(content_text(message.get("content")))
        draft.add_reasoning(thoughts_of(message))
        calls = objects(message.get("tool_calls"))
        for call in draft.without_repeated(calls) if is_done(value) else calls:
            function = call.get("function")
            if isinstance(function, Mapping):
                _add_call(draft, call.get("id"), function)
    add_end(draft, value)


def _add_call(draft: ReplyDraft, id: Any, function: Mapping[str, Any]) -> None:
    """Add a call. Ollama sends each whole; servers that imitate it send pieces, or repeat all calls
    in the last line."""
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    draft.add_arguments(draft.streamed_call(None, id, function.get("name")), arguments)


PROTOCOL = Protocol(
    name="ollama_chat",
    family="ollama",
    path="/api/chat",
    messages=messages,
    tools=openai_tools,
    sampling=sampling,
    context=ollama_context,
    event=add,
    whole=add,
    streams_unasked=True,
    shown_fields=("messages", "tools"),
    translation=CHAT,
)
