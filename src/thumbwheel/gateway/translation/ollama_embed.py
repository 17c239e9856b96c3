"""Ollama's embeddings: many texts in the newer request, one in the older."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.translation.translation import EmbeddingTranslation


def embed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request for the vectors of `input`."""
    fields = {"input": body.get("input")}
    if body.get("dimensions"):
        fields["dimensions"] = body["dimensions"]
    return fields


def embed_reply(model: str, vectors: list[list[float]], tokens: int | None) -> dict[str, Any]:
    """Return the vectors."""
    reply: dict[str, Any] = {"model": model, "embeddings": vectors}
    if tokens is not None:
        reply["prompt_eval_count"] = tokens
    return reply


def embeddings_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an older request, for the vector of `prompt`."""
    return {"input": body.get("prompt")}


def embeddings_reply(model: str, vectors: list[list[float]], tokens: int | None) -> dict[str, Any]:
    """Return the only vector."""
    return {"embedding": vectors[0] if vectors else []}


EMBED = EmbeddingTranslation(embed_fields, embed_reply)
EMBEDDINGS = EmbeddingTranslation(embeddings_fields, embeddings_reply)
