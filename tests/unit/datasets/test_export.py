"""Exports load back where they are meant for; the commands say what the verbs return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.opened_home import invoked
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.export import export
from thumbwheel.datasets.files import read_parquet
from thumbwheel.datasets.types import Dataset, DatasetConfig, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.dataset_commands import dataset as commands

CONFIG = DatasetConfig(dev=0.3, gate=0.3)


@pytest.fixture
def exportable_feedback(tmp_path: Path) -> Any:
    world = FeedbackWorld()
    for number in range(30):
        trace = world.trace(
            f"t{number}", world.prompt(f"q{number}", system="be kind"), f"worse {number}"
        )
        world.say("correction", f"better {number}", trace)
    with world.into(tmp_path / "home") as opened:
        yield opened


def pairs(ws: Workspace) -> Dataset:
    return build(ws, AGENT, "pairs", CONFIG)


def test_jsonl_holds_every_row(exportable_feedback: Workspace, tmp_path: Path) -> None:
    dataset = pairs(exportable_feedback)
    folder = export(exportable_feedback, dataset.id, tmp_path / "out", "jsonl")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert [line["row_id"] for line in lines] == [
        row.row_id for row in load_rows(exportable_feedback, dataset.id, "train")
    ]
    assert lines[0]["prompt"][0] == {"role": "system", "content": "be kind"}
    assert json.loads((folder / "manifest.json").read_text())["fingerprint"] == dataset.fingerprint


def test_json_is_a_list_of_the_same_rows(exportable_feedback: Workspace, tmp_path: Path) -> None:
    dataset = pairs(exportable_feedback)
    lines = export(exportable_feedback, dataset.id, tmp_path / "lines", "jsonl")
    lists = export(exportable_feedback, dataset.id, tmp_path / "lists", "json")
    for split in ("train", "dev", "gate"):
        rows = [json.loads(line) for line in (lines / f"{split}.jsonl").read_text().splitlines()]
        assert json.loads((lists / f"{split}.json").read_text()) == rows


def test_a_split_without_rows_is_an_empty_list(
    exportable_feedback: Workspace, tmp_path: Path
) -> None:
    whole = build(exportable_feedback, AGENT, "pairs", DatasetConfig(dev=0, gate=0))
    folder = export(exportable_feedback, whole.id, tmp_path / "out", "json")
    assert json.loads((folder / "gate.json").read_text()) == []


def test_parquet_is_the_frozen_file(exportable_feedback: Workspace, tmp_path: Path) -> None:
    dataset = pairs(exportable_feedback)
    folder = export(exportable_feedback, dataset.id, tmp_path / "out", "parquet")
    assert list(read_parquet(folder / "gate.parquet", PairRow)) == list(
        load_rows(exportable_feedback, dataset.id, "gate")
    )


@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        ("pairs", {"prompt", "chosen", "rejected"}),
        ("chats", {"messages"}),
        ("labels", {"prompt", "completion", "label"}),
    ],
)
def test_hugging_face_loads_it_in_the_columns_of_trl(
    exportable_feedback: Workspace, tmp_path: Path, shape: str, columns: set[str]
) -> None:
    hf = pytest.importorskip("datasets")
    dataset = build(exportable_feedback, AGENT, shape, CONFIG)
    loaded = hf.load_from_disk(str(export(exportable_feedback, dataset.id, tmp_path / shape, "hf")))
    assert {split: len(rows) for split, rows in loaded.items()} == dataset.counts
    assert set(loaded["train"].column_names) == columns | {"weight", "origin", "row_id"}
    first, row = loaded["train"][0], next(iter(load_rows(exportable_feedback, dataset.id, "train")))
    assert first["row_id"] == row.row_id
    if shape == "pairs":
        assert first["prompt"] == row.prompt
        assert first["chosen"] == [{"role": "assistant", "content": row.chosen}]


def test_nothing_is_overwritten(exportable_feedback: Workspace, tmp_path: Path) -> None:
    dataset = pairs(exportable_feedback)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(InputError, match="never overwritten"):
        export(exportable_feedback, dataset.id, tmp_path / "full")
    with pytest.raises(InputError, match="Did you mean 'parquet'"):
        export(exportable_feedback, dataset.id, tmp_path / "new", "parquett")
    assert not (tmp_path / "new").exists()


def test_commands(exportable_feedback: Workspace, tmp_path: Path) -> None:
    def call(*arguments: str) -> Any:
        done = invoked(exportable_feedback, commands, *arguments, "--json")
        assert done.exit_code == 0
        return json.loads(done.stdout)

    dataset = call("build", "--agent", AGENT, "--shape", "pairs", "--gate", "0.3", "--dev", "0.3")
    assert dataset["id"] == pairs(exportable_feedback).id
    assert [listed["id"] for listed in call("list", "--agent", AGENT)] == [dataset["id"]]
    assert len(call("show", "latest", "--agent", AGENT, "--rows", "2")["rows"]) == 2
    assert "rows" in call("show", dataset["id"])
    assert (
        call("export", "pairs", "--agent", AGENT, "--to", str(tmp_path / "e"))["counts"]
        == dataset["manifest"]["counts"]
    )
    assert call("plan", "--agent", AGENT)["missing"]["dpo"] == {"pairs": 20}


def test_latest_needs_an_agent(exportable_feedback: Workspace) -> None:
    pairs(exportable_feedback)
    with pytest.raises(NotFound, match="together with --agent"):
        invoked(exportable_feedback, commands, "show", "latest")


def test_commands_speak_to_people(exportable_feedback: Workspace) -> None:
    pairs(exportable_feedback)
    for arguments in (["show", "latest"], ["list"], ["plan"]):
        done = invoked(exportable_feedback, commands, *arguments, "--agent", AGENT)
        assert done.exit_code == 0
        assert "better" in done.stdout or "pairs" in done.stdout
