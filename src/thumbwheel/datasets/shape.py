"""The contract of a shape: resolved evidence of one prompt in, rows out; pure, without database, clock or chance.

To add a shape: a row class (a dataclass derived from `types.Row`), one file in `shapes/` and one line in its table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from thumbwheel.core import ids
from thumbwheel.datasets.types import Answer, DatasetConfig, Drop, Evidence, Row


class Shape(ABC):
    """One kind of training rows. `trl_columns` turns a row into the columns that TRL reads."""

    name: ClassVar[str]
    row: ClassVar[type[Row]]
    unjudged: ClassVar[bool] = False
    """Also learns from prompts that no feedback is about."""

    @abstractmethod
    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[Row | Drop]:
        """The rows that the evidence of one prompt gives, and what gave none."""

    @abstractmethod
    def trl_columns(self, row: Any) -> dict[str, Any]:
        """The row as a trainer of TRL takes it: message lists, label."""

    def fit(self, rows: list[Any], config: DatasetConfig) -> tuple[list[Any], dict[str, Any]]:
        """What is fitted on the training rows: the rows with it applied, and what it is; most shapes fit nothing."""
        return rows, {}

    def missing(self, rows: Iterable[Any]) -> str | None:
        """What is missing before these rows can be trained on; None where nothing is."""
        return None if any(row.split == "train" for row in rows) else f"there are no {self.name} in train"


def base(
    shape: str, evidence: Evidence, answers: tuple[Answer, ...], origin: str, weight: float, feedback_ids: Iterable[str]
) -> dict[str, Any]:
    """The fields that every row has, for a row about `answers` (the first one gives the group)."""
    return {
        "row_id": ids.derived("row", shape, evidence.prompt_id, *(answer.text for answer in answers)),
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
