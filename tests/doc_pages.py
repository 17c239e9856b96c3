"""The blocks of README and docs/, as tests execute them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    kind: str
    """`sh`, `python`, `yaml`; another one is an illustration."""
    needs: str
    """The program of others without which it cannot run (```sh openwebui); empty for none."""
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    fences = FENCE.findall(page.read_text())
    return [Block(kind, needs.strip(), text) for kind, needs, text in fences]
