"""Keys, users and rows of the audit log as commands and routes show them.

Each function returns one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.access import audit, keys, users
from thumbwheel.access.audit import AuditVerdict
from thumbwheel.access.keys import NewKey
from thumbwheel.access.shown import (
    ShownAuditEntry,
    ShownAuditVerdict,
    ShownKey,
    ShownNewKey,
    ShownUser,
)
from thumbwheel.access.types import ApiKey, Grants, User
from thumbwheel.core import present
from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace


def grants_text(grants: Grants) -> str:
    """Return the grants in one line: `support: call, rate`."""
    parts = [f"{agent}: {', '.join(sorted(verbs))}" for agent, verbs in grants.items()]
    return "; ".join(parts)


def new_key_answer(new: NewKey) -> present.Answer[ShownNewKey]:
    """Return the answer for a new key, including its secret."""
    grants = grants_text(new.key.grants)
    note = f"{new.key.name} may {grants}; this is the only time that it is shown:"
    parts: list[present.Part] = [present.Note(note), new.secret]
    return present.page(ShownNewKey(**vars(ShownKey.of(new.key)), secret=new.secret), parts)


def keys_answer(listed: Sequence[ApiKey]) -> present.Answer[list[ShownKey]]:
    """Return the answer that lists keys, without their secrets."""
    columns = {
        "name": lambda key: key.name,
        "begins": lambda key: key.prefix,
        "may": lambda key: grants_text(key.grants),
        "expires": lambda key: _day(key.expires_at) or "never",
        "last used": lambda key: _minute(key.used_at) or "never",
    }
    data = [ShownKey.of(key) for key in listed]
    empty = "no keys; make one for an app or a person: thumbwheel keys add --help"
    return present.records(listed, "keys", columns, data=data, empty=empty)


def revoked_answer(key: ApiKey) -> present.Answer[ShownKey]:
    """Return the answer for a revoked key."""
    return present.message(ShownKey.of(key), f"{key.name} opens nothing any more")


def users_answer(listed: Sequence[User]) -> present.Answer[list[ShownUser]]:
    """Return the answer that lists users with their roles."""
    columns = {
        "name": lambda user: user.name,
        "roles": lambda user: ", ".join(f"{agent}: {role}" for agent, role in user.roles.items()),
        "logs in by": lambda user: "password" if user.has_password else _provider(user),
        "id": lambda user: user.id,
    }
    data = [ShownUser.of(user) for user in listed]
    empty = "no users; add a person who may log in: thumbwheel users add --help"
    return present.records(listed, "users", columns, data=data, empty=empty)


def role_answer(user: User, role: str, agent: str | None) -> present.Answer[ShownUser]:
    """Return the answer for a changed role."""
    whose = "every agent" if agent is None else f"agent {agent}"
    return present.message(ShownUser.of(user), f"{user.name} is {role} of {whose}")


def user_answer(user: User, text: str) -> present.Answer[ShownUser]:
    """Return the answer for a change to a user; `text` follows the name."""
    return present.message(ShownUser.of(user), f"{user.name} {text}")


def audit_answer(
    ws: Workspace, limit: int, before: int | None
) -> present.Answer[list[ShownAuditEntry]]:
    """Return the answer that lists rows of the audit log, with the current names of the actors."""
    entries = audit.entries(ws, limit, before)
    names = actor_names(ws)
    columns = {
        "number": lambda entry: entry.number,
        "when": lambda entry: _minute(entry.recorded_at),
        "who": lambda entry: names.get(entry.actor, entry.actor),
        "what": lambda entry: entry.action,
        "agent": lambda entry: entry.agent,
        "about": lambda entry: _about(entry.content),
    }
    data = [ShownAuditEntry.of(entry) for entry in entries]
    empty = "nothing is logged yet: who changed what is, once the home is used"
    return present.records(entries, "audit log", columns, data=data, empty=empty)


def verdict_answer(verdict: AuditVerdict) -> present.Answer[ShownAuditVerdict]:
    """Return the answer about the audit chain; its exit code is not 0 if the chain is broken."""
    content = ShownAuditVerdict(whole=verdict.problem is None, **vars(verdict))
    if verdict.problem is None:
        return present.page(content, [f"the audit log is whole: {verdict.rows} rows"])
    error = DataError(
        "the audit log",
        verdict.problem,
        "Compare it with a backup of the home, and do not trust the rows after that point",
    )
    return present.message(content, f"error: {error}").ending(DataError.exit_code)


def actor_names(ws: Workspace) -> dict[str, str]:
    """Return id -> name for users and keys. Deleted ones are missing."""
    names = {user.id: user.name for user in users.listed(ws)}
    return names | {key.id: key.name for key in keys.listed(ws)}


def _provider(user: Any) -> str:
    return f"{user.provider}" if user.provider else "provider, not yet"


def _about(content: Mapping[str, Any]) -> str:
    parts = []
    for name, value in content.items():
        if isinstance(value, dict):
            value = "; ".join(f"{agent}: {_listed(entry)}" for agent, entry in value.items())
        if value is not None:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _listed(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _day(moment: Any) -> str:
    return f"{moment:%Y-%m-%d}" if moment is not None else ""


def _minute(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment is not None else ""
