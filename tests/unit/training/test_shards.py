"""Ranks that each hold a part of the base: the same numbers as one process that holds all of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.models.tiny_models import tiny_base
from tests.rank_runs import run
from tests.training_rows import QUICK, frozen
from tests.unit.training.test_ranks import Curves, assert_same, members
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.ranks import Ranks
from thumbwheel.models.types import Agent
from thumbwheel.training.assemble import settings
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import runs, train
from thumbwheel.training.types import RunState

pytestmark = pytest.mark.timeout(1800)
LAYER_BYTES = 2 * 9344 * 4
"""Of the frozen weights of the tiny base's two layers, in float32."""
METHODS = ("dpo", "sft", "kto", "reward")


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Curves, Curves]:
    """The same runs in one process, and in two ranks that share out the base."""
    folder = tmp_path_factory.mktemp("shards")
    base = tiny_base(folder / "base", initializer_range=0.1)
    for method in METHODS:
        run(Ranks(), folder / "1", base, f"wide {method}")
    phases = ",".join(f"shard {method}" for method in METHODS)
    for member in members(2, "tests.rank_runs", str(folder / "2"), str(base), phases):
        output, _ = member.communicate(timeout=900)
        assert member.returncode == 0, output
    return Curves(folder / "1"), Curves(folder / "2")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_ranks_with_parts_of_the_base_compute_what_one_process_computes(
    curves: tuple[Curves, Curves], method: str
) -> None:
    alone, shared = curves
    assert_same(shared, f"shard-{method}", alone, f"wide-{method}")
    facts = shared.facts(f"shard-{method}")
    assert len({fact["weights"] for fact in facts}) == 1
    # Both ran equally many batches, and none computed nearly everything.
    (whole,) = alone.facts(f"wide-{method}")
    assert facts[0]["computed"] == facts[1]["computed"] < 0.7 * whole["computed"]
    # Of the layers each holds half; embeddings and head are whole.
    held_alone, full = whole["held_bytes"]
    assert held_alone == full
    for fact in facts:
        held, same = fact["held_bytes"]
        assert same == full
        assert full - held == pytest.approx(LAYER_BYTES / 2, rel=0.01)
    if method == "dpo":
        assert any("eval_eos_rate" in line for line in shared.lines("shard-dpo"))


@pytest.mark.slow
def test_a_run_of_two_ranks_shares_out_its_base(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    options = QUICK | {"ranks": 2, "shard_base": True, "max_steps": 2, "require_gain": False}
    agent = Agent.named("a")
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "chats", 12, 4)
        base = find_base(str(tiny_model), ws.home.cache)
        done = train(ws, agent, "sft", base, dataset=dataset, options=options)
        assert (done.state, done.version) == (RunState.FINISHED, "v1")
        folder = RunDir(ws.home.runs / runs(ws, agent)[0].id).path
        for name in ("log.txt", "log-1.txt"):
            assert "this rank holds" in (folder / name).read_text()


@pytest.mark.parametrize(
    ("method", "more", "why"),
    [
        ("sft", {"quantization": "nf4"}, "plain numbers"),
        ("dpo", {"tuning": "full"}, "plain numbers"),
        ("grpo", {}, "needs the whole base in each rank"),
        ("ppo", {}, "needs the whole base in each rank"),
    ],
    ids=["nf4", "full", "grpo", "ppo"],
)
def test_a_base_that_cannot_be_shared_out_is_refused(
    method: str, more: dict[str, str], why: str
) -> None:
    with pytest.raises((ConfigError, ValidationError), match=why):
        settings(method, {"shard_base": True, "ranks": 2} | more)
