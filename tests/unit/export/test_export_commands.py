"""The command `export` by the names that other systems have for its formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.models.tiny_models import tuned_version
from thumbwheel.db.workspace import Workspace

SPELLINGS = {
    ("--merge",): ("merged", "model.safetensors"),
    ("--merge", "--format", "merged"): ("merged", "model.safetensors"),
    ("--format", "merged"): ("merged", "model.safetensors"),
    ("--format", "lora"): ("adapter", "adapter_model.safetensors"),
    ("--format", "onnx"): ("onnx", "decode.onnx"),
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", SPELLINGS, ids=" ".join)
def test_a_format_by_each_of_its_names(
    empty_ws: Workspace,
    tiny_model: Path,
    adapter: Path,
    command_line: Run,
    arguments: tuple[str, ...],
    tmp_path: Path,
) -> None:
    tuned_version(empty_ws, tiny_model, adapter)
    format, file = SPELLINGS[arguments]
    code, out, err = command_line(
        "export", "v1", "--agent", "support", *arguments, "--to", "out", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["format"] == format
    assert (tmp_path / "out" / file).is_file()


@pytest.mark.parametrize("format", ["lora", "adapter", "gguf", "onnx"])
def test_merge_and_another_format_are_a_contradiction(
    command_line: Run, format: str, tmp_path: Path
) -> None:
    code, _, err = command_line("export", "v1", "--agent", "support", "--merge", "--format", format)
    output = " ".join(err.split())
    assert code == 2
    assert (
        f"--merge with --format {format}: --merge means --format merged, and an export has one "
        "format" in output
    )
    assert "Leave out one of them" in output
    assert not list(tmp_path.glob("support-*"))


def test_help_names_them(command_line: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    output = command_line("export", "--help")[1]
    assert "adapter or lora" in output
    assert "The same as --format merged." in output
