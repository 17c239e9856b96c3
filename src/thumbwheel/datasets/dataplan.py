"""The data plan as a value, as JSON and in words: the sentences that a person reads before deciding
to train.

Does not live here: how it is computed (`plan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.datasets.episode import LAST_ONLY
from thumbwheel.datasets.row_stats import Scores
from thumbwheel.datasets.types import WAITS
from thumbwheel.rewards.types import RULE, DominantRater, Signal, TargetCounts
from thumbwheel.stats.types import FEWEST

NAMES = {"kto": "KTO", "dpo": "DPO", "sft": "SFT"}


@dataclass(frozen=True)
class ShapePlan:
    """What `dataset build` would freeze: rows per split, where they come from, what is left out,
    what to be careful about."""

    counts: dict[str, int]
    origins: dict[str, int]
    drops: dict[str, int]
    warnings: list[str]
    scores: Scores | None = None
    """Figures of the numbers in the rows, of shapes that have some."""

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class MethodPlan:
    """Whether a method is worth training: `ready`, `usable` (it may work, the gate decides) or `too
    few` (`missing` says to what)."""

    shape: str
    rows: int
    readiness: str
    missing: dict[str, int]

    @property
    def eligible(self) -> bool:
        """Can be trained, and compared with the others on dev."""
        return self.readiness != "too few"


@dataclass(frozen=True)
class Power:
    """What an evaluation on `n` groups of held-out items can see: the smallest gain (a fraction of
    1), as if each group were one item; None where it can see none. `area`: good answers are told
    from bad ones, and it is one of the area under the ROC curve."""

    n: int
    detectable: float | None
    area: bool = False


@dataclass(frozen=True)
class DataPlan:
    """See the fields of `to_json`; `to_words` says the same to a person."""

    agent: str
    traces: int
    signals: list[Signal]
    reach: TargetCounts
    shapes: dict[str, ShapePlan]
    labels: dict[str, int]
    class_weights: dict[str, float]
    methods: dict[str, MethodPlan]
    drops: dict[str, int]
    notes: dict[str, int]
    gold: int
    held_cases: int
    power: dict[str, Power]
    recommended: str | None
    why: str
    rule: str = RULE
    loudest: DominantRater | None = None
    """The rater who gave more than half of the feedback, where there is one."""
    marks: dict[str, int] = field(default_factory=dict)
    """Traces that their owner has for training, for validation, for neither."""
    warnings: list[str] = field(default_factory=list)
    """What is amiss with the rewards of the ledger, where they say how good answers are."""
    read_as: list[str] = field(default_factory=list)
    """Of the plan of a file: the source that read it, and what its columns were taken for."""

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
        """Method -> what it still needs, and how many."""
        return {name: method.missing for name, method in self.methods.items() if method.missing}

    def to_json(self) -> dict[str, Any]:
        """Everything, with the conclusions."""
        said = asdict(self)
        said["signals"] = [asdict(signal) | {"neither": signal.neither} for signal in self.signals]
        return said | {
            "ready": self.ready,
            "eligible": self.eligible,
            "missing": self.missing,
            "words": self.to_words(),
        }

    def to_words(self) -> list[str]:
        """One thought a line."""
        return [
            *_read(self),
            *_given(self),
            *_permits(self),
            *_fresh(self),
            *_problems(self),
            *_evaluation(self),
            _conclusion(self),
        ]


def plural(count: int, word: str) -> str:
    """`1 label`, `1,200 labels`, `2 judgements of a person`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def _read(plan: DataPlan) -> Iterator[str]:
    if plan.read_as:
        first, *columns = plan.read_as
        yield f"Read as {first}." + (f" Columns: {'; '.join(columns)}." if columns else "")


def _given(plan: DataPlan) -> Iterator[str]:
    said = ", ".join(_signal(signal) for signal in plan.signals)
    yield f"{plural(plan.traces, 'trace')}; feedback: {said or 'none yet'}."
    if scores := plan.shapes["scored"].scores:
        yield f"Scores of answers: {scores}."
    if plan.marks.get("validation") or plan.marks.get("neither"):
        marks = (
            f"{plan.marks['validation']:,} for validation, {plan.marks['neither']:,} for nothing"
        )
        yield f"Marked by the owner: {marks}; {plan.marks['training']:,} for training."


def _signal(signal: Signal) -> str:
    judged = signal.good + signal.bad
    share = (
        f" {signal.good / judged * 100:.0f}/{signal.bad / judged * 100:.0f} good/bad"
        if judged
        else ""
    )
    neither = f", {signal.neither} neither" if judged and signal.neither else ""
    voices = f" by {plural(signal.raters, 'rater')}" if signal.raters > 1 else ""
    return f"{plural(signal.count, signal.kind)}{share}{neither}{voices}"


def _permits(plan: DataPlan) -> Iterator[str]:
    for name, method in plan.methods.items():
        shape = plan.shapes[method.shape]
        if not method.rows:
            yield f"{NAMES[name]}: no {method.shape}."
            continue
        origins = ", ".join(f"{count:,} from {origin}" for origin, count in shape.origins.items())
        weights = (
            "; weights "
            f"{plan.class_weights['desirable']:.1f}/{plan.class_weights['undesirable']:.1f}"
            if name == "kto"
            else ""
        )
        split = "/".join(f"{count:,}" for count in shape.counts.values())
        needed = f"; {_needed(method.missing)} needed" if method.missing else ""
        yield (
            f"{NAMES[name]} {_readiness(method)}: {method.rows:,} {method.shape} "
            f"({origins}){weights}; train/dev/gate {split}{needed}."
        )


def _fresh(plan: DataPlan) -> Iterator[str]:
    """What methods that sample their own answers could use."""
    prompts, groups = plan.shapes["prompts"], plan.shapes["groups"]
    checked, waits = prompts.origins.get("case", 0), bool(prompts.origins.get(WAITS))
    if checked:
        split = "/".join(f"{count:,}" for count in prompts.counts.values())
        yield (
            f"GRPO: fresh answers to {plural(checked, 'prompt')} can be checked (of "
            f"{prompts.rows:,}; train/dev/gate {split})."
        )
    elif prompts.rows:
        none = f"none with a reference or a checker{' for fresh answers' * waits}"
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
        asked = f"PPO and GRPO then learn from it on {plural(prompts.rows, 'prompt')}"
        yield f"Reward model: {scored.rows:,} scored answers (train/dev/gate {split}); {asked}."


def _readiness(method: MethodPlan) -> str:
    return "weak" if method.readiness == "too few" else method.readiness


def _needed(missing: Mapping[str, int]) -> str:
    return " and ".join(f"{count:,} more {what}" for what, count in missing.items())


def _problems(plan: DataPlan) -> Iterator[str]:
    if runs := plan.notes.get(LAST_ONLY):
        yield f"{runs:,} {LAST_ONLY}."
    if torn := contradictions(plan.notes, plan.rule):
        yield torn
    if plan.loudest:
        yield f"Careful: {plan.loudest}."
    for warning in plan.warnings:
        yield f"Careful. {warning}."
    if plan.drops:
        yield (
            "Left out: "
            + ", ".join(f"{count:,} x {reason}" for reason, count in plan.drops.items())
            + "."
        )
    if awaited := sum(plan.reach.awaited.values()):
        yield (
            f"{plural(awaited, 'target')} of feedback did not arrive yet; import the traces that "
            "they name."
        )
    coarse = {kind: count for kind, count in plan.reach.arrived.items() if kind != "trace"}
    if coarse:
        said = ", ".join(plural(count, kind) for kind, count in coarse.items())
        yield f"Feedback about {said} is kept, and teaches nothing yet: it is not about one answer."
    used = [plan.methods[name].shape for name in plan.eligible]
    for warning in dict.fromkeys(text for shape in used for text in plan.shapes[shape].warnings):
        yield f"Careful: {warning}."


def contradictions(notes: Mapping[str, int], rule: str) -> str:
    """How often raters contradicted each other; empty where they did not."""
    noted = ", ".join(
        f"{count:,} {what}" for what, count in sorted(notes.items()) if what != LAST_ONLY
    )
    return f"Contradictions: {noted}. Rule: {rule}." if noted else ""


def _evaluation(plan: DataPlan) -> Iterator[str]:
    if plan.gold:
        yield f"Evaluation on {plural(plan.gold, 'gold case')}: {_sees(plan, 'gold')}."
        return
    yield (
        "No gold cases: whatever wins can be approved for a canary only, because its judges are "
        "the ratings themselves. "
        "Add some: thumbwheel case add."
    )
    basis = "feedback cases in gate" if plan.held_cases else "rows in gate"
    yield (
        f"Evaluation on feedback, {plural(plan.power[basis].n, 'group')} of {basis}: "
        f"{_sees(plan, basis)}."
    )


def _sees(plan: DataPlan, basis: str) -> str:
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
            f"{_needed(missing)} for {NAMES[name]}" for name, missing in plan.missing.items()
        )
        checked = plan.shapes["prompts"].origins.get("case", 0)
        instead = (
            f" Only GRPO has data: {plural(checked, 'prompt')} whose answers can be checked."
            if checked
            else ""
        )
        return f"Do not train yet. Missing, any one of: {ways}.{instead}"
    others = [NAMES[name] for name in plan.eligible if name != plan.recommended]
    compare = f" Also eligible, to be compared on dev: {', '.join(others)}." if others else ""
    return f"Recommended: {NAMES[plan.recommended]}, because {plan.why}.{compare}"
