"""What a file would become: columns, counts and problems, before anything is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.core.present import without_commands
from thumbwheel.datasets.preview import FilePreview, preview_file
from thumbwheel.db.workspace import any_case
from thumbwheel.importers.detect import Options
from thumbwheel.importers.mapping import MEANINGS
from thumbwheel.server.pages.imports import MEANING_NAMES


def preview(path: Path, text: str, *columns: str, scale: str | None = None) -> FilePreview:
    path.write_text(text)
    options = Options.parsed([*columns], [scale] if scale else None)
    return preview_file(path, "desk", case_rule=any_case, options=options)


def meanings(shown: FilePreview) -> dict[str, str | None]:
    return {column.name: column.meaning for column in shown.columns}


def test_guesses_and_counts(tmp_path: Path) -> None:
    shown = preview(
        tmp_path / "a.csv",
        "question,answer,stars,rater\nHow?,So.,5,ann\nWhy?,No.,1,ben\nWho?,I.,3,ann\nBad,row\n",
    )
    assert meanings(shown) == {
        "question": "prompt",
        "answer": "response",
        "stars": "rating",
        "rater": "rater",
    }
    assert all(column.is_guessed for column in shown.columns)
    assert (shown.good, shown.bad, shown.neither, shown.refused) == (1, 1, 1, 1)
    assert (shown.read, shown.importable) == (4, 3)
    assert [row.good for row in shown.rows] == [True, False, None, None]
    assert shown.refusals[0]["number"] == 5
    assert shown.problem is None


@pytest.mark.parametrize(
    ("scale", "good", "bad"), [("rating=6:1", 2, 1), ("rating=1:6", 1, 2), ("rating=1:10", 0, 2)]
)
def test_the_lowest_number_may_be_the_best(tmp_path: Path, scale: str, good: int, bad: int) -> None:
    text = "question,answer,note\nHow?,So.,1\nWhy?,No.,2\nWho?,I.,6\n"
    shown = preview(tmp_path / "a.csv", text, "rating=note", scale=scale)
    assert (shown.good, shown.bad) == (good, bad)


def test_true_and_false_can_change_places(tmp_path: Path) -> None:
    text = '{"question": "How?", "answer": "So.", "flag": true}\n'
    shown = preview(tmp_path / "a.jsonl", text, "thumb=flag", scale="thumb=true:false")
    assert (shown.good, shown.bad) == (0, 1)


def test_a_table_that_nobody_knows_is_shown_with_a_proposal(tmp_path: Path) -> None:
    shown = preview(tmp_path / "a.csv", "frage,antwort,note\nHow?,So.,5\nWhy?,No.,1\n")
    assert shown.problem is not None and shown.problem.field == "columns"
    assert meanings(shown) == {"frage": "prompt", "antwort": "response", "note": "rating"}
    assert [row.cells for row in shown.rows] == [["How?", "So.", "5"], ["Why?", "No.", "1"]]
    assert (shown.read, shown.good) == (0, 0)


def test_a_mark_inside_an_object_is_a_column(tmp_path: Path) -> None:
    text = '{"question": "How?", "answer": "So.", "feedback": {"stars": 5, "by": "ann"}}\n'
    shown = preview(tmp_path / "a.jsonl", text, "rater=feedback.by")
    assert meanings(shown)["feedback.stars"] == "rating"
    assert shown.good == 1 and "by ann" in shown.rows[0].records[0]


def test_the_first_twenty_rows_and_few_values(tmp_path: Path) -> None:
    rows = "".join(f"Q{number}?,A{number}.,{('up', 'down')[number % 2]}\n" for number in range(99))
    shown = preview(tmp_path / "a.csv", f"question,answer,thumb\n{rows}")
    assert len(shown.rows) == 20 and shown.read == 99
    values = {column.name: list(column.values) for column in shown.columns}
    assert values == {"question": [], "answer": [], "thumb": ["up", "down"]}


def test_our_own_lines_are_no_table(tmp_path: Path) -> None:
    lines = (
        '{"type": "trace", "id": "t", "input": "How?", "output": "So."}\n'
        '{"type": "feedback", "target": {"trace": "t"}, "kind": "thumb", "value": false}\n'
    )
    shown = preview(tmp_path / "a.jsonl", lines)
    assert shown.source == "jsonl" and shown.columns == []
    assert (shown.rows[0].question, shown.rows[0].answer) == ("How?", "So.")
    assert (shown.good, shown.bad) == (0, 1)


def test_a_file_that_nobody_can_read_has_a_problem(tmp_path: Path) -> None:
    shown = preview(tmp_path / "a.csv", "")
    assert shown.source is None and shown.rows == ()
    assert shown.problem is not None and shown.problem.why == "it is empty"


def test_advice_for_a_command_line_is_left_out() -> None:
    reason = "rating 9 is outside its scale, 1 to 5; another one: --scale rating=WORST:BEST"
    assert without_commands(reason) == "rating 9 is outside its scale, 1 to 5"
    assert without_commands("Make it JSON, then: thumbwheel import openai") == "Make it JSON"
    assert without_commands("Give a file with rows") == "Give a file with rows"


def test_every_meaning_of_a_column_has_a_name_on_the_page() -> None:
    assert set(MEANING_NAMES) == {*MEANINGS, "metadata"}
