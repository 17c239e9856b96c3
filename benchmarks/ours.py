"""One measured run of ours, offline or online method: the product's own assembly and loop, over
rows as its datasets hold them.

Settings are the defaults but for what the peers are told too: rate, schedule, rows a step, no
likelihood anchor (TRL has none), and for online methods the length and number of answers. The
reference cache is a new file; `warm` fills it before the clock starts. BENCH_KEEP names a folder in
which a reward model is kept, BENCH_REWARD_MODEL the one that ppo is rewarded by.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onerun import ALPHA, RANK, RATE, Clock, Spec, peak_bytes, report, same_start

from thumbwheel.engine.ranks import Ranks
from thumbwheel.training.assemble import Assembly, assemble, settings
from thumbwheel.training.checkpoint import Checkpoints
from thumbwheel.training.loop import Loop
from thumbwheel.training.metrics import MetricsFile
from thumbwheel.training.optimizer import prepare

OWN: dict[str, dict[str, Any]] = {
    "dpo": {"nll_weight": 0},
    "kto": {"nll_weight": 0},
    "sft": {},
    "reward": {},
    "grpo": {"reward_functions": ("variety:variety",)},
    "ppo": {"reward_functions": (), "reward_model": "rm1", "critic_warmup_steps": 0},
}
ONLINE = ("grpo", "ppo")
TRL_BATCH = {"default": 8, "tuned": 2}
"""Rows over which TRL's KTO takes its baseline, by configuration."""


class InOrder:
    """The rows as they come, because the peers are told to take them so."""

    def __init__(self, a_step: int, steps: int) -> None:
        self.a_step, self.steps, self.steps_an_epoch = a_step, steps, steps

    def batches(self, start: int = 0) -> Any:
        """Row numbers of each step."""
        return (
            range(step * self.a_step, (step + 1) * self.a_step) for step in range(start, self.steps)
        )

    def epoch(self, step: int) -> float:
        """Share of the rows that were seen."""
        return step / self.steps


def row(number: int, pair: dict[str, Any]) -> dict[str, Any]:
    """A row of a dataset."""
    fields = {
        "row_id": f"row_{number}",
        "group": str(number),
        "split": "train",
        "tools": None,
        "weight": 1.0,
    }
    more = {
        "finish_reason": None,
        "token_ids": None,
        "reference": None,
        "checker": None,
        "checker_config": None,
    }
    return fields | more | pair | {"prompt": [{"role": "user", "content": pair["prompt"]}]}


def values(spec: Spec) -> dict[str, Any]:
    """The settings."""
    options = OWN[spec.method] | {
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "warmup_ratio": 0,
        "batch_size": spec.a_step,
        "max_steps": spec.steps,
        "lora_r": RANK,
        "lora_alpha": ALPHA,
        "probe_prompts": 0,
        "dtype": "float32" if spec.precision == "fp32" else "auto",
    }
    if spec.method == "kto" and spec.kind in TRL_BATCH:
        options |= {"kl_scope": "micro", "kl_rows": TRL_BATCH[spec.kind]}
    if spec.kind == "shared":
        options["critic"] = "shared"
    if spec.method in ONLINE:
        options |= {
            "num_generations": spec.group,
            "max_completion_length": spec.new_tokens,
            "max_length": 2048,
        }
    return options


def prepared(spec: Spec, out: Path, ranks: Ranks | None = None) -> Assembly:
    """Everything but the loop, in one of `ranks`."""
    rows = [row(number, pair) for number, pair in enumerate(spec.load())]
    judge = os.environ.get("BENCH_REWARD_MODEL") if spec.method == "ppo" else None
    chosen = settings(spec.method, values(spec))
    assembly = assemble(
        spec.method,
        chosen,
        spec.model,
        Path(spec.model),
        {"train": rows, "dev": []},
        out / "reference.db",
        Path(judge) if judge else None,
        ranks=ranks,
    )
    same_start(assembly.model)
    if len(assembly.train.items) != len(rows):
        raise SystemExit(
            f"{len(rows) - len(assembly.train.items)} rows were dropped: {assembly.train.dropped}"
        )
    return assembly


def size(item: Any) -> int:
    """Tokens of an item, its prompt once."""
    return len(item.prompt) + sum(len(branch.ids) for branch in getattr(item, "branches", ()))


def keep_reward_model(assembly: Assembly, base: str, folder: Path) -> None:
    """In the form in which a run leaves one."""
    from thumbwheel.engine.load import base_fingerprint
    from thumbwheel.engine.reward_model import RewardModelCard

    assembly.model.save_pretrained(folder)
    assembly.builder.tokenizer.save_pretrained(folder)
    RewardModelCard(
        "bradley_terry", base, base_fingerprint(base), assembly.config.max_length
    ).write(folder)


def main() -> None:
    """Run and print."""
    spec = Spec.read()
    out = Path(os.environ["BENCH_OUT"])
    assembly = prepared(spec, out)
    order: Any = InOrder(spec.a_step, spec.steps)
    if spec.cache == "warm":
        for rows in order.batches():
            assembly.runner.evaluate([assembly.train.items[index] for index in rows])
    clock = Clock()
    trained = prepare(assembly.model, assembly.config, spec.steps, assembly.runner.groups())
    parts = (assembly.train.items, (), MetricsFile(out / "metrics.jsonl"), Checkpoints(out, 1))
    loop = Loop(assembly.runner, trained, assembly.config, *parts, callbacks=[clock])
    loop.order = order
    loop.run()
    peak = peak_bytes()  # before the processes that judge are gone
    assembly.runner.close()
    if keep := os.environ.get("BENCH_KEEP"):
        keep_reward_model(assembly, spec.model, Path(keep))
    sizes = [
        sum(map(size, (assembly.train.items[index] for index in rows))) for rows in order.batches()
    ]
    report(clock.seconds, clock.losses, assembly.train.scored or None, sizes, peak)


if __name__ == "__main__":
    main()
