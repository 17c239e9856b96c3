"""`choice`: which of two answers people preferred (hh-rlhf, PandaLM), with their real disagreement;
judged by pairs held out.

A pair of hh-rlhf was compared by one person. A pair of PandaLM was compared by three, with ties,
and they do not always agree. The base has read both answers of every pair, but never which of them
was preferred. There is no right answer, so what a contestant learned is judged by the share of
held-out pairs of which it prefers the same answer as most of the people who compared it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from thumbwheel.importers.pairs import Message, split_pair
from worlds import small_base
from worlds.data import data_file
from worlds.world import (
    Chat,
    Example,
    Exchange,
    Files,
    Pair,
    World,
    compared_exchange,
    preference_line,
    trace_line,
    write_lines,
)

HH_RLHF = "preferences/hh-rlhf-harmless-base-test.jsonl"
PANDALM = "preferences/pandalm-testset-v1-3annotators.jsonl"
LONGEST = 200
"""Words of a prompt with an answer: what the base has room for."""
GOLD = 450
EPOCHS = 3
FIRST, SECOND, TIE = 0, 1, None
PANDALM_VERDICTS = {1: FIRST, 2: SECOND, 0: TIE}


@dataclass(frozen=True)
class Comparison:
    """Two answers to a prompt, and what each person said: the number of the better answer, or None
    for a tie."""

    prompt: Chat
    answers: tuple[str, str]
    verdicts: dict[str, int | None]

    @property
    def group(self) -> str:
        """The prompt: answers to the same question are not independent."""
        return "\n".join(message["content"] for message in self.prompt)

    def pair(self) -> Pair | None:
        """The answer that most people preferred against the other one; None where no answer has
        most of the verdicts."""
        verdict, count = Counter(self.verdicts.values()).most_common(1)[0]
        if verdict is None or 2 * count <= len(self.verdicts):
            return None
        return Pair(self.prompt, self.answers[verdict], self.answers[1 - verdict], self.group)


class Choice(World):
    """See the module. `ratings` are pairs that somebody compared."""

    name: ClassVar[str] = "choice"
    prove: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tune_ratings: ClassVar[int] = 0
    prove_ratings: ClassVar[int] = 900
    judged_by: ClassVar[Literal["answers", "preferences"]] = "preferences"

    def base(self, cache: Path) -> Path:
        """A base of 4M parameters that read all answers; five minutes on one core."""
        chats = [
            [*comparison.prompt, {"role": "assistant", "content": text}]
            for comparison in comparisons()
            for text in comparison.answers
        ]
        return small_base.ensure(small_base.Course(self.name, chats, EPOCHS), cache)

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`. All pairs of a prompt are either rated or gold."""
        rng = random.Random(f"{self.name}:{seed}")
        by_prompt: dict[str, list[Comparison]] = {}
        for comparison in comparisons():
            by_prompt.setdefault(comparison.group, []).append(comparison)
        prompts = rng.sample(sorted(by_prompt), len(by_prompt))
        gold: list[Pair] = []
        rated: list[Comparison] = []
        for prompt in prompts:
            if len(gold) < GOLD:
                gold += [pair for comparison in by_prompt[prompt] if (pair := comparison.pair())]
            else:
                rated += by_prompt[prompt]
        traces: list[dict[str, Any]] = []
        feedback: list[dict[str, Any]] = []
        for number, comparison in enumerate(rated[:ratings]):
            exchanges = self._exchanges(number, comparison)
            traces += [trace_line(exchange, self.name, 1.0) for exchange in exchanges]
            feedback += preference_lines(exchanges, comparison)
        folder.mkdir(parents=True, exist_ok=True)
        return Files(
            base=base,
            traces=write_lines(folder / "traces.jsonl", traces),
            feedback=write_lines(folder / "feedback.jsonl", feedback),
            gold=None,
            gold_pairs=gold,
        )

    def _exchanges(self, number: int, comparison: Comparison) -> list[Exchange]:
        return [
            compared_exchange(
                number, side, Example(comparison.prompt, text, comparison.group), text, "stop"
            )
            for side, text in zip("ab", comparison.answers, strict=True)
        ]


def preference_lines(
    exchanges: Sequence[Exchange], comparison: Comparison
) -> Iterator[dict[str, Any]]:
    """What each person said of the two answers."""
    for rater, verdict in comparison.verdicts.items():
        yield preference_line(exchanges, verdict, rater)


@cache
def comparisons() -> tuple[Comparison, ...]:
    """All that are short enough, in the order of the files. Which side of a pair of hh-rlhf was
    preferred is drawn, once for all seeds."""
    rng = random.Random("choice sides")
    every = [*hh_rlhf(rng), *pandalm()]
    return tuple(comparison for comparison in every if words(comparison) <= LONGEST)


def words(comparison: Comparison) -> int:
    """Of the prompt with the longer answer."""
    asked = sum(len(message["content"].split()) for message in comparison.prompt)
    return asked + max(len(text.split()) for text in comparison.answers)


def hh_rlhf(rng: random.Random) -> Iterator[Comparison]:
    """Pairs that one person compared."""
    for line in data_file(HH_RLHF).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompt, chosen, rejected = split_pair(None, row["chosen"], row["rejected"])
        chosen, rejected = content_of(chosen), content_of(rejected)
        if chosen.strip() == rejected.strip():
            continue
        better = rng.choice((FIRST, SECOND))
        answers = (chosen, rejected) if better == FIRST else (rejected, chosen)
        yield Comparison(prompt, answers, {"crowd": better})


def content_of(answer: str | Message) -> str:
    """The text of an answer, which is a message where the pair is a dialogue."""
    return answer if isinstance(answer, str) else str(answer["content"])


def pandalm() -> Iterator[Comparison]:
    """Pairs that three people compared; some answers of the file are no texts."""
    for line in data_file(PANDALM).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answers = (row["response1"], row["response2"])
        if not all(isinstance(text, str) and text.strip() for text in answers):
            continue
        text = "\n\n".join(part for part in (row["instruction"], row["input"]) if part)
        verdicts = {
            name: PANDALM_VERDICTS[row[name]] for name in ("annotator1", "annotator2", "annotator3")
        }
        yield Comparison([{"role": "user", "content": text}], answers, verdicts)
