"""OpenAI's `/v1/chat/completions`, as llama-server, vLLM, Ollama and most others speak it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import openai_context
from thumbwheel.gateway.openai_reply import (
    OTHER_ROLES,
    REASONING,
    add_all_usage,
    add_llama_server,
    choices_of,
    content_text,
    stated_error,
    thoughts_of,
)
from thumbwheel.gateway.protocol import Protocol
from thumbwheel.gateway.reply_draft import ReplyDraft, error_text
from thumbwheel.importers.chat_messages import (
    objects,
    openai_messages,
    openai_tools,
    selected,
)
from thumbwheel.importers.recordable import BoundedCopier

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "repeat_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "response_format",
    "grammar",
    "json_schema",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "reasoning",
    "verbosity",
    "chat_template_kwargs",
    "service_tier",
)


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the conversation."""
    return openai_messages(body.get("messages"), recorder)


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters, including those of servers other than OpenAI's."""
    return selected(body, SAMPLING)


def event(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a chunk, whose choices hold the new parts."""
    _add(draft, value, "delta")


def whole(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a whole completion."""
    _add(draft, value, "message")


def _add(draft: ReplyDraft, value: Mapping[str, Any], part: str) -> None:
    draft.add_head(value)
    error = stated_error(value)
    if error:
        draft.error = draft.error or error_text(error)
    for index, choice in choices_of(value):
        message = choice.get(part)
        if index != 0:
            if isinstance(message, Mapping):
                draft.add_text(content_text(message.get("content")), index)
            continue
        if isinstance(message, Mapping):
            _add_message(draft, message, is_whole=part == "message")
        if part == "delta" and isinstance(choice.get("message"), Mapping):
            _add_rest(draft, choice["message"])
        if not isinstance(message, Mapping) and isinstance(choice.get("text"), str):
            draft.add_text(choice["text"])  # in the form of the older API
        if choice.get("logprobs") or choice.get("token_ids"):
            draft.add_logprobs(choice.get("logprobs"), choice.get("token_ids"))
        draft.finish(choice.get("finish_reason"))
    if "timings" in value or "__verbose" in value:
        add_llama_server(draft, value)
    add_all_usage(draft, value)


def _add_rest(draft: ReplyDraft, message: Mapping[str, Any]) -> None:
    """Add of a whole message at the end of a stream the parts that its pieces did not bring."""
    rest = dict(message)
    if draft.has_text:
        rest |= {"content": None, "refusal": None}
    if draft.has_reasoning:
        rest |= dict.fromkeys(REASONING)
    if draft.has_tool_calls:
        rest |= {"tool_calls": None, "function_call": None}
    _add_message(draft, rest, is_whole=True)


def _add_message(draft: ReplyDraft, message: Mapping[str, Any], *, is_whole: bool) -> None:
    if not draft.is_answer(message.get("role"), OTHER_ROLES):
        return
    draft.add_text(content_text(message.get("content")))
    if message.get("refusal"):
        draft.add_text(message["refusal"])
    draft.add_reasoning(thoughts_of(message))
    calls = message.get("tool_calls")
    for call in objects([calls] if isinstance(calls, Mapping) else calls):
        _add_call(draft, call, call.get("index"), is_whole)
    # some servers write a call in the older form, too
    if not calls and isinstance(message.get("function_call"), Mapping):
        _add_call(draft, {"function": message["function_call"]}, 0, is_whole)


def _add_call(draft: ReplyDraft, call: Mapping[str, Any], index: Any, is_whole: bool) -> None:
    function, custom = call.get("function"), call.get("custom")
    if isinstance(custom, Mapping):
        function = {"name": custom.get("name"), "arguments": custom.get("input")}
    if not isinstance(function, Mapping):
        function = call
    names = (call.get("id"), function.get("name"))
    tool_call = draft.tool_call(*names) if is_whole else draft.streamed_call(index, *names)
    if tool_call is not None and isinstance(custom, Mapping):
        tool_call.is_text = True
    draft.add_arguments(tool_call, function.get("arguments"))


PROTOCOL = Protocol(
    name="openai_chat",
    family="openai",
    path="/v1/chat/completions",
    messages=messages,
    tools=openai_tools,
    sampling=sampling,
    context=openai_context,
    event=event,
    whole=whole,
    shown_fields=("messages", "tools", "functions", "documents"),
)
