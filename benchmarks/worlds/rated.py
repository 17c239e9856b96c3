"""What the worlds share whose recorded answers were sampled from their base and rated by people."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from worlds.answers import sampled_exchanges
from worlds.world import (
    Example,
    Exchange,
    Files,
    World,
    gold_lines,
    share,
    trace_line,
    write_lines,
)


class RatedAnswers(World):
    """A world of this kind."""

    checker: ClassVar[str]
    """The reward function that checks the gold cases."""

    @abstractmethod
    def drawn(self, rng: random.Random, seed: int) -> tuple[list[Example], list[Example]]:
        """Return (what is asked of the app, in order; the gold examples)."""

    @abstractmethod
    def feedback(self, rng: random.Random, exchanges: Sequence[Exchange]) -> list[dict[str, Any]]:
        """Return what people said of the recorded answers."""

    def cases(self, gold: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the gold cases."""
        return gold_lines(gold, self.checker)

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`."""
        rng = random.Random(f"{self.name}:{seed}")
        asked, gold = self.drawn(rng, seed)
        rated = asked[:ratings]
        exchanges = sampled_exchanges(base, rated, seed, self.max_new_tokens)
        folder.mkdir(parents=True, exist_ok=True)
        return Files(
            base=base,
            traces=write_lines(
                folder / "traces.jsonl",
                [trace_line(exchange, self.name, 1.0) for exchange in exchanges],
            ),
            feedback=write_lines(folder / "feedback.jsonl", self.feedback(rng, exchanges)),
            gold=write_lines(folder / "gold.jsonl", self.cases(gold)),
            taught=rated,
            gold_examples=gold,
            sampled_right=share([self.was_right(exchange) for exchange in exchanges]),
        )

    def was_right(self, exchange: Exchange) -> bool:
        """Whether the app's answer was right."""
        return self.right(exchange.answer, exchange.example)
