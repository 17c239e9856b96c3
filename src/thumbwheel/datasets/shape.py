"""The interface of a shape: evidence of one prompt in, rows out. Pure: no database, clock or
randomness.

What depends on all rows is fitted on statistics of them (`fit`) and applied to columns of some rows
at a time (`finish`), so that no dataset has to fit into memory.

To add a shape: a row class (a dataclass derived from `types.Row`, not frozen), one file in
`shapes/` and one line in its table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar

from thumbwheel.core import ids
from thumbwheel.datasets.row_stats import Columns, RowStats
from thumbwheel.datasets.types import DatasetConfig, Drop, Evidence, JudgedText, Row


class Shape(ABC):
    """One kind of training rows. `trl_columns` turns a row into the columns that TRL reads."""

    name: ClassVar[str]
    teaches: ClassVar[str]
    """What a method does that learns from it, as "imitates good answers"."""
    row: ClassVar[type[Row]]
    unjudged: ClassVar[bool] = False
    """Also uses prompts without feedback."""
    merges: ClassVar[bool] = False
    """Takes the evidence of prompts that differ in white space, case and Unicode forms only as that
    of one prompt."""
    adjusts: ClassVar[tuple[str, ...]] = ()
    """Columns that `finish` reads."""

    @abstractmethod
    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[Row | Drop]:
        """Yield the rows of the evidence of one prompt, and a Drop for everything that became no
        row."""

    @abstractmethod
    def trl_columns(self, row: Any) -> dict[str, Any]:
        """Return the row as a trainer of TRL reads it: message lists, label."""

    def fit(self, stats: RowStats, config: DatasetConfig) -> dict[str, Any]:
        """Return the values fitted on statistics of the training rows; most shapes fit nothing."""
        return {}

    def finish(self, columns: Columns, fitted: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the columns that the fitted values change, for some rows; `columns` are those that
        `adjusts` names."""
        return {}

    def missing(self, stats: RowStats) -> str | None:
        """Return what is missing before the rows can be trained on; None if nothing is."""
        return None if stats.splits["train"] else f"there are no {self.name} in train"


def base(
    shape: str,
    evidence: Evidence,
    answers: tuple[JudgedText, ...],
    origin: str,
    weight: float,
    feedback_ids: Iterable[str],
) -> dict[str, Any]:
    """Return the fields that every row has, for a row about `answers` (the first one gives the
    group)."""
    texts = [answer.text for answer in answers]
    trace_ids = set(chain.from_iterable(answer.trace_ids for answer in answers))
    subject_ids = set(chain.from_iterable(answer.subject_ids for answer in answers))
    return {
        "row_id": ids.derived("row", shape, evidence.prompt_id, *texts),
        "group": answers[0].group,
        "split": evidence.split,
        "prompt": evidence.prompt,
        "tools": evidence.tools,
        "weight": weight,
        "origin": origin,
        "feedback_ids": sorted(set(feedback_ids)),
        "trace_ids": sorted(trace_ids),
        "subject_ids": sorted(subject_ids),
    }


def assistant(text: str) -> list[dict[str, str]]:
    """Return `text` as the message list of one answer."""
    return [{"role": "assistant", "content": text}]
