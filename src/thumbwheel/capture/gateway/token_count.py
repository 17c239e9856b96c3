"""Tokens counted by the text, for servers that do not tell them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thumbwheel.capture.gateway.protocol import CallRequest
from thumbwheel.capture.gateway.reply_draft import CallReply

BYTES_PER_TOKEN = 3
"""Of texts that are counted: fewer than most tokenizers take together, so that a limit holds."""
OF_PICTURE = 1000
"""Tokens of a picture, a sound or a file of a prompt, whose size says nothing."""
MEDIA = frozenset(["image_url", "input_image", "image", "input_audio", "file", "input_file"])


def prompt_tokens(call: CallRequest) -> int:
    """Count the tokens of what the model was shown."""
    return tokens_of(call.messages) + tokens_of(call.tools)


def reply_tokens(reply: CallReply) -> int:
    """Count the tokens of what the model wrote, its thoughts and all alternatives included."""
    written = [reply.text, reply.reasoning, reply.alternatives]
    return tokens_of([*written, [call["function"] for call in reply.tool_calls]])


def tokens_of(value: Any) -> int:
    """Count the tokens of the texts in a JSON value, rounded up.

    >>> tokens_of([{"role": "user", "content": "Hello, world"}])
    6
    """
    n_bytes = n_media = 0
    for text in _texts(value):
        if text is None:
            n_media += 1
        else:
            n_bytes += len(text.encode("utf-8", "surrogatepass"))
    return -(-n_bytes // BYTES_PER_TOKEN) + n_media * OF_PICTURE


def _texts(value: Any) -> Iterator[str | None]:
    """Yield the texts of a JSON value; None for a part that is no text."""
    match value:
        case str():
            yield value
        case {"type": kind} if kind in MEDIA:
            yield None
        case dict():
            for part in value.values():
                yield from _texts(part)
        case list() | tuple():
            for part in value:
                yield from _texts(part)
