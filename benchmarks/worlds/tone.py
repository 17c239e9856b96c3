"""`tone`: requests to an assistant (CLINC150), answered freely by a pretrained model; a person with
a taste says which of two answers is better, and edits some.

The taste differs by seed: brief or full answers, with or without a greeting, lists or prose. Of two
answers that the taste holds equal the person says nothing; in a tenth of the comparisons the other
answer is named by mistake. No answer is the right one: what a contestant learned is judged by how
often the person prefers its answer to a fresh request over the base's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from thumbwheel.engine.load import load_base
from worlds.answers import answer
from worlds.data import Message, messages
from worlds.smollm2 import smollm2
from worlds.world import (
    Chat,
    Example,
    Exchange,
    Files,
    World,
    compared_exchange,
    feedback_line,
    preference_line,
    trace_line,
    write_lines,
)

SYSTEM = "You are the assistant of an app. Answer the request."
TEMPERATURE = 0.7
GOLD = 80
TUNE_POOL = 4000
"""Requests that tuning seeds draw from; the others are for proving seeds."""
ASKED = 2
"""Requests for each comparison: many pairs are equally good."""
WRONGLY = 0.1
"""Share of the comparisons that name the other answer."""
EDITED = 0.25
"""Share of the compared answers of which the better one is edited."""
GREETING = re.compile(r"(hello|hi|hey|dear|sure|of course|welcome|thank|great)\b", re.IGNORECASE)
ITEM = re.compile(r"^\s*([-*•]|\d+[.)])\s", re.MULTILINE)
BRIEF = 25
"""Words of a brief answer at most."""


@dataclass(frozen=True)
class Taste:
    """What a person likes in an answer."""

    brief: bool
    greeting: bool
    lists: bool

    def score(self, text: str, finish_reason: str) -> float:
        """Return how much the person likes an answer: a point for its length, half a point each
        for its opening and its form."""
        is_brief = len(text.split()) <= BRIEF and finish_reason == "stop"
        likes = float(is_brief == self.brief)
        likes += 0.5 * (bool(GREETING.match(text)) == self.greeting)
        return likes + 0.5 * (bool(ITEM.search(text)) == self.lists)

    def edited(self, text: str) -> str:
        """Return an answer as the person would have written it."""
        lines = [ITEM.sub("", line).strip() for line in text.splitlines() if line.strip()]
        sentences = [part for line in lines for part in re.split(r"(?<=[.!?])\s+", line)]
        if not self.greeting and len(sentences) > 1 and GREETING.match(sentences[0]):
            sentences = sentences[1:]
        if self.brief:
            sentences = [" ".join(sentences[0].split()[:BRIEF])]
        joined = "\n".join(f"- {each}" for each in sentences) if self.lists else " ".join(sentences)
        if self.greeting and not GREETING.match(joined):
            return f"Sure!{chr(10) if self.lists else ' '}{joined}"
        return joined


class Tone(World):
    """See the module. `ratings` are pairs that the person compared."""

    name: ClassVar[str] = "tone"
    tune: ClassVar[tuple[int, ...]] = (1, 2)
    prove: ClassVar[tuple[int, ...]] = (3, 4, 5)
    tune_ratings: ClassVar[int] = 200
    prove_ratings: ClassVar[int] = 200
    max_new_tokens: ClassVar[int] = 64
    judged_by: ClassVar[Literal["answers", "preferences", "taste"]] = "taste"

    def base(self, cache: Path) -> Path:
        """SmolLM2 as it comes."""
        del cache
        return smollm2()

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`."""
        rng = random.Random(f"{self.name}:{seed}")
        taste = Taste(*(rng.random() < 0.5 for _ in range(3)))
        pool = requests()[:TUNE_POOL] if seed in self.tune else requests()[TUNE_POOL:]
        drawn = [example_of(message) for message in rng.sample(pool, GOLD + ASKED * ratings)]
        fresh, asked = drawn[:GOLD], drawn[GOLD:]
        traces: list[dict[str, Any]] = []
        feedback: list[dict[str, Any]] = []
        compared = 0
        for first, second in self._pairs(asked, seed, base):
            if compared == ratings:
                break
            traces += [trace_line(each, self.name, TEMPERATURE) for each in (first, second)]
            words = opinions(rng, taste, first, second)
            compared += bool(words)
            feedback += words
        folder.mkdir(parents=True, exist_ok=True)
        return Files(
            base=base,
            traces=write_lines(folder / "traces.jsonl", traces),
            feedback=write_lines(folder / "feedback.jsonl", feedback),
            gold=None,
            gold_examples=fresh,
            score=taste.score,
        )

    def _pairs(
        self, asked: Sequence[Example], seed: int, base: Path
    ) -> list[tuple[Exchange, Exchange]]:
        """Return two answers to each request."""
        prompts: list[Chat] = [example.prompt for example in asked for _ in "ab"]
        model = load_base(str(base))
        answers = iter(answer(model, prompts, self.max_new_tokens, TEMPERATURE, seed))
        return [
            (
                compared_exchange(number, "a", example, *next(answers)),
                compared_exchange(number, "b", example, *next(answers)),
            )
            for number, example in enumerate(asked)
        ]


def opinions(
    rng: random.Random, taste: Taste, first: Exchange, second: Exchange
) -> list[dict[str, Any]]:
    """Return what the person says of two answers: which is better, and how it should have been;
    nothing where they are equally good."""
    first_score, second_score = (
        taste.score(each.answer, each.finish_reason) for each in (first, second)
    )
    if first_score == second_score:
        return []
    better = 0 if first_score > second_score else 1
    named = 1 - better if rng.random() < WRONGLY else better
    comparison = preference_line((first, second), named, "pat")
    if rng.random() >= EDITED:
        return [comparison]
    edited = (first, second)[better]
    text = taste.edited(edited.answer)
    return [comparison, feedback_line(edited, "correction", text, "pat")]


def example_of(message: Message) -> Example:
    """Return a request, to which no answer is the right one."""
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": message.text}]
    return Example(prompt, "", message.text)


@cache
def requests() -> list[Message]:
    """Return all requests, in one order for all seeds."""
    pool = messages("clinc150-train.jsonl", "clinc150-val.jsonl", "clinc150-test.jsonl")
    random.Random("tone pool").shuffle(pool)
    return pool
