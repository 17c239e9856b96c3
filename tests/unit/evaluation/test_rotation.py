"""Held-out rows rotate: which ones the next look reads, and what the reviewed cases can still
show."""

from __future__ import annotations

import pytest

from tests.models.tiny_models import record
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core import ids
from thumbwheel.db.schema import evaluations, model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.rotation import READ_BEFORE, gold_power, least_read
from thumbwheel.evaluation.rows import HeldOut
from thumbwheel.evaluation.spending import keys_in_order
from thumbwheel.evaluation.types import HeldOutCase
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, ModelVersion, VersionState


@pytest.fixture
def eighty_gold_cases(tmp_path):
    world = FeedbackWorld()
    for number in range(80):
        world.case(f"c{number}", f"question {number}", "gold")
    opened = world.into(tmp_path / "home")
    yield opened
    opened.db.close()


def asked(first: int, count: int) -> list[HeldOutCase]:
    prompts = [[{"role": "user", "content": f"question {first + n}"}] for n in range(count)]
    return [
        HeldOutCase(f"c{number}", f"g{number}", f"p{number}", prompt, "x", None, None, {})
        for number, prompt in enumerate(prompts, first)
    ]


def candidate(ws: Workspace, number: int) -> ModelVersion:
    values = {"state": VersionState.CANDIDATE, "base": "b", "number": number, "adapter": {"a": "b"}}
    row = record(ws, model_versions, AGENT, tainted=False, **values)
    return versions.by_id(ws, row)


def looked(ws: Workspace, version: ModelVersion, cases: list[HeldOutCase], seen: float) -> None:
    """A look at these cases about a version."""
    figures = dict.fromkeys(("before", "after", "low", "high", "n", "clusters", "changed"), seen)
    read = sorted(set(keys_in_order(ws, [case.prompt for case in cases])))
    results = {"read": read, "sides": ["x", ids.new("x")], "primary": {"name": "s", **figures}}
    record(
        ws,
        evaluations,
        AGENT,
        candidate_id=version.id,
        against_id=version.id,
        basis="gold",
        config={},
        results=results,
    )


def read_by(ws: Workspace, version: ModelVersion, cases: list[HeldOutCase]) -> list[str]:
    rows = least_read(ws, version, HeldOut(Basis.GOLD, cases, []), GatePolicy())
    assert rows.dropped[READ_BEFORE] == len(cases) - len(rows.cases)
    return [case.id for case in rows.cases]


def test_enough_fresh_rows_take_the_place_of_those_that_were_read_often(eighty_gold_cases):
    old, fresh = asked(0, 100), asked(100, 70)
    judged, new = candidate(eighty_gold_cases, 1), candidate(eighty_gold_cases, 2)
    assert len(read_by(eighty_gold_cases, new, old + fresh)) == 170
    looked(eighty_gold_cases, judged, old, 1.0)
    # once read, the old rows still tell more than they cost
    assert len(read_by(eighty_gold_cases, new, old + fresh)) == 170
    for number in range(30):
        looked(eighty_gold_cases, judged, old, 2.0 + number)
    assert read_by(eighty_gold_cases, new, old + fresh) == [case.id for case in fresh]
    # few fresh rows are not enough to measure the guards on
    assert len(read_by(eighty_gold_cases, new, old + fresh[:40])) == 140


def test_a_candidate_that_is_asked_again_reads_the_same_rows(eighty_gold_cases):
    old, fresh = asked(0, 100), asked(100, 70)
    other, judged = candidate(eighty_gold_cases, 1), candidate(eighty_gold_cases, 2)
    for number in range(30):
        looked(eighty_gold_cases, other, old, float(number))
    first = read_by(eighty_gold_cases, judged, old + fresh)
    looked(eighty_gold_cases, judged, fresh, 1.0)
    assert read_by(eighty_gold_cases, judged, old + fresh) == first


def test_gold_says_what_it_can_show_and_what_is_missing(eighty_gold_cases):
    agent = Agent.named(AGENT)
    first = gold_power(eighty_gold_cases, agent, 0.2, 0.3)
    assert (first.cases, first.look, first.missing) == (80, 1, 0)
    assert first.detectable is not None and 0.1 < first.detectable < 0.2
    for number in range(20):
        looked(
            eighty_gold_cases, candidate(eighty_gold_cases, number + 1), asked(0, 80), float(number)
        )
    later = gold_power(eighty_gold_cases, agent, 0.2, 0.3)
    assert later.look == 21
    assert later.detectable is None or later.detectable > 0.2
    # fresh cases alone begin at the first look: fewer are asked for than beside the old ones
    assert 0 < later.missing <= 80
