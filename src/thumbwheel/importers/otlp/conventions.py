"""By what names the conventions call a thing: the GenAI conventions of OpenTelemetry, current and
older, OpenInference (Arize, Phoenix), OpenLLMetry (Traceloop), the AI SDK of Vercel, any-agent,
MLflow.

All of them are in development, so every table lists the current name first. To add a convention:
its names in the tables below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.importers.fields import content_text, name_of, unpacked
from thumbwheel.importers.messages import Messages, chat
from thumbwheel.importers.otlp.messages import (
    chat_in,
    indexed_messages,
    text_in,
)
from thumbwheel.importers.otlp.span import Attributes, Span, SpanEvent
from thumbwheel.importers.types import StepKind

REQUESTED_MODEL = (
    "gen_ai.request.model",
    "ai.model.id",
    "llm.model_name",
    "embedding.model_name",
    "mlflow.llm.model",
)
SERVED_MODEL = ("gen_ai.response.model", "ai.response.model", "llm.model_name")
SESSION = (
    "gen_ai.conversation.id",
    "session.id",
    "langfuse.session.id",
    "traceloop.association.properties.session_id",
    "ai.telemetry.metadata.sessionId",
    "mlflow.trace.session",
)
SUBJECT = (
    "user.id",
    "enduser.id",
    "langfuse.user.id",
    "traceloop.association.properties.user_id",
    "ai.telemetry.metadata.userId",
    "mlflow.trace.user",
)
PROMPT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.inputTokens",
    "ai.usage.promptTokens",
)
COMPLETION_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
    "ai.usage.outputTokens",
    "ai.usage.completionTokens",
)
TOKEN_USAGE = ("mlflow.chat.tokenUsage",)
"""Names of all counts as JSON, in words of the GenAI conventions."""
FINISH_REASON = (
    "gen_ai.response.finish_reasons",
    "ai.response.finishReason",
    "gen_ai.completion.0.finish_reason",
)
RESPONSE_ID = ("gen_ai.response.id", "ai.response.id")
TOOL_NAME = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name")
TOOL_INPUT = (
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.args",
    "ai.toolCall.args",
    "tool.parameters",
    "input.value",
    "traceloop.entity.input",
    "mlflow.spanInputs",
)
TOOL_OUTPUT = (
    "gen_ai.tool.call.result",
    "ai.toolCall.result",
    "gen_ai.output",
    "output.value",
    "traceloop.entity.output",
    "mlflow.spanOutputs",
)
PROMPT = (
    "gen_ai.input.messages",
    "ai.prompt.messages",
    "ai.prompt",
    "gen_ai.prompt",
    "input.value",
    "traceloop.entity.input",
    "mlflow.spanInputs",
)
"""Names of a chat, of a text, or of either as JSON."""
INDEXED_PROMPT = ("llm.input_messages.", "gen_ai.prompt.")
INDEXED_ANSWER = ("llm.output_messages.", "gen_ai.completion.")
ANSWER = (
    "gen_ai.output.messages",
    "gen_ai.completion",
    "gen_ai.output",
    "ai.response.object",
    "output.value",
    "traceloop.entity.output",
    "mlflow.spanOutputs",
)
ANSWER_TEXT = ("ai.response.text",)
"""Names of an answer as it is: JSON in it is what the model said."""
TOOLS = (
    "gen_ai.tool.definitions",
    "ai.prompt.tools",
    "llm.request.functions",
    "mlflow.chat.tools",
)
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "stop_sequences",
)
"""Parameters `gen_ai.request.*`."""
PARAMETERS = ("llm.invocation_parameters",)
"""Names of all parameters as JSON."""
REQUEST = ("mlflow.spanInputs",)
"""Names of a call's arguments as JSON: parameters beside the prompt."""

EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
"""Events of the conventions of 2024 -> the role of the message that each of them is."""

OPERATIONS: Mapping[str, StepKind] = {
    "chat": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "call_llm": "llm",
    "completion": "llm",
    "embeddings": "llm",
    "execute_tool": "tool",
    "llm": "llm",
    "chat_model": "llm",
    "embedding": "llm",
    "tool": "tool",
    "retriever": "tool",
    "reranker": "tool",
    "ai.generatetext.dogenerate": "llm",
    "ai.streamtext.dostream": "llm",
    "ai.generateobject.dogenerate": "llm",
    "ai.streamobject.dostream": "llm",
    "ai.toolcall": "tool",
}
"""What an operation, in small letters, is as a step; what is not here is a task around others."""
OPERATION = (
    "gen_ai.operation.name",
    "openinference.span.kind",
    "traceloop.span.kind",
    "ai.operationId",
    "llm.request.type",
    "mlflow.spanType",
)
AGENT_OPERATIONS = ("invoke_agent", "agent")
"""Operations that are a run of an agent of their own."""
EMBEDDINGS = ("embeddings", "embedding", "ai.embed", "ai.embed.doembed", "ai.embedmany")


def first(attributes: Attributes, names: Sequence[str]) -> Any:
    """Return the first of these attributes that is not empty; None if all are."""
    for name in names:
        if attributes.get(name) not in (None, "", [], {}):
            return attributes[name]
    return None


def operation(span: Span) -> str:
    """Return the span's operation in lower case, by the first convention that names it; empty if
    none does."""
    return str(first(span.attributes, OPERATION) or "").lower()


def step_kind(span: Span) -> StepKind:
    """Return the span's kind as a step of a trace."""
    kind = OPERATIONS.get(operation(span))
    if kind is None and not operation(span):
        # spans of OpenLLMetry's older instrumentation say what they do only by what they hold
        has_answer = first(span.attributes, ("gen_ai.system", "llm.model_name")) is not None
        return "llm" if has_answer else "task"
    return kind or "task"


def prompt(span: Span) -> Messages | None:
    """Return the chat that the span's model or agent was given; None if the span holds none."""
    chat: Messages | None = _prompt_in_events(span.events)
    for prefix in INDEXED_PROMPT:
        chat = chat or indexed_messages(span.attributes, prefix)
    chat = chat or chat_in(first(span.attributes, PROMPT))
    instructions = unpacked(span.attributes.get("gen_ai.system_instructions"))
    system = content_text(instructions)
    if chat and system and chat[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": system}, *chat]
    return chat or None


def _prompt_in_events(events: Sequence[SpanEvent]) -> Messages:
    """Return the messages in the span's events: one in each, or all in one."""
    messages: Messages = []
    for event in events:
        attributes = event.attributes
        if event.name in EVENT_ROLES:
            message = {"role": EVENT_ROLES[event.name], **_body(attributes)}
            messages += chat([message])
        whole = first(attributes, ("gen_ai.input.messages", "gen_ai.prompt"))
        if whole is not None and not messages:
            messages = chat_in(whole) or []
    return messages


def _body(attributes: Attributes) -> dict[str, Any]:
    """Return the fields of a message in an event, some of them parsed from JSON text."""
    fields: dict[str, Any] = {}
    for key in ("content", "tool_calls", "name"):
        value = attributes.get(key, attributes.get(f"gen_ai.event.{key}"))
        if value is not None:
            fields[key] = unpacked(value) if key == "tool_calls" else value
    if attributes.get("id") is not None:
        fields["tool_call_id"] = str(attributes["id"])
    return fields


def answer(span: Span) -> str | None:
    """Return the text that the span's model or agent answered; None if the span holds none, for
    example because the model called tools."""
    for event in span.events:
        if event.name == "gen_ai.choice":
            message = unpacked(event.attributes.get("message"))
            text = content_text(message) or content_text(event.attributes.get("content"))
            if text:
                return text
        whole = first(event.attributes, ("gen_ai.output.messages", "gen_ai.completion"))
        if whole is not None:
            return text_in(whole)
    for prefix in INDEXED_ANSWER:
        messages = indexed_messages(span.attributes, prefix)
        if messages:
            return content_text(messages[-1]["content"])
    text = first(span.attributes, ANSWER_TEXT)
    if isinstance(text, str):
        return text
    value = first(span.attributes, ANSWER)
    return None if is_tool_calls(value) else text_in(value)


def is_tool_calls(value: Any) -> bool:
    """Return whether an output is tool calls without text: a list in any-agent's form, or a reply
    of OpenAI's API."""
    calls = unpacked(value)
    if isinstance(calls, Mapping):
        choices = calls.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(message, Mapping):
            return False
        return bool(message.get("tool_calls")) and not content_text(message.get("content"))
    if not isinstance(calls, list) or not calls:
        return False
    return all(isinstance(call, Mapping) and "tool.name" in call for call in calls)


def finish_reason(span: Span) -> str | None:
    """Return why the model stopped, in its provider's word; None if unknown."""
    reason = unpacked(first(span.attributes, FINISH_REASON))
    if isinstance(reason, list):
        reason = reason[0] if reason else None
    return str(reason)[:32] if reason else None


def requested_model(span: Span) -> Any:
    """Return the requested model; None if the span names none."""
    request = unpacked(first(span.attributes, REQUEST))
    named = request.get("model") if isinstance(request, Mapping) else None
    return first(span.attributes, REQUESTED_MODEL) or (named if isinstance(named, str) else None)


def tools(span: Span) -> list[Any] | None:
    """Return the tools that the model was offered; None if the span lists none."""
    definitions = unpacked(first(span.attributes, TOOLS))
    if isinstance(definitions, list):
        definitions = list(map(unpacked, definitions))
    elif definitions is None:
        definitions = [
            unpacked(value)
            for name, value in sorted(span.attributes.items())
            if name.startswith("llm.tools.") and name.endswith(".json_schema")
        ]
    is_list = isinstance(definitions, list) and all(isinstance(d, Mapping) for d in definitions)
    return definitions if is_list and definitions else None


def sampling(span: Span) -> dict[str, Any] | None:
    """Return the parameters of the request; None if the span holds none."""
    parameters = unpacked(first(span.attributes, PARAMETERS))
    if isinstance(parameters, Mapping):
        return dict(parameters)
    values = {name: span.attributes.get(f"gen_ai.request.{name}") for name in SAMPLING}
    request = unpacked(first(span.attributes, REQUEST))
    if isinstance(request, Mapping):
        values = {name: request.get(name, values[name]) for name in SAMPLING}
    return {name: value for name, value in values.items() if value is not None} or None


def tokens(span: Span) -> dict[str, int] | None:
    """Return the provider's token counts, `prompt` and `completion`; None if there are none."""
    counts = {
        "prompt": first(span.attributes, PROMPT_TOKENS),
        "completion": first(span.attributes, COMPLETION_TOKENS),
    }
    usage = unpacked(first(span.attributes, TOKEN_USAGE))
    if isinstance(usage, Mapping):
        counts = {"prompt": usage.get("input_tokens"), "completion": usage.get("output_tokens")}
    whole = {key: count for key, count in counts.items() if type(count) is int and count >= 0}
    return whole or None


def name_in(span: Span, names: Sequence[str]) -> str | None:
    """Return the first of these attributes as an id, from the span, then from its resource; None if
    neither has one."""
    value = first(span.attributes, names) or first(span.resource, names)
    return name_of(value) if isinstance(value, str | int) else None
