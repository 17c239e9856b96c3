"""`retain`: traces that are older than the home keeps them go, with their steps, feedback, rewards
and messages.

What something stands on stays, and is counted by what that is: rows of a dataset, a gold case, an
experiment, a comparison with a newer answer. To delete those, erase the subject (`erase`), which
says what has to be trained anew. The files of versions that nothing needs go too
(version_retention.py). No tombstone is written: an import of the same lines brings them
back, until the next time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.homes import retention_store as store
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import agents

BATCH = 200
"""Traces of one write; other writers have their turn in between."""


class RetentionConfig(Config):
    """How long recorded traces are kept."""

    days: int | None = Field(default=None, ge=1)
    """Days after which a trace goes, of every agent that `agents` does not name [default: never]"""
    agents: dict[str, int | None] = Field(default_factory=dict)
    """By the name of the agent: days, or null for never"""

    versions: int | None = Field(default=None, ge=1)
    """Days after which the files of a version go that nothing needs [default: never]"""

    def days_of(self, agent: str) -> int | None:
        """Return how many days an agent's traces are kept; None for ever."""
        return self.agents.get(agent, self.days)


@dataclass
class Retained:
    """What went of an agent, or would go, and what stays although it is old enough."""

    agent: str
    before: datetime | None
    """Traces that were recorded before it go; None where all stay."""
    removed: Counter[str] = field(default_factory=Counter)
    """Table -> rows."""
    stays: Counter[str] = field(default_factory=Counter)
    """What stands on it -> traces."""
    retired: list[str] = field(default_factory=list)
    """Versions whose files went."""
    versions_stay: Counter[str] = field(default_factory=Counter)
    """Why it is needed -> versions."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON value."""
        return asdict(self) | {"before": self.before.isoformat() if self.before else None}


def retain(
    ws: Workspace,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Retained]:
    """Remove data older than the settings (`retention`) allow, of all agents; with `dry_run`
    nothing is changed. Once `stop` returns True, the rest is left for the next time. Raises
    StorageError if a file of a dataset is missing, because it is then unknown which data is in
    use."""
    config = ws.settings(RetentionConfig, "retention")
    moment = now or datetime.now(UTC)
    results = []
    for agent in agents(ws):
        days = config.days_of(agent.slug)
        if days is None and config.versions is None:
            continue
        result = Retained(agent.slug, None)
        if days is not None:
            result = _retain(ws, agent, moment - timedelta(days=days), dry_run, stop)
        if config.versions is not None and not stop():
            before = moment - timedelta(days=config.versions)
            # The server asks every hour, and mostly no setting names versions.
            from thumbwheel.homes.version_retention import retain_versions

            of_versions = retain_versions(ws, agent, before, _used(ws, agent), dry_run=dry_run)
            result.retired, result.versions_stay = of_versions.retired, of_versions.stays
        results.append(result)
    return results


def _retain(
    ws: Workspace, agent: Agent, before: datetime, dry_run: bool, stop: Callable[[], bool]
) -> Retained:
    result = Retained(agent.slug, before)
    used: Set[str] = frozenset()
    cursor = None
    while not stop():
        with ws.db.read() as connection:
            old_traces = store.old_traces(connection, agent.id, before, cursor, BATCH)
            if not old_traces:
                return result
            if cursor is None:  # reading all datasets is worth it only now
                used = _used(ws, agent)
            doomed, reasons = store.removable(connection, agent.id, old_traces, used)
        result.stays.update(reasons.values())
        result.removed.update({name: n for name, n in doomed.counts.items() if n})
        if doomed.traces and not dry_run:
            ws.db.write(partial(store.remove, doomed=doomed))
        cursor = old_traces[-1]
    return result


def _used(ws: Workspace, agent: Agent) -> Set[str]:
    """Return the ids that rows of the agent's datasets refer to."""
    # The server asks every hour, and mostly nothing is old enough.
    from thumbwheel.datasets.build import datasets
    from thumbwheel.datasets.rewrite import source_ids

    used: set[str] = set()
    for dataset in datasets(ws, agent.slug):
        used |= source_ids(ws, dataset)
    return used
