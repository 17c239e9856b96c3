"""Ollama's `/api/generate`: a prompt, with or without a system text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import ollama_context
from thumbwheel.gateway.ollama_api import add_end
from thumbwheel.gateway.ollama_api import sampling as options
from thumbwheel.gateway.protocol import Protocol, no_tools
from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.gateway.translation.ollama import GENERATE
from thumbwheel.importers.chat_messages import content_of, image_part
from thumbwheel.importers.recordable import BoundedCopier


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the system text and the prompt. The `context` of an earlier reply is left out: it is
    token ids with unknown text."""
    chat = []
    if isinstance(body.get("system"), str) and body["system"]:
        chat.append({"role": "system", "content": recorder.text(body["system"])})
    content: Any = content_of(body.get("prompt"), recorder)
    images = body.get("images")
    if isinstance(images, list) and images:
        parts = [image_part(image, recorder) for image in images]
        content = [{"type": "text", "text": content}, *parts]
    return [*chat, {"role": "user", "content": content}]


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with the fields that bypass or replace the model's template."""
    outside = {key: body[key] for key in ("suffix", "template", "raw") if body.get(key)}
    return {**options(body), **outside}


def add(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a line, or a whole reply, which has the same form."""
    draft.add_text(value.get("response"))
    draft.add_reasoning(value.get("thinking"))
    add_end(draft, value)


PROTOCOL = Protocol(
    name="ollama_generate",
    family="ollama",
    path="/api/generate",
    messages=messages,
    tools=no_tools,
    sampling=sampling,
    context=ollama_context,
    event=add,
    whole=add,
    streams_unasked=True,
    shown_fields=("system", "prompt", "suffix"),
    translation=GENERATE,
)
