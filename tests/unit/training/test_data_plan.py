"""What the methods tell the data plan of themselves."""

from __future__ import annotations

from thumbwheel.datasets.learner import Enough
from thumbwheel.datasets.types import PlanConfig
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.algorithms.kto import Kto
from thumbwheel.training.data_plan import learners


def test_every_method_is_known_with_the_shapes_that_it_can_learn_from() -> None:
    by_name = learners()
    assert list(by_name) == ALGORITHMS.names()
    assert by_name["reward"].shapes == ("pairs", "scored")
    assert [name for name, learner in by_name.items() if learner.enough] == ["sft", "kto", "dpo"]


def test_settings_win_over_what_a_method_says() -> None:
    assert Kto.enough == Enough("labels", minimum=100, ready=200, each_label=30)
    changed = Kto.enough.by_settings("kto", PlanConfig(kto_min=5, kto_class=2, dpo_min=7))
    assert changed == Enough("labels", minimum=5, ready=200, each_label=2)
    assert Kto.enough.by_settings("plugin", PlanConfig()) == Kto.enough
