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
from thumbwheel.capture.gateway.routing import RoutingRequest
from thumbwheel.capture.gateway.settings import GatewayConfig
from thumbwheel.core.errors import ConfigError, Conflict, DataError, InputError, NotFound
from thumbwheel.db.schema import deployments, exposed_calls, exposures, model_versions, traces
from thumbwheel.experiments import controller, store
from thumbwheel.experiments.analysis import MISMATCH, SILENCE
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.history import history
from thumbwheel.experiments.metrics import figures
from thumbwheel.experiments.row_seals import SealCheck, check_seals
from thumbwheel.experiments.types import State
from thumbwheel.loop import experiment as verbs
from thumbwheel.loop.erase import erase


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ExperimentWorld]:
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


def test_a_better_arm_wins_and_goes_live(world: ExperimentWorld) -> None:
    experiment = world.begin(guards=["error_rate"])
    answered = serve_people(world, 500, {"v0": 0.35, "v1": 0.75})
    assert 200 < answered["v1"] < 300
    decision = world.turn()[experiment.id]
    assert decision.verdict == "won" and decision.arm == "v1", decision
    assert world.live() == "v1"
    ended = controller.find(world.ws, experiment.id)
    assert ended.state is State.WON and ended.ended_at is not None
    (verdict,) = controller.verdicts_of(world.ws, ended)
    stored, again, recomputed = controller.replay(world.ws, verdict)
    assert again.verdict == "won" and recomputed == stored
    # what is recorded later changes nothing of it
    serve_people(world, 20, {"v0": 0.0, "v1": 0.0}, start=600)
    world.drain()
    assert controller.replay(world.ws, verdict)[2] == stored


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
        self, world: ExperimentWorld
    ) -> None:
        unprove(world, "v1")
        with pytest.raises(Conflict, match="candidate"):
            world.begin()
        for options in ({"share": 0.2}, {"promote": True}, {"mode": "best-arm"}):
            with pytest.raises(ConfigError, match=next(iter(options))):
                world.begin(unproved=True, **options)
        experiment = world.begin(unproved=True)
        assert experiment.plan.config.share == 0.1
        answered = serve_people(world, 600, {"v0": 0.5, "v1": 0.5})
        assert 30 < answered["v1"] < 95

    def test_a_winner_moves_no_alias(self, world: ExperimentWorld) -> None:
        unprove(world, "v1")
        experiment = world.begin(unproved=True, min_units=20)
        serve_people(world, 900, {"v0": 0.2, "v1": 0.95})
        assert world.turn()[experiment.id].verdict == "won"
        assert world.live() == "v0"

    def test_one_that_gets_worse_loses_its_traffic(self, world: ExperimentWorld) -> None:
        unprove(world, "v1")
        experiment = world.begin(unproved=True, min_stop=20)
        serve_people(world, 900, {"v0": 0.9, "v1": 0.1})
        assert world.turn()[experiment.id].verdict == "lost"
        assert {world.ask(f"later-{number}")[1].version for number in range(50)} == {"v0"}


def test_looking_twice_changes_nothing_and_a_second_server_counts_nothing_twice(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    serve_people(world, 60, {"v0": 0.5, "v1": 0.5})
    assert world.turn()[experiment.id] == world.turn()[experiment.id]
    current = controller.find(world.ws, experiment.id)
    assert current.collected.calls == 60


def test_an_exposure_without_an_outcome_is_not_zero(world: ExperimentWorld) -> None:
    experiment = world.begin()
    for number in range(40):
        trace_id, _ = world.ask(f"user-{number}")
        if number % 2:
            world.rate(trace_id, True)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    assert sum(arm.exposed for arm in inputs.arms) == 40
    assert sum(arm.answered for arm in inputs.arms) == 20
    assert {arm.mean for arm in inputs.arms} == {1.0}


def test_an_outcome_after_the_window_is_counted_as_late_only(world: ExperimentWorld) -> None:
    experiment = world.begin(window_hours=2.0)
    early, late = START, START + timedelta(hours=3)
    first, _ = world.ask("anna", asked_at=early)
    second, _ = world.ask("berta", asked_at=early)
    world.rate(first, True, occurred_at=(early + timedelta(hours=1)).isoformat())
    world.rate(second, True, occurred_at=late.isoformat())
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    assert (sum(arm.answered for arm in inputs.arms), inputs.late) == (1, 1)


def test_one_raters_flood_counts_for_ten_units(world: ExperimentWorld) -> None:
    experiment = world.begin()
    for number in range(60):
        trace_id, choice = world.ask(f"user-{number}")
        world.rate(trace_id, choice.version == "v1", rater="clicker")
    world.turn()
    inputs, decision = controller.look(world.ws, experiment)
    assert sum(arm.answered for arm in inputs.arms) == 10
    assert inputs.flooded == 50
    assert decision.verdict == "undecided"


def test_words_of_models_decide_nothing_and_weights_of_raters_count(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    trace_id, choice = world.ask("anna")
    world.rate(trace_id, True, rater={"id": "judge", "kind": "model"})
    world.drain()
    world.turn()
    assert sum(arm.answered for arm in controller.look(world.ws, experiment)[0].arms) == 0
    world.rate(trace_id, False, rater={"id": "owner", "weight": 3.0})
    world.rate(trace_id, True, rater="guest")
    world.turn()
    means = {arm.name: arm.mean for arm in controller.look(world.ws, experiment)[0].arms}
    assert means[choice.version] == pytest.approx(0.25)


def test_a_call_without_a_unit_goes_to_the_alias_and_counts_for_nobody(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    trace_id, choice = world.ask(None, session="s1")
    assert (choice.version, choice.arm) == ("v0", None)
    world.rate(trace_id, True)
    world.turn()
    current = controller.find(world.ws, experiment.id)
    assert current.collected.without_unit == 1
    assert sum(arm.exposed for arm in controller.look(world.ws, experiment)[0].arms) == 0


def test_one_user_on_two_devices_has_one_arm_and_is_one_unit(world: ExperimentWorld) -> None:
    experiment = world.begin()
    phone, phone_choice = world.ask("anna", session="phone")
    desk, desk_choice = world.ask("anna", session="desk")
    assert phone_choice.arm == desk_choice.arm
    world.rate(phone, True)
    world.rate(desk, False)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    arm = next(arm for arm in inputs.arms if arm.name == phone_choice.arm)
    assert (arm.exposed, arm.answered, arm.mean) == (1, 1, 0.5)


def test_a_nested_call_keeps_the_arm_of_its_parent(world: ExperimentWorld) -> None:
    world.begin()
    for number in range(20):
        parent, choice = world.ask(f"user-{number}")
        assert world.ask(None, parent=parent)[1].arm == choice.arm
        assert choice.arm is not None


def test_an_override_is_recorded_and_never_counted(world: ExperimentWorld) -> None:
    experiment = world.begin()
    trace_id, choice = world.ask("anna", headers={"x-thumbwheel-arm": "v1"})
    assert (choice.version, choice.arm) == ("v1", None)
    world.rate(trace_id, True)
    world.turn()
    current = controller.find(world.ws, experiment.id)
    assert current.collected.overridden == 1
    assert sum(arm.exposed for arm in controller.look(world.ws, experiment)[0].arms) == 0
    with pytest.raises(NotFound, match="Known: v0, v1"):
        world.ask("anna", headers={"x-thumbwheel-arm": "v9"})


def test_a_fallback_counts_for_no_arm_and_a_dead_arm_is_stopped(world: ExperimentWorld) -> None:
    experiment = world.begin()
    number = failures = 0
    while failures < 5:
        number += 1
        trace_id, choice = world.ask(f"user-{number}")
        if choice.arm == "v1":
            failures += 1
            world.lines.pop()
            trace_id, choice = world.ask(f"user-{number}", falls_back="HTTP 503")
            assert (choice.version, choice.arm, choice.is_fallback) == ("v0", None, True)
        world.rate(trace_id, True)
    decision = world.turn()[experiment.id]
    current = controller.find(world.ws, experiment.id)
    assert current.collected.fallbacks == 5
    assert decision.verdict == "lost"
    assert "v1 failed to answer 5 different units in a row" in decision.reasons[0]
    assert world.live() == "v0"


def test_an_arm_that_is_undeployed_sends_its_people_to_the_alias(world: ExperimentWorld) -> None:
    world.begin()
    with world.ws.db.read() as connection:
        row = connection.execute(sa.select(model_versions).where(model_versions.c.number == 1))
        version_id = row.mappings().one()["id"]
    ended = deployments.update().where(deployments.c.version_id == version_id)
    world.ws.db.write(lambda connection: connection.execute(ended.values(state="ended")))
    world.refresh()
    reasons = set()
    for number in range(20):
        choice = world.ask(f"user-{number}")[1]
        assert choice.version == "v0"
        reasons.add(choice.reason.partition(": ")[2])
    assert reasons == {"", "fallback: arm v1 answers nowhere"}


def test_units_that_arrive_unevenly_stop_the_experiment(world: ExperimentWorld) -> None:
    experiment = world.begin()
    for number in range(600):
        trace_id, choice = world.ask(f"user-{number}")
        if choice.arm == "v1" and number % 3:
            world.lines.pop()  # two thirds of what v1 answered never arrive
            continue
        world.rate(trace_id, True)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "stopped"
    assert "units do not arrive in their shares" in decision.reasons[0]


def test_new_shares_are_a_new_stratum_and_a_moved_unit_counts_by_its_first_arm(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin(ramp="0.1:2", share=0.6)
    first = {number: world.ask(f"user-{number}")[1] for number in range(100)}
    assert sum(choice.arm == "v1" for choice in first.values()) < 25
    world.turn()
    world.turn(later(3))
    current = controller.find(world.ws, experiment.id)
    assert [stratum.shares["v1"] for stratum in current.strata] == pytest.approx([0.1, 0.6])
    second = {number: world.ask(f"user-{number}")[1] for number in range(100)}
    moved = [number for number in first if first[number].arm != second[number].arm]
    assert len(moved) > 20 and all(first[number].arm == "v0" for number in moved)
    assert {choice.draw.stratum for choice in second.values() if choice.draw} == {1}
    world.turn()
    current = controller.find(world.ws, experiment.id)
    assert current.collected.moved == len(moved)
    inputs, _ = controller.look(world.ws, experiment)
    exposed = {arm.name: arm.exposed for arm in inputs.arms}
    assert exposed["v1"] == sum(choice.arm == "v1" for choice in first.values())


def test_held_out_units_stay_with_the_control(world: ExperimentWorld) -> None:
    experiment = world.begin(hold_out=0.3)
    choices = [world.ask(f"user-{number}")[1] for number in range(200)]
    held = [choice for choice in choices if choice.arm is None]
    assert 35 < len(held) < 85
    assert {choice.version for choice in held} == {"v0"}
    world.turn()
    assert controller.find(world.ws, experiment.id).collected.held_out == len(held)


def test_a_renamed_outcome_is_named(world: ExperimentWorld) -> None:
    experiment = world.begin(metric="outcome:resolved")
    trace_id, _ = world.ask("anna")
    world.rate(trace_id, True, kind="outcome", name="solved")
    reasons = world.turn()[experiment.id].reasons
    assert any("no outcome is called 'resolved'" in reason for reason in reasons)
    assert any("'solved' (1)" in reason for reason in reasons)


def test_a_kill_between_verdict_and_switch_is_made_up_for(world: ExperimentWorld) -> None:
    experiment = world.begin()
    serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
    world.drain()

    class Killed:
        def promote(self, *_: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        controller.turn(world.ws, experiment, Killed())
    assert world.live() == "v0"
    assert controller.find(world.ws, experiment.id).state is State.RUNNING
    assert world.turn()[experiment.id].verdict == "won"
    assert world.live() == "v1"
    assert len(controller.verdicts_of(world.ws, experiment)) == 1
    assert world.turn() == {}


def test_two_servers_that_decide_at_once_leave_one_verdict(world: ExperimentWorld) -> None:
    experiment = world.begin()
    serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
    world.drain()
    effects = verbs.AliasEffects(world.ws)

    class OtherServer:
        """Takes its own look between the verdict of this one and what follows from it."""

        def promote(self, *arguments: Any) -> None:
            controller.turn(world.ws, experiment, effects)
            effects.promote(*arguments)

    assert controller.turn(world.ws, experiment, OtherServer()).verdict == "won"
    assert world.live() == "v1"
    assert len(controller.verdicts_of(world.ws, experiment)) == 1
    kinds = [event.kind for event in controller.events_of(world.ws, experiment)]
    assert kinds == ["won"]


def test_a_clock_that_is_set_back_loses_no_call(world: ExperimentWorld) -> None:
    experiment = world.begin()
    world.ask("anna")
    world.turn()
    long_ago = later(-48)
    back = traces.update().values(recorded_at=long_ago)
    world.ws.db.write(lambda connection: connection.execute(back))
    world.ask("berta", asked_at=long_ago)
    world.drain()
    set_back = traces.update().where(traces.c.external_id == "call-2")
    values = {"recorded_at": long_ago + timedelta(minutes=1)}
    world.ws.db.write(lambda connection: connection.execute(set_back.values(**values)))
    world.turn(long_ago + timedelta(minutes=2))
    assert controller.find(world.ws, experiment.id).collected.calls == 2


def test_a_subject_erased_during_an_analysis_is_gone_and_the_verdict_still_speaks(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
    world.turn()
    (verdict,) = controller.verdicts_of(world.ws, experiment)
    erase(world.ws, world.agent, "user-7")
    assert check_seals(world.ws, controller.find(world.ws, experiment.id)) == SealCheck((), 1)
    stored, again, recomputed = controller.replay(world.ws, verdict)
    assert again.verdict == "won"
    assert recomputed.units != stored.units
    before = sum(arm.exposed for arm in stored.arms)
    assert sum(arm.exposed for arm in recomputed.arms) == before - 1


def test_an_edited_verdict_is_refused(world: ExperimentWorld) -> None:
    experiment = world.begin()
    serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
    world.turn()
    (verdict,) = controller.verdicts_of(world.ws, experiment)
    edited = verdict.model_copy(update={"reasons": ("because I say so",)})
    with pytest.raises(Conflict, match="its signature does not fit"):
        controller.replay(world.ws, edited)


def test_an_edited_exposure_is_named_and_decides_nothing(world: ExperimentWorld) -> None:
    experiment = world.begin()
    serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
    world.drain()
    collect(world.ws, experiment, later(0))
    row = exposures_of(world)[7]
    edited = exposures.update().where(exposures.c.unit == row.unit)
    other = "v1" if row.arm == "v0" else "v0"

    current = controller.find(world.ws, experiment.id)
    assert check_seals(world.ws, current) == SealCheck((), 0)
    world.ws.db.write(lambda connection: connection.execute(edited.values(arm=other)))
    assert check_seals(world.ws, experiment).changed == (f"exposure of unit {row.unit}",)
    with pytest.raises(Conflict, match=f"unit {row.unit} was changed after it was recorded"):
        controller.turn(world.ws, experiment, verbs.AliasEffects(world.ws))
    assert world.live() == "v0"
    assert controller.verdicts_of(world.ws, experiment) == []

    world.ws.db.write(lambda connection: connection.execute(edited.values(arm=row.arm)))
    assert world.turn()[experiment.id].verdict == "won"


@pytest.mark.parametrize(
    ("column", "value"),
    [("arm", None), ("failed", True), ("seconds", 0.25), ("unit", "0" * 40), ("seal", None)],
)
def test_an_edited_call_is_named(world: ExperimentWorld, column: str, value: Any) -> None:
    experiment = world.begin()
    serve_people(world, 5, {"v0": 0.3, "v1": 0.8})
    world.turn()
    with world.ws.db.read() as connection:
        trace_id = connection.execute(sa.select(exposed_calls.c.trace_id).limit(1)).scalar_one()
    edited = exposed_calls.update().where(exposed_calls.c.trace_id == trace_id)
    world.ws.db.write(lambda connection: connection.execute(edited.values({column: value})))
    assert check_seals(world.ws, experiment).changed == (f"call {trace_id}",)


def exposures_of(world: ExperimentWorld) -> list[Any]:
    with world.ws.db.read() as connection:
        return list(connection.execute(sa.select(exposures).order_by(exposures.c.unit)))


def test_each_experiment_spends_on_the_agents_account(world: ExperimentWorld) -> None:
    first = world.begin()
    assert first.plan.error == pytest.approx(0.025)
    with pytest.raises(Conflict, match="nothing is edited in flight"):
        world.begin()
    controller.stop(world.ws, first, "enough")
    second = world.begin()
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


def test_a_paused_experiment_counts_nobody_and_goes_on(world: ExperimentWorld) -> None:
    experiment = world.begin()
    controller.pause(world.ws, experiment, "a holiday")
    world.refresh()
    assert world.ask("anna")[1].draw is None
    assert world.turn() == {}
    controller.resume(world.ws, controller.find(world.ws, experiment.id), "back")
    world.refresh()
    assert world.ask("anna")[1].draw is not None
    kinds = [event.kind for event in controller.events_of(world.ws, experiment)]
    assert kinds == ["paused", "running"]
    with pytest.raises(Conflict, match="cannot become paused"):
        stopped = controller.stop(world.ws, experiment, "done")
        controller.pause(world.ws, stopped, "again")


def test_earlier_experiments_veto_an_arm_that_they_know_as_worse(world: ExperimentWorld) -> None:
    first = world.begin(stop_alpha=0.001)
    serve_people(world, 300, {"v0": 0.8, "v1": 0.5})
    world.turn()
    current = controller.find(world.ws, first.id)
    if current.state is State.RUNNING:
        controller.stop(world.ws, current, "next")
    with pytest.raises(Conflict, match="earlier experiments value v1 at 0"):
        world.begin()
    assert world.begin(despite="the prompt was changed").state is State.RUNNING


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


def test_what_cannot_be_an_experiment_is_refused(world: ExperimentWorld) -> None:
    with pytest.raises(InputError, match="at least two different versions"):
        world.begin("v0", "v0")
    with pytest.raises(InputError, match="Known: error_rate"):
        world.begin(guards=["speed"])
    with pytest.raises(InputError, match="its margin is no number"):
        world.begin(guards=["cost=cheap"])
    with pytest.raises(DataError, match="--latency SECONDS"):
        world.begin(guards=["latency_p95"])
    with pytest.raises(ConfigError, match="none of thumb"):
        world.begin(metric="clicks")
    with pytest.raises(NotFound, match="version 'v9'"):
        world.begin("v0", "v9")
    experiment = world.begin(guards=["latency_p95"], latency=2.0)
    assert experiment.plan.guards[0].threshold == 2.0
    with pytest.raises(NotFound, match="no such experiment"):
        controller.find(world.ws, "exp_0000000")


def test_a_slow_arm_breaks_its_guard(world: ExperimentWorld) -> None:
    experiment = world.begin(guards=["latency_p95"], latency=2.0)
    for number in range(300):
        trace_id, choice = world.ask(f"user-{number}")
        if choice.arm == "v1":
            world.lines.pop()
            trace_id, choice = world.ask(f"user-{number}", seconds=5.0)
        world.rate(trace_id, True)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "lost"
    assert "v1 breaks guard latency_p95" in decision.reasons[0]


def test_a_routing_decision_asks_no_database(
    world: ExperimentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    request = RoutingRequest(AGENT, "live", AGENT, subject="anna", session="s", trace="t")
    for use in ("read", "write"):
        monkeypatch.setattr(world.ws.db, use, lambda *_: pytest.fail("it asks the database"))
    assert world.table.choose(request).draw is not None


def test_an_experiment_is_followed_by_the_table(world: ExperimentWorld) -> None:
    with RoutingTable(world.ws, GatewayConfig()) as table:
        request = RoutingRequest(AGENT, "live", AGENT, subject="anna")
        assert table.choose(request).draw is None
        plan, forecast = verbs.draft(world.ws, world.agent, "live", ["v0", "v1"], [], {})
        verbs.start(world.ws, world.agent, "live", plan, forecast)
        until(lambda: table.choose(request).draw is not None)


def test_power_is_said_before_the_start(world: ExperimentWorld) -> None:
    _, forecast = verbs.draft(world.ws, world.agent, "live", ["v0", "v1"], [], {"effect": 0.1})
    assert not forecast.is_known and forecast.days is None
    assert forecast.units is not None and 1500 < forecast.units < 3000


def test_an_outcome_of_a_session_counts_for_its_first_call(world: ExperimentWorld) -> None:
    experiment = world.begin(metric="outcome:resolved", unit="session")
    _, choice = world.ask("anna", session="chat-1")
    world.ask("anna", session="chat-1")
    world.rate("", True, kind="outcome", name="resolved", target={"session": "chat-1"})
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    arm = next(arm for arm in inputs.arms if arm.name == choice.arm)
    assert (arm.exposed, arm.answered, arm.mean) == (1, 1, 1.0)


def test_what_users_said_before_takes_variance_out(world: ExperimentWorld) -> None:
    """Half of the users like everything and said so before; the others like nothing."""
    for number in range(120):
        trace_id, _ = world.ask(f"user-{number}")
        world.rate(trace_id, number % 2 == 0)
    world.drain()
    experiment = world.begin()
    for number in range(120):
        trace_id, _ = world.ask(f"user-{number}")
        world.rate(trace_id, number % 2 == 0)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    assert all(arm.variance < 0.01 for arm in inputs.arms)
    assert all(arm.mean == pytest.approx(0.5, abs=0.01) for arm in inputs.arms)


def test_what_a_person_said_before_is_read_once_for_all_their_sessions(
    world: ExperimentWorld,
) -> None:
    for _ in range(4):
        trace_id, _ = world.ask("anna")
        world.rate(trace_id, True)
    world.drain()
    experiment = world.begin(unit="session")
    for number in range(6):
        world.ask("anna", session=f"chat-{number}")
    world.turn()
    with world.ws.db.read() as connection:
        agent_id = world.agent.id
        earlier = store.earlier_statements(connection, agent_id, experiment, "thumb")
    assert len(earlier) == 4
    units = figures(world.ws, controller.find(world.ws, experiment.id)).units
    assert [unit.earlier for unit in units] == [1.0] * 6


def test_a_ratio_counts_statements_and_its_interval_knows_units(world: ExperimentWorld) -> None:
    experiment = world.begin(ratio=True)
    for number in range(60):
        for _ in range(1 + 4 * (number % 2)):  # every second user says five times as much
            trace_id, _ = world.ask(f"user-{number}")
            world.rate(trace_id, number % 2 == 0)
    world.turn()
    inputs, _ = controller.look(world.ws, experiment)
    total = sum((arm.mean or 0.0) * arm.answered for arm in inputs.arms)
    assert total / 60 == pytest.approx(30 / 180)
    assert sum(arm.answered for arm in inputs.arms) == 60


def test_the_usual_latency_is_that_of_the_controls_calls(world: ExperimentWorld) -> None:
    for number in range(100):
        world.ask(f"user-{number}", seconds=1.0 + number / 100)
    world.drain()
    experiment = world.begin(guards=["latency_p95=0.1"])
    (guard,) = experiment.plan.guards
    assert guard.threshold == pytest.approx(1.9405, abs=0.001)
    assert guard.margin == 0.1


def test_a_forecast_knows_the_rate_so_far(world: ExperimentWorld) -> None:
    for number in range(100):
        trace_id, _ = world.ask(f"user-{number}")
        world.rate(trace_id, number % 4 > 0)
    world.drain()
    _, forecast = verbs.draft(world.ws, world.agent, "live", ["v0", "v1"], [], {})
    assert forecast.is_known and forecast.rate == pytest.approx(0.75)
    assert forecast.days is not None and forecast.horizon_effect is not None


def test_an_interval_is_tightest_for_the_units_that_come_before_the_end(
    world: ExperimentWorld,
) -> None:
    for number in range(100):
        trace_id, _ = world.ask(f"user-{number}")
        world.rate(trace_id, number % 4 > 0)
    world.drain()

    def forecast_until(hours: float) -> controller.Forecast:
        options = {"max_hours": hours}
        plan, forecast = verbs.draft(world.ws, world.agent, "live", ["v0", "v1"], [], options)
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
    world: ExperimentWorld, first: str | None
) -> None:
    """As from a file in which somebody gathered them. People like both versions alike."""
    experiment = world.begin()
    calls = [world.ask(f"user-{number}") for number in range(190)]
    world.drain()
    waves = [calls]
    if first is not None:
        waves = [
            [call for call in calls if call[1].version == first],
            [call for call in calls if call[1].version != first],
        ]
    draw = random.Random(3)
    for wave in waves:
        for trace_id, _ in wave:
            world.rate(trace_id, draw.random() < 0.9)
        assert world.turn()[experiment.id].verdict == "undecided"
    (comparison,) = history(world.ws, experiment)[-1].comparisons
    assert comparison.low is not None and comparison.high is not None
    assert comparison.low < 0 < comparison.high


def test_an_arm_whose_ratings_lag_decides_nothing(world: ExperimentWorld) -> None:
    """People became happier, and of the later ones only those of v1 have spoken so far."""
    experiment = world.begin()
    draw = random.Random(5)
    calls = [world.ask(f"user-{number}") for number in range(440)]
    lagging = []
    for number, (trace_id, choice) in enumerate(calls):
        if number >= 220 and choice.version == "v0":
            lagging.append(trace_id)
            continue
        world.rate(trace_id, draw.random() < (0.3 if number < 220 else 0.95))
    decision = world.turn()[experiment.id]
    assert decision.verdict == "undecided"
    assert "outcomes of v1 and v0 are in for other people" in decision.reasons[0]
    (comparison,) = controller.look(world.ws, experiment)[0].comparisons
    assert comparison.response_p < MISMATCH and comparison.answering_p < SILENCE
    for trace_id in lagging:
        world.rate(trace_id, draw.random() < 0.95)
    world.turn()
    (comparison,) = controller.look(world.ws, experiment)[0].comparisons
    assert comparison.response_p > MISMATCH and comparison.answering_p == 1.0


def test_an_arm_of_which_unhappy_people_stay_silent_does_not_win(world: ExperimentWorld) -> None:
    """Both versions are liked alike; whoever dislikes v1 seldom says so."""
    experiment = world.begin()
    draw = random.Random(6)
    for number in range(600):
        trace_id, choice = world.ask(f"user-{number}")
        likes = draw.random() < 0.6
        answers = 0.4 if choice.version == "v1" and not likes else 0.9
        if draw.random() < answers:
            world.rate(trace_id, likes)
    decision = world.turn()[experiment.id]
    assert decision.verdict == "undecided"
    assert "of the units of v1 answer and" in decision.reasons[0]
    assert "who stays silent may make the difference" in decision.reasons[0]
    assert world.live() == "v0"


def test_an_arm_that_is_made_of_other_files_than_at_the_start_does_not_win(
    world: ExperimentWorld,
) -> None:
    experiment = world.begin()
    serve_people(world, 300, {"v0": 0.3, "v1": 0.8})
    world.drain()
    edited = model_versions.update().where(model_versions.c.number == 1)
    values = {"adapter": {"weights": "0" * 64}}
    world.ws.db.write(lambda connection: connection.execute(edited.values(**values)))
    with pytest.raises(Conflict, match="v1 is made of other files than at the start"):
        controller.turn(world.ws, experiment, verbs.AliasEffects(world.ws))
    assert world.live() == "v0"
    assert controller.verdicts_of(world.ws, experiment) == []


@pytest.mark.parametrize("setting", ["min_units", "min_stop"])
def test_so_few_units_that_one_person_decides_are_refused(
    world: ExperimentWorld, setting: str
) -> None:
    with pytest.raises(InputError, match="so few people of an arm decide nothing"):
        world.begin(**{setting: 9})
    assert world.begin(**{setting: 10}).state is State.RUNNING
