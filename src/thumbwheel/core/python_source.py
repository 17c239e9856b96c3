"""Parsing Python that strangers wrote, in bounded time.

The parser of CPython is C code that holds the interpreter's lock and cannot be interrupted: while
it works, every other thread of the process waits. Its time grows in proportion to the text, with
one exception: the parts of a dotted name after `import` and `from` are joined one by one, which is
quadratic (a name of 200,000 characters takes 25 seconds).
"""

from __future__ import annotations

import ast
import re

LONGEST = 200_000
"""Characters of a source, at most; they take about half a second."""
MOST_PARTS = 1_000
"""Parts of a dotted name, at most."""
_DOTTED = re.compile(r"(?:\.[\s\\]*+\w++[\s\\]*+)+")
"""A dotted name without its first part. A backslash may continue it in the next line."""


def parse_module(source: str) -> ast.Module:
    """Parse a program. Raises what `ast.parse` raises, and ValueError for one that is too long or
    has a dotted name without end."""
    check_source(source)
    return ast.parse(source)


def check_source(source: str) -> None:
    """Raise ValueError for Python that would take too long to parse."""
    if len(source) > LONGEST:
        raise ValueError(f"it has {len(source):,} characters; at most {LONGEST:,} are parsed")
    for name in _DOTTED.finditer(source):
        if name[0].count(".") > MOST_PARTS:
            raise ValueError(f"a dotted name has more than {MOST_PARTS:,} parts")
