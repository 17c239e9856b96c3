"""Tables of strangers: no file of some kilobytes keeps whoever reads it busy for hours."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.importers.columnar_child import ROWS_OF_SMALL
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.tables import columnar_rows, csv_rows

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


@pytest.mark.parametrize("count", [ROWS_OF_SMALL, ROWS_OF_SMALL + 1, 2_000_000_000])
def test_columns_without_a_value_make_no_millions_of_rows(tmp_path: Path, count: int) -> None:
    """A column of nulls takes no byte, so that some hundred bytes can claim any number of rows."""
    import pyarrow as pa

    path = tmp_path / "nulls.arrow"
    batch = pa.record_batch({"prompt": pa.nulls(count), "response": pa.nulls(count)})
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    assert path.stat().st_size < 1000
    rows = columnar_rows(path, ignore_position)
    if count == ROWS_OF_SMALL:
        assert sum(1 for _ in rows) == count
        return
    with pytest.raises(InputError, match="rows in"):
        next(iter(rows))
