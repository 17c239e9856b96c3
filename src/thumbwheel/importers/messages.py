"""Chat messages of every dialect as ours: OpenAI's, Anthropic's blocks, ShareGPT's turns, Gemini's
parts, the parts of OpenTelemetry and of Vercel's AI SDK.

A message has a role, a content (text, or parts where it holds more than text), and where there are
some `tool_calls`, `tool_call_id` and `reasoning_content`. Calls of tools are calls wherever they
stood, their results are messages of the role tool, pictures stay as parts, and thoughts are kept
apart from the answer. Every source converts here. Not here: what a request of the gateway holds,
which is recorded whatever it is (`gateway/chat_messages.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.core.written_calls import read_answer
from thumbwheel.importers.chat_messages import without_data
from thumbwheel.importers.fields import DEEPEST, clip, content_text, unpacked
from thumbwheel.importers.thoughts import without_thoughts
from thumbwheel.importers.types import ROLES, Unreadable

Messages = list[dict[str, Any]]
LONGEST_PATH = 1024
"""A longer text that stands for a picture is the picture."""

_ROLES = {
    "human": "user",
    "prompter": "user",
    "customer": "user",
    "client": "user",
    "visitor": "user",
    "humanmessage": "user",
    "humanmessagechunk": "user",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "functionmessage": "function",
    "gpt": "assistant",
    "chatbot": "assistant",
    "llm": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "usermessage": "user",
    "apimessage": "assistant",
    "assistantmessage": "assistant",
    "botmessage": "assistant",
    "agent": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "tool_output": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
"""Roles by other names."""
_SPEAKERS = ("role", "from", "speaker", "author", "sender")
"""Keys of who speaks, the surest first."""
_TYPES = frozenset(
    {
        "human",
        "ai",
        "system",
        "tool",
        "function",
        "HumanMessage",
        "AIMessage",
        "SystemMessage",
        "ToolMessage",
        "HumanMessageChunk",
        "AIMessageChunk",
    }
)
"""Types of LangChain's messages, which tell who speaks."""
_CALL_SPEAKERS = ("function_call", "tool_call")
"""Speakers whose text is a call."""
_CALLS = ("tool-use", "server-tool-use", "mcp-tool-use", "tool-call", "function-call")
_RESULTS = (
    "tool-result",
    "tool-call-response",
    "tool-response",
    "function-call-output",
    "function-response",
)
_BORDERS = ("step-start", "step-finish", "source-url", "source-document")
"""Parts of Vercel's AI SDK that hold nothing which a model wrote."""
_THOUGHTS = ("thinking", "redacted-thinking", "reasoning", "thought")
_THOUGHT_KEYS = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "thought",
    "thoughts",
    "reasoning_details",
)
BESIDE_ANSWERS = (
    "reasoning_content",
    "thinking",
    "cot",
    "Complex_CoT",
    "complex_cot",
    "chain_of_thought",
)
"""Keys of what a model thought, beside its answer in a row. `reasoning` is none: judges write
theirs there."""
_ITEM_ROLES: Mapping[Any, str] = {
    "function_call": "assistant",
    "function_call_output": "tool",
    "reasoning": "assistant",
}
"""Type of an item between messages -> the role of the message that it is."""
_ATTACHED = ("experimental_attachments", "attachments", "files")
"""Keys of files that a user sent beside a text."""
_MEDIA_KEYS: Mapping[str, tuple[str, ...]] = {
    "image": (
        "images",
        "image",
        "image_url",
        "image_urls",
        "image_path",
        "image_paths",
        "image_file",
        "img",
        "picture",
        "pictures",
        "photo",
        "photos",
        "screenshot",
    ),
    "video": ("videos", "video", "video_url", "video_path"),
    "audio": ("audios", "audio", "audio_url", "audio_path"),
}
"""Word of a placeholder -> keys of a row under which its files stand."""
_MEDIA = {"image": "image_url", "video": "video_url", "audio": "audio_url"}
"""Word of a placeholder -> type of the part that it stands for."""
_WRITTEN_RESULT = ("<tool_response>", "</tool_response>")
"""Marks that templates of the Hermes form put around the result of a tool."""
_PLACEHOLDER = re.compile(r"<(image|video|audio)>")


def is_chat(value: Any) -> bool:
    """Return whether `value` is a non-empty list of messages in any known format; calls and their
    results may stand between them, as in OpenAI's Responses API."""
    if not isinstance(value, list) or not any(map(is_message, value)):
        return False
    return all(is_message(part) or _is_item(part) for part in value)


def _is_item(value: Any) -> bool:
    """Return whether `value` is a call, a result or a thought between messages."""
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in _ITEM_ROLES


def is_message(value: Any) -> bool:
    """Return whether `value` is a message: an object that names its speaker."""
    if not isinstance(value, dict):
        return False
    if "role" in value or "from" in value:
        return True
    has_text = isinstance(value.get("text", value.get("content")), str)
    if has_text and isinstance(value.get("speaker", value.get("author")), str):
        return True
    return _of_langchain(value) is not None


def _of_langchain(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of a LangChain message, in any of its three dump formats, with its type;
    None for any other value."""
    kind, fields = value.get("type"), value.get("kwargs")
    if value.get("lc") == 1 and isinstance(fields, Mapping):
        path = value.get("id")
        name = path[-1] if isinstance(path, list) and path else fields.get("type")
        is_name = isinstance(name, str) and name in _TYPES
        return {**fields, "type": name} if is_name else None
    if not isinstance(kind, str) or kind not in _TYPES:
        return None
    data = value.get("data")
    if isinstance(data, Mapping) and "content" in data:
        return {**data, "type": kind}
    return value if "content" in value else None


ASKED_IN_PAIRS = ("user", "human", "input", "question", "query", "prompt", "instruction")
ANSWERED_IN_PAIRS = ("assistant", "bot", "gpt", "output", "answer", "response")


def turns_of_pairs(value: Any) -> list[dict[str, Any]] | None:
    """Return the turns of a list of pairs, [question, answer] or {"user": ..., "assistant": ...},
    or of a list of messages in a short form, ["user", text] or {"user": text}; None if it is no
    such list."""
    if messages := _short_messages(value):
        return messages
    turns: list[dict[str, Any]] = []
    for pair in value if isinstance(value, list) else ():
        texts: list[Any] = []
        if isinstance(pair, dict):
            for keys in (ASKED_IN_PAIRS, ANSWERED_IN_PAIRS):
                texts += [pair[key] for key in keys if isinstance(pair.get(key), str)][:1]
        elif isinstance(pair, list):
            texts = pair
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            return None
        turns.append({"role": "user", "content": texts[0]})
        turns.append({"role": "assistant", "content": texts[1]})
    return turns or None


def _short_messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages of a list of pairs of a role and a text; [] if it is none."""
    messages: list[dict[str, Any]] = []
    for pair in value if isinstance(value, list) else ():
        if isinstance(pair, dict) and len(pair) == 1:
            ((role, text),) = pair.items()
        elif isinstance(pair, list) and len(pair) == 2:
            role, text = pair
        else:
            return []
        name = role.strip().casefold() if isinstance(role, str) else ""
        if _ROLES.get(name, name) not in ROLES or not isinstance(text, str):
            return []
        messages.append({"role": name, "content": text})
    return messages


def chat(values: Iterable[Mapping[str, Any]]) -> Messages:
    """Return the messages; a message whose blocks contain results of tools becomes several. Raises
    Unreadable for an unknown role."""
    messages: Messages = []
    for value in values:
        for part in unfolded(value):
            messages += converted(part)
    return messages


def unfolded(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the messages that a message of the AI SDK's interface stands for: calls of tools and
    their results stand in its parts, before the text that follows them. Any other message alone."""
    parts = value.get("parts")
    parts = parts if isinstance(parts, list) else []
    invocations = value.get("toolInvocations")
    if isinstance(invocations, list) and not any(map(_interface_call, parts)):
        older = [{"type": "tool-invocation", "toolInvocation": call} for call in invocations]
        parts = [*older, {"type": "text", "text": value.get("content")}]
    if not any(map(_interface_call, parts)):
        return [value]
    rest = {key: part for key, part in value.items() if key not in ("content", "toolInvocations")}
    messages: list[Mapping[str, Any]] = []
    turn_parts: list[Any] = []
    results: list[Mapping[str, Any]] = []
    for part in parts:
        call = _interface_call(part)
        if call is None and results:
            messages += [{**rest, "parts": turn_parts}, *results]
            turn_parts, results = [], []
        turn_parts.append(part if call is None else {"type": "tool-call", **call})
        if call is not None and call.get("output") is not None:
            block = {"type": "tool-result", "toolCallId": call["id"], "output": call["output"]}
            results.append({"role": "tool", "parts": [block]})
    messages += [{**rest, "parts": turn_parts}, *results]
    return messages


def _interface_call(part: Any) -> dict[str, Any] | None:
    """Return the call in a part of the AI SDK's interface, with its result; None for any other
    part."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        return None
    call = part.get("toolInvocation") if kind == "tool-invocation" else part
    if not isinstance(call, Mapping) or "toolCallId" not in call or "state" not in call:
        return None
    name = call.get("toolName") or kind.removeprefix("tool-")
    keys = ("input", "args"), ("output", "result", "errorText")
    asked, answered = (
        next((call[key] for key in names if call.get(key) is not None), None) for names in keys
    )
    return {"id": call["toolCallId"], "name": name, "input": asked, "output": answered}


def converted(value: Mapping[str, Any]) -> Messages:
    """Return the messages that one message becomes. Raises Unreadable."""
    if "role" not in value and "from" not in value:
        value = _with_role(value)
    speaker, role = role_of(value)
    parts = _parts_of(value, speaker)
    message: dict[str, Any] = {"role": role, "content": parts.content()}
    if role == "tool":
        message["content"] = _result_content(value, message["content"])
    for key in ("name", "tool_call_id"):
        if value.get(key):
            message[key] = str(value[key])

    # calls and thoughts stand beside the content, in its parts, or in its text
    calls = [*_calls_beside(value), *parts.calls]
    beside = (content_text(value.get(key)) for key in _THOUGHT_KEYS)
    thoughts = [*[thought for thought in beside if thought][:1], *parts.thoughts]
    if role == "assistant" and isinstance(message["content"], str):
        thought, message["content"] = without_thoughts(message["content"])
        thoughts.append(thought)
        if not calls:
            calls, message["content"] = _written_calls(message["content"])
    thoughts = [thought.strip() for thought in thoughts if thought.strip()]
    if thoughts:
        message["reasoning_content"] = "\n\n".join(dict.fromkeys(thoughts))
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    if parts.results and not (message["content"] or calls):
        return parts.results
    return [*parts.results, message]


def _with_role(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item of the Responses API or a LangChain message with the role that its type
    tells; any other value unchanged."""
    if _is_item(value):
        return {"role": _ITEM_ROLES[value["type"]], "content": [value]}
    dumped = _of_langchain(value)
    if dumped is None:
        return value
    return {**dumped, "role": dumped["type"], "tool_calls": _langchain_calls(dumped)}


def _content_of(value: Mapping[str, Any]) -> Any:
    """Return the content of a message, under the key of its format; None if it has none."""
    keys = ("content", "parts", "value", "text", "refusal")
    contents = [value.get(key) for key in keys]
    return next((content for content in contents if content is not None), None)


def _parts_of(value: Mapping[str, Any], speaker: str) -> _Parts:
    """Return the parts of a message."""
    parts = _Parts()
    if speaker in _CALL_SPEAKERS:
        parts.calls += _spoken_calls(_content_of(value))
    else:
        parts.take(_content_of(value))
    pictures = value.get("images")  # Ollama's, beside the text
    for picture in pictures if isinstance(pictures, list) else ():
        parts.shown.append(_file_part("image", picture))
    if role_of(value)[1] == "user":
        parts.shown += map(_attached, _attachments(value))
    return parts


def _attachments(value: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the files that stand beside the text of a message."""
    for key in _ATTACHED:
        files = value.get(key)
        for file in files if isinstance(files, list) else ():
            if file and isinstance(file, str | Mapping):
                yield file


def _attached(file: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the part for a file beside a text: a picture, or a file that no model can read."""
    about = {"name": file} if isinstance(file, str) else file
    kinds = (about.get(key) for key in ("contentType", "mediaType", "mime_type", "type"))
    is_picture = any(isinstance(kind, str) and kind.startswith("image") for kind in kinds)
    if is_picture:
        return _file_part("image", about)
    name = next((about[key] for key in ("name", "filename", "url", "id") if about.get(key)), "file")
    return {"type": "file", "file": {"filename": str(name)[:LONGEST_PATH]}}


def _result_content(value: Mapping[str, Any], shown: Any) -> Any:
    """Return a tool's result: a text without the tags around it, or JSON."""
    content = _content_of(value)
    if content is not None and not isinstance(content, str | list):
        return _json(content)
    return _without_tags(shown) if isinstance(shown, str) else shown


def _calls_beside(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls in the keys of a message; `function_call` is the older form of
    `tool_calls`."""
    calls = [_call(call) for call in _objects(value.get("tool_calls"))]
    older_call = value.get("function_call")
    if isinstance(older_call, Mapping) and not calls:
        calls = [_call({"function": older_call})]
    return calls


def role_of(value: Mapping[str, Any]) -> tuple[str, str]:
    """Return (the speaker in lower case, the role). Raises Unreadable for an unknown role."""
    speakers = (value.get(key) for key in _SPEAKERS)
    speaker_value = next((speaker for speaker in speakers if speaker is not None), None)
    speaker = ""
    if isinstance(speaker_value, str):
        speaker = speaker_value.strip().casefold().replace("-", "_")
    role = _ROLES.get(speaker, speaker)
    if role not in ROLES:
        raise Unreadable(f"role {clip(speaker_value)} is none of {', '.join(ROLES)}")
    return speaker, role


@dataclass
class _Parts:
    """What the blocks of a content are."""

    shown: list[dict[str, Any]] = field(default_factory=list)
    """Texts, pictures, files."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: Messages = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def take(self, content: Any, depth: int = 0) -> None:
        if content is None:
            return
        if depth > DEEPEST:
            raise Unreadable("it is nested too deeply")
        if isinstance(content, str):
            self.shown.append({"type": "text", "text": content})
        elif isinstance(content, list):
            for part in content:
                self.take(part, depth + 1)
        elif isinstance(content, Mapping):
            self._take_part(content, depth)

    def _take_part(self, part: Mapping[str, Any], depth: int) -> None:
        part = {key: value for key, value in part.items() if value is not None}
        kind = str(part.get("type", "")).replace("_", "-")
        gemini_call = part.get("functionCall", part.get("function_call"))
        gemini_result = part.get("functionResponse", part.get("function_response"))
        bedrock_call, bedrock_result = part.get("toolUse"), part.get("toolResult")
        if isinstance(bedrock_call, Mapping):
            self.calls.append(_call({**bedrock_call, "id": bedrock_call.get("toolUseId")}))
        elif isinstance(bedrock_result, Mapping):
            self.results.append(_result({**bedrock_result, "id": bedrock_result.get("toolUseId")}))
        elif isinstance(part.get("reasoningContent"), Mapping):
            thought = content_text(part["reasoningContent"].get("reasoningText"))
            self.thoughts += [thought] if thought else []
        elif isinstance(gemini_call, Mapping):
            self.calls.append(_call(gemini_call))
        elif isinstance(gemini_result, Mapping):
            self.results.append(_result(gemini_result))
        elif kind in _BORDERS:
            return
        elif kind in _CALLS:
            self.calls.append(_call(part))
        elif kind in _RESULTS:
            self.results.append(_result(part))
        elif kind in _THOUGHTS or part.get("thought") is True:
            keys = ("thinking", "text", "reasoning", "content", "summary")
            thoughts = (content_text(part.get(key)) for key in keys)
            self.thoughts += [thought for thought in thoughts if thought][:1]
        else:
            self._take_shown(part, kind, depth)

    def _take_shown(self, part: Mapping[str, Any], kind: str, depth: int) -> None:
        """Add a text, a picture, a file, or the content of an object around one."""
        texts = [part[key] for key in ("text", "refusal") if isinstance(part.get(key), str)]
        inner_keys = [key for key in ("text", "content", "parts", "message") if key in part]
        if texts:
            self.shown.append({"type": "text", "text": texts[0]})
        elif not kind and inner_keys:
            self.take(part[inner_keys[0]], depth + 1)
        elif kind in ("text", "output-text", "input-text"):
            inner = part.get("value", part.get("content", part.get("arguments")))
            text = content_text(inner)
            if text is None and inner is not None:
                text = _json(inner)
            self.shown.append({"type": "text", "text": text or ""})
        elif part:
            self.shown.append(dict(without_data(_media_part(part))))

    def content(self) -> str | list[dict[str, Any]]:
        texts = [part["text"] for part in self.shown if _is_plain_text(part)]
        return "".join(texts) if len(texts) == len(self.shown) else self.shown


def _is_plain_text(part: Mapping[str, Any]) -> bool:
    return part.keys() == {"type", "text"} and isinstance(part["text"], str)


def _media_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an image of Anthropic or of the AI SDK in OpenAI's format; other parts unchanged."""
    source = part.get("source")
    if part.get("type") == "image" and isinstance(source, Mapping):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if part.get("type") == "image" and isinstance(part.get("image"), str):
        return {"type": "image_url", "image_url": {"url": part["image"]}}
    return part


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    value = unpacked(value)
    for part in value if isinstance(value, list) else ():
        if isinstance(part, Mapping):
            yield part


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in OpenAI's format, with arguments as JSON text. Raises Unreadable for a call
    without a name."""
    function = call.get("function")
    custom = call.get("custom")  # a tool of OpenAI whose input is free text
    if isinstance(custom, Mapping):
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, Mapping):
        function = call
    keys = ("arguments", "args", "input", "parameters", "raw_arguments")
    arguments = next((function[key] for key in keys if function.get(key) is not None), None)
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else _json(arguments)
    names = [function.get(key) for key in ("name", "toolName", "tool_name")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    if name is None:
        raise Unreadable(f"{clip(dict(call))} is a call of a tool that has no name")
    converted_call: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    ids = [call.get(key) for key in ("id", "toolCallId", "call_id", "tool_call_id")]
    call_id = next((str(call_id) for call_id in ids if call_id), None)
    return {"id": call_id, **converted_call} if call_id else converted_call


def _result(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool message for a part with a tool's result."""
    keys = ("content", "response", "result", "output", "text")
    result = next((part[key] for key in keys if part.get(key) is not None), "")
    inner = _Parts()
    if isinstance(result, str | list):
        inner.take(result)
    message: dict[str, Any] = {"role": "tool", "content": inner.content()}
    is_value = not isinstance(result, str | list)  # an object, a number
    if is_value or (isinstance(result, list) and result and not inner.shown):
        message["content"] = _json(result)
    ids = [part.get(key) for key in ("tool_use_id", "toolCallId", "call_id", "tool_call_id", "id")]
    call_id = next((str(call_id) for call_id in ids if call_id), None)
    if call_id:
        message["tool_call_id"] = call_id
    names = [part.get(key) for key in ("name", "toolName")]
    name = next((name for name in names if isinstance(name, str) and name), None)
    if name:
        message["name"] = name
    if part.get("is_error") is True:
        message["is_error"] = True
    return message


def _spoken_calls(content: Any) -> list[dict[str, Any]]:
    """Return the calls that are the text of a turn: the JSON of one call, or of several. Raises
    Unreadable."""
    value = unpacked(content)
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, Mapping) for call in calls):
        raise Unreadable(f"the call {clip(content)} is no JSON of a name and arguments")
    return [_call(call) for call in calls]


def _langchain_calls(message: Mapping[str, Any]) -> Any:
    """Return the calls of a LangChain message; older versions put them in `additional_kwargs`."""
    more = message.get("additional_kwargs")
    return message.get("tool_calls") or (more.get("tool_calls") if isinstance(more, dict) else None)


def _written_calls(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return (the calls that a model wrote at the end of its text, the rest of the text)."""
    written = read_answer(text)
    return ([], text) if written is None else (list(map(_call, written.calls)), written.content)


def _without_tags(text: str) -> str:
    """Return the result of a tool without the tags that a template puts around it."""
    opening, closing = _WRITTEN_RESULT
    inner = text.strip()
    if inner.startswith(opening) and inner.endswith(closing):
        return inner.removeprefix(opening).removesuffix(closing).strip()
    return text


def tools_of(value: Any) -> list[dict[str, Any]] | None:
    """Return declarations of tools in OpenAI's format, from JSON in a text, bare functions, and
    Anthropic's format, too; without keys that are null. Return None if there are none."""
    tools = []
    for tool in _objects(value):
        tool = without_nulls(tool)
        if isinstance(tool.get("function"), Mapping):
            tools.append({"type": "function", **tool})
        elif "input_schema" in tool and "name" in tool:
            function = {key: tool[key] for key in ("name", "description") if key in tool}
            function["parameters"] = tool["input_schema"]
            tools.append({"type": "function", "function": function})
        elif "name" in tool and "type" not in tool:
            tools.append({"type": "function", "function": tool})
        else:
            tools.append(tool)
    return tools or None


def without_nulls(value: Any) -> Any:
    """Return `value` without the keys that are null, which Arrow adds if rows differ."""
    if isinstance(value, Mapping):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return list(map(without_nulls, value)) if isinstance(value, list) else value


def with_media(messages: Messages, row: Mapping[str, Any]) -> Messages:
    """Return the messages with the files of a row (`images`, `image_url`, `videos`, ...) in place
    of <image> and similar placeholders, and files without a placeholder in the user's first
    message."""
    media: dict[str, list[Any]] = {}
    for word in _MEDIA:
        files = next((row[key] for key in _MEDIA_KEYS[word] if row.get(key)), None)
        media[word] = files if isinstance(files, list) else [files] if files else []
    if not any(media.values()):
        return messages
    placed = [dict(message) for message in messages]
    for message in placed:
        content = message.get("content")
        if isinstance(content, str):
            message["content"] = _with_files(content, media)
        elif isinstance(content, list):
            message["content"] = [_placed(part, media) for part in content]
    left = [_file_part(word, file) for word, files in media.items() for file in files]
    asked = next((message for message in placed if message["role"] == "user"), None)
    if left and asked is not None:
        content = asked["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        asked["content"] = [*left, *parts]
    return placed


def _with_files(text: str, media: Mapping[str, list[Any]]) -> str | list[dict[str, Any]]:
    """Return the text with its placeholders replaced by files, which are removed from `media`."""
    parts: list[dict[str, Any]] = []
    has_file = False
    for position, piece in enumerate(_PLACEHOLDER.split(text)):
        if position % 2 == 0:
            if piece:
                parts.append({"type": "text", "text": piece})
        elif media[piece]:
            has_file = True
            parts.append(_file_part(piece, media[piece].pop(0)))
        else:
            parts.append({"type": "text", "text": f"<{piece}>"})
    return parts if has_file else text


def _placed(part: Any, media: Mapping[str, list[Any]]) -> Any:
    """Return a part, or, if it is only a placeholder, its file, which is removed from `media`."""
    if not isinstance(part, Mapping) or part.keys() != {"type"} or not media.get(part["type"]):
        return part
    return _file_part(part["type"], media[part["type"]].pop(0))


def _file_part(word: str, file: Any) -> dict[str, Any]:
    """Return the part for a file: a path, a URL, base64, or Hugging Face's object for a picture."""
    if isinstance(file, Mapping):
        file = file.get("path") or file.get("url") or "bytes"
    if isinstance(file, str) and len(file) > LONGEST_PATH:
        file = f"data:{word};base64,{file}" if ":" not in file[:LONGEST_PATH] else file
    kind = _MEDIA[word]
    return dict(without_data({"type": kind, kind: {"url": str(file)}}))


def with_thoughts(message: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with the thoughts that stand beside it in its row, unless it has its own."""
    if message.get("reasoning_content"):
        return message
    for key in BESIDE_ANSWERS:
        thoughts = row.get(key)
        if isinstance(thoughts, str) and thoughts.strip():
            return {**message, "reasoning_content": thoughts.strip()}
    return message


def without_old_thoughts(messages: Sequence[dict[str, Any]]) -> Messages:
    """Return the messages as a model is shown them again: without its thoughts from earlier
    turns."""
    asked = [index for index, message in enumerate(messages) if message["role"] == "user"]
    current = asked[-1] if asked else 0
    shown = []
    for index, message in enumerate(messages):
        if index < current and "reasoning_content" in message:
            message = {key: part for key, part in message.items() if key != "reasoning_content"}
        shown.append(message)
    return shown


def broken_call(message: Mapping[str, Any]) -> str | None:
    """Return the name of the first call of a message whose arguments are no JSON object; None if
    there is none.

    >>> broken_call({"tool_calls": [{"function": {"name": "hours", "arguments": '{"day": "to'}}]})
    'hours'
    """
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        arguments = function.get("arguments")
        if arguments not in (None, "") and not isinstance(unpacked(arguments), Mapping):
            return str(function.get("name"))
    return None


def answer_fields(
    message: Mapping[str, Any], call: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return output and steps of the trace whose answer is `message`, as the gateway records them:
    a thought is a step before the call; tool calls are the call's output, and the trace then has no
    output. `call` has more fields of the model's call. Raises Unreadable if the assistant said
    nothing."""
    if message.get("role") != "assistant":
        raise Unreadable("the answer is no message of the assistant")
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        raise Unreadable("the answer holds more than text, which cannot be learned")
    thoughts = message.get("reasoning_content")
    if not calls and not content and thoughts:
        raise Unreadable("the model thought and gave no answer")
    steps: list[dict[str, Any]] = []
    if thoughts:
        steps.append({"kind": "reasoning", "output": thoughts})
    step = dict(call or {})
    if calls:
        step["output"] = {"content": content or "", "tool_calls": calls}
        if broken_call(message) is not None:
            step["complete"] = False  # as the gateway records it: nothing is learned from it
    steps.append(step)
    return {"output": None if calls else content or "", "steps": steps}


def split_answer(messages: Messages, what: str) -> tuple[Messages, dict[str, Any]]:
    """Return (the messages before it, the last message). Raises Unreadable if the last message is
    not the assistant's, or is the only one."""
    *prompt, last = messages or [{}]
    if not prompt or last.get("role") != "assistant":
        raise Unreadable(f"{what} does not end in an answer of the assistant after a question")
    return without_old_thoughts(prompt), last


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
