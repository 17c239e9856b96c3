"""OpenAI's `/v1/embeddings`: texts in, vectors out. The vectors are not recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import openai_context
from thumbwheel.gateway.openai_reply import add_usage
from thumbwheel.gateway.protocol import Protocol, no_tools
from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.importers.chat_messages import prompt_messages, selected
from thumbwheel.importers.recordable import BoundedCopier


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the texts, one message each."""
    return prompt_messages(body.get("input"), recorder)


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that shape the vectors."""
    return selected(body, ("dimensions", "encoding_format", "input_type"))


def add(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add the model and the usage."""
    draft.add_head(value)
    add_usage(draft, value.get("usage"))


PROTOCOL = Protocol(
    name="openai_embeddings",
    family="openai",
    path="/v1/embeddings",
    messages=messages,
    tools=no_tools,
    sampling=sampling,
    context=openai_context,
    event=add,
    whole=add,
    reply_keys=("id", "model", "usage"),
    step_kind="task",
)
