"""Texts that are nearly the same: MinHash over word triples, candidates by bands, and the estimated overlap of each candidate pair.

The overlap is the Jaccard similarity of the sets of triples (Broder 1997), estimated by `HASHES` hashes: within 0.1 of the truth in
about 95 of 100 pairs near 0.85. Texts of fewer than `SHORT` words have too few triples and are compared as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from thumbwheel.datasets.split import plain

if TYPE_CHECKING:
    import numpy as np

HASHES, BANDS = 64, 16
"""Bands of four hashes find a pair of overlap 0.85 in 99.9 of 100 cases, and one of 0.3 in 12."""
NEAR = 0.85
"""Overlap from which two texts are nearly the same."""
SHORT = 8
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
    long = [(places[0], text.split()) for text, places in same.items() if text.count(" ") >= SHORT - 1]
    if len(long) < 2:
        return
    marks = _marks([words for _, words in long])
    met: set[tuple[int, int]] = set()
    for bucket in _buckets(marks):
        for number, first in enumerate(bucket):
            for second in bucket[number + 1 :]:
                if (first, second) not in met:
                    met.add((first, second))
                    overlap = float((marks[first] == marks[second]).mean())
                    if overlap >= near:
                        yield long[first][0], long[second][0], overlap


def _marks(texts: Sequence[Sequence[str]]) -> np.ndarray:
    import numpy as np
    from rensa import RMinHash

    triples = [[" ".join(words[at : at + 3]) for at in range(len(words) - 2)] for words in texts]
    return np.array(RMinHash.digests_from_token_sets(triples, HASHES, 1), np.uint32)


def _buckets(marks: np.ndarray) -> Iterator[list[int]]:
    """Places that agree in all hashes of a band, at most `BUCKET` of them."""
    width = marks.shape[1] // BANDS
    for band in range(BANDS):
        found: dict[bytes, list[int]] = defaultdict(list)
        for place, row in enumerate(marks[:, band * width : (band + 1) * width]):
            found[row.tobytes()].append(place)
        yield from (places[:BUCKET] for places in found.values() if len(places) > 1)
