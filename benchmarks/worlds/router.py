"""`router`: requests of people (CLINC150), each sent to one of ten teams by a pretrained model that
was shown 80 examples before it went into use.

The app is SmolLM2-135M-Instruct after these examples, behind a system prompt that names the teams.
Five clerks press thumbs on its sampled answers, a tenth of them wrongly, and write down the right
team for about one in sixteen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from worlds.assistant import domains
from worlds.clerks import thumbs_and_corrections
from worlds.data import Message, messages
from worlds.rated import RatedAnswers
from worlds.taught import taught_base
from worlds.world import Example, Exchange

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
SHOWN = 80
"""Requests that the app was shown."""
CORRECTED = 92 / 1500
"""Corrections for each thumb."""
GOLD = 500
TUNE_POOL = 4000
"""Messages that tuning seeds draw from; the others are for proving seeds."""


class Router(RatedAnswers):
    """See the module."""

    name: ClassVar[str] = "router"
    tune: ClassVar[tuple[int, ...]] = (1, 2, 3)
    prove: ClassVar[tuple[int, ...]] = (4, 5, 6)
    tune_ratings: ClassVar[int] = 1500
    prove_ratings: ClassVar[int] = 1500
    max_new_tokens: ClassVar[int] = 5
    checker: ClassVar[str] = "exact_answer"

    def base(self, cache: Path) -> Path:
        """SmolLM2 after the examples."""
        chats = [example_of(message).chat for message in requests()[:SHOWN]]
        return taught_base(self.name, chats, cache)

    def pretrained_base(self, cache: Path) -> Path:
        """See `base`."""
        return self.base(cache)

    def drawn(self, rng: random.Random, seed: int) -> tuple[list[Example], list[Example]]:
        """See `RatedAnswers.drawn`."""
        pool = requests()
        pool = pool[SHOWN:TUNE_POOL] if seed in self.tune else pool[TUNE_POOL:]
        drawn = [example_of(message) for message in rng.sample(pool, self.prove_ratings + GOLD)]
        return drawn[: self.prove_ratings], drawn[self.prove_ratings :]

    def feedback(self, rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
        """Thumbs, and corrections of some wrong answers."""
        return thumbs_and_corrections(rng, exchanges, CORRECTED)


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
