"""The public files that worlds are made of, read where they lie."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("THUMBWHEEL_TEST_DATA") or ROOT.parent / "shared" / "data")


@dataclass(frozen=True)
class Message:
    """What somebody wrote, and what they wanted."""

    text: str
    intent: str


def messages(*names: str) -> list[Message]:
    """The messages of files under `intents/`, each text once, in the order of the files."""
    by_text: dict[str, Message] = {}
    for name in names:
        for line in data_file(f"intents/{name}").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            text = " ".join(row["text"].split())
            by_text.setdefault(text.casefold(), Message(text, row["intent"]))
    return list(by_text.values())


def data_file(name: str) -> Path:
    """A public file; ends the program where the data is absent."""
    path = DATA / name
    if not path.is_file():
        sys.exit(
            f"{path} is absent: set THUMBWHEEL_TEST_DATA to the folder that holds the public data"
        )
    return path


def first_of_each(pool: Sequence[Message], count: int) -> tuple[list[Message], list[Message]]:
    """(`count` messages of every intent, the others), both in the order of `pool`."""
    counts: dict[str, int] = defaultdict(int)
    chosen, others = [], []
    for message in pool:
        if counts[message.intent] < count:
            counts[message.intent] += 1
            chosen.append(message)
        else:
            others.append(message)
    return chosen, others
