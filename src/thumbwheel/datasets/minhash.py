"""Finds texts that are nearly the same: MinHash over word triples, candidate pairs by bands, and
the overlap of each candidate pair.

The overlap is the Jaccard similarity of the sets of triples (Broder 1997). `near_pairs` estimates
it by `HASHES` hashes: within 0.1 of the truth in about 95 of 100 pairs near 0.85; `near_ties`
computes it. Texts of fewer than `SHORT` words have too few triples and are compared as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING

from thumbwheel.datasets.disjoint_sets import DisjointSets
from thumbwheel.datasets.split import plain

if TYPE_CHECKING:
    import numpy as np

HASHES, BANDS = 64, 16
"""Bands of four hashes find a pair of overlap 0.85 in 99.9 of 100 cases, and one of 0.3 in 12."""
NEAR = 0.85
"""Overlap from which two texts are nearly the same."""
SHORT = 8
MIXING = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd: by it the hashes of parts become one of the whole, which tells
their order (Knuth, vol. 3, 6.4)."""
SPLIT = 1000
"""Texts that are split into words at once."""
BUCKET = 50
"""Most texts of one bucket that are compared with each other; a template that thousands share would
otherwise take for ever."""
TEMPLATE, TEMPLATE_SHARE = 50, 0.05
"""A triple that so many texts of a sample share, and at least this share of them, belongs to a
template: prompts that an app writes around what a person asked are alike without asking the
same."""
SAMPLE = 5000
"""Texts that are searched for templates."""
FEWEST = 4
"""Triples that a text needs beside those of its template, to be compared."""
PUNCTUATION = str.maketrans(
    dict.fromkeys(".,;:!?\"'`()\u2026\u2019\u2018\u201c\u201d\u00bf\u00a1", " ")
)


def bare(text: str) -> str:
    """Return `plain` text without punctuation.

    >>> bare("Is it  waterproof?") == bare("is it waterproof")
    True
    """
    return " ".join(plain(text).translate(PUNCTUATION).split())


def near_pairs(
    texts: Sequence[str], near: float = NEAR, *, templates: bool = True
) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of texts (their indexes) with their overlap, from `near` to 1.0 (equal but for
    white space, case and Unicode forms), each pair once.

    Equal texts are reported as a chain, each with the next, not as all pairs. Without `templates`,
    triples that many texts share do not count.
    """
    import numpy as np

    equal: dict[str, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        equal[plain(text)].append(index)
    for indexes in equal.values():
        for first, second in pairwise(indexes):
            yield first, second, 1.0

    # of texts that are equal, only the first takes part in what follows
    long_texts = [text for text in equal if text.count(" ") >= SHORT - 1]
    if len(long_texts) < 2:
        return
    indexes = [equal[text][0] for text in long_texts]
    triples = word_triples(long_texts)
    if not templates:
        triples, numbers = triples.distinctive(np.arange(len(long_texts)))
        indexes = [indexes[number] for number in numbers]
        if len(indexes) < 2:
            return
    for first, second, overlap in _estimated_pairs(_signatures(triples), near):
        yield indexes[first], indexes[second], overlap


def _estimated_pairs(signatures: np.ndarray, near: float) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of texts that share a band, with their overlap estimated by all hashes."""
    compared: set[tuple[int, int]] = set()
    for bucket in _buckets(signatures):
        for pair in combinations(bucket, 2):
            if pair in compared:
                continue
            compared.add(pair)
            first, second = pair
            overlap = float((signatures[first] == signatures[second]).mean())
            if overlap >= near:
                yield first, second, overlap


class _WordHashes(dict[str, int]):
    """Word -> a 64-bit hash of it, computed once."""

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = int.from_bytes(digest, "big")
        return self[word]


@dataclass(frozen=True)
class WordTriples:
    """Hashes of the word triples of some texts: `hashes[starts[n]:starts[n + 1]]` are those of text
    `n`."""

    hashes: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, number: int) -> np.ndarray:
        """Return the distinct triples of a text, sorted."""
        import numpy as np

        return np.unique(self.hashes[self.starts[number] : self.starts[number + 1]])

    def distinctive(self, order: np.ndarray) -> tuple[WordTriples, list[int]]:
        """Return the triples without those of templates, of the texts that have enough left, and
        the numbers of these texts.

        Templates are searched in the first texts by `order`; if that is a hash of the texts, the
        order in which they came does not matter.
        """
        import numpy as np

        sample = np.argsort(order, kind="stable")[:SAMPLE].tolist()
        of_sample = np.concatenate([self.of(number) for number in sample])
        values, counts = np.unique(of_sample, return_counts=True)
        template = values[counts >= max(TEMPLATE, TEMPLATE_SHARE * len(sample))]
        keep = np.ones(len(self.hashes), bool)
        if len(template):
            nearest = np.minimum(np.searchsorted(template, self.hashes), len(template) - 1)
            keep = template[nearest] != self.hashes
        lengths = np.diff(np.concatenate([[0], keep.cumsum()])[self.starts])
        enough = lengths >= FEWEST
        keep &= np.repeat(enough, np.diff(self.starts))
        starts = np.concatenate([[0], lengths[enough].cumsum()])
        return WordTriples(self.hashes[keep], starts), np.flatnonzero(enough).tolist()


def word_triples(texts: Sequence[str]) -> WordTriples:
    """Return the word triples of texts that each have at least three words; the words of `SPLIT`
    texts are in memory at a time."""
    import numpy as np

    word_hashes = _WordHashes()
    hashes, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for start in range(0, len(texts), SPLIT):
        words = [text.split() for text in texts[start : start + SPLIT]]
        sizes = np.array([len(words_of_text) for words_of_text in words])
        flat = np.fromiter(
            map(word_hashes.__getitem__, chain.from_iterable(words)), np.uint64, int(sizes.sum())
        )
        # a triple at each word but the last two of a text
        begins = np.ones(len(flat), bool)
        ends = sizes.cumsum()
        begins[ends - 1] = begins[ends - 2] = False
        triples = (flat[:-2] * MIXING + flat[1:-1]) * MIXING + flat[2:]
        hashes.append(triples[begins[:-2]])
        lengths.append(sizes - 2)
    return WordTriples(
        np.concatenate(hashes), np.concatenate([[0], np.concatenate(lengths).cumsum()])
    )


def near_ties(triples: WordTriples, order: np.ndarray) -> list[tuple[int, int]]:
    """Return pairs of numbers that tie together all texts with an overlap of at least `NEAR`;
    `order` are hashes of the texts.

    Triples of templates do not count. In a large bucket a text is only compared with those that are
    not near to an earlier one.
    """
    if len(triples) < 2:
        return []
    distinctive, numbers = triples.distinctive(order)
    if len(distinctive) < 2:
        return []
    ties: list[tuple[int, int]] = []
    sets = DisjointSets(len(distinctive))
    ranks = order[numbers]
    for bucket in _buckets(_signatures(distinctive), limit=None):
        compared: list[int] = []
        for text in sorted(bucket, key=lambda number: ranks[number]):
            tied = False
            for other in compared:
                if sets.find(other) == sets.find(text):
                    tied = True
                elif _overlap(distinctive.of(other), distinctive.of(text)) >= NEAR:
                    sets.join(other, text)
                    ties.append((numbers[other], numbers[text]))
                    tied = True
            if len(bucket) <= BUCKET or (not tied and len(compared) < BUCKET):
                compared.append(text)
    return ties


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Jaccard similarity of two sorted sets; 0.0 if their sizes alone rule out
    `NEAR`."""
    import numpy as np

    smaller, larger = sorted((len(first), len(second)))
    if smaller < NEAR * larger:
        return 0.0
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (smaller + larger - shared)


def _signatures(triples: WordTriples) -> np.ndarray:
    """Return [texts, HASHES]: the smallest value of each hash over the triples of a text."""
    import numpy as np
    from rensa import RMinHash

    signatures = []
    for first in range(0, len(triples), SPLIT):
        starts = triples.starts[first : first + SPLIT + 1]
        hashes = triples.hashes[starts[0] : starts[-1]]
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(
            hashes, (starts - starts[0]).astype(np.uint64), HASHES, 1
        )
        signatures.append(np.array(matrix.to_rows(), np.uint32))
    return np.concatenate(signatures)


def _buckets(signatures: np.ndarray, limit: int | None = BUCKET) -> Iterator[list[int]]:
    """Yield numbers of texts that agree in all hashes of a band, at most `limit` of them."""
    import numpy as np

    width = signatures.shape[1] // BANDS
    for band in range(BANDS):
        keys = np.zeros(len(signatures), np.uint64)
        for column in range(band * width, (band + 1) * width):
            keys = keys * MIXING + signatures[:, column]
        order = keys.argsort(kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
        ends = np.append(starts[1:], len(order))
        shared = ends - starts > 1
        for start, end in zip(starts[shared].tolist(), ends[shared].tolist(), strict=True):
            stop = end if limit is None else min(end, start + limit)
            yield order[start:stop].tolist()
