"""A request's body with another model, and otherwise the bytes that the client wrote."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from thumbwheel.core.errors import InputError

# Possessive, so that a body of many quotes costs no backtracking. A text that never ends is read
# once, not again from each quote inside it.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\],:]', re.DOTALL)
_TEXT_VALUE = re.compile(rb'\s*:\s*("(?:[^"\\]++|\\.)*+")', re.DOTALL)
_SPACE = b" \t\r\n"


class _Member(NamedTuple):
    """A top-level member of a JSON object: its key, and where its value is."""

    key: str
    start: int
    end: int


def with_fields(raw: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return `raw`, a JSON object, with these values for the top-level `fields`.

    An existing value is replaced in its place, and at each occurrence if its key is duplicated,
    because servers differ in which one they read. A new key is added at the end. All other bytes
    stay. Raises InputError if `raw` is no JSON object.

    >>> with_fields(b'{"model": "a",  "x": {"model": 1}}', {"model": "b"})
    b'{"model": "b",  "x": {"model": 1}}'
    >>> with_fields(b'{ }', {"model": "b"})
    b'{"model": "b" }'
    """
    texts = {key: _json(value) for key, value in fields.items()}
    pieces: list[bytes] = []
    copied = 0
    members = list(_members(raw))
    for member in members:
        if member.key in texts:
            pieces += (raw[copied : member.start], texts[member.key])
            copied = member.end
    present = {member.key for member in members}
    new = [_json(key) + b": " + text for key, text in texts.items() if key not in present]
    if new:
        end = members[-1].end if members else raw.index(b"{") + 1
        pieces += (raw[copied:end], b", " if members else b"", b", ".join(new))
        copied = end
    pieces.append(raw[copied:])
    return b"".join(pieces)


def with_model(raw: bytes, body: Mapping[str, Any], model: str, extra: Mapping[str, Any]) -> bytes:
    """Return `raw` with another model and the fields `extra`, as `with_fields` would; `body` is the
    value of `raw`.

    If the bytes `"model"` occur in it once, and the value has that key, they are that key. Then
    they can be looked up, which takes a hundredth of the time of finding all members of a long
    body.
    """
    is_text = isinstance(body.get("model"), str)
    # an escaped letter could spell the key in another way
    if is_text and b"\\u00" not in raw and raw.count(b'"model"') == 1 and not extra.keys() & body:
        match = _TEXT_VALUE.match(raw, raw.index(b'"model"') + len(b'"model"'))
        if match is not None:
            end = len(raw[: raw.rindex(b"}")].rstrip(_SPACE))
            members = [b", " + _json(key) + b": " + _json(extra[key]) for key in extra]
            head = raw[: match.start(1)] + _json(model) + raw[match.end(1) : end]
            return head + b"".join(members) + raw[end:]
    return with_fields(raw, {"model": model, **extra})


def _members(raw: bytes) -> Iterator[_Member]:
    """Yield the top-level members of the object `raw`, in their order. Raises InputError if it is
    no JSON object."""
    if raw.removeprefix(codecs.BOM_UTF8).lstrip(_SPACE)[:1] != b"{":
        raise _no_object(raw)
    depth, key, start = 0, b"", -1
    for token in _TOKEN.finditer(raw):
        mark = token.group()
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
        is_end = depth == 0 or (depth == 1 and mark == b",")
        if is_end and start >= 0:
            yield _member(raw, key, start, token.start())
            key, start = b"", -1
        if depth == 0:
            return
        if depth == 1 and start < 0:
            if mark == b":":
                start = token.end()
            elif mark.startswith(b'"'):
                key = mark
    raise _no_object(raw)


def _member(raw: bytes, key: bytes, start: int, end: int) -> _Member:
    """Return the member whose value lies between two positions, without the space around it."""
    while start < end and raw[start] in _SPACE:
        start += 1
    while start < end and raw[end - 1] in _SPACE:
        end -= 1
    try:
        name = json.loads(key)
    except ValueError:
        raise _no_object(raw) from None
    return _Member(name, start, end)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()  # escaped: a client may send half a surrogate pair


def _no_object(raw: bytes) -> InputError:
    return InputError(
        f"body {raw[:60]!r}", "it is not a JSON object in UTF-8", 'Send {"model": ..., ...}'
    )
