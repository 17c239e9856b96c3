"""Numbered pieces of a text file as a stream: its lines, or the elements of a JSON array or of a
pretty-printed object.

Plain or gzip, of any size, in constant memory. Lives here: opening, the checks that tell text from
anything else, the bound on one piece. Not here: what is in a piece (`rowfile.py`), how an array is
taken apart (`elements.py`).
"""

from __future__ import annotations

import codecs
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from thumbwheel.importers.elements import Piece, elements
from thumbwheel.importers.regular_file import file_error, open_regular
from thumbwheel.importers.unpacked import BoundedGzip, UnpackedBytes

OnPosition = Callable[[int], None]
"""Called now and then with the number of bytes of the file that have been read."""


def ignore_position(position: int) -> None:
    """Ignore the position; the callback of a reader whose progress is not shown."""


LONGEST = 16 * 2**20
"""Bytes of the longest line that is taken; a longer one is refused without being held."""

SHOWN = 200
"""Characters that are shown of a piece that is too long."""
_PIECE = 2**20
_HEAD = 2**16
_EVERY = 200
_ZIP = b"PK\x03\x04"
_GZIP = b"\x1f\x8b"


def numbered(path: Path, on_position: OnPosition) -> Iterator[tuple[int, bytes, str | None]]:
    """Yield (number from 1, text without its line end, None or why it is refused) for every line,
    or element of an array, that is not blank.

    Raises InputError if it is not a regular file, is empty or binary, or breaks off.
    """
    with opened(path) as (raw, stream):
        number = 0
        has_content = False
        for number, (line, problem) in enumerate(_pieces(path, stream), start=1):
            if number % _EVERY == 0:
                on_position(raw.tell())
            if line.strip():
                has_content = True
                yield number, line, problem
        on_position(raw.tell())
        if not has_content:
            raise file_error(
                path,
                "it is empty" if number == 0 else "it holds only blank lines",
                "Give a file with lines",
            )


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, io.BufferedReader]]:
    """Yield (the raw file, for its position; a stream of its unpacked bytes). Raises InputError if
    it is not a text file."""
    with open_regular(path) as raw:
        stream = raw
        if raw.peek(2)[:2] == _GZIP:
            size = os.fstat(raw.fileno()).st_size
            unpacked = BoundedGzip(raw, UnpackedBytes(path, size))
            stream = io.BufferedReader(unpacked, _HEAD)
        _check_head(path, stream)
        yield raw, stream


def _check_head(path: Path, stream: io.BufferedReader) -> None:
    try:
        head = stream.peek(_HEAD)[:_HEAD]
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(
            path, f"the gzip archive cannot be read ({error})", "Pack it again"
        ) from None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        ending = path.suffix or ".jsonl"
        raise file_error(
            path, "it is UTF-16", f"Convert it: iconv -f UTF-16 -t UTF-8 {path.name} > utf8{ending}"
        )
    if head.startswith(_ZIP):
        raise file_error(
            path,
            "it is a ZIP archive, as Excel's files are",
            "Unpack it, or in Excel: Save as, CSV UTF-8 (.csv)",
        )
    if b"\x00" in head:
        raise file_error(
            path,
            "it is a binary file, not lines of text",
            "Export it as JSON lines (.jsonl or .jsonl.gz)",
        )


def _pieces(path: Path, stream: io.BufferedReader) -> Iterator[Piece]:
    """Yield the lines; the elements if the file is one array; the whole objects if it is
    pretty-printed."""
    head = stream.peek(_HEAD)[:_HEAD].removeprefix(codecs.BOM_UTF8).lstrip()
    is_array = head.startswith(b"[")
    is_pretty_printed = head.partition(b"\n")[0].strip() == b"{"
    try:
        if is_array or is_pretty_printed:
            read = partial(stream.read1, _PIECE)
            yield from elements(read, LONGEST, SHOWN, array=is_array)
        else:
            yield from _lines(stream)
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(
            path,
            f"it breaks off ({error})",
            "What was read before is kept; repair the file and import it again",
        ) from None


def _lines(stream: io.BufferedReader) -> Iterator[Piece]:
    """Yield (line, None), or for a line longer than LONGEST its first SHOWN bytes and the
    reason."""
    is_first = True
    while line := stream.readline(LONGEST + 1):
        if is_first:
            line, is_first = line.removeprefix(codecs.BOM_UTF8), False
        if len(line) > LONGEST and not line.endswith(b"\n"):
            length = len(line) + _skip_line(stream)
            reason = (
                f"it has {length:,} bytes, more than the {LONGEST:,} that one line may have; "
                "only its beginning is shown"
            )
            yield line[:SHOWN], reason
        else:
            yield line.rstrip(b"\r\n"), None


def _skip_line(stream: io.BufferedReader) -> int:
    skipped = 0
    while piece := stream.readline(_PIECE):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped
