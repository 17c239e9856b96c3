"""Tables for a terminal of 80 columns."""

from __future__ import annotations

import pytest

from thumbwheel.core import ids, log


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log.console.cache_clear()


def test_a_table_that_is_too_wide_abbreviates_ids_and_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row_ids = [ids.derived("trc", str(number)) for number in range(40)]
    log.table("t", ("id", "text"), [(row_id, "text " * 12) for row_id in row_ids])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    shown = [cell for cell in cells if cell]
    assert [sum(row_id.startswith(cell) for row_id in row_ids) for cell in shown] == [1] * 40
    assert all(ids.stands_for(cell, row_id) for cell, row_id in zip(shown, row_ids, strict=True))


def test_a_table_that_fits_shows_whole_ids(capsys: pytest.CaptureFixture[str]) -> None:
    row_id = ids.new("run")
    log.table("t", ("id",), [(row_id,)])
    assert row_id in capsys.readouterr().out


def test_ids_made_in_the_same_millisecond_stay_apart() -> None:
    cells = [[f"run_{'0' * 20}{end}"] for end in ("aaa", "aab", "baa")]
    short = [row[0] for row in log._with_short_ids(cells)]
    assert short == ["run_" + "0" * 20 + "aaa", "run_" + "0" * 20 + "aab", "run_" + "0" * 20 + "b"]
