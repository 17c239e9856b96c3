"""A request before it is passed on: its path, its body, bounded in size, and its agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.packed_body import BadPacking, TooLarge, unpacked
from thumbwheel.gateway.event_stream import parsed
from thumbwheel.gateway.held_bytes import CallBytes
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.importers.json_text import holds_more_containers, holds_more_values
from thumbwheel.importers.unpacked import most_of_request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

MOST_VALUES = 2_000_000
"""Values of a request. An empty array takes three bytes of text and twenty times as much memory, in
every call that runs; lists of token ids for embeddings have some hundred thousand."""
MOST_CONTAINERS = 250_000
"""Lists and objects of a request. Each takes ten times as long to read as a number, and the whole
server waits meanwhile; a long conversation with tools has some thousands."""
SMALL = 256 << 10
"""Bytes of a body that is read in the event loop; it takes a few milliseconds."""
PREFIX = "/a/"
"""Before the name of an agent, for clients that can set nothing but their base URL."""
LINGER = 256 << 20
"""Bytes of a request that is too large which are read and thrown away, so that its client hears the
answer instead of a broken connection."""


class ClientLeft(Exception):
    """The client left before its request was whole."""


@dataclass(frozen=True)
class Path:
    """A path of the gateway: the agent that it names, and what is called."""

    agent: str | None
    call: str
    """As `/v1/chat/completions`."""


def split_path(path: str) -> Path:
    """Return the parts of a path.

    >>> split_path("/a/support/v1/models")
    Path(agent='support', call='/v1/models')
    >>> split_path("/v1/models")
    Path(agent=None, call='/v1/models')
    """
    if not path.startswith(PREFIX):
        return Path(None, path)
    agent, slash, rest = path[len(PREFIX) :].partition("/")
    return Path(agent, slash + rest)


async def read_body(
    receive: Receive, headers: Mapping[str, str], limit: int, held: CallBytes
) -> bytes:
    """Return the body of a request as it was sent. Raises Refusal if it is larger than `limit`
    bytes, or all calls together hold too many bytes; ClientLeft if the client left."""
    stated = headers.get("content-length")
    is_too_large = stated is not None and stated.isdecimal() and int(stated) > limit
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        piece = message.get("body", b"")
        size += len(piece)
        is_too_large = is_too_large or size > limit
        if is_too_large:
            pieces.clear()
            if size > LINGER:
                break
        else:
            held.hold(len(piece))
            pieces.append(piece)
        if not message.get("more_body", False):
            break
    if is_too_large:
        raise _too_large(limit)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_large(body: bytes, headers: Mapping[str, str]) -> bool:
    """Return whether it may take long to read a body as it was sent."""
    return len(body) > SMALL or _packing(headers) is not None


def unpacked_body(body: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """Return a body unpacked. Raises Refusal if it is larger than `limit` bytes then, or not packed
    as the headers say."""
    encoding = _packing(headers)
    return body if encoding is None else _unpacked(body, encoding, limit)


def _packing(headers: Mapping[str, str]) -> str | None:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    return None if encoding in ("", "identity") else encoding


def read_object(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object of a request. Raises Refusal. Browsers let any page send content types
    other than JSON to this machine without asking, so they are refused."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Refusal(
            415,
            f"the content type of the request is {content_type or 'missing'!r}: send it as "
            "application/json",
        )
    if holds_more_values(body, MOST_VALUES):
        raise Refusal(413, f"the request holds more than the {MOST_VALUES:,} values that are taken")
    if holds_more_containers(body, MOST_CONTAINERS):
        message = f"the request holds more than the {MOST_CONTAINERS:,} lists and objects"
        raise Refusal(413, f"{message} that are taken")
    value = parsed(body)
    if not isinstance(value, dict):
        raise Refusal(400, "the body of the request is no JSON object")
    return value


def _unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Refusal(415, f"the content encoding {encoding[:40]!r} is not read here: send gzip")
    most_of_size = most_of_request(len(body))
    try:
        return unpacked(body, min(limit, most_of_size))
    except TooLarge:
        if most_of_size < limit:
            why = f"unpacks to more than the {most_of_size:,} bytes that one of its size may"
            raise Refusal(413, f"the body of the request {why}: send it unpacked") from None
        raise _too_large(limit) from None
    except BadPacking as error:
        if str(error):
            raise Refusal(400, f"the body of the request is no {encoding}") from None
        raise Refusal(400, f"the body of the request ends before its {encoding} does") from None


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        f"the request has more than the {limit:,} bytes that are taken (setting gateway.max_body)",
        {b"connection": b"close"},
    )
