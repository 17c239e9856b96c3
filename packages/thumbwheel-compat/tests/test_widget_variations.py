"""Every variation of a catalogue, and that each is a trace once it is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.compat.command_center.variations import run_of
from thumbwheel.core.errors import InputError

CATALOGUE = {"kpi": {"dial": "a dial", "bar": "a bar"}, "chatstream": "the chat"}
QUESTIONS = [{"id": "q1", "question": "How is pump 4?"}, {"id": "q2", "question": "And 5?"}]
DATA = {"kpi": [{"label": "Flow", "value": 3}, {"label": "Flow", "value": 9}]}


def written(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(value))
    return path


def test_every_variation_is_there_once(tmp_path: Path) -> None:
    catalogue = written(tmp_path, "catalog.json", CATALOGUE)
    questions = written(tmp_path, "bank.json", {"questions": QUESTIONS})
    data = written(tmp_path, "data.json", DATA)
    entries = run_of(catalogue, questions, data, ("normal", "hero"))["entries"]
    # two questions, two sizes, and (two fixtures on two samples + one fixture without any)
    assert len(entries) == 2 * 2 * (2 * 2 + 1)
    assert len({entry["entry_id"] for entry in entries}) == len(entries)
    assert {entry["fixture"] for entry in entries} == {"dial", "bar", "default-render"}
    assert all(entry["forced"] and entry["rating"] is None for entry in entries)


def test_ids_stay_when_a_catalogue_grows(tmp_path: Path) -> None:
    small = run_of(written(tmp_path, "a.json", {"kpi": ["dial"]}), None, None, ("hero",))
    large = run_of(written(tmp_path, "b.json", CATALOGUE), None, None, ("hero", "normal"))
    ids = {entry["entry_id"] for entry in large["entries"]}
    assert {entry["entry_id"] for entry in small["entries"]} <= ids


def test_what_is_generated_is_imported(command_line: Run, tmp_path: Path) -> None:
    written(tmp_path, "catalog.json", CATALOGUE)
    (tmp_path / "run").mkdir()
    out = "run/exhaustive_data.json"
    code, text, _ = command_line("widgets", "generate", "catalog.json", "--out", out, "--json")
    assert (code, json.loads(text)["entries"]) == (0, 12)
    code, text, _ = command_line("import", "widgets", out, "--agent", "w", "--json")
    assert (code, json.loads(text)["records"]["trace"]) == (0, 12)


@pytest.mark.parametrize(
    ("catalogue", "why"), [([], "no {scenario"), ({"kpi": {}}, "no fixture"), ({"kpi": [1]}, "no")]
)
def test_what_is_no_catalogue_is_refused(tmp_path: Path, catalogue: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        run_of(written(tmp_path, "c.json", catalogue), None, None, ("hero",))


def test_too_many_variations_are_refused(tmp_path: Path) -> None:
    catalogue = {"kpi": [f"f{number}" for number in range(60_000)]}
    with pytest.raises(InputError, match="240,000 variations"):
        run_of(written(tmp_path, "c.json", catalogue), None, None, ("a", "b", "c", "d"))
