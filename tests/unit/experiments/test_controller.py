"""Experiments from the call to the verdict: people are served through the routing table, rate what
they got, and the controller decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.waiting import until
from tests.worlds.experiment_world import START, ExperimentWorld, experiment_world, later
from tests.worlds.gateway_world import AGENT
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.core.errors import ConfigError, Conflict, DataError, InputError, NotFound
from thumbwheel.db.schema import deployments, exposed_calls, exposures, model_versions, traces
from thumbwheel.erasure.erase import erase
from thumbwheel.experiments import controller, store, types
from thumbwheel.experiments.analysis import MISMATCH, SILENCE
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.history import history
from thumbwheel.experiments.metrics import figures
from thumbwheel.experiments.row_seals import SealCheck, check_seals
from thumbwheel.experiments.types import State
from thumbwheel.gateway.routing import RoutingRequest
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.loop import experiment as verbs


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ExperimentWorld]:
    with experiment_world(tmp_path) as opened:
        yield opened


def serve_people(
    world: ExperimentWorld, count: int, rates: dict[str, float], start: int = 0, seed: int = 1
) -> Counter[str]:
    """Each person asks once and gives a thumb; `rates`: version -> how often it is up."""
    draw = random.Random(seed)
    answered = Counter[str]()
    for number in range(start, start + count):
        trace_id, choice = world.ask(f"user-{number}")
        answered[choice.version] += 1
        world.rate(trace_id, draw.random() < rates[choice.version])
    return answered


def test_a_better_arm_wins_and_goes_live(trial: ExperimentWorld) -> None:
    experiment = trial.begin(guards=["error_rate"])
    answered = serve_people(trial, 500, {"v0": 0.35, "v1": 0.75})
    assert 200 < answered["v1"] < 300
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "won" and decision.arm == "v1", decision
    assert trial.live() == "v1"
    ended = controller.find(trial.ws, experiment.id)
    assert ended.state is State.WON and ended.ended_at is not None
    (verdict,) = controller.verdicts_of(trial.ws, ended)
    stored, again, recomputed = controller.replay(trial.ws, verdict)
    assert again.verdict == "won" and recomputed == stored
    # what is recorded later changes nothing of it
    serve_people(trial, 20, {"v0": 0.0, "v1": 0.0}, start=600)
    trial.drain()
    assert controller.replay(trial.ws, verdict)[2] == stored


def test_a_worse_arm_is_stopped_and_the_alias_goes_back(tmp_path: Path) -> None:
    with experiment_world(tmp_path, live="v1") as world:  # v1 is live already, and is worse
        experiment = world.begin()
        serve_people(world, 400, {"v0": 0.8, "v1": 0.45})
        decision = world.turn()[experiment.id]
        assert decision.verdict == "lost"
        assert "v1 is worse" in decision.reasons[0]
        assert world.live() == "v0"
        assert world.ask("somebody")[1].arm is None


def unprove(world: ExperimentWorld, name: str) -> None:
    """Make a version one that was trained here and that the gate has not approved."""
    number = int(name[1:])
    with_adapter = (
        model_versions.update()
        .where(model_versions.c.number == number)
        .values(adapter="0" * 64, state="candidate", basis=None)
    )
    world.ws.db.write(lambda connection: connection.execute(with_adapter))
    world.refresh()


class TestUnprovedArms:
    def test_they_are_arms_only_where_the_owner_says_so_and_get_a_tenth(
        self, trial: ExperimentWorld
    ) -> None:
        unprove(trial, "v1")
        with pytest.raises(Conflict, match="candidate"):
            trial.begin()
        for options in ({"share": 0.2}, {"promote": True}, {"mode": "best-arm"}):
            with pytest.raises(ConfigError, match=next(iter(options))):
                trial.begin(unproved=True, **options)
        experiment = trial.begin(unproved=True)
        assert experiment.plan.config.share == 0.1
        answered = serve_people(trial, 600, {"v0": 0.5, "v1": 0.5})
        assert 30 < answered["v1"] < 95

    def test_a_winner_moves_no_alias(self, trial: ExperimentWorld) -> None:
        unprove(trial, "v1")
        experiment = trial.begin(unproved=True, min_units=20)
        serve_people(trial, 900, {"v0": 0.2, "v1": 0.95})
        assert trial.turn()[experiment.id].verdict == "won"
        assert trial.live() == "v0"

    def test_one_that_gets_worse_loses_its_traffic(self, trial: ExperimentWorld) -> None:
        unprove(trial, "v1")
        experiment = trial.begin(unproved=True, min_stop=20)
        serve_people(trial, 900, {"v0": 0.9, "v1": 0.1})
        assert trial.turn()[experiment.id].verdict == "lost"
        assert {trial.ask(f"later-{number}")[1].version for number in range(50)} == {"v0"}


def test_looking_twice_changes_nothing_and_a_second_server_counts_nothing_twice(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    serve_people(trial, 60, {"v0": 0.5, "v1": 0.5})
    assert trial.turn()[experiment.id] == trial.turn()[experiment.id]
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.calls == 60


def test_an_exposure_without_an_outcome_is_not_zero(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    for number in range(40):
        trace_id, _ = trial.ask(f"user-{number}")
        if number % 2:
            trial.rate(trace_id, True)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    assert sum(arm.exposed for arm in inputs.arms) == 40
    assert sum(arm.answered for arm in inputs.arms) == 20
    assert {arm.mean for arm in inputs.arms} == {1.0}


def test_an_outcome_after_the_window_is_counted_as_late_only(trial: ExperimentWorld) -> None:
    experiment = trial.begin(window_hours=2.0)
    early, late = START, START + timedelta(hours=3)
    first, _ = trial.ask("anna", asked_at=early)
    second, _ = trial.ask("berta", asked_at=early)
    trial.rate(first, True, occurred_at=(early + timedelta(hours=1)).isoformat())
    trial.rate(second, True, occurred_at=late.isoformat())
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    assert (sum(arm.answered for arm in inputs.arms), inputs.late) == (1, 1)


def test_one_raters_flood_counts_for_ten_units(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    for number in range(60):
        trace_id, choice = trial.ask(f"user-{number}")
        trial.rate(trace_id, choice.version == "v1", rater="clicker")
    trial.turn()
    inputs, decision = controller.look(trial.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 10
    assert inputs.flooded == 50
    assert decision.verdict == "undecided"


def test_words_of_models_decide_nothing_and_weights_of_raters_count(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    trace_id, choice = trial.ask("anna")
    trial.rate(trace_id, True, rater={"id": "judge", "kind": "model"})
    trial.drain()
    trial.turn()
    assert sum(arm.answered for arm in controller.look(trial.ws, experiment)[0].arms) == 0
    trial.rate(trace_id, False, rater={"id": "owner", "weight": 3.0})
    trial.rate(trace_id, True, rater="guest")
    trial.turn()
    means = {arm.name: arm.mean for arm in controller.look(trial.ws, experiment)[0].arms}
    assert means[choice.version] == pytest.approx(0.25)


def test_a_call_without_a_unit_goes_to_the_alias_and_counts_for_nobody(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    trace_id, choice = trial.ask(None, session="s1")
    assert (choice.version, choice.arm) == ("v0", None)
    trial.rate(trace_id, True)
    trial.turn()
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.without_unit == 1
    assert sum(arm.exposed for arm in controller.look(trial.ws, experiment)[0].arms) == 0


def test_one_user_on_two_devices_has_one_arm_and_is_one_unit(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    phone, phone_choice = trial.ask("anna", session="phone")
    desk, desk_choice = trial.ask("anna", session="desk")
    assert phone_choice.arm == desk_choice.arm
    trial.rate(phone, True)
    trial.rate(desk, False)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    arm = next(arm for arm in inputs.arms if arm.name == phone_choice.arm)
    assert (arm.exposed, arm.answered, arm.mean) == (1, 1, 0.5)


def test_a_nested_call_keeps_the_arm_of_its_parent(trial: ExperimentWorld) -> None:
    trial.begin()
    for number in range(20):
        parent, choice = trial.ask(f"user-{number}")
        assert trial.ask(None, parent=parent)[1].arm == choice.arm
        assert choice.arm is not None


def test_an_override_is_recorded_and_never_counted(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    trace_id, choice = trial.ask("anna", headers={"x-thumbwheel-arm": "v1"})
    assert (choice.version, choice.arm) == ("v1", None)
    trial.rate(trace_id, True)
    trial.turn()
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.overridden == 1
    assert sum(arm.exposed for arm in controller.look(trial.ws, experiment)[0].arms) == 0
    with pytest.raises(NotFound, match="Known: v0, v1"):
        trial.ask("anna", headers={"x-thumbwheel-arm": "v9"})


def test_a_fallback_counts_for_no_arm_and_a_dead_arm_is_stopped(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    number = failures = 0
    while failures < 5:
        number += 1
        trace_id, choice = trial.ask(f"user-{number}")
        if choice.arm == "v1":
            failures += 1
            trial.lines.pop()
            trace_id, choice = trial.ask(f"user-{number}", falls_back="HTTP 503")
            assert (choice.version, choice.arm, choice.is_fallback) == ("v0", None, True)
        trial.rate(trace_id, True)
    decision = trial.turn()[experiment.id]
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.fallbacks == 5
    assert decision.verdict == "lost"
    assert "v1 failed to answer 5 different units in a row" in decision.reasons[0]
    assert trial.live() == "v0"


def test_an_arm_that_is_undeployed_sends_its_people_to_the_alias(trial: ExperimentWorld) -> None:
    trial.begin()
    with trial.ws.db.read() as connection:
        row = connection.execute(sa.select(model_versions).where(model_versions.c.number == 1))
        version_id = row.mappings().one()["id"]
    ended = deployments.update().where(deployments.c.version_id == version_id)
    trial.ws.db.write(lambda connection: connection.execute(ended.values(state="ended")))
    trial.refresh()
    reasons = set()
    for number in range(20):
        choice = trial.ask(f"user-{number}")[1]
        assert choice.version == "v0"
        reasons.add(choice.reason.partition(": ")[2])
    assert reasons == {"", "fallback: arm v1 answers nowhere"}


def test_units_that_arrive_unevenly_stop_the_experiment(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    for number in range(600):
        trace_id, choice = trial.ask(f"user-{number}")
        if choice.arm == "v1" and number % 3:
            trial.lines.pop()  # two thirds of what v1 answered never arrive
            continue
        trial.rate(trace_id, True)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "stopped"
    assert "units do not arrive in their shares" in decision.reasons[0]


def test_new_shares_are_a_new_stratum_and_a_moved_unit_counts_by_its_first_arm(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin(ramp="0.1:2", share=0.6)
    first = {number: trial.ask(f"user-{number}")[1] for number in range(100)}
    assert sum(choice.arm == "v1" for choice in first.values()) < 25
    trial.turn()
    trial.turn(later(3))
    current = controller.find(trial.ws, experiment.id)
    assert [stratum.shares["v1"] for stratum in current.strata] == pytest.approx([0.1, 0.6])
    second = {number: trial.ask(f"user-{number}")[1] for number in range(100)}
    moved = [number for number in first if first[number].arm != second[number].arm]
    assert len(moved) > 20 and all(first[number].arm == "v0" for number in moved)
    assert {choice.draw.stratum for choice in second.values() if choice.draw} == {1}
    trial.turn()
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.moved == len(moved)
    inputs, _ = controller.look(trial.ws, experiment)
    exposed = {arm.name: arm.exposed for arm in inputs.arms}
    assert exposed["v1"] == sum(choice.arm == "v1" for choice in first.values())


def test_held_out_units_stay_with_the_control(trial: ExperimentWorld) -> None:
    experiment = trial.begin(hold_out=0.3)
    choices = [trial.ask(f"user-{number}")[1] for number in range(200)]
    held = [choice for choice in choices if choice.arm is None]
    assert 35 < len(held) < 85
    assert {choice.version for choice in held} == {"v0"}
    trial.turn()
    assert controller.find(trial.ws, experiment.id).collected.held_out == len(held)


def test_a_renamed_outcome_is_named(trial: ExperimentWorld) -> None:
    experiment = trial.begin(metric="outcome:resolved")
    trace_id, _ = trial.ask("anna")
    trial.rate(trace_id, True, kind="outcome", name="solved")
    reasons = trial.turn()[experiment.id].reasons
    assert any("no outcome is called 'resolved'" in reason for reason in reasons)
    assert any("'solved' (1)" in reason for reason in reasons)


def test_a_kill_between_verdict_and_switch_is_made_up_for(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    serve_people(trial, 500, {"v0": 0.3, "v1": 0.8})
    trial.drain()

    class Killed:
        def promote(self, *_: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        controller.turn(trial.ws, experiment, Killed())
    assert trial.live() == "v0"
    assert controller.find(trial.ws, experiment.id).state is State.RUNNING
    assert trial.turn()[experiment.id].verdict == "won"
    assert trial.live() == "v1"
    assert len(controller.verdicts_of(trial.ws, experiment)) == 1
    assert trial.turn() == {}


def test_two_servers_that_decide_at_once_leave_one_verdict(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    serve_people(trial, 500, {"v0": 0.3, "v1": 0.8})
    trial.drain()
    effects = verbs.AliasEffects(trial.ws)

    class OtherServer:
        """Takes its own look between the verdict of this one and what follows from it."""

        def promote(self, *arguments: Any) -> None:
            controller.turn(trial.ws, experiment, effects)
            effects.promote(*arguments)

    assert controller.turn(trial.ws, experiment, OtherServer()).verdict == "won"
    assert trial.live() == "v1"
    assert len(controller.verdicts_of(trial.ws, experiment)) == 1
    kinds = [event.kind for event in controller.events_of(trial.ws, experiment)]
    assert kinds == ["won"]


def test_a_clock_that_is_set_back_loses_no_call(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    trial.ask("anna")
    trial.turn()
    long_ago = later(-48)
    back = traces.update().values(recorded_at=long_ago)
    trial.ws.db.write(lambda connection: connection.execute(back))
    trial.ask("berta", asked_at=long_ago)
    trial.drain()
    set_back = traces.update().where(traces.c.external_id == "call-2")
    values = {"recorded_at": long_ago + timedelta(minutes=1)}
    trial.ws.db.write(lambda connection: connection.execute(set_back.values(**values)))
    trial.turn(long_ago + timedelta(minutes=2))
    assert controller.find(trial.ws, experiment.id).collected.calls == 2


def test_a_subject_erased_during_an_analysis_is_gone_and_the_verdict_still_speaks(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    serve_people(trial, 500, {"v0": 0.3, "v1": 0.8})
    trial.turn()
    (verdict,) = controller.verdicts_of(trial.ws, experiment)
    erase(trial.ws, trial.agent, "user-7")
    assert check_seals(trial.ws, controller.find(trial.ws, experiment.id)) == SealCheck((), 1)
    stored, again, recomputed = controller.replay(trial.ws, verdict)
    assert again.verdict == "won"
    assert recomputed.units != stored.units
    before = sum(arm.exposed for arm in stored.arms)
    assert sum(arm.exposed for arm in recomputed.arms) == before - 1


def test_an_edited_verdict_is_refused(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    serve_people(trial, 500, {"v0": 0.3, "v1": 0.8})
    trial.turn()
    (verdict,) = controller.verdicts_of(trial.ws, experiment)
    edited = verdict.model_copy(update={"reasons": ("because I say so",)})
    with pytest.raises(Conflict, match="its signature does not fit"):
        controller.replay(trial.ws, edited)


def test_an_edited_exposure_is_named_and_decides_nothing(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    serve_people(trial, 500, {"v0": 0.3, "v1": 0.8})
    trial.drain()
    collect(trial.ws, experiment, later(0))
    row = exposures_of(trial)[7]
    edited = exposures.update().where(exposures.c.unit == row.unit)
    other = "v1" if row.arm == "v0" else "v0"

    current = controller.find(trial.ws, experiment.id)
    assert check_seals(trial.ws, current) == SealCheck((), 0)
    trial.ws.db.write(lambda connection: connection.execute(edited.values(arm=other)))
    assert check_seals(trial.ws, experiment).changed == (f"exposure of unit {row.unit}",)
    with pytest.raises(Conflict, match=f"unit {row.unit} was changed after it was recorded"):
        controller.turn(trial.ws, experiment, verbs.AliasEffects(trial.ws))
    assert trial.live() == "v0"
    assert controller.verdicts_of(trial.ws, experiment) == []

    trial.ws.db.write(lambda connection: connection.execute(edited.values(arm=row.arm)))
    assert trial.turn()[experiment.id].verdict == "won"


@pytest.mark.parametrize(
    ("column", "value"),
    [("arm", None), ("failed", True), ("seconds", 0.25), ("unit", "0" * 40), ("seal", None)],
)
def test_an_edited_call_is_named(trial: ExperimentWorld, column: str, value: Any) -> None:
    experiment = trial.begin()
    serve_people(trial, 5, {"v0": 0.3, "v1": 0.8})
    trial.turn()
    with trial.ws.db.read() as connection:
        trace_id = connection.execute(sa.select(exposed_calls.c.trace_id).limit(1)).scalar_one()
    edited = exposed_calls.update().where(exposed_calls.c.trace_id == trace_id)
    trial.ws.db.write(lambda connection: connection.execute(edited.values({column: value})))
    assert check_seals(trial.ws, experiment).changed == (f"call {trace_id}",)


def exposures_of(world: ExperimentWorld) -> list[Any]:
    with world.ws.db.read() as connection:
        return list(connection.execute(sa.select(exposures).order_by(exposures.c.unit)))


def test_each_experiment_spends_on_the_agents_account(trial: ExperimentWorld) -> None:
    first = trial.begin()
    assert first.plan.error == pytest.approx(0.025)
    with pytest.raises(Conflict, match="running experiments cannot be changed"):
        trial.begin()
    controller.stop(trial.ws, first, "enough")
    second = trial.begin()
    assert (second.plan.spend, second.plan.error) == (2, pytest.approx(0.05 / 6))


def test_experiments_of_a_group_share_no_unit(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        first = world.begin(group="all", group_share=0.4)
        arms = [world.ask(f"user-{number}")[1].arm for number in range(200)]
        assert 50 < sum(arm is not None for arm in arms) < 110
        controller.pause(world.ws, first, "for the test")
        assert first.plan.group_range == (0.0, 0.4)
        config = first.plan.config
        open_experiments = [controller.find(world.ws, first.id)]
        assert controller._free_range(open_experiments, config) == (0.4, 0.8)
        with pytest.raises(Conflict, match="leave no 70%"):
            wide = config.model_copy(update={"group_share": 0.7})
            controller._free_range(open_experiments, wide)


def test_a_paused_experiment_counts_nobody_and_goes_on(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    controller.pause(trial.ws, experiment, "a holiday")
    trial.refresh()
    assert trial.ask("anna")[1].draw is None
    assert trial.turn() == {}
    controller.resume(trial.ws, controller.find(trial.ws, experiment.id), "back")
    trial.refresh()
    assert trial.ask("anna")[1].draw is not None
    kinds = [event.kind for event in controller.events_of(trial.ws, experiment)]
    assert kinds == ["paused", "running"]
    with pytest.raises(Conflict, match="cannot become paused"):
        stopped = controller.stop(trial.ws, experiment, "done")
        controller.pause(trial.ws, stopped, "again")


def test_earlier_experiments_veto_an_arm_that_they_know_as_worse(trial: ExperimentWorld) -> None:
    first = trial.begin(stop_alpha=0.001)
    serve_people(trial, 300, {"v0": 0.8, "v1": 0.5})
    trial.turn()
    current = controller.find(trial.ws, first.id)
    if current.state is State.RUNNING:
        controller.stop(trial.ws, current, "next")
    with pytest.raises(Conflict, match="earlier experiments value v1 at 0"):
        trial.begin()
    assert trial.begin(despite="the prompt was changed").state is State.RUNNING


def test_best_arm_mode_moves_people_to_what_is_better_and_ends_with_the_best(
    tmp_path: Path,
) -> None:
    with experiment_world(tmp_path, ("a", "b", "c")) as world:
        experiment = world.begin("v0", "v1", "v2", mode="best-arm", min_stop=1000)
        decision = None
        rates = {"v0": 0.4, "v1": 0.45, "v2": 0.7}
        for batch in range(15):
            serve_people(world, 80, rates, start=batch * 80, seed=batch)
            decision = world.turn()[experiment.id]
            if decision.verdict != "undecided":
                break
        assert decision is not None and decision.arm == "v2"
        assert world.live() == "v2"
        current = controller.find(world.ws, experiment.id)
        assert len(current.strata) > 1


def test_what_cannot_be_an_experiment_is_refused(trial: ExperimentWorld) -> None:
    with pytest.raises(InputError, match="at least two different versions"):
        trial.begin("v0", "v0")
    with pytest.raises(InputError, match="Known: error_rate"):
        trial.begin(guards=["speed"])
    with pytest.raises(InputError, match="its margin is not a number"):
        trial.begin(guards=["cost=cheap"])
    with pytest.raises(DataError, match="--latency SECONDS"):
        trial.begin(guards=["latency_p95"])
    with pytest.raises(ConfigError, match="none of thumb"):
        trial.begin(metric="clicks")
    with pytest.raises(NotFound, match="version 'v9'"):
        trial.begin("v0", "v9")
    experiment = trial.begin(guards=["latency_p95"], latency=2.0)
    assert experiment.plan.guards[0].threshold == 2.0
    with pytest.raises(NotFound, match="no such experiment"):
        controller.find(trial.ws, "exp_0000000")


def test_a_slow_arm_breaks_its_guard(trial: ExperimentWorld) -> None:
    experiment = trial.begin(guards=["latency_p95"], latency=2.0)
    for number in range(300):
        trace_id, choice = trial.ask(f"user-{number}")
        if choice.arm == "v1":
            trial.lines.pop()
            trace_id, choice = trial.ask(f"user-{number}", seconds=5.0)
        trial.rate(trace_id, True)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "lost"
    assert "v1 breaks guard latency_p95" in decision.reasons[0]


def test_a_routing_decision_asks_no_database(
    trial: ExperimentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.begin()
    request = RoutingRequest(AGENT, "live", AGENT, subject="anna", session="s", trace="t")
    for use in ("read", "write"):
        monkeypatch.setattr(trial.ws.db, use, lambda *_: pytest.fail("it asks the database"))
    assert trial.table.choose(request).draw is not None


def test_an_experiment_is_followed_by_the_table(trial: ExperimentWorld) -> None:
    with RoutingTable(trial.ws, GatewayConfig()) as table:
        request = RoutingRequest(AGENT, "live", AGENT, subject="anna")
        assert table.choose(request).draw is None
        plan, forecast = verbs.draft(trial.ws, trial.agent, "live", ["v0", "v1"], [], {})
        verbs.start(trial.ws, trial.agent, "live", plan, forecast)
        until(lambda: table.choose(request).draw is not None)


def test_power_is_said_before_the_start(trial: ExperimentWorld) -> None:
    _, forecast = verbs.draft(trial.ws, trial.agent, "live", ["v0", "v1"], [], {"effect": 0.1})
    assert not forecast.is_known and forecast.days is None
    assert forecast.units is not None and 1500 < forecast.units < 3000


def test_an_outcome_of_a_session_counts_for_its_first_call(trial: ExperimentWorld) -> None:
    experiment = trial.begin(metric="outcome:resolved", unit="session")
    _, choice = trial.ask("anna", session="chat-1")
    trial.ask("anna", session="chat-1")
    trial.rate("", True, kind="outcome", name="resolved", target={"session": "chat-1"})
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    arm = next(arm for arm in inputs.arms if arm.name == choice.arm)
    assert (arm.exposed, arm.answered, arm.mean) == (1, 1, 1.0)


def test_what_users_said_before_takes_variance_out(trial: ExperimentWorld) -> None:
    """Half of the users like everything and said so before; the others like nothing."""
    for number in range(120):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, number % 2 == 0)
    trial.drain()
    experiment = trial.begin()
    for number in range(120):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, number % 2 == 0)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    assert all(arm.variance < 0.01 for arm in inputs.arms)
    assert all(arm.mean == pytest.approx(0.5, abs=0.01) for arm in inputs.arms)


def test_what_a_person_said_before_is_read_once_for_all_their_sessions(
    trial: ExperimentWorld,
) -> None:
    for _ in range(4):
        trace_id, _ = trial.ask("anna")
        trial.rate(trace_id, True)
    trial.drain()
    experiment = trial.begin(unit="session")
    for number in range(6):
        trial.ask("anna", session=f"chat-{number}")
    trial.turn()
    with trial.ws.db.read() as connection:
        agent_id = trial.agent.id
        earlier = store.earlier_statements(connection, agent_id, experiment, "thumb")
    assert len(earlier) == 4
    units = figures(trial.ws, controller.find(trial.ws, experiment.id)).units
    assert [unit.earlier for unit in units] == [1.0] * 6


def test_a_ratio_counts_statements_and_its_interval_knows_units(trial: ExperimentWorld) -> None:
    experiment = trial.begin(ratio=True)
    for number in range(60):
        for _ in range(1 + 4 * (number % 2)):  # every second user says five times as much
            trace_id, _ = trial.ask(f"user-{number}")
            trial.rate(trace_id, number % 2 == 0)
    trial.turn()
    inputs, _ = controller.look(trial.ws, experiment)
    total = sum((arm.mean or 0.0) * arm.answered for arm in inputs.arms)
    assert total / 60 == pytest.approx(30 / 180)
    assert sum(arm.answered for arm in inputs.arms) == 60


def test_the_usual_latency_is_that_of_the_controls_calls(trial: ExperimentWorld) -> None:
    for number in range(100):
        trial.ask(f"user-{number}", seconds=1.0 + number / 100)
    trial.drain()
    experiment = trial.begin(guards=["latency_p95=0.1"])
    (guard,) = experiment.plan.guards
    assert guard.threshold == pytest.approx(1.9405, abs=0.001)
    assert guard.margin == 0.1


def test_a_forecast_knows_the_rate_so_far(trial: ExperimentWorld) -> None:
    for number in range(100):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, number % 4 > 0)
    trial.drain()
    _, forecast = verbs.draft(trial.ws, trial.agent, "live", ["v0", "v1"], [], {})
    assert forecast.is_known and forecast.rate == pytest.approx(0.75)
    assert forecast.days is not None and forecast.horizon_effect is not None


def test_an_interval_is_tightest_for_the_units_that_come_before_the_end(
    trial: ExperimentWorld,
) -> None:
    for number in range(100):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, number % 4 > 0)
    trial.drain()

    def forecast_until(hours: float) -> types.Forecast:
        options = {"max_hours": hours}
        plan, forecast = verbs.draft(trial.ws, trial.agent, "live", ["v0", "v1"], [], options)
        assert plan.tuned_for == forecast.tuned_for
        return forecast

    endless, short, long = forecast_until(0), forecast_until(6), forecast_until(1e6)
    assert endless.units is not None and endless.units_a_day == pytest.approx(2400)
    assert endless.tuned_for == long.tuned_for == endless.units > 4000
    assert short.tuned_for == pytest.approx(600)
    assert (endless.horizon_days, short.horizon_days, long.horizon_days) == (30, 0.25, 30)
    assert short.horizon_effect is not None and endless.horizon_effect is not None
    assert short.horizon_effect > endless.horizon_effect
    assert forecast_until(0.01).tuned_for == controller.FEWEST_TUNED_FOR


def test_an_arm_that_loses_drops_out_and_the_others_go_on_with_the_ramp(tmp_path: Path) -> None:
    with experiment_world(tmp_path, ("a", "b", "c")) as world:
        experiment = world.begin("v0", "v1", "v2", ramp="0.4:2", share=0.6)
        serve_people(world, 600, {"v0": 0.7, "v1": 0.1, "v2": 0.72})
        decision = world.turn()[experiment.id]
        assert decision.verdict == "undecided" and decision.dropped == ("v1",)
        current = controller.find(world.ws, experiment.id)
        assert current.stratum.shares == pytest.approx({"v0": 0.6, "v1": 0.0, "v2": 0.4})
        assert "v1 is worse" in current.stratum.reason
        assert "v1" not in {world.ask(f"other-{number}")[1].arm for number in range(50)}
        world.turn(later(3))
        current = controller.find(world.ws, experiment.id)
        assert current.stratum.shares == pytest.approx({"v0": 0.4, "v1": 0.0, "v2": 0.6})


@pytest.mark.parametrize("first", [None, "v0", "v1"], ids=["at once", "v0 first", "v1 first"])
def test_ratings_that_come_arm_by_arm_decide_nothing(
    trial: ExperimentWorld, first: str | None
) -> None:
    """As from a file in which somebody gathered them. People like both versions alike."""
    experiment = trial.begin()
    calls = [trial.ask(f"user-{number}") for number in range(190)]
    trial.drain()
    waves = [calls]
    if first is not None:
        waves = [
            [call for call in calls if call[1].version == first],
            [call for call in calls if call[1].version != first],
        ]
    draw = random.Random(3)
    for wave in waves:
        for trace_id, _ in wave:
            trial.rate(trace_id, draw.random() < 0.9)
        assert trial.turn()[experiment.id].verdict == "undecided"
    (comparison,) = history(trial.ws, experiment)[-1].comparisons
    assert comparison.low is not None and comparison.high is not None
    assert comparison.low < 0 < comparison.high


def test_an_arm_whose_ratings_lag_decides_nothing(trial: ExperimentWorld) -> None:
    """People became happier, and of the later ones only those of v1 have spoken so far."""
    experiment = trial.begin()
    draw = random.Random(5)
    calls = [trial.ask(f"user-{number}") for number in range(440)]
    lagging = []
    for number, (trace_id, choice) in enumerate(calls):
        if number >= 220 and choice.version == "v0":
            lagging.append(trace_id)
            continue
        trial.rate(trace_id, draw.random() < (0.3 if number < 220 else 0.95))
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "undecided"
    assert "outcomes of v1 and v0 are in for other people" in decision.reasons[0]
    (comparison,) = controller.look(trial.ws, experiment)[0].comparisons
    assert comparison.response_p < MISMATCH and comparison.answering_p < SILENCE
    for trace_id in lagging:
        trial.rate(trace_id, draw.random() < 0.95)
    trial.turn()
    (comparison,) = controller.look(trial.ws, experiment)[0].comparisons
    assert comparison.response_p > MISMATCH and comparison.answering_p == 1.0


def test_an_arm_of_which_unhappy_people_stay_silent_does_not_win(trial: ExperimentWorld) -> None:
    """Both versions are liked alike; whoever dislikes v1 seldom says so."""
    experiment = trial.begin()
    draw = random.Random(6)
    for number in range(600):
        trace_id, choice = trial.ask(f"user-{number}")
        likes = draw.random() < 0.6
        answers = 0.4 if choice.version == "v1" and not likes else 0.9
        if draw.random() < answers:
            trial.rate(trace_id, likes)
    decision = trial.turn()[experiment.id]
    assert decision.verdict == "undecided"
    assert "of the units of v1 answer and" in decision.reasons[0]
    assert "who stays silent may make the difference" in decision.reasons[0]
    assert trial.live() == "v0"


def test_an_arm_that_is_made_of_other_files_than_at_the_start_does_not_win(
    trial: ExperimentWorld,
) -> None:
    experiment = trial.begin()
    serve_people(trial, 300, {"v0": 0.3, "v1": 0.8})
    trial.drain()
    edited = model_versions.update().where(model_versions.c.number == 1)
    values = {"adapter": {"weights": "0" * 64}}
    trial.ws.db.write(lambda connection: connection.execute(edited.values(**values)))
    with pytest.raises(Conflict, match="v1 has other files than at the start"):
        controller.turn(trial.ws, experiment, verbs.AliasEffects(trial.ws))
    assert trial.live() == "v0"
    assert controller.verdicts_of(trial.ws, experiment) == []


@pytest.mark.parametrize("setting", ["min_units", "min_stop"])
def test_so_few_units_that_one_person_decides_are_refused(
    trial: ExperimentWorld, setting: str
) -> None:
    with pytest.raises(InputError, match="so few people per arm can decide nothing"):
        trial.begin(**{setting: 9})
    assert trial.begin(**{setting: 10}).state is State.RUNNING
