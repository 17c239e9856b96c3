"""The arithmetic of PPO against numbers worked out by hand, and its laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.training.group import divergence
from thumbwheel.training.returns import KlController, Moments, explained_variance, gae, whiten

numbers = st.floats(-5, 5)
episodes = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


def of_one(
    rewards: list[float], values: list[float], after: float, gamma: float, lam: float
) -> list[float]:
    """The advantages of a single answer."""
    tensors = [torch.tensor(numbers, dtype=torch.float64) for numbers in (rewards, values, [after])]
    return gae(*tensors, [len(rewards)], gamma, lam).tolist()


def test_gae_by_hand() -> None:
    # deltas: 0.1 + .9 * 0.4 - 0.5 = -0.04; -0.2 + .9 * 0.3 - 0.4 = -0.33; 1 + .9 * 0 - 0.3 = 0.7;
    # decay .9 * .5 = .45
    advantages = of_one([0.1, -0.2, 1.0], [0.5, 0.4, 0.3], 0.0, 0.9, 0.5)
    assert advantages == pytest.approx([-0.04 + 0.45 * -0.015, -0.33 + 0.45 * 0.7, 0.7])
    assert advantages == pytest.approx([-0.04675, -0.015, 0.7])


def test_gae_by_hand_of_a_cut_off_episode() -> None:
    # the value behind the last token is part of its delta: 1 + 1 * 2 - 0.3 = 2.7; -0.2 + 0.3 - 0.4
    # = -0.3; decay .95
    assert of_one([-0.2, 1.0], [0.4, 0.3], 2.0, 1.0, 0.95) == pytest.approx(
        [-0.3 + 0.95 * 2.7, 2.7]
    )


@given(st.lists(st.tuples(episodes, numbers), min_size=1, max_size=4))
def test_several_answers_are_each_by_itself(
    answers: list[tuple[list[tuple[float, float]], float]],
) -> None:
    """Token by token from the last one, as the formula has it."""
    expected: list[float] = []
    tokens: list[tuple[float, float]] = []
    for episode, after in answers:
        advantage, value_after, backwards = 0.0, after, []
        for reward, value in reversed(episode):
            advantage = reward + 0.9 * value_after - value + 0.9 * 0.8 * advantage
            value_after = value
            backwards.append(advantage)
        expected += reversed(backwards)
        tokens += episode
    rewards, values = (
        torch.tensor(side, dtype=torch.float64) for side in zip(*tokens, strict=True)
    )
    after_each = torch.tensor([after for _, after in answers], dtype=torch.float64)
    lengths = [len(episode) for episode, _ in answers]
    advantages = gae(rewards, values, after_each, lengths, 0.9, 0.8)
    assert advantages.tolist() == pytest.approx(expected)


@given(episodes, numbers)
def test_lambda_1_is_all_that_is_still_earned_less_the_value_and_lambda_0_one_step(
    episode: list[tuple[float, float]], after: float
) -> None:
    rewards, values = map(list, zip(*episode, strict=True))
    ahead = [sum(rewards[t:]) + after for t in range(len(rewards))]
    assert of_one(rewards, values, after, 1.0, 1.0) == pytest.approx(
        [g - v for g, v in zip(ahead, values, strict=True)]
    )
    following = [*values[1:], after]
    one_step = [r + 0.9 * f - v for r, f, v in zip(rewards, following, values, strict=True)]
    assert of_one(rewards, values, after, 0.9, 0.0) == pytest.approx(one_step)


@given(st.lists(numbers, min_size=2, max_size=20).filter(lambda xs: max(xs) - min(xs) > 0.1))
def test_whitened_values_have_mean_0_and_biased_variance_1(values: list[float]) -> None:
    white = whiten(torch.tensor(values, dtype=torch.float64))
    assert float(white.mean()) == pytest.approx(0, abs=1e-9)
    assert float((white**2).mean()) == pytest.approx(1, abs=1e-4)


@given(st.lists(st.lists(numbers, max_size=6), min_size=1, max_size=5))
def test_moments_merged_batch_by_batch_are_those_of_all_scores(batches: list[list[float]]) -> None:
    moments = Moments()
    for batch in batches:
        moments.add(batch)
    scores = [score for batch in batches for score in batch]
    assert moments.count == len(scores)
    if scores:
        mean = sum(scores) / len(scores)
        assert moments.mean == pytest.approx(mean, abs=1e-9)
        assert moments.variance == pytest.approx(
            sum((score - mean) ** 2 for score in scores) / len(scores), abs=1e-9
        )


def test_scores_that_are_all_the_same_normalise_to_0() -> None:
    moments = Moments()
    moments.add([0.1] * 7)
    assert moments.normalised(0.1, 10.0) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("kl", "answers", "factor"),
    [
        (0.1, 64, 1.0),
        (0.11, 64, 1 + 0.1 * 64 / 10_000),
        (0.5, 64, 1 + 0.2 * 64 / 10_000),
        (0.085, 500, 1 - 0.15 * 0.05),
        (-1.0, 10_000, 0.8),
        (9.0, 50_000, 1.2),
    ],
)
def test_kl_controller_golden_vectors(kl: float, answers: int, factor: float) -> None:
    controller = KlController(0.2, target=0.1, horizon=10_000)
    controller.update(kl, answers)
    assert controller.coefficient == pytest.approx(0.2 * factor, rel=1e-12)


def test_kl_controller_without_a_target_stays() -> None:
    controller = KlController(0.2, target=None, horizon=10_000)
    controller.update(5.0, 64)
    assert controller.coefficient == 0.2


def test_kl_estimators_on_a_known_pair_of_distributions() -> None:
    p, q = (
        torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64),
        torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64),
    )
    kl = float((p * (p / q).log()).sum())
    expected = {
        name: float((p * divergence(name, p.log(), q.log())).sum()) for name in ("k1", "k2", "k3")
    }
    assert expected["k1"] == pytest.approx(kl)
    assert expected["k3"] == pytest.approx(kl)  # E_p[q / p - 1] = 0
    assert expected["k2"] == pytest.approx(float((p * (p / q).log() ** 2 / 2).sum()))
    assert (divergence("k3", p.log(), q.log()) >= 0).all()
    assert math.isclose(
        float(divergence("k3", p.log(), q.log())[0]), 0.2 / 0.5 - 1 - math.log(0.2 / 0.5)
    )


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.zeros(3), returns) == 0
    assert explained_variance(torch.zeros(3), torch.ones(3)) == 0
