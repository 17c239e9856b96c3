"""Short runs of every method, on as many ranks as there are: `python -m tests.rank_runs OUT BASE
PHASES`, with torchrun's variables; tests/unit/training/test_ranks.py starts it.

A phase is a method, whose curve and weights are written below OUT; `stop METHOD`, which ends after
two steps; `resume METHOD`, which goes on with that; `shortage METHOD`, in which the last rank runs
out of memory; or `wide METHOD` and `shard METHOD`, with batches that are cut for the ranks and
answers to dev prompts, in which each rank holds the base or a part of it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.training_rows import assembled, loop_of, plain_rows
from thumbwheel.core import ids
from thumbwheel.engine.ranks import Ranks
from thumbwheel.engine.shards import held_bytes
from thumbwheel.training.process import probe_of

SHAPES = {
    "sft": "chats",
    "dpo": "pairs",
    "kto": "labels",
    "reward": "pairs",
    "grpo": "prompts",
    "ppo": "prompts",
}
SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "token_budget": 128,
    "max_steps": 3,
    "eval_steps": 2,
    "save_steps": 2,
    "replay_weight": None,
    "early_stopping_patience": None,
    "load_best_model_at_end": False,
}
ANSWERING: dict[str, Any] = {
    "max_completion_length": 10,
    "num_generations": 3,
    "reward_functions": ("tests.reward_functions:length",),
    "reward_workers": 1,
    "batch_size": 5,
}
WIDE: dict[str, Any] = {
    "batch_size": 16,
    "token_budget": 512,
    "max_steps": 4,
    "probe_prompts": 2,
    "probe_tokens": 6,
}
STOPPED_AT = 2


def rows_of(shape: str) -> list[dict[str, Any]]:
    """Rows of which two share a prompt."""
    rows = plain_rows(shape, 16, 5)
    rows[3]["prompt"] = rows[1]["prompt"]
    return rows


def run(ranks: Ranks, out: Path, base: Path, phase: str) -> None:
    """Train, and write the curve, the weights' hash in each rank, and how much each computed."""
    import torch
    from safetensors.torch import save_file

    action, _, name = phase.rpartition(" ")
    folder = out / (f"parts-{name}" if action in ("stop", "resume") else phase.replace(" ", "-"))
    folder.mkdir(parents=True, exist_ok=True)
    changes = SETTINGS | (ANSWERING if SHAPES[name] == "prompts" else {})
    if name == "sft":
        changes["replay_weight"] = 0.5
    if action in ("wide", "shard"):
        changes |= WIDE
    assembly = assembled(name, base, folder, rows_of(SHAPES[name]), members=ranks, **changes)
    engine = assembly.engine
    if action == "shard":
        engine.shard_base()
    whole, computed = engine._score, [0]

    def counted(batch: Any, *more: Any) -> Any:
        computed[0] += 1
        if action == "shortage" and ranks.rank == ranks.world - 1 and computed[0] == 1:
            raise RuntimeError("out of memory, says the test")
        return whole(batch, *more)

    engine._score = counted  # type: ignore[method-assign]

    def interrupted() -> bool:
        return ranks.is_first and action == "stop" and loop.state.global_step == STOPPED_AT

    loop = loop_of(assembly, folder, interrupted=interrupted, probe=probe_of(assembly))
    ending = loop.run(STOPPED_AT if action == "resume" else None)
    assembly.runner.close()

    weights = {
        name: parameter.detach().clone()
        for name, parameter in assembly.model.named_parameters()
        if parameter.requires_grad
    }
    flat = torch.cat([weight.reshape(-1) for weight in weights.values()])
    facts = {
        "rank": ranks.rank,
        "step": ending.step,
        "interrupted": ending.interrupted,
        "computed": computed[0],
        "weights": ids.fingerprint(flat.tolist()),
        "budget": assembly.runner.budget.tokens,
        "held_bytes": held_bytes(engine.language_model),
    }
    (folder / f"facts-{ranks.rank}.json").write_text(json.dumps(facts))
    if ranks.is_first:
        save_file(weights, folder / "weights.safetensors")


def main(arguments: list[str]) -> None:
    """Run the phases."""
    import torch

    torch.set_num_threads(1)
    out, base, phases = arguments
    ranks = Ranks.join(os.environ)
    for phase in phases.split(","):
        run(ranks, Path(out), Path(base), phase)
    ranks.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
