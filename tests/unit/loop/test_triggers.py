"""When a turn is due: what is informative, the rules in their order, and what a turn releases."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from thumbwheel.capture.cases import draw_drafts, store_drafts
from thumbwheel.capture.ingest import ingest
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, Conflict, InputError
from thumbwheel.core.locks import lock
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.schema import loop_checks
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.current import doing
from thumbwheel.jobs.queue import enqueue, jobs
from thumbwheel.jobs.schedules import schedules
from thumbwheel.loop import turn_store
from thumbwheel.loop.cycle_checks import plan_in_words
from thumbwheel.loop.cycle_types import Candidate, CycleConfig, CycleReport
from thumbwheel.loop.informative import DUPLICATE, NOTHING_NEW, ONE_SIDED, QUOTA, new_events
from thumbwheel.loop.jobs import LoopCheckSpec, run_check
from thumbwheel.loop.loops import disable, enable, status
from thumbwheel.loop.trigger_types import Hours, Rule, TriggerConfig, Turn, TurnState
from thumbwheel.loop.triggers import check
from thumbwheel.loop.turn import outcome, run_turn, turns
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
from thumbwheel.training.data_plan import data_plan

NAME = "support"
AGENT = Agent.named(NAME)
# bad answers count as soon as two good ones are known
PLAN = {"plan": {"kto_class": 2}}
RULES = DatasetConfig.model_validate(PLAN)


class Clock:
    """A clock that somebody sets."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class LoopWorld:
    """A home whose feedback is imported as a user imports it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, 0
        self.ws = Workspace.open(
            Home.at(folder / "home"), Sources({"dataset": PLAN}, "test.yaml", {})
        )
        ensure_agent(self.ws, NAME)

    def add(self, *lines):
        self.files += 1
        path = self.folder / f"{self.files}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = ingest(self.ws, NAME, "jsonl", path)
        assert report.refused == 0, report.refusals
        time.sleep(0.002)  # what comes next has a later time
        return datetime.now(UTC)

    def new(self, since=None, per_rater=None):
        return new_events(self.ws, AGENT, RULES, since, per_rater)


@pytest.fixture
def animals(tmp_path):
    opened = LoopWorld(tmp_path)
    yield opened
    opened.ws.db.close()


def answer(name, text=None, asked=None):
    return {
        "type": "trace",
        "id": name,
        "input": asked or f"question {name}",
        "output": text or f"answer {name}",
    }


def thumb(name, up=True, rater="ann", **more):
    return {
        "type": "feedback",
        "kind": "thumb",
        "value": up,
        "target": {"trace": name},
        "rater": rater,
        **more,
    }


def good_and_bad(count, start=0, rater="ann"):
    lines = []
    for number in range(start, start + count):
        lines += [answer(f"t{number}"), thumb(f"t{number}", number % 2 == 0, rater)]
    return lines


# --- what is informative


def test_thumbs_in_both_directions_are_informative_and_repeating_them_is_not(animals):
    first = animals.add(*good_and_bad(60))
    everything = animals.new()
    assert (everything.events, everything.informative) == (60, 60)
    assert everything.kinds == {"good": 30, "bad": 30}
    assert animals.new(first).informative == 0
    animals.add(*(thumb(f"t{number}", number % 2 == 0) for number in range(10)))
    again = animals.new(first)
    assert again.informative == 0
    # another person who agrees says nothing new either; one who turns a verdict round does
    animals.add(*(thumb(f"t{number}", number % 2 == 0, "ben") for number in range(10)))
    assert animals.new(first).left_out == {NOTHING_NEW: 10}
    animals.add(*(thumb(f"t{number}", number % 2 == 1, "ann") for number in (20, 21)))
    assert animals.new(first).kinds == {"bad": 1, "good": 1}


def test_the_same_text_judged_the_same_way_counts_once(animals):
    copies = [answer(f"c{number}", "the same", "asked often") for number in range(5)]
    animals.add(*good_and_bad(40), *copies, *(thumb(f"c{number}") for number in range(5)))
    first = animals.new()
    assert first.kinds["good"] == 21
    assert first.left_out == {DUPLICATE: 4}
    heard = datetime.now(UTC)
    animals.add(answer("c9", "the same", "asked often"), thumb("c9"))
    assert animals.new(heard).left_out == {DUPLICATE: 1}


def test_bad_answers_alone_teach_nothing(animals):
    animals.add(*(line for n in range(30) for line in (answer(f"t{n}"), thumb(f"t{n}", False))))
    one_sided = animals.new()
    assert (one_sided.events, one_sided.informative) == (30, 0)
    assert one_sided.left_out == {ONE_SIDED: 30}
    animals.add(*(line for n in range(30, 60) for line in (answer(f"t{n}"), thumb(f"t{n}"))))
    assert animals.new().kinds == {"good": 30, "bad": 30}


def test_corrections_and_comparisons_are_informative(animals):
    correction = {
        "type": "feedback",
        "kind": "correction",
        "value": "better",
        "target": {"trace": "a"},
        "rater": "ann",
    }
    preference = {
        "type": "feedback",
        "kind": "preference",
        "value": {"ranking": [[0], [1]]},
        "targets": [{"trace": "b"}, {"trace": "c"}],
        "rater": "ann",
    }
    same = {"asked": "which one?"}
    animals.add(answer("a"), answer("b", **same), answer("c", **same), correction, preference)
    assert animals.new().kinds == {"edit": 1, "comparison": 1}


def test_one_rater_cannot_bring_a_turn_about(animals):
    animals.add(*good_and_bad(40, rater="loud"))
    assert animals.new(per_rater=5).informative == 5
    assert animals.new(per_rater=5).left_out == {QUOTA: 35}
    animals.add(*good_and_bad(10, start=100, rater="ben"))
    assert animals.new(per_rater=5).informative == 10


def look(world, clock):
    """A check, and the turn that it asks for."""
    line = check(world.ws, AGENT, clock)
    if not line.fired:
        return line, None
    informative = line.value["informative"]
    config = CycleConfig()
    return line, run_turn(world.ws, AGENT, config, line.rule, clock=clock, informative=informative)


# --- the rules


NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


@pytest.fixture
def clock():
    # after everything that a test imports, so that events lie before the turns that hear them
    return Clock(datetime.now(UTC) + timedelta(minutes=5))


def recorded_turn(world, state, moment, heard=None, informative=0, reason=None):
    turn = Turn(
        ids.new("cyc"),
        Rule.NUMBER,
        TurnState.RUNNING,
        None,
        heard or moment,
        informative,
        None,
        None,
        moment,
        None,
    )
    world.ws.db.write(lambda connection: turn_store.add_turn(connection, AGENT.id, turn))
    if state is not TurnState.RUNNING:
        world.ws.db.write(
            lambda connection: turn_store.move_turn(
                connection, turn.id, state, reason=reason, ended_at=moment
            )
        )
    return turn


def test_nothing_happens_before_the_loop_is_enabled(animals, clock):
    animals.add(*good_and_bad(60))
    line = check(animals.ws, AGENT, clock)
    assert (line.rule, line.fired, line.next_at) == (Rule.DISABLED, False, None)
    enable(animals.ws, AGENT, {}, clock)
    assert check(animals.ws, AGENT, clock).fired
    disable(animals.ws, AGENT, clock)
    assert check(animals.ws, AGENT, clock).rule is Rule.DISABLED
    # the settings of before are there again
    enable(animals.ws, AGENT, {"least": 61}, clock)
    disable(animals.ws, AGENT, clock)
    enable(animals.ws, AGENT, {}, clock)
    assert status(animals.ws, AGENT, clock).settings["least"] == 61


def test_a_check_that_says_no_names_its_number_and_the_next_check(animals, clock):
    enable(animals.ws, AGENT, {"least": 50, "check_minutes": 10}, clock)
    animals.add(*good_and_bad(40))
    line = check(animals.ws, AGENT, clock)
    assert (line.rule, line.fired) == (Rule.NUMBER, False)
    assert "40 of 50 new informative events" in line.reason
    assert line.value["informative"] == 40
    assert line.next_at == clock.now + timedelta(minutes=10)
    animals.add(*good_and_bad(10, start=50))
    fired = check(animals.ws, AGENT, clock)
    assert (fired.rule, fired.fired) == (Rule.NUMBER, True)
    assert [line.fired for line in status(animals.ws, AGENT, clock).checks] == [True, False]


def test_a_turn_that_nobody_could_decide_trains_nothing_and_keeps_its_events(animals):
    """There is enough to train on, and too little is held out for the gate."""
    clock = Clock(NOON)
    animals.add(*good_and_bad(120))
    enabled = enable(animals.ws, AGENT, {"least": 50}, clock)
    assert "the gate decides on 30 different held-out rated questions" in enabled.missing
    assert "30 reviewed cases" in enabled.missing and "300 different rated" in enabled.missing
    line = check(animals.ws, AGENT, clock)
    assert (line.rule, line.fired) == (Rule.UNDECIDED, False)
    assert line.next_at == NOON + timedelta(minutes=15)
    now = status(animals.ws, AGENT, clock)
    assert (now.new.informative, now.turns, now.missing) == (120, [], enabled.missing)

    # reviewed cases decide as well as rated questions
    cases = [
        {"type": "case", "id": f"c{n}", "input": f"{n} + 2?", "reference": str(n + 2)}
        for n in range(30)
    ]
    path = animals.folder / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    ingest(animals.ws, NAME, "jsonl", path, reviewer="ann")
    assert status(animals.ws, AGENT, clock).missing is None
    assert check(animals.ws, AGENT, clock).fired


def test_a_turn_by_hand_says_before_it_trains_that_nobody_could_decide_on_it(animals):
    animals.add(*good_and_bad(120))

    def plan_lines() -> list[str]:
        plan = data_plan(animals.ws, NAME, RULES)
        return plan_in_words(animals.ws, AGENT, plan, RULES)

    assert plan_lines()[-1].startswith("Before you train: the gate decides on 30 different")
    assert f"case from-traces --count 30 --agent {NAME} --dry-run" in plan_lines()[-1]
    # some reviewed cases, which are too few
    store_drafts(animals.ws, AGENT, draw_drafts(animals.ws, AGENT, 20), "ann")
    assert "30 different reviewed cases at least, and there are 20" in plan_lines()[-1]
    assert (
        "needs 10 more reviewed cases (thumbwheel case from-traces --count 10" in plan_lines()[-1]
    )
    store_drafts(animals.ws, AGENT, draw_drafts(animals.ws, AGENT, 10), "ann")
    assert not [line for line in plan_lines() if line.startswith("Before you train")]


def test_what_waits_is_looked_at_when_the_loop_is_enabled(animals, monkeypatch):
    """Where somebody is there to do it; the schedule comes later."""
    enable(animals.ws, AGENT, {}, Clock(NOON))
    assert jobs(animals.ws)[0] == [], "no worker is alive"
    monkeypatch.setattr("thumbwheel.loop.loops.live_workers", lambda ws: ["worker"])
    enable(animals.ws, AGENT, {}, Clock(NOON))
    (job,), _ = jobs(animals.ws)
    assert (job.kind, job.spec) == ("loop check", {"agent": NAME})


def test_the_owner_may_let_it_train_all_the_same(animals):
    clock = Clock(NOON)
    animals.add(*good_and_bad(120))
    enable(animals.ws, AGENT, {"least": 50, "only_decidable": False}, clock)
    assert check(animals.ws, AGENT, clock).fired


def test_only_a_turn_that_went_through_releases_what_it_heard(animals, clock):
    enable(animals.ws, AGENT, {"least": 40}, clock)
    heard = animals.add(*good_and_bad(40))
    recorded_turn(animals, TurnState.FAILED, clock.now, heard, 40, "the disk is full")
    failed = check(animals.ws, AGENT, clock)
    assert (failed.rule, failed.fired) == (Rule.BACK_OFF, False)
    assert "the disk is full" in failed.reason
    assert failed.next_at == clock.now + timedelta(hours=1)
    clock.now += timedelta(hours=1)
    assert check(animals.ws, AGENT, clock).fired, "after the pause the same events count again"
    recorded_turn(animals, TurnState.FINISHED, clock.now, heard, 40)
    assert check(animals.ws, AGENT, clock).value["informative"] == 0


def test_pauses_after_failures_grow(animals, clock):
    enable(animals.ws, AGENT, {"least": 40}, clock)
    for _ in range(3):
        recorded_turn(animals, TurnState.FAILED, clock.now, reason="no base")
        clock.now += timedelta(seconds=1)
    assert check(animals.ws, AGENT, clock).value == {"failures": 3}
    assert status(animals.ws, AGENT, clock).verdict.next_at > clock.now + timedelta(hours=3)


def test_do_not_train_is_a_result_that_is_not_repeated_before_something_new_comes(animals, clock):
    enable(animals.ws, AGENT, {"least": 4}, clock)
    animals.add(*good_and_bad(4))
    line, cycle = look(animals, clock)
    assert line.fired
    assert "Do not train yet" in cycle.reasons[0]
    (turn,) = turns(animals.ws, AGENT)
    assert (turn.state, turn.trigger) == (TurnState.NOTHING, Rule.NUMBER)
    assert "Do not train yet" in turn.reason
    clock.now += timedelta(minutes=15)
    waiting, cycle = look(animals, clock)
    assert (waiting.rule, waiting.fired, cycle) == (Rule.NOT_YET, False, None)
    animals.add(*good_and_bad(2, start=10))
    clock.now += timedelta(minutes=15)
    assert check(animals.ws, AGENT, clock).fired, "nothing was released, so six are new"


def test_the_interval_needs_one_informative_event(animals, clock):
    enable(animals.ws, AGENT, {"least": 1000, "every_hours": 24}, clock)
    recorded_turn(animals, TurnState.FINISHED, clock.now, datetime.now(UTC))
    clock.now += timedelta(hours=25)
    assert not check(animals.ws, AGENT, clock).fired
    animals.add(*good_and_bad(1))
    line = check(animals.ws, AGENT, clock)
    assert (line.rule, line.fired) == (Rule.INTERVAL, True)
    assert "25.0 hours ago" in line.reason


def test_quiet_hours_and_the_window_are_those_of_the_zone(animals):
    animals.add(*good_and_bad(60))
    settings = {"quiet": ["09:00-17:00"], "timezone": "Europe/Berlin"}
    enable(animals.ws, AGENT, settings, Clock(NOON))
    quiet = check(animals.ws, AGENT, Clock(NOON))
    assert quiet.rule is Rule.QUIET
    assert quiet.next_at == datetime(2026, 3, 2, 16, 0, tzinfo=UTC), "17:00 in Berlin"
    night = {"quiet": [], "window": "22:00-06:00"}
    enable(animals.ws, AGENT, night, Clock(NOON))
    outside = check(animals.ws, AGENT, Clock(NOON))
    assert (outside.rule, outside.next_at.hour) == (Rule.WINDOW, 21)
    late = Clock(datetime(2026, 3, 2, 22, 30, tzinfo=UTC))
    assert check(animals.ws, AGENT, late).rule is Rule.NUMBER


def test_a_turn_that_runs_is_the_only_one(animals, clock):
    enable(animals.ws, AGENT, {"least": 1}, clock)
    animals.add(*good_and_bad(10))
    folder = animals.ws.home.cycles / NAME
    folder.mkdir(parents=True, exist_ok=True)
    handle = lock(folder / "lock", "the cycle", "held by the test")
    try:
        assert check(animals.ws, AGENT, clock).rule is Rule.RUNNING
        with pytest.raises(Conflict, match="another process"):
            run_turn(animals.ws, AGENT, CycleConfig(), clock=clock)
        assert turns(animals.ws, AGENT) == []
    finally:
        os.close(handle)
    assert check(animals.ws, AGENT, clock).fired


def test_a_turn_whose_process_died_is_noted_and_a_new_one_begins(animals, clock):
    recorded_turn(animals, TurnState.RUNNING, clock.now - timedelta(hours=1))
    run_turn(animals.ws, AGENT, CycleConfig(), clock=clock)
    newest, killed = turns(animals.ws, AGENT)
    assert (killed.state, killed.reason) == (TurnState.STOPPED, "its process ended without a word")
    assert newest.state is TurnState.NOTHING


def test_a_turn_that_cannot_be_made_is_a_failure_with_its_reason(animals, clock):
    animals.add(*good_and_bad(110))
    with pytest.raises(InputError):
        run_turn(animals.ws, AGENT, CycleConfig(), clock=clock)
    (turn,) = turns(animals.ws, AGENT)
    assert turn.state is TurnState.FAILED
    assert "no training has run for it yet, so its base is unknown" in turn.reason


def test_a_clock_that_was_set_back_delays_nothing_for_ever(animals, clock):
    enable(animals.ws, AGENT, {"least": 4, "every_hours": 24}, clock)
    recorded_turn(animals, TurnState.FINISHED, clock.now + timedelta(days=30))
    recorded_turn(animals, TurnState.FAILED, clock.now + timedelta(days=30), reason="x")
    assert check(animals.ws, AGENT, clock).next_at <= clock.now + timedelta(hours=1)
    clock.now = datetime.now(UTC)
    animals.add(*good_and_bad(8))
    clock.now += timedelta(days=1)
    assert status(animals.ws, AGENT, clock).new.informative <= 8


@pytest.mark.parametrize(
    "settings",
    [
        {"window": "22-06"},
        {"quiet": ["09:00-09:00"]},
        {"timezone": "Mars/Olympus"},
        {"least": 0},
        {"export": ["no-such-format"]},
    ],
)
def test_a_loop_that_could_not_turn_is_not_enabled(animals, clock, settings):
    with pytest.raises((ConfigError, InputError, Exception), match=r"."):
        enable(animals.ws, AGENT, settings, clock)
    assert not status(animals.ws, AGENT, clock).enabled


def test_how_a_turn_ended():
    error = Candidate("sft", None, None, "the base has no chat template")
    no_gain = Candidate("sft", None, "run_1", "no better on the dev rows")
    assert outcome(CycleReport(NAME))[0] is TurnState.NOTHING
    assert outcome(CycleReport(NAME, candidates=[error]))[0] is TurnState.FAILED
    assert outcome(CycleReport(NAME, candidates=[error, no_gain]))[0] is TurnState.FINISHED
    judged = CycleReport(NAME, candidates=[no_gain], version="v1")
    assert outcome(judged)[0] is TurnState.FINISHED


def test_checks_are_kept_up_to_a_number(animals, clock, monkeypatch):
    monkeypatch.setattr(turn_store, "MOST_CHECKS", 5)
    for _ in range(12):
        check(animals.ws, AGENT, clock)
        clock.now += timedelta(minutes=15)
    with animals.ws.db.read() as connection:
        count = connection.execute(sa.select(sa.func.count()).select_from(loop_checks)).scalar_one()
    assert count == 5


def test_hours_of_a_day():
    assert str(Hours.of("09:00-17:30")) == "09:00-17:30"
    assert TriggerConfig(window="22:00-06:00").window == "22:00-06:00"


def test_the_commands(tmp_path, command_line):
    opened = LoopWorld(tmp_path)
    opened.add(*good_and_bad(4))
    opened.ws.db.close()

    def run(*arguments):
        code, out, err = command_line("loop", *arguments, "--agent", NAME)
        assert code == 0, err
        return out

    enabled = json.loads(run("enable", "--least", "3", "--quiet", "01:00-01:01", "--json"))
    assert (enabled["enabled"], enabled["new"]["informative"]) == (True, 2)
    checked = json.loads(run("check", "--json"))
    assert checked["check"]["rule"] == "number"
    page = run("status", "--why")
    assert "2 of 3 new informative events" in page
    assert "next check" in page
    # the workers of a server look by the clock, as long as the loop is enabled
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "test.yaml", {})) as ws:
        (schedule,) = schedules(ws)
        assert (schedule.kind, schedule.cron) == ("loop check", "*/15 * * * *")
    assert json.loads(run("disable", "--json"))["enabled"] is False
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "test.yaml", {})) as ws:
        assert schedules(ws) == []


def test_a_worker_that_finds_a_turn_due_asks_for_it_as_a_job(animals):
    animals.add(*good_and_bad(8))
    enable(animals.ws, AGENT, {"least": 8})
    job = enqueue(animals.ws, "loop check", {"agent": NAME}, agent=NAME)
    with doing(job):
        result = run_check(animals.ws, LoopCheckSpec(agent=NAME))
    asked = [other for other in jobs(animals.ws)[0] if other.id == result.job]
    assert [(other.kind, other.spec["trigger"]) for other in asked] == [("loop run", "number")]
    assert turns(animals.ws, AGENT) == []

    # the same in a command: it makes the turn itself
    done = run_check(animals.ws, LoopCheckSpec(agent=NAME))
    assert (done.job, done.check.rule) == (None, "number")
    assert "Do not train yet" in done.turn.reasons[0]
    (turn,) = turns(animals.ws, AGENT)
    assert (turn.trigger, turn.state, turn.informative) == ("number", TurnState.NOTHING, 8)
