"""Answers of which the good ones say how to go on and the bad ones do not, some of them judged: a
classifier can learn from that."""

from __future__ import annotations

import json
import random
from pathlib import Path

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

AGENT = "support"
GOOD = (
    "Open the settings and press reset.",
    "Send us the order number and we will check it.",
    "Choose refund in your orders.",
)
FILLING = ("please", "today", "the", "parcel", "order", "customer", "account", "number", "page")
BAD = ("I do not know.", "No idea, sorry.", "That is not my job.")


def answer(number: int, draw: random.Random) -> tuple[str, bool]:
    """An answer, and whether it is a good one."""
    good = draw.random() < 0.5
    words = " ".join(
        draw.choices(
            ["please", "today", "the", "parcel", "order", "customer", "account", "number", "page"],
            k=draw.randint(2, 8),
        )
    )
    return f"{draw.choice(GOOD if good else BAD)} {words} {number}", good


def lines(traces: int = 120, judged: int = 60, seed: int = 1) -> list[dict]:
    """Import lines: `traces` traces of as many questions, thumbs of three raters on the first
    `judged`."""
    draw = random.Random(seed)
    written: list[dict] = []
    for number in range(traces):
        text, good = answer(number, draw)
        written.append(
            {
                "type": "trace",
                "id": f"t{number}",
                "session": f"s{number // 2}",
                "input": f"Question {number}?",
                "output": text,
            }
        )
        for rater in ("anna", "ben", "cleo")[: 1 + number % 3] if number < judged else ():
            wrong = draw.random() < 0.05
            written.append(
                {
                    "type": "feedback",
                    "target": {"trace": f"t{number}"},
                    "kind": "thumb",
                    "value": good != wrong,
                    "rater": rater,
                }
            )
    return written


def is_good(text: str) -> bool:
    """What people would say."""
    return text.startswith(GOOD)


def home(folder: Path, rows: list[dict]) -> Workspace:
    """A home that holds these lines."""
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ws = Workspace.open(Home.at(folder / "home"), Sources({}, "test", {}))
    ingest(ws, AGENT, "jsonl", path)
    return ws
