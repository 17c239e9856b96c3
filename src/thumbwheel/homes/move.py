"""`db copy`: a home moves to another database and keeps its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.config import Home
from thumbwheel.core.errors import NotFound
from thumbwheel.db import cluster
from thumbwheel.db.dialects import SQLITE, VARIABLE, backend_at
from thumbwheel.db.engine import Database
from thumbwheel.db.migrate import upgrade
from thumbwheel.db.ownership import Ownership, claim, note_ownership
from thumbwheel.db.transfer import copy_database


@dataclass(frozen=True)
class Move:
    """What was copied."""

    source: str
    """The address, without secrets."""
    target: str
    rows: dict[str, int]
    """By table."""
    next_step: str
    """What the user has to set from now on."""

    def to_json(self) -> dict[str, Any]:
        """Return the move as a JSON value."""
        return asdict(self)


def move(home: Home, source: str, target: str, environment: Mapping[str, str]) -> Move:
    """Copy all rows of `home` from the database at `source` to the empty one at `target`, which the
    home uses from then on. The addresses are PostgreSQL URLs or "sqlite".

    A home on many hosts is on this one alone afterwards, with its keys as files of its folder;
    `environment` has the key of its cluster.

    Raises ConfigError if the rows of the home are not at `source`, NotFound if there is no database
    file there, Conflict if `target` has rows.
    """
    from_backend = backend_at(home, source, "argument FROM")
    to_backend = backend_at(home, target, "argument TO")
    if not from_backend.exists:
        fix = "Name the database that the home uses"
        raise NotFound(f"{from_backend.name}", "there is no such file", fix)
    home.prepare()
    upgrade(from_backend)
    database = Database(from_backend)
    try:
        claim(home, database)
    finally:
        database.close()

    new_id = ids.new("hom")
    ownership = Ownership(new_id, to_backend.address)
    left_cluster = False

    def arrive() -> None:
        nonlocal left_cluster
        left_cluster = cluster.leave(home, from_backend, environment)
        note_ownership(home, ownership)

    rows = copy_database(from_backend, to_backend, new_id, on_arrival=arrive)
    if to_backend.address == SQLITE:
        next_step = f"Unset {VARIABLE}: the rows of this home are in its SQLite file now."
    else:
        next_step = f"Set {VARIABLE} to this URL: the rows of this home are there now."
    if left_cluster:
        next_step += " Its keys are in this folder; the other hosts cannot use it any more."
    return Move(from_backend.address, to_backend.address, rows, next_step)
