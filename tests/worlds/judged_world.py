"""A reward model of the demo world, made as a user makes one, and pairs that only the simulator can
draw: no thumb, no noise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.app import tiny_app
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.filer import Filer
from thumbwheel.demo.person import Person
from thumbwheel.demo.run import AGENT, base_cache, import_world
from thumbwheel.demo.world import messages
from thumbwheel.engine.base_check import find_base
from thumbwheel.models import reward_models
from thumbwheel.models.types import Agent, RewardModelRecord
from thumbwheel.training.train import train

RATINGS = 2000
"""Thumbs of the person, a tenth of them wrong. The demo's 750 leave a reward model at about 80 %;
edits alone give 79 pairs."""


def judge(ws: Workspace, seed: int, folder: Path) -> tuple[RewardModelRecord, Path]:
    """(reward model of person `seed`, from the labels of what they left behind; the base that
    answered)."""
    files = emit(folder, EmitOptions(seed=seed, ratings=RATINGS, gold=1), tiny_app(base_cache()))
    import_world(ws, files)
    result = train(
        ws,
        Agent.named(AGENT),
        "reward",
        find_base(files.app.base, ws.home.cache),
        options={"loss_type": "classification", "token_budget": 4096},
    )
    return reward_models.find(ws, AGENT, str(result.reward_model)), files.app.folder


def true_pairs(
    seed: int, base: Path, count: int
) -> tuple[list[list[dict[str, Any]]], list[str], list[str]]:
    """(prompts, right answers, wrong answers) for fresh mails of person `seed`: wrong is what the
    app really answered, and not wanted."""
    person = Person(seed)
    mails = person.mails(random.Random(f"true pairs:{seed}"), 3 * count, "fresh")
    answers = Filer(base).answer([messages(mail) for mail in mails], 1.0, seed + 1000)
    wrong = [
        (mail, answer.text)
        for mail, answer in zip(mails, answers, strict=True)
        if answer.text != person.filing(mail).text()
    ][:count]
    return (
        [messages(mail) for mail, _ in wrong],
        [person.filing(mail).text() for mail, _ in wrong],
        [text for _, text in wrong],
    )
