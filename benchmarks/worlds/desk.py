"""`desk`: what bank customers wrote (BANKING77), routed as JSON with an intent; thumbs and
corrections by five clerks.

Each clerk judges a share of the messages and errs at a rate of their own (10 % on average).
Together they write down the right intent for about one in eleven of the messages.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from worlds.data import Message
from worlds.intents import RoutedMessages
from worlds.world import Exchange, feedback_line

CORRECTED = 0.093
"""Corrections for each thumb: 233 for 2,500."""


@dataclass(frozen=True)
class Clerk:
    """Somebody who judges, and how often they press the wrong thumb."""

    id: str
    error_rate: float


CLERKS = (
    Clerk("ana", 0.02),
    Clerk("ben", 0.05),
    Clerk("cleo", 0.08),
    Clerk("dev", 0.13),
    Clerk("eve", 0.22),
)


class Desk(RoutedMessages):
    """See the module."""

    name: ClassVar[str] = "desk"
    tune: ClassVar[tuple[int, ...]] = (1, 2, 3)
    prove: ClassVar[tuple[int, ...]] = (4, 5, 6, 7, 8)
    tune_ratings: ClassVar[int] = 1500
    prove_ratings: ClassVar[int] = 2500
    files: ClassVar[tuple[str, ...]] = ("banking77-train.jsonl", "banking77-test.jsonl")
    system: ClassVar[str] = "Route this message as JSON."
    tune_pool: ClassVar[int] = 2000

    def answer_of(self, message: Message) -> str:
        """The intent."""
        return f'{{"intent":"{message.intent}"}}'

    def feedback(self, rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
        """A thumb for every exchange; corrections of wrong answers by the clerk who thumbed them
        down."""
        thumbs, corrections = [], []
        for exchange in exchanges:
            clerk = rng.choice(CLERKS)
            errs = rng.random() < clerk.error_rate
            thumb = exchange.is_right != errs
            thumbs.append(feedback_line(exchange, "thumb", thumb, clerk.id))
            if not thumb and not exchange.is_right:
                corrections.append(
                    feedback_line(exchange, "correction", exchange.example.answer, clerk.id)
                )
        count = min(len(corrections), round(CORRECTED * len(exchanges)))
        return [*thumbs, *rng.sample(corrections, count)]
