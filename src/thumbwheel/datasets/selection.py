"""Selects the rows of a dataset from the spilled ones: at most some rows of training or of a
subject, and as many of one class as of the other.

Rows come in the order of their ids, which are hashes, so the kept rows are a fair sample, and the
same in whatever order they arrived. Filters of prompts, answers and feedback are applied earlier
(`evidence`, `aggregate_prompt`), where they save work.
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
        """Return, for each of these rows, whether it stays."""


class _Limit(Filter):
    """The first rows of train."""

    def __init__(self, most: int) -> None:
        super().__init__((), f"more than {most} training rows")
        self._left = most

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        rows = len(columns["row_id"])
        if split != "train":
            return [True] * rows
        count = min(rows, self._left)
        self._left -= count
        return [True] * count + [False] * (rows - count)


class _PerSubject(Filter):
    """The first rows of every subject; a row of several counts for each."""

    def __init__(self, most: int) -> None:
        super().__init__(("subject_ids",), f"more than {most} rows of one subject")
        self._most = most
        self._rows_of: Counter[tuple[str, str]] = Counter()

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        mask = []
        for subjects in columns["subject_ids"]:
            keep = all(self._rows_of[split, subject] < self._most for subject in subjects)
            if keep:
                self._rows_of.update((split, subject) for subject in subjects)
            mask.append(keep)
        return mask


class _Downsample(Filter):
    """As many rows of train with one label as with the other."""

    def __init__(self, stats: RowStats) -> None:
        counts = {label: stats.labels["train", label] for label in (True, False)}
        larger = max(counts, key=lambda label: counts[label])
        word = "desirable" if larger else "undesirable"
        super().__init__(
            ("label",), f"more {word} labels in train than others (balance: downsample)"
        )
        self._larger, self._left = larger, min(counts.values()) or max(counts.values())

    def keeps(self, split: str, columns: Columns) -> list[bool]:
        mask = []
        for label in columns["label"]:
            is_limited = split == "train" and label is self._larger
            mask.append(not is_limited or self._left > 0)
            self._left -= is_limited
        return mask


class Selection:
    """The spilled rows that the filters keep, and statistics of them. Each filter is one pass over
    the rows."""

    def __init__(self, spilled: SpillReader, config: DatasetConfig, stats: RowStats) -> None:
        """Apply the filters of `config`. `stats` has the drops and prompts so far; the drops of the
        filters are added to it."""
        self.columns, self._spilled = spilled.columns, spilled
        self._masks: dict[str, list[list[bool]]] = {}
        if config.limit:
            self._apply(_Limit(config.limit), stats)
        if config.per_subject:
            self._apply(_PerSubject(config.per_subject), stats)
        self.stats = self._stats_of_kept(stats)
        if config.balance == "downsample" and "label" in self.columns.kinds:
            self._apply(_Downsample(self.stats), stats)
            self.stats = self._stats_of_kept(stats)

    def tables(self, split: str, names: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the kept rows of `split` in the order of their ids, some thousand at once."""
        for number, table in enumerate(self._spilled.tables(split, names)):
            yield table.filter(self._masks[split][number]) if split in self._masks else table

    def _apply(self, row_filter: Filter, stats: RowStats) -> None:
        for split in SPLITS:
            masks = []
            earlier = self._masks.get(split)
            for number, table in enumerate(self._spilled.tables(split, list(row_filter.reads))):
                mask = earlier[number] if earlier else [True] * table.num_rows
                verdicts = iter(row_filter.keeps(split, table.filter(mask).to_pydict()))
                masks.append([was_kept and next(verdicts) for was_kept in mask])
                stats.drops[row_filter.reason] += sum(mask) - sum(masks[-1])
            self._masks[split] = masks
        stats.drops = +stats.drops

    def _stats_of_kept(self, stats: RowStats) -> RowStats:
        of_kept = RowStats(drops=stats.drops, prompts=stats.prompts)
        names: list[Any] = [name for name in READS if name in self.columns.kinds]
        for split in SPLITS:
            for table in self.tables(split, names):
                of_kept.take(table.to_pydict())
        return of_kept
