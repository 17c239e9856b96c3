"""`retain`, for versions: the files of old versions that nothing needs go. Their rows stay, so
lineage, evaluations and verdicts can be read as before.

What is needed stays, and is counted by why: an alias, what was live before, a deployment, an
experiment, rows of a dataset that it answered, a version that was trained from it, a decision that
waits. The version is retired first, in one write, and its files are deleted then: a process that
ends in between leaves files that the next time deletes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.home_paths import located
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.switch import effective_switches
from thumbwheel.erasure import file_records
from thumbwheel.erasure.purge import remove_text
from thumbwheel.homes import retention_store as retention_sql
from thumbwheel.models import versions
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent

PREVIOUS = "what was live before"
PREVIOUS_KEPT = 2
"""Newest switches of each alias whose versions stay: a rollback goes back over them."""


@dataclass
class RetainedVersions:
    """What went, or would go, of an agent's versions."""

    retired: list[str] = field(default_factory=list)
    stays: Counter[str] = field(default_factory=Counter)
    """Why it is needed -> versions that are old enough."""


def retain_versions(
    ws: Workspace, agent: Agent, before: datetime, used: Set[str], *, dry_run: bool
) -> RetainedVersions:
    """Retire the versions that were recorded, and last decided on, before this time and that
    nothing needs. `used`: ids that rows of datasets refer to. With `dry_run` nothing is changed."""
    result = RetainedVersions()
    earlier = _earlier_aliases(ws, agent)

    def decide(connection: sa.Connection) -> dict[str, str]:
        old = retention_sql.old_versions(connection, agent.id, before)
        reasons = dict.fromkeys(old.keys() & earlier, PREVIOUS)
        reasons |= retention_sql.needed_versions(connection, agent.id, old, used)
        result.stays = Counter(reasons.values())
        doomed = {row_id: name for row_id, name in old.items() if row_id not in reasons}
        result.retired = list(doomed.values())
        if not dry_run:
            retention_sql.retire(connection, doomed)
        return doomed

    if dry_run:
        with ws.db.read() as connection:
            decide(connection)
        return result
    ws.db.write(decide)
    _delete_files(ws, agent)
    return result


def _earlier_aliases(ws: Workspace, agent: Agent) -> set[str]:
    """Return the ids of the versions in the newest switches of each alias."""
    earlier: set[str] = set()
    for alias in versions.aliases_of(ws, agent):
        history = effective_switches(versions.switches(ws, agent, alias))
        for switch in history[-PREVIOUS_KEPT:]:
            earlier |= {switch.to_id, switch.from_id or switch.to_id}
    return earlier


def _delete_files(ws: Workspace, agent: Agent) -> None:
    """Delete the remaining files of retired versions."""
    with ws.db.read() as connection:
        retired = retention_sql.retired_versions(connection, agent.id)
        in_use = file_records.files_in_use(connection)
        exports = retention_sql.exports_of(connection, [version.id for version in retired])
    blobs, gone = Artifacts.of(ws), set()
    for version in retired:
        for sha256 in set(version.files) - in_use:
            blobs.remove(sha256)
            gone.add(sha256)
        shutil.rmtree(ws.home.cache / "adapters" / version.id, ignore_errors=True)
        folder = ws.home.runs / (version.run_id or "")
        if version.run_id and folder.is_dir():
            remove_text(folder)
    own_exports = (ws.home.path / "exports").resolve()
    for name in exports:
        path = Path(located(name, ws.home.path)).resolve()
        # only what a deployment wrote into the home: other exports are their owner's
        if own_exports in path.parents:
            shutil.rmtree(path, ignore_errors=True)
    ws.db.write(lambda connection: file_records.forget_artifacts(connection, gone))
