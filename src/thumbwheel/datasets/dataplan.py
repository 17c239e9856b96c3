"""The data plan as a value, as JSON and in words: the sentences that a person reads before deciding
to train. It is computed in `plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.datasets.episode import LAST_ONLY, LAST_ONLY_OF_ONE
from thumbwheel.datasets.row_stats import ScoreStatistics
from thumbwheel.datasets.types import WAITS
from thumbwheel.rewards.types import RULE, DominantRater, Signal, TargetCounts
from thumbwheel.stats.types import FEWEST


@dataclass(frozen=True)
class ShapePlan:
    """What `dataset build` would freeze: rows per split, their origins, what is left out, and
    warnings."""

    counts: dict[str, int]
    """Split (train, dev, gate) -> rows."""
    origins: dict[str, int]
    """Origin of the evidence -> rows."""
    drops: dict[str, int]
    """Reason -> rows that are left out."""
    warnings: list[str]
    """What a person should know before they build."""
    scores: ScoreStatistics | None = None
    """Statistics of the numbers in the rows, if the shape has any."""

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class MethodPlan:
    """Whether a method is worth training: `ready`, `usable` (it may work, the gate decides) or `too
    few` (`missing` says of what)."""

    title: str
    """Name of the method in words."""
    shape: str
    """Shape of its rows."""
    rows: int
    """Training rows that it would have."""
    readiness: str
    """ready, usable or too few."""
    missing: dict[str, int]
    """What it needs more of -> how many."""

    @property
    def eligible(self) -> bool:
        """Whether it can be trained, and compared with the others on dev."""
        return self.readiness != "too few"


@dataclass(frozen=True)
class Power:
    """What an evaluation on `n` groups of held-out items can detect: the smallest gain (a fraction
    of 1), as if each group were one item; None if it can detect none. `area`: the gain is one of
    the area under the ROC curve, by which good answers are ranked above bad ones."""

    n: int
    """Groups of held-out items."""
    detectable: float | None
    """Smallest gain that is seen four times out of five, a fraction of 1; null if none is."""
    area: bool = False
    """Whether the gain is one of the area under the ROC curve, and not a share of answers."""


@dataclass(frozen=True)
class DataPlan:
    """What the feedback of an agent, or of a file, permits; `to_words` puts it into sentences."""

    agent: str
    """Agent whose feedback it is."""
    traces: int
    """Recorded answers."""
    signals: list[Signal]
    reach: TargetCounts
    """What the feedback is about, arrived and awaited."""
    shapes: dict[str, ShapePlan]
    """Shape -> the dataset that a build would freeze."""
    labels: dict[str, int]
    """desirable and undesirable -> training rows of the shape `labels`."""
    class_weights: dict[str, float]
    """desirable and undesirable -> weight by which unequal classes are made equal."""
    methods: dict[str, MethodPlan]
    """Method -> whether it is worth training."""
    drops: dict[str, int]
    """Reason -> evidence that becomes no row."""
    notes: dict[str, int]
    """Remark -> how often it applies, such as contradicting raters."""
    gold: int
    """Cases that the owner reviewed."""
    held_cases: int
    """Cases on feedback in the gate split."""
    power: dict[str, Power]
    """Measure -> what an evaluation on the held-out rows can detect."""
    recommended: str | None
    """Method that the feedback suits best; null where none has enough rows."""
    why: str
    """Why it is recommended, or why none is."""
    rule: str = RULE
    """How raters who contradict each other are resolved."""
    loudest: DominantRater | None = None
    """The rater who gave more than half of the feedback, if there is one."""
    marks: dict[str, int] = field(default_factory=dict)
    """Traces that their owner marked for training, for validation, for neither."""
    warnings: list[str] = field(default_factory=list)
    """Problems of the rewards of the ledger, if they say how good answers are."""
    read_as: list[str] = field(default_factory=list)
    """For a file: the source that read it, and the meanings of its columns."""
    read_notes: list[str] = field(default_factory=list)
    """For a file: remarks on its lines."""

    @property
    def eligible(self) -> list[str]:
        """Methods that can be trained and compared on dev."""
        return [name for name, method in self.methods.items() if method.eligible]

    @property
    def ready(self) -> bool:
        """Whether training is worth its time at all."""
        return bool(self.eligible)

    @property
    def missing(self) -> dict[str, dict[str, int]]:
        """Method -> what it still needs -> how many."""
        return {name: method.missing for name, method in self.methods.items() if method.missing}

    def to_json(self) -> dict[str, Any]:
        """Return all fields, with the conclusions."""
        fields = asdict(self)
        fields["signals"] = [
            asdict(signal) | {"neither": signal.neither} for signal in self.signals
        ]
        return fields | {
            "ready": self.ready,
            "eligible": self.eligible,
            "missing": self.missing,
            "words": self.to_words(),
        }

    def to_words(self) -> list[str]:
        """Describe the plan, one or two sentences per line."""
        return [
            *_read(self),
            *_feedback(self),
            *_methods(self),
            *_online_methods(self),
            *_problems(self),
            *_evaluation(self),
            _conclusion(self),
        ]


def plural(count: int, word: str) -> str:
    """Return `1 label`, `1,200 labels`, `2 judgements of a person`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _read(plan: DataPlan) -> Iterator[str]:
    if plan.read_as:
        first, *columns = plan.read_as
        yield f"Read as {first}." + (f" Columns: {'; '.join(columns)}." if columns else "")
    for note in plan.read_notes:
        yield f"Note: {note}."


def _feedback(plan: DataPlan) -> Iterator[str]:
    signals = ", ".join(_signal(signal) for signal in plan.signals)
    yield f"{plural(plan.traces, 'trace')}; feedback: {signals or 'none yet'}."
    if scores := plan.shapes["scored"].scores:
        yield f"Scores of answers: {scores}."
    if plan.marks.get("validation") or plan.marks.get("neither"):
        marks = (
            f"{plan.marks['validation']:,} for validation, {plan.marks['neither']:,} for nothing"
        )
        yield f"Marked by the owner: {marks}; {plan.marks['training']:,} for training."


def _signal(signal: Signal) -> str:
    text = plural(signal.count, signal.kind)
    judged = signal.good + signal.bad
    if judged:
        good, bad = signal.good / judged * 100, signal.bad / judged * 100
        text += f" {good:.0f}/{bad:.0f} good/bad"
        if signal.neither:
            text += f", {signal.neither} neither"
    if signal.raters > 1:
        text += f" by {plural(signal.raters, 'rater')}"
    return text


def _methods(plan: DataPlan) -> Iterator[str]:
    for method in plan.methods.values():
        shape = plan.shapes[method.shape]
        if not method.rows:
            yield f"{method.title}: no {method.shape}."
            continue
        origins = ", ".join(f"{count:,} from {origin}" for origin, count in shape.origins.items())
        weights = ""
        if method.shape == "labels":
            desirable = plan.class_weights["desirable"]
            undesirable = plan.class_weights["undesirable"]
            weights = f"; weights {desirable:.1f}/{undesirable:.1f}"
        split = "/".join(f"{count:,}" for count in shape.counts.values())
        needed = f"; {_needed(method.missing)} needed" if method.missing else ""
        yield (
            f"{method.title} {_readiness(method)}: {_of_shape(method.rows, method.shape)} "
            f"({origins}){weights}; train/dev/gate {split}{needed}."
        )


def _online_methods(plan: DataPlan) -> Iterator[str]:
    """Yield a line for each kind of data that methods which sample their own answers could use."""
    prompts, groups = plan.shapes["prompts"], plan.shapes["groups"]
    checked = prompts.origins.get("case", 0)
    if checked:
        split = "/".join(f"{count:,}" for count in prompts.counts.values())
        yield (
            f"GRPO: fresh answers to {plural(checked, 'prompt')} can be checked (of "
            f"{prompts.rows:,}; train/dev/gate {split})."
        )
    elif prompts.rows:
        none = "none with a reference or a checker"
        if prompts.origins.get(WAITS):
            none += " for fresh answers"
        yield (
            f"GRPO: {plural(prompts.rows, 'prompt')}, {none}; it needs a reward model or a "
            "function of yours."
        )
    if groups.rows:
        yield (
            f"GRPO on recorded answers: {plural(groups.rows, 'group')} of two and more judged ones."
        )
    scored = plan.shapes["scored"]
    if scored.rows:
        split = "/".join(f"{count:,}" for count in scored.counts.values())
        use = f"PPO and GRPO then learn from it on {plural(prompts.rows, 'prompt')}"
        yield f"Reward model: {scored.rows:,} scored answers (train/dev/gate {split}); {use}."


def _readiness(method: MethodPlan) -> str:
    return "weak" if method.readiness == "too few" else method.readiness


def _needed(missing: Mapping[str, int]) -> str:
    return " and ".join(_of_shape(count, what, " more") for what, count in missing.items())


def _of_shape(count: int, rows: str, more: str = "") -> str:
    """Return `12 labels`, `1 pair`, or with `more` `1 more pair`."""
    return f"{count:,}{more} {rows.removesuffix('s') if count == 1 else rows}"


def _problems(plan: DataPlan) -> Iterator[str]:
    if runs := plan.notes.get(LAST_ONLY):
        yield f"{LAST_ONLY_OF_ONE}." if runs == 1 else f"{runs:,} {LAST_ONLY}."
    if text := contradictions(plan.notes, plan.rule):
        yield text
    if plan.loudest:
        yield f"Careful: {plan.loudest}."
    for warning in plan.warnings:
        yield f"Careful. {warning}."
    if plan.drops:
        drops = ", ".join(f"{count:,} x {reason}" for reason, count in plan.drops.items())
        yield f"Left out: {drops}."
    if awaited := sum(plan.reach.awaited.values()):
        yield (
            f"{plural(awaited, 'target')} of feedback did not arrive yet; import the traces that "
            "they name."
        )
    coarse = {kind: count for kind, count in plan.reach.arrived.items() if kind != "trace"}
    if coarse:
        targets = ", ".join(plural(count, kind) for kind, count in coarse.items())
        yield f"Feedback about {targets} is kept, but not learned from: it is not about one answer."
    warnings: list[str] = []
    for name in plan.eligible:
        warnings += plan.shapes[plan.methods[name].shape].warnings
    for warning in dict.fromkeys(warnings):
        yield f"Careful: {warning}."


def contradictions(notes: Mapping[str, int], rule: str) -> str:
    """Describe how often raters contradicted each other; empty if they did not."""
    noted = ", ".join(
        _noted(count, what) for what, count in sorted(notes.items()) if what != LAST_ONLY
    )
    return f"Contradictions: {noted}. Rule: {rule}." if noted else ""


def _noted(count: int, what: str) -> str:
    """Return `3 answers with disagreeing raters`, or `1 answer with ...`."""
    rows, _, about = what.partition(" ")
    return f"{_of_shape(count, rows)} {about}"


def _evaluation(plan: DataPlan) -> Iterator[str]:
    if plan.gold:
        yield f"Evaluation on {plural(plan.gold, 'gold case')}: {_detectable(plan, 'gold')}."
        return
    yield (
        "No gold cases: whatever wins can be approved for a canary only, because its judges are "
        f"the ratings themselves. {_way_to_gold(plan)}"
    )
    basis = "feedback cases in gate" if plan.held_cases else "rows in gate"
    yield (
        f"Evaluation on feedback, {plural(plan.power[basis].n, 'group')} of {basis}: "
        f"{_detectable(plan, basis)}."
    )


def _way_to_gold(plan: DataPlan) -> str:
    """Return how to get gold cases: by references where answers have them, else the three ways for
    free text."""
    agent = "AGENT" if plan.read_as else plan.agent
    if plan.held_cases or plan.shapes["prompts"].origins.get("case"):
        return f"Add some: thumbwheel case add --agent {agent}."
    return (
        "No answer here has a reference to be compared with. Short answers that people liked or "
        f"corrected become gold cases at once (thumbwheel case from-traces --count {FEWEST} "
        f"--agent {agent} --dry-run shows which). Free text is judged in three ways: "
        f"people compare two answers blind (thumbwheel queue create duel --agent {agent} --of "
        "comparisons); a judging model does once its agreement with those people is measured "
        f"(thumbwheel label trust --agent {agent} --url URL --model MODEL); or answers that a "
        "person liked become gold cases all at once (thumbwheel queue create review --agent "
        f"{agent}, then thumbwheel queue approve-liked review --agent {agent} --rater NAME)."
    )


def _detectable(plan: DataPlan, basis: str) -> str:
    power = plan.power[basis]
    gain = power.detectable
    if gain is None:
        verb = "is" if power.n == 1 else "are"
        kinds = " of either kind" if power.area else ""
        return (
            f"{plural(power.n, 'group')} {verb} too few to decide on, at least {FEWEST} are "
            f"needed{kinds}"
        )
    if power.area:
        return (
            f"gains from about {gain * 100:.0f} points of AUC can be seen (good answers ranked "
            "above bad ones; 80 % of the time)"
        )
    return (
        f"gains from about {gain * 100:.0f} points can be seen (80 % of the time, where 30 % of "
        "the answers change)"
    )


def _conclusion(plan: DataPlan) -> str:
    if plan.recommended is None:
        ways = "; ".join(
            f"{_needed(method.missing)} for {method.title}"
            for method in plan.methods.values()
            if method.missing
        )
        text = f"Do not train yet. Missing, any one of: {ways}."
        if checked := plan.shapes["prompts"].origins.get("case", 0):
            prompts = plural(checked, "prompt")
            text += f" Only GRPO has data: {prompts} whose answers can be checked."
        return text
    others = [plan.methods[name].title for name in plan.eligible if name != plan.recommended]
    compare = f" Also eligible, to be compared on dev: {', '.join(others)}." if others else ""
    return f"Recommended: {plan.methods[plan.recommended].title}, because {plan.why}.{compare}"


@dataclass(frozen=True)
class CountedSignal(Signal):
    """A kind of feedback, with what is neither good nor bad."""

    neither: int = 0
    """Pieces that are neither good nor bad."""


@dataclass(frozen=True)
class ConcludedPlan(DataPlan):
    """A data plan with what follows from it, as programs read it."""

    signals: list[CountedSignal]  # type: ignore[assignment]
    """Feedback in force, by kind."""
    # plain defaults: a field without one would leave the property of the class above in its place
    ready: bool = False
    """Whether a method is recommended."""
    eligible: tuple[str, ...] = ()  # type: ignore[assignment]
    """Methods that can be trained, and compared with each other on dev."""
    missing: dict[str, dict[str, int]] | None = None  # type: ignore[assignment]
    """Method -> what it needs more of, and how many; null where one is recommended."""
    words: tuple[str, ...] = ()
    """The plan in sentences, one a line."""

    @classmethod
    def of(cls, plan: DataPlan) -> ConcludedPlan:
        """Return a plan with its conclusions."""
        signals = [CountedSignal(**vars(signal), neither=signal.neither) for signal in plan.signals]
        return cls(
            **{**vars(plan), "signals": signals},
            ready=plan.ready,
            eligible=tuple(plan.eligible),
            missing=plan.missing,
            words=tuple(plan.to_words()),
        )
