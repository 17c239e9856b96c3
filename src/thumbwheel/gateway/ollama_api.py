"""What Ollama's two ways of asking share: options, images, and how a reply ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.importers.chat_messages import selected


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, which hold Ollama's sampling parameters, with the other fields that shape
    the answer."""
    options = body.get("options")
    outside = selected(body, ("format", "think", "logprobs", "top_logprobs"))
    return {**(options if isinstance(options, Mapping) else {}), **outside}


def is_done(value: Mapping[str, Any]) -> bool:
    """Return whether a line is the last of a reply."""
    return value.get("done") in (True, "true")


def add_end(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add the model, log-probabilities and, in the last line, reason and counts."""
    draft.add_head(value)
    if value.get("logprobs"):
        draft.add_logprobs({"content": value["logprobs"]})
    if not is_done(value):
        return
    draft.ended = True
    draft.finish("tool_calls" if draft.has_tool_calls else value.get("done_reason"))
    draft.count(prompt=value.get("prompt_eval_count"), completion=value.get("eval_count"))
