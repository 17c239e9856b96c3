"""The result of a command, as JSON and as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from pydantic import BaseModel

from thumbwheel.core import ids, log, present
from thumbwheel.evaluation.policy import GatePolicy


@dataclass(frozen=True)
class Part:
    name: str
    path: Path


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Moment:
    when: datetime


class MomentModel(BaseModel):
    when: datetime


PARTS = [Part("a", Path("/x")), Part("b", Path("/y"))]
COLUMNS = {"part": lambda part: part.name, "where": lambda part: part.path}


def test_json_has_the_fields_or_what_the_command_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = [{"name": "a", "path": "/x"}, {"name": "b", "path": "/y"}]
    present.show_answer(present.records(PARTS, "parts", COLUMNS), json=True)
    assert json.loads(capsys.readouterr().out) == plain
    present.show_answer(present.record(Whole(tuple(PARTS)), "whole", []), json=True)
    assert json.loads(capsys.readouterr().out) == {"parts": plain}
    present.show_answer(
        present.records(PARTS, "parts", COLUMNS, data={"parts": PARTS, "count": 2}), json=True
    )
    assert json.loads(capsys.readouterr().out) == {"parts": plain, "count": 2}
    present.show_answer(present.records([], "parts", COLUMNS), json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_times_in_json_are_of_rfc_3339_in_dataclasses_and_in_models() -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    in_india = noon.astimezone(timezone(timedelta(hours=5.5)))
    spelled = json.loads(
        present.json_text([Moment(noon), MomentModel(when=noon), Moment(in_india)])
    )
    assert [moment["when"] for moment in spelled] == [
        "2026-01-05T12:00:00Z",
        "2026-01-05T12:00:00Z",
        "2026-01-05T17:30:00+05:30",
    ]


def test_tables_have_a_row_for_each_value_or_property(capsys: pytest.CaptureFixture[str]) -> None:
    present.show_answer(present.records(PARTS, "parts", COLUMNS), json=False)
    present.show_answer(
        present.record(PARTS[0], "part", [("name", "a"), ("note", None)]), json=False
    )
    out = capsys.readouterr().out
    assert all(text in out for text in ("parts", "where", "/y", "note"))


def test_a_message_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    present.show_answer(present.message(PARTS[0], "done"), json=False)
    assert capsys.readouterr() == ("", "done\n")
    present.show_answer(present.message(PARTS[0], "done"), json=True)
    assert json.loads(capsys.readouterr().out)["name"] == "a"


def test_a_page_keeps_its_order_and_parts_remarks_from_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = ["first", present.Table("t", ("a",), [("cell",)]), present.Note("aside"), "[red]last"]
    present.show_answer(present.page({}, parts), json=False)
    out, err = capsys.readouterr()
    assert out.index("first") < out.index("cell") < out.index("[red]last")
    assert err == "aside\n"


def test_a_page_is_not_computed_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    def parts() -> Iterator[str]:
        raise AssertionError
        yield ""

    present.show_answer(present.page({"policy": GatePolicy(min_cases=7)}, parts()), json=True)
    assert json.loads(capsys.readouterr().out)["policy"]["min_cases"] == 7


@pytest.fixture
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log.console.cache_clear()


@pytest.mark.usefixtures("eighty_columns")
def test_a_table_that_is_too_wide_abbreviates_ids_and_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row_ids = [ids.derived("trc", str(number)) for number in range(40)]
    rows = [(row_id, "text " * 12) for row_id in row_ids]
    present.show([present.Table("t", ("id", "text"), rows)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    shown = [cell for cell in cells if cell]
    assert [sum(row_id.startswith(cell) for row_id in row_ids) for cell in shown] == [1] * 40
    assert all(ids.stands_for(cell, row_id) for cell, row_id in zip(shown, row_ids, strict=True))


@pytest.mark.usefixtures("eighty_columns")
def test_a_table_that_fits_shows_whole_ids(capsys: pytest.CaptureFixture[str]) -> None:
    row_id = ids.new("run")
    present.show([present.Table("t", ("id",), [(row_id,)])])
    assert row_id in capsys.readouterr().out


def test_ids_made_in_the_same_millisecond_stay_apart() -> None:
    cells = [[f"run_{'0' * 20}{end}"] for end in ("aaa", "aab", "baa")]
    short = [row[0] for row in present._with_short_ids(cells)]
    assert short == ["run_" + "0" * 20 + "aaa", "run_" + "0" * 20 + "aab", "run_" + "0" * 20 + "b"]


@pytest.mark.usefixtures("eighty_columns")
def test_a_table_breaks_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/models/smollm2-135m"
    texts = ["uninterruptedness " * 6, "a few short words and more of them " * 3]
    rows = [("first-column-name", text, path, "yes") for text in texts]
    present.show([present.Table("t", ("name", "text", "path", "live"), rows)])
    out = capsys.readouterr().out
    assert "│" in out and max(map(len, out.splitlines())) <= 80
    words = set(re.findall(r"[\w/.-]+", out))
    assert {"first-column-name", "uninterruptedness", path, "yes"} <= words
    assert not {
        word for word in words if word not in " ".join([*texts, *rows[0], "t name text path live"])
    }


@pytest.mark.usefixtures("eighty_columns")
def test_a_table_that_cannot_fit_becomes_lists(capsys: pytest.CaptureFixture[str]) -> None:
    paths = ["/a" * 30, "/b" * 30]
    present.show([present.Table("paths", ("from", "to", "note"), [(*paths, "as it was")])])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["paths", "", f"from: {paths[0]}", f"to: {paths[1]}", "note: as it was"]


@pytest.mark.usefixtures("eighty_columns")
def test_a_text_without_spaces_between_words_folds(capsys: pytest.CaptureFixture[str]) -> None:
    present.show([present.Table("t", ("id", "text"), [("a", "好" * 100)])])
    out = capsys.readouterr().out
    assert out.count("好") == 100 and "│" in out


def test_an_empty_table_is_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    answer = present.records([], "parts", COLUMNS, empty="no parts yet; next: make some")
    present.show_answer(answer, json=False)
    assert capsys.readouterr() == ("", "no parts yet; next: make some\n")
    sent = [present.part_of_json(present.part_to_json(part)) for part in answer.parts]
    present.show(sent)
    assert capsys.readouterr() == ("", "no parts yet; next: make some\n")
    present.show_answer(answer, json=True)
    assert json.loads(capsys.readouterr().out) == []
