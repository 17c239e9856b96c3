"""Nouns of experiments: the plan that is declared at the start, arms, strata, states with their
legal moves, and what is known of each unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict
from thumbwheel.evaluation.traffic import TrafficVerdict
from thumbwheel.stats.types import TUNED_FOR

Unit = Literal["user", "session"]
Mode = Literal["compare", "best-arm"]
MARGINS = {"error_rate": 0.05, "latency_p95": 0.05, "cost": 0.2}
"""Guard -> how much worse it may be: in points of failed calls; in points of calls that are slower
than 95 of 100 were before; in parts of the control's cost."""


class State(StrEnum):
    """`won`, `lost` and `stopped` are ends; `paused` sends everybody to the control."""

    RUNNING = "running"
    PAUSED = "paused"
    WON = "won"
    LOST = "lost"
    STOPPED = "stopped"


ENDS = frozenset({State.WON, State.LOST, State.STOPPED})
MOVES: dict[State, frozenset[State]] = {
    State.RUNNING: ENDS | {State.PAUSED},
    State.PAUSED: frozenset({State.RUNNING, State.STOPPED}),
    State.WON: frozenset(),
    State.LOST: frozenset(),
    State.STOPPED: frozenset(),
}


SHARES = frozenset({"thumb"})
"""Metrics whose mean is a share of good answers: a gain of it is read in percentage points."""
MOST_UNPROVED = 0.1
"""The share that versions get together which the gate has not approved."""


class ExperimentConfig(Config):
    """How an experiment is run. It is declared at the start and never edited."""

    metric: str = "thumb"
    """What decides: thumb, rating, score, or an outcome as outcome:NAME."""
    ratio: bool = False
    """Whether every statement counts once (a user who says more counts more); otherwise every unit
    does."""
    unit: Unit = "user"
    """Who keeps one arm: the user (the call's subject) or the session."""
    window_hours: float = Field(default=168.0, gt=0)
    """The attribution window: what is said later than this after its call is not counted."""
    mode: Mode = "compare"
    """compare: each arm with the control, at fixed shares; best-arm: shares follow what is seen,
    until the best arm is known."""
    share: float = Field(default=0.5, gt=0, lt=1)
    """The share of the units that all arms but the control get together."""
    ramp: str = ""
    """Smaller shares first, as SHARE:HOURS,SHARE:HOURS; after the last one `share` holds."""
    hold_out: float = Field(default=0.0, ge=0, lt=1)
    """The share of units that stays with the control and is never counted, for later comparisons.
    """
    group: str = ""
    """Experiments of one group never share a unit; each agent has groups of its own."""
    group_share: float = Field(default=0.5, gt=0, le=1)
    """The part of the group's units that this experiment may take."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """How likely all promotions of the agent without a gain may be together: those of experiments
    and those of the gate."""
    stop_alpha: float = Field(default=0.1, gt=0, lt=0.5)
    """How likely any arm that is no worse than the control may be stopped by its outcomes."""
    maturation_hours: float | None = Field(default=None, ge=0)
    """Hours after its exposure from which a unit counts, the same for all arms; unset, those within
    which nine of ten answers came, in the arm that is slowest."""
    min_units: int = Field(default=50, ge=2)
    """Units with an outcome in each arm before an arm may win, at least 10."""
    min_stop: int = Field(default=30, ge=2)
    """Units with an outcome in each arm before an arm may be stopped, at least 10."""
    min_hours: float = Field(default=24.0, ge=0)
    """Hours before an arm may win, so that all times of day or week are seen, and nobody decides it
    in a burst."""
    min_senders: int = Field(default=2, ge=1)
    """Different senders (users, keys) of the words by which an arm may win, and without the largest
    of them the others have to favour it, too; apps with the files of the home need no second one. 1
    where one app speaks for many people."""
    max_hours: float = Field(default=0.0, ge=0)
    """Hours after which the experiment is stopped undecided; 0 for no end."""
    effect: float = Field(default=0.05, gt=0)
    """The smallest gain that would be worth a switch: power and duration are said for it."""
    promote: bool = True
    """Whether the alias moves to an arm that won; otherwise the verdict only allows it."""
    ask_first: bool = True
    """Whether a person is asked before the agent's first version goes live that no gold cases speak
    for, only a won experiment."""
    rater_units: int = Field(default=10, ge=1)
    """Units that one rater's words count for; what the same rater says of more is a flood."""
    unproved: bool = False
    """Whether versions may be arms that the gate has not approved. They get a tenth of the units at
    most, are stopped as any arm that gets worse, and an arm that wins moves no alias."""
    automatic: bool = False
    """Whether the words of checkers and models count too."""
    latency: float | None = Field(default=None, gt=0)
    """Seconds that guard latency_p95 holds calls to; unset, the 95th percentile of the control's
    calls before the start."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_unproved(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("unproved"):
            return {"share": MOST_UNPROVED, "promote": False} | dict(values)
        return values

    def _require_bounds_of_unproved(self) -> None:
        if self.share > MOST_UNPROVED:
            raise ValueError(
                f"share {self.share:g}: versions that the gate has not approved get "
                f"{MOST_UNPROVED:g} at most"
            )
        if self.promote:
            raise ValueError("promote: what the gate has not approved moves no alias")
        if self.mode != "compare":
            raise ValueError(f"mode {self.mode}: shares of unproved versions stay as they are")

    @model_validator(mode="after")
    def _readable(self) -> ExperimentConfig:
        kind, _, name = self.metric.partition(":")
        if kind not in ("thumb", "rating", "score", "outcome") or bool(name) != (kind == "outcome"):
            raise ValueError(
                f"metric {self.metric!r} is none of thumb, rating, score, outcome:NAME"
            )
        ramp_steps(self.ramp)
        if self.unproved:
            self._require_bounds_of_unproved()
        if 0 < self.max_hours <= self.min_hours:
            raise ValueError(
                f"max_hours {self.max_hours:g} ends the experiment before min_hours "
                f"{self.min_hours:g}, from which an arm may win: raise the one or lower the other"
            )
        return self

    @property
    def kind(self) -> str:
        """The kind of feedback that the metric reads."""
        return self.metric.partition(":")[0]

    @property
    def name(self) -> str | None:
        """The outcome's name."""
        return self.metric.partition(":")[2] or None


def ramp_steps(ramp: str) -> list[tuple[float, float]]:
    """Return (share, hours) of each step. Raises ValueError for an invalid ramp.

    >>> ramp_steps("0.05:2,0.2:24")
    [(0.05, 2.0), (0.2, 24.0)]
    """
    steps = []
    for part in ramp.split(",") if ramp else ():
        share, _, hours = part.partition(":")
        step = float(share), float(hours or "nan")
        if not (0 < step[0] < 1 and step[1] > 0):
            raise ValueError(f"ramp {ramp!r} is not of the form SHARE:HOURS,SHARE:HOURS")
        steps.append(step)
    return steps


class Arm(Config):
    """A version that may answer. The first arm of a plan is the control."""

    name: str
    """`v3`."""
    version_id: str
    """Id of the version that answers."""
    weights: str
    """Fingerprint of what the version is made of, at the start."""


class GuardPlan(Config):
    """A figure that must not get worse by more than `margin`."""

    name: Literal["error_rate", "latency_p95", "cost"]
    """Figure that is watched."""
    margin: float = Field(gt=0)
    """How much worse it may get."""
    threshold: float | None = None
    """Of latency_p95: seconds."""


class Plan(Config):
    """What was declared at the start."""

    arms: tuple[Arm, ...]
    """Arms; the first one is the control."""
    guards: tuple[GuardPlan, ...] = ()
    """Figures that must not get worse."""
    config: ExperimentConfig = ExperimentConfig()
    """Settings of the experiment."""
    spend: int = 1
    """Which test this is on the agent's account of alpha (evaluation/spending.py)."""
    tuned_for: float = TUNED_FOR
    """Units at which the interval that decides is tightest."""
    group_range: tuple[float, float] | None = None
    """The part of the group's units that may take part."""

    @property
    def control(self) -> Arm:
        return self.arms[0]

    @property
    def treatments(self) -> tuple[Arm, ...]:
        return self.arms[1:]

    @property
    def error(self) -> float:
        """How likely any arm without a gain may win: this test's part of alpha."""
        return self.config.alpha / (self.spend * (self.spend + 1))


@dataclass(frozen=True)
class Stratum:
    """The shares of the arms from a moment on, until the next stratum."""

    number: int
    """Position, from 1 on."""
    shares: Mapping[str, float]
    """Arm -> share of units."""
    reason: str
    """Why the shares were changed."""
    recorded_at: datetime
    """From when on they hold (UTC)."""


@dataclass(frozen=True)
class Collected:
    """What was read of the recorded calls so far."""

    until: datetime | None = None
    """No call that was recorded an hour before it is read again."""
    calls: int = 0
    """Recorded calls."""
    overridden: int = 0
    """Calls whose client asked for an arm."""
    fallbacks: int = 0
    """Calls that another version answered than the one that was drawn."""
    without_unit: int = 0
    """Calls that name no unit."""
    held_out: int = 0
    """Calls of units that the experiment leaves out."""
    moved: int = 0
    """Calls of units that a change of the shares moved to another arm."""


@dataclass(frozen=True)
class Experiment:
    """An experiment as it is kept."""

    id: str
    agent: str
    alias: str
    plan: Plan
    salt: str
    state: State
    reason: str
    collected: Collected
    recorded_at: datetime
    ended_at: datetime | None
    strata: tuple[Stratum, ...]

    @property
    def stratum(self) -> Stratum:
        """The one in force."""
        return self.strata[-1]

    def check_move(self, state: State) -> None:
        """Raise Conflict if there is no move from the present state to `state`."""
        if state not in MOVES[self.state]:
            raise Conflict(
                f"experiment {self.id}",
                f"it is {self.state}, which cannot become {state}",
                f"See: thumbwheel experiment show {self.id}",
            )


@dataclass(frozen=True)
class Event:
    """What happened to an experiment."""

    number: int
    """Position, from 1 on."""
    kind: str
    """What happened, such as the state that it went into."""
    content: Mapping[str, Any]
    """Details of the event."""
    recorded_at: datetime
    """When it happened (UTC)."""


@dataclass(frozen=True)
class UnitFigures:
    """What is known of one exposed unit."""

    unit: str
    arm: str
    stratum: int
    exposed_at: datetime
    outcome: float | None
    """Mean of what counts, within [0, 1]; None where nothing was said: that is not zero."""
    weight: float = 0.0
    """Weight of the statements behind `outcome`, for a ratio."""
    answered_at: datetime | None = None
    """When the first of them came in; the order of the sequence."""
    earlier: float | None = None
    """The same metric before the first exposure."""
    calls: int = 0
    failed: int = 0
    slow: int = 0
    timed: int = 0
    """Calls whose seconds are known."""
    cost: float | None = None


class ArmWords(Config):
    """What an arm came to: units with a word, and the mean over units."""

    units: int
    """Units with a word."""
    mean: float
    """Mean of the metric over them."""


class SenderFigures(Config):
    """Whose words there are about the counted calls."""

    senders: int
    """Different ones."""
    largest: str
    """The one with the most words; apps with the files of the home only where nobody else
    speaks."""
    share: float
    """Its share of all words."""
    without_largest: dict[str, ArmWords]
    """Arm -> what remains without it; an arm of which nothing remains is left out."""


@dataclass(frozen=True)
class Figures:
    """All that an analysis reads: the exposed units, and how many statements did not count."""

    units: tuple[UnitFigures, ...]
    late: int = 0
    flooded: int = 0
    missing_names: Mapping[str, int] = field(default_factory=dict)
    """Outcomes of other names about counted calls, when none has the metric's name."""
    senders: SenderFigures | None = None
    """None where nothing was said."""


@dataclass(frozen=True)
class ListedExperiment:
    """An experiment as programs read it."""

    id: str
    """Id of the experiment."""
    agent: str
    """Agent whose calls are assigned."""
    alias: str
    """Alias whose calls are assigned."""
    state: State
    """State of the experiment."""
    reason: str
    """Why it is in this state."""
    plan: Plan
    """Arms, guards and settings, as they were declared."""
    strata: tuple[Stratum, ...]
    """Shares of the arms, from each change on."""
    collected: Collected
    """Counts of the recorded calls that were read."""
    recorded_at: datetime
    """When it was started (UTC)."""
    ended_at: datetime | None
    """When it ended (UTC); null while it runs."""

    @classmethod
    def of(cls, experiment: Experiment) -> ListedExperiment:
        """Return an experiment without its salt."""
        fields = vars(experiment)
        return cls(**{name: value for name, value in fields.items() if name != "salt"})


Method = Literal["asymptotic", "exact"]
Verdict = Literal["won", "lost", "stopped", "undecided"]


class ArmFigures(Config):
    """An arm in figures."""

    name: str
    """Name of the arm."""
    exposed: int
    """Units (people or sessions) that got an answer of it."""
    answered: int
    """Units with an outcome."""
    counted: int = 0
    """Of these, the units that had time to answer; mean and variance are theirs."""
    mean: float | None
    """Mean of the metric over the units with a word; null without any."""
    variance: float
    """Variance of the metric over these units."""
    dead: bool = False
    """Whether its newest calls all failed."""


class GuardFigures(Config):
    """How much worse an arm is than the control: in the guard's units, with an interval."""

    name: str
    """Name of the guard."""
    margin: float
    """How much worse the arm may be."""
    control: float | None
    """Value of the control; null without calls."""
    treatment: float | None
    """Value of the arm; null without calls."""
    low: float | None
    """Lower end of the interval of how much worse; null where nothing is known."""
    high: float | None
    """Upper end of the harm; None where nothing is known."""

    @property
    def holds(self) -> bool:
        """Whether the harm is shown to be smaller than the margin."""
        return self.high is not None and self.high < self.margin

    @property
    def broken(self) -> bool:
        """Whether the harm is shown to be larger than the margin."""
        return self.low is not None and self.low > self.margin


class ArmComparison(Config):
    """An arm against the control. Ends are None where nothing is known."""

    arm: str
    """Name of the arm."""
    gain: float | None
    """Its mean less that of the control; null where nothing is known."""
    low: float | None
    """Lower end at this test's error."""
    high: float | None
    """Upper end of the gain's interval; null where nothing is known."""
    method: Method
    """How the interval was computed."""
    stop_high: float | None
    """Upper end at the looser error of the stop-loss."""
    fewest: int | None = None
    """Units that count, in the smaller arm of the two; None in verdicts of earlier releases."""
    guards: tuple[GuardFigures, ...] = ()
    """How much worse the arm is by each guard."""
    response_p: float = 1.0
    """The p value that outcomes of both arms are in for the same people."""
    answering: tuple[float, float] | None = None
    """The shares of the units that answered, of the control and of this arm."""
    answering_p: float = 1.0
    """The p value, over all moments, that both arms answer in the same share."""
    silent_gain: float = 0.0
    """Of a gain, how much may come from who stays silent."""
    silent_loss: float = 0.0
    """Of a loss."""


class Inputs(Config):
    """All that a decision depends on besides the plan."""

    as_of: datetime
    """Moment of the figures (UTC); what came later does not count."""
    hours: float
    """Since the start."""
    arms: tuple[ArmFigures, ...]
    """Figures of the arms, the control first."""
    comparisons: tuple[ArmComparison, ...]
    """Each other arm against the control."""
    sample_ratio_p: float
    """p value of the arms' sizes against the planned shares; a tiny one means that the assignment
    is broken."""
    maturation_hours: float = 0.0
    """Hours after its exposure from which a unit counts."""
    answered_in_stratum: int = 0
    """Units with an outcome since the shares were changed last."""
    late: int = 0
    """Statements that came too late to count."""
    flooded: int = 0
    """Statements of raters who had spoken about as many units as count."""
    missing_names: dict[str, int] = Field(default_factory=dict)
    """Name of a label or outcome that is not the metric's -> how often it was said."""
    units: str = ""
    """Fingerprint of the units behind it."""
    senders: SenderFigures | None = None
    """Who sent the words; None where nothing was said, and in verdicts from before."""


class Decision(Config):
    """The verdict with its reasons in words."""

    verdict: Verdict
    """What the figures say at this moment."""
    arm: str | None = None
    """Of `won`: the winner."""
    dropped: tuple[str, ...] = ()
    """Arms that are to get no more units, of which the experiment goes on without."""
    reasons: tuple[str, ...]
    """Why, one sentence each."""


@dataclass(frozen=True)
class Forecast:
    """What is said before the start."""

    rate: float
    """Mean outcome of the control so far, or `UNKNOWN_RATE`."""
    is_known: bool
    """Whether the rate of feedback is known from recorded calls."""
    units: int | None
    """Units with an outcome after which a gain of `effect` is seen four times out of five."""
    effect: float
    """Smallest gain that the plan is made to see."""
    units_a_day: float | None
    """Units with an outcome a day so far; None where nothing is known."""
    days: float | None
    """Days until that is seen with 80 % probability; null where the rate is not known."""
    tuned_for: float
    """Units at which the interval will be tightest."""
    horizon_days: float
    """Days until the experiment is stopped undecided; 30 where that is never or later."""
    horizon_effect: float | None
    """The gain that is seen four times out of five within these days."""
    spend: int
    """Which experiment of the agent it is; each has a smaller part of the error budget."""
    error: float
    """Probability of a false winner that this experiment may spend."""
    veto: str
    """What earlier experiments say against it; empty for nothing."""


@dataclass(frozen=True)
class StartedExperiment:
    """An experiment that was started, or with a dry run would be."""

    experiment: str | None
    """Its id; None after a dry run."""
    plan: Plan
    """What was declared."""
    forecast: Forecast
    """How long it will take, as far as that is known."""


@dataclass(frozen=True)
class ShownExperiment(ListedExperiment):
    """An experiment with the figures of its arms, and what happened to it."""

    inputs: Inputs
    """The figures of each arm and each guard."""
    decision: Decision
    """What they decide now."""
    events: list[Event]
    """What happened to it, oldest first."""
    verdicts: list[TrafficVerdict]
    """Verdicts on versions that it gave."""
    waiting: str | None
    """The decision of a person that its winner waits for."""


ReplayedVerdict = TypedDict(
    "ReplayedVerdict",
    {
        "verdict": Annotated[str, Field(description="Id of the verdict.")],
        "was": Annotated[str, Field(description="What was decided.")],
        "is": Annotated[str, Field(description="What the stored figures decide now.")],
        "same_units": Annotated[bool, Field(description="Whether the figures of units are equal.")],
        "changed_rows": Annotated[
            list[str], Field(description="Rows that were changed after they were recorded.")
        ],
        "gone_calls": Annotated[int, Field(description="Calls that are gone, as by an erasure.")],
        "calls": Annotated[int, Field(description="Calls that were counted.")],
        "sealed_calls": Annotated[int, Field(description="Of these, those with a seal.")],
        "reasons": Annotated[list[str], Field(description="Reasons of the decision now.")],
        "recomputed": Annotated[Inputs, Field(description="The figures as computed now.")],
    },
)
"""A verdict of an experiment that was computed again."""
