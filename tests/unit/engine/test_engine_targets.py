"""Which weights of an architecture get an adapter, and that none is left out unsaid: Conv1D, fused
projections, experts."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as tf

from tests.models.token_families import GROUPED, PAIRS, SHAPE, SMALL, VOCAB, plain
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import LoraSettings, attach_lora
from thumbwheel.engine.lora import expert_weights_without_adapter
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import build

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES = {
    "gpt2-conv1d": (
        lambda: tf.GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, **SMALL
        ),
        {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"},
    ),
    "phi3-fused": (
        lambda: tf.Phi3Config(**SHAPE, **GROUPED),
        {"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"},
    ),
    "neox-fused": (
        lambda: tf.GPTNeoXConfig(**SHAPE),
        {"attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
    ),
    "mixtral": (
        lambda: tf.MixtralConfig(**SHAPE, **GROUPED, num_local_experts=4),
        {f"self_attn.{name}_proj" for name in "qkvo"}
        | {"mlp.gate", "mlp.experts", "mlp.experts.base_layer"},
    ),
    "qwen2-moe": (
        lambda: tf.Qwen2MoeConfig(
            **SHAPE, **GROUPED, **EXPERTS, shared_expert_intermediate_size=16
        ),
        {f"self_attn.{name}_proj" for name in "qkvo"}
        | {f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
        | {"mlp.shared_expert_gate"},
    ),
}
BOTH = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def kinds(names):
    return {name.split(".", 5)[-1] if name.count(".") >= 5 else name for name in names}


def family(name, **settings):
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(FAMILIES[name][0]()).requires_grad_(False)
    adapted, matched = attach_lora(model, LoraSettings(rank=2, alpha=4, **settings), seed=0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    return adapted, matched


@pytest.mark.parametrize("name", FAMILIES)
def test_the_adapted_layers_are_all_of_them_and_are_used(name):
    model, matched = family(name)
    assert kinds(matched) == FAMILIES[name][1] and len(matched) == 2 * len(FAMILIES[name][1])
    assert expert_weights_without_adapter(model) == (sorted(BOTH) if name == "qwen2-moe" else [])
    twin = copy.deepcopy(model).eval()
    engine = ScoreEngine(model)
    batch = build(PAIRS, range(len(PAIRS)), engine.layout)
    policy = engine.score(batch, Role.POLICY, grad=True).logp
    with torch.no_grad():
        torch.testing.assert_close(
            policy.detach(), plain(twin, PAIRS, torch.float32, exact=False), atol=3e-5, rtol=1e-5
        )
        with twin.disable_adapter():
            reference = plain(twin, PAIRS, torch.float32, exact=False)
    torch.testing.assert_close(engine.score(batch, Role.REF).logp, reference, atol=3e-5, rtol=1e-5)
    assert (policy.detach() - reference).abs().max() > 1e-2
    policy.sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for parameter in engine.parameters_of(Role.POLICY)
    )


def test_experts_get_an_adapter_by_name():
    model, matched = family("qwen2-moe", targets=("q_proj", "experts.down_proj"))
    assert kinds(matched) == {"self_attn.q_proj", "mlp.experts"}
    assert expert_weights_without_adapter(model) == ["mlp.experts.gate_up_proj"]
    engine = ScoreEngine(copy.deepcopy(model))
    logp = engine.score(build(PAIRS, range(len(PAIRS)), engine.layout), Role.POLICY).logp
    with torch.no_grad():
        torch.testing.assert_close(
            logp, plain(model, PAIRS, torch.float32, exact=False), atol=3e-5, rtol=1e-5
        )


def test_no_match_is_an_error_that_names_what_there_is():
    with pytest.raises(ModelError, match=r"no layer of this model has that name.*c_attn"):
        family("gpt2-conv1d", targets=("q_proj",))


def test_a_convolution_is_no_expert():
    config = tf.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4, **SMALL
    )
    model = tf.AutoModelForCausalLM.from_config(config)
    assert (
        expert_weights_without_adapter(
            attach_lora(model, LoraSettings(rank=2, targets=("in_proj",)))[0]
        )
        == []
    )
