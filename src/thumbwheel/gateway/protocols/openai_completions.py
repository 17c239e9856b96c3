"""OpenAI's older `/v1/completions`: a prompt without roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import openai_context
from thumbwheel.gateway.openai_reply import (
    add_all_usage,
    add_llama_server,
    choices_of,
    content_text,
    stated_error,
)
from thumbwheel.gateway.protocol import Protocol, no_tools
from thumbwheel.gateway.reply_draft import ReplyDraft, error_text
from thumbwheel.importers.chat_messages import prompt_messages, selected
from thumbwheel.importers.recordable import BoundedCopier

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "n",
    "best_of",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "logit_bias",
    "logprobs",
    "echo",
    "suffix",
    "grammar",
    "json_schema",
)


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the prompt, or the prompts, as messages."""
    return prompt_messages(body.get("prompt"), recorder)


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters, including those of servers other than OpenAI's."""
    return selected(body, SAMPLING)


def add(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a chunk, or a whole completion, which has the same form."""
    draft.add_head(value)
    error = stated_error(value)
    if error:
        draft.error = draft.error or error_text(error)
    for index, choice in choices_of(value):
        draft.add_text(content_text(choice.get("text")), index)
        if index != 0:
            continue
        if choice.get("logprobs") or choice.get("token_ids"):
            draft.add_logprobs(choice.get("logprobs"), choice.get("token_ids"))
        draft.finish(choice.get("finish_reason"))
    if "timings" in value or "__verbose" in value:
        add_llama_server(draft, value)
    add_all_usage(draft, value)


PROTOCOL = Protocol(
    name="openai_completions",
    family="openai",
    path="/v1/completions",
    messages=messages,
    tools=no_tools,
    sampling=sampling,
    context=openai_context,
    event=add,
    whole=add,
)
