"""Keys, users and rows of the audit log as programs read them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from thumbwheel.access.types import ApiKey, AuditEntry, Grants, User


@dataclass(frozen=True)
class ShownKey:
    """A key without the key itself."""

    id: str
    name: str
    user_id: str | None
    """Whose it is; None: the home's."""
    prefix: str
    """Its first characters."""
    grants: dict[str, list[str]]
    """Agent -> what it may do to it."""
    expires_at: str | None
    used_at: str | None
    recorded_at: str

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return a key in the form for JSON output."""
        return cls(**_plain(key) | {"grants": grants_json(key.grants)})


@dataclass(frozen=True)
class ShownNewKey(ShownKey):
    """A key that was just made, with the key itself."""

    secret: str = ""


@dataclass(frozen=True)
class ShownUser:
    """A user with their roles."""

    id: str
    name: str
    roles: dict[str, str]
    """Agent -> what they are for it."""
    has_password: bool
    provider: str | None
    recorded_at: str

    @classmethod
    def of(cls, user: User) -> ShownUser:
        """Return a user in the form for JSON output."""
        return cls(**_plain(user) | {"roles": dict(user.roles)})


@dataclass(frozen=True)
class ShownAuditEntry:
    """A row of the audit log."""

    number: int
    recorded_at: str
    actor: str
    action: str
    agent: str | None
    content: dict[str, Any]
    mac: str

    @classmethod
    def of(cls, entry: AuditEntry) -> ShownAuditEntry:
        """Return an audit row in the form for JSON output."""
        return cls(**_plain(entry) | {"content": dict(entry.content)})


@dataclass(frozen=True)
class ShownAuditVerdict:
    """The result of a check of the audit log's chain."""

    whole: bool
    rows: int
    problem: str | None
    beyond_head: int
    """Rows that are newer than the signed head."""


def _plain(row: ApiKey | User | AuditEntry) -> dict[str, Any]:
    """Return the row's fields, times as text."""
    fields = {}
    for name, value in vars(row).items():
        fields[name] = value.isoformat() if isinstance(value, datetime) else value
    return fields


def grants_json(grants: Grants) -> dict[str, list[str]]:
    """Return the grants as a JSON value."""
    return {agent: sorted(verbs) for agent, verbs in grants.items()}
