"""What the benchmark tells its contestants: TRL's own batch, the same rows an update whatever runs
it."""

from __future__ import annotations

import os

os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "CI": "1"}

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import raw
import training
from onerun import Spec
from peer_trl import options


def spec(method: str, kind: str, processes: int = 1, cache: str = "cold") -> Spec:
    group = 8 if method == "grpo" else 1
    return Spec(
        method,
        "",
        "",
        kind,
        "fp32",
        cache,
        2,
        training.A_STEP[method],
        group=group,
        processes=processes,
    )


@pytest.mark.parametrize("method", ["dpo", "kto", "sft", "reward", "grpo"])
@pytest.mark.parametrize(("kind", "processes"), [("default", 1), ("tuned", 1), ("tuned", 2)])
def test_every_contestant_updates_on_the_same_rows(method: str, kind: str, processes: int) -> None:
    shown_options = options(spec(method, kind, processes))
    rows = (
        shown_options["per_device_train_batch_size"]
        * shown_options["gradient_accumulation_steps"]
        * processes
    )
    assert rows == training.A_STEP[method] * (8 if method == "grpo" else 1)


@pytest.mark.parametrize("name", ["DPO", "KTO", "SFT", "Reward", "GRPO"])
def test_the_default_is_the_batch_of_trl(name: str) -> None:
    import trl

    shown_options = options(spec(name.lower(), "default"))
    assert (
        shown_options["per_device_train_batch_size"]
        == getattr(trl, f"{name}Config")("nowhere", bf16=False).per_device_train_batch_size
    )


def test_the_contestants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.Match, "spec", lambda match, steps: spec(match.method, "ours"))
    contestant_names = training.contestants(
        training.Match("kto", "26m", "pairs", "cold"), ["default", "tuned", "tuned-2proc"], 2
    )
    two, script = contestant_names["tuned-2proc"]
    assert (two.kind, two.processes, script) == ("tuned", 2, "peer_trl.py")
    launched = training.launcher(two)
    assert (
        launched[:4] == ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
        and training.launcher(contestant_names["tuned"][0]) == []
    )
    assert "tuned-2proc" not in training.contestants(
        training.Match("ppo", "26m", "pairs", "cold"), ["tuned-2proc"], 2
    )
    assert training.losses(two, script, None) is None  # type: ignore[arg-type] # another baseline than ours


def test_figures_say_how_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/gate.py", "--runs", "3"])
    raw.write(tmp_path / "results" / "gate.json", rows=[1, 2])
    figures: dict[str, Any] = json.loads((tmp_path / "results" / "gate.json").read_text())
    assert figures["rows"] == [1, 2]
    assert figures["conditions"]["command"] == "python benchmarks/gate.py --runs 3"
    assert {"date", "cpu", "cores", "commit", "python", "load"} <= figures["conditions"].keys()


def test_every_benchmark_keeps_its_figures_where_they_belong() -> None:
    parser = training.parser("floor")
    arguments: Namespace = parser.parse_args([])
    assert arguments.json == raw.RESULTS / "floor.json"
    for path in raw.RESULTS.parent.glob("*.py"):
        text = path.read_text()
        if 'add_argument("--json"' in text:
            assert path.name in ("raw.py", "shuffled.py"), path
