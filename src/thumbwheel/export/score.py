"""How well an exported model does the agent's own tasks, beside the trained model: greedy answers
to held-out cases, judged by their checkers. A sample, for comparing precisions; whether a version
is better than another is the business of the evaluation stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.evaluation.measure import judge, paired
from thumbwheel.evaluation.rows import gate_rows
from thumbwheel.evaluation.types import Answer, Answers, Case
from thumbwheel.export.format import Opened
from thumbwheel.export.types import TaskScore
from thumbwheel.models.types import ModelVersion
from thumbwheel.rewards.checker import OwnerSettings
from thumbwheel.stats.paired import compare

MOST = 128
"""Tokens of an answer."""
BATCH = 8


def cases_of(ws: Workspace, version: ModelVersion, most: int) -> list[Case]:
    """The first `most` held-out cases of the version; none where the agent has none."""
    return gate_rows(ws, version, needed=False).cases[:most] if most else []


def trained_answers(model: Any, builder: PromptBuilder, cases: Sequence[Case]) -> list[Answers]:
    """Of the trained model."""
    from thumbwheel.engine.rollout import Sampling
    from thumbwheel.engine.sampler import GroupSampler

    found: list[Answers] = []
    sampler = GroupSampler(model, builder.tokenizer, rows=BATCH)
    sampling = Sampling(max_new_tokens=MOST, temperature=0.0, stop_ids=builder.stop_ids)
    with log.progress("cases, by the trained model", len(cases), "cases") as advance:
        for start in range(0, len(cases), BATCH):
            some = cases[start : start + BATCH]
            groups = sampler.sample([builder.prompt(case.prompt) for case in some], 1, sampling)
            found += [(Answer(one.text, one.finish, len(one.ids)),) for one, *_ in groups]
            advance(len(some))
    return found


def task(
    opened: Opened,
    builder: PromptBuilder,
    cases: Sequence[Case],
    trained: Sequence[Answers],
    room: int,
    owner: OwnerSettings,
) -> TaskScore | None:
    """The score of the exported model beside that of the trained one, prompt and answer in `room`
    tokens; None where no case could be judged."""
    found = []
    with log.progress("cases, by the export", len(cases), "cases") as advance:
        for case in cases:
            found.append(_answer(opened, builder, case, room))
            advance()
    values = list(paired(judge(cases, trained, owner), judge(cases, found, owner)))
    if not values:
        return None
    groups = [cases[value.index].group for value in values]
    before = [value.before for value in values]
    gain = compare(before, [value.after for value in values], groups)
    return TaskScore(len(values), gain.after, gain.before, gain.interval.low, gain.interval.high)


def _answer(opened: Opened, builder: PromptBuilder, case: Case, room: int) -> Answers:
    prompt = builder.prompt(case.prompt)
    ids = opened.greedy(prompt, min(MOST, room - len(prompt)))
    finish = "stop" if ids and ids[-1] in opened.ends() else "length"
    return (Answer(builder.tokenizer.decode(ids, skip_special_tokens=True), finish, len(ids)),)
