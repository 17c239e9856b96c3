"""JSON that no honest client sends: any values, and whole ones with parts replaced by junk."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st


def json_values(*words: str) -> st.SearchStrategy[Any]:
    """Any JSON values, with these words among the texts."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats()
        | st.text(max_size=5)
        | st.sampled_from(words)
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    )


def scrambled(value: Any, chance: random.Random, junk: list[Any], share: float) -> Any:
    """`value` in which that share of its parts is replaced by junk."""
    if chance.random() < share:
        return chance.choice(junk)
    if isinstance(value, dict):
        return {key: scrambled(part, chance, junk, share) for key, part in value.items()}
    if isinstance(value, list):
        return [scrambled(part, chance, junk, share) for part in value]
    return value
