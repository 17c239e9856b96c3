"""The commands: the answer on standard output, everything else on standard error, bad input as one
clear error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.importers.sources import SOURCES

LINES = (
    '{"type": "trace", "id": "t1", "session": "s1", "input": "hi", "output": "ho"}\n'
    '{"type": "feedback", "id": "f1", "target": {"trace": "t1"}, "kind": "rating", "value": 7}\n'
    '{"type": "case", "id": "c1", "input": "hi", "reference": "ho"}\n'
)


@pytest.fixture
def run(command_line: Run, tmp_path: Path) -> Run:
    (tmp_path / "lines.jsonl").write_text(LINES)
    return command_line


def answer(result: tuple[int, str, str], code: int = 0) -> Any:
    assert result[0] == code, result
    return json.loads(result[1])


def test_import_and_its_report(run: Run, tmp_path: Path) -> None:
    dry = answer(
        run("import", "jsonl", "lines.jsonl", "--agent", "a", "--dry-run", "--json"), code=4
    )
    assert (dry["read"], dry["stored"], dry["refused"], dry["dry_run"]) == (3, 0, 1, True)
    first = answer(
        run("import", "jsonl", "lines.jsonl", "--agent", "a", "--json", "--rejects", "bad.jsonl"),
        code=4,
    )
    assert (first["read"], first["stored"], first["duplicates"], first["refused"]) == (3, 2, 0, 1)
    assert first["refusals"] == [{"number": 2, "reason": "rating 7 is outside its scale, 1 to 5"}]
    assert json.loads((tmp_path / "bad.jsonl").read_text())["text"] == LINES.splitlines()[1]
    gold = answer(run("import", "jsonl", "lines.jsonl", "--agent", "a", "--json", "--gold"), code=4)
    assert (gold["stored"], gold["duplicates"]) == (1, 1)
    code, out, err = run("import", "jsonl", "lines.jsonl", "--agent", "a")
    assert code == 4
    assert "outside its scale" in out
    assert "--rejects" in err


def test_an_import_says_what_the_columns_are_and_what_comes_next(run: Run, tmp_path: Path) -> None:
    rows = "question,reply,thumb,customer\nHow long?,Two days.,up,c1\nOpen now?,Maybe.,down,c2\n"
    (tmp_path / "rated.csv").write_text(rows)
    for option in ("--dry-run", "--timezone=UTC"):
        code, _, err = run("import", "csv", "rated.csv", "--agent", "desk", option)
        assert code == 0
        assert "prompt <- question (guessed from its name)" in err
        assert "response <- reply (guessed from its name)" in err
    assert "What it would teach: thumbwheel dataset plan --agent desk" in err
    again = answer(run("import", "csv", "rated.csv", "--agent", "desk", "--json"))
    assert len(again["columns"]) == 3 and again["duplicates"] == 2
    # the next step is a step where something is new
    assert "dataset plan" not in run("import", "csv", "rated.csv", "--agent", "desk")[2]
    # a source with keys of its own has no columns
    lines = answer(run("import", "jsonl", "lines.jsonl", "--agent", "a", "--json"), code=4)
    assert lines["columns"] == []


def test_feedback_and_cases(run: Run) -> None:
    run("import", "jsonl", "lines.jsonl", "--agent", "a")
    up = answer(
        run("feedback", "add", "t1", "--agent", "a", "--thumb", "up", "--rater", "ann", "--json")
    )
    assert (up["kind"], up["value"]) == ("thumb", True)
    for signal in (
        ["--rating", "4"],
        ["--score", ".5"],
        ["--correction", "x"],
        ["--label", "spam=true"],
        ["--outcome", "done=0.5"],
        ["--comment", "x"],
    ):
        assert run("feedback", "add", "t1", "--agent", "a", *signal)[0] == 0
    assert run("feedback", "add", "t1", "--agent", "a", "--retracts", up["id"])[0] == 0
    stats = answer(run("feedback", "stats", "--agent", "a", "--json"))
    assert set(stats["signals"]) == {
        "rating",
        "score",
        "correction",
        "label spam",
        "outcome done",
        "comment",
    }
    assert (stats["replaced"], stats["unresolved"]) == (1, 0)
    assert len(answer(run("feedback", "list", "--agent", "a", "--limit", "3", "--json"))) == 3
    assert "ann" in run("feedback", "list", "--agent", "a", "--kind", "thumb")[1]
    assert "rating" in run("feedback", "stats", "--agent", "a")[1]
    added = answer(
        run(
            "case",
            "add",
            "--agent",
            "a",
            "--input",
            "x",
            "--reference",
            "y",
            "--slice",
            "topic=mail",
            "--json",
        )
    )
    assert added["ids"][0].startswith("cas_")
    listed = answer(run("case", "list", "--agent", "a", "--json"))
    assert listed["counts"] == {"feedback": 1, "gold": 1}
    assert "topic" in json.dumps(listed["cases"])
    assert "gold" in run("case", "list", "--agent", "a", "--basis", "gold")[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["import", "jsonl", "missing.jsonl", "-a", "a"], "No such file"),
        (["import", "jsonl", ".", "-a", "a"], "it is a directory"),
        (["import", "jsonl", sys.executable, "-a", "a"], "binary"),
        (["import", "jsonl", "lines.jsonl", "-a", "../?"], "agent name"),
        (["import", "json", "lines.jsonl", "-a", "a"], "Did you mean 'jsonl'"),
        (["import", "graded", "lines.jsonl", "-a", "a"], "It looks like source 'jsonl'"),
        (["feedback", "add", "t1", "-a", "a", "--rating", "nan"], "not a finite number"),
        (["feedback", "add", "t1", "-a", "a", "--rating", "6"], "outside its scale"),
        (["feedback", "add", "t1", "-a", "a", "--score", "inf"], "not a finite number"),
        (["feedback", "add", "t1", "-a", "a", "--thumb", "sideways"], "up or down"),
        (["feedback", "add", "t1", "-a", "a"], "exactly one"),
        (["feedback", "add", "t1", "-a", "a", "--thumb", "up", "--rating", "3"], "exactly one"),
        (["feedback", "add", "t1", "-a", "a", "--label", "spam"], "not NAME=VALUE"),
        (["feedback", "add", "t9", "-a", "a", "--thumb", "up"], "no trace or session"),
        (["feedback", "list", "-a", "a", "--kind", "thum"], "Did you mean 'thumb'"),
        (["feedback", "stats", "-a", "b"], "no such agent"),
        (["case", "add", "-a", "a", "--input", "x"], "neither"),
        (["case", "add", "-a", "a", "--file", "lines.jsonl"], "JSON"),
        (
            ["case", "add", "-a", "a", "--input", "x", "--reference", "y", "--slice", "z"],
            "KEY=VALUE",
        ),
    ],
)
def test_bad_input_is_one_clear_error(run: Run, arguments: list[str], why: str) -> None:
    run("import", "jsonl", "lines.jsonl", "-a", "a")
    before = run("feedback", "stats", "-a", "a", "--json")[1]
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert why in err.replace("\n", " ")
    assert "Traceback" not in err
    assert run("feedback", "stats", "-a", "a", "--json")[1] == before


def test_help_shows_a_line_of_every_source(run: Run) -> None:
    code, out, _ = run("import", "--help")
    assert code == 0
    for word in ('"type": "trace"', '"chosen"', '"annotator1"', '"is_correct"'):
        assert word in out
    for name in SOURCES.names():
        assert name in out, f"the help of import does not name the source {name}"


def test_an_id_may_be_abbreviated_as_in_git(run: Run) -> None:
    run("import", "jsonl", "lines.jsonl", "--agent", "a")
    up = answer(
        run("feedback", "add", "t1", "--agent", "a", "--thumb", "up", "--rater", "ann", "--json")
    )
    trace_id = answer(run("feedback", "list", "--agent", "a", "--json"))[0]["targets"][0][
        "target_id"
    ]
    explained = answer(run("reward", "explain", trace_id[:12], "--agent", "a", "--json"))
    assert explained == answer(run("reward", "explain", trace_id, "--agent", "a", "--json"))
    assert up["id"] in run("feedback", "used-in", up["id"][:14], "--agent", "a", "--json")[1]
    code, _, err = run("reward", "explain", "trc_", "--agent", "a")
    assert (code, "there is none" in err) == (2, True)


def test_an_abbreviated_id_of_several_is_refused_with_their_names() -> None:
    row_ids = ["run_06h0jvn7i0138", "run_06h0jvn7i1l6p"]
    with pytest.raises(InputError, match="run_06h0jvn7i0138, run_06h0jvn7i1l6p"):
        ids.require_single(
            "run_06h0", [row_id for row_id in row_ids if ids.stands_for("run_06h0", row_id)]
        )
