"""The arithmetic of groups: advantages by hand, weights, and that all three estimates of the KL
have the KL's own gradient."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.engine.tree import Branch, Example, Layout, build
from thumbwheel.training.group import (
    SCALE_FLOOR,
    KlEstimator,
    Normaliser,
    clipped,
    group_advantages,
    kl,
    ratios,
    token_weights,
)

VALUES = st.none() | st.floats(-5, 5).map(lambda value: round(value, 3))
REWARDS = st.lists(st.lists(VALUES, min_size=1, max_size=6), min_size=1, max_size=5)


def test_advantages_by_hand() -> None:
    deviation = (2 / 3) ** 0.5  # of 0, 0, 1, 1, 0, 2 within groups: 0, 1 and 2 about their mean
    assert group_advantages([[0.0, 1.0, 2.0]], "group")[0] == pytest.approx(
        [-1 / (1 + SCALE_FLOOR), 0, 1 / (1 + SCALE_FLOOR)]
    )
    assert group_advantages([[0.0, 1.0, 2.0], [4.0, 4.0]], "none") == [[-1, 0, 1], [0, 0]]
    whole = group_advantages([[0.0, 2.0], [1.0, 1.0]], "batch")
    assert whole[0] == pytest.approx(
        [-1 / (deviation + SCALE_FLOOR), 1 / (deviation + SCALE_FLOOR)]
    ) and whole[1] == [0, 0]
    assert group_advantages([[None, 3.0], [None, None]], "group") == [[None, 0], [None, None]]


@given(groups=REWARDS, scale=st.sampled_from(["group", "batch", "none"]))
def test_a_missing_reward_changes_nobody_elses_advantage(
    groups: list[list[float | None]], scale: str
) -> None:
    advantages = group_advantages(groups, scale)
    without = group_advantages(
        [[value for value in group if value is not None] for group in groups], scale
    )
    for group, values, alone in zip(groups, advantages, without, strict=True):
        assert [value is None for value in group] == [value is None for value in values]
        assert [value for value in values if value is not None] == alone
        assert sum(alone) == pytest.approx(0, abs=1e-6 / SCALE_FLOOR)


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [("dapo", [1 / 5, 0, 1 / 5]), ("grpo", [1 / 6, 0, 1 / 9]), ("dr_grpo", [1 / 30, 0, 1 / 30])],
)
def test_weights_count_what_is_masked_as_trl_does(
    normaliser: Normaliser, expected: list[float]
) -> None:
    assert token_weights([2, 4, 3], [True, False, True], normaliser, longest=10) == pytest.approx(
        expected
    )


def test_the_surrogate_is_flat_beyond_the_clip_on_the_side_that_gains() -> None:
    import torch

    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 2.0, 1.0, -1.0], dtype=torch.float64)
    loss = clipped(ratio, advantage, 0.2, 0.3)
    assert loss.tolist() == pytest.approx([-0.5, 0.8, -2.0, -1.3, 1.5])
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert gradient.tolist() == [-1, 0, -2, 0, 1]


def test_a_ratio_of_answers_is_the_geometric_mean_of_its_tokens() -> None:
    import torch

    batch = build(
        [Example((1, 2), (Branch((3, 4)), Branch((5, 6, 7))), "g")], [0], Layout("padded")
    )
    change = torch.tensor([0.1, 0.3, -0.3, 0.0, 0.6], dtype=torch.float64)
    whole = ratios(change, torch.zeros_like(change), batch, "sequence")
    assert whole.tolist() == pytest.approx(torch.tensor([0.2, 0.2, 0.1, 0.1, 0.1]).exp().tolist())
    assert torch.equal(ratios(change, torch.zeros_like(change), batch, "token"), change.exp())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("moved", [False, True], ids=["on policy", "off policy"])
def test_the_expected_gradient_is_that_of_the_kl(estimator: KlEstimator, moved: bool) -> None:
    """Over one distribution of six tokens, weighed by the old policy that samples."""
    import torch

    torch.manual_seed(1)
    logits, base, old = (torch.randn(6, dtype=torch.float64) * 0.5 for _ in range(3))
    logits.requires_grad_()
    logp, reference = logits.log_softmax(-1), base.log_softmax(-1)
    sampled = old.log_softmax(-1) if moved else logp.detach()
    exact = (logp.exp() * (logp - reference)).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    estimate = (sampled.exp() * kl(estimator, logp, reference, (logp - sampled).exp())).sum()
    (gradient,) = torch.autograd.grad(estimate, logits)
    assert torch.allclose(gradient, expected, atol=1e-12)
    if estimator != "k2":
        assert float(estimate) == pytest.approx(float(exact), rel=1e-12)
