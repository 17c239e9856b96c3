"""What PPO learns from a reward model of the demo world, judged by the simulator and by no model.

`python benchmarks/judge.py [--persons 1,2,3] [--critic shared] [--settings defaults] [--judge
random] [--json FILE]`, five to ten minutes a person. The person of the demo world leaves 2,000
thumbs (a tenth of them wrong), outcomes and corrections. Two reward models learn from all of these
labels, one from the base and one from where sft on the good answers ended; the one that is right
about more labels of the dev split judges, and PPO starts from the base. Printed: how many
noise-free pairs of fresh mails the reward model ranks right (wrong is what the app really
answered), and how many of 400 fresh mails are filed as the person wants, before and after, with a
paired interval.

By default PPO has the settings of the learning table (PPO below), which were found on persons 1 to
3; `--settings defaults` leaves the method's own. `--judge random` is the control: the same run,
rewarded by noise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import raw
from worlds.judges import gain_figures

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.app import tiny_app
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.filer import Filer
from thumbwheel.demo.person import Person
from thumbwheel.demo.run import AGENT, base_cache, import_world
from thumbwheel.demo.world import messages
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.reward_model import RewardInput, RewardModel
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.models import reward_models
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import adapter_folder, version
from thumbwheel.stats.paired import compare
from thumbwheel.training.train import find_run, run_dir, train

RATINGS, PAIRS, FRESH, SETTLED = 2000, 450, 400, 20
JUDGE: dict[str, Any] = {"loss_type": "classification", "token_budget": 4096}
PPO: dict[str, Any] = {
    "learning_rate": 2e-3,
    "init_kl_coef": 0.3,
    "kl_horizon": 1e9,
    "max_completion_length": 16,
    "max_length": 256,
    "max_steps": 130,
    "eval_steps": 26,
    "token_budget": 4096,
}

DEFAULTS: dict[str, Any] = {"max_completion_length": 16, "max_length": 256, "token_budget": 4096}
"""The task's lengths and a setting of memory; everything else is the method's own."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", default="1,2,3")
    parser.add_argument("--critic", default="separate", choices=("separate", "shared"))
    parser.add_argument("--settings", default="table", choices=("table", "defaults"))
    parser.add_argument("--judge", default="learned", choices=("learned", "random"))
    raw.option(parser, "judge")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    rows = []
    for seed in options.persons.split(","):
        rows.append(measure(int(seed), options.critic, options.settings, options.judge))
        raw.write(options.json, rows=rows)


def measure(seed: int, critic: str, settings: str, judge: str) -> dict[str, Any]:
    """The row of one person."""
    options = {"seed": seed, "critic": critic} | (PPO if settings == "table" else DEFAULTS)
    if judge == "random":
        return control(seed, options)
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home.at(folder).prepare(), Sources({}, "", {})) as ws,
    ):
        files = emit(
            Path(folder) / "world",
            EmitOptions(seed=seed, ratings=RATINGS, gold=1),
            tiny_app(base_cache()),
        )
        import_world(ws, files)
        base = find_base(files.app.base, ws.home.cache)
        begun = train(
            ws,
            Agent.named(AGENT),
            "sft",
            base,
            options={"token_budget": 4096},
        ).version
        judges = [
            train(
                ws,
                Agent.named(AGENT),
                "reward",
                base,
                options=JUDGE | start,
            )
            for start in ({}, {"continue_from": begun})
        ]
        dev = {str(trained.reward_model): accuracy(ws, trained.run_id) for trained in judges}
        chosen = max(dev, key=lambda name: dev[name])
        model = RewardModel.load(
            reward_models.folder(ws, reward_models.find(ws, AGENT, chosen)), device="cpu"
        )
        figures = {
            "person": seed,
            "dev": list(dev.values()),
            "pairs_right": ranked(seed, files.app.folder, model),
        }
        row = figures | learned(ws, seed, files.app.folder, options | {"reward_model": chosen})
    sys.stdout.write(json.dumps(row) + "\n")
    return row


def control(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """The row of a person whose PPO is rewarded by noise."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home.at(folder).prepare(), Sources({}, "", {})) as ws,
    ):
        files = emit(
            Path(folder) / "world",
            EmitOptions(seed=seed, ratings=RATINGS, gold=1),
            tiny_app(base_cache()),
        )
        import_world(ws, files)
        row = {"person": seed} | learned(
            ws, seed, files.app.folder, options | {"reward_functions": ("variety:chance",)}
        )
    sys.stdout.write(json.dumps(row) + "\n")
    return row


def learned(ws: Workspace, seed: int, base: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What PPO makes of it: its best checkpoint, also where the dev reward shows no gain."""
    result = train(
        ws,
        Agent.named(AGENT),
        "ppo",
        find_base(str(base), ws.home.cache),
        options=options | {"require_gain": False},
    )
    adapter = adapter_folder(ws, version(ws, AGENT, str(result.version)))
    change = compare(right(seed, base, None), right(seed, base, adapter))
    steps = [
        line["kl"]
        for line in run_dir(ws, find_run(ws, result.run_id)).read_metrics()
        if "kl" in line
    ]
    return gain_figures(change) | {
        "kl": mean(steps[-SETTLED:]),
        "dev_gain": result.metrics["gain"],
        "stopped": result.reason,
    }


def accuracy(ws: Workspace, run_id: str) -> float:
    """The best on the dev split."""
    lines = run_dir(ws, find_run(ws, run_id)).read_metrics()
    accuracies: list[float] = [line["eval_accuracy"] for line in lines if "eval_accuracy" in line]
    return max(accuracies)


def ranked(seed: int, base: Path, model: RewardModel) -> float:
    """Share of fresh pairs in which the wanted filing scores above the app's wrong answer."""
    person = Person(seed)
    mails = person.mails(random.Random(f"true pairs:{seed}"), 3 * PAIRS, "fresh")
    answers = Filer(base).answer([messages(mail) for mail in mails], 1.0, seed + 1000)
    wrong = [
        (mail, answer.text)
        for mail, answer in zip(mails, answers, strict=True)
        if answer.text != person.filing(mail).text()
    ][:PAIRS]
    pairs = [
        [RewardInput(messages(mail), person.filing(mail).text()), RewardInput(messages(mail), text)]
        for mail, text in wrong
    ]
    return mean(float(better > worse) for better, worse in model.score_together(pairs))


def right(seed: int, base: Path, adapter: Path | None) -> list[float]:
    """1 or 0 for each fresh mail: whether the greedy answer is the filing that the person wants."""
    person = Person(seed)
    mails = person.mails(random.Random(f"truth:{seed}"), FRESH, "fresh")
    model, tokenizer = load_base(str(base))
    builder = PromptBuilder(tokenizer)
    sampler = GroupSampler(load_adapter(model, adapter) if adapter else model, tokenizer)
    sampling = Sampling(max_new_tokens=24, temperature=0, stop_ids=tuple(builder.stop_ids))
    answers = sampler.sample([builder.prompt(messages(mail)) for mail in mails], 1, sampling)
    return [
        float(answer.text == person.filing(mail).text())
        for (answer,), mail in zip(answers, mails, strict=True)
    ]


if __name__ == "__main__":
    main()
