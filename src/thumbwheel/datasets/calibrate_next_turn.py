"""Fitting what a user's next message is worth: how often people called the answer before it good,
by what the message says.

It is fitted on the training rows alone, and its figures come from the dev rows. The gate's rows
play no part in either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import DataError
from thumbwheel.datasets.split_assignment import assign_splits
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import documents
from thumbwheel.models.types import Agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import stored_cases
from thumbwheel.rewards.functions.next_turn import NextTurnReward
from thumbwheel.rewards.next_turn import KIND, Calibration, ReplyReading
from thumbwheel.rewards.person_labels import groups_of, person_labels

NAME = "next_turn"
FEWEST = 20
"""Judged training rows with a reading below which a calibration is refused."""


@dataclass(frozen=True)
class JudgedTurn:
    """An answer that people judged and after which the user wrote something that says something."""

    trace_id: str
    split: str
    group: str
    """Answers of one prompt or session are one group."""
    reading: ReplyReading
    good: bool


def calibrate_next_turn(
    ws: Workspace, agent: Agent, rules: DatasetConfig
) -> tuple[str, dict[str, Any]]:
    """Calibrate the agent's `next_turn`, store the calibration as a document and return its (hash,
    document). Raises DataError if people judged too few answers of the training rows."""
    function = _function(ws, agent)
    with ws.db.read() as connection:
        turns = judged_turns(connection, agent, function, rules)
    counts: dict[ReplyReading, Counter[bool]] = {}
    for turn in turns:
        if turn.split == "train":
            counts.setdefault(turn.reading, Counter())[turn.good] += 1
    fitted = sum(count.total() for count in counts.values())
    if fitted < FEWEST:
        raise DataError(
            f"calibration of next_turn for {agent.slug!r}",
            f"people judged {fitted} answers of training rows whose next message the "
            f"rules can read; {FEWEST} are needed",
            "Collect more thumbs; until then default chances are used, and marked so",
        )
    calibration = Calibration(
        {reading: (count[True], count[False]) for reading, count in counts.items()},
        function.classifier,
    )
    document = {
        "agent": agent.slug,
        "kind": KIND,
        **calibration.to_json(),
        "fitted_on": {"split": "train", "rows": fitted, "salt": rules.salt},
        "report": report(calibration, [turn for turn in turns if turn.split == "dev"]),
    }
    return documents.save(ws, KIND, document), document


def _function(ws: Workspace, agent: Agent) -> NextTurnReward:
    """Return the agent's own `next_turn` without its calibration; its settings decide who reads the
    messages."""
    config = ledger.settings(ws, agent.slug)
    for name, part in config.parts().items():
        if (part.function or name) == NAME:
            settings = {key: value for key, value in part.settings.items() if key != "calibration"}
            return NextTurnReward.create(settings, f"rewards.components.{name}.settings")
    return NextTurnReward.create()


def judged_turns(
    connection: sa.Connection, agent: Agent, function: NextTurnReward, rules: DatasetConfig
) -> list[JudgedTurn]:
    """Return the answers with a thumb or another verdict of a person and one reading, with their
    split."""
    labels = person_labels(connection, agent)
    prompts = groups_of(connection, agent, labels)
    scope = rules.resolved(datetime.now(UTC)).scope()
    assignment = assign_splits(connection, agent.id, rules, scope)
    turns = []
    for batch in stored_cases(connection, agent, function.reads):
        judged = [stored.case for stored in batch if stored.case.target_id in labels]
        for case, score in zip(judged, function.score(judged), strict=True):
            readings = set(score.evidence.get("readings", ()))
            trace_id = str(case.target_id)
            prompt_id, group = prompts[trace_id]
            split = assignment.split_of(prompt_id)
            if len(readings) == 1 and split is not None:
                reading = ReplyReading(readings.pop())
                turns.append(JudgedTurn(trace_id, split, group, reading, labels[trace_id]))
    return turns


def report(calibration: Calibration, turns: Sequence[JudgedTurn]) -> dict[str, Any]:
    """Measure how well the calibrated chances predict the verdicts on rows that they were not
    fitted on: accuracy and Brier score with intervals, beside the scores of always predicting the
    more frequent verdict of the training rows. Figures are None without rows."""
    from thumbwheel.stats.paired import compare

    good = sum(pair[0] for pair in calibration.counts.values())
    total = sum(sum(pair) for pair in calibration.counts.values())
    share = good / total
    figures: dict[str, Any] = {
        "rows": len(turns),
        "groups": len({turn.group for turn in turns}),
        "majority": None,
        "accuracy": None,
        "brier": None,
        "brier_of_the_share": None,
        "gain": None,
    }
    if not turns:
        return figures
    right, usual, squares, squares_of_share = [], [], [], []
    for turn in turns:
        chance = calibration.chance(turn.reading)
        right.append(float((chance >= 0.5) == turn.good))
        usual.append(float((share >= 0.5) == turn.good))
        squares.append((chance - turn.good) ** 2)
        squares_of_share.append((share - turn.good) ** 2)
    n = len(turns)
    figures["accuracy"], figures["majority"] = sum(right) / n, sum(usual) / n
    figures["brier"], figures["brier_of_the_share"] = sum(squares) / n, sum(squares_of_share) / n
    if figures["groups"] > 1:
        gain = compare(usual, right, [turn.group for turn in turns])
        figures["gain"] = {"value": gain.gain, "low": gain.low, "high": gain.high}
    return figures
