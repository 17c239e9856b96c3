"""Holm's correction against published figures, and the budget of looks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core.errors import InputError
from thumbwheel.stats.multiple import holm, look_level


def test_holm_of_published_examples():
    """Holland and Copenhaver (1987) as in Shaffer (1995): 0.01, 0.015 and 0.04 stay; R's p.adjust
    on its manual's kind of vector."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(
        [
            0.0001,
            0.0004,
            0.0019,
            0.0095,
            0.0201,
            0.0278,
            0.0298,
            0.0344,
            0.0459,
            0.3240,
            0.4262,
            0.5719,
            0.6528,
            0.7590,
            1.0,
        ]
    ) == (
        pytest.approx(
            [
                0.0015,
                0.0056,
                0.0247,
                0.1140,
                0.2211,
                0.2780,
                0.2780,
                0.2780,
                0.3213,
                1,
                1,
                1,
                1,
                1,
                1,
            ]
        )
    )  # Benjamini and Hochberg (1995), section 4.1: Holm rejects the first three at 5 %


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_is_monotone_and_between_raw_and_bonferroni(values):
    adjusted = holm(values)
    assert all(
        raw <= corrected <= min(1.0, len(values) * raw) + 1e-12
        for raw, corrected in zip(values, adjusted, strict=True)
    )
    assert sorted(range(len(values)), key=lambda index: (values[index], index)) == sorted(
        range(len(values)), key=lambda index: (adjusted[index], values[index], index)
    )


def test_holm_refuses_what_is_no_probability():
    with pytest.raises(InputError):
        holm([0.5, 1.5])


def test_holm_keeps_the_family_wise_error():
    """Nine true hypotheses and a false one: any of the nine is called false in at most 5 % of the
    families."""
    random = np.random.default_rng(3)
    wrong = [min(holm([1e-6, *random.random(9)])[1:]) <= 0.05 for _ in range(4000)]
    assert np.mean(wrong) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_all_looks_together_err_with_less_than_alpha(alpha):
    spent = [(1 - look_level(alpha, look)) / 2 for look in range(1, 5000)]
    assert spent[0] == pytest.approx(alpha / 2)  # the first look has the usual interval
    assert alpha * 0.999 < sum(spent) < alpha
    assert sorted(spent, reverse=True) == spent
    with pytest.raises(InputError):
        look_level(alpha, 0)
