"""The pages of keys, secrets, users and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from thumbwheel.access import audit, keys, users
from thumbwheel.access.types import ANY_AGENT, ROLES, VERBS, VERBS_OF
from thumbwheel.core.config import Config
from thumbwheel.core.secret_store import stored_secrets
from thumbwheel.models.versions import agents, secret_names
from thumbwheel.server.pages.page import PageRequest

ENTRIES = 50
"""Rows of the audit log on a page."""
LARGEST = 2**31 - 1


class AuditQuery(Config):
    """Which rows of the audit log are shown."""

    before: int | None = Field(default=None, ge=1, le=LARGEST)
    """Only rows of smaller numbers"""
    verify: bool = False
    """Whether the chain is followed"""


def load_keys(asked: PageRequest) -> Mapping[str, Any]:
    """Load the access keys that the principal manages, without their secrets."""
    every_key = keys.listed(asked.ws)
    return {
        "keys": [key for key in every_key if _owns_all(asked, key.grants)],
        "agents": _agents(asked),
        "owns_everything": asked.principal.may("own", None),
        "verbs": VERBS,
    }


def load_secrets(asked: PageRequest) -> Mapping[str, Any]:
    """Load the names of the secrets of the agents that the principal owns, and what needs them."""
    stored = stored_secrets(asked.ws.home.secrets)
    needed = secret_names(asked.ws)
    every = sorted({*stored, *needed}, key=lambda secret: (secret.name, secret.agent or ""))
    return {
        "secrets": [secret for secret in every if asked.principal.may("own", secret.agent)],
        "stored": stored,
        "needed": needed,
        "agents": _agents(asked),
        "owns_everything": asked.principal.may("own", None),
    }


def load_users(asked: PageRequest) -> Mapping[str, Any]:
    """Load the users with a role for an agent that the principal owns."""
    return {
        "users": [user for user in users.listed(asked.ws) if _owns_any(asked, user.roles)],
        "agents": _agents(asked),
        "owns_everything": asked.principal.may("own", None),
        "roles": ROLES,
        "verbs_of": {role: sorted(verbs) for role, verbs in VERBS_OF.items()},
        "provider": asked.gate.config.provider is not None,
    }


def load_audit(asked: PageRequest) -> Mapping[str, Any]:
    """Load a page of the audit log, newest first; on demand, verify its chain."""
    query = asked.parsed(AuditQuery)
    entries = audit.entries(asked.ws, ENTRIES + 1, query.before)
    names = {user.id: user.name for user in users.listed(asked.ws)}
    names |= {key.id: key.name for key in keys.listed(asked.ws)}
    return {
        "entries": entries[:ENTRIES],
        "before": entries[ENTRIES - 1].number if len(entries) > ENTRIES else None,
        "is_first": query.before is None,
        "names": names,
        "verdict": audit.verify(asked.ws) if query.verify else None,
    }


def _agents(asked: PageRequest) -> list[str]:
    return [agent.slug for agent in agents(asked.ws) if asked.principal.may("own", agent.slug)]


def _owns_all(asked: PageRequest, granted: Iterable[str]) -> bool:
    return all(_owns(asked, agent) for agent in granted)


def _owns_any(asked: PageRequest, granted: Iterable[str]) -> bool:
    return asked.principal.may("own", None) or any(_owns(asked, agent) for agent in granted)


def _owns(asked: PageRequest, agent: str) -> bool:
    return asked.principal.may("own", None if agent == ANY_AGENT else agent)
