"""The datasets of n3: bounds of the split, and texts that UTF-8 has no bytes for."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.compat.n3.datasets import (
    FeedbackDataset,
    load_dataset,
    prepare_feedback_dataset,
    save_dataset,
)
from thumbwheel.compat.n3.training import train_reward_model
from thumbwheel.core.errors import ConfigError, InputError


def test_a_row_that_cannot_be_stored_is_not_left_out_in_silence(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Frage {n}?", "response": "half \ud800" if n == 3 else "Ja.", "score": 0.5}
        for n in range(4)
    ]
    with pytest.raises(InputError, match=r"line 7 of .*: it is no JSON"):
        train_reward_model(FeedbackDataset(rows), output_dir=tmp_path)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, 80, float("nan")])
def test_a_share_beyond_one_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share of the prompts"):
        prepare_feedback_dataset([{"prompt": "q", "response": "a", "score": 1}], train_split=share)


def test_a_lone_surrogate_is_saved_and_read_again(tmp_path: Path) -> None:
    dataset = FeedbackDataset(
        [{"prompt": "q \ud800", "response": "caf\u00e9", "score": 1}], normalize_scores=False
    )
    save_dataset(dataset, tmp_path / "dataset.json")
    assert load_dataset(tmp_path / "dataset.json").examples == dataset.examples
