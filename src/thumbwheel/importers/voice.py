"""Who speaks in a request: its sender, which the server knows, and the rater, which may be a
claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thumbwheel.core import ids
from thumbwheel.importers.types import Unreadable

Row = dict[str, Any]


@dataclass(frozen=True)
class Voice:
    """Who sends the rows of a request, which is known, and in whose name they may speak."""

    sender: str
    """The id of a principal."""
    rater: str | None = None
    """Whose statements these are; None for an app, which says it of each."""
    is_person: bool = False
    """Whether the rater is a user who is logged in, and may name nobody else."""

    def row_name(self, key: str, index: int) -> str:
        """Return the id of a row without one, in a request with this idempotency key: the same each
        time that this sender sends it, and different for any other sender."""
        return ids.derived("row", self.sender, self.rater or "", key, str(index))

    def spoken(self, line: Row) -> Row:
        """Return the line with its sender, and its rater. Raises Unreadable for a user who names
        another rater."""
        line.pop("sender", None)
        if line.get("type") != "feedback":
            return line
        line["sender"] = self.sender
        if self.rater is None:
            return line
        claimed = line.get("rater")
        name = claimed.get("id") if isinstance(claimed, dict) else claimed
        if self.is_person and name not in (None, self.rater):
            raise Unreadable(f"rater {name!r} is not {self.rater!r}, who sends it; leave rater out")
        return {**line, "rater": self.rater}
