"""A reward model of the demo world, made as a user makes one, and pairs that only the simulator can draw: no thumb, no noise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.filer import Filer
from thumbwheel.demo.person import Person
from thumbwheel.demo.run import AGENT, base_cache, import_world
from thumbwheel.demo.world import messages
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.models import reward_models
from thumbwheel.models.types import RewardModelRecord
from thumbwheel.training.train import train

RATINGS = 2000
"""Thumbs of the person, a tenth of them wrong. The demo's 750 leave a reward model at about 80 %; edits alone give 79 pairs."""


def judge(ws: Workspace, seed: int, folder: Path) -> tuple[RewardModelRecord, Path]:
    """(reward model of person `seed`, from the labels of what they left behind; the base that answered).

    It begins where sft on the person's corrections ended.
    """
    files = emit(folder, EmitOptions(seed=seed, ratings=RATINGS, gold=1), base_cache())
    import_world(ws, files)
    begun = train(ws, AGENT, "sft", str(files.base), options={"token_budget": 4096}).version
    options = {"loss_type": "classification", "token_budget": 4096, "continue_from": begun}
    result = train(ws, AGENT, "reward", str(files.base), options=options)
    return reward_models.find(ws, AGENT, str(result.reward_model)), files.base


def right(seed: int, base: Path, adapter: Path | None, count: int) -> list[float]:
    """1 or 0 for `count` fresh mails of person `seed`: whether the greedy answer is the filing that they want."""
    person = Person(seed)
    mails = person.mails(random.Random(f"truth:{seed}"), count, "fresh")
    model, tokenizer = load_base(str(base))
    builder = PromptBuilder(tokenizer)
    sampler = GroupSampler(load_adapter(model, adapter) if adapter else model, tokenizer)
    sampling = Sampling(max_new_tokens=24, temperature=0, stop_ids=tuple(builder.stop_ids))
    answers = sampler.sample([builder.prompt(messages(mail)) for mail in mails], 1, sampling)
    return [float(answer.text == person.filing(mail).text()) for (answer,), mail in zip(answers, mails, strict=True)]


def true_pairs(seed: int, base: Path, count: int) -> tuple[list[list[dict[str, Any]]], list[str], list[str]]:
    """(prompts, right answers, wrong answers) for fresh mails of person `seed`: wrong is what the app really answered, and not wanted."""
    person = Person(seed)
    mails = person.mails(random.Random(f"true pairs:{seed}"), 3 * count, "fresh")
    said = Filer(base).answer([messages(mail) for mail in mails], 1.0, seed + 1000)
    wrong = [(mail, answer.text) for mail, answer in zip(mails, said, strict=True) if answer.text != person.filing(mail).text()][:count]
    return [messages(mail) for mail, _ in wrong], [person.filing(mail).text() for mail, _ in wrong], [text for _, text in wrong]
