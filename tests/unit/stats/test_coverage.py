"""Simulated coverage, which chose the default: the promised 95 % have to hold, above all: no gain is claimed where there is none."""

import numpy as np
import pytest

from thumbwheel.stats.paired import mean

ROUNDS = 1500


def single(n, better, worse):
    def draw(random):
        place = random.random(n)
        return (place < better).astype(float) - (place > 1 - worse), np.ones(n)

    return draw, better - worse


def clustered(clusters, size, rate, share, unequal):
    """`share` of the items of a cluster move as one."""

    def draw(random):
        sizes = random.geometric(1 / size, clusters) if unequal else np.full(clusters, size)
        sums = []
        for own in sizes:
            place = np.where(random.random(own) < share, random.random(), random.random(own))
            sums.append(float((place < rate).sum() - (place > 1 - rate).sum()))
        return np.array(sums), sizes.astype(float)

    return draw, 0.0


def rates(draw, true, span):
    random = np.random.default_rng(1)
    found = [mean(*draw(random), span).interval(0.95) for _ in range(ROUNDS)]
    inside = np.mean([one.low - 1e-12 <= true <= one.high + 1e-12 for one in found])
    return inside, np.mean([one.low > true for one in found])


WORLDS = {
    "plain": single(100, 0.2, 0.2),
    "a gain": single(100, 0.3, 0.1),
    "strong gain": single(50, 0.5, 0.02),
    "few items": single(20, 0.2, 0.2),
    "rare discordance": single(800, 0.003, 0.003),
    "rare and one-sided": single(800, 0.01, 0.0),
    "rare, few items": single(100, 0.01, 0.0),
    "almost none": single(20, 0.01, 0.0),
    "40 clusters": clustered(40, 5, 0.2, 0.7, False),
    "40 unequal clusters": clustered(40, 5, 0.2, 0.7, True),
    "10 unequal clusters": clustered(10, 5, 0.2, 0.7, True),
    "5 clusters": clustered(5, 5, 0.2, 0.7, False),
    "3 unequal clusters": clustered(3, 5, 0.2, 0.7, True),
    "clusters, rare discordance": clustered(40, 5, 0.02, 0.7, True),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_default_covers_and_claims_no_gain_too_often(world):
    inside, above = rates(*WORLDS[world], span=1.0)
    assert inside >= 0.94  # 0.95 less three standard errors of the simulation (0.0056) and rounding
    assert above <= 0.025 + 0.012


def test_the_plain_t_interval_does_not_cover_rare_discordance_which_is_why_it_is_not_the_default():
    inside, _ = rates(*WORLDS["almost none"], span=None)
    assert inside < 0.3


def test_the_default_costs_little_where_there_is_much_data():
    draw, _ = single(800, 0.3, 0.1)
    sums, sizes = draw(np.random.default_rng(0))
    with_prior, without = (mean(sums, sizes, span).interval(0.95) for span in (1.0, None))
    assert with_prior.width / without.width == pytest.approx(1, abs=0.01)
