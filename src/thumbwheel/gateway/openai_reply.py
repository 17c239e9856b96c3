"""What OpenAI's chat and plain completions share: usage, and what llama-server adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.reply_draft import ReplyDraft

REASONING = ("reasoning_content", "reasoning")
"""Where servers write the model's thoughts: llama-server, vLLM and DeepSeek; OpenRouter and newer
vLLM."""


def add_usage(draft: ReplyDraft, usage: Any) -> None:
    """Add the counts of a `usage` object, under the names of either of OpenAI's APIs."""
    if not isinstance(usage, Mapping):
        return
    prompt_details = _object(usage, "prompt_tokens_details", "input_tokens_details")
    completion_details = _object(usage, "completion_tokens_details", "output_tokens_details")
    draft.count(
        prompt=usage.get("prompt_tokens", usage.get("input_tokens")),
        completion=usage.get("completion_tokens", usage.get("output_tokens")),
        cached=prompt_details.get("cached_tokens"),
        reasoning=completion_details.get("reasoning_tokens"),
    )


def add_llama_server(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add llama-server's extra fields: the number of sampled tokens, and all their ids if the
    request has `verbose` and `return_tokens`."""
    timings, verbose = value.get("timings"), value.get("__verbose")
    if isinstance(timings, Mapping):
        draft.count(completion=timings.get("predicted_n"))
    if isinstance(verbose, Mapping):
        draft.set_token_ids(verbose.get("tokens"))


def _object(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        if isinstance(usage.get(name), Mapping):
            return dict(usage[name])
    return {}
