"""A turn of the loop needs a base; without one it is refused before it plans, with a proposal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Run


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("--dry-run",)])
def test_a_turn_without_a_base_is_refused_before_its_plan(
    option: tuple[str, ...],
    command_line: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    trace = {"type": "trace", "id": "t", "input": "a", "output": "b"}
    (tmp_path / "one.jsonl").write_text(json.dumps(trace))
    assert command_line("import", "jsonl", "one.jsonl", "--agent", "support")[0] == 0
    code, out, err = command_line("loop", "run", "--agent", "support", *option)
    assert (code, out) == (2, "")
    assert "Name it: --base smollm2-135m (" in err and "Apache-2.0" in err
    assert "thumbwheel models available" in err and "data plan" not in err
