"""What the rows of one shape look like as a whole: counts for plan and manifest, and warnings about what spoils a training.

Lives here: figures that are collected row by row in constant memory per group. Nothing here changes or drops a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.datasets.types import SPLITS, LabelRow, PairRow, Row

LARGEST = 0.2
"""Share of the training rows from which one group is worth a warning."""
LONGER = 0.75
"""Share of pairs whose chosen answer is the longer one, from which length itself would be learned."""
ENOUGH = 20
"""Rows below which a share means nothing."""


@dataclass
class Facts:
    """Figures about rows; `add` each of them once."""

    splits: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    labels: Counter[tuple[str, bool]] = field(default_factory=Counter)
    longer: int = 0
    unequal: int = 0
    prompts: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)
    _last: object = None

    def add(self, row: Row) -> None:
        """Count one row."""
        self.splits[row.split] += 1
        self.origins[row.origin] += 1
        if row.split == "train":
            self.groups[row.group] += 1
        if row.prompt is not self._last:  # the rows of one prompt come together and share it
            self._last = row.prompt
            self.prompts[row.split] += 1
        if isinstance(row, LabelRow):
            self.labels[row.split, row.label] += 1
        if isinstance(row, PairRow):
            self.unequal += len(row.chosen) != len(row.rejected)
            self.longer += len(row.chosen) > len(row.rejected)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.splits.total()

    @property
    def counts(self) -> dict[str, int]:
        """split -> rows, every split named."""
        return {split: self.splits[split] for split in SPLITS}

    def of_label(self, label: bool) -> int:
        """Rows with this label."""
        return sum(count for (_, own), count in self.labels.items() if own is label)

    def warnings(self) -> list[str]:
        """What a person should know before training on these rows."""
        return [text for text in (self._largest(), *self._empty(), self._length()) if text]

    def _largest(self) -> str:
        train = self.splits["train"]
        most = self.groups.most_common(1)[0][1] if self.groups else 0
        if len(self.groups) < 2 or train < ENOUGH or most < LARGEST * train:
            return ""
        return f"one group (session or prompt) gives {most / train:.0%} of the training rows; the model may learn that one only"

    def _empty(self) -> list[str]:
        empty = [split for split in ("dev", "gate") if self.rows and not self.splits[split]]
        return [f"no row fell into {split}; a split by group needs more prompts or sessions" for split in empty]

    def _length(self) -> str:
        if self.unequal < ENOUGH or self.longer < LONGER * self.unequal:
            return ""
        return f"the better answer is the longer one in {self.longer / self.unequal:.0%} of the pairs; the model may learn length instead"

    def to_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {"origins": dict(sorted(self.origins.items())), "drops": dict(sorted(self.drops.items())), "warnings": self.warnings()}
