"""Somebody who rates on the bench, and what the home holds afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.worlds.gateway_world import opened_home, running
from tests.worlds.pages_world import AGENT, PagesWorld, fill
from thumbwheel.db import schema
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.review.queues import QueueSelection, create
from thumbwheel.review.types import Queue, QueueConfig

HOSTILE = (
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "' autofocus onfocus='window.hacked=1",
    "</div></section><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<style>body{display:none}</style>",
)
RIGHT_TO_LEFT = "هل وصل الطلب؟ \u202egnp.exe\u202c ا\u0301\u0302\u0303"


def trace(name: str, prompt: str, answer: str, **more: Any) -> dict[str, Any]:
    """A line of a trace."""
    return {"type": "trace", "id": name, "input": prompt, "output": answer, **more}


def traces(count: int, prefix: str = "t") -> list[dict[str, Any]]:
    """Lines of different questions and answers."""
    return [
        trace(f"{prefix}{number}", f"Question {prefix} {number}?", f"Answer {number}.")
        for number in range(count)
    ]


def queue_of(
    ws: Workspace, name: str, selection: QueueSelection | None = None, **config: Any
) -> Queue:
    """A new queue of the agent."""
    agent = require_agent(ws, AGENT)
    return create(ws, agent, name, QueueConfig(**config), selection or QueueSelection())


@contextmanager
def running_ratings(folder: Path, lines: Sequence[dict[str, Any]]) -> Iterator[PagesWorld]:
    """A server over a home with these traces."""
    with opened_home(folder / "home") as ws:
        fill(ws, folder, lines)
        with running(ws, drain_every=0.02) as server:
            yield PagesWorld(ws, server.url)


@dataclass(frozen=True)
class Said:
    """A piece of feedback that counts."""

    trace: str
    rater: str
    kind: str
    name: str | None
    value: Any
    comment: str | None
    metadata: dict[str, Any] | None


def in_force(ws: Workspace) -> list[Said]:
    """The feedback that counts, in the order of traces and kinds."""
    agent_id = require_agent(ws, AGENT).id
    feedback, target, raters = schema.feedback, schema.feedback_targets, schema.raters
    query = (
        sa.select(
            target.c.external_id,
            raters.c.external_id,
            feedback.c.kind,
            feedback.c.name,
            feedback.c.value,
            feedback.c.comment,
            feedback.c.metadata,
        )
        .join(target, target.c.feedback_id == feedback.c.id)
        .join(raters, raters.c.id == feedback.c.rater_id)
        .where(target.c.position == 0, feedback.c.id.in_(newest_words(agent_id)))
    )
    with ws.db.read() as connection:
        rows = [Said(*row) for row in connection.execute(query)]
    return sorted(rows, key=lambda row: json.dumps([row.trace, row.kind, row.name, row.rater]))
