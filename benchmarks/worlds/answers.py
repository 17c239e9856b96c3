"""Lets a world's base answer: what the app recorded, and what a model answers greedily."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from thumbwheel.engine.load import load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from worlds.world import Chat, Example, Exchange, moment

A_SESSION = 5
"""Messages of one session."""


def sampled_exchanges(
    base: Path, examples: Sequence[Example], seed: int, max_new_tokens: int
) -> list[Exchange]:
    """What the app answered at temperature 1. Sessions have five messages, each by one person."""
    answers = answer(
        load_base(str(base)), [example.prompt for example in examples], max_new_tokens, 1.0, seed
    )
    return [
        Exchange(
            id=f"t-{number:05d}",
            session=f"s-{number // A_SESSION:04d}",
            subject=f"u-{number // A_SESSION:04d}",
            occurred_at=moment(number),
            example=example,
            answer=text,
            finish_reason=finish_reason,
        )
        for number, (example, (text, finish_reason)) in enumerate(
            zip(examples, answers, strict=True)
        )
    ]


def answer(
    loaded: tuple[Any, Any],
    prompts: Sequence[Chat],
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[tuple[str, str]]:
    """(text, finish reason) of one answer to each prompt by a model and its tokenizer; greedy at
    temperature 0."""
    model, tokenizer = loaded
    builder = PromptBuilder(tokenizer)
    sampler = GroupSampler(model, tokenizer)
    sampling = Sampling(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        stop_ids=tuple(builder.stop_ids),
        seed=seed,
    )
    with torch.no_grad():
        groups = sampler.sample([builder.prompt(prompt) for prompt in prompts], 1, sampling)
    return [(sample.text, sample.finish) for (sample,) in groups]
