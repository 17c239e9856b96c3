"""`router`: requests of people (CLINC150), each sent to one of ten teams by a pretrained model that
was never told how.

The app is SmolLM2-135M-Instruct as it comes, behind a system prompt that names the teams. It talks
instead of routing, so every recorded answer is thumbed down; five raters write down the right team
for two in three of them, and err in a tenth of these corrections. With 300 ratings a contestant
takes minutes on two cores.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from worlds.answers import sampled_exchanges
from worlds.assistant import domains
from worlds.data import Message, messages
from worlds.smollm2 import smollm2
from worlds.world import (
    Example,
    Exchange,
    Files,
    World,
    feedback_line,
    gold_lines,
    share,
    trace_line,
    write_lines,
)

TEAMS = {
    "banking": "banking",
    "credit_cards": "cards",
    "kitchen_and_dining": "kitchen",
    "home": "home",
    "auto_and_commute": "car",
    "travel": "travel",
    "utility": "tools",
    "work": "work",
    "small_talk": "talk",
    "meta": "assistant",
}
"""Domain of CLINC150 -> the team that answers."""
SYSTEM = f"Name the team for this request: {', '.join(TEAMS.values())}."
RATERS = ("ana", "ben", "cleo", "dev", "eve")
CORRECTED, WRONGLY = 2 / 3, 0.1
"""Share of the answers that are corrected, and share of the corrections that name another team."""
GOLD = 150
TUNE_POOL = 4000
"""Messages that tuning seeds draw from; the others are for proving seeds."""


class Router(World):
    """See the module."""

    name: ClassVar[str] = "router"
    tune: ClassVar[tuple[int, ...]] = (1, 2, 3)
    prove: ClassVar[tuple[int, ...]] = (4, 5, 6)
    tune_ratings: ClassVar[int] = 1500
    prove_ratings: ClassVar[int] = 1500
    max_new_tokens: ClassVar[int] = 5

    def base(self, cache: Path) -> Path:
        """SmolLM2 as it comes."""
        del cache
        return smollm2()

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`."""
        rng = random.Random(f"{self.name}:{seed}")
        pool = requests()
        pool = pool[:TUNE_POOL] if seed in self.tune else pool[TUNE_POOL:]
        drawn = rng.sample(pool, self.prove_ratings + GOLD)
        rated = [example_of(message) for message in drawn[:ratings]]
        gold = [example_of(message) for message in drawn[self.prove_ratings :]]
        exchanges = sampled_exchanges(base, rated, seed, self.max_new_tokens)
        folder.mkdir(parents=True, exist_ok=True)
        return Files(
            base=base,
            traces=write_lines(
                folder / "traces.jsonl",
                [trace_line(exchange, self.name, 1.0) for exchange in exchanges],
            ),
            feedback=write_lines(folder / "feedback.jsonl", feedback(rng, exchanges)),
            gold=write_lines(folder / "gold.jsonl", gold_lines(gold, "exact_answer")),
            taught=rated,
            gold_examples=gold,
            sampled_right=share([exchange.is_right for exchange in exchanges]),
        )


def feedback(rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
    """A thumb for every exchange, and corrections of wrong answers."""
    lines = []
    for exchange in exchanges:
        rater = rng.choice(RATERS)
        lines.append(feedback_line(exchange, "thumb", exchange.is_right, rater))
        if exchange.is_right or rng.random() >= CORRECTED:
            continue
        team = exchange.example.answer
        if rng.random() < WRONGLY:
            team = rng.choice([other for other in TEAMS.values() if other != team])
        lines.append(feedback_line(exchange, "correction", team, rater))
    return lines


def example_of(message: Message) -> Example:
    """Return a request with the team that it goes to."""
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": message.text}]
    return Example(prompt, TEAMS[domains()[message.intent]], message.text)


@cache
def requests() -> list[Message]:
    """All requests that belong to a team, in one order for all seeds."""
    pool = messages("clinc150-train.jsonl", "clinc150-val.jsonl", "clinc150-test.jsonl")
    pool = [message for message in pool if message.intent in domains()]
    random.Random("router pool").shuffle(pool)
    return pool
