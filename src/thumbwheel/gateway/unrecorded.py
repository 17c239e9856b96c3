"""Requests beside calls that apps make of a model's server: passed on to it, and not recorded,
because no answer of a model is in them. Vectors take tokens, which budgets are charged for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import (
    anthropic_context,
    ollama_context,
    openai_context,
)
from thumbwheel.gateway.protocol import CallRequest, Protocol, no_tools
from thumbwheel.gateway.protocols.anthropic_messages import messages, tools
from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.gateway.token_count import prompt_tokens
from thumbwheel.gateway.translation.ollama_embed import EMBED, EMBEDDINGS
from thumbwheel.importers.chat_messages import prompt_messages
from thumbwheel.importers.recordable import BoundedCopier


def _no_messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    return []


def _no_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _nothing(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Take nothing from a reply."""


def _embedded_texts(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the texts of either of Ollama's requests for vectors, as so many messages."""
    return prompt_messages(body.get("input", body.get("prompt")), recorder)


def _embedding_usage(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Take the count of tokens, which only the newer reply has."""
    draft.count(prompt=value.get("prompt_eval_count"), completion=0)


def _counted_tokens(call: CallRequest) -> dict[str, Any]:
    """Count the prompt's tokens in place of a server that does not count them because it is not
    Anthropic's."""
    return {"input_tokens": prompt_tokens(call)}


def _unrecorded(name: str, path: str, **more: Any) -> Protocol:
    """Return a protocol that reads nothing from requests and replies except with the functions in
    `more`."""
    parts: dict[str, Any] = {
        "messages": _no_messages,
        "tools": no_tools,
        "event": _nothing,
        "whole": _nothing,
        "is_counted": False,
    }
    return Protocol(
        name=name, path=path, sampling=_no_sampling, is_recorded=False, **(parts | more)
    )


_VECTORS: dict[str, Any] = {
    "messages": _embedded_texts,
    "whole": _embedding_usage,
    "reply_keys": ("prompt_eval_count",),
    "is_counted": True,
}
_OPENAI = {"family": "openai", "context": openai_context}
_ANTHROPIC = {"family": "anthropic", "context": anthropic_context}
_OLLAMA = {"family": "ollama", "context": ollama_context}
UNRECORDED = (
    _unrecorded(
        "anthropic_count_tokens",
        "/v1/messages/count_tokens",
        messages=messages,
        tools=tools,
        answer=_counted_tokens,
        **_ANTHROPIC,
    ),
    _unrecorded("openai_moderations", "/v1/moderations", keeps_model=True, **_OPENAI),
    _unrecorded("ollama_embed", "/api/embed", translation=EMBED, **_VECTORS, **_OLLAMA),
    _unrecorded(
        "ollama_embeddings", "/api/embeddings", translation=EMBEDDINGS, **_VECTORS, **_OLLAMA
    ),
)
_BY_PATH = {protocol.path: protocol for protocol in UNRECORDED}


def unrecorded_of(method: str, path: str) -> Protocol | None:
    """Return the protocol of a request that is passed on without being recorded; None for any other
    request."""
    return _BY_PATH.get(path.rstrip("/")) if method == "POST" else None
