"""Every limit of every precision, pinned: at the limit an export passes, beyond it it fails and says which one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thumbwheel.export.parity import LIMITS, limits
from thumbwheel.export.types import Parity

PINNED = {
    "float32": (1e-5, 0.999, 0.25, None),
    "float16": (1e-3, 0.98, 0.25, None),
    "bfloat16": (1e-2, 0.95, 0.25, None),
    "F32": (1e-4, 0.99, 0.25, None),
    "F16": (1e-3, 0.99, 0.25, 0.05),
    "BF16": (1e-2, 0.95, 0.25, None),
    "Q8_0": (0.02, 0.90, None, None),
    "Q6_K": (0.05, 0.85, None, None),
    "Q5_K_M": (0.10, 0.80, None, None),
    "Q4_K_M": (0.20, 0.70, None, None),
    "Q3_K_M": (0.40, 0.60, None, None),
    "Q2_K": (0.80, 0.45, None, None),
}


def at_the_limit(dtype: str) -> Parity:
    known = limits(dtype)
    return Parity(1, 100, dtype, known.logits or 1.0, known.mean_kl, known.top1, 10.0, True, known, base_kl=10.0)


@pytest.mark.parametrize("dtype", PINNED)
def test_the_limits_of_a_precision(dtype: str) -> None:
    known = limits(dtype)
    assert (known.mean_kl, known.top1, known.of_effect, known.logits) == PINNED[dtype]
    exact = at_the_limit(dtype)
    assert exact.failures == []
    assert replace(exact, mean_kl=known.mean_kl * 1.01).failures
    (too_few,) = replace(exact, top1=known.top1 - 0.001).failures
    assert "top-1 agreement" in too_few
    apart = replace(exact, max_abs_diff=exact.max_abs_diff * 1.01).failures
    assert ["a logit differs" in text for text in apart] == ([True] if known.logits else [])
    drowned = replace(exact, effect_kl=known.mean_kl * 3).failures
    assert bool(drowned) == (known.of_effect is not None)


def test_no_limit_is_unpinned() -> None:
    assert len(LIMITS) == len(PINNED)
    assert limits("a precision that nobody knows") == LIMITS["float32"]
