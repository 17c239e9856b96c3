"""Statistics of the rows of one shape: counts for the plan and the manifest, and warnings about
what spoils a training.

They are collected some thousand rows at a time, in constant memory per group. Nothing here changes
or drops a row; checks of the texts themselves are in `health`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.datasets.types import SPLITS

LARGEST = 0.2
"""Share of the training rows from which one group is worth a warning."""
LONGER = 0.75
"""Share of pairs with a longer chosen answer from which a model would learn length itself."""
ENOUGH = 20
"""Rows below which a share means nothing."""
READS = (
    "split",
    "origin",
    "group",
    "label",
    "chosen",
    "rejected",
    "scale",
    "value",
    "values",
    "success",
)
"""Columns that the statistics read, if a shape has them."""

UNIT = (0.0, 1.0)

Columns = Mapping[str, Sequence[Any]]
"""Name of a field -> its values, one for each row."""


@dataclass(frozen=True)
class ScoreStatistics:
    """Statistics of numbers on `scale`; the deviation is that of a population."""

    count: int
    """How many numbers there are."""
    mean: float
    """Their mean."""
    deviation: float
    """Their standard deviation, as of a population."""
    least: float
    """The smallest one."""
    most: float
    """The largest one."""
    scale: list[float]
    """Worst and best number of the scale."""

    @classmethod
    def of(cls, values: Sequence[float], scale: list[float]) -> ScoreStatistics:
        """Return the statistics of at least one value."""
        return cls(
            len(values),
            statistics.fmean(values),
            statistics.pstdev(values),
            min(values),
            max(values),
            scale,
        )

    def __str__(self) -> str:
        span = (
            f"{self.least:.4g} to {self.most:.4g} on a scale of {self.scale[0]:g} to "
            f"{self.scale[1]:g}"
        )
        return (
            f"{self.count:,} numbers, mean {self.mean:.4g}, deviation {self.deviation:.4g}, {span}"
        )


@dataclass
class RowStats:
    """Statistics of rows; `take` each row once."""

    splits: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    """Of training rows."""
    gate_groups: set[str] = field(default_factory=set)
    """Groups of gate rows."""
    labels: Counter[tuple[str, bool]] = field(default_factory=Counter)
    scales: Counter[tuple[float, ...]] = field(default_factory=Counter)
    values: list[tuple[tuple[float, ...], list[float]]] = field(default_factory=list)
    """Scores of training rows, with their scale, batch by batch."""
    numbers: list[tuple[tuple[float, ...], float]] = field(default_factory=list)
    """Every number of every row, with its scale: of scored answers, of the members of groups, of
    how well answers to a prompt did."""
    longer: int = 0
    unequal: int = 0
    prompts: Counter[str] = field(default_factory=Counter)
    drops: Counter[str] = field(default_factory=Counter)

    def take(self, columns: Columns) -> None:
        """Count the rows that have these columns."""
        split = columns["split"]
        self.splits.update(split)
        self.origins.update(columns["origin"])
        in_group = list(zip(columns["group"], split, strict=True))
        self.groups.update(group for group, row_split in in_group if row_split == "train")
        self.gate_groups.update(group for group, row_split in in_group if row_split == "gate")
        if "label" in columns:
            self.labels.update(zip(split, columns["label"], strict=True))
        if "scale" in columns:
            rows = zip(columns["scale"], columns["value"], split, strict=True)
            scored = [(tuple(scale), value, row_split) for scale, value, row_split in rows]
            train = [(scale, value) for scale, value, row_split in scored if row_split == "train"]
            self._take_training_scores(train)
            self.numbers.extend((scale, value) for scale, value, _ in scored)
        if "values" in columns:
            for values in columns["values"]:
                self.numbers.extend((UNIT, value) for value in values)
        elif "success" in columns:
            self.numbers.extend((UNIT, value) for value in columns["success"] if value is not None)
        if "chosen" in columns:
            lengths = [
                (len(chosen), len(rejected))
                for chosen, rejected in zip(columns["chosen"], columns["rejected"], strict=True)
            ]
            self.unequal += sum(chosen != rejected for chosen, rejected in lengths)
            self.longer += sum(chosen > rejected for chosen, rejected in lengths)

    def _take_training_scores(self, scored: list[tuple[tuple[float, ...], float]]) -> None:
        values_on: dict[tuple[float, ...], list[float]] = {}
        for scale, value in scored:
            values_on.setdefault(scale, []).append(value)
        self.values.extend(values_on.items())
        self.scales.update(scale for scale, _ in scored)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.splits.total()

    @property
    def counts(self) -> dict[str, int]:
        """split -> rows, every split named."""
        return {split: self.splits[split] for split in SPLITS}

    def of_label(self, label: bool) -> int:
        """Count the rows with this label."""
        return sum(self.labels[split, label] for split in SPLITS)

    def scores(self) -> ScoreStatistics | None:
        """Return statistics of the numbers, on 0 to 1 if their scales differ; None without any."""
        if not self.numbers:
            return None
        scales = {scale for scale, _ in self.numbers}
        if len(scales) == 1:
            return ScoreStatistics.of([value for _, value in self.numbers], list(scales.pop()))
        units = [(value - low) / (high - low) for (low, high), value in self.numbers]
        return ScoreStatistics.of(units, list(UNIT))

    def warnings(self) -> list[str]:
        """Return the warnings to read before training on these rows."""
        return [text for text in (self._largest(), *self._empty(), self._length()) if text]

    def _largest(self) -> str:
        train = self.splits["train"]
        most = self.groups.most_common(1)[0][1] if self.groups else 0
        if len(self.groups) < 2 or train < ENOUGH or most < LARGEST * train:
            return ""
        return (
            f"one group (session or prompt) gives {most / train:.0%} of the training rows; the "
            "model may learn that one only"
        )

    def _empty(self) -> list[str]:
        empty = [split for split in ("dev", "gate") if self.rows and not self.splits[split]]
        return [
            f"no row fell into {split}; a split by group needs more prompts or sessions"
            for split in empty
        ]

    def _length(self) -> str:
        if self.unequal < ENOUGH or self.longer < LONGER * self.unequal:
            return ""
        return (
            f"the better answer is the longer one in {self.longer / self.unequal:.0%} of the "
            "pairs; the model may learn length instead"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the part of a manifest about these rows."""
        manifest: dict[str, Any] = {
            "origins": dict(sorted(self.origins.items())),
            "drops": dict(sorted(self.drops.items())),
            "warnings": self.warnings(),
        }
        scores = self.scores()
        if scores is not None:
            manifest["scores"] = asdict(scores)
        return manifest


def columns_of(rows: Sequence[Any]) -> Columns:
    """Return the columns that the statistics read, of rows of one class."""
    names = ["split", "origin", "group"]
    if rows:
        names = [name for name in READS if hasattr(rows[0], name)]
    return {name: [getattr(row, name) for row in rows] for name in names}
