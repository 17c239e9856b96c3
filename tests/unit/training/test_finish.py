"""An answer that was cut off gets no end token, whatever learns from it; one that ended, or of
which nobody knows, gets one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, plain_rows


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(
    ("method", "shape", "field", "settings"),
    [
        ("sft", "chats", "finish_reason", {}),
        ("dpo", "pairs", "chosen_finish", {}),
        ("kto", "labels", "finish_reason", {}),
        ("reward", "pairs", "chosen_finish", {}),
        ("reward", "labels", "finish_reason", {"loss_type": "classification"}),
        ("reward", "scored", "finish_reason", {"loss_type": "regression", "scale": (1.0, 5.0)}),
    ],
)
def test_what_was_cut_off_has_no_end(method, shape, field, settings, plain_model, tmp_path):
    from thumbwheel.engine.load import load_tokenizer
    from thumbwheel.engine.prompt import PromptBuilder

    ends = set(PromptBuilder(load_tokenizer(str(plain_model))).stop_ids)

    def ended(reason):
        rows = [row | {field: reason} for row in plain_rows(shape, 12)]
        items = assembled(method, plain_model, tmp_path, rows, **settings).train.items
        return {item.branches[0].ids[-1] in ends for item in items}

    assert ended("length") == {False} and ended("stop") == {True} and ended(None) == {True}
