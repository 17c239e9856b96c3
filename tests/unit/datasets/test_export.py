"""Exports load back where they are meant for; the commands say what the verbs return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.opened_home import invoked
from tests.worlds.feedback_world import AGENT, World
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.export import export
from thumbwheel.datasets.files import read_parquet
from thumbwheel.datasets.types import Dataset, DatasetConfig, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.dataset_commands import dataset as commands

CONFIG = DatasetConfig(dev=0.3, gate=0.3)


@pytest.fixture
def ws(tmp_path: Path) -> Any:
    world = World()
    for number in range(30):
        trace = world.trace(
            f"t{number}", world.prompt(f"q{number}", system="be kind"), f"worse {number}"
        )
        world.say("correction", f"better {number}", trace)
    with world.into(tmp_path / "home") as opened:
        yield opened


def pairs(ws: Workspace) -> Dataset:
    return build(ws, AGENT, "pairs", CONFIG)


def test_jsonl_holds_every_row(ws: Workspace, tmp_path: Path) -> None:
    dataset = pairs(ws)
    folder = export(ws, dataset.id, tmp_path / "out", "jsonl")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert [line["row_id"] for line in lines] == [
        row.row_id for row in load_rows(ws, dataset.id, "train")
    ]
    assert lines[0]["prompt"][0] == {"role": "system", "content": "be kind"}
    assert json.loads((folder / "manifest.json").read_text())["fingerprint"] == dataset.fingerprint


def test_parquet_is_the_frozen_file(ws: Workspace, tmp_path: Path) -> None:
    dataset = pairs(ws)
    folder = export(ws, dataset.id, tmp_path / "out", "parquet")
    assert list(read_parquet(folder / "gate.parquet", PairRow)) == list(
        load_rows(ws, dataset.id, "gate")
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
    ws: Workspace, tmp_path: Path, shape: str, columns: set[str]
) -> None:
    hf = pytest.importorskip("datasets")
    dataset = build(ws, AGENT, shape, CONFIG)
    loaded = hf.load_from_disk(str(export(ws, dataset.id, tmp_path / shape, "hf")))
    assert {split: len(rows) for split, rows in loaded.items()} == dataset.counts
    assert set(loaded["train"].column_names) == columns | {"weight", "origin", "row_id"}
    first, row = loaded["train"][0], next(iter(load_rows(ws, dataset.id, "train")))
    assert first["row_id"] == row.row_id
    if shape == "pairs":
        assert first["prompt"] == row.prompt
        assert first["chosen"] == [{"role": "assistant", "content": row.chosen}]


def test_nothing_is_overwritten(ws: Workspace, tmp_path: Path) -> None:
    dataset = pairs(ws)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(InputError, match="nothing is overwritten"):
        export(ws, dataset.id, tmp_path / "full")
    with pytest.raises(InputError, match="Did you mean 'parquet'"):
        export(ws, dataset.id, tmp_path / "new", "parquett")
    assert not (tmp_path / "new").exists()


def test_commands(ws: Workspace, tmp_path: Path) -> None:
    def call(*arguments: str) -> Any:
        done = invoked(ws, commands, *arguments, "--json")
        assert done.exit_code == 0
        return json.loads(done.stdout)

    dataset = call("build", "--agent", AGENT, "--shape", "pairs", "--gate", "0.3", "--dev", "0.3")
    assert dataset["id"] == pairs(ws).id
    assert [listed["id"] for listed in call("list", "--agent", AGENT)] == [dataset["id"]]
    assert len(call("show", "latest", "--agent", AGENT, "--rows", "2")["rows"]) == 2
    assert "rows" in call("show", dataset["id"])
    assert (
        call("export", "pairs", "--agent", AGENT, "--to", str(tmp_path / "e"))["counts"]
        == dataset["manifest"]["counts"]
    )
    assert call("plan", "--agent", AGENT)["missing"]["dpo"] == {"pairs": 20}


def test_latest_needs_an_agent(ws: Workspace) -> None:
    pairs(ws)
    with pytest.raises(NotFound, match="together with --agent"):
        invoked(ws, commands, "show", "latest")


def test_commands_speak_to_people(ws: Workspace) -> None:
    pairs(ws)
    for arguments in (["show", "latest"], ["list"], ["plan"]):
        done = invoked(ws, commands, *arguments, "--agent", AGENT)
        assert done.exit_code == 0
        assert "better" in done.stdout or "pairs" in done.stdout
