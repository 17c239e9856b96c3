"""`compare_on_dev`: several versions on the dev split, to choose among methods before the gate's
rows are read.

The comparison is fair to all methods: it only uses what each model does with held-out feedback. A
fresh answer succeeds when it equals a known good answer to the same prompt (as JSON fields where
that is a JSON object, otherwise as text). Where only bad answers are known, it succeeds when it
equals none of them. Good answers alone would favour the base: most of them are its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import AnswerLikelihoods
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.responder import ask
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.rows import dev_rows
from thumbwheel.evaluation.types import (
    Ask,
    AskLikelihood,
    DevComparison,
    DevScore,
    EvaluationConfig,
    Measure,
    RecordedAnswer,
)
from thumbwheel.models.types import ModelVersion
from thumbwheel.rewards.checker import checker_of
from thumbwheel.rewards.function import Case
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.stats.rates import ranking_area

TELLING = 20
"""Judged dev answers below which a version is not held back for being no better than the base: one
or two of them would decide."""


def compare_on_dev(
    ws: Workspace, versions: Sequence[ModelVersion], config: EvaluationConfig | None = None
) -> DevComparison:
    """Score the base and `versions` on the dev split and name the best one, with reasons; None if
    no version beats the base, by `TELLING` judged answers or more.

    A version whose fresh answers succeed clearly less often than another's (interval of the paired
    difference) is out. Dev rows are few, so the others are told apart by how well they rank
    recorded good answers above bad ones, a finer measure of the same thing; then by success and by
    the likelihood of good answers. Raises NoDevRows (a DataError) without dev rows, InputError for
    versions over different bases.
    """
    config = config or ws.settings(EvaluationConfig, "evaluation")
    candidates = list({version.id: version for version in versions}.values())
    bases = {version.base_fingerprint for version in candidates}
    untrained = any(version.adapter is None for version in candidates)
    if not candidates or untrained or len(bases) > 1:
        raise InputError(
            f"versions {', '.join(version.name for version in versions) or 'none'}",
            "trained versions over one base are needed",
            "Name such versions",
        )
    rows = dev_rows(ws, candidates)
    base = base_of(ws, candidates[0])
    local_model = LocalModel(ws, base, candidates, config)
    results = [_dev_result(local_model, version, rows) for version in (base, *candidates)]
    return _choose(results[0], results[1:], config)


@dataclass(frozen=True)
class _DevAnswer:
    """A judged fresh answer to a dev prompt."""

    group: str
    success: float
    ended: bool


@dataclass(frozen=True)
class _DevResult:
    """One version on the dev rows."""

    score: DevScore
    answers: Sequence[_DevAnswer]
    """One a prompt, in the same order for all versions."""


def _dev_result(
    local_model: LocalModel, version: ModelVersion, rows: Sequence[RecordedAnswer]
) -> _DevResult:
    answers = _fresh_answers(local_model, version, rows)
    return _DevResult(_score(local_model, version, rows, answers), answers)


def _fresh_answers(
    local_model: LocalModel, version: ModelVersion, rows: Sequence[RecordedAnswer]
) -> list[_DevAnswer]:
    ws, config = local_model.ws, local_model.config
    by_prompt = _by_prompt([row for row in rows if row.tools is None])
    asks = [Ask(recorded[0].prompt, config.max_new_tokens) for recorded in by_prompt]
    replies = ask(ws, version.agent_id, local_model.responder(version), asks, "dev answers")
    answers = []
    for recorded, (answer,) in zip(by_prompt, replies, strict=True):
        success = agrees(answer.text.strip(), recorded)
        answers.append(_DevAnswer(recorded[0].group, success, answer.finish == "stop"))
    return answers


def _by_prompt(rows: Sequence[RecordedAnswer]) -> list[list[RecordedAnswer]]:
    by_prompt: dict[str, list[RecordedAnswer]] = {}
    for row in rows:
        by_prompt.setdefault(json.dumps([row.prompt, row.tools], sort_keys=True), []).append(row)
    return list(by_prompt.values())


def agrees(answer: str, judged: Sequence[RecordedAnswer]) -> float:
    """Return 1 if `answer` agrees with the judged answers to its prompt, else less: it equals a
    good one or, if no good one is known, differs from all bad ones."""
    good = [row.text for row in judged if row.good]
    if good:
        return max(equals(answer, text) for text in good)
    return 1.0 - max(equals(answer, row.text) for row in judged)


def equals(answer: str, good: str) -> float:
    """Score `answer` against the good answer: 1 if the two are equal, else less. JSON is compared
    by its fields, other text word by word."""
    if checker_of(good) == "json_fields":
        function = FUNCTIONS.get("json_fields").create({"allow_extra": False})
        (score,) = function.score([Case(answer, good)])
        return score.value or 0.0
    return float(" ".join(answer.split()) == " ".join(good.split()))


def _score(
    local_model: LocalModel,
    version: ModelVersion,
    rows: Sequence[RecordedAnswer],
    answers: Sequence[_DevAnswer],
) -> DevScore:
    ws = local_model.ws

    # Log-probabilities of the recorded answers, all of one prompt in one question.
    by_prompt = _by_prompt(rows)
    asks = []
    for recorded in by_prompt:
        texts = tuple(row.text for row in recorded)
        finish_reasons = tuple(row.finish_reason for row in recorded)
        asks.append(AskLikelihood(recorded[0].prompt, texts, recorded[0].tools, finish_reasons))
    responder = local_model.responder(version)
    replies = ask(ws, version.agent_id, responder, asks, "dev log-probabilities")
    scored = []
    for recorded, sums in zip(by_prompt, replies, strict=True):
        if not sums:  # they do not fit the model
            continue
        for row, (total, tokens) in zip(recorded, sums, strict=True):
            scored.append(AnswerLikelihoods(row, total, total, tokens))

    # How well it ranks good above bad answers, each (prompt, text) once.
    distinct = {}
    for answer in scored:
        distinct[json.dumps(answer.row.prompt, sort_keys=True), answer.row.text] = answer
    per_token = [answer.after / answer.tokens for answer in distinct.values()]
    preference = ranking_area(per_token, [answer.row.good for answer in distinct.values()])

    nll = compare.nll_guard(scored, local_model.config.level)
    success = eos_rate = None
    if answers:
        success = sum(answer.success for answer in answers) / len(answers)
        eos_rate = sum(answer.ended for answer in answers) / len(answers)
    return DevScore(
        version=version.name,
        success=success,
        success_n=len(answers),
        nll=nll.after,
        nll_n=nll.n,
        preference=preference,
        preference_n=len(distinct),
        eos_rate=eos_rate,
    )


def _choose(
    base: _DevResult, results: Sequence[_DevResult], config: EvaluationConfig
) -> DevComparison:
    leader = max(results, key=lambda result: result.score.success or 0.0)
    contenders = [result for result in results if not _clearly_worse(result, leader, config)]
    best = max(contenders, key=_rank)
    others = [base, *(result for result in results if result is not best)]
    reasons = [_reason(best, other, config) for other in others]
    name, judged = best.score.version, best.score.preference_n
    is_worse = _clearly_worse(best, base, config)
    is_better = _rank(best) > _rank(base) and not is_worse
    is_best = is_better or (judged < TELLING and not is_worse)
    if not is_best:
        reasons.insert(0, f"no version is better than the base on dev; {name} comes closest")
    elif not is_better:
        reasons.insert(
            0, f"{judged} judged dev answers are too few to hold {name} back: the gate decides"
        )
    return DevComparison(
        base=base.score,
        scores=tuple(result.score for result in results),
        best=name if is_best else None,
        reasons=tuple(reasons),
    )


def _rank(result: _DevResult) -> tuple[float, float, float]:
    score = result.score
    likelihood = -score.nll if score.nll is not None else 0.0
    return score.preference or 0.0, score.success or 0.0, likelihood


def _clearly_worse(result: _DevResult, other: _DevResult, config: EvaluationConfig) -> bool:
    gain = _gain(other, result, config)
    return gain is not None and gain.high < 0


def _gain(before: _DevResult, after: _DevResult, config: EvaluationConfig) -> Measure | None:
    """Compare the success of `after` and `before` on the same prompts; None if no prompt was
    judged."""
    if not before.answers:
        return None
    return compare.measure(
        "success",
        [answer.success for answer in before.answers],
        [answer.success for answer in after.answers],
        [answer.group for answer in before.answers],
        config.level,
    )


def _reason(best_result: _DevResult, other_result: _DevResult, config: EvaluationConfig) -> str:
    best, other = best_result.score, other_result.score
    facts = []
    if best.preference is not None and other.preference is not None:
        facts.append(
            f"ranks good above bad {best.preference:.1%} of the time against {other.preference:.1%}"
        )
    gain = _gain(other_result, best_result, config)
    if gain is not None:
        facts.append(
            f"fresh answers agree with the feedback on {gain.after:.1%} of {gain.n} dev prompts "
            f"against {gain.before:.1%} ({gain.gain:+.1%}, {gain.low:+.1%} to {gain.high:+.1%})"
        )
    if best.nll is not None and other.nll is not None:
        facts.append(f"good answers cost {best.nll:.3f} against {other.nll:.3f} nats a token")
    return f"{best.version} against {other.version}: {'; '.join(facts)}"
