"""The fenced code blocks of an answer, as CommonMark defines them, read in linear time."""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})(.*)$")


@dataclass(frozen=True)
class Block:
    """`language` is the first word after the fence in lower case, "" where there is none; `closed`:
    the fence was closed."""

    language: str
    code: str
    closed: bool


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks in order; one that is never closed ends with the text.

    >>> blocks("so:\\n```python\\nx = 1\\n```")
    [Block(language='python', code='x = 1', closed=True)]
    """
    if "```" not in text and "~~~" not in text:
        return []
    closed_blocks: list[Block] = []
    fence, indent, language, lines = "", 0, "", list[str]()
    for line in text.split("\n"):
        match = FENCE.match(line) if "```" in line or "~~~" in line else None
        if not fence:
            if match and not (match[2][0] == "`" and "`" in match[3]):
                words = match[3].split()
                fence, indent, language, lines = (
                    match[2],
                    len(match[1]),
                    words[0].lower() if words else "",
                    [],
                )
        elif match and match[2].startswith(fence) and not match[3].strip():
            closed_blocks.append(Block(language, "\n".join(lines), True))
            fence = ""
        else:
            lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    if fence:
        closed_blocks.append(Block(language, "\n".join(lines), False))
    return closed_blocks
