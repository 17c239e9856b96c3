"""Rows of a dataset by pages: any page is what the whole list has there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from thumbwheel.datasets.files import read_parquet, write_parquet, write_tables
from thumbwheel.datasets.types import PromptRow


@dataclass(frozen=True)
class Stored:
    """A file of a hundred rows, in groups of seven."""

    path: Path

    def texts(self, skip: int) -> list[str]:
        return [row.row_id for row in read_parquet(self.path, PromptRow, skip)]


def row(number: int) -> PromptRow:
    return PromptRow(
        row_id=f"row_{number:03}",
        group="g",
        split="train",
        prompt=[{"role": "user", "content": str(number)}],
        tools=None,
        weight=1.0,
        origin="case",
        feedback_ids=[],
        trace_ids=[],
        subject_ids=[],
        reference=None,
        checker=None,
        checker_config=None,
        case_id=None,
    )


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    whole = tmp_path / "whole.parquet"
    write_parquet(whole, PromptRow, [row(number) for number in range(100)])
    table = pq.read_table(whole)
    path = tmp_path / "groups.parquet"
    groups = [table.slice(start, 7) for start in range(0, 100, 7)]
    write_tables(path, table.schema, groups)
    return Stored(path)


@pytest.mark.parametrize("skip", [0, 1, 6, 7, 8, 50, 99, 100, 1000])
def test_a_page_is_what_the_whole_list_has_there(stored: Stored, skip: int) -> None:
    assert stored.texts(skip) == [f"row_{number:03}" for number in range(skip, 100)]
