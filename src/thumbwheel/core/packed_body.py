"""Bodies that came packed with gzip or zlib, unpacked up to a bound."""

from __future__ import annotations

import zlib

STEP = 1 << 20
"""Bytes that are unpacked at a time."""


class TooLarge(Exception):
    """The body has more bytes than the bound."""


class BadPacking(Exception):
    """The body is damaged, and the message is zlib's; or it is cut, and there is no message."""


def unpacked(body: bytes, limit: int) -> bytes:
    """Return the bytes of a packed body. Raises TooLarge beyond `limit` bytes, without holding more
    in memory, and BadPacking."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: gzip or zlib, as the header says
    pieces: list[bytes] = []
    room = limit + 1  # one byte more shows that the body is too large
    try:
        while room > 0 and not unpacker.eof:
            piece = unpacker.decompress(body, min(STEP, room))
            body = unpacker.unconsumed_tail
            if not piece:
                break
            pieces.append(piece)
            room -= len(piece)
    except zlib.error as error:
        raise BadPacking(str(error)) from None
    if room <= 0:
        raise TooLarge
    if not unpacker.eof:
        raise BadPacking
    return b"".join(pieces)
