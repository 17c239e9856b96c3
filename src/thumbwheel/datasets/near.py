"""Texts that are nearly the same: MinHash over word triples, candidates by bands, and the estimated overlap of each candidate pair.

The overlap is the Jaccard similarity of the sets of triples (Broder 1997), estimated by `HASHES` hashes: within 0.1 of the truth in
about 95 of 100 pairs near 0.85. Texts of fewer than `SHORT` words have too few triples and are compared as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from thumbwheel.datasets.split import plain

if TYPE_CHECKING:
    import numpy as np

HASHES, BANDS = 64, 16
"""Bands of four hashes find a pair of overlap 0.85 in 99.9 of 100 cases, and one of 0.3 in 12."""
NEAR = 0.85
"""Overlap from which two texts are nearly the same."""
SHORT = 8
MIXING = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, odd: by it the hashes of parts become one of the whole, which tells their order (Knuth, vol. 3, 6.4)."""
SPLIT = 1000
"""Texts that are split into words at once."""
BUCKET = 50
"""Most texts of one bucket that are compared with each other; a template that thousands share would otherwise take for ever."""


def near_pairs(texts: Sequence[str], near: float = NEAR) -> Iterator[tuple[int, int, float]]:
    """Places of two texts and their overlap, from `near` to 1.0 (the same but for white space, case and Unicode forms), each pair once.

    Equal texts are reported as a chain, each with the next, not as all pairs.
    """
    same: dict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(texts):
        same[plain(text)].append(place)
    for places in same.values():
        yield from ((first, second, 1.0) for first, second in pairwise(places))
    long = [(places[0], text) for text, places in same.items() if text.count(" ") >= SHORT - 1]
    if len(long) < 2:
        return
    marks = _marks([text for _, text in long])
    met: set[tuple[int, int]] = set()
    for bucket in _buckets(marks):
        for number, first in enumerate(bucket):
            for second in bucket[number + 1 :]:
                if (first, second) not in met:
                    met.add((first, second))
                    overlap = float((marks[first] == marks[second]).mean())
                    if overlap >= near:
                        yield long[first][0], long[second][0], overlap


class _Hashed(dict[str, int]):
    """Word -> 64 bits of it, each word once."""

    def __missing__(self, word: str) -> int:
        found = self[word] = int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return found


def _triples(texts: Sequence[Sequence[str]], known: _Hashed) -> tuple[np.ndarray, np.ndarray]:
    """(hashes of all triples of words, [texts + 1] where those of each text begin); every text has three words and more."""
    import numpy as np

    sizes = np.array([len(words) for words in texts])
    words = np.fromiter(map(known.__getitem__, chain.from_iterable(texts)), np.uint64, int(sizes.sum()))
    triples = (words[:-2] * MIXING + words[1:-1]) * MIXING + words[2:]
    inside = np.ones(len(words), bool)
    ends = sizes.cumsum()
    inside[ends - 1] = inside[ends - 2] = False
    return triples[inside[:-2]], np.concatenate([[0], (sizes - 2).cumsum()])


def _marks(texts: Sequence[str]) -> np.ndarray:
    """[texts, HASHES]; the words of some texts are in memory at a time."""
    import numpy as np
    from rensa import RMinHash

    known, found = _Hashed(), []
    for start in range(0, len(texts), SPLIT):
        hashes, starts = _triples([text.split() for text in texts[start : start + SPLIT]], known)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, starts.astype(np.uint64), HASHES, 1)
        found.append(np.array(matrix.to_rows(), np.uint32))
    return np.concatenate(found)


def _buckets(marks: np.ndarray) -> Iterator[list[int]]:
    """Places that agree in all hashes of a band, at most `BUCKET` of them."""
    import numpy as np

    width = marks.shape[1] // BANDS
    for band in range(BANDS):
        keys = np.zeros(len(marks), np.uint64)
        for at in range(band * width, (band + 1) * width):
            keys = keys * MIXING + marks[:, at]
        order = keys.argsort(kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
        ends = np.append(starts[1:], len(order))
        for start, end in zip(starts[ends - starts > 1].tolist(), ends[ends - starts > 1].tolist(), strict=True):
            yield order[start : min(end, start + BUCKET)].tolist()
