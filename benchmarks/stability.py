"""Do the defaults hold? Every method over ten persons of the demo world, and over ten seeds on
strings that are written backwards.

    python benchmarks/stability.py --persons 11-20 --tasks demo [--methods
    sft,dpo,kto,reward,grpo_offline,grpo,ppo] [--thumbs 2000] python benchmarks/stability.py --seeds
    10 --tasks strings

A person is a world of its own: habits, mails, answers and feedback. Defaults were chosen on person
1 (and those of reward models on 1 to 3), so others show what they are worth; without `--persons`
the demo runs are ten training seeds over person 1. A reward model's row is its accuracy on the dev
labels, and of fresh noise-free pairs the share that it ranks right (`pairs_right`).

A run is sound when it finished, is not worse than its base by more than five points, and its
answers still end and keep their form. An answer to a string is right only if it ends. The settings
are the methods' own; on strings the longest length is the task's, and for methods that sample batch
and temperature too. On the demo world those are judged by a reward model that learned from its
labels, on strings by the checker. One process; hours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import raw
from judge import ranked
from options import numbers

from tests.reversal import reversal_base, reversal_rows, strings, success
from tests.training_rows import by_split, loop_of
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.emit import EmitOptions, Emitted
from thumbwheel.demo.run import AGENT, import_world, write_world
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.engine.reward_model import RewardModel
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.models import reward_models, versions
from thumbwheel.models.types import Agent
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import assemble, settings
from thumbwheel.training.base_defaults import with_base_defaults
from thumbwheel.training.train import train
from thumbwheel.training.types import RunState

LOST = 0.05
PERSON = EmitOptions().seed
CLASSES = {"loss_type": "classification"}
RECORDED, ASKED, DEV, HELD_OUT = 2048, 512, 64, 400
"""Strings: with recorded answers, for methods that answer themselves, of the dev split, and to
measure by."""
STRINGS: dict[str, Any] = {"max_length": 32}
SAMPLED = {"batch_size": 16, "temperature": 0.7, "max_completion_length": 6, "max_steps": 250}
Row = dict[str, Any]


def on_demo(ws: Workspace, world: Emitted, method: str, person: int, seed: int) -> Row:
    """Share of gold messages that are filed right; of a reward model the accuracy on dev labels.
    Nothing learned is None and no loss."""
    options: dict[str, Any] = {"seed": seed}
    if ALGORITHMS.get(method).needs == "prompts":
        judge = next(
            (
                candidate
                for candidate in reward_models.reward_models(ws, AGENT)
                if candidate.metrics["loss_type"] == "classification"
            ),
            None,
        )
        name = (
            judge.name
            if judge
            else train(
                ws,
                Agent.named(AGENT),
                "reward",
                find_base(world.app.base, ws.home.cache),
                options=CLASSES | {"require_gain": False},
            ).reward_model
        )
        options |= {"reward_model": name, "reward_functions": ()}
    if method == "reward":
        options |= CLASSES
    result = train(
        ws, Agent.named(AGENT), method, find_base(world.app.base, ws.home.cache), options=options
    )
    base, best = (result.metrics[name] or {} for name in ("dev_base", "dev_best"))
    row = {
        "state": result.state.value,
        "reason": result.reason,
        "step": result.metrics["best_step"],
        "gain": result.metrics["gain"],
    }
    for rate in ("eos_rate", "format_rate"):
        row |= {f"{rate}_before": base.get(f"eval_{rate}"), rate: best.get(f"eval_{rate}")}
    if result.reward_model is not None:
        model = RewardModel.load(
            reward_models.folder(ws, reward_models.find(ws, AGENT, result.reward_model)),
            device="cpu",
        )
        pairs = {"pairs_right": ranked(person, world.app.folder, model)}
        return (
            row | pairs | {"before": base.get("eval_accuracy"), "after": best.get("eval_accuracy")}
        )
    if result.version is None:
        return row | {"before": None, "after": None}
    primary = evaluate(ws, versions.version(ws, AGENT, result.version)).primary
    return row | {"before": primary.before, "after": primary.after}


def on_strings(base: Path, method: str, seed: int) -> Row:
    """Share of held-out strings that are written backwards, greedily; of a reward model the
    accuracy on dev pairs."""
    samples = ALGORITHMS.get(method).needs == "prompts"
    configured = settings(method, STRINGS | {"seed": seed} | (SAMPLED if samples else {}))
    rows = [
        judged_row(row, ALGORITHMS.get(method).shape(configured))
        for row in reversal_rows(ASKED if samples else RECORDED, DEV)
    ]
    asked = {row["prompt"][0]["content"] for row in rows}
    held_out = list(islice((text for text in strings(99) if text not in asked), HELD_OUT))
    config = with_base_defaults(configured, ALGORITHMS.get(method), base)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "reference.db"
        assembly = assemble(method, config, str(base), base, by_split(rows), cache)
        loop = loop_of(assembly, Path(folder))
        ending = loop.run()
        assembly.runner.close()
        if method == "reward":
            seen = {
                line["step"]: line["eval_accuracy"]
                for line in loop.state.log_history
                if "eval_accuracy" in line
            }
            before, after = seen[0], seen[ending.best or ending.step]
        else:
            best = Path(folder) / "checkpoints" / f"checkpoint-{ending.best or ending.step}"
            models = load_base(str(base))[0], load_adapter(load_base(str(base))[0], best)
            before, after = (
                success(model, assembly.builder.tokenizer, held_out) for model in models
            )
    state = "failed" if ending.wrong else "finished"
    return {
        "state": state,
        "reason": ending.wrong or ending.reason,
        "step": ending.step,
        "before": before,
        "after": after,
    }


def judged_row(row: Row, shape: str) -> Row:
    """What people would have said of answers to this string: the right one, and one with two
    letters the other way round."""
    right = row["reference"]
    wrong = right[1] + right[0] + right[2:] if right[0] != right[1] else right[::-1] + right[0]
    good = int(row["row_id"][4:]) % 2 == 0
    blank: list[Any] = [None, None]
    opinions: dict[str, Row] = {
        "prompts": {},
        "chats": {"completion": right, "finish_reason": None, "token_ids": None},
        "pairs": {"chosen": right, "rejected": wrong},
        "labels": {"completion": right if good else wrong, "label": good},
        "groups": {
            "completions": [right, wrong],
            "values": [1.0, 0.0],
            "finish_reasons": blank,
            "token_ids": blank,
            "logps": blank,
        },
    }
    return row | opinions[shape]


def sound(row: Row) -> bool:
    """Whether a run is one that a user would want."""
    if row["state"] == RunState.NOTHING_LEARNED:
        return True  # nobody gets anything of it
    if (
        row["state"] != RunState.FINISHED
        or row["after"] is None
        or row["after"] < (row["before"] or 0.0) - LOST
    ):
        return False
    pairs = [(row.get(f"{name}_before"), row.get(name)) for name in ("eos_rate", "format_rate")]
    return all(before is None or after is None or after >= before - LOST for before, after in pairs)


def measured(
    methods: list[str], tasks: list[str], seeds: int, persons: list[int], thumbs: int, folder: Path
) -> Iterator[Row]:
    """A row a run."""
    for person in (persons or [PERSON]) if "demo" in tasks else ():
        with Workspace.open(
            Home.at(folder / f"home-{person}").prepare(), Sources({}, "the defaults", {})
        ) as ws:
            world = write_world(
                folder / f"world-{person}", EmitOptions(seed=person, gold=200, ratings=thumbs)
            )
            import_world(ws, world)
            for method in methods:
                run = partial(on_demo, ws, world, method, person)
                rows = over_seeds("demo", method, 1 if persons else seeds, run)
                yield from (row | {"person": person} for row in rows)
    if "strings" in tasks:
        base = reversal_base(folder / "strings")
        for method in methods:
            yield from over_seeds("strings", method, seeds, partial(on_strings, base, method))


def over_seeds(task: str, method: str, seeds: int, run: Callable[[int], Row]) -> Iterator[Row]:
    """A row a seed; an error is one too."""
    for seed in range(1, seeds + 1):
        start = time.monotonic()
        try:
            result = run(seed)
        except ThumbwheelError as error:
            result = {"state": "failed", "reason": str(error), "before": None, "after": None}
        row = {
            "task": task,
            "method": method,
            "seed": seed,
            "seconds": round(time.monotonic() - start, 1),
            **result,
        }
        yield row | {"sound": sound(row)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default=",".join(ALGORITHMS.names()))
    parser.add_argument("--tasks", default="demo,strings")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--thumbs",
        type=int,
        default=EmitOptions.ratings,
        help="that the person of the demo world leaves",
    )
    parser.add_argument(
        "--persons",
        type=numbers,
        default=[],
        help="world seeds, as 11-20 or 2,5: a run each; unset, person 1 alone",
    )
    raw.option(parser, "stability")
    options = parser.parse_args()
    methods, tasks = options.methods.split(","), options.tasks.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measured(
            methods, tasks, options.seeds, options.persons, options.thumbs, Path(folder)
        ):
            rows.append(row)
            figures = [
                f"{value:.3f}" if value is not None else "-"
                for value in (row["before"], row["after"])
            ]
            whose = (
                f"person {row['person']:2}"
                if options.persons and "person" in row
                else f"seed {row['seed']:2}"
            )
            print(
                f"{row['task']:8} {row['method']:13} {whose}  {figures[0]} -> {figures[1]}  "
                f"{'sound' if row['sound'] else 'NOT SOUND'}  {row['seconds']:.0f} s  "
                f"{row['reason'] or ''}",
                flush=True,
            )
            raw.write(options.json, rows=rows)
    for task, method in dict.fromkeys((row["task"], row["method"]) for row in rows):
        of_task = [row for row in rows if (row["task"], row["method"]) == (task, method)]
        print(f"{method} on {task}: {sum(row['sound'] for row in of_task)} of {len(of_task)} sound")


if __name__ == "__main__":
    main()
