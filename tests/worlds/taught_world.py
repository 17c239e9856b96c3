"""A model that is really taught something in seconds, and a world of feedback and cases that can
judge it; for tests of evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.worlds.feedback_world import FeedbackWorld
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.evaluation.types import EvaluationConfig

PLACES = {"fox": '{"at":"den"}', "dog": '{"at":"yard"}'}
QUICK = EvaluationConfig(max_new_tokens=14, batch_size=16)
SPLIT = DatasetConfig(dev=0.25, gate=0.25)


@dataclass(frozen=True)
class Taught:
    """A random base, an adapter that puts foxes into the den and dogs into the yard, and one that
    changes nothing."""

    base: Path
    good: Path
    zero: Path


def learn(adapted, rows, steps):
    import torch

    width = max(row.length for row in rows)
    ids_ = torch.tensor(
        [[*row.prompt_ids, *row.completion_ids] + [0] * (width - row.length) for row in rows]
    )
    wanted = [
        [-100] * len(row.prompt_ids) + list(row.completion_ids) + [-100] * (width - row.length)
        for row in rows
    ]
    mask = torch.tensor([[1] * row.length + [0] * (width - row.length) for row in rows])
    optimizer = torch.optim.AdamW(
        [parameter for parameter in adapted.parameters() if parameter.requires_grad], lr=1e-2
    )
    for _ in range(steps):
        adapted(input_ids=ids_, attention_mask=mask, labels=torch.tensor(wanted)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ask(word, number):
    return f"{word} {number}"


def add_case(world, word, number, basis="gold", **more):
    world.case(f"{word}{number}", ask(word, number), basis)
    values = {"reference": json.loads(PLACES[word]), "slices": {"animal": word}} | more
    world.rows[-1][1].update(values)


def world_of(cases=40, basis="gold", prompts=48, kinds=("preference", "thumb")):
    """Cases 100.. that nobody was asked about, and feedback on prompts 0..: the right place over
    the wrong one, thumbs on both."""
    world = FeedbackWorld()
    for number in range(prompts // 2):
        for word, right in PLACES.items():
            wrong = next(text for other, text in PLACES.items() if other != word)
            asked = ask(word, number)
            better, worse = (
                world.trace(f"{word}{number}-{text}", world.prompt(asked), text)
                for text in (right, wrong)
            )
            if "preference" in kinds:
                world.say("preference", {"ranking": [[0], [1]]}, better, worse)
            if "thumb" in kinds:
                world.say("thumb", True, better)
                world.say("thumb", False, worse)
    for number in range(cases):
        add_case(world, ("fox", "dog")[number % 2], 100 + number, basis)
    return world
