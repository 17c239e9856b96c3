"""The server over a small home that has something for every page. Whoever adds a page adds what it
shows to `fill`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.worlds.gateway_world import opened_home, running
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.capture.ingest import ingest
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.rate import RatingRequest, rate
from thumbwheel.review.types import QueueConfig, RaterVerdict

AGENT = "support"
OUTPUT = """It has **shipped**. Parcel `JD-0042` reaches you on *Friday*:

1. the depot in Ulm
2. the van

| part | state |
|---|---|
| box | sent |

See [the tracker](https://parcels.example/JD-0042)."""
TRACE: dict[str, Any] = {
    "type": "trace",
    "id": "order-42",
    "session": "chat-9",
    "subject": "customer-17",
    "input": [
        {"role": "system", "content": "You help customers of a shop."},
        {"role": "user", "content": "Where is my order 42?"},
    ],
    "output": OUTPUT,
    "occurred_at": "2026-11-20T09:30:00Z",
    "model": "shop-7b",
    "served_model": "shop-7b-q8",
    "tokens": {"prompt": 40, "completion": 62},
    "steps": [
        {
            "kind": "reasoning",
            "output": "I need the state of the order.",
            "started_at": "2026-11-20T09:30:00.100Z",
            "ended_at": "2026-11-20T09:30:00.600Z",
        },
        {
            "kind": "tool",
            "name": "order_state",
            "input": {"order": 42},
            "output": {"state": "shipped", "parcel": "JD-0042"},
            "started_at": "2026-11-20T09:30:00.600Z",
            "ended_at": "2026-11-20T09:30:01.900Z",
        },
        {
            "kind": "tool",
            "name": "parcel_eta",
            "status": "error",
            "input": {"parcel": "JD-0042"},
            "error": "timeout",
            "started_at": "2026-11-20T09:30:01.900Z",
            "ended_at": "2026-11-20T09:30:03.000Z",
        },
        {
            "kind": "llm",
            "output": OUTPUT,
            "started_at": "2026-11-20T09:30:03.000Z",
            "ended_at": "2026-11-20T09:30:04.200Z",
        },
    ],
}
QUESTIONS = (
    "Can I pay by invoice?",
    "My coupon WINTER does not work.",
    "هل يمكنني إرجاع الحذاء؟",
    "The zip of the jacket broke after a week. What can I do?",
    "Do you ship to Norway, and what does it cost?",
    "Cancel my subscription please",
)


def small_home() -> list[dict[str, Any]]:
    """Lines of traces and feedback."""
    lines = [TRACE]
    nested = {"type": "trace", "id": "order-42-tone", "parent": "order-42"}
    lines.append(nested | {"input": "Rewrite in a friendly tone.", "output": "Good news!"})
    for number, question in enumerate(QUESTIONS):
        trace = {"type": "trace", "id": f"q{number}", "session": f"chat-{number % 3}"}
        answer = f"Yes. {question} We look after it at once, and you hear from us today."
        times = {"occurred_at": f"2026-11-2{number}T08:0{number}:00Z", "model": "shop-7b"}
        lines.append(trace | {"input": question, "output": answer} | times)
        thumb = {"type": "feedback", "target": {"trace": f"q{number}"}, "kind": "thumb"}
        lines.append(thumb | {"value": number % 2 == 0, "rater": f"customer-{number}"})
    about = {"type": "feedback", "target": {"trace": "order-42"}, "rater": "ann"}
    lines.append(about | {"kind": "thumb", "value": False, "comment": "It came on Monday."})
    lines.append(about | {"kind": "correction", "value": "It has shipped, and comes on Monday."})
    return lines


@dataclass(frozen=True)
class PagesWorld:
    """The home and the server of the pages."""

    ws: Workspace
    url: str
    parts: Mapping[str, str] = field(default_factory=dict)
    """Ids that addresses of pages have in them."""

    @property
    def code(self) -> str:
        """A new code that logs one browser in."""
        return LoginCodes(self.ws.home.login_codes).make()

    @property
    def token(self) -> str:
        """The token of the home."""
        return self.ws.home.access_token.read_text().strip()


def fill(ws: Workspace, folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Import lines as somebody's file."""
    file = folder / "small.jsonl"
    texts = [json.dumps(line, ensure_ascii=False) for line in lines]
    file.write_text("\n".join(texts), encoding="utf-8")
    ingest(ws, AGENT, "jsonl", file)


def add_queue(ws: Workspace) -> None:
    """A queue for the pages of rating, in which two people rated, and differ."""
    agent = require_agent(ws, AGENT)
    config = QueueConfig(
        labels=("topic=order|payment|other",), tags=("rude",), overlap=3, instructions="Be fair."
    )
    queue = create(ws, agent, "july", config, QueueSelection())
    for rater in ("ann", "ben"):
        for number, item in enumerate(next_items(ws, queue, rater, 3).items):
            verdict = RaterVerdict(thumb=rater == "ann" or number > 0)
            rate(ws, agent, RatingRequest(queue, item.id, rater, f"k{number}"), verdict)


@contextmanager
def running_pages(
    folder: Path, lines: Sequence[dict[str, Any]] | None = None
) -> Iterator[PagesWorld]:
    """A server over these lines, those of the small home by default; what it records are rows at
    once."""
    shown = small_home() if lines is None else lines
    with opened_home(folder / "home") as ws:
        if shown:
            fill(ws, folder, shown)
        with running(ws, drain_every=0.02) as server:
            yield PagesWorld(ws, server.url)
