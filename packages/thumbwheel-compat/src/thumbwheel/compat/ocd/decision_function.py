"""`decision`: what a decision of one of the five agents was worth, by what a person said at once
and by what came of it.

`metadata["decision"]` has agent_type, confidence, item, outcome, action and correction. Their keys
may be written camelCase or snake_case; action and correction may be spelled live or as declared
(`spelling`). What a person said is a label CONFIRMED, CORRECTED, OVERRIDDEN or IGNORED;
where nobody gave such a label, a thumb up counts as CONFIRMED and a thumb down as OVERRIDDEN, or
CORRECTED where there is a correction. Outcomes that come later are feedback (`outcome` or `label`)
named like the metric, and stand before what the decision brought along.

Each component is a number with a weight; the total is their weighted sum. The first of these that
there is, is the total:

1. the reward that was stored with the decision (a score `decision_reward`), unless `weights`
   changes a weight of this agent;
2. the weighted sum of the components that were stored with it (a label
   `decision_reward_components`);
3. the weighted sum of the components as they are computed here;
4. the stored reward after all.

A stored reward gives way where a person or an outcome spoke later. Stored components then stay, but
for those that are computed anew: a later word changes what it speaks of. A leading goal that nobody
names is no component, except where a stored one says whether it was met.

The total is cut off at `bound` on both sides, and the score is its place between the same two
bounds. Without any component the score is pending, never a middle. A person's label alone is
enough: a RETRIEVER's decision has no item and gets its score from feedback.

With `compatible` the arithmetic of the system that the weights come from is kept: cut off at 5,
scored as (total + 2) / 4, which leaves
0..1 below -2 and above 2; its coefficients beside the weights; any known working time of a
PRIORITIZER's item is a good one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from thumbwheel.compat.ocd.spelling import STORED_COMPONENTS, STORED_REWARD, declared
from thumbwheel.core.config import Config
from thumbwheel.core.plugins import nearest
from thumbwheel.rewards.aggregate import (
    agreed_edit,
    newest_per_speaker,
    of_kinds,
    people_first,
    scale_position,
)
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.types import Statement

METRICS = frozenset(
    {
        "completedsuccessfully",
        "status",
        "abandoned",
        "cyclecount",
        "wasblocked",
        "blockedat",
        "timeefficiency",
        "timetocomplete",
        "totaltimeincreate",
        "expectedtime",
        "leadinggoal",
        "conflictprevented",
        "falsepositive",
        "missedissue",
        "dependencywasreal",
        "strategicprogress",
        "opportunitycost",
        "energyalignment",
        "flowmaintenance",
        "corpuscoherence",
        "findability",
        "duplicationdetected",
        "citationcorrectness",
        "hallucinationcount",
        "completeness",
        "coherence",
        "stylealignment",
    }
)
"""Names of outcomes that a component reads, lower case without underscores."""
SAID = {"CONFIRMED": 1.0, "CORRECTED": -0.5, "OVERRIDDEN": -0.8, "IGNORED": 0.0}
ACCEPTED = {"CONFIRMED": 1.0, "CORRECTED": -0.5}
ACCEPTED_TEXT = {"CONFIRMED": 1.0, "CORRECTED": -1.0}
OLD_BOUND = 5.0
MINUTES = {"EXPEDITE": 120.0, "PROJECT": 480.0, "HABIT": 60.0, "HOME": 180.0}
"""How long an item of a swimlane is expected to take."""
PRIORITIES = {"HIGH": 0.8, "MEDIUM": 1.0, "LOW": 1.2}
QUICK, SLOW = 1.2, 2.0
"""Actual over expected time: below the one is good, above the other bad."""


class DecisionConfig(Config):
    """Settings of `decision`."""

    bound: float = Field(default=5.0, gt=0)
    """The total is cut off at this on both sides, and -bound scores 0, +bound 1."""
    compatible: bool = False
    """Keep the arithmetic of the system that the weights come from; `bound` has no effect then."""
    weights: dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]] = Field(
        default_factory=dict
    )
    """Other weights inside the decisions of an agent, as {FILER: {strategic.goalAlignment: 1.0}};
    those not named stay as they are."""

    @field_validator("weights")
    @classmethod
    def _known(cls, weights: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for agent, changed in weights.items():
            if agent not in PARTS:
                raise ValueError(
                    f"there are no rewards for {agent!r}; known are "
                    f"{', '.join(PARTS)}.{nearest(agent, PARTS)}"
                )
            names = [name for name, _, _ in PARTS[agent]]
            for name in changed:
                if name not in names:
                    raise ValueError(
                        f"{agent} has no component {name!r}; it has "
                        f"{', '.join(names)}.{nearest(name, names)}"
                    )
        return weights


@dataclass(frozen=True)
class DecisionFacts:
    """What is known about a decision; keys are lower case without underscores.

    `words`: (word, weight) of each rater. `stored`: group.name of the components that were stored
    with it -> value.
    """

    confidence: float | None
    item: Mapping[str, Any]
    outcome: Mapping[str, Any]
    correction: Mapping[str, Any]
    action: Mapping[str, Any]
    words: tuple[tuple[str, float], ...]
    stored: Mapping[str, float]
    compatible: bool

    def word(self, values: Mapping[str, float]) -> float | None:
        """Return the weighted mean of the values of the raters' words; None if nobody spoke."""
        total = math.fsum(weight for _, weight in self.words)
        if not total:
            return None
        return math.fsum(values.get(word, 0.0) * weight for word, weight in self.words) / total

    def calibration(self) -> float | None:
        """Return the error of the confidence as a number up to 0; None if it is unknown."""
        confirmed = self.word({"CONFIRMED": 1.0})
        return (
            None
            if confirmed is None or self.confidence is None
            else -abs(self.confidence - confirmed)
        )

    def status(self) -> str | None:
        """Return DONE or COLD_STORAGE if the item is finished, else None."""
        if self.outcome.get("completedsuccessfully") is True:
            return "DONE"
        if self.outcome.get("abandoned") is True:
            return "COLD_STORAGE"
        status = str(self.outcome.get("status") or self.item.get("status") or "").upper()
        return status if status in ("DONE", "COLD_STORAGE") else None

    def cycles(self) -> float:
        """Return how often the item was taken up again; 0 if that is unknown."""
        return self.number("cyclecount") or 0.0

    def completion(self) -> float | None:
        """Return 1.0 if the item is done, 0.5 after rework, -0.3 if it was put away; None if it is
        open."""
        return {"DONE": 0.5 if self.cycles() else 1.0, "COLD_STORAGE": -0.3}.get(
            self.status() or ""
        )

    def finished(self, value: float) -> float | None:
        """Return `value` if the item is finished, else None."""
        return value if self.status() else None

    def blocked(self) -> bool:
        """Return whether the item was ever blocked."""
        return bool(
            self.outcome.get("wasblocked")
            or self.outcome.get("blockedat")
            or self.item.get("blockedat")
        )

    def number(self, key: str) -> float | None:
        """Return a metric of the outcome, else of the item, also if it is text (a label has no
        number); None if it is not a finite number."""
        for source in (self.outcome, self.item):
            value = source.get(key)
            value = _json(value) if isinstance(value, str) else value
            if isinstance(value, int | float) and math.isfinite(value):
                return float(value)
        return None

    def slowness(self) -> float | None:
        """Return the actual over the expected time of an item; None if one of them is unknown."""
        efficiency = self.number("timeefficiency")
        if efficiency is not None and not isinstance(self.outcome.get("timeefficiency"), bool):
            return 1 / efficiency if efficiency > 0 else None
        key = "timetocomplete" if "timetocomplete" in self.outcome else "totaltimeincreate"
        actual = self.number(key)
        expected = self.number("expectedtime")
        if expected is None:
            lane = str(self.item.get("swimlane", "")).upper()
            priority = str(self.item.get("priority", "")).upper()
            expected = MINUTES.get(lane, MINUTES["PROJECT"]) * PRIORITIES.get(priority, 1.0)
        return actual / expected if actual is not None and expected else None

    def pace(self) -> float | None:
        """Return 0.5 if an item was done quickly, -0.5 if slowly, else 0.0; None if that is
        unknown."""
        slowness = self.slowness() if self.status() == "DONE" else None
        if slowness is None:
            return None
        if slowness < QUICK:
            return 0.5
        return -0.5 if slowness > SLOW else 0.0

    def any_pace(self) -> float | None:
        """Return `pace()`; in the old arithmetic 0.5 for any known working time, else None."""
        if not self.compatible:
            return self.pace()
        return 0.5 if self.number("timeefficiency") else None

    def flag(self, key: str, if_true: float) -> float | None:
        """Return `if_true` if the metric holds, 0 if it does not, None if it is unknown."""
        value = self.outcome.get(key)
        if isinstance(value, str):
            value = _json(value)
        if value is None:
            return None
        return if_true if value else 0.0

    def metric(self, key: str, coefficient: float) -> float | None:
        """Return a metric with the sign of its coefficient, in the old arithmetic with the whole
        coefficient, although it has a weight too; None if it is unknown."""
        value = self.number(key)
        if value is None:
            return None
        return value * (coefficient if self.compatible else math.copysign(1.0, coefficient))

    def goal(self) -> float | None:
        """Return 0.5 if the labels name the leading goal, else 0; the stored value if the leading
        goal or the labels are unknown."""
        leading, labels = (
            self.outcome.get("leadinggoal"),
            self.action.get("labels") or self.item.get("labels"),
        )
        if not leading or not isinstance(labels, list):
            return self.stored.get("strategic.goalAlignment")
        return 0.5 if leading in labels else 0.0

    def changed(self) -> float | None:
        """Return the share of the action's fields that the correction changed, as a number up to 0;
        None without a correction."""
        fields = {key for key in self.action if key not in ("confidence", "reasoning")}
        if not fields or not self.correction:
            return None
        share: float = sum(
            self.correction.get(key, self.action[key]) != self.action[key] for key in fields
        ) / len(fields)
        return -share * (0.1 if self.compatible else 1.0)

    def rewritten(self) -> float | None:
        """Return the relative change in length of the generated text, as a number up to 0; None if
        a text is missing."""
        before, after = (
            fields.get("generatedcontent") for fields in (self.action, self.correction)
        )
        if not isinstance(before, str) or not isinstance(after, str) or not before:
            return None
        share = abs(len(after) - len(before)) / len(before)
        return -share * 0.1 if self.compatible else -min(1.0, share)


Part = tuple[str, float, Callable[[DecisionFacts], float | None]]
"""group.name, weight, value (None: unknown)."""

PARTS: Mapping[str, tuple[Part, ...]] = {
    "FILER": (
        ("immediate.userFeedback", 1.0, lambda f: f.word(SAID)),
        ("immediate.confidenceCalibration", 0.1, DecisionFacts.calibration),
        ("delayed.completionSuccess", 0.5, DecisionFacts.completion),
        ("delayed.blockageAvoidance", 0.3, lambda f: f.finished(-1.0 if f.blocked() else 0.0)),
        ("delayed.reworkPenalty", 0.2, lambda f: f.finished(-0.2 * f.cycles())),
        ("delayed.timeEfficiency", 0.3, DecisionFacts.pace),
        ("strategic.goalAlignment", 0.4, DecisionFacts.goal),
    ),
    "LIBRARIAN": (
        ("immediate.userFeedback", 1.0, lambda f: f.word(SAID)),
        ("delayed.conflictPrevention", 2.0, lambda f: f.flag("conflictprevented", 1.0)),
        ("delayed.falsePositivePenalty", 0.5, lambda f: f.flag("falsepositive", -0.5)),
        ("delayed.missedIssuePenalty", 2.0, lambda f: f.flag("missedissue", -1.0)),
        ("delayed.dependencyAccuracy", 0.5, lambda f: f.flag("dependencywasreal", 0.5)),
    ),
    "PRIORITIZER": (
        ("immediate.userAcceptance", 1.0, lambda f: f.word(ACCEPTED)),
        ("delayed.completionSuccess", 1.0, lambda f: f.finished(float(f.status() == "DONE"))),
        ("delayed.timeEfficiency", 0.5, DecisionFacts.any_pace),
        ("delayed.strategicProgress", 0.8, lambda f: f.metric("strategicprogress", 0.3)),
        ("delayed.opportunityCost", 0.3, lambda f: f.metric("opportunitycost", -0.2)),
        ("contextual.energyAlignment", 0.2, lambda f: f.metric("energyalignment", 0.2)),
        ("contextual.flowMaintenance", 0.2, lambda f: f.metric("flowmaintenance", 0.2)),
    ),
    "STORER": (
        ("immediate.userAcceptance", 1.0, lambda f: f.word(ACCEPTED)),
        ("immediate.editDistance", 0.5, DecisionFacts.changed),
        ("delayed.corpusCoherence", 0.7, lambda f: f.metric("corpuscoherence", 0.5)),
        ("delayed.findability", 0.6, lambda f: f.metric("findability", 0.3)),
        ("delayed.duplicationPenalty", 0.4, lambda f: f.flag("duplicationdetected", -0.5)),
    ),
    "RETRIEVER": (
        ("immediate.userAcceptance", 1.0, lambda f: f.word(ACCEPTED_TEXT)),
        ("immediate.editDistance", 0.5, DecisionFacts.rewritten),
        ("accuracy.citationCorrectness", 0.8, lambda f: f.metric("citationcorrectness", 0.5)),
        ("accuracy.hallucinationPenalty", 2.0, lambda f: f.metric("hallucinationcount", -1.0)),
        ("accuracy.completeness", 0.6, lambda f: f.metric("completeness", 0.3)),
        ("quality.coherence", 0.4, lambda f: f.metric("coherence", 0.4)),
        ("quality.styleAlignment", 0.3, lambda f: f.metric("stylealignment", 0.2)),
    ),
}


class DecisionFunction(RewardFunction[DecisionConfig]):
    """See the module. Only with `compatible` does a score leave 0..1."""

    Config = DecisionConfig
    version = 4
    replaces = frozenset({"thumb", "outcome", "score", "edit_distance"})
    case_settings = frozenset({"bound", "compatible", "weights"})
    low, high = (-OLD_BOUND + 2) / 4, (OLD_BOUND + 2) / 4
    reads = frozenset({"text", "metadata", "feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the decision, its action, and the feedback that the score depends on; only the
        decision if the case has none."""
        decision = case.metadata.get("decision")
        if not decision:
            return {"decision": decision}
        heard = of_kinds(case.feedback, "label", "outcome", "correction", "thumb")
        rewards = [
            statement
            for statement in of_kinds(case.feedback, "score")
            if statement.name == STORED_REWARD
        ]
        return {"decision": decision, "text": case.text, "feedback": [*heard, *rewards]}

    def judge(self, case: Case) -> Score:
        """Return the position of the total between the bounds. The evidence has the source of the
        total, and every component with its weight."""
        decision = case.metadata.get("decision")
        if not isinstance(decision, dict):
            return Score.none(JudgementStatus.NOT_APPLICABLE, "it is no decision")
        agent = str(decision.get("agent_type") or decision.get("agentType") or "").upper()
        if agent not in PARTS:
            why = f"no rewards are known for decisions of {agent}" if agent else "it is no decision"
            return Score.none(JudgementStatus.NOT_APPLICABLE, why)

        # The components: as they were stored, and as they are computed.
        heard = _counted_statements(case, decision)
        stored_reward = _latest(case, "score", STORED_REWARD)
        stored_components = _latest(case, "label", STORED_COMPONENTS)
        changed_weights = self.config.weights.get(agent, {})
        weights = {name: weight for name, weight, _ in PARTS[agent]} | changed_weights
        stored = _components(stored_components, weights)
        facts = self._facts(case, decision, heard, stored)
        computed = _computed_components(agent, facts)

        # A stored reward or component is valid until a person or an outcome speaks.
        spoken = [statement.at for statement in of_kinds(case.feedback, "correction")]
        spoken += (statement.at for statement in heard if _outdates_stored_reward(statement))
        last_word = max(spoken, default=None)

        def is_valid(statement: Statement | None) -> bool:
            return statement is not None and (last_word is None or last_word <= statement.at)

        values: dict[str, float] = {}
        if stored_reward and is_valid(stored_reward) and not changed_weights:
            source = "stored reward"
        elif stored and is_valid(stored_components):
            source, values = "stored components", stored
        elif computed:
            source, values = "computed", stored | computed
        elif stored_reward:
            source = "stored reward"
        else:
            return Score.none(
                JudgementStatus.PENDING, "nobody said anything about it, and no outcome is known"
            )
        if stored_reward and source == "stored reward":
            total = float(stored_reward.value)
        else:
            total = math.fsum(value * weights[name] for name, value in values.items())

        # The position of the total between the bounds.
        bound = OLD_BOUND if self.config.compatible else self.config.bound
        reward = max(-bound, min(bound, total))
        position = (reward + 2) / 4 if self.config.compatible else (reward + bound) / (2 * bound)
        components = {
            name: {"value": value, "weight": weights[name]} for name, value in values.items()
        }
        counted = [*heard]
        counted += (stored for stored in (stored_reward, stored_components) if stored)
        evidence = {
            "agent_type": agent,
            "source": source,
            "total": total,
            "bound": bound,
            "components": components,
            "feedback_ids": sorted(statement.feedback_id for statement in counted),
        }
        return Score(position, evidence=evidence)

    def _facts(
        self,
        case: Case,
        decision: Mapping[str, Any],
        heard: Sequence[Statement],
        stored: Mapping[str, float],
    ) -> DecisionFacts:
        edit, _ = agreed_edit(of_kinds(case.feedback, "correction"))
        correction = decision.get("correction")
        if not correction and edit:
            correction = _json(edit.text)

        # What the raters call it; without any, the word that the decision brings along.
        rejected = "CORRECTED" if correction else "OVERRIDDEN"
        verdicts = [s for s in heard if s.kind == "thumb" or _verdict_word(s)]
        latest, _ = newest_per_speaker(verdicts, lambda s: (s.rater,), _meaning)
        words: list[tuple[str, float]] = []
        for statement in latest:
            by_thumb = "CONFIRMED" if statement.value is True else rejected
            words.append((_verdict_word(statement) or by_thumb, statement.weight))
        recorded = _recorded_word(decision)
        if not words and recorded:
            words.append((recorded, 1.0))

        # Outcomes that came later, the newest of each metric.
        metrics: dict[str, Any] = {}
        for statement in sorted(heard, key=lambda s: s.at):
            if statement.name and statement.kind != "thumb" and not _verdict_word(statement):
                metrics[_key(str(statement.name))] = statement.value

        confidence = decision.get("confidence")
        return DecisionFacts(
            confidence=float(confidence) if isinstance(confidence, int | float) else None,
            item=_with_plain_keys(decision.get("item")),
            outcome=_with_plain_keys(decision.get("outcome")) | metrics,
            correction=_action(correction),
            action=_action(decision.get("action") or _json(case.text)),
            words=tuple(words),
            stored=stored,
            compatible=self.config.compatible,
        )


def _counted_statements(case: Case, decision: Mapping[str, Any]) -> list[Statement]:
    """Return the labels and outcomes, and if no label is a verdict on the decision, also the
    thumbs."""
    statements = [
        statement
        for statement in of_kinds(case.feedback, "label", "outcome")
        if statement.name != STORED_COMPONENTS
    ]
    if not _recorded_word(decision) and not any(
        _verdict_word(statement) for statement in statements
    ):
        statements += people_first(of_kinds(case.feedback, "thumb"))
    return statements


def _latest(case: Case, kind: str, name: str) -> Statement | None:
    statements = [
        statement
        for statement in of_kinds(case.feedback, kind)
        if statement.name == name and (kind != "score" or scale_position(statement) is not None)
    ]
    return max(
        statements, key=lambda statement: (statement.at, statement.feedback_id), default=None
    )


def _components(stored: Statement | None, weighted: Collection[str]) -> dict[str, float]:
    """Return group.name -> value of the stored components that have a weight."""
    groups = _json(str(stored.value)) if stored else None
    if not isinstance(groups, dict):
        return {}
    components: dict[str, float] = {}
    for group, names in groups.items():
        if not isinstance(names, dict):
            continue
        for name, value in names.items():
            full_name = f"{group}.{name}"
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and math.isfinite(value) and full_name in weighted:
                components[full_name] = float(value)
    return components


def _outdates_stored_reward(statement: Statement) -> bool:
    """Return whether a reward that was stored before this statement is out of date."""
    return (
        statement.kind == "thumb"
        or bool(_verdict_word(statement))
        or _key(statement.name or "") in METRICS
    )


def _computed_components(agent: str, facts: DecisionFacts) -> dict[str, float]:
    values = {name: value_of(facts) for name, _, value_of in PARTS[agent]}
    return {name: value for name, value in values.items() if value is not None}


def _action(action: Any) -> dict[str, Any]:
    return _with_plain_keys(declared(action)) if isinstance(action, dict) else {}


def _verdict_word(statement: Statement) -> str | None:
    if statement.kind != "label" or not isinstance(statement.value, str):
        return None
    word = statement.value.upper()
    return word if word in SAID else None


def _recorded_word(decision: Mapping[str, Any]) -> str | None:
    """Return a person's verdict that is recorded in the decision itself; None if there is none."""
    word = str(decision.get("feedback") or "").upper()
    return word if word in SAID else None


def _meaning(statement: Statement) -> Any:
    return statement.value if statement.kind == "thumb" else _verdict_word(statement)


def _key(name: str) -> str:
    return name.replace("_", "").casefold()


def _with_plain_keys(fields: Any) -> dict[str, Any]:
    return (
        {_key(str(name)): value for name, value in fields.items()}
        if isinstance(fields, dict)
        else {}
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
