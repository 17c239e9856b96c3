"""Roles on one base: each answers with its own adapter and head, and leaves the others and what
trains alone."""

from __future__ import annotations

import copy

import peft
import pytest
import torch

from tests.models.token_families import PADDED, PAIRS, TREE, adapted, plain
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.score import Role, RoleModel, ScoreEngine
from thumbwheel.engine.tree import build

ADAPTERS = {Role.POLICY: "default", Role.REF: None, Role.CRITIC: "critic", Role.REWARD: "judge"}
BOTH = frozenset({"value", "last"})


def with_roles(family, dtype=torch.float64, **options):
    """An engine whose three adapters and two heads are random; the critic's adapter is on fewer
    layers."""
    config = TREE[family] if family in TREE else PADDED[family][0]
    model = adapted(config, dtype)
    fewer = {"gpt2": ["c_attn"], "bloom": ["query_key_value"]}.get(family, ["q_proj", "v_proj"])
    for name, targets in (("critic", fewer), ("judge", "all-linear")):
        model.add_adapter(
            name,
            peft.LoraConfig(
                r=2, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM"
            ),
        )
    model.to(dtype)
    torch.manual_seed(5)
    heads = {
        role: torch.nn.Linear(32, 1, bias=bias).to(dtype)
        for role, bias in ((Role.CRITIC, True), (Role.REWARD, False))
    }
    plain_model = copy.deepcopy(model)
    return (
        ScoreEngine(
            model,
            role_models={role: RoleModel(ADAPTERS[role], heads[role]) for role in heads},
            **options,
        ),
        plain_model,
        heads,
    )


def scalars(model, head, exact):
    """(values, lasts) of PAIRS from the hidden states of the model's own forward, each sequence
    alone."""
    inner = model.get_base_model()
    if exact:
        inner.set_attn_implementation("exact_test")
    values, lasts = [], []
    for example in PAIRS:
        for branch in example.branches:
            hidden = model(
                input_ids=torch.tensor([example.prompt + branch.ids]), output_hidden_states=True
            ).hidden_states[-1][0]
            outputs = torch.nn.functional.linear(hidden, head.weight, head.bias)[:, 0]
            values += [outputs[len(example.prompt) + offset - 1] for offset in branch.targets]
            lasts.append(outputs[-1])
    return torch.stack(values), torch.stack(lasts)


@pytest.mark.parametrize("family", ["qwen2", "qwen2-sliding", "gpt2", "gemma2-softcaps", "bloom"])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_every_role_is_the_plain_computation_of_its_own_adapter(family, dtype, atol):
    if family == "bloom" and dtype == torch.float64:
        pytest.skip("bloom rounds its softmax to fp32 in its own forward")
    engine, model, heads = with_roles(family, dtype)
    batch, exact = (
        build(PAIRS, range(len(PAIRS)), engine.layout),
        family in TREE and dtype == torch.float64,
    )
    seen = []
    for role in (Role.REWARD, Role.POLICY, Role.CRITIC, Role.REF, Role.POLICY, Role.REWARD):
        with torch.no_grad():
            model.set_adapter(ADAPTERS[role] or "default")
            if role in heads:
                scores = engine.score(batch, role, BOTH)
                assert scores.logp is None and scores.value.dtype == scores.last.dtype == dtype
                values, lasts = scalars(model, heads[role], exact)
                torch.testing.assert_close(
                    scores.value, values, atol=atol, rtol=1e-5 if atol > 1e-9 else 0
                )
                torch.testing.assert_close(
                    scores.last, lasts, atol=atol, rtol=1e-5 if atol > 1e-9 else 0
                )
            elif role is Role.REF:
                with model.disable_adapter():
                    expected = plain(model, PAIRS, dtype, exact=exact)
            else:
                expected = plain(model, PAIRS, dtype, exact=exact)
            if role not in heads:
                torch.testing.assert_close(
                    engine.score(batch, role).logp,
                    expected,
                    atol=atol,
                    rtol=1e-5 if atol > 1e-9 else 0,
                )
            seen.append(engine.score(batch, role).logp)
    assert torch.equal(seen[1], seen[4]) and torch.equal(seen[0], seen[5])
    assert min(float((seen[a] - seen[b]).abs().max()) for a in range(4) for b in range(a)) > 1e-2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_gradient_reaches_only_its_own_role_and_nothing_else_changes(checkpointing):
    engine, _, _ = with_roles("qwen2-sliding", checkpointing=checkpointing)
    batch = build(PAIRS, range(len(PAIRS)), engine.layout)
    parameters = {role: engine.parameters_of(role) for role in ADAPTERS}
    assert (
        parameters[Role.REF] == []
        and len(parameters[Role.POLICY]) == len(parameters[Role.REWARD]) - 1 == 28
        and len(parameters[Role.CRITIC]) == 8 + 2
    )
    for parameter in parameters[Role.CRITIC]:
        parameter.requires_grad_(True)
    before = [parameter.requires_grad for parameter in engine.model.parameters()]
    value = engine.score(batch, Role.CRITIC, frozenset({"value"}), grad=True).value
    policy = engine.score(batch, Role.POLICY, grad=True).logp
    judge = engine.score(batch, Role.REWARD, frozenset({"last"})).last
    assert not judge.requires_grad
    (
        value.square().sum() + policy.sum()
    ).backward()  # with checkpointing both are computed again here, each under its own adapter
    assert [parameter.requires_grad for parameter in engine.model.parameters()] == before
    assert all(parameter.grad is None for parameter in parameters[Role.REWARD])
    for role, loss in (
        (Role.CRITIC, lambda s: s.value.square().sum()),
        (Role.POLICY, lambda s: s.logp.sum()),
    ):
        alone, _, _ = with_roles("qwen2-sliding")
        for parameter in alone.parameters_of(role):
            parameter.requires_grad_(True)
        loss(
            alone.score(
                batch, role, frozenset({"value" if role is Role.CRITIC else "logp"}), grad=True
            )
        ).backward()
        for parameter, expected in zip(parameters[role], alone.parameters_of(role), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-12, rtol=1e-9)


def test_the_fused_layers_serve_every_adapter():
    slow, _, _ = with_roles("qwen2", fused_lora=False)
    fast, _, _ = with_roles("qwen2")
    assert (slow.fused_layers, fast.fused_layers) == (0, 14)
    batch = build(PAIRS, range(len(PAIRS)), fast.layout)
    for role in (Role.CRITIC, Role.REWARD):
        expected, scores = slow.score(batch, role, BOTH), fast.score(batch, role, BOTH)
        torch.testing.assert_close(scores.value, expected.value, atol=1e-11, rtol=0)
        torch.testing.assert_close(scores.last, expected.last, atol=1e-11, rtol=0)


def test_values_and_log_probabilities_come_from_one_pass(monkeypatch):
    from thumbwheel.engine import score

    engine, _, _ = with_roles("qwen2")
    batch, passes = build(PAIRS, range(len(PAIRS)), engine.layout), []
    run = score.tree_hidden
    monkeypatch.setattr(score, "tree_hidden", lambda *args: passes.append(1) or run(*args))
    scores = engine.score(batch, Role.CRITIC, frozenset({"logp", "entropy", "value", "last"}))
    assert len(passes) == 1 and all(
        len(tensor) == len(batch.target_ids)
        for tensor in (scores.logp, scores.entropy, scores.value)
    )
    monkeypatch.setattr(score, "score_targets", None)
    assert len(engine.score(batch, Role.CRITIC, BOTH).last) == batch.n_branches


def test_a_role_without_a_voice_a_head_or_its_adapter_says_so():
    model = adapted(TREE["qwen2"])
    engine = ScoreEngine(model)
    batch = build(PAIRS, [0], engine.layout)
    with pytest.raises(ModelError, match=r"critic.*no model"):
        engine.score(batch, Role.CRITIC)
    with pytest.raises(ModelError, match=r"policy.*no head"):
        engine.score(batch, Role.POLICY, BOTH)
    with pytest.raises(ModelError, match=r"no adapter 'cricit'.*known: default"):
        engine.add(Role.CRITIC, RoleModel("cricit"))


def test_a_reference_that_is_an_adapter_has_its_own_identity():
    engine, model, _ = with_roles("qwen2")
    identity = engine.reference_identity
    engine.add(Role.REF, RoleModel("judge"))
    assert "no adapter" in identity and "no adapter" not in engine.reference_identity
    batch = build(PAIRS, range(len(PAIRS)), engine.layout)
    model.set_adapter("judge")
    with torch.no_grad():
        torch.testing.assert_close(
            engine.score(batch, Role.REF).logp,
            plain(model, PAIRS, torch.float64),
            atol=1e-9,
            rtol=0,
        )


def test_the_policy_is_the_model_as_it_stands():
    engine, _, _ = with_roles("qwen2")
    engine.model.set_adapter("judge")
    batch = build(PAIRS, [0], engine.layout)
    assert torch.equal(
        ScoreEngine(engine.model).score(batch, Role.POLICY).logp,
        engine.score(batch, Role.REWARD).logp,
    )
    with engine.model.disable_adapter():
        assert torch.equal(
            ScoreEngine(engine.model).score(batch, Role.POLICY).logp,
            engine.score(batch, Role.REF).logp,
        )
