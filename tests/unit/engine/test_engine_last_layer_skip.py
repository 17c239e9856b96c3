"""The last layer's feed-forward part sees only the rows that are read, also when it is computed
again in the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.models.tiny_models import tiny_base
from thumbwheel.engine import last_layer_skip
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, Layout, build

EXAMPLES = [Example(tuple(range(20, 60)), (Branch((7, 8, 9)), Branch((7, 11))), "g")]


def engine(folder, family, **settings) -> ScoreEngine:
    from peft import LoraConfig, get_peft_model

    from thumbwheel.engine.load import load_base

    model, _ = load_base(str(tiny_base(folder / family, family)), "float64")
    model = get_peft_model(
        model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return ScoreEngine(model, **settings)


def last_layer(score_engine: ScoreEngine):
    return last_layer_skip.layers_of(score_engine.language_model)[-1]


def gradients(score_engine: ScoreEngine, batch) -> list[torch.Tensor]:
    score_engine.zero_grad()
    scores = score_engine.score(batch, Role.POLICY, grad=True)
    (scores.logp * torch.arange(1, len(scores.logp) + 1)).sum().backward()
    return [
        scores.logp.detach(),
        *(parameter.grad.clone() for parameter in score_engine.parameters_of(Role.POLICY)),
    ]


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma2", "phi"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_scores_and_gradients_are_those_of_the_whole_layer_at_the_cost_of_the_rows_that_are_read(
    tmp_path, family, checkpointing
):
    score_engine = engine(tmp_path, family, checkpointing=checkpointing)
    batch = build(EXAMPLES, [0], Layout("tree"))
    part, seen = last_layer(score_engine).mlp, []
    inside = next(child for child in part.children() if hasattr(child, "lora_A"))
    handle = inside.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[-2]))
    narrowed = gradients(score_engine, batch)
    handle.remove()
    assert set(seen) == {len(batch.read_rows)} == {5}
    assert len(seen) == (2 if checkpointing else 1)
    del part.forward
    whole = gradients(score_engine, batch)
    assert all(
        torch.allclose(tensor, other, rtol=1e-9, atol=1e-12)
        for tensor, other in zip(narrowed, whole, strict=True)
    )


def test_a_plain_forward_and_a_copy_of_the_model_compute_every_row(tmp_path):
    score_engine = engine(tmp_path, "qwen2")
    ids = torch.tensor([EXAMPLES[0].prompt])
    before = score_engine.model(input_ids=ids).logits
    score_engine.score(build(EXAMPLES, [0], Layout("tree")), Role.POLICY)
    assert torch.equal(score_engine.model(input_ids=ids).logits, before)
    twin = copy.deepcopy(score_engine.model)
    last_layer(score_engine).mlp.rows = torch.tensor([0])
    assert torch.equal(twin(input_ids=ids).logits, before)
    assert (
        last_layer_skip.layers_of(twin.get_base_model())[-1].mlp.forward.args[0]
        is not last_layer(score_engine).mlp
    )


def test_where_nearly_every_row_is_read_none_are_picked_out():
    assert build([Example((5,), (Branch((7, 8, 9)),), "g")], [0], Layout("tree")).read_rows is None


def test_a_layer_whose_feed_forward_part_mixes_rows_is_left_alone(tmp_path, monkeypatch):
    from thumbwheel.engine import capability
    from thumbwheel.engine.load import load_base

    model, _ = load_base(str(tiny_base(tmp_path)), "float64")
    part = last_layer_skip.layers_of(model)[-1].mlp
    inner = part.forward
    part.forward = lambda hidden: inner(hidden) + hidden.mean(1, keepdim=True)
    layout, _ = capability.choose(model)
    assert layout.kind == "padded"  # such a model is no tree in the first place
    assert not hasattr(part, "rows")
