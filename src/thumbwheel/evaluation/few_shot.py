"""The same feedback as a prompt: the base is shown good training answers to the nearest questions.

If a trained version does not beat that, the prompt is the cheaper solution. Distance is the cosine
of TF-IDF vectors. Held-out rows are never shown: the examples are rows of the training split.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from thumbwheel.evaluation.types import Message, RecordedAnswer

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder

WORDS = re.compile(r"\w+")
BATCH = 128
"""Prompts that are compared with all examples at once; bounds memory."""
INSTRUCTIONS = ("system", "developer")
Shot = tuple[Message, Message]
"""A question of the user and the good answer to it."""


@dataclass(frozen=True)
class Shots:
    """Examples to choose from; `questions` are the texts of their questions."""

    shots: tuple[Shot, ...]
    questions: tuple[str, ...]

    @classmethod
    def of(cls, rows: Iterable[RecordedAnswer]) -> Shots:
        """Collect the good answers of rows that end with a question of the user; the last one if a
        question has several."""
        shots: dict[str, Shot] = {}
        for row in rows:
            if row.good and row.tools is None and row.prompt and row.prompt[-1]["role"] == "user":
                answer = {"role": "assistant", "content": row.text}
                shots[_last_text(row.prompt)] = (row.prompt[-1], answer)
        return cls(tuple(shots.values()), tuple(shots))

    def nearest(self, prompts: Sequence[Sequence[Message]], count: int) -> list[list[Shot]]:
        """Return the `count` nearest examples of each prompt, the nearest last: a model weighs most
        the text that it read last."""
        shots_of_prompts: list[list[Shot]] = []
        for start in range(0, len(prompts), BATCH):
            texts = [_last_text(prompt) for prompt in prompts[start : start + BATCH]]
            similarities = similarity(texts, self.questions)
            nearest_first = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
            for indices in nearest_first:
                nearest_last = [self.shots[index] for index in indices[::-1]]
                shots_of_prompts.append(nearest_last)
        return shots_of_prompts


def similarity(texts: Sequence[str], others: Sequence[str]) -> Any:
    """Return [texts, others]: cosine of TF-IDF vectors, with the document frequencies of `others`.

    >>> similarity(["a red fox"], ["the red fox", "a dog"]).round(2).tolist()
    [[0.67, 0.41]]
    """
    from scipy import sparse

    other_counts = [Counter(WORDS.findall(text)) for text in others]
    document_frequency = Counter(chain.from_iterable(other_counts))
    column_of = {word: column for column, word in enumerate(document_frequency)}
    weight_of = {
        word: float(np.log((1 + len(others)) / (1 + frequency))) + 1
        for word, frequency in document_frequency.items()
    }

    def unit_rows(documents: Sequence[Counter[str]]) -> Any:
        rows, columns, values = [], [], []
        for row, word_counts in enumerate(documents):
            for word, count in word_counts.items():
                if word in column_of:
                    rows.append(row)
                    columns.append(column_of[word])
                    values.append(count * weight_of[word])
        shape = (len(documents), len(column_of))
        matrix = sparse.csr_matrix((values, (rows, columns)), shape=shape, dtype=float)
        norms = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
        return sparse.diags(1 / np.maximum(norms, 1e-12)) @ matrix

    text_counts = [Counter(WORDS.findall(text)) for text in texts]
    return np.asarray((unit_rows(text_counts) @ unit_rows(other_counts).T).todense())


def shown(
    prompt: Sequence[Message], shots: Sequence[Shot], builder: PromptBuilder, room: int
) -> list[Message]:
    """Return `prompt` with examples before its first turn: as many of `shots` (the nearest last) as
    fit into `room` tokens."""
    start = 0
    while start < len(prompt) and prompt[start]["role"] in INSTRUCTIONS:
        start += 1
    for left_out in range(len(shots)):
        examples = chain.from_iterable(shots[left_out:])
        with_examples = [*prompt[:start], *examples, *prompt[start:]]
        if len(builder.prompt(with_examples)) <= room:
            return with_examples
    return list(prompt)


def _last_text(prompt: Sequence[Message]) -> str:
    return str(prompt[-1].get("content") or "").casefold()
