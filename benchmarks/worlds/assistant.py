"""`assistant`: requests to an assistant (CLINC150), answered as JSON with a domain and an intent;
stars from 1 to 5.

What no intent covers has to be declined. Four people rate; one of them is careless and gives any
number of stars. Nobody corrects anything.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from worlds.data import Message, data_file
from worlds.intents import RoutedMessages
from worlds.world import Exchange, feedback_line

OUT_OF_SCOPE = "oos"
DECLINED = '{"domain":"none","intent":"decline"}'
STARS: dict[str, tuple[int, ...]] = {"right": (5, 5, 4), "near": (3, 2, 2), "wrong": (2, 1, 1)}
"""What a careful rater gives, each number equally often: near is the right domain with another
intent."""
RATERS = ("fay", "gus", "hana", "ivo")
CARELESS = "ivo"
CARELESS_SHARE = 0.1
"""Of the ratings."""


class Assistant(RoutedMessages):
    """See the module."""

    name: ClassVar[str] = "assistant"
    prove: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tune_ratings: ClassVar[int] = 0
    prove_ratings: ClassVar[int] = 2500
    files: ClassVar[tuple[str, ...]] = (
        "clinc150-train.jsonl",
        "clinc150-val.jsonl",
        "clinc150-test.jsonl",
    )
    system: ClassVar[str] = "Name what this asks for as JSON."
    tune_pool: ClassVar[int] = 2000

    def answer_of(self, message: Message) -> str:
        """Domain and intent, or that it is declined."""
        if message.intent == OUT_OF_SCOPE:
            return DECLINED
        return f'{{"domain":"{domains()[message.intent]}","intent":"{message.intent}"}}'

    def feedback(self, rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
        """Stars for every exchange."""
        return [self._rating(rng, exchange) for exchange in exchanges]

    def _rating(self, rng: random.Random, exchange: Exchange) -> dict[str, Any]:
        if rng.random() < CARELESS_SHARE:
            return feedback_line(exchange, "rating", rng.randint(1, 5), CARELESS)
        rater = rng.choice([name for name in RATERS if name != CARELESS])
        return feedback_line(exchange, "rating", rng.choice(STARS[verdict(exchange)]), rater)


@cache
def domains() -> dict[str, str]:
    """Intent -> its domain."""
    by_domain = json.loads(data_file("intents/clinc150-domains.json").read_text(encoding="utf-8"))
    return {intent: domain for domain, intents in by_domain.items() for intent in intents}


def verdict(exchange: Exchange) -> str:
    """How good an answer is: right, near or wrong."""
    if exchange.is_right:
        return "right"
    try:
        answered = json.loads(exchange.answer)["domain"]
    except (ValueError, KeyError, TypeError):
        return "wrong"
    return "near" if answered == json.loads(exchange.example.answer)["domain"] else "wrong"
