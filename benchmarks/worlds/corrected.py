"""What the worlds share whose app is SmolLM2-135M-Instruct as it comes: it was never told how to
answer, so people press a thumb on its answers and write down what they should have been.

Five raters judge every answer by what is right and correct two in three of the wrong ones. They err
in a tenth of these corrections.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worlds.rated import RatedAnswers
from worlds.smollm2 import smollm2
from worlds.world import Example, Exchange, feedback_line

RATERS = ("ana", "ben", "cleo", "dev", "eve")
CORRECTED, WRONGLY = 2 / 3, 0.1
"""Share of the wrong answers that are corrected, and share of the corrections that are wrong."""


class Corrected(RatedAnswers):
    """A world of this kind: what is asked, and what a rater who errs writes."""

    @abstractmethod
    def mistake(self, rng: random.Random, example: Example, rated: Sequence[Example]) -> str:
        """Return a wrong correction of an answer to `example`."""

    def base(self, cache: Path) -> Path:
        """SmolLM2 as it comes."""
        del cache
        return smollm2()

    def feedback(self, rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
        """Return a thumb for every exchange, and corrections of wrong answers."""
        rated = [exchange.example for exchange in exchanges]
        lines = []
        for exchange in exchanges:
            rater = rng.choice(RATERS)
            is_right = self.was_right(exchange)
            lines.append(feedback_line(exchange, "thumb", is_right, rater))
            if is_right or rng.random() >= CORRECTED:
                continue
            text = exchange.example.answer
            if rng.random() < WRONGLY:
                text = self.mistake(rng, exchange.example, rated)
            lines.append(feedback_line(exchange, "correction", text, rater))
        return lines
