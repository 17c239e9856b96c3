"""The pages on which people rate: the queues of an agent, the bench, and how raters do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from thumbwheel.review.queues import all_queues, require_queue
from thumbwheel.review.raters import report
from thumbwheel.review.types import LETTERS, ItemKind, Queue, QueueState
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.traces import TraceQuery

ASKED = {
    ItemKind.ANSWER: "answers",
    ItemKind.COMPARISON: "comparisons",
    ItemKind.CASE: "cases",
}


class QueuesQuery(TraceQuery):
    """Which queues are listed, and which traces the form for a new one begins with."""

    all: Literal["1"] | None = None
    """Show closed queues"""

    def selected(self) -> dict[str, Any]:
        """Return the trace filters as values of the form's fields."""
        filters = self.model_dump(exclude={"all", "after", "prompt"})
        if self.version is not None:
            filters["version"] = self.version.removeprefix("v")
        filters["until"] = self.day_after  # the form asks for it
        return filters


def load_queues(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's queues; those that this person may rate in come first."""
    query = asked.parsed(QueuesQuery)
    selected = query.selected()
    queues = all_queues(asked.ws, asked.agent, every=query.all is not None)
    rows = []
    for queue in queues:
        is_mine = not queue.config.raters or asked.rater in queue.config.raters
        is_open = queue.state is QueueState.OPEN
        row = {"queue": queue, "asked": ASKED[queue.kind], "is_open": is_open}
        rows.append(row | {"mine": is_mine and is_open})
    rows.sort(key=lambda row: not row["mine"])
    return {
        "agent": asked.agent.slug,
        "rows": rows,
        "shows_all": query.all is not None,
        "selected": selected,
        "is_selecting": any(value is not None for value in selected.values()),
        "may_edit": asked.principal.may("edit", asked.agent.slug),
    }


def load_bench(asked: PageRequest) -> Mapping[str, Any]:
    """Load the settings for the scripts of the rating page. The items themselves come from the
    API."""
    queue = require_queue(asked.ws, asked.agent, asked.parts["queue"])
    return {
        "title": f"Rate: {queue.name}",
        "agent": asked.agent.slug,
        "queue": queue,
        "bench": _bench(asked, queue),
    }


def _bench(asked: PageRequest, queue: Queue) -> dict[str, Any]:
    config = queue.config
    return {
        "agent": asked.agent.slug,
        "queue": queue.name,
        "api": f"/api/agents/{asked.agent.slug}/queues/{queue.name}",
        "kind": queue.kind.value,
        "state": queue.state.value,
        "ask": list(config.ask),
        "labels": [{"name": label.name, "values": label.values} for label in config.schemas],
        "tags": list(config.tags),
        "letters": LETTERS,
        "order": config.order,
        "layout": config.layout,
        "rater": asked.rater,
        "may_edit": asked.principal.may("edit", asked.agent.slug),
        "done": queue.done,
        "total": queue.items,
    }


def load_raters(asked: PageRequest) -> Mapping[str, Any]:
    """Load the report on the raters of a queue."""
    queue = require_queue(asked.ws, asked.agent, asked.parts["queue"])
    return {
        "title": f"Raters of {queue.name}",
        "agent": asked.agent.slug,
        "queue": queue,
        "report": report(asked.ws, queue),
        "may_edit": asked.principal.may("edit", asked.agent.slug),
    }
