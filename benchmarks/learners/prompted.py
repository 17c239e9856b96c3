"""What a user would do without training: show the model liked answers to similar prompts, or hand
out the nearest one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from worlds.answers import answer
from worlds.world import Chat, Example

from thumbwheel.engine.load import load_base

SHOWN = 4
"""Liked examples before each prompt."""


class Liked:
    """Liked and corrected answers, searched by the words of the last message (TF-IDF, cosine)."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows
        texts = [row["prompt"][-1]["content"] for row in rows]
        self._words = {
            word: column
            for column, word in enumerate(sorted({word for text in texts for word in words(text)}))
        }
        counts = self._counts(texts)
        documents = np.asarray((counts > 0).sum(axis=0)).ravel()
        self._rarity = np.log((1 + len(rows)) / (1 + documents)) + 1
        self._vectors = self._weighted(counts)

    def nearest(self, examples: Sequence[Example], count: int) -> list[list[dict[str, Any]]]:
        """For each example the `count` most similar rows, the most similar one first."""
        asked = self._weighted(
            self._counts([example.prompt[-1]["content"] for example in examples])
        )
        similarity = (asked @ self._vectors.T).toarray()
        best = np.argsort(-similarity, axis=1, kind="stable")[:, :count]
        return [[self._rows[index] for index in row] for row in best]

    def _counts(self, texts: Sequence[str]) -> sparse.csr_array:
        entries: list[tuple[int, int, int]] = []
        for number, text in enumerate(texts):
            for word, count in Counter(words(text)).items():
                if word in self._words:
                    entries.append((number, self._words[word], count))
        rows, columns, counts = zip(*entries, strict=True) if entries else ((), (), ())
        return sparse.csr_array(
            (counts, (rows, columns)), shape=(len(texts), len(self._words)), dtype=float
        )

    def _weighted(self, counts: sparse.csr_array) -> sparse.csr_array:
        weighted = sparse.csr_array(counts * self._rarity)
        norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
        return sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1e-12)) @ weighted)


def words(text: str) -> list[str]:
    """Its words in lower case."""
    return re.findall(r"\w+", text.lower())


def nearest_answers(rows: Sequence[dict[str, Any]], examples: Sequence[Example]) -> list[str]:
    """The answer of the most similar liked row, for each example."""
    return [best["completion"] for (best,) in Liked(rows).nearest(examples, 1)]


def few_shot_answers(
    base: Path, rows: Sequence[dict[str, Any]], examples: Sequence[Example], max_new_tokens: int
) -> list[str]:
    """The base's greedy answers behind similar liked examples, the most similar one last."""
    prompts: list[Chat] = []
    for example, similar in zip(examples, Liked(rows).nearest(examples, SHOWN), strict=True):
        shots: Chat = []
        for row in reversed(similar):
            shots += [row["prompt"][-1], {"role": "assistant", "content": row["completion"]}]
        *system, question = example.prompt
        prompts.append([*system, *shots, question])
    return [text for text, _ in answer(load_base(str(base)), prompts, max_new_tokens)]
