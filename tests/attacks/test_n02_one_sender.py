"""One app key decides an experiment by words that it makes up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.experiment_world import ExperimentWorld, experiment_world
from thumbwheel.experiments import controller
from thumbwheel.experiments.types import Experiment, ExperimentConfig, State
from thumbwheel.loop import experiment as verbs
from thumbwheel.loop.quarantine import quarantines

KEY, OTHER = "key_1", "key_2"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ExperimentWorld]:
    with experiment_world(tmp_path) as world:
        yield world


def attack(
    world: ExperimentWorld, count: int, names: bool, start: int = 0, sender: str = KEY
) -> None:
    """Calls, and of each the word that makes v1 win; a name of a rater is free."""
    for number in range(start, start + count):
        trace_id, choice = world.ask(f"user-{number}")
        rater = f"rater-{number}" if names else None
        world.rate(trace_id, choice.arm == "v1", rater, sender=sender)


def by_defaults(world: ExperimentWorld, **options: Any) -> Experiment:
    """An experiment as an owner starts it without a thought."""
    least = ExperimentConfig().min_hours  # this world's own settings have none
    options = {"min_hours": least, **options}
    plan, forecast = verbs.draft(world.ws, world.agent, "live", ["v0", "v1"], [], options)
    experiment = verbs.start(world.ws, world.agent, "live", plan, forecast, salt="salt")
    world.refresh()
    return experiment


@pytest.mark.parametrize("names", [True, False])
def test_one_key_moves_no_alias_by_the_defaults(world: ExperimentWorld, names: bool) -> None:
    experiment = by_defaults(world)
    attack(world, 300, names)
    assert world.turn()[experiment.id].verdict == "undecided"
    later = datetime.now(UTC) + timedelta(days=3)
    decision = world.turn(later)[experiment.id]
    assert decision.verdict == "undecided" and world.live() == "v0"
    if names:
        assert "1 of min_senders = 2 senders; key_1 sent 100%" in decision.reasons[0]


def test_nobody_wins_within_the_first_hours(world: ExperimentWorld) -> None:
    experiment = by_defaults(world)
    attack(world, 150, names=True)
    attack(world, 150, names=True, start=150, sender=OTHER)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "undecided" and world.live() == "v0"
    assert any("min_hours" in reason for reason in decision.reasons)


def test_without_a_rater_the_sender_is_the_rater(world: ExperimentWorld) -> None:
    experiment = world.begin(rater_units=10)
    attack(world, 50, names=False)
    attack(world, 30, names=False, start=50, sender=OTHER)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 20
    assert inputs.flooded == 60


def test_a_verdict_names_the_largest_sender_and_what_remains_without_it(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    attack(world, 300, names=True)
    attack(world, 40, names=True, start=300, sender=OTHER)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "won"
    (sentence,) = [reason for reason in decision.reasons if reason.startswith("sender ")]
    assert sentence.startswith("sender key_1 gave 88% of the words; without it: v0 ")
    ended = controller.find(world.ws, experiment.id)
    (verdict,) = controller.verdicts_of(world.ws, ended)
    assert ended.state is State.WON and sentence in verdict.reasons
    stored, again, recomputed = controller.replay(world.ws, verdict)
    assert again.verdict == "won" and stored == recomputed


def test_one_word_of_another_sender_lets_no_arm_win(world: ExperimentWorld) -> None:
    experiment = world.begin()
    attack(world, 300, names=True)
    attack(world, 1, names=True, start=300, sender=OTHER)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "undecided" and world.live() == "v0"
    assert "without key_1, which sent 100% of the words, the others speak" in decision.reasons[0]


def test_an_arm_wins_only_if_the_others_favour_it_too(world: ExperimentWorld) -> None:
    experiment = world.begin()
    attack(world, 300, names=True)
    for number in range(300, 340):
        trace_id, choice = world.ask(f"user-{number}")
        world.rate(trace_id, choice.arm == "v0", f"rater-{number}", sender=OTHER)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "undecided" and world.live() == "v0"
    assert "what the others say does not favour v1" in decision.reasons[0]


def test_a_key_beside_the_owner_s_app_is_the_sender_that_others_have_to_follow(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    attack(world, 100, names=True)
    for number in range(100, 220):
        trace_id, _ = world.ask(f"user-{number}")
        world.rate(trace_id, number % 2 == 0, f"rater-{number}")
    world.turn()
    figures = controller.look(world.ws, experiment)[0].senders
    assert figures is not None and figures.largest == KEY and 0.4 < figures.share < 0.5


def test_an_owner_may_let_one_app_speak_for_many(world: ExperimentWorld) -> None:
    experiment = world.begin(min_senders=1)
    attack(world, 300, names=True)
    assert world.turn()[experiment.id].verdict == "won"


def test_a_burst_is_held_before_it_counts(world: ExperimentWorld) -> None:
    experiment = world.begin(rater_units=1000)
    now = datetime.now(UTC)
    for number in range(200):
        trace_id, choice = world.ask(f"user-{number}")
        if choice.arm == "v1":
            world.rate(trace_id, True, sender=KEY, occurred_at=now.isoformat())
    world.turn()
    (quarantine,) = quarantines(world.ws, world.agent)
    assert quarantine.count >= 60
    inputs, _ = controller.look(world.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 0


def test_words_in_somebody_s_name_use_up_none_of_theirs(world: ExperimentWorld) -> None:
    experiment = world.begin(rater_units=10)
    for sender, count in ((KEY, 12), (OTHER, 10)):
        for number in range(count):
            trace_id, _ = world.ask(f"{sender}-{number}")
            world.rate(trace_id, True, "ann", sender=sender)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    assert inputs.flooded == 2
    assert sum(arm.answered for arm in inputs.arms) == 20


def test_a_burst_in_somebody_s_name_holds_none_of_their_words(world: ExperimentWorld) -> None:
    experiment = world.begin(rater_units=1000)
    now = datetime.now(UTC).isoformat()
    for sender, count in ((KEY, 80), (OTHER, 5)):
        for number in range(count):
            trace_id, _ = world.ask(f"{sender}-{number}")
            world.rate(trace_id, True, "ann", sender=sender, occurred_at=now)
    world.turn()
    (quarantine,) = quarantines(world.ws, world.agent)
    assert quarantine.count == 80
    inputs, _ = controller.look(world.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 5
