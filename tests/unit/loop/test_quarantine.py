"""Bursts of feedback are held, heard by nothing, shown, and released or discarded by a person."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.unit.loop.test_triggers import AGENT, NAME, Clock, LoopWorld, answer, thumb
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.schema import quarantined_feedback, quarantines
from thumbwheel.erasure.erase import erase
from thumbwheel.loop.loops import enable
from thumbwheel.loop.quarantine import burst_of, decide, hold_bursts
from thumbwheel.loop.quarantine import quarantines as held
from thumbwheel.loop.quarantine_types import QuarantineState, TimedThumb
from thumbwheel.loop.trigger_types import TriggerConfig
from thumbwheel.loop.triggers import check
from thumbwheel.rewards.label import judgements
from thumbwheel.training.data_plan import data_plan

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
CONFIG = TriggerConfig(burst=20, burst_minutes=10)


@pytest.fixture
def animals(tmp_path):
    opened = LoopWorld(tmp_path)
    yield opened
    opened.ws.db.close()


def statements(ups, seconds=1.0):
    return [
        TimedThumb(f"f{n}", "r1", "app", up, START + timedelta(seconds=n * seconds), False)
        for n, up in enumerate(ups)
    ]


def test_a_burst_is_fast_and_one_sided():
    ten_minutes = timedelta(minutes=10)
    assert len(burst_of(statements([False] * 30), 20, ten_minutes)) == 30
    assert burst_of(statements([False] * 19), 20, ten_minutes) == []
    # a hundred ratings a minute at the keyboard are both kinds
    assert burst_of(statements([True, False] * 50, 0.6), 20, ten_minutes) == []
    # the same thumbs over a day are no burst
    assert burst_of(statements([False] * 30, 60 * 30), 20, ten_minutes) == []
    # only the burst itself is held, not what the rater said hours before it
    early = statements([True, False, True], 60)
    late = [
        TimedThumb(f"l{n}", "r1", "app", False, START + timedelta(hours=5, seconds=n), False)
        for n in range(25)
    ]
    assert {statement.id[0] for statement in burst_of([*early, *late], 20, ten_minutes)} == {"l"}


def burst_lines(count, rater="mallory", up=False, begin=START, first=0):
    lines = []
    for number in range(first, first + count):
        moment = (begin + timedelta(seconds=number)).isoformat()
        lines += [
            answer(f"m{number}"),
            thumb(f"m{number}", up, rater, occurred_at=moment),
        ]
    return lines


def judged(world):
    with world.ws.db.read() as connection:
        return sum(judgement.good is not None for judgement in judgements(connection, AGENT))


def test_held_feedback_is_heard_by_nothing_until_it_is_released(animals):
    animals.add(*burst_lines(30), answer("x"), thumb("x", True, "ann"))
    now = datetime.now(UTC)
    before = now - timedelta(milliseconds=1)
    assert judged(animals) == 31
    (name,) = hold_bursts(animals.ws, AGENT, CONFIG, now)
    assert judged(animals) == 1
    assert data_plan(animals.ws, NAME, DatasetConfig()).labels == {"desirable": 1, "undesirable": 0}
    (quarantine,) = held(animals.ws, AGENT)
    assert (quarantine.speaker, quarantine.count) == ("mallory", 30)
    assert (quarantine.evidence["good"], quarantine.evidence["bad"]) == (0, 30)
    # the past is as it was then
    with animals.ws.db.read() as connection:
        assert len(list(judgements(connection, AGENT, before))) == 31

    # a second look holds nothing twice; what goes on is held as well
    assert hold_bursts(animals.ws, AGENT, CONFIG, now) == []
    animals.add(*burst_lines(5, first=30))
    assert hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC)) == [name]
    assert held(animals.ws, AGENT)[0].count == 35

    # released, it counts and is not held again
    decide(animals.ws, AGENT, name, QuarantineState.RELEASED, "anna", datetime.now(UTC))
    assert judged(animals) == 36
    assert hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC)) == []
    assert held(animals.ws, AGENT) == []
    with pytest.raises(Conflict, match="released by anna"):
        decide(animals.ws, AGENT, name, QuarantineState.DISCARDED, "ben", now)
    with pytest.raises(NotFound):
        decide(animals.ws, AGENT, "qrt_none", QuarantineState.RELEASED, "ben", now)


def test_discarded_feedback_stays_out(animals):
    animals.add(*burst_lines(30))
    (name,) = hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC))
    decide(animals.ws, AGENT, name, QuarantineState.DISCARDED, "anna", datetime.now(UTC))
    assert judged(animals) == 0
    assert [row.state for row in held(animals.ws, AGENT, every=True)] == ["discarded"]


def test_a_burst_brings_no_turn_about(animals):
    clock = Clock(datetime.now(UTC) + timedelta(minutes=1))
    settings = {"least": 20, "burst": 20}
    enable(animals.ws, AGENT, settings, clock)
    animals.add(*burst_lines(30, up=True))
    line = check(animals.ws, AGENT, clock)
    assert (line.fired, line.value["informative"]) == (False, 0)
    # of as many thumbs that several people give in as short a time nothing is held
    for number in range(6):
        animals.add(*burst_lines(5, f"rater{number}", True, first=100 + number * 5))
    assert check(animals.ws, AGENT, clock).fired


def test_a_file_of_ratings_without_times_is_no_burst(animals):
    animals.add(*(line for n in range(40) for line in (answer(f"t{n}"), thumb(f"t{n}"))))
    assert hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC)) == []
    no_rule = TriggerConfig(burst=None)
    animals.add(*burst_lines(80))
    assert hold_bursts(animals.ws, AGENT, no_rule, datetime.now(UTC)) == []


def test_an_erasure_takes_held_feedback_and_the_name_of_its_rater(animals):
    lines = burst_lines(30)
    for line in lines:
        if line["type"] == "trace":
            line["subject"] = "mallory"
    animals.add(*lines)
    hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC))
    erase(animals.ws, AGENT, "mallory")
    with animals.ws.db.read() as connection:
        count = sa.select(sa.func.count())
        rows = connection.execute(count.select_from(quarantined_feedback)).scalar_one()
        named = connection.execute(
            count.select_from(quarantines).where(quarantines.c.rater_id.is_not(None))
        ).scalar_one()
    assert (rows, named) == (0, 0)


def test_the_commands(animals, command_line):
    animals.add(*burst_lines(30))
    hold_bursts(animals.ws, AGENT, CONFIG, datetime.now(UTC))
    animals.ws.db.close()
    home = ("--home", str(animals.ws.home.path), "loop")
    agent = ("--agent", NAME, "--json")
    code, out, err = command_line(*home, "quarantines", *agent)
    assert code == 0, err
    (quarantine,) = json.loads(out)
    assert quarantine["count"] == 30
    code, out, err = command_line(*home, "release", quarantine["id"], *agent, "--by", "anna")
    assert code == 0, err
    assert json.loads(out)["state"] == "released"
    assert json.loads(command_line(*home, "quarantines", *agent)[1]) == []
