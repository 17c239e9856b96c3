"""Settings that follow from the base: learning rate and replay."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma3Config, GPT2Config, Qwen2Config

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_config
from thumbwheel.training import base_defaults
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.algorithms.sft import Sft, SftConfig
from thumbwheel.training.base_defaults import (
    is_pretrained,
    width_and_vocabulary,
    with_base_defaults,
)


def base_folder(folder: Path, *, hidden: int, vocabulary: int) -> Path:
    config = Qwen2Config(hidden_size=hidden, num_attention_heads=4, vocab_size=vocabulary)
    config.save_pretrained(folder)
    return folder


def test_docstring_examples() -> None:
    assert doctest.testmod(base_defaults).failed == 0


@given(st.integers(32, 16384), st.integers(32, 16384))
def test_wider_models_take_smaller_steps(width: int, other: int) -> None:
    wide, narrow = max(width, other), min(width, other)
    assert base_defaults.rate_for(wide, 5e-4) <= base_defaults.rate_for(narrow, 5e-4)


def test_a_small_base_keeps_the_rate_that_was_chosen_on_such_bases(tmp_path: Path) -> None:
    folder = base_folder(tmp_path, hidden=256, vocabulary=4096)
    config = with_base_defaults(SftConfig(), Sft, folder)
    assert (config.learning_rate, config.min_steps, config.replay_weight) == (2.5e-3, 50, 0.0)


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "pretrained"),
    [
        (576, 49_152, True),
        (256, 32_000, True),
        (512, 1_000, True),
        (508, 16_383, False),
        (256, 1_536, False),
    ],
)
def test_a_wide_base_or_one_of_many_tokens_is_pretrained(
    hidden: int, vocabulary: int, pretrained: bool
) -> None:
    assert is_pretrained(hidden, vocabulary) is pretrained


def test_a_pretrained_base_takes_smaller_steps_and_replays_its_own_answers(tmp_path: Path) -> None:
    folder = base_folder(tmp_path, hidden=576, vocabulary=49_152)
    config = with_base_defaults(SftConfig(), Sft, folder)
    assert Sft.pretrained_rate is not None
    assert config.learning_rate == base_defaults.rate_for(576, Sft.pretrained_rate)
    assert config.learning_rate < base_defaults.rate_for(576, Sft.rate)
    assert config.min_steps == Sft.pretrained_fewest_steps
    assert config.replay_weight == base_defaults.REPLAY_WEIGHT > 0


def test_full_tuning_takes_a_tenth(tmp_path: Path) -> None:
    folder = base_folder(tmp_path, hidden=576, vocabulary=49_152)
    config = with_base_defaults(SftConfig(tuning="full"), Sft, folder)
    assert Sft.pretrained_rate is not None
    assert config.learning_rate == base_defaults.rate_for(576, Sft.pretrained_rate / 10)


@pytest.mark.parametrize("method", ALGORITHMS.names())
def test_given_settings_stay(tmp_path: Path, method: str) -> None:
    folder = base_folder(tmp_path, hidden=576, vocabulary=49_152)
    algorithm = ALGORITHMS.get(method)
    requested = {"learning_rate": 1e-5, "min_steps": 3, "replay_weight": 0.25}
    config = with_base_defaults(algorithm.Config(**requested), algorithm, folder)
    assert config.model_dump(include=set(requested)) == requested


@pytest.mark.parametrize(("method", "small", "pretrained"), [("sft", 50, 100), ("kto", 50, 50)])
def test_few_rows_take_as_many_steps_as_the_settings_say(
    tmp_path: Path, method: str, small: int, pretrained: int
) -> None:
    algorithm = ALGORITHMS.get(method)
    help_text = str(algorithm.Config.model_fields["min_steps"].description)
    for hidden, steps in ((256, small), (576, pretrained)):
        folder = base_folder(tmp_path / str(hidden), hidden=hidden, vocabulary=1_000)
        config = with_base_defaults(algorithm.Config(), algorithm, folder)
        assert config.min_steps == steps
        assert f"{steps} for" in help_text


@pytest.mark.parametrize("method", ALGORITHMS.names())
def test_no_method_takes_larger_steps_on_a_pretrained_base(method: str) -> None:
    algorithm = ALGORITHMS.get(method)
    assert algorithm.pretrained_rate is None or algorithm.pretrained_rate < algorithm.rate


@pytest.mark.parametrize(
    ("method", "weight"),
    [("sft", 10.0), ("kto", 10.0), ("dpo", 10.0), ("reward", 0.0), ("grpo", 0.0), ("ppo", 0.0)],
)
def test_methods_of_recorded_answers_replay(tmp_path: Path, method: str, weight: float) -> None:
    folder = base_folder(tmp_path, hidden=576, vocabulary=49_152)
    algorithm = ALGORITHMS.get(method)
    config = with_base_defaults(algorithm.Config(), algorithm, folder)
    assert config.replay_weight == weight


@pytest.mark.parametrize("method", ["sft", "kto", "dpo"])
def test_the_page_of_a_method_names_the_weight_of_its_replay(method: str) -> None:
    page = Path(f"docs/methods/{method}.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `replay_weight`")]
    assert f"{base_defaults.REPLAY_WEIGHT:g} on a pretrained base" in row


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(hidden_size=576, num_attention_heads=4, vocab_size=49_152),
        GPT2Config(n_embd=48, n_head=4, vocab_size=300),
        Gemma3Config(text_config={"hidden_size": 64, "vocab_size": 500}),
        Gemma3Config(text_config={"hidden_size": 64}),
    ],
    ids=["plain", "other names", "inside another", "by default"],
)
def test_width_and_vocabulary_are_those_that_transformers_reads(
    tmp_path: Path, config: Any
) -> None:
    config.save_pretrained(tmp_path)
    read = load_config(tmp_path).get_text_config()
    assert width_and_vocabulary(tmp_path) == (read.hidden_size, read.vocab_size)


def test_a_run_is_planned_without_transformers(tmp_path: Path) -> None:
    folder = base_folder(tmp_path, hidden=576, vocabulary=49_152)
    code = (
        "import sys; from pathlib import Path;"
        "from thumbwheel.training.base_defaults import width_and_vocabulary;"
        "print(width_and_vocabulary(Path(sys.argv[1])), 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(576, 49152) False\n"


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"model_type": "qwen2", "hidden_size": true}']
)
def test_a_configuration_that_cannot_be_read_is_the_error_of_loading_it(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError):
        width_and_vocabulary(tmp_path)
