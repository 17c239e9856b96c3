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
def trial(tmp_path: Path) -> Iterator[ExperimentWorld]:
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
def test_one_key_moves_no_alias_by_the_defaults(trial: ExperimentWorld, names: bool) -> None:
    experiment = by_defaults(trial)
    attack(trial, 300, names)
    assert trial.turn()[experiment.id].verdict == "undecided"
    later = datetime.now(UTC) + timedelta(days=3)
    decision = trial.turn(later)[experiment.id]
    assert decision.verdict == "undecided" and trial.live() == "v0"
    if names:
        assert "1 of min_senders = 2 senders; key_1 sent 100%" in decision.reasons[0]


def test_nobody_wins_within_the_first_hours(trial: ExperimentWorld) -> None:
    experiment = by_defaults(trial)
    attack(trial, 150, names=True)
    attack(trial, 150, names=True, start=150, sender=OTHER)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "undecided" and trial.live() == "v0"
    assert any("min_hours" in reason for reason in decision.reasons)


def test_without_a_rater_the_sender_is_the_rater(trial: ExperimentWorld) -> None:
    experiment = trial.begin(rater_units=10)
    attack(trial, 50, names=False)
    attack(trial, 30, names=False, start=50, sender=OTHER)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 20
    assert inputs.flooded == 60


def test_a_verdict_names_the_largest_sender_and_what_remains_without_it(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    attack(trial, 300, names=True)
    attack(trial, 40, names=True, start=300, sender=OTHER)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "won"
    (sentence,) = [reason for reason in decision.reasons if reason.startswith("sender ")]
    assert sentence.startswith("sender key_1 gave 88% of the words; without it: v0 ")
    ended = controller.find(trial.ws, experiment.id)
    (verdict,) = controller.verdicts_of(trial.ws, ended)
    assert ended.state is State.WON and sentence in verdict.reasons
    stored, again, recomputed = controller.replay(trial.ws, verdict)
    assert again.verdict == "won" and stored == recomputed


def test_one_word_of_another_sender_lets_no_arm_win(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    attack(trial, 300, names=True)
    attack(trial, 1, names=True, start=300, sender=OTHER)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "undecided" and trial.live() == "v0"
    assert "without key_1, which sent 100% of the words, the others speak" in decision.reasons[0]


def test_an_arm_wins_only_if_the_others_favour_it_too(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    attack(trial, 300, names=True)
    for number in range(300, 340):
        trace_id, choice = trial.ask(f"user-{number}")
        trial.rate(trace_id, choice.arm == "v0", f"rater-{number}", sender=OTHER)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "undecided" and trial.live() == "v0"
    assert "what the others say does not favour v1" in decision.reasons[0]


def test_a_key_beside_the_owner_s_app_is_the_sender_that_others_have_to_follow(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    attack(trial, 100, names=True)
    for number in range(100, 220):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, number % 2 == 0, f"rater-{number}")
    trial.turn()
    figures = controller.look(trial.ws, experiment)[0].senders
    assert figures is not None and figures.largest == KEY and 0.4 < figures.share < 0.5


def test_an_owner_may_let_one_app_speak_for_many(trial: ExperimentWorld) -> None:
    experiment = trial.begin(min_senders=1)
    attack(trial, 300, names=True)
    assert trial.turn()[experiment.id].verdict == "won"


def test_a_burst_is_held_before_it_counts(trial: ExperimentWorld) -> None:
    experiment = trial.begin(rater_units=1000)
    now = datetime.now(UTC)
    for number in range(200):
        trace_id, choice = trial.ask(f"user-{number}")
        if choice.arm == "v1":
            trial.rate(trace_id, True, sender=KEY, occurred_at=now.isoformat())
    trial.turn()
    (quarantine,) = quarantines(trial.ws, trial.agent)
    assert quarantine.count >= 60
    inputs, _ = controller.look(trial.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 0


def test_words_in_somebody_s_name_use_up_none_of_theirs(trial: ExperimentWorld) -> None:
    experiment = trial.begin(rater_units=10)
    for sender, count in ((KEY, 12), (OTHER, 10)):
        for number in range(count):
            trace_id, _ = trial.ask(f"{sender}-{number}")
            trial.rate(trace_id, True, "ann", sender=sender)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    assert inputs.flooded == 2
    assert sum(arm.answered for arm in inputs.arms) == 20


def test_a_burst_in_somebody_s_name_holds_none_of_their_words(trial: ExperimentWorld) -> None:
    experiment = trial.begin(rater_units=1000)
    now = datetime.now(UTC).isoformat()
    for sender, count in ((KEY, 80), (OTHER, 5)):
        for number in range(count):
            trace_id, _ = trial.ask(f"{sender}-{number}")
            trial.rate(trace_id, True, "ann", sender=sender, occurred_at=now)
    trial.turn()
    (quarantine,) = quarantines(trial.ws, trial.agent)
    assert quarantine.count == 80
    inputs, _ = controller.look(trial.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 5
