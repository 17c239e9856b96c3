"""Types of the loop that turns by itself: when a turn is due, a look at that, a turn, and what
waits for a person."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from thumbwheel.core.config import Config

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class Hours:
    """A part of the day, the end not included; one that ends before it begins goes over midnight.

    >>> night = Hours.of("22:00-06:00")
    >>> night.holds(time(23, 30)), night.holds(time(6, 0))
    (True, False)
    """

    begin: time
    end: time

    @classmethod
    def of(cls, text: str) -> Hours:
        """Read hours from `HH:MM-HH:MM`. Raises ValueError for anything else, or if both ends are
        equal."""
        match = _HOURS.fullmatch(text)
        if match is None or match[1] + match[2] == match[3] + match[4]:
            raise ValueError(f"{text!r} is no part of a day; write it as 22:00-06:00")
        return cls(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4])))

    def holds(self, clock: time) -> bool:
        """Return whether this time of day lies within the hours."""
        clock = clock.replace(tzinfo=None)
        if self.begin < self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


def next_time(now: datetime, clock: time) -> datetime:
    """Return the next moment after `now` at which clocks in its zone show `clock`."""
    moment = datetime.combine(now.date(), clock, now.tzinfo)
    if moment <= now:
        moment = datetime.combine(now.date() + timedelta(days=1), clock, now.tzinfo)
    return moment


class TriggerConfig(Config):
    """When a cycle is due by itself."""

    least: int = Field(default=50, ge=1)
    """New informative events from which a cycle is due. Repetitions, and bad answers without good
    ones to compare them with, are none."""
    every_hours: float | None = Field(default=None, gt=0)
    """A cycle is also due so many hours after the last one, where at least one informative event is
    new; unset, only the number decides."""
    window: str | None = None
    """The hours in which a cycle may begin, as 22:00-06:00; unset, at any time."""
    quiet: tuple[str, ...] = ()
    """Hours in which no cycle begins, as 09:00-17:00."""
    timezone: str = "UTC"
    """The zone of those hours, as Europe/Berlin."""
    check_minutes: int = 15
    """Minutes between two checks whether a cycle is due: a part of an hour, as 5 or 30."""
    per_rater: int | None = Field(default=None, ge=1)
    """Most informative events of one rater that count; unnamed raters of one source are one. Unset,
    all count."""

    burst: int | None = Field(default=60, ge=2)
    """Thumbs of one rater within `burst_minutes`, nearly all the same, from which they are held
    back until a person has decided; unset (null), nothing is."""
    burst_minutes: float = Field(default=10.0, gt=0)
    """The time within which a burst comes."""

    only_decidable: bool = True
    """Whether a cycle waits until the gate could decide on what comes of it: until enough reviewed
    cases, or rated questions, are held out."""

    gold_gain: float | None = Field(default=0.2, gt=0, le=1)
    """The gain that the reviewed cases (gold) are to be able to show, as a share of answers; where
    they cannot, the loop asks for more. Unset (null), it asks for none."""

    @field_validator("window")
    @classmethod
    def _is_window(cls, value: str | None) -> str | None:
        return None if value is None else str(Hours.of(value))

    @field_validator("quiet")
    @classmethod
    def _are_hours(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Hours.of(text)) for text in value)

    @field_validator("check_minutes")
    @classmethod
    def _is_part_of_an_hour(cls, value: int) -> int:
        if value < 1 or 60 % value:
            raise ValueError("checks come at the same minutes of every hour: give 1, 5, 15, 30, 60")
        return value

    @field_validator("timezone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"there is no time zone {value!r}; write it as Europe/Berlin"
            ) from None
        return value

    @property
    def between_checks(self) -> timedelta:
        """The time between two checks."""
        return timedelta(minutes=self.check_minutes)

    @property
    def cron(self) -> str:
        """The cron expression of the checks."""
        return "0 * * * *" if self.check_minutes == 60 else f"*/{self.check_minutes} * * * *"


class Rule(StrEnum):
    """What decided a check."""

    DISABLED = "disabled"
    RUNNING = "running"
    """Another turn is on its way: single flight."""
    QUIET = "quiet hours"
    WINDOW = "window"
    BACK_OFF = "back-off"
    """The last turn failed."""
    NOT_YET = "do not train"
    """The last turn found too little to train on, and nothing informative came since."""
    UNDECIDED = "gate"
    """The gate could not decide on what would come of it."""
    NUMBER = "number"
    INTERVAL = "interval"
    HAND = "hand"


@dataclass(frozen=True)
class Check:
    """One look at whether a turn is due: the rule that decided, its numbers, and when the next look
    is."""

    id: str
    """Id of the check."""
    rule: Rule
    """Rule that decided."""
    fired: bool
    """Whether a cycle was due."""
    value: Mapping[str, Any]
    """Numbers that the rule compared."""
    reason: str
    """The decision in words."""
    next_at: datetime | None
    """When the next check is (UTC); null while the loop is disabled."""
    recorded_at: datetime
    """When it was made (UTC)."""
    cycle_id: str | None = None
    """Cycle that it started; null without one."""


class TurnState(StrEnum):
    """Where a turn of the wheel is."""

    RUNNING = "running"
    STOPPED = "stopped"
    """It can go on."""
    FAILED = "failed"
    NOTHING = "nothing"
    """Do not train yet: too little feedback."""
    FINISHED = "finished"
    """It went through: the gate judged a candidate, or no candidate was better than the base."""


TURN_MOVES: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.RUNNING: frozenset(
        {TurnState.STOPPED, TurnState.FAILED, TurnState.NOTHING, TurnState.FINISHED}
    ),
    TurnState.STOPPED: frozenset({TurnState.RUNNING}),
    TurnState.FAILED: frozenset({TurnState.RUNNING}),
    TurnState.NOTHING: frozenset(),
    TurnState.FINISHED: frozenset(),
}
"""State -> the states that may follow it."""


@dataclass(frozen=True)
class Turn:
    """One recorded turn of the wheel."""

    id: str
    """Id of the cycle."""
    trigger: str
    """What started it: a rule, or a person."""
    state: TurnState
    """State of the cycle."""
    reason: str | None
    """Why it ended as it did; null while it runs."""
    heard_until: datetime
    """Feedback recorded by then is what it learned from."""
    informative: int | None
    """New informative events when it began; None where nobody counted."""
    version_id: str | None
    """Id of the version that came out; null without one."""
    report: Mapping[str, Any] | None
    """What it did, as `loop run` answers it; null while it runs."""
    recorded_at: datetime
    """When it started (UTC)."""
    ended_at: datetime | None
    """When it ended (UTC); null while it runs."""


@dataclass(frozen=True)
class AgentLoop:
    """Whether an agent's loop turns by itself, and by which settings."""

    enabled: bool
    settings: Mapping[str, Any]
    recorded_at: datetime


class Wish(StrEnum):
    """What a turn asks a person for."""

    EXPORT = "export"
    DEPLOY = "deploy"
    PROMOTE = "promote"


class WishState(StrEnum):
    """How a person answered. `moot`: another version went live, or the version may not any more."""

    WAITING = "waiting"
    APPROVED = "approved"
    REFUSED = "refused"
    MOOT = "moot"


@dataclass(frozen=True)
class Pending:
    """A step of a turn that a person decides on."""

    id: str
    """Id of the decision."""
    cycle_id: str | None
    """Cycle that asks; null where an experiment does."""
    kind: Wish
    """What would be done: export, deploy or promote."""
    version_id: str
    """Id of the version that it is about."""
    version: str
    """Its name (v3)."""
    question: str
    """The question in words."""
    evidence: Mapping[str, Any]
    """Figures that a person needs to answer it."""
    state: WishState
    """waiting, approved, refused, or moot if another version went live meanwhile."""
    answered_by: str | None
    """Who answered; null while it waits."""
    reason: str | None
    """Why, in the words of whoever answered."""
    recorded_at: datetime
    """When it was asked (UTC)."""
    answered_at: datetime | None
    """When it was answered (UTC); null while it waits."""


@dataclass
class DecisionOutcome:
    """What an answer did."""

    decision: str
    """Id of the decision."""
    state: WishState
    """State of the decision now."""
    exports: list[str] = field(default_factory=list)
    """Ids of the exports that were written."""
    deployment: str | None = None
    """Id of the deployment that was made; null without one."""
    live: str | None = None
    """Version that is live now; null where nothing changed."""
    experiment: str | None = None
    """The experiment that began."""
    next_question: str | None = None
    """What is asked next."""


@dataclass(frozen=True)
class NewEvents:
    """What came since the last turn."""

    events: int
    """Pieces of feedback in force."""
    informative: int
    """Pieces of feedback that a method can learn from."""
    kinds: dict[str, int] = field(default_factory=dict)
    """What the informative ones are: good, bad, edit, number, comparison."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Why others are none."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class TriggerVerdict:
    """What the rules say."""

    rule: Rule
    """Rule that decided."""
    fired: bool
    """Whether a cycle is due."""
    reason: str
    """The decision in words."""
    value: dict[str, Any]
    """Numbers that the rule compared."""
    next_at: datetime | None
    """When the next check is (UTC); null while the loop is disabled."""


@dataclass(frozen=True)
class TrafficDecision:
    """What live traffic said of versions, or says by now."""

    experiment: str
    """Id of the experiment."""
    arms: tuple[str, ...]
    """The control first."""
    state: str
    """State of the experiment."""
    reason: str
    """Of one that has ended."""


@dataclass(frozen=True)
class LoopStatus:
    """How a loop stands: `verdict` is what a check would say now."""

    agent: str
    """Agent whose loop it is."""
    enabled: bool
    """Whether it starts cycles by itself."""
    settings: Mapping[str, Any]
    """Its settings, as it was enabled with."""
    new: NewEvents
    """What came since the last cycle."""
    verdict: TriggerVerdict
    """What a check would say now."""
    turns: list[Turn]
    """Recorded cycles, newest first."""
    checks: list[Check]
    """Recorded checks, newest first."""
    waiting: list[Pending]
    """Steps that wait for a person."""
    experiments: list[TrafficDecision]
    """The newest ones, newest first."""
    gold: str | None
    """What the loop asks for where reviewed cases are short."""
    missing: str | None = None
    """What the gate lacks to decide on anything at all."""

    @property
    def shown_settings(self) -> dict[str, str]:
        """The settings that say something, as text."""
        shown = {}
        for name, value in self.settings.items():
            if value not in (None, [], ()):
                is_list = isinstance(value, list | tuple)
                shown[name] = ", ".join(map(str, value)) if is_list else str(value)
        return shown
