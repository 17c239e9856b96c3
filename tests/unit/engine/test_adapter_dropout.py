"""Dropout of adapters: a share of their inputs is left out where gradients are computed, the same
again where a layer is recomputed, and nothing where something is measured."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny_models import tiny_base
from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.lora import adapter_layers, dropout_draw, set_dropout
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, TreeBatch, plan

EXAMPLES = [
    Example((5, 6, 7), (Branch((8, 9, 10)), Branch((11, 12))), "a"),
    Example((20, 21), (Branch((22, 23, 24)),), "b"),
]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base") / "base")


def adapted(base: Path, share: float) -> Any:
    """Return a model whose adapter changes its answers."""
    model, _ = load_base(str(base), "float32", local_only=True)
    model, _ = attach_lora(model, LoraSettings(rank=4), seed=0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(1))
    if share:
        set_dropout(model, share, seed=7)
    return model


def measured(engine: ScoreEngine) -> torch.Tensor:
    """Return the log-probabilities of all answers, as references and dev rows get them."""
    (batch,) = plan(EXAMPLES, 10_000, engine.layout)
    with torch.no_grad():
        return engine.score(batch, Role.POLICY).logp


def learned(engine: ScoreEngine) -> torch.Tensor:
    """Return the losses of all batches, whose gradients are then added."""

    def loss(side: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, None]:
        return -side.score(batch, Role.POLICY, grad=True).logp.sum(), None

    return torch.stack([pair[0] for _, pair in engine.backward(EXAMPLES, 10_000, loss)]).sum()


def gradients(engine: ScoreEngine) -> torch.Tensor:
    engine.zero_grad()
    learned(engine)
    weights = [weight.grad.flatten() for weight in engine.trainable if weight.grad is not None]
    return torch.cat(weights).clone()


def test_only_gradients_leave_something_out(tiny_model: Path) -> None:
    engine, plain = ScoreEngine(adapted(tiny_model, 0.3)), ScoreEngine(adapted(tiny_model, 0))
    torch.testing.assert_close(measured(engine), measured(plain))
    torch.testing.assert_close(learned(plain), -measured(plain).sum())
    assert abs(float(learned(engine) - learned(plain))) > 1e-3
    with torch.no_grad():
        (batch,) = plan(EXAMPLES, 10_000, engine.layout)
        references = [side.score(batch, Role.REF).logp for side in (engine, plain)]
    torch.testing.assert_close(*references)


def test_what_is_left_out_follows_from_seed_and_position(tiny_model: Path) -> None:
    engine, again = ScoreEngine(adapted(tiny_model, 0.3)), ScoreEngine(adapted(tiny_model, 0.3))
    drawn = []
    for step in (0, 1, 0):
        engine.draw_dropout(step)
        drawn.append(gradients(engine))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    torch.manual_seed(99)
    again.draw_dropout(1)
    assert torch.equal(gradients(again), drawn[1])
    # a copy for another thread takes part in the same update
    assert dropout_draw(copy.deepcopy(engine.model)) is dropout_draw(engine.model)


def test_a_recomputed_layer_leaves_out_the_same(tiny_model: Path) -> None:
    plain = ScoreEngine(adapted(tiny_model, 0.3))
    recomputing = ScoreEngine(adapted(tiny_model, 0.3), checkpointing=True)
    torch.testing.assert_close(gradients(recomputing), gradients(plain))


def test_the_share_is_that_of_the_setting_and_the_mean_stays(tiny_model: Path) -> None:
    model = adapted(tiny_model, 0.25)
    layer = next(layer for layer in adapter_layers(model) if hasattr(layer, "lora_dropout"))
    dropout = layer.lora_dropout["default"]
    x = torch.ones(200, 500)
    dropped = dropout(x)
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.01)
    assert dropped.mean() == pytest.approx(1.0, abs=0.01)
    with torch.no_grad():
        assert dropout(x) is x
