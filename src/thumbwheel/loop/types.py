"""Nouns of this stage: where a version comes from, and which versions something went into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Record = Mapping[str, Any]
"""One stored row, as a JSON value."""


@dataclass(frozen=True)
class Sources:
    """What the rows of a dataset were made from: distinct ids per split (train, dev, gate)."""

    rows: dict[str, int]
    feedback: dict[str, list[str]]
    traces: dict[str, list[str]]
    subjects: dict[str, list[str]]
    origins: dict[str, int]
    """Rows by what made them: correction, upvote, preference, ..."""


@dataclass(frozen=True)
class Lineage:
    """A version back to the feedback, and what was decided about it since. Absent links are None: a plain base has no run."""

    version: Record
    parent: Record | None
    aliases: list[str]
    run: Record | None
    dataset: Record | None
    sources: Sources | None
    evaluations: list[Record]
    decisions: list[Record]
    exports: list[Record]
    children: list[str]
    """Versions that were trained on from this one."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class Use:
    """One version whose dataset holds the given feedback, trace or subject."""

    version: str
    version_id: str
    run_id: str
    dataset_id: str
    rows: dict[str, int]
    """Split -> rows."""

    @property
    def role(self) -> Literal["learned", "selected", "judged"]:
        """`learned`: trained on it; `selected`: only to choose when to stop or which method; `judged`: only held out."""
        if self.rows.get("train"):
            return "learned"
        return "selected" if self.rows.get("dev") else "judged"
