"""Types of this package: agent, model version, its states and their legal moves, reward model,
switch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.core.secret_store import SecretStore, check_name


@dataclass(frozen=True)
class Agent:
    """The app or function whose model learns. `slug` is its name; records name it by that."""

    id: str
    slug: str

    @classmethod
    def named(cls, slug: str) -> Agent:
        """Return the agent of this name, whether it exists or not; `versions.require_agent` looks
        it up.

        Raises InputError for an invalid name.
        """
        return cls(ids.derived("agt", ids.slug(slug)), slug)


class VersionState(StrEnum):
    """The decided state of a version. Which version is live follows from the aliases; `tainted` is
    a separate mark."""

    CANDIDATE = "candidate"
    REJECTED = "rejected"
    APPROVED = "approved"
    RETIRED = "retired"


MOVES: dict[VersionState, frozenset[VersionState]] = {
    VersionState.CANDIDATE: frozenset(
        {VersionState.REJECTED, VersionState.APPROVED, VersionState.RETIRED}
    ),
    VersionState.REJECTED: frozenset({VersionState.RETIRED}),
    VersionState.APPROVED: frozenset({VersionState.RETIRED}),
    VersionState.RETIRED: frozenset(),
}


BASIS = "basis"
"""Key in a switch's evidence: what the approval of the version was based on at that moment. What
was not trained here has none."""
LIVE = "live"
"""The alias that serves everybody; not for versions that were approved on feedback alone."""
CANARY = "canary"
"""The alias of a version that was approved on feedback alone; arms of experiments are approved as
for it."""


class Basis(StrEnum):
    """What a judgement is based on: cases that the owner reviewed, held-out ratings, or an
    experiment on live traffic that was won. `gold` and `traffic` open `live`, `feedback` alone
    does not."""

    GOLD = "gold"
    FEEDBACK = "feedback"
    TRAFFIC = "traffic"


@dataclass(frozen=True)
class Switch:
    """One move of an alias: from a version (None: the alias was new) to another. `evidence` names
    what it is based on, and what it undoes."""

    id: str
    """Id of the move."""
    alias: str
    """Alias that was moved."""
    from_id: str | None
    """Version that it pointed at before; null for a new alias."""
    to_id: str
    """Version that it points at since."""
    reason: str
    """Why it was moved."""
    evidence: dict[str, Any]
    """What the move is based on, and the move that it undoes."""
    recorded_at: datetime
    """When it was moved (UTC)."""


@dataclass(frozen=True)
class RewardModelRecord:
    """A reward model of an agent: `rm1`, `rm2`, ... `files`: file name -> sha256. `metrics`:
    loss_type, dev and held_out figures."""

    id: str
    """Id of the reward model."""
    agent: str
    """Agent whose answers it judges."""
    number: int
    """Number of the reward model, from 1 on."""
    run_id: str
    """Training run that made it."""
    base: str
    """Base model that it was trained on."""
    base_fingerprint: str
    """Hash of the base's weights."""
    files: dict[str, str]
    """File name -> SHA-256."""
    metrics: dict[str, Any]
    """Loss, and how well it judges dev and held-out rows."""
    recorded_at: datetime
    """When it was registered (UTC)."""

    @property
    def name(self) -> str:
        """`rm3`."""
        return f"rm{self.number}"

    @property
    def tainted(self) -> bool:
        """Whether data that it learned from was erased."""
        return bool(self.metrics.get("tainted"))


def require_untainted(tainted: bool, what: str, fix: str) -> None:
    """Raise Conflict for a tainted version or reward model, which must not be used any more."""
    if tainted:
        raise Conflict(what, "it is tainted: data that it was trained on was erased", fix)


Family = Literal["openai", "anthropic", "ollama"]
"""Whose API a server speaks first; it decides how the server takes a secret."""


def family_of(name: str) -> Family:
    """Return `name` as a family. Raises InputError for an unknown one."""
    families: tuple[Family, ...] = get_args(Family)
    for family in families:
        if family == name:
            return family
    raise InputError(f"family {name!r}", "there is no such API here", f"Use {', '.join(families)}")


HOME_SECRET, AGENT_SECRET = SECRET_OWNERS = ("home", "agent")
"""Whose secret a version names. The home's own may be named by the home's owner alone."""


@dataclass(frozen=True)
class EndpointAddress:
    """A model that somebody else serves. Prices are of a million tokens; `secret` is the name of
    what its server wants (core/secret_store.py)."""

    url: str
    model: str
    family: Family = "openai"
    secret: str | None = None
    price_in: float | None = None
    price_out: float | None = None

    def check(self) -> None:
        """Raise InputError for an invalid URL, or one with a secret in it, which would be
        stored."""
        if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", self.url):
            raise InputError(
                f"endpoint {re.sub(r'(?<=//).*@|[?#].*', '...', self.url)!r}",
                "it must be an http or https URL without a user, query or fragment (a key in it "
                "would be stored)",
                "Give it as http://HOST:PORT/v1, and the key with --secret NAME",
            )
        try:
            urlsplit(self.url).port  # noqa: B018 - reading it checks it
        except ValueError as error:
            why = f"its port is none: {error}"
            raise InputError(f"endpoint {self.url!r}", why, "Give http://HOST:PORT/v1") from None
        if self.secret is not None:
            check_name(self.secret)


@dataclass(frozen=True)
class ModelVersion:
    """`v0` is what runs today; later versions are base + adapter. `adapter`: file name -> sha256 of
    its artifact."""

    id: str
    """Id of the version."""
    agent: str
    """Agent that it belongs to."""
    number: int
    """Number of the version; 0 is what ran before any training."""
    state: VersionState
    """candidate, approved, rejected or retired."""
    basis: Basis | None
    """What the approval is based on; `feedback` is approved for a canary only."""
    tainted: bool
    """Whether data that it was trained on was erased; it is not served then."""
    base: str
    """Base model: a folder, a Hugging Face id, or the model of an endpoint."""
    base_fingerprint: str | None
    """Hash of the base's weights; null where somebody else serves it."""
    adapter: dict[str, str] | None
    """File name -> SHA-256 of the adapter's files; null for a plain base."""
    parent_id: str | None
    """Version whose adapter it started from; null where it started from the base."""
    run_id: str | None
    """Training run that made it; null for a base, an endpoint or an adapter from elsewhere."""
    recorded_at: datetime
    """When it was registered (UTC)."""
    endpoint: dict[str, Any] | None = None
    """Set for a version that somebody else serves: the fields of an EndpointAddress, and as
    `secret_of` whose the secret is (SECRET_OWNERS). Such a version has no weights here."""

    @property
    def name(self) -> str:
        """`v3`."""
        return f"v{self.number}"

    @property
    def agent_id(self) -> str:
        """The id of its agent."""
        return Agent.named(self.agent).id

    @property
    def weights(self) -> str:
        """Fingerprint of the base's weights and the adapter's files."""
        return ids.fingerprint([self.base_fingerprint, self.adapter])

    def secret_of_endpoint(self, secrets: Path) -> str | None:
        """Return the value of the secret that its server requires; None if it requires none. Raises
        NotFound if there is no such secret."""
        endpoint = self.endpoint or {}
        if endpoint.get("secret") is None:
            return None
        return SecretStore(secrets, self.secret_agent).require(endpoint["secret"])

    @property
    def secret_agent(self) -> str | None:
        """Whose the secret of its endpoint is: the home's (None) where the home's owner named it,
        else the agent's."""
        endpoint = self.endpoint or {}
        return None if endpoint.get("secret_of") == HOME_SECRET else self.agent

    def check_move(self, state: VersionState) -> None:
        """Raise Conflict if this version may not become `state`: MOVES has no such move, or it is
        tainted and was to be approved."""
        allowed = MOVES[self.state]
        if state not in allowed:
            raise Conflict(
                self.label,
                f"it is {self.state}, and from there it may become "
                f"{' or '.join(sorted(allowed)) or 'nothing else'}, not {state}",
                "Train a new version to get a new candidate",
            )
        if state is VersionState.APPROVED:
            self._check_untainted()

    def check_alias(self, alias: str) -> None:
        """Raise Conflict unless this version may be served under `alias`: it must be approved and
        untainted, and for `live` approved on gold cases or by a won experiment."""
        if self.state is not VersionState.APPROVED:
            raise Conflict(
                self.label,
                f"it is {self.state}, and only an approved version is served",
                "Evaluate it: thumbwheel evaluate",
            )
        self._check_untainted()
        if alias == LIVE and self.basis is Basis.FEEDBACK:
            raise Conflict(
                self.label,
                "it was approved on held-out feedback, which permits a canary only",
                "Let it win an experiment (thumbwheel experiment start), evaluate it on gold "
                f"cases, or use another alias than {LIVE!r}",
            )

    @property
    def label(self) -> str:
        """`version 'v3' of agent 'support'`, for messages."""
        return f"version {self.name!r} of agent {self.agent!r}"

    def _check_untainted(self) -> None:
        fix = "Retrain without that data and evaluate the new version"
        require_untainted(self.tainted, self.label, fix)


@dataclass(frozen=True)
class NamedVersion(ModelVersion):
    """A version with its name, as programs read it."""

    name: str = ""
    """Name of the version (v3)."""


@dataclass(frozen=True)
class ListedVersion(NamedVersion):
    """A version in the list of an agent's."""

    aliases: list[str] = field(default_factory=list)
    """Those that point at it."""


@dataclass(frozen=True)
class NamedAlias:
    """The version that an alias points at."""

    alias: str
    """Name that calls use, such as `live`."""
    version: str
    """Version that it points at (v3)."""
    version_id: str
    """Id of that version."""


@dataclass(frozen=True)
class NamedRewardModel(RewardModelRecord):
    """A reward model with its name, as programs read it."""

    name: str = ""
    """Name of the reward model (rm1)."""
