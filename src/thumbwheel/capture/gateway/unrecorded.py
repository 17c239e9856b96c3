"""Requests beside calls that apps make of a model's server: passed on to it, and not recorded,
because no answer of a model is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.capture.gateway.call_context import (
    anthropic_context,
    ollama_context,
    openai_context,
)
from thumbwheel.capture.gateway.protocol import CallRequest, Protocol, no_tools
from thumbwheel.capture.gateway.protocols.anthropic_messages import messages, tools
from thumbwheel.capture.gateway.recordable import Recorder
from thumbwheel.capture.gateway.reply_draft import ReplyDraft
from thumbwheel.capture.gateway.token_count import prompt_tokens
from thumbwheel.capture.gateway.translation.ollama_embed import EMBED, EMBEDDINGS


def _no_messages(body: Mapping[str, Any], recorder: Recorder) -> list[dict[str, Any]]:
    return []


def _no_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _nothing(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Take nothing from a reply."""


def _counted_tokens(call: CallRequest) -> dict[str, Any]:
    """Answer in place of a server that is none of Anthropic's, and counts no tokens."""
    return {"input_tokens": prompt_tokens(call)}


UNRECORDED = (
    Protocol(
        name="anthropic_count_tokens",
        family="anthropic",
        path="/v1/messages/count_tokens",
        messages=messages,
        tools=tools,
        sampling=_no_sampling,
        context=anthropic_context,
        event=_nothing,
        whole=_nothing,
        is_recorded=False,
        answer=_counted_tokens,
    ),
    Protocol(
        name="openai_moderations",
        family="openai",
        path="/v1/moderations",
        messages=_no_messages,
        tools=no_tools,
        sampling=_no_sampling,
        context=openai_context,
        event=_nothing,
        whole=_nothing,
        is_recorded=False,
        keeps_model=True,
    ),
    Protocol(
        name="ollama_embed",
        family="ollama",
        path="/api/embed",
        translation=EMBED,
        messages=_no_messages,
        tools=no_tools,
        sampling=_no_sampling,
        context=ollama_context,
        event=_nothing,
        whole=_nothing,
        is_recorded=False,
    ),
    Protocol(
        name="ollama_embeddings",
        family="ollama",
        path="/api/embeddings",
        translation=EMBEDDINGS,
        messages=_no_messages,
        tools=no_tools,
        sampling=_no_sampling,
        context=ollama_context,
        event=_nothing,
        whole=_nothing,
        is_recorded=False,
    ),
)
_BY_PATH = {protocol.path: protocol for protocol in UNRECORDED}


def unrecorded_of(method: str, path: str) -> Protocol | None:
    """Return what a request to `path` is, if it is passed on without being recorded."""
    return _BY_PATH.get(path.rstrip("/")) if method == "POST" else None
