"""A decision as a person reads it: what the version does better, whether anything got worse, which
checks had no data, and a few answers that changed.

The figures are those on which the gate decided. Each check stands once, and one without data is
never said to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.evaluate import evaluations
from thumbwheel.evaluation.gate import decisions_of
from thumbwheel.evaluation.guards import GuardState, guard_state
from thumbwheel.evaluation.policy import StoredDecision
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    AREA,
    AREA_PER_TOKEN,
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    NLL_LIKED,
    RANKING,
    RANKING_PER_TOKEN,
    SUCCESS,
    ChangedAnswer,
    Evaluation,
    Guard,
    Measure,
)
from thumbwheel.loop.approval import why_not_live
from thumbwheel.loop.trigger_types import Pending, Wish
from thumbwheel.models import versions
from thumbwheel.models.types import CANARY, Agent, Basis, ModelVersion

EXAMPLES = 5
"""Changed answers on a card."""
LABELS = {
    NLL_LIKED: "answers that people liked stay as likely",
    NLL: "recorded good answers stay as likely",
    EOS: "answers come to an end",
    FORMAT: "answers keep their format",
    LENGTH: "answers keep their length",
    ANCHOR_NLL: "general text stays as likely",
    ANCHOR_TASKS: "short general tasks are still solved",
}
"""Guard -> what it checks, in a reader's words."""
SHARES = (EOS, FORMAT, ANCHOR_TASKS)
"""Guards that are shares of answers."""
GAINS = {
    SUCCESS: "answers {count} of 100 {more} test questions right",
    RANKING: "puts the better of two recorded answers first {count} times of 100 {more} often",
    RANKING_PER_TOKEN: (
        "puts the better of two recorded answers first {count} times of 100 {more} often"
    ),
    AREA: "tells liked answers from disliked ones {count} times of 100 {more} often",
    AREA_PER_TOKEN: "tells liked answers from disliked ones {count} times of 100 {more} often",
}
"""Measure -> its gain in a reader's words."""
OTHER_GAIN = "scores {count} points of 100 {more} by {measure}"


class CheckFinding(StrEnum):
    """What is known of a check."""

    HOLDS = "no worse"
    WORSE = "worse"
    OPEN = "may be worse"
    UNMEASURED = "no data"
    NOTHING_TO_LOSE = "nothing to lose"


FINDINGS = {
    GuardState.HOLDS: CheckFinding.HOLDS,
    GuardState.WORSE: CheckFinding.WORSE,
    GuardState.OPEN: CheckFinding.OPEN,
    GuardState.SUSPECT: CheckFinding.OPEN,
    GuardState.UNMEASURED: CheckFinding.UNMEASURED,
    GuardState.NEAR_CHANCE: CheckFinding.NOTHING_TO_LOSE,
}


@dataclass(frozen=True)
class CheckLine:
    """One check: what it is about, what is known, and the figures behind it in words."""

    label: str
    finding: CheckFinding
    figures: str


@dataclass(frozen=True)
class DecisionCard:
    """A decision that waits, in a reader's words."""

    pending: Pending
    question: str
    """`Make v3 live?`"""
    summary: str
    """One sentence: the gain, and what became of the checks."""
    certainty: str
    """How sure the gain is, and on which evidence; empty where nothing was evaluated."""
    checks: Sequence[CheckLine]
    examples: Sequence[ChangedAnswer]
    against: str | None
    """The version that the gain is over."""
    remarks: Sequence[str]
    """What the turn saw besides, such as canary prompts that are answered otherwise."""
    why_not_live: str | None
    """Why a yes cannot make it live; None where it can."""
    is_canary: bool
    """Whether it answers as canary already."""

    @property
    def unmeasured(self) -> int:
        """Checks without data."""
        return sum(check.finding is CheckFinding.UNMEASURED for check in self.checks)


def decision_card(ws: Workspace, pending: Pending) -> DecisionCard:
    """Return a decision in plain words, with the gate's newest decision about its version."""
    version = versions.by_id(ws, pending.version_id)
    decided = decisions_of(ws, version)
    stored = decided[-1] if decided else None
    evaluation = None if stored is None else _evaluation_of(ws, version, stored)
    checks = [] if stored is None else [_check(guard, stored) for guard in stored.inputs.guards]
    canary_id = versions.aliases_of(ws, Agent.named(version.agent)).get(CANARY)
    verdict_reasons = () if stored is None else stored.decision.reasons
    remarks = [
        reason for reason in pending.evidence.get("reasons", ()) if reason not in verdict_reasons
    ]
    return DecisionCard(
        pending,
        question_in_words(pending),
        _summary(pending.version, evaluation, checks),
        "" if evaluation is None else _certainty(evaluation),
        checks,
        () if evaluation is None else evaluation.examples[:EXAMPLES],
        None if evaluation is None else evaluation.against,
        remarks,
        why_not_live(pending),
        canary_id == version.id,
    )


def _evaluation_of(
    ws: Workspace, version: ModelVersion, stored: StoredDecision
) -> Evaluation | None:
    """Return the evaluation on which the gate decided."""
    by_id = {evaluation.id: evaluation for evaluation in evaluations(ws, version)}
    return by_id.get(stored.evaluation_id)


def question_in_words(pending: Pending) -> str:
    """Return the question that a person answers: which version becomes live, or is tried. A version
    that would be deployed first may go live by the same answer."""
    if pending.kind is Wish.EXPORT:
        return pending.question[:1].upper() + pending.question[1:]
    if why_not_live(pending):
        return f"Try {pending.version} as canary?"
    return f"Make {pending.version} live?"


def _summary(version: str, evaluation: Evaluation | None, checks: Sequence[CheckLine]) -> str:
    if evaluation is None:
        return f"{version} has not been evaluated, so its gains and losses are unknown."
    parts = [gain_in_words(version, evaluation.primary), *_checks_in_words(checks)]
    return "; ".join(parts) + "."


def gain_in_words(version: str, measure: Measure) -> str:
    """Return a sentence on what a version gains by its main measure.

    >>> spread = {"centre": 0.63, "error": 0.05, "degrees": 59.0, "limit": 1.0}
    >>> figures = {"before": 0.03, "after": 0.66, "gain": 0.63, "low": 0.47, "high": 0.76}
    >>> counts = {"level": 0.95, "n": 60, "clusters": 60, "changed": 40}
    >>> gain_in_words("v3", Measure(name="success", spread=spread, **figures, **counts))
    'v3 answers 63 of 100 more test questions right'
    """
    count = round(100 * abs(measure.gain))
    if count == 0:
        return f"{version} does as well as the model that runs today, by {measure.name}"
    less = "fewer" if measure.name == SUCCESS else "less"
    more = "more" if measure.gain > 0 else less
    words = GAINS.get(measure.name, OTHER_GAIN)
    return f"{version} {words.format(count=count, more=more, measure=measure.name)}"


def _checks_in_words(checks: Sequence[CheckLine]) -> list[str]:
    """Return phrases for how many checks got worse, may have got worse, and had no data."""
    counts = {
        finding: sum(check.finding is finding for check in checks) for finding in CheckFinding
    }
    parts = []
    if counts[CheckFinding.WORSE]:
        parts.append(f"{_checks(counts[CheckFinding.WORSE])} got worse")
    if counts[CheckFinding.OPEN]:
        parts.append(f"{_checks(counts[CheckFinding.OPEN])} may have got worse")
    measured = len(checks) - counts[CheckFinding.UNMEASURED]
    if measured and not parts:
        parts.append("no measured check got worse")
    if counts[CheckFinding.UNMEASURED]:
        parts.append(f"{_checks(counts[CheckFinding.UNMEASURED])} had no data")
    return parts


def _checks(count: int) -> str:
    return "1 check" if count == 1 else f"{count} checks"


def _certainty(evaluation: Evaluation) -> str:
    measure = evaluation.primary
    low, high = round(100 * measure.low), round(100 * measure.high)
    basis = {
        Basis.GOLD: "questions that you reviewed",
        Basis.FEEDBACK: "questions with people's ratings, which you did not review",
    }.get(evaluation.basis, str(evaluation.basis))
    return (
        f"The gain over {evaluation.against} is between {low} and {high} of 100 with "
        f"{100 * measure.level:g} % confidence, on {measure.n} {basis}."
    )


def _check(guard: Guard, stored: StoredDecision) -> CheckLine:
    state, _ = guard_state(guard, stored.policy)
    label = LABELS.get(guard.name, guard.name)
    return CheckLine(label, FINDINGS[state], _figures(guard, state, stored))


def _figures(guard: Guard, state: GuardState, stored: StoredDecision) -> str:
    groups = guard.n if guard.clusters is None else guard.clusters
    needed = f"{groups} of at least {stored.policy.min_guard} groups of answers"
    if state is GuardState.UNMEASURED and groups < stored.policy.min_guard:
        return needed
    if guard.before is None or guard.after is None:
        return ""
    if guard.name in SHARES:
        change = f"{100 * guard.before:.0f} % before, {100 * guard.after:.0f} % after"
    elif guard.name == LENGTH:
        change = f"{guard.before:.0f} tokens before, {guard.after:.0f} after"
    else:
        return f"{guard.n} answers"
    return f"{change}, of {guard.n}"
