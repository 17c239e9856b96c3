"""The same feedback as a prompt: good training answers to the nearest questions, shown to the base
before it is asked.

If a trained version does not beat that, the prompt is the cheaper model. Near is by words: cosine
of TF-IDF vectors. Nothing that is held out is ever shown: the examples are rows of the training
split.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from thumbwheel.evaluation.types import Given, Message

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder

WORDS = re.compile(r"\w+")
TOGETHER = 128
"""Prompts that are compared with all examples at once; bounds memory."""
INSTRUCTIONS = ("system", "developer")
Shot = tuple[Message, Message]
"""A question of the user and the good answer to it."""


@dataclass(frozen=True)
class Shots:
    """Examples to choose from; `questions` are their texts."""

    shots: tuple[Shot, ...]
    questions: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[Given]) -> Shots:
        """The good answers of rows that end with a question of the user, the last one to a question
        where there are several."""
        found: dict[str, Shot] = {}
        for row in rows:
            if row.good and row.tools is None and row.prompt and row.prompt[-1]["role"] == "user":
                found[_words(row.prompt)] = (
                    row.prompt[-1],
                    {"role": "assistant", "content": row.text},
                )
        return cls(tuple(found.values()), tuple(found))

    def nearest(self, prompts: Sequence[Sequence[Message]], count: int) -> list[list[Shot]]:
        """For each prompt the `count` nearest examples, the nearest last, since what was read last
        weighs most."""
        found: list[list[Shot]] = []
        for start in range(0, len(prompts), TOGETHER):
            near = similarity(
                [_words(prompt) for prompt in prompts[start : start + TOGETHER]], self.questions
            )
            ordered = np.argsort(-near, axis=1, kind="stable")[:, :count]
            found += [[self.shots[place] for place in places[::-1]] for places in ordered]
        return found


def similarity(texts: Sequence[str], others: Sequence[str]) -> Any:
    """[texts, others]: cosine of TF-IDF vectors, with the frequencies of `others`.

    >>> similarity(["a red fox"], ["the red fox", "a dog"]).round(2).tolist()
    [[0.82, 0.33]]
    """
    from scipy import sparse

    counts = [[Counter(WORDS.findall(text)) for text in side] for side in (others, texts)]
    names = {
        word: place for place, word in enumerate(dict.fromkeys(chain.from_iterable(counts[0])))
    }
    seen = Counter(chain.from_iterable(counts[0]))
    weight = {word: float(np.log((1 + len(others)) / (1 + seen[word]))) + 1 for word in names}

    def matrix(side: Sequence[Counter[str]]) -> Any:
        cells = [
            (row, names[word], n * weight[word])
            for row, one in enumerate(side)
            for word, n in one.items()
            if word in names
        ]
        rows, columns, values = zip(*cells, strict=True) if cells else ((), (), ())
        made = sparse.csr_matrix(
            (values, (rows, columns)), shape=(len(side), len(names)), dtype=float
        )
        lengths = np.sqrt(np.asarray(made.multiply(made).sum(1)).ravel())
        return sparse.diags(1 / np.maximum(lengths, 1e-12)) @ made

    return np.asarray((matrix(counts[1]) @ matrix(counts[0]).T).todense())


def shown(
    prompt: Sequence[Message], shots: Sequence[Shot], builder: PromptBuilder, room: int
) -> list[Message]:
    """`prompt` with as many of its nearest examples (given nearest last) before its first turn as
    leave it within `room` tokens."""
    start = next(
        (at for at, message in enumerate(prompt) if message["role"] not in INSTRUCTIONS),
        len(prompt),
    )
    for left_out in range(len(shots)):
        made = [*prompt[:start], *chain.from_iterable(shots[left_out:]), *prompt[start:]]
        if len(builder.prompt(made)) <= room:
            return made
    return list(prompt)


def _words(prompt: Sequence[Message]) -> str:
    return str(prompt[-1].get("content") or "").casefold()
