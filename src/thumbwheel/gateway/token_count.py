"""Tokens counted by the text, for servers that do not tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.reply_draft import CallReply

BYTES_PER_TOKEN = 3
"""Of texts that are counted: fewer than most tokenizers take together, so that a limit holds."""
OF_PICTURE = 1000
"""Tokens of a picture, a sound or a file of a prompt, whose size says nothing."""
MEDIA = frozenset(["image_url", "input_image", "image", "input_audio", "file", "input_file"])


def prompt_tokens(call: CallRequest) -> int:
    """Count the tokens of the call's messages and tools."""
    return tokens_of(call.messages) + tokens_of(call.tools)


def reply_tokens(reply: CallReply) -> int:
    """Count the tokens that the model wrote, including its thoughts and all alternatives."""
    written = [reply.text, reply.reasoning, reply.alternatives]
    return tokens_of([*written, [call["function"] for call in reply.tool_calls]])


def tokens_of(value: Any) -> int:
    """Count the tokens of the texts in a JSON value, rounded up.

    >>> tokens_of([{"role": "user", "content": "Hello, world"}])
    6
    """
    n_bytes = n_others = 0
    for part in _parts(value):
        if isinstance(part, str):
            n_bytes += len(part.encode("utf-8", "surrogatepass"))
        else:
            n_others += part
    return -(-n_bytes // BYTES_PER_TOKEN) + n_others


def _parts(value: Any) -> Iterator[str | int]:
    """Yield the texts of a JSON value, and the tokens of a part that is no text."""
    match value:
        case str():
            yield value
        case {"type": "token_ids", "token_ids": list() as token_ids}:
            yield len(token_ids)
        case {"type": kind} if kind in MEDIA:
            yield OF_PICTURE
        case dict():
            for part in value.values():
                yield from _parts(part)
        case list() | tuple():
            for part in value:
                yield from _parts(part)
