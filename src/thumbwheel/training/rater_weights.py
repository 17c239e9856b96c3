"""Lets liked answers weigh as much as their thumb is likely to be right (rater_noise.py), before a
run begins.

Corrections keep their weight: who writes an answer down has thought about it. Dev rows are left as
they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from thumbwheel.core import log
from thumbwheel.training.algorithm import Row, SplitRows
from thumbwheel.training.rater_noise import RatedAnswer, RaterNoise, estimate
from thumbwheel.training.step import RecordedRunner
from thumbwheel.training.types import JUDGED

if TYPE_CHECKING:
    from thumbwheel.training.assemble import Assembly


def weigh(
    assembly: Assembly, rows: Mapping[str, SplitRows], raters: Mapping[str, Sequence[str]]
) -> RaterNoise | None:
    """Multiply the weights of the training items that come from liked answers by the probability
    that the judgement is right; `rows` are all rows of the run, by split.

    The judgements are the rows of the split `judged` whose ids have `raters`. Returns the rater
    noise model, or None if nothing was weighed.
    """
    judged = [row for row in rows.get(JUDGED, ()) if row["row_id"] in raters]
    steps = assembly.runner
    if not judged or not isinstance(steps, RecordedRunner):
        return None
    prepared = assembly.method.prepare(judged, assembly.builder)
    answered = [judged[number] for number in prepared.rows]
    judgements = [
        RatedAnswer(logp, row["label"], tuple(raters[row["row_id"]]))
        for logp, row in zip(steps.base_logps(prepared.items), answered, strict=True)
    ]
    noise = estimate(judgements)
    if noise is None:
        return None
    trust = {
        _key(row): noise.trust(judgement)
        for row, judgement in zip(answered, judgements, strict=True)
        if judgement.good
    }
    position_of = {number: position for position, number in enumerate(assembly.train.rows)}
    for number, row in enumerate(rows["train"]):
        position = position_of.get(number)
        weight = trust.get(_key(row))
        if position is None or weight is None or row["origin"] == "correction":
            continue
        item = assembly.train.items[position]
        assembly.train.items[position] = replace(item, weight=item.weight * weight)
    log.say(
        "liked answers weigh as much as their thumb is likely to be right, estimated from "
        f"{len(judgements)} judgements"
    )
    return noise


def _key(row: Row) -> tuple[str, str]:
    """Return the key by which a judged answer is matched with a training row's: prompt with tools,
    and completion."""
    return json.dumps([row["prompt"], row.get("tools")], sort_keys=True), row["completion"]
