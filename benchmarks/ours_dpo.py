"""One measured run of our DPO: `ours_dpo.py MODEL PAIRS_FILE STEPS PAIRS_A_STEP`; prints one JSON line, as peer_trl.py does.

The product's own loop, method, engine and reference cache (cold: a new file) on the token sequences that TRL makes of the same pairs,
in the same order, with the same LoRA modules, learning rate and schedule, at our defaults for precision and token budget.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
from transformers import TrainerCallback

from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.refcache import RefCache
from thumbwheel.engine.score import ScoreEngine
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithms.dpo import Dpo, DpoConfig
from thumbwheel.training.checkpoint import Checkpoints
from thumbwheel.training.hardware import choose_dtype, count_parameters
from thumbwheel.training.loop import Loop
from thumbwheel.training.metrics import MetricsFile
from thumbwheel.training.optimizer import prepare
from thumbwheel.training.step import Stepper


class Clock(TrainerCallback):
    """Seconds of each optimiser step."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_, **__):
        """Start."""
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        """Stop."""
        self.seconds.append(time.perf_counter() - self.start)


class InOrder:
    """The rows as they come, because the peers are told to take them so."""

    def __init__(self, pairs, steps):
        self.pairs, self.steps, self.steps_an_epoch = pairs, steps, steps

    def batches(self, start):
        """Row numbers of each step."""
        return (range(step * self.pairs, (step + 1) * self.pairs) for step in range(start, self.steps))

    def epoch(self, step):
        """Share of the rows that were seen."""
        return step / self.steps


def examples(tokenizer, rows):
    """Prompt ids and completion ids with EOS, as TRL makes them of plain strings."""

    def ids(text):
        return tuple(tokenizer(text)["input_ids"])

    made = []
    for number, row in enumerate(rows):
        prompt = ids(row["prompt"])
        both = [(*ids(row["prompt"] + row[side])[len(prompt) :], tokenizer.eos_token_id) for side in ("chosen", "rejected")]
        made.append(
            Example(prompt, tuple(Branch(one, role=side) for one, side in zip(both, ("chosen", "rejected"), strict=True)), str(number))
        )
    return made


def main():
    """Run and print."""
    model_path, pairs_file, steps, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    out = Path(os.environ["BENCH_OUT"])
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    rows = json.loads(Path(pairs_file).read_text())[: steps * pairs]
    same = {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_ratio": 0, "nll_weight": 0}  # as the peers are told
    config = DpoConfig(**same, batch_size=pairs, max_steps=steps, logging_steps=1)
    model, tokenizer = load_base(model_path, choose_dtype(config.dtype, count_parameters(model_path)))
    adapted, _ = attach_lora(model, LoraSettings(rank=16, alpha=32), seed=0)
    stepper = Stepper(ScoreEngine(adapted), Dpo(config), RefCache(out / "reference.db"), config.token_budget)
    clock, metrics = Clock(), MetricsFile(out / "metrics.jsonl")
    loop = Loop(
        stepper, prepare(adapted, config, steps), config, examples(tokenizer, rows), (), metrics, Checkpoints(out, 1), callbacks=[clock]
    )
    loop.order = InOrder(pairs, steps)
    loop.run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    losses = [line["loss"] for line in loop.state.log_history if "loss" in line]
    print("RESULT " + json.dumps({"seconds": clock.seconds, "losses": losses, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
