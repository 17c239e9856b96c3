"""Verbs for keeping traces out of every dataset, and for taking them in again.

Frozen datasets stay as they are; those that are built from now on leave the traces out and count
them. The mark is the one that an import or a request of an editor may give a trace, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture import store, trace_queries
from thumbwheel.capture.trace_types import ExcludedTraces
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.types import OWNER_MARKS
from thumbwheel.models.types import Agent

EXCLUSION = "thumbwheel_exclusion"
"""Key of a trace's metadata: why it is in no dataset, who said so, and when."""
TRAINING, VALIDATION = OWNER_MARKS
LONGEST_REASON = 500


def exclude(
    ws: Workspace, agent: Agent, names: Sequence[str], reason: str, by: str
) -> ExcludedTraces:
    """Keep traces out of every dataset that is built from now on, all or none; return their ids.
    Raises InputError without a reason, NotFound for an unknown trace."""
    reason = reason.strip()
    if not 1 <= len(reason) <= LONGEST_REASON:
        why = f"it has {len(reason)} characters; 1 to {LONGEST_REASON} are a reason"
        raise InputError("--reason", why, "Say in a sentence what is wrong with the answer")

    now = datetime.now(UTC).isoformat()

    def change(metadata: dict[str, Any]) -> dict[str, Any]:
        earlier = metadata.get(EXCLUSION)
        marks = {name: metadata[name] for name in OWNER_MARKS if name in metadata}
        before = earlier["before"] if isinstance(earlier, dict) else marks
        exclusion = {"reason": reason, "by": by, "at": now, "before": before}
        return metadata | {TRAINING: False, VALIDATION: False, EXCLUSION: exclusion}

    return ExcludedTraces(_changed(ws, agent, names, change), excluded=True)


def readmit(ws: Workspace, agent: Agent, names: Sequence[str]) -> ExcludedTraces:
    """Take excluded traces in again, with the marks that they had before; return the ids of those
    that were excluded. Raises NotFound for an unknown trace."""

    def change(metadata: dict[str, Any]) -> dict[str, Any] | None:
        exclusion = metadata.pop(EXCLUSION, None)
        if not isinstance(exclusion, dict):
            return None
        for name in OWNER_MARKS:
            metadata.pop(name, None)
        before: dict[str, Any] = exclusion.get("before", {})
        return metadata | before

    return ExcludedTraces(_changed(ws, agent, names, change), excluded=False)


def _changed(
    ws: Workspace,
    agent: Agent,
    names: Sequence[str],
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
) -> list[str]:
    """Change the metadata of the named traces, all or none; return the ids of those that `change`
    returned a new one for. They are looked up before the write, which others wait for."""
    with ws.db.read() as connection:
        trace_ids = trace_queries.trace_ids(connection, agent, names)

    def work(connection: sa.Connection) -> list[str]:
        changed = []
        for trace_id in trace_ids:
            metadata = store.trace_metadata(connection, trace_id)
            if (new := change(metadata)) is not None:
                store.set_metadata(connection, trace_id, new)
                changed.append(trace_id)
        return changed

    return ws.db.write(work, of_agent(agent.id))
