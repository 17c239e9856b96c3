"""The protocols, one file each. To add one, write its file and list it here."""

from __future__ import annotations

from thumbwheel.gateway.protocol import Protocol
from thumbwheel.gateway.protocols import (
    anthropic_messages,
    ollama_chat,
    ollama_generate,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
)

_ALL = (
    openai_chat.PROTOCOL,
    openai_completions.PROTOCOL,
    openai_responses.PROTOCOL,
    openai_embeddings.PROTOCOL,
    anthropic_messages.PROTOCOL,
    ollama_chat.PROTOCOL,
    ollama_generate.PROTOCOL,
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _ALL}
_BY_PATH = {protocol.path: protocol for protocol in PROTOCOLS.values()}


def protocol_of(method: str, path: str) -> Protocol | None:
    """Return the protocol of a request to `path` (as `/v1/chat/completions`, without an agent's
    prefix); None if no recorded protocol matches."""
    return _BY_PATH.get(path.rstrip("/")) if method == "POST" else None
