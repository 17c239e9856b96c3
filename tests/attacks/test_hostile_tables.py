"""Tables of strangers: no file of some kilobytes keeps whoever reads it busy for hours."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.tables import csv_rows

SECONDS = 10
"""Of the processor; a second is enough for each of the files."""


def processor_seconds_of_reading(path: Path) -> float:
    began = time.process_time()
    assert [problem for _, _, _, problem in csv_rows(path, ignore_position)] != []
    return time.process_time() - began


@pytest.mark.parametrize("line", ["\n", "x\n", '""\n'])
def test_a_cell_of_many_lines_is_not_counted_anew_for_each(tmp_path: Path, line: str) -> None:
    """A quote that is never closed makes one record of all lines that follow."""
    path = tmp_path / "open.csv"
    path.write_text('prompt,response\nHi,"a' + line * 200_000)
    assert processor_seconds_of_reading(path) < SECONDS


def test_many_records_of_many_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    cell = "x\n" * 1000
    path.write_text("prompt,response\n" + f'Hi,"{cell}"\n' * 500)
    rows = list(csv_rows(path, ignore_position))
    assert len(rows) == 500
    assert {row["response"] for _, row, _, _ in rows} == {cell}
    assert processor_seconds_of_reading(path) < SECONDS
