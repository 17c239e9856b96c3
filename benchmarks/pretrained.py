"""What a training costs the general skill of a pretrained base, by rate, steps and replay.

    python benchmarks/pretrained.py --seed 1

One seed of `router`: SmolLM2-135M-Instruct as it comes, corrections of which a tenth are wrong, the
method's own runner and schedule. A setting is METHOD:RATE:STEPS:REPLAY, as sft:8e-4:50:10. After
the last step gold requests are asked, and the general questions that the base answers, and nats of
a general text are counted. A run's own evaluations and checkpoints are left out: the last weights
count.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from pathlib import Path
from statistics import mean
from typing import Any

import raw
from worlds.answers import answer
from worlds.corrected import WRONGLY
from worlds.general_skill import GeneralSkill
from worlds.router import TEAMS, TUNE_POOL, example_of, requests
from worlds.smollm2 import smollm2
from worlds.taught import trained

from thumbwheel.engine.load import load_base
from thumbwheel.training.algorithm import SplitRows
from worlds import WORLDS

GOLD = 150
DEFAULT = "sft:1.3e-3:50:0,sft:1.3e-3:50:10,sft:8e-4:50:10,sft:4e-4:50:10,sft:4e-4:50:0"


def main() -> None:
    """Measure every setting and write what was measured after each."""
    arguments = parser().parse_args()
    rng = random.Random(f"pretrained:{arguments.seed}")
    is_tuning = arguments.seed in WORLDS["router"].tune
    pool = requests()[:TUNE_POOL] if is_tuning else requests()[TUNE_POOL:]
    drawn = rng.sample(pool, arguments.rows + GOLD)
    rated = [example_of(message) for message in drawn[: arguments.rows]]
    gold = [example_of(message) for message in drawn[arguments.rows :]]
    folder = smollm2()
    base = load_base(str(folder))
    skill = GeneralSkill(base)
    recorded = [text for text, _ in answer(base, [example.prompt for example in rated], 5)]
    rows = []
    for number, (example, text) in enumerate(zip(rated, recorded, strict=True)):
        team = example.answer
        if rng.random() < WRONGLY:
            team = rng.choice([other for other in TEAMS.values() if other != team])
        rows.append(
            {
                "prompt": example.prompt,
                "completion": team,
                "chosen": team,
                "rejected": text,
                "rejected_finish": "length",
                "weight": 1.0,
                "group": str(number),
                "origin": "correction",
            }
        )
    del base
    results: list[dict[str, Any]] = []
    for setting in arguments.settings.split(","):
        for row in measure(setting, folder, rows, gold, skill, arguments.batch):
            results.append(row)
            print(
                f"{row['setting']:22} step {row['step']:3}  gold {100 * row['gold']:5.1f}  "
                f"general {100 * row['general']:5.1f} of {row['questions']}  "
                f"unseen {100 * row['unseen']:5.1f} of {row['unseen_questions']}  "
                f"{row['nats_before']:.2f} -> {row['nats']:.2f} nats  loss {row['loss']:.3f}  "
                f"{row['seconds']:.0f} s",
                flush=True,
            )
            raw.write(arguments.json, seed=arguments.seed, batch=arguments.batch, rows=results)


def parser() -> argparse.ArgumentParser:
    """The options."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(arguments, "pretrained")
    arguments.add_argument(
        "--seed", type=int, default=1, help="of router: 1 to 3 for tuning, 4 to 6 for proving"
    )
    arguments.add_argument("--rows", type=int, default=60, help="corrections")
    arguments.add_argument("--batch", type=int, default=16, help="rows an optimiser step")
    arguments.add_argument("--settings", default=DEFAULT, help="comma-separated")
    return arguments


def measure(
    setting: str, folder: Path, rows: SplitRows, gold: Any, skill: GeneralSkill, batch: int
) -> list[dict[str, Any]]:
    """Train by one setting; return what is right and what is left at its end."""
    method, rate, steps, replay = setting.split(":")
    started = time.monotonic()
    options = {
        "learning_rate": float(rate),
        "max_steps": int(steps),
        "replay_weight": float(replay),
        "batch_size": batch,
    }
    if method == "kto":
        rows = labelled(rows)
    result = trained(method, options, folder, rows)
    seconds = time.monotonic() - started
    tuned = (result.model, result.tokenizer)
    answers = answer(tuned, [example.prompt for example in gold], 5)
    left = skill.of(tuned)
    return [
        {
            "setting": setting,
            "step": int(steps),
            "gold": mean(
                float(text.strip() == example.answer)
                for (text, _), example in zip(answers, gold, strict=True)
            ),
            "general": mean(left.solved),
            "questions": len(left.solved),
            "unseen": mean(left.unseen),
            "unseen_questions": len(left.unseen),
            "nats_before": skill.before.nats,
            "nats": left.nats,
            "loss": mean(result.losses[-5:]),
            "seconds": seconds,
            "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
    ]


def labelled(rows: SplitRows) -> SplitRows:
    """Return the corrections as a liked and a disliked answer each."""
    answers = []
    for row in rows:
        shared = {name: row[name] for name in ("prompt", "weight", "group", "origin")}
        answers.append(shared | {"completion": row["chosen"], "label": True})
        answers.append(
            shared
            | {
                "completion": row["rejected"],
                "finish_reason": row["rejected_finish"],
                "label": False,
            }
        )
    return answers


if __name__ == "__main__":
    main()
