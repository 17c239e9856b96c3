"""Verbs for keeping traces out of every dataset, and for taking them in again.

Frozen datasets stay as they are; those that are built from now on leave the traces out and count
them. The mark is the one that an import or a request of an editor may give a trace, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import sqlalchemy as sa

from thumbwheel.capture import store, trace_queries
from thumbwheel.capture.trace_types import ExcludedTraces
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, NotFound
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

    def work(connection: sa.Connection) -> list[str]:
        trace_ids = []
        now = datetime.now(UTC).isoformat()
        for row in _rows(connection, agent, names):
            metadata = dict(row["metadata"] or {})
            earlier = metadata.get(EXCLUSION)
            marks = {name: metadata[name] for name in OWNER_MARKS if name in metadata}
            before = earlier["before"] if isinstance(earlier, dict) else marks
            metadata |= {TRAINING: False, VALIDATION: False}
            metadata[EXCLUSION] = {"reason": reason, "by": by, "at": now, "before": before}
            store.set_metadata(connection, row["id"], metadata)
            trace_ids.append(row["id"])
        return trace_ids

    return ExcludedTraces(ws.db.write(work, of_agent(agent.id)), excluded=True)


def readmit(ws: Workspace, agent: Agent, names: Sequence[str]) -> ExcludedTraces:
    """Take excluded traces in again, with the marks that they had before; return the ids of those
    that were excluded. Raises NotFound for an unknown trace."""

    def work(connection: sa.Connection) -> list[str]:
        trace_ids = []
        for row in _rows(connection, agent, names):
            metadata = dict(row["metadata"] or {})
            exclusion = metadata.pop(EXCLUSION, None)
            if not isinstance(exclusion, dict):
                continue
            for name in OWNER_MARKS:
                metadata.pop(name, None)
            metadata |= exclusion.get("before", {})
            store.set_metadata(connection, row["id"], metadata)
            trace_ids.append(row["id"])
        return trace_ids

    return ExcludedTraces(ws.db.write(work, of_agent(agent.id)), excluded=False)


def _rows(connection: sa.Connection, agent: Agent, names: Sequence[str]) -> list[sa.RowMapping]:
    rows = []
    for name in dict.fromkeys(names):
        matches = trace_queries.named_traces(connection, agent.id, name)
        if not matches:
            raise NotFound(
                f"trace {name!r}",
                f"agent {agent.slug!r} has none of that id",
                f"See: thumbwheel traces list --agent {agent.slug}",
            )
        ids.require_single(name, [row["id"] for row in matches])
        rows += matches
    return rows
