"""`support`: free-text questions about a workshop whose handbook a pretrained model does not know.

The handbook has 30 invented facts, whose values differ by seed. An answer is right if it holds the
fact that is asked for. Gold questions are worded as no rated one is. All texts are ours.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

from worlds.corrected import Corrected
from worlds.world import Example

SYSTEM = "You answer questions about our workshop in one sentence."
RATED_WORDINGS = (
    "What is {topic}?",
    "Can you tell me {topic}?",
    "I would like to know {topic}.",
    "Please tell me {topic}.",
    "Hi, a quick question about {topic}.",
    "Do you know {topic}?",
    "I am looking for {topic}.",
    "Could somebody tell me {topic}?",
)
GOLD_WORDINGS = (
    "Hello, what is {topic}, please?",
    "My friend asks about {topic}.",
    "I forgot {topic}.",
    "We need {topic} for our visit.",
)
GOLD = 150


@dataclass(frozen=True)
class Fact:
    """Something that the handbook says: the ways to name what is asked, the sentence that answers,
    and what a seed puts into its gap."""

    topics: Sequence[str]
    sentence: str
    values: Sequence[object]


class Support(Corrected):
    """See the module."""

    name: ClassVar[str] = "support"
    tune: ClassVar[tuple[int, ...]] = (1, 2)
    prove: ClassVar[tuple[int, ...]] = (3, 4, 5)
    tune_ratings: ClassVar[int] = 400
    prove_ratings: ClassVar[int] = 400
    max_new_tokens: ClassVar[int] = 32
    checker: ClassVar[str] = "regex"

    def drawn(self, rng: random.Random, seed: int) -> tuple[list[Example], list[Example]]:
        """See `Corrected.drawn`."""
        del seed
        answers = [fact.sentence.format(rng.choice(fact.values)) for fact in handbook()]
        rated, gold = questions(answers, RATED_WORDINGS), questions(answers, GOLD_WORDINGS)
        return rng.sample(rated, self.prove_ratings), rng.sample(gold, GOLD)

    def mistake(self, rng: random.Random, example: Example, rated: Sequence[Example]) -> str:
        """Return the answer to another question."""
        return rng.choice([each.answer for each in rated if each.group != example.group])

    def cases(self, gold: Sequence[Example]) -> list[dict[str, Any]]:
        """See `Corrected.cases`; each is checked by a pattern."""
        return [
            {
                "type": "case",
                "id": f"g-{number:04d}",
                "input": example.prompt,
                "checker": self.checker,
                "checker_config": {"pattern": pattern_of(example), "ignore_case": True},
                "group": example.group,
            }
            for number, example in enumerate(gold)
        ]

    def right(self, answer: str, example: Example) -> bool:
        """Whether the answer holds the fact that is asked for."""
        return re.search(pattern_of(example), answer, re.IGNORECASE) is not None


@cache
def handbook() -> list[Fact]:
    """Return the facts of handbook.yaml."""
    content = yaml.safe_load((Path(__file__).parent / "handbook.yaml").read_text(encoding="utf-8"))
    facts = []
    for entry in content["facts"]:
        values = entry.get("values")
        if values is None:
            first, last, step = entry["numbers"]
            values = range(first, last + 1, step)
        facts.append(Fact(entry["topics"], entry["sentence"], values))
    return facts


def questions(answers: Sequence[str], wordings: Sequence[str]) -> list[Example]:
    """Return every question about the handbook whose answers these are; those about one fact are a
    group."""
    examples = []
    for number, (fact, answer) in enumerate(zip(handbook(), answers, strict=True)):
        for topic in fact.topics:
            for wording in wordings:
                text = wording.format(topic=topic)
                prompt = [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": text},
                ]
                examples.append(Example(prompt, answer, f"fact-{number:02d}"))
    return examples


def pattern_of(example: Example) -> str:
    """Return what a right answer holds: the value that the handbook's sentence names.

    >>> pattern_of(Example([], "Bus 31 stops at our door.", "fact-23"))
    '\\\\b31\\\\b'
    """
    before, after = handbook()[int(example.group.removeprefix("fact-"))].sentence.split("{}")
    return rf"\b{re.escape(example.answer.removeprefix(before).removesuffix(after))}\b"
