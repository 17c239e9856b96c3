"""How likely judgements are right: simulated raters whose errors are known, and training rows that
are weighed by it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, by_split, plain_rows
from thumbwheel.training import rater_noise
from thumbwheel.training.rater_noise import FEWEST, PRIOR_RATE, RatedAnswer, estimate, sigmoid
from thumbwheel.training.rater_weights import weigh
from thumbwheel.training.types import JUDGED

ERRORS = {"ana": 0.02, "ben": 0.1, "eve": 0.3}


def simulated(
    count: int, seed: int, informative: bool = True
) -> tuple[list[RatedAnswer], list[bool]]:
    """Judgements of answers that are right as often as the base thinks, or in half of all cases;
    and whether each judgement is right."""
    chance = random.Random(seed)
    judgements, truly = [], []
    for _ in range(count):
        probability = chance.betavariate(0.5, 0.7)
        right = chance.random() < (probability if informative else 0.5)
        rater = chance.choice(sorted(ERRORS))
        errs = chance.random() < ERRORS[rater]
        judgements.append(RatedAnswer(math.log(max(probability, 1e-9)), right != errs, (rater,)))
        truly.append(not errs)
    return judgements, truly


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_raters_who_err_are_known_by_what_the_base_is_sure_of(seed: int) -> None:
    judgements, truly = simulated(1500, seed)
    noise = estimate(judgements)
    assert noise is not None
    for rater, rate in ERRORS.items():
        assert noise.error_rates[rater] == pytest.approx(rate, abs=0.05)
    trusts = [noise.trust(judgement) for judgement in judgements]
    assert sum(trusts) / len(trusts) == pytest.approx(sum(truly) / len(truly), abs=0.03)
    of_right = [trust for trust, right in zip(trusts, truly, strict=True) if right]
    of_wrong = [trust for trust, right in zip(trusts, truly, strict=True) if not right]
    assert sum(of_right) / len(of_right) > sum(of_wrong) / len(of_wrong) + 0.3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_base_that_knows_nothing_blames_nobody(seed: int) -> None:
    judgements, _ = simulated(1500, seed, informative=False)
    noise = estimate(judgements)
    assert noise is not None
    trusts = [noise.trust(judgement) for judgement in judgements]
    assert max(trusts) - min(trusts) < 0.25
    assert all(abs(rate - PRIOR_RATE) < 0.15 for rate in noise.error_rates.values())


def test_too_few_judgements_or_only_one_kind_tell_nothing() -> None:
    judgements, _ = simulated(200, 1)
    assert estimate(judgements[: FEWEST - 1]) is None
    assert estimate([judgement for judgement in judgements if judgement.good]) is None


def test_raters_who_agree_count_more_than_one_alone() -> None:
    judgements, _ = simulated(1500, 1)
    noise = estimate(judgements)
    assert noise is not None
    alone = noise.trust(RatedAnswer(math.log(0.3), True, ("ben",)))
    together = noise.trust(RatedAnswer(math.log(0.3), True, ("ben", "eve")))
    assert together > alone > noise.trust(RatedAnswer(math.log(0.3), True, ("eve",)))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.floats(-3000, 0), st.booleans(), st.sampled_from("abc")),
        min_size=FEWEST,
        max_size=80,
    ),
    st.randoms(),
)
def test_trust_is_a_probability_whatever_the_lengths_and_in_any_order(
    votes: list[Any], chance: random.Random
) -> None:
    judgements = [RatedAnswer(logp, good, (rater,)) for logp, good, rater in votes]
    shuffled = chance.sample(judgements, len(judgements))
    noise, same = estimate(judgements), estimate(shuffled)
    if noise is None or same is None:
        assert noise is same is None
        return
    for judgement in judgements:
        assert 0 < noise.trust(judgement) < 1
        assert noise.trust(judgement) == pytest.approx(same.trust(judgement), abs=0.02)


def test_the_gradient_is_that_of_the_loss() -> None:
    judgements, _ = simulated(100, 4)
    votes = rater_noise._votes(judgements, sorted(ERRORS))
    confidence = np.linspace(-2, 2, len(judgements))
    good = np.array([judgement.good for judgement in judgements])
    point = np.array([0.4, -0.3, -1.0, -2.0, 0.1])

    def loss(parameters: np.ndarray) -> float:
        return rater_noise._loss(parameters, confidence, votes, good)[0]

    def gradient(parameters: np.ndarray) -> np.ndarray:
        return rater_noise._loss(parameters, confidence, votes, good)[1]

    assert check_grad(loss, gradient, point) < 1e-4


def test_sigmoid_has_no_overflow() -> None:
    assert (sigmoid(-1e6), sigmoid(0), sigmoid(1e6)) == (0.0, 0.5, 1.0)


def judged(row: dict[str, Any], good: bool) -> dict[str, Any]:
    names = ("row_id", "group", "prompt", "tools", "weight", "completion", "finish_reason")
    return {name: row[name] for name in names} | {"label": good}


def test_liked_answers_weigh_what_their_thumb_is_worth_and_corrections_what_they_did(
    tmp_path: Path,
) -> None:
    liked, disliked = plain_rows("chats", 60, 4), plain_rows("labels", 60)
    liked[0]["origin"] = "correction"
    names = ["ana", "ben", "eve"]
    judgements = [judged(row, True) for row in liked[:60]]
    judgements += [
        judged(row | {"row_id": f"no_{row['row_id']}", "completion": "No."}, False)
        for row in disliked
    ]
    raters = {row["row_id"]: [names[number % 3]] for number, row in enumerate(judgements)}
    unheard = judged(liked[0] | {"row_id": "row_of_nobody"}, False)
    assembly = assembled("sft", tiny_base(tmp_path / "base"), tmp_path, liked)
    rows = by_split(liked) | {JUDGED: [*judgements, unheard]}
    noise = weigh(assembly, rows, raters)
    assert noise is not None and set(noise.error_rates) == set(names)
    weights = [item.weight for item in assembly.train.items]
    assert weights[0] == 1.0
    for item, weight, judgement in list(
        zip(assembly.train.items, weights, judgements, strict=False)
    )[1:]:
        (logp,) = assembly.runner.base_logps([item])
        assert weight == pytest.approx(
            noise.trust(RatedAnswer(logp, True, tuple(raters[judgement["row_id"]])))
        )
    assert len(set(weights)) > 20
    assert [item.weight for item in assembly.dev.items] == [1.0] * 4


def test_without_judgements_nothing_is_weighed(tmp_path: Path) -> None:
    rows = plain_rows("chats", 60)
    assembly = assembled("sft", tiny_base(tmp_path / "base"), tmp_path, rows)
    assert weigh(assembly, by_split(rows), {}) is None
    assert {item.weight for item in assembly.train.items} == {1.0}
