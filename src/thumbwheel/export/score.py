"""Scores an exported model and the trained one on held-out cases of the agent: greedy answers,
judged by the checkers of the cases.

It is a sample for comparing precisions. Whether one version is better than another is decided by
the evaluation stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.evaluation.measure import judge, paired
from thumbwheel.evaluation.rows import gate_rows
from thumbwheel.evaluation.types import Answers, HeldOutCase, ModelAnswer
from thumbwheel.export.format import Opened
from thumbwheel.export.types import TaskScore
from thumbwheel.models.types import ModelVersion
from thumbwheel.rewards.checker import OwnerSettings
from thumbwheel.stats.paired import compare

MOST = 128
"""Tokens of an answer."""
BATCH = 8


def cases_of(ws: Workspace, version: ModelVersion, most: int) -> list[HeldOutCase]:
    """Return the first `most` held-out cases of the version; an empty list if the agent has
    none."""
    return gate_rows(ws, version, needed=False).cases[:most] if most else []


def trained_answers(
    model: Any, builder: PromptBuilder, cases: Sequence[HeldOutCase]
) -> list[Answers]:
    """Return the trained model's greedy answers."""
    from thumbwheel.engine.rollout import Sampling
    from thumbwheel.engine.sampler import GroupSampler

    answers: list[Answers] = []
    sampler = GroupSampler(model, builder.tokenizer, rows=BATCH)
    sampling = Sampling(max_new_tokens=MOST, temperature=0.0, stop_ids=builder.stop_ids)
    with log.progress("cases, by the trained model", len(cases), "cases") as advance:
        for start in range(0, len(cases), BATCH):
            batch = cases[start : start + BATCH]
            prompts = [builder.prompt(case.prompt) for case in batch]
            for sample, *_ in sampler.sample(prompts, 1, sampling):
                answers.append((ModelAnswer(sample.text, sample.finish, len(sample.ids)),))
            advance(len(batch))
    return answers


def task(
    opened: Opened,
    builder: PromptBuilder,
    cases: Sequence[HeldOutCase],
    trained: Sequence[Answers],
    context: int,
    owner: OwnerSettings,
) -> TaskScore | None:
    """Return the scores of the exported and of the trained model, prompt and answer in `context`
    tokens together; None if no case could be judged."""
    exported = []
    with log.progress("cases, by the export", len(cases), "cases") as advance:
        for case in cases:
            exported.append(_answer(opened, builder, case, context))
            advance()
    values = list(paired(judge(cases, trained, owner), judge(cases, exported, owner)))
    if not values:
        return None
    groups = [cases[value.index].group for value in values]
    trained_scores = [value.before for value in values]
    exported_scores = [value.after for value in values]
    comparison = compare(trained_scores, exported_scores, groups)
    return TaskScore(
        cases=len(values),
        score=comparison.after,
        trained=comparison.before,
        low=comparison.interval.low,
        high=comparison.interval.high,
    )


def _answer(opened: Opened, builder: PromptBuilder, case: HeldOutCase, context: int) -> Answers:
    prompt = builder.prompt(case.prompt)
    ids = opened.greedy(prompt, min(MOST, context - len(prompt)))
    has_ended = bool(ids) and ids[-1] in opened.ends()
    words = ids[:-1] if has_ended else ids  # a token that ends a turn may have no special flag
    text = builder.tokenizer.decode(words, skip_special_tokens=True)
    return (ModelAnswer(text, "stop" if has_ended else "length", len(ids)),)
