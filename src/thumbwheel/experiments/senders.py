"""Who sent the words that decide an experiment, and the floor below which nobody's words promote.

A rater is a name that an app may choose; the sender is known: a user, a key, a file, or an app that
has the files of the home. One sender alone moves no alias unless the plan says that it may: there
have to be others, and what they say has to point the same way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from thumbwheel.db.workspace import OWNER_OF_HOME
from thumbwheel.experiments.analysis import decide
from thumbwheel.experiments.types import (
    ArmWords,
    Decision,
    ExperimentConfig,
    Inputs,
    Plan,
    SenderFigures,
)

if TYPE_CHECKING:
    from thumbwheel.experiments.store import CallStatement, CountedCall

UNKNOWN = "unknown"
"""The sender of what was stored before senders were."""
FEWEST_UNITS = 3
"""Units of an arm about which other senders than the largest have to speak before it may win. One
rater's words count for ten units by default, so one person beside an app is enough."""


def decided(plan: Plan, inputs: Inputs) -> Decision:
    """Return the verdict on `inputs` under `plan`, by which an arm wins only by the statements of
    enough senders."""
    decision = decide(plan, inputs)
    if decision.verdict != "won":
        return decision
    reasons = (*decision.reasons, *in_words(inputs.senders))
    obstacle = too_few_senders(plan.config, inputs.senders) or decided_by_one_sender(
        plan, decision, inputs.senders
    )
    if obstacle is None:
        return decision.model_copy(update={"reasons": reasons})
    max_hours = plan.config.max_hours
    is_over = bool(max_hours) and inputs.hours >= max_hours
    return Decision(
        verdict="stopped" if is_over else "undecided",
        dropped=decision.dropped,
        reasons=(obstacle, *reasons),
    )


def sender_of(statement: CallStatement) -> str:
    """Return who sent the statement."""
    return statement.sender or UNKNOWN


def voice_of(statement: CallStatement) -> str | None:
    """Return who speaks: the rater in this sender's statements, else the sender. None for an app
    with the home's files that names nobody."""
    if statement.rater_id is not None:
        return statement.speaker  # what another sender says in their name uses up nothing of theirs
    sender = sender_of(statement)
    return None if sender == OWNER_OF_HOME else f"sender {sender}"


def sender_figures(
    words: Sequence[tuple[CallStatement, float]], calls: Mapping[str, CountedCall]
) -> SenderFigures | None:
    """Return the figures of the statements that count, each with its value; None if there are
    none."""
    counts = Counter(sender_of(statement) for statement, _ in words)
    if not counts:
        return None
    # the owner's words need no second sender, so the largest of the others is of interest
    others = [entry for entry in counts.items() if entry[0] != OWNER_OF_HOME]
    largest, n_largest = max(others or counts.items(), key=lambda entry: (entry[1], entry[0]))
    by_unit: dict[tuple[str, str], list[float]] = defaultdict(list)
    for statement, value in words:
        call = calls[statement.trace_id]
        if sender_of(statement) != largest and call.unit is not None and call.arm is not None:
            by_unit[call.arm, call.unit].append(value)
    by_arm: dict[str, list[float]] = defaultdict(list)
    for (arm, _), values in by_unit.items():
        by_arm[arm].append(sum(values) / len(values))
    remaining = {
        arm: ArmWords(units=len(means), mean=sum(means) / len(means))
        for arm, means in sorted(by_arm.items())
    }
    return SenderFigures(
        senders=len(counts),
        largest=largest,
        share=n_largest / counts.total(),
        without_largest=remaining,
    )


def too_few_senders(config: ExperimentConfig, figures: SenderFigures | None) -> str | None:
    """Return why no arm may win by these statements; None if enough senders speak."""
    if figures is None or figures.largest == OWNER_OF_HOME or figures.senders >= config.min_senders:
        return None
    return (
        f"the words come from {figures.senders} of min_senders = {config.min_senders} senders; "
        f"{figures.largest} sent {figures.share:.0%} of them. If it speaks for many people, plan "
        f"with --min-senders {figures.senders}"
    )


def decided_by_one_sender(
    plan: Plan, decision: Decision, figures: SenderFigures | None
) -> str | None:
    """Return why an arm that won may not win: without the largest sender nobody says that it is
    better. None if other senders say so, or none have to."""
    if figures is None or figures.largest == OWNER_OF_HOME or plan.config.min_senders == 1:
        return None
    winner = figures.without_largest.get(decision.arm or "")
    control = figures.without_largest.get(plan.control.name)
    if winner and control and min(winner.units, control.units) >= FEWEST_UNITS:
        if winner.mean > control.mean:
            return None
        reason = f"what the others say does not favour {decision.arm}"
    else:
        reason = f"the others speak about fewer than {FEWEST_UNITS} units of an arm"
    return (
        f"without {figures.largest}, which sent {figures.share:.0%} of the words, {reason}. If it "
        "speaks for many people, plan with --min-senders 1"
    )


def in_words(figures: SenderFigures | None) -> tuple[str, ...]:
    """Describe the largest sender for a verdict, and what remains without it; empty without
    figures."""
    if figures is None:
        return ()
    remaining = ", ".join(
        f"{arm} {words.mean:.3g} ({words.units} units)"
        for arm, words in figures.without_largest.items()
    )
    return (
        f"sender {figures.largest} gave {figures.share:.0%} of the words; without it: "
        f"{remaining or 'nothing remains'}",
    )
