"""`sums`: short arithmetic with a checker, for methods that answer themselves (grpo).

The base answers half of the questions right. People press thumbs on its recorded answers and make
no mistakes; the same questions stand as cases with a reference, so that fresh answers can be
checked. All texts are ours.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

from thumbwheel.demo.base import BaseConfig
from worlds import small_base
from worlds.answers import sampled_exchanges
from worlds.taught import taught_base
from worlds.world import (
    Example,
    Files,
    World,
    case_line,
    feedback_line,
    gold_lines,
    share,
    trace_line,
    write_lines,
)

TAUGHT = 700
"""Questions that the base learned from."""
SHOWN = 80
"""Questions with answers that a pretrained base is shown."""
GOLD = 800
THINGS = ("birds", "books", "boxes", "coins", "letters", "apples", "chairs", "pens")
LARGEST = 9
SUMS = (
    "{a} {things} and {b} more {things}: how many?",
    "There are {a} {things}. {b} {things} are added. How many now?",
    "Add {b} {things} to {a}.",
    "Nora has {a} {things} and gets {b}. How many has she?",
)
DIFFERENCES = (
    "{a} {things}, of which {b} go: how many stay?",
    "There are {a} {things}. {b} {things} are taken. How many now?",
    "Take {b} {things} from {a}.",
    "Nora has {a} {things} and gives {b} away. How many has she?",
)


class Sums(World):
    """See the module."""

    name: ClassVar[str] = "sums"
    prove: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tune_ratings: ClassVar[int] = 0
    prove_ratings: ClassVar[int] = 1000
    max_new_tokens: ClassVar[int] = 8
    checked: ClassVar[bool] = True

    def base(self, cache: Path) -> Path:
        """A base of 2M parameters that half learned to reckon; a minute on one core."""
        chats = [example.chat for example in questions()[:TAUGHT]]
        size = BaseConfig(vocabulary=512, intermediate=512, layers=3, batch=16, learning_rate=1e-3)
        return small_base.ensure(small_base.Course(self.name, chats, 6, size=size), cache)

    def pretrained_base(self, cache: Path) -> Path:
        """SmolLM2 after a few questions, which answers with a number then."""
        return taught_base(self.name, [each.chat for each in questions()[:SHOWN]], cache)

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`."""
        drawn = random.Random(f"sums:{seed}").sample(
            questions()[TAUGHT:], self.prove_ratings + GOLD
        )
        rated, gold = drawn[:ratings], drawn[self.prove_ratings :]
        exchanges = sampled_exchanges(base, rated, seed, self.max_new_tokens)
        folder.mkdir(parents=True, exist_ok=True)
        cases = [
            case_line(f"q-{number:04d}", example, "exact_answer")
            for number, example in enumerate(rated)
        ]
        traces = [trace_line(exchange, self.name, 1.0) for exchange in exchanges]
        return Files(
            base=base,
            traces=write_lines(folder / "traces.jsonl", [*traces, *cases]),
            feedback=write_lines(
                folder / "feedback.jsonl",
                [
                    feedback_line(exchange, "thumb", exchange.is_right, "teacher")
                    for exchange in exchanges
                ],
            ),
            gold=write_lines(folder / "gold.jsonl", gold_lines(gold, "exact_answer")),
            taught=rated,
            gold_examples=gold,
            sampled_right=share([exchange.is_right for exchange in exchanges]),
        )


@cache
def questions() -> list[Example]:
    """Every question that there is, in one order for all seeds."""
    texts: list[tuple[str, int]] = []
    for things, a, b in product(THINGS, range(1, LARGEST + 1), range(1, LARGEST + 1)):
        texts += [(wording.format(a=a, b=b, things=things), a + b) for wording in SUMS]
        if b <= a:
            texts += [(wording.format(a=a, b=b, things=things), a - b) for wording in DIFFERENCES]
    random.Random("sums").shuffle(texts)
    return [
        Example([{"role": "user", "content": text}], str(number), text) for text, number in texts
    ]
