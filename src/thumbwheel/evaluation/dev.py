"""`compare_on_dev`: several versions on the dev split, to choose among methods before the gate's
rows are read.

Fair over methods: what counts is what each model does with the feedback that was held out, whatever
it was trained with. A fresh answer succeeds when it equals a known good answer to the same prompt
(as JSON fields where that is a JSON object, otherwise as text) or, where only bad answers are
known, when it equals none of them. Looking at good answers alone would favour the base: most of
them are its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Logged
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.rows import dev_rows
from thumbwheel.evaluation.types import (
    Ask,
    DevComparison,
    DevScore,
    EvaluationConfig,
    Given,
    Known,
    Measure,
)
from thumbwheel.models import versions as known_versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.rewards.checker import checker_of
from thumbwheel.rewards.function import Case
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.stats.rates import ranking_area


def compare_on_dev(
    ws: Workspace, agent: str, versions: Sequence[str], config: EvaluationConfig | None = None
) -> DevComparison:
    """Score the base and `versions` (names) on the dev split and name the best one, with reasons;
    None where none beats the base.

    A version whose fresh answers succeed clearly less often than another's (interval of the paired
    difference) is out. Dev rows are few, so the others are told apart by how well they rank
    recorded good answers above bad ones, a finer measure of the same thing; then by success and by
    the likelihood of good answers. Raises DataError without dev rows, InputError for versions over
    different bases.
    """
    config = config or ws.settings(EvaluationConfig, "evaluation")
    chosen = [known_versions.version(ws, agent, name) for name in dict.fromkeys(versions)]
    if (
        not chosen
        or any(one.adapter is None for one in chosen)
        or len({one.base_fingerprint for one in chosen}) > 1
    ):
        raise InputError(
            f"versions {', '.join(versions) or 'none'}",
            "trained versions over one base are needed",
            "Name such versions",
        )
    rows = dev_rows(ws, agent, chosen)
    base = base_of(ws, chosen[0])
    own = LocalModel(ws, base, chosen, config)
    scores, outcomes = {}, {}
    for one in (base, *chosen):
        outcomes[one.name] = _successes(own, one, rows)
        scores[one.name] = _score(own, one, rows, outcomes[one.name])
    return _choose(scores[base.name], [scores[one.name] for one in chosen], outcomes, config)


Outcome = list[tuple[str, float, bool]]
"""(group, success, ended) of every judged dev prompt."""


def _successes(own: LocalModel, version: ModelVersion, rows: Sequence[Given]) -> Outcome:
    judged = _by_prompt([row for row in rows if row.tools is None])
    asks = [Ask(same[0].prompt, own.config.max_new_tokens) for same in judged]
    replies = ask(
        own.ws,
        known_versions.require_agent(own.ws, version.agent),
        own.side(version),
        asks,
        "dev answers",
    )
    return [
        (same[0].group, agrees(one.text.strip(), same), one.finish == "stop")
        for same, (one,) in zip(judged, replies, strict=True)
    ]


def _by_prompt(rows: Sequence[Given]) -> list[list[Given]]:
    found: dict[str, list[Given]] = {}
    for row in rows:
        found.setdefault(json.dumps([row.prompt, row.tools], sort_keys=True), []).append(row)
    return list(found.values())


def agrees(answer: str, judged: Sequence[Given]) -> float:
    """1 when `answer` is in line with the judged answers to its prompt: like a good one, or, where
    none is known, unlike all bad ones."""
    good = [row.text for row in judged if row.good]
    if good:
        return max(equals(answer, text) for text in good)
    return 1.0 - max(equals(answer, row.text) for row in judged)


def equals(answer: str, good: str) -> float:
    """1 when `answer` says what the known good answer says, else 0."""
    if checker_of(good) == "json_fields":
        return (
            FUNCTIONS.get("json_fields")
            .create({"allow_extra": False})
            .score([Case(answer, good)])[0]
            .value
            or 0.0
        )
    return float(" ".join(answer.split()) == " ".join(good.split()))


def _score(
    own: LocalModel, version: ModelVersion, rows: Sequence[Given], outcome: Outcome
) -> DevScore:
    prompts = _by_prompt(rows)
    asks = [
        Known(
            same[0].prompt,
            tuple(row.text for row in same),
            same[0].tools,
            tuple(row.finish_reason for row in same),
        )
        for same in prompts
    ]
    found = ask(
        own.ws,
        known_versions.require_agent(own.ws, version.agent),
        own.side(version),
        asks,
        "dev log-probabilities",
    )
    logged = [
        Logged(row, total, total, tokens)
        for same, sums in zip(prompts, found, strict=True)
        if sums
        for row, (total, tokens) in zip(same, sums, strict=True)
    ]
    nll = compare.nll_guard(logged, own.config.level)
    distinct = {
        (json.dumps(one.row.prompt, sort_keys=True), one.row.text): one for one in logged
    }.values()
    return DevScore(
        version=version.name,
        success=sum(one for _, one, _ in outcome) / len(outcome) if outcome else None,
        success_n=len(outcome),
        nll=nll.after,
        nll_n=nll.n,
        preference=ranking_area(
            [one.after / one.tokens for one in distinct], [one.row.good for one in distinct]
        ),
        preference_n=len(distinct),
        eos_rate=sum(ended for *_, ended in outcome) / len(outcome) if outcome else None,
    )


def _choose(
    base: DevScore,
    scores: Sequence[DevScore],
    outcomes: dict[str, Outcome],
    config: EvaluationConfig,
) -> DevComparison:
    leader = max(scores, key=lambda score: score.success or 0.0)
    field = [score for score in scores if not _clearly_worse(score, leader, outcomes, config)]
    best = max(field, key=_rank)
    reasons = [
        _reason(best, other, outcomes, config)
        for other in (base, *(score for score in scores if score is not best))
    ]
    better = _rank(best) > _rank(base) and not _clearly_worse(best, base, outcomes, config)
    if not better:
        reasons.insert(
            0, f"no version is better than the base on dev; {best.version} comes closest"
        )
    return DevComparison(
        base=base,
        scores=tuple(scores),
        best=best.version if better else None,
        reasons=tuple(reasons),
    )


def _rank(score: DevScore) -> tuple[float, float, float]:
    return (
        score.preference or 0.0,
        score.success or 0.0,
        -score.nll if score.nll is not None else 0.0,
    )


def _clearly_worse(
    one: DevScore, other: DevScore, outcomes: dict[str, Outcome], config: EvaluationConfig
) -> bool:
    found = _difference(other, one, outcomes, config)
    return found is not None and found.high < 0


def _difference(
    first: DevScore, second: DevScore, outcomes: dict[str, Outcome], config: EvaluationConfig
) -> Measure | None:
    """Success of `second` against `first` on the same prompts; None where no prompt was judged."""
    before, after = outcomes[first.version], outcomes[second.version]
    if not before:
        return None
    groups = [group for group, *_ in before]
    return compare.measure(
        "success", [one for _, one, _ in before], [one for _, one, _ in after], groups, config.level
    )


def _reason(
    best: DevScore, other: DevScore, outcomes: dict[str, Outcome], config: EvaluationConfig
) -> str:
    said = []
    if best.preference is not None and other.preference is not None:
        said.append(
            f"ranks good above bad {best.preference:.1%} of the time against {other.preference:.1%}"
        )
    found = _difference(other, best, outcomes, config)
    if found is not None:
        said.append(
            f"fresh answers agree with the feedback on {found.after:.1%} of {found.n} dev prompts "
            f"against {found.before:.1%} "
            f"({found.gain:+.1%}, {found.low:+.1%} to {found.high:+.1%})"
        )
    if best.nll is not None and other.nll is not None:
        said.append(f"good answers cost {best.nll:.3f} against {other.nll:.3f} nats a token")
    return f"{best.version} against {other.version}: {'; '.join(said)}"
