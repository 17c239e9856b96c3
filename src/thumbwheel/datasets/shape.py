"""The contract of a shape: resolved evidence of one prompt in, rows out; pure, without database,
clock or chance.

What depends on all rows is fitted on figures about them (`fit`) and applied to columns of some rows
at a time (`finish`), so that no dataset has to fit into memory.

To add a shape: a row class (a dataclass derived from `types.Row`, not frozen), one file in
`shapes/` and one line in its table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from thumbwheel.core import ids
from thumbwheel.datasets.row_stats import Columns, RowStats
from thumbwheel.datasets.types import Answer, DatasetConfig, Drop, Evidence, Row


class Shape(ABC):
    """One kind of training rows. `trl_columns` turns a row into the columns that TRL reads."""

    name: ClassVar[str]
    row: ClassVar[type[Row]]
    unjudged: ClassVar[bool] = False
    """Also learns from prompts that no feedback is about."""
    merges: ClassVar[bool] = False
    """Sees the evidence of prompts that differ in white space, case and Unicode forms only as that
    of one prompt."""
    adjusts: ClassVar[tuple[str, ...]] = ()
    """Columns that `finish` reads."""

    @abstractmethod
    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[Row | Drop]:
        """The rows that the evidence of one prompt gives, and what gave none."""

    @abstractmethod
    def trl_columns(self, row: Any) -> dict[str, Any]:
        """The row as a trainer of TRL takes it: message lists, label."""

    def fit(self, facts: RowStats, config: DatasetConfig) -> dict[str, Any]:
        """What is fitted on the training rows, from figures about them; most shapes fit nothing."""
        return {}

    def finish(self, columns: Columns, fitted: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Those columns of some rows that change with what was fitted; `columns` are those that
        `adjusts` names."""
        return {}

    def missing(self, facts: RowStats) -> str | None:
        """What is missing before the rows can be trained on; None where nothing is."""
        return None if facts.splits["train"] else f"there are no {self.name} in train"


def base(
    shape: str,
    evidence: Evidence,
    answers: tuple[Answer, ...],
    origin: str,
    weight: float,
    feedback_ids: Iterable[str],
) -> dict[str, Any]:
    """The fields that every row has, for a row about `answers` (the first one gives the group)."""
    return {
        "row_id": ids.derived(
            "row", shape, evidence.prompt_id, *(answer.text for answer in answers)
        ),
        "group": answers[0].group,
        "split": evidence.split,
        "prompt": evidence.prompt,
        "tools": evidence.tools,
        "weight": weight,
        "origin": origin,
        "feedback_ids": sorted(set(feedback_ids)),
        "trace_ids": sorted({one for answer in answers for one in answer.trace_ids}),
        "subject_ids": sorted({one for answer in answers for one in answer.subject_ids}),
    }


def assistant(text: str) -> list[dict[str, str]]:
    """`text` as the message list of one answer."""
    return [{"role": "assistant", "content": text}]
