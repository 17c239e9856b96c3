"""Nouns of the gate: the policy that is declared for an agent, what a decision depends on, the
decision. Stored, so `Config` classes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.evaluation.types import Guard
from thumbwheel.models.types import Basis
from thumbwheel.stats.types import FEWEST


class GateVerdict(StrEnum):
    """What the gate may say."""

    APPROVED = "approved"
    CANARY = "approved_for_canary"
    REJECTED = "rejected"


Lenience = Literal["reject", "canary", "allow"]
DECIDING = ("success", "preference")
"""Suites that decide where none is declared, the first one that applies."""


class GatePolicy(Config):
    """What a candidate must show; declared once for an agent. A guard holds when its interval lies
    within its margin."""

    primary: str | None = None
    """The suite whose main measure decides; without one success of fresh answers, or without cases
    the ranking of recorded ones."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """How likely all candidates that are judged on the same held-out rows may together get past the
    gate without a gain."""
    min_cases: int = Field(default=FEWEST, ge=2)
    """Fewest groups of cases (or ranked pairs) on which anything is decided."""
    min_guard: int = Field(default=20, ge=1)
    """A guard measured on fewer groups is named as not measured; seen beyond its margin all the
    same, it allows a canary at most."""
    min_interval: int | None = Field(default=None, ge=1)
    """On fewer groups a guard is held to what was seen instead of its interval, and named; unset,
    where no interval fits into its margin even if nothing changed (55 groups for 0.05)."""
    margin_nll: float = Field(default=0.3, ge=0)
    """Nats a token by which recorded good answers may become less likely."""
    margin_eos: float = Field(default=0.05, ge=0, le=1)
    """Drop in the share of answers that end by themselves."""
    margin_format: float = Field(default=0.05, ge=0, le=1)
    """Drop in the share of well-formed answers."""
    max_growth: float = Field(default=2.0, ge=1)
    """Factor by which answers may get longer, or shorter."""
    margin_anchors: float = Field(default=0.2, ge=0)
    """Nats a token by which general text may become less likely."""
    margin_tasks: float = Field(default=0.1, ge=0, le=1)
    """Drop in the share of short general tasks that are solved."""
    relative_nats: float = Field(default=0.1, ge=0)
    """Where this share of the nats a token that what runs today has is more than a margin in nats,
    it is the margin: who finds a text unlikely moves more for the same change of use."""
    near_chance: float = Field(default=0.1, ge=0, lt=1)
    """A guard on which what runs today has less than this share of what can be had (likelihood
    beyond a uniform guess, answers that end, have their form or are right) is shown and decides
    nothing: there is nothing to lose."""
    open_guard: Lenience = "canary"
    """What becomes of a candidate with a guard whose interval reaches beyond its margin while the
    guard itself does not."""
    unmeasured_guard: Lenience = "allow"
    """What becomes of a candidate with a guard that was measured on too few items."""
    blocked: Literal["wait", "allow"] = "wait"
    """Whether a decision waits for judgements that were blocked (a server that is down, no
    sandbox), or allows a canary without them."""

    @property
    def leading(self) -> tuple[str, ...]:
        """The suites that may decide, the first one that applies."""
        return DECIDING if self.primary is None else (self.primary,)


class GateInputs(Config):
    """All that a decision depends on besides the policy."""

    basis: Basis
    """Whether the cases were reviewed by the owner (gold), or stand on feedback."""
    fresh: bool
    """Whether fresh answers were judged; otherwise recorded ones were ranked."""
    measure: str
    """Name of the deciding measure."""
    suite: str | None = None
    """The suite that the measure is the main one of."""
    before: float
    """Its value for what ran until then."""
    after: float
    """Its value for the candidate."""
    gain: float
    """after - before."""
    low: float
    """Lower end of the interval of the gain, at `level`."""
    level: float
    """Confidence level of `low`, which rises with the number of looks."""
    clusters: int
    """Groups of items behind the measure."""
    reads: int
    """Which look at these rows it is, counted over all candidates of the agent."""
    guards: tuple[Guard, ...]
    """With their intervals at 1 - alpha."""
    tainted: bool = False
    """Whether data that the candidate was trained on was erased."""
    detectable: float | None = None
    """The true gain that would get past `level` four times out of five."""
    judges: tuple[str, ...] = ()
    """What judged the answers behind the measure."""
    optimised: tuple[str, ...] = ()
    """Judges that the candidate was trained to please."""
    changes: tuple[str, ...] = ()
    """How the policy differs from what was declared first, in words."""
    limit: str = ""
    """What else keeps it from more than a canary."""
    blocked: int = 0
    """Judgements that were blocked."""
    weights: str | None = None
    """Fingerprint of the base and the adapter files that were measured."""


class GateDecision(Config):
    """The verdict with its reasons, in words."""

    verdict: GateVerdict
    """approved, approved_for_canary or rejected."""
    reasons: tuple[str, ...]
    """Why, one sentence each; those that decided come first."""


class StoredDecision(Config):
    """A decision with everything that it was made from. `signature`: keyed hash over all else, with
    the home's key."""

    id: str
    version_id: str
    evaluation_id: str
    decision: GateDecision
    inputs: GateInputs
    policy: GatePolicy
    signature: str | None = None


class Declaration(Config):
    """A policy as somebody declared it for an agent, and why it was changed."""

    id: str
    """Id of the declaration."""
    policy: GatePolicy
    """What a candidate must show from then on."""
    reason: str
    """Why it was changed; empty for the first one."""
    recorded_at: datetime
    """When it was declared (UTC)."""


class GateState(Config):
    """What the gate asks of an agent's candidates, and how that was changed."""

    agent: str
    """Agent whose candidates are judged."""
    declared: bool
    """Whether somebody declared the policy; otherwise the first decision declares the settings."""
    policy: GatePolicy
    """Policy in force."""
    declarations: tuple[Declaration, ...]
    """The newest one last."""


class Look(NamedTuple):
    """Two sides (fingerprints), compared by a measure on rows (keyed hashes of their prompts), and
    what was seen.

    With other settings the same sides are seen anew, so only what came out alike is the same look.
    """

    sides: tuple[str, ...]
    measure: str
    rows: frozenset[str]
    result: tuple[float, ...] = ()
