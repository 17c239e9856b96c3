"""Log-probabilities and LoRA gradients equal the plain padded computation, over families and random
trees."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.models.token_families import PADDED, PAIRS, TREE, adapted, plain, trees
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import plan

ENGINES = {}


def engine_of(family, dtype=torch.float64):
    if (family, dtype) not in ENGINES:
        config = TREE[family] if family in TREE else PADDED[family][0]
        model = adapted(
            config, dtype, targets=["in_proj", "x_proj"] if family == "mamba" else "all-linear"
        )
        ENGINES[family, dtype] = (ScoreEngine(copy.deepcopy(model)), model)
    return ENGINES[family, dtype]


def scored(engine, examples, role=Role.POLICY, budget=10_000, grad=False):
    """Log-probabilities in the order of `examples`, however they were packed."""
    logps = {}
    for batch in plan(examples, budget, engine.layout):
        logp = engine.score(batch, role, grad=grad).logp
        for branch, part in enumerate(batch.branch_slices):
            logps.setdefault(batch.example_ids[int(batch.example_of[branch])], []).append(
                logp[part]
            )
    return torch.cat([part for number in range(len(examples)) for part in logps[number]])


@pytest.mark.parametrize("family", TREE)
def test_tree_equals_plain_fp64(family):
    engine, model = engine_of(family)
    assert engine.layout.kind == "tree" and engine.layout.reason == ""
    with torch.no_grad():
        policy = plain(model, PAIRS, torch.float64)
        with model.disable_adapter():
            reference = plain(model, PAIRS, torch.float64)
    assert (policy - reference).abs().max() > 1e-2  # otherwise the roles could be mixed up unseen
    for budget in (30, 60, 10_000):
        torch.testing.assert_close(
            scored(engine, PAIRS, Role.POLICY, budget), policy, atol=1e-9, rtol=0
        )
        torch.testing.assert_close(
            scored(engine, PAIRS, Role.REF, budget), reference, atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("family", TREE)
def test_tree_equals_plain_fp32(family):
    engine, model = engine_of(family, torch.float32)
    with torch.no_grad():
        policy = plain(model, PAIRS, torch.float32)
    torch.testing.assert_close(scored(engine, PAIRS), policy, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", [*TREE, *PADDED])
def test_gradients_equal_plain(family):
    engine, model = engine_of(family, torch.float32)
    weights = torch.linspace(-1, 1, len(scored(engine, PAIRS)))
    model.zero_grad()
    (plain(model, PAIRS, torch.float32, exact=family in TREE) * weights).sum().backward()
    engine.model.zero_grad()
    (scored(engine, PAIRS, grad=True) * weights).sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    gradients = {name: p.grad for name, p in engine.model.named_parameters() if p.requires_grad}
    assert expected.keys() == gradients.keys() and expected
    trained = {name for name, grad in expected.items() if grad is not None}
    assert trained == {name for name, grad in gradients.items() if grad is not None}
    for name in trained:
        gap = (gradients[name] - expected[name]).norm() / expected[name].norm().clamp_min(1e-6)
        assert gap < 1e-4, (name, gap)


@pytest.mark.parametrize("family", PADDED)
def test_padded_families_say_why_and_equal_plain(family):
    engine, model = engine_of(family, torch.float32)
    assert engine.layout.kind == "padded" and PADDED[family][1] in engine.layout.reason
    with torch.no_grad():
        policy = plain(model, PAIRS, torch.float32, exact=False)
    torch.testing.assert_close(scored(engine, PAIRS, budget=40), policy, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["qwen2-sliding", "gpt2", "gemma2-softcaps"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(examples=trees())
def test_random_trees(family, examples):
    engine, model = engine_of(family)
    if not any(branch.targets for example in examples for branch in example.branches):
        return
    with torch.no_grad():
        expected = plain(model, examples, torch.float64)
    for budget in (25, 10_000):
        torch.testing.assert_close(
            scored(engine, examples, budget=budget), expected, atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("family", TREE)
def test_a_sibling_and_a_neighbour_change_nothing(family):
    engine, _ = engine_of(family)
    first, second, third = PAIRS
    before = scored(engine, PAIRS)
    changed = [
        type(first)(
            first.prompt, (first.branches[0], type(first.branches[0])((58, 57, 56, 55))), "a"
        ),
        type(second)(tuple(59 for _ in second.prompt), second.branches, "b"),
        third,
    ]
    after = scored(engine, changed)
    positions = [
        *range(6),
        *range(len(before) - 4, len(before)),
    ]  # first's chosen branch and all of third
    torch.testing.assert_close(after[positions], before[positions], atol=1e-12, rtol=0)
    assert (after[6:10] - before[6:10]).abs().max() > 1e-3


def test_temperature_and_entropy():
    _, model = engine_of("gemma2-softcaps")
    engine = ScoreEngine(copy.deepcopy(model), temperature=0.7)
    with torch.no_grad():
        expected = plain(model, PAIRS, torch.float64, temperature=0.7)
    torch.testing.assert_close(scored(engine, PAIRS), expected, atol=1e-9, rtol=0)
    batch = plan(PAIRS, 10_000, engine.layout)[0]
    scores = engine.score(batch, Role.POLICY, frozenset({"logp", "entropy"}))
    hot = ScoreEngine(copy.deepcopy(model), temperature=1e4)
    assert scores.entropy.min() > 0 and scores.entropy.max() < torch.log(torch.tensor(61.0))
    flat = hot.score(batch, Role.POLICY, frozenset({"logp", "entropy"})).entropy
    torch.testing.assert_close(flat, torch.full_like(flat, 61.0).log(), atol=1e-4, rtol=0)


def test_gradient_checkpointing_gives_the_same_gradient():
    _, model = engine_of("qwen2-sliding")
    grads = []
    for checkpointing in (False, True):
        engine = ScoreEngine(copy.deepcopy(model), checkpointing=checkpointing)
        scored(engine, PAIRS, grad=True).sum().backward()
        grads.append([p.grad for p in engine.model.parameters() if p.requires_grad])
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=1e-9)


def test_bf16_stays_near_fp32_and_reference_pass_keeps_what_trains():
    _, model = engine_of("qwen2", torch.float32)
    exact = scored(ScoreEngine(copy.deepcopy(model)), PAIRS)
    narrow = copy.deepcopy(model)
    for parameter in narrow.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    engine = ScoreEngine(narrow)
    assert engine.fused_layers == 14 and engine.layout.kind == "tree"
    logps = scored(engine, PAIRS, grad=True)
    assert logps.dtype == torch.float32
    assert (logps - exact).abs().max() < 0.15
    scored(engine, PAIRS, Role.REF)
    logps.sum().backward()
    trained = [p for p in narrow.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None and p.grad.dtype == torch.float32 for p in trained)
