"""The combination: components that apply, groups, and settings by agent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core.config import Sources, build
from thumbwheel.core.errors import ConfigError
from thumbwheel.rewards.combine import (
    RewardConfig,
    RewardsConfig,
    group_normalised,
    weighted_mean,
)
from thumbwheel.rewards.function import JudgementStatus, Score
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.presets import PRESETS


@pytest.mark.parametrize(
    "status", [status for status in JudgementStatus if status is not JudgementStatus.OK]
)
def test_what_has_no_value_leaves_the_denominator(status):
    scores = {"thumb": Score(1.0), "rating": Score(0.5), "checker": Score.none(status, "why")}
    assert RewardConfig().combine(scores) == 0.75
    assert RewardConfig().combine({"checker": scores["checker"]}) is None
    assert RewardConfig().combine({}) is None


def test_what_a_decision_has_heard_counts_once():
    scores = {
        "thumb": Score(1.0),
        "outcome": Score(1.0),
        "score": Score(0.9),
        "rating": Score(0.5),
        "decision": Score(0.6),
    }
    assert RewardConfig().combine(scores) == pytest.approx((0.5 + 0.6) / 2)
    waiting = scores | {"decision": Score.none(JudgementStatus.PENDING, "nobody said anything")}
    assert RewardConfig().combine(waiting) == pytest.approx((1.0 + 1.0 + 0.9 + 0.5) / 4)
    unweighted = build(RewardConfig, {"components": {"decision": {"weight": 0}}}, "rewards")
    assert unweighted.combine(scores) == pytest.approx((1.0 + 1.0 + 0.9 + 0.5) / 4), (
        "what has no part in the reward replaces nothing"
    )
    renamed = build(
        RewardConfig,
        {"components": {"filing": {"function": "decision"}, "click": {"function": "thumb"}}},
        "rewards",
    )
    assert renamed.combine({"click": Score(1.0), "filing": Score(0.6)}) == pytest.approx(0.6)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.none(), st.floats(0, 1)), max_size=6),
    st.floats(0.1, 10),
)
def test_the_mean_lies_between_the_values_and_only_the_ratio_of_weights_counts(values, factor):
    weights = {name: index + 0.5 for index, name in enumerate("abcdef")}
    mean = weighted_mean(values, weights)
    present = [value for value in values.values() if value is not None]
    assert (mean is None) == (not present)
    if mean is not None:
        assert min(present) - 1e-9 <= mean <= max(present) + 1e-9
        assert weighted_mean(
            values, {name: weight * factor for name, weight in weights.items()}
        ) == pytest.approx(mean)


def test_golden_vector_of_a_group():
    assert group_normalised([1.0, 2.0, 3.0]) == pytest.approx(
        [-math.sqrt(1.5), 0.0, math.sqrt(1.5)]
    )
    assert group_normalised([1.0, 2.0, 3.0])[2] == pytest.approx(1.2247, abs=5e-5)
    assert group_normalised([1.0, 2.0, 3.0], ddof=1) == [-1.0, 0.0, 1.0]


def test_a_group_without_variance_teaches_nothing():
    assert group_normalised([0.1 + 0.2, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert group_normalised([0.7]) == [0.0] == group_normalised([0.7], ddof=1)
    assert group_normalised([None, 1.0, 0.0, None]) == [None, 1.0, -1.0, None]
    assert group_normalised([None]) == [None]
    assert group_normalised([]) == []


def test_settings_by_agent_stand_before_those_for_all():
    file = {
        "rewards": {
            "components": {
                "thumb": {"weight": 5},
                "short": {"function": "length", "settings": {"most": 20}},
            },
            "agents": {"filer": {"preset": "ocd", "components": {"thumb": {"weight": 0}}}},
        }
    }
    config = Sources(file, "x.yaml", {}).load(RewardsConfig, "rewards")
    assert (
        config.of("other").parts()["thumb"].weight,
        config.of("other").parts()["checker"].weight,
    ) == (5.0, 2.0)
    assert set(config.of("filer").parts()) == {"decision", "thumb", "short"}
    assert config.of("filer").parts()["thumb"].weight == 0.0
    assert config.of("other").parts()["short"].settings == {"most": 20}
    assert config.of("filer").fingerprint() != config.of("other").fingerprint()


def test_a_new_weight_leaves_the_settings_of_a_component():
    for config in (
        RewardConfig(preset="ocd", components={"decision": {"weight": 3}}),
        RewardsConfig(preset="ocd", agents={"a": {"components": {"decision": {"weight": 3}}}}).of(
            "a"
        ),
    ):
        assert config.parts()["decision"].weight == 3.0
        assert config.parts()["decision"].settings == {"compatible": True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "defualt"}, "Did you mean 'default'"),
        ({"components": {"a": {"weight": -1}}}, "weight"),
        ({"presets": 1}, "'preset'"),
        ({"arithmetic": "aplicable"}, "Did you mean 'applicable'"),
    ],
)
def test_impossible_settings_are_refused_with_their_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(RewardsConfig, settings, "rewards")


def test_every_preset_is_made_of_functions_that_exist_and_take_its_settings():
    for name in PRESETS.names():
        for component, part in RewardConfig(preset=name).parts().items():
            assert component == "checker" or FUNCTIONS.get(component).create(part.settings)
