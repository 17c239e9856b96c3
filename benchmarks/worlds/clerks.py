"""Five people who judge a share of the answers each and err at a rate of their own.

The mean rate is 10 %. Of the wrong answers that they thumbed down they correct some.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worlds.world import Exchange, feedback_line


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


def thumbs_and_corrections(
    rng: random.Random, exchanges: Sequence[Exchange], corrected: float
) -> list[dict[str, Any]]:
    """Return a thumb for every exchange, and corrections of wrong answers by the clerk who thumbed
    them down: at most `corrected` for each thumb."""
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
    count = min(len(corrections), round(corrected * len(exchanges)))
    return [*thumbs, *rng.sample(corrections, count)]
