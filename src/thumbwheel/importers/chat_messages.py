"""Messages of OpenAI's form, and of what resembles it, as our chat messages.

What an import would refuse (an unknown role, a content that is neither text nor parts) is brought
into a form that it takes, so that a call which the server answered is recorded. Images, sounds and
files are kept as references: their URL, or the hash of what was sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.importers.recordable import BoundedCopier
from thumbwheel.importers.types import ROLES

DATA_KEYS = ("data", "file_data", "bytes")
"""Keys of a content part whose text is the file itself, in base64."""
IMAGE_TYPES = {"/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""The first characters of images in base64, and their types."""
SHORTEST_DATA = 256
"""Characters of the shortest base64 text that becomes a reference."""


def objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list; nothing for any other value."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping):
                yield item


def openai_messages(value: Any, recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the `messages` of a chat request."""
    return [openai_message(message, recorder) for message in recorder.objects(value)]


def prompt_messages(prompt: Any, recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return a prompt without roles as a user message, several prompts as one message each. A
    prompt of token ids becomes a part of type `token_ids`, because its text is unknown."""
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if prompts and all(type(item) is int for item in prompts):
        prompts = [prompts]
    contents: list[Any] = []
    for item in recorder.items(prompts):
        if isinstance(item, str):
            contents.append(recorder.text(item))
        elif isinstance(item, list):
            contents.append([{"type": "token_ids", "token_ids": recorder.value(item)}])
    return [{"role": "user", "content": content} for content in contents]


def openai_message(message: Mapping[str, Any], recorder: BoundedCopier) -> dict[str, Any]:
    """Return one message with the keys that a template may need."""
    role = message.get("role")
    copy: dict[str, Any] = {"role": role if role in ROLES else "user"}
    copy["content"] = content_of(message.get("content"), recorder)
    for key in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(key), str):
            copy[key] = recorder.text(message[key])
    calls = [tool_call(call, recorder) for call in recorder.objects(message.get("tool_calls"))]
    older_call = message.get("function_call")
    if isinstance(older_call, Mapping) and not calls:
        calls = [tool_call({"function": older_call}, recorder)]
    if calls:
        copy["tool_calls"] = calls
        copy["content"] = copy["content"] or None
    return copy


def content_of(content: Any, recorder: BoundedCopier) -> str | list[Any]:
    """Return the content as text, or as a list of parts if not all of them are text."""
    if isinstance(content, str):
        return recorder.text(content)
    if content is None:
        return ""
    if not isinstance(content, list):
        return recorder.text(json_text(content))
    parts = [part_of(part, recorder) for part in recorder.items(content)]
    texts = [part["text"] for part in parts if _is_text(part)]
    return "".join(texts) if len(texts) == len(parts) else parts


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.keys() == {"type", "text"} and isinstance(part["text"], str)


def part_of(part: Any, recorder: BoundedCopier) -> dict[str, Any]:
    """Return one part of a content; files in it become references unless the recorder keeps
    files."""
    if isinstance(part, str):
        return {"type": "text", "text": recorder.text(part)}
    if not isinstance(part, Mapping):
        return {"type": "text", "text": recorder.text(json_text(part))}
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": recorder.text(part["text"])}
    return recorder.mapping(part if recorder.keeps_files else without_data(part))


def without_data(value: Any, key: str = "", depth: int = 0) -> Any:
    """Return `value` with references in place of files."""
    if isinstance(value, str):
        if value.startswith("data:") or (key in DATA_KEYS and len(value) >= SHORTEST_DATA):
            return reference(value)
        return value
    if depth > 8:
        return value
    if isinstance(value, Mapping):
        return {name: without_data(part, name, depth + 1) for name, part in value.items()}
    if isinstance(value, list):
        return [without_data(part, key, depth + 1) for part in value]
    return value


def reference(data: str) -> str:
    """Return the reference that replaces a file in base64, given as a data URL or alone: the hash
    of the base64 text, its length, and the file's type if known.

    >>> reference("data:image/png;base64,aGVsbG8=")[:20]
    'sha256:333d6b3a3c1f5'
    >>> reference("data:image/png;base64,aGVsbG8=")[-24:]
    ';length=8;type=image/png'
    """
    head, comma, payload = data.partition(",")
    if not (comma and head.startswith("data:")):
        head, payload = "", data
    digest = hashlib.sha256(payload.encode("utf-8", "replace")).hexdigest()
    kind = head.removeprefix("data:").split(";")[0][:80]
    return f"sha256:{digest};length={len(payload)}" + (f";type={kind}" if kind else "")


def image_part(data: Any, recorder: BoundedCopier) -> dict[str, Any]:
    """Return an image that came in base64, alone or as a data URL, as OpenAI writes image parts:
    the reference to it, or the image where the recorder keeps files."""
    if not isinstance(data, str):
        url = ""
    elif recorder.keeps_files:
        url = data if data.startswith("data:") else f"data:{_image_type(data)};base64,{data}"
    else:
        url = reference(data)
    return {"type": "image_url", "image_url": {"url": url}}


def _image_type(data: str) -> str:
    """Return the type of an image in base64 by its first bytes; PNG if they are unknown."""
    types = (type for start, type in IMAGE_TYPES.items() if data.startswith(start))
    return next(types, "image/png")


def tool_call(call: Mapping[str, Any], recorder: BoundedCopier) -> dict[str, Any]:
    """Return a tool call in OpenAI's form, with arguments as JSON text; those of a custom tool are
    its text."""
    function, custom = call.get("function"), call.get("custom")
    if isinstance(custom, Mapping):
        function = {"name": custom.get("name"), "arguments": custom.get("input")}
    if not isinstance(function, Mapping):
        function = call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else json_text(arguments)
    name = function.get("name")
    copy: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": recorder.text(name) if isinstance(name, str) else "",
            "arguments": recorder.text(arguments),
        },
    }
    if isinstance(call.get("id"), str):
        copy = {"id": recorder.text(call["id"]), **copy}
    return copy


def openai_tools(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the tools of a request, including any in the older `functions`."""
    tools = recorder.objects(body.get("tools"))
    functions = recorder.objects(body.get("functions"))
    definitions = [recorder.mapping(tool) for tool in tools]
    definitions += [{"type": "function", "function": recorder.mapping(each)} for each in functions]
    return definitions


def json_text(value: Any) -> str:
    """Return `value` as JSON, or the name of its type if it is no JSON."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(type(value).__name__)


def selected(body: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields in `names` that the request sets."""
    return {name: body[name] for name in names if body.get(name) is not None}
