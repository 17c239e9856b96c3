"""Which of the spilled rows are kept: most rows of training and of a subject, and as many of one
class as of the other.

Rows come in the order of their ids, which are hashes, so what is kept is a fair sample and the same
whatever arrived first. Filters of prompts, answers and feedback are applied earlier (`read_evidence`,
`resolve`), where they spare work. To add a filter: a `Filter` here and its line in `filters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from thumbwheel.datasets.files import SpillReader
from thumbwheel.datasets.row_stats import READS, Columns, RowStats
from thumbwheel.datasets.types import SPLITS, DatasetConfig

if TYPE_CHECKING:
    import pyarrow as pa


class Filter(ABC):
    """Goes once over all rows, split by split."""

    def __init__(self, reads: tuple[str, ...], reason: str) -> None:
        self.reads, self.reason = reads, reason

    @abstractmethod
    def keeps(self, split: str, columns: Columns) -> list[bool]:
        """For each of these rows whether it stays."""


class _Limit(Filter):
    """The first rows of train."""

    def __init__(self, most: int) -> None:
        super().__init__((), f"more than {most} training rows")
        self._left = most

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        rows = len(columns["row_id"])
        if split != "train":
            return [True] * rows
        kept = min(rows, self._left)
        self._left -= kept
        return [True] * kept + [False] * (rows - kept)


class _PerSubject(Filter):
    """The first rows of every subject; a row of several counts for each."""

    def __init__(self, most: int) -> None:
        super().__init__(("subject_ids",), f"more than {most} rows of one subject")
        self._most = most
        self._met: Counter[tuple[str, str]] = Counter()

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        found = []
        for subjects in columns["subject_ids"]:
            keep = all(self._met[split, subject] < self._most for subject in subjects)
            self._met.update((split, subject) for subject in subjects if keep)
            found.append(keep)
        return found


class _Downsample(Filter):
    """As many rows of train with one label as with the other."""

    def __init__(self, facts: RowStats) -> None:
        counts = {label: facts.labels["train", label] for label in (True, False)}
        larger = max(counts, key=lambda label: counts[label])
        word = "desirable" if larger else "undesirable"
        super().__init__(
            ("label",), f"more {word} labels in train than others (balance: downsample)"
        )
        self._larger, self._left = larger, min(counts.values()) or max(counts.values())

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        found = []
        for label in columns["label"]:
            counted = split == "train" and label is self._larger
            found.append(not counted or self._left > 0)
            self._left -= counted
        return found


class Selection:
    """The spilled rows that are kept, and figures about them; passes over the rows only where a
    filter asks for one."""

    def __init__(self, spilled: SpillReader, config: DatasetConfig, facts: RowStats) -> None:
        self.columns, self._spilled = spilled.columns, spilled
        self._masks: dict[str, list[list[bool]]] = {}
        early = [
            *([_Limit(config.limit)] if config.limit else []),
            *([_PerSubject(config.per_subject)] if config.per_subject else []),
        ]
        for one in early:
            self._apply(one, facts)
        self.facts = self._counted(facts)
        if config.balance == "downsample" and "label" in self.columns.kinds:
            self._apply(_Downsample(self.facts), facts)
            self.facts = self._counted(facts)

    def tables(self, split: str, names: list[str] | None = None) -> Iterator[pa.Table]:
        """The kept rows of `split` in the order of their ids, some thousand at once."""
        for place, table in enumerate(self._spilled.tables(split, names)):
            yield table.filter(self._masks[split][place]) if split in self._masks else table

    def _apply(self, one: Filter, facts: RowStats) -> None:
        for split in SPLITS:
            masks = []
            before = self._masks.get(split)
            for place, table in enumerate(self._spilled.tables(split, list(one.reads))):
                mask = before[place] if before else [True] * table.num_rows
                kept = iter(one.keeps(split, table.filter(mask).to_pydict()))
                masks.append([was and next(kept) for was in mask])
                facts.drops[one.reason] += sum(mask) - sum(masks[-1])
            self._masks[split] = masks
        facts.drops = +facts.drops

    def _counted(self, facts: RowStats) -> RowStats:
        found = RowStats(drops=facts.drops, prompts=facts.prompts)
        names: list[Any] = [name for name in READS if name in self.columns.kinds]
        for split in SPLITS:
            for table in self.tables(split, names):
                found.take(table.to_pydict())
        return found
