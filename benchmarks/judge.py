"""What PPO learns from a reward model of the demo world, judged by the simulator and by no model.

`python benchmarks/judge.py [--persons 1,2,3] [--critic shared] [--json FILE]`, five to ten minutes a person. The person of the demo world
leaves 2,000 thumbs (a tenth of them wrong), outcomes and corrections. Two reward models learn from all of these labels, one from the base
and one from where sft on the good answers ended; the one that is right about more labels of the dev split judges, and PPO starts from the
base. Printed: how many noise-free pairs of fresh mails the reward model ranks right (wrong is what the app really answered), and how many
of 400 fresh mails are filed as the person wants, before and after, with a paired interval.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.filer import Filer
from thumbwheel.demo.person import Person
from thumbwheel.demo.run import AGENT, base_cache, import_world
from thumbwheel.demo.world import messages
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.reward_model import Read, RewardModel
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.models import reward_models
from thumbwheel.models.versions import adapter_folder, version
from thumbwheel.stats.paired import compare
from thumbwheel.training.train import find_run, run_dir, train

RATINGS, PAIRS, FRESH, SETTLED = 2000, 450, 400, 20
JUDGE: dict[str, Any] = {"loss_type": "classification", "token_budget": 4096}
PPO: dict[str, Any] = {
    "learning_rate": 2e-3, "init_kl_coef": 0.3, "kl_horizon": 1e9, "max_completion_length": 16, "max_length": 256, "max_steps": 130,
    "eval_steps": 26, "token_budget": 4096,
}  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--persons", default="1,2,3")
    parser.add_argument("--critic", default="separate", choices=("separate", "shared"))
    parser.add_argument("--json")
    given = parser.parse_args()
    rows = [measure(int(seed), given.critic) for seed in given.persons.split(",")]
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1))


def measure(seed: int, critic: str) -> dict[str, Any]:
    """The row of one person."""
    with tempfile.TemporaryDirectory() as folder, Workspace.open(Home.at(folder).prepare(), Sources({}, "", {})) as ws:
        files = emit(Path(folder) / "world", EmitOptions(seed=seed, ratings=RATINGS, gold=1), base_cache())
        import_world(ws, files)
        base = str(files.base)
        begun = train(ws, AGENT, "sft", base, options={"token_budget": 4096}).version
        judges = [train(ws, AGENT, "reward", base, options=JUDGE | start) for start in ({}, {"continue_from": begun})]
        dev = {str(one.reward_model): accuracy(ws, one.run_id) for one in judges}
        judge = max(dev, key=lambda name: dev[name])
        model = RewardModel.load(reward_models.folder(ws, reward_models.find(ws, AGENT, judge)), device="cpu")
        result = train(ws, AGENT, "ppo", base, options=PPO | {"reward_model": judge, "seed": seed, "critic": critic})
        adapter = adapter_folder(ws, version(ws, AGENT, str(result.version)))
        found = compare(right(seed, files.base, None), right(seed, files.base, adapter))
        steps = [line["kl"] for line in run_dir(ws, find_run(ws, result.run_id)).read_metrics() if "kl" in line]
    row = {
        "person": seed, "dev": list(dev.values()), "pairs_right": ranked(seed, files.base, model), "before": found.before,
        "after": found.after, "gain": found.gain, "low": found.interval.low, "high": found.interval.high, "kl": mean(steps[-SETTLED:]),
        "stopped": result.reason,
    }  # fmt: skip
    sys.stdout.write(json.dumps(row) + "\n")
    return row


def accuracy(ws: Workspace, run_id: str) -> float:
    """The best on the dev split."""
    return max(line["eval_accuracy"] for line in run_dir(ws, find_run(ws, run_id)).read_metrics() if "eval_accuracy" in line)


def ranked(seed: int, base: Path, model: RewardModel) -> float:
    """Share of fresh pairs in which the wanted filing scores above what the app answered instead."""
    person = Person(seed)
    mails = person.mails(random.Random(f"true pairs:{seed}"), 3 * PAIRS, "fresh")
    said = Filer(base).answer([messages(mail) for mail in mails], 1.0, seed + 1000)
    wrong = [(mail, answer.text) for mail, answer in zip(mails, said, strict=True) if answer.text != person.filing(mail).text()][:PAIRS]
    better = model.score([Read(messages(mail), person.filing(mail).text()) for mail, _ in wrong])
    worse = model.score([Read(messages(mail), text) for mail, text in wrong])
    return mean(float(a > b) for a, b in zip(better, worse, strict=True))


def right(seed: int, base: Path, adapter: Path | None) -> list[float]:
    """1 or 0 for each fresh mail: whether the greedy answer is the filing that the person wants."""
    person = Person(seed)
    mails = person.mails(random.Random(f"truth:{seed}"), FRESH, "fresh")
    model, tokenizer = load_base(str(base))
    builder = PromptBuilder(tokenizer)
    sampler = GroupSampler(load_adapter(model, adapter) if adapter else model, tokenizer)
    sampling = Sampling(max_new_tokens=24, temperature=0, stop_ids=tuple(builder.stop_ids))
    answers = sampler.sample([builder.prompt(messages(mail)) for mail in mails], 1, sampling)
    return [float(answer.text == person.filing(mail).text()) for (answer,), mail in zip(answers, mails, strict=True)]


if __name__ == "__main__":
    main()
