"""What a turn ends with: its figures, answers that changed, and the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from thumbwheel.core import present
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.types import ChangedAnswer, Measure, Spread
from thumbwheel.loop.cycle_commands import cycle_page
from thumbwheel.loop.cycle_types import Candidate, CycleReport, TurnEvaluation, TurnResult
from thumbwheel.models.types import CANARY, LIVE

MEASURE = Measure(
    name="success",
    before=0.1,
    after=0.7,
    gain=0.6,
    low=0.4,
    high=0.8,
    level=0.95,
    n=40,
    clusters=40,
    changed=26,
    spread=Spread(centre=0.6, error=0.1, degrees=39.0, limit=1.0),
    p=0.0,
)


def turn(**fields: Any) -> TurnResult:
    """Return the result of a turn that trained v1, with these fields."""
    report = CycleReport("desk", candidates=[Candidate("sft", "v1", "run_1")], version="v1")
    return replace(report.result(), **fields)


def notes(result: TurnResult) -> list[str]:
    return [part.text for part in cycle_page(result) if isinstance(part, present.Note)]


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        (
            {"verdict": GateVerdict.APPROVED, "alias": LIVE},
            "Ask it, from any client of OpenAI, as the model desk: thumbwheel serve",
        ),
        (
            {"verdict": GateVerdict.CANARY, "alias": CANARY},
            "Ask it, from any client of OpenAI, as the model desk:canary: thumbwheel serve",
        ),
        ({"verdict": GateVerdict.APPROVED}, "Let it answer: thumbwheel deploy v1 --agent desk"),
        (
            {"verdict": GateVerdict.CANARY},
            "Let it answer: thumbwheel deploy v1 --agent desk --alias canary",
        ),
        (
            {"verdict": GateVerdict.APPROVED, "waiting": ["deploy v1?"]},
            "It waits for you: thumbwheel loop decisions --agent desk",
        ),
    ],
)
def test_a_turn_says_what_comes_next(fields: dict[str, Any], step: str) -> None:
    assert notes(turn(**fields)) == [step]


def test_what_was_not_approved_is_not_to_be_deployed() -> None:
    assert notes(turn(verdict=GateVerdict.REJECTED)) == notes(turn()) == []


def test_a_turn_shows_answers_that_changed() -> None:
    changed = ChangedAnswer(
        case="cas_1",
        prompt="Where is\nmy parcel?",
        reference="shipping",
        before="I'm sorry to hear that. " * 20,
        after="shipping",
        value_before=0.0,
        value_after=1.0,
    )
    _, table = cycle_page(turn(evaluation=TurnEvaluation("evl_1", "v0", MEASURE, [changed])))
    assert isinstance(table, present.Table)
    assert table.columns == ("question", "v0", "v1")
    ((question, before, after),) = table.rows
    assert (question, after) == ("Where is my parcel?", "shipping")
    assert str(before).startswith("I'm sorry") and str(before).endswith("...")
    assert len(str(before)) == 120
