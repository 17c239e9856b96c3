"""`desk`: what bank customers wrote (BANKING77), routed as JSON with an intent; thumbs and
corrections by five clerks, who write down the right intent for about one in eleven of the messages.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from worlds.clerks import thumbs_and_corrections
from worlds.data import Message
from worlds.intents import RoutedMessages
from worlds.world import Exchange

CORRECTED = 0.093
"""Corrections for each thumb: 233 for 2,500."""


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
        """Thumbs, and corrections of some wrong answers."""
        return thumbs_and_corrections(rng, exchanges, CORRECTED)
