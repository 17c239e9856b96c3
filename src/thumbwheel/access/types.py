"""Verbs, roles, and the principal: whoever asks, with what they may do to which agent. Keys, users,
sessions and rows of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from thumbwheel.core.errors import Forbidden

Verb = Literal["read", "rate", "edit", "run", "decide", "deploy", "own", "call"]
"""What a route needs: read anything; rate (feedback, labels); edit (cases, gate, settings); run
jobs (import, build, rewards, train, evaluate, export); decide what goes live (answer what a turn
asks, promote, roll back); deploy (deploy, undeploy, experiments, the loop), which includes decide;
own (keys, users, erasure, audit, secrets); call a model through the gateway."""
VERBS: tuple[Verb, ...] = get_args(Verb)

Role = Literal["viewer", "rater", "editor", "approver", "owner"]
"""What a user is for an agent."""
ROLES: tuple[Role, ...] = get_args(Role)

VERBS_OF: dict[Role, frozenset[Verb]] = {
    "viewer": frozenset({"read"}),
    "rater": frozenset({"read", "rate"}),
    "editor": frozenset({"read", "rate", "edit", "run"}),
    "approver": frozenset({"read", "rate", "decide"}),
    "owner": frozenset(VERBS),
}

ANY_AGENT = "*"
"""In place of an agent's name: every agent, those of tomorrow too, and what belongs to none."""

Kind = Literal["token", "key", "user", "anonymous-loopback"]
Grants = Mapping[str, frozenset[Verb]]
"""Agent, or ANY_AGENT -> what may be done to it."""


def grants_of(stored: Mapping[str, list[str]]) -> Grants:
    """Read grants from JSON. The verb `deploy` includes `decide`.

    >>> grants_of({"support": ["call", "rate"]}) == {"support": frozenset({"call", "rate"})}
    True
    >>> sorted(grants_of({"support": ["deploy"]})["support"])
    ['decide', 'deploy']
    """
    grants: dict[str, frozenset[Verb]] = {}
    for agent, verbs in stored.items():
        named = {*verbs, "decide"} if "deploy" in verbs else set(verbs)
        grants[agent] = frozenset(verb for verb in VERBS if verb in named)
    return grants


@dataclass(frozen=True)
class Principal:
    """Whoever asks."""

    id: str
    """Of the key or user; what the audit log says in place of a name."""
    name: str
    kind: Kind
    grants: Grants

    def may(self, verb: Verb, agent: str | None) -> bool:
        """Return whether the principal may do this to the agent; without one, to everything.

        >>> rater = Principal("usr_1", "ann", "user", {"support": VERBS_OF["rater"]})
        >>> rater.may("rate", "support"), rater.may("rate", "sales"), rater.may("rate", None)
        (True, False, False)
        """
        if verb in self.grants.get(ANY_AGENT, ()):
            return True
        return agent is not None and verb in self.grants.get(agent, ())

    def may_somewhere(self, verb: Verb) -> bool:
        """Return whether the principal may do this to any agent."""
        return any(verb in verbs for verbs in self.grants.values())

    def require(self, verb: Verb, agent: str | None) -> None:
        """Raise Forbidden unless the principal may do this to the agent; without one, to
        everything."""
        if not self.may(verb, agent):
            raise forbidden(self, verb, agent)


def forbidden(principal: Principal, verb: Verb, agent: str | None) -> Forbidden:
    """Return the error for a principal without this permission."""
    whose = "everything here" if agent is None else f"agent {agent!r}"
    named = "" if principal.kind in ("token", "anonymous-loopback") else f" {principal.name}"
    return Forbidden(
        f"{principal.kind}{named}",
        f"it may not {verb} {whose}",
        f"Use one that may: thumbwheel keys add NAME --verb {verb}, or ask an owner for a role",
    )


@dataclass(frozen=True)
class ApiKey:
    """What an app or a person presents; the key itself is stored nowhere."""

    id: str
    name: str
    user_id: str | None
    """Whose it is: it goes with the user, and may never more than they. None: the home's."""
    prefix: str
    """Its first characters, by which its owner knows it again."""
    grants: Grants
    expires_at: datetime | None
    used_at: datetime | None
    """To the minute."""
    recorded_at: datetime


@dataclass(frozen=True)
class User:
    """A person who logs in."""

    id: str
    name: str
    roles: Mapping[str, Role]
    """Agent, or ANY_AGENT -> what they are for it."""
    has_password: bool
    provider: str | None
    """Issuer of the OIDC provider by which they log in, once they did."""
    recorded_at: datetime

    @property
    def grants(self) -> Grants:
        """What they may do."""
        return {agent: VERBS_OF[role] for agent, role in self.roles.items()}


@dataclass(frozen=True)
class LoginSession:
    """A browser that is logged in."""

    id: str
    user_id: str | None
    """None: by the token of the home."""
    expires_at: datetime
    recorded_at: datetime


@dataclass(frozen=True)
class AuditEntry:
    """Somebody did something. Names of people are in none: actors are ids."""

    number: int
    """1 for the first; no number is left out."""
    recorded_at: datetime
    actor: str
    action: str
    """The operation, such as `keys.add`."""
    agent: str | None
    content: Mapping[str, Any]
    mac: str
    """Keyed hash of this row and of the `mac` of the row before."""


LOCAL_TOKEN = Principal("local", "local token", "token", {ANY_AGENT: frozenset(VERBS)})
"""Whoever has the token of the home: who can read its files can do everything anyway."""
PAGE_OF_OWNER = "local_page"
"""The id of whoever has a web token of the home's owner for less than the owner may: they speak
for themselves, and not with the owner's last word."""
ANONYMOUS = Principal(
    "anonymous",
    "an app on this machine",
    "anonymous-loopback",
    {ANY_AGENT: frozenset({"rate", "call"})},
)
"""An app that presents nothing to a server that listens on loopback."""
