"""A turn's canary meets live traffic: the winner goes live by itself or by a person's yes, and a
worse one never does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.worlds.experiment_world import ExperimentWorld, experiment_world
from thumbwheel.core.errors import ConfigError
from thumbwheel.db.schema import aliases
from thumbwheel.deploy import switch
from thumbwheel.loop import loops
from thumbwheel.loop.approval import approve
from thumbwheel.loop.canary_experiment import ask_about_winners, begin_experiment
from thumbwheel.loop.cycle import CANARY
from thumbwheel.loop.cycle_checks import check_ready
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import decisions
from thumbwheel.models import versions


def serve_people(world: ExperimentWorld, count: int, rates: dict[str, float]) -> None:
    draw = random.Random(2)
    for number in range(count):
        trace_id, choice = world.ask(f"user-{number}")
        world.rate(trace_id, draw.random() < rates[choice.version])


def begun(world: ExperimentWorld, **settings: str):
    """The experiment that a turn begins with its canary v1."""
    config = CycleConfig(experiment="thumb", deploy="embedded", **settings)
    version = versions.version(world.ws, world.agent.slug, "v1")
    report = CycleReport(world.agent.slug, version="v1")
    experiment = begin_experiment(world.ws, version, config, report)
    assert experiment is not None, report.reasons
    # a turn that was killed here finds its experiment again
    again = begin_experiment(world.ws, version, config, report)
    assert again.id == experiment.id
    world.refresh()
    return experiment


def test_a_better_canary_goes_live_by_the_traffic(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        experiment = begun(world)
        assert [arm.name for arm in experiment.plan.arms] == ["v0", "v1"]
        serve_people(world, 700, {"v0": 0.3, "v1": 0.8})
        assert world.turn()[experiment.id].verdict == "won"
        assert world.live() == "v1"
        assert ask_about_winners(world.ws, world.agent) == []
        (line,) = loops.status(world.ws, world.agent).experiments
        assert (line.arms, line.state) == (("v0", "v1"), "won")
        assert "v1 is better" in line.reason


def test_a_worse_canary_stays_out(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        experiment = begun(world)
        serve_people(world, 700, {"v0": 0.8, "v1": 0.3})
        v1 = versions.version(world.ws, world.agent.slug, "v1")
        switch.promote(world.ws, v1, CANARY)
        assert world.turn()[experiment.id].verdict == "lost"
        assert world.live() == "v0"
        # who asks for the canary gets what is live, and no version that people threw out
        canary_id = versions.aliases_of(world.ws, world.agent)[CANARY]
        assert versions.by_id(world.ws, canary_id).name == "v0"


def test_where_the_owner_is_to_be_asked_a_win_is_a_question(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        experiment = begun(world, auto_promote="ask")
        serve_people(world, 700, {"v0": 0.3, "v1": 0.8})
        assert world.turn()[experiment.id].verdict == "won"
        assert world.live() == "v0"
        assert ask_about_winners(world.ws, world.agent) == ["make v1 live?"]
        ask_about_winners(world.ws, world.agent)
        (pending,) = decisions(world.ws, world.agent)
        assert experiment.id not in pending.question
        assert approve(world.ws, world.agent, pending.id, "anna").live == "v1"
        assert world.live() == "v1"
        assert ask_about_winners(world.ws, world.agent) == []


def test_where_nothing_is_live_the_version_stays_a_canary(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        version = versions.version(world.ws, world.agent.slug, "v1")
        world.ws.db.write(lambda connection: connection.execute(aliases.delete()))
        report = CycleReport(world.agent.slug, version="v1")
        config = CycleConfig(experiment="thumb")
        assert begin_experiment(world.ws, version, config, report) is None
        assert report.reasons == ["no experiment began: nothing is live to compare with"]


@pytest.mark.parametrize("metric", ["thumbs", "outcome"])
def test_a_metric_that_is_none_is_refused_before_anything_is_trained(
    tmp_path: Path, metric: str
) -> None:
    with experiment_world(tmp_path) as world:
        with pytest.raises(ConfigError, match="none of thumb"):
            check_ready(world.ws, CycleConfig(experiment=metric))
        check_ready(world.ws, CycleConfig(experiment="outcome:resolved"))
