"""The learning rate that follows from the base."""

from __future__ import annotations

import doctest
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config

from thumbwheel.training import rate
from thumbwheel.training.algorithms.sft import Sft, SftConfig


def test_docstring_examples() -> None:
    assert doctest.testmod(rate).failed == 0


@given(st.integers(32, 16384), st.integers(32, 16384))
def test_wider_models_take_smaller_steps(width: int, other: int) -> None:
    wide, narrow = max(width, other), min(width, other)
    assert rate.rate_for(wide, 5e-4) <= rate.rate_for(narrow, 5e-4)


def test_an_unset_rate_is_filled_in_and_a_given_one_stays(tmp_path: Path) -> None:
    Qwen2Config(hidden_size=256, num_attention_heads=4).save_pretrained(tmp_path)
    assert rate.with_rate(SftConfig(), Sft.rate, tmp_path).learning_rate == 2.5e-3
    assert rate.with_rate(SftConfig(learning_rate=1e-5), Sft.rate, tmp_path).learning_rate == 1e-5
