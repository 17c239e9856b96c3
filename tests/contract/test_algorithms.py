"""The contract of a training method, over the table: listed means tested."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.third_party import names
from tests.training_rows import assembled, loop_of, plain_rows
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.engine import replicas
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.online import OnlineAlgorithm
from thumbwheel.training.types import TrainConfig


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two threads, and micro-batches that are small enough for both."""
    import torch

    before = torch.get_num_threads()
    monkeypatch.setattr(replicas, "MIN_TOKENS", 16)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(ALGORITHMS))
def test_two_steps_then_resume_then_plain_peft(
    name: str, tiny_model: Path, tmp_path: Path, side_by_side: None
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    method = ALGORITHMS.get(name)
    rows = plain_rows(method.needs, 12, 4)
    options = (
        {"max_completion_length": 8, "curriculum": True}
        if issubclass(method, OnlineAlgorithm)
        else {}
    )
    for folder, stops in ((tmp_path / "whole", [None]), (tmp_path / "parts", [2, None])):
        folder.mkdir()
        done = None
        for stop in stops:
            assembly = assembled(
                name, tiny_model, folder, rows, eval_steps=2, token_budget=256, **options
            )
            loop = loop_of(assembly, folder, interrupted=lambda: loop.state.global_step == stop)  # noqa: B023 - used in this turn only
            done = loop.run(done).step
            assembly.runner.close()
            assert assembly.engine._replicas
    assert done == 3
    curves = [
        [json.loads(line) for line in (tmp_path / part / "metrics.jsonl").read_text().splitlines()]
        for part in ("whole", "parts")
    ]
    assert all(math.isfinite(line.get("loss", line.get("eval_loss"))) for line in curves[0])
    for line in [*curves[0], *curves[1]]:
        line.pop("step_seconds", None)
    assert curves[0] == curves[1]
    writer, scorer = (
        (AutoModelForCausalLM, {}),
        (AutoModelForSequenceClassification, {"num_labels": 1}),
    )
    form, more = scorer if method.produces_reward_model else writer
    loaded = PeftModel.from_pretrained(
        form.from_pretrained(tiny_model, dtype=torch.float32, **more),
        tmp_path / "whole/checkpoints/checkpoint-3",
    )
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        ours, plain = assembly.model(ids).logits, loaded(ids).logits
        untrained = loaded.get_base_model()
        with loaded.disable_adapter():
            before = untrained(ids).logits
    assert torch.allclose(ours, plain, atol=1e-5)
    assert not torch.allclose(plain, before, atol=1e-6)


@pytest.mark.parametrize("name", names(ALGORITHMS))
def test_it_names_itself_a_shape_and_documented_settings(name: str) -> None:
    method = ALGORITHMS.get(name)
    assert method.name == name
    assert method.title
    assert {method.needs, *method.also_learns_from} <= set(SHAPES.names())
    assert issubclass(method.Config, TrainConfig)
    assert all(field.description for field in method.Config.model_fields.values())
    assert method.good_roles or method.produces_reward_model or issubclass(method, OnlineAlgorithm)


def test_listing_commands_and_settings_imports_no_torch() -> None:
    code = (
        "import sys, thumbwheel.training.commands; assert not {'torch', 'transformers', 'peft'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
