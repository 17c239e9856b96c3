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
    """Id of the key, which the audit log names."""
    name: str
    """Name by which it is listed and revoked."""
    user_id: str | None
    """Whose it is; None: the home's."""
    prefix: str
    """Its first characters."""
    grants: dict[str, list[str]]
    """Agent -> what it may do to it."""
    expires_at: str | None
    """When it stops working (UTC); null if it does not expire."""
    used_at: str | None
    """When it was last used, to the minute (UTC); null if never."""
    recorded_at: str
    """When it was made (UTC)."""

    @classmethod
    def of(cls, key: ApiKey) -> Self:
        """Return a key in the form for JSON output."""
        return cls(**_plain(key) | {"grants": grants_json(key.grants)})


@dataclass(frozen=True)
class ShownNewKey(ShownKey):
    """A key that was just made, with the key itself."""

    secret: str = ""
    """The key itself. It is shown this once and stored only as a hash."""


@dataclass(frozen=True)
class ShownUser:
    """A user with their roles."""

    id: str
    """Id of the user, which the audit log names."""
    name: str
    """Name that the user logs in with."""
    roles: dict[str, str]
    """Agent -> what they are for it."""
    has_password: bool
    """Whether a password is set; a user of an identity provider has none."""
    provider: str | None
    """Identity provider that the user logs in by; null for a password."""
    recorded_at: str
    """When the user was added (UTC)."""

    @classmethod
    def of(cls, user: User) -> ShownUser:
        """Return a user in the form for JSON output."""
        return cls(**_plain(user) | {"roles": dict(user.roles)})


@dataclass(frozen=True)
class ShownAuditEntry:
    """A row of the audit log."""

    number: int
    """Position in the log, from 1 on without gaps."""
    recorded_at: str
    """When it was written (UTC)."""
    actor: str
    """Id of the key or user that acted; `local` is the token of the home."""
    action: str
    """Operation that was asked for, such as `models.alias`."""
    agent: str | None
    """Agent that it was about; null where it was about the whole home."""
    content: dict[str, Any]
    """Method and path of the request, and the ids of rows in it."""
    mac: str
    """Keyed hash over this row and the one before it; a changed or missing row breaks the chain."""

    @classmethod
    def of(cls, entry: AuditEntry) -> ShownAuditEntry:
        """Return an audit row in the form for JSON output."""
        return cls(**_plain(entry) | {"content": dict(entry.content)})


@dataclass(frozen=True)
class ShownAuditVerdict:
    """The result of a check of the audit log's chain."""

    whole: bool
    """Whether nothing was changed, removed or put between."""
    rows: int
    """Rows that were checked."""
    problem: str | None
    """First thing that is wrong; null if the log is whole."""
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
