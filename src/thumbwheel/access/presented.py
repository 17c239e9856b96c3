"""Keys, users and rows of the audit log as commands and routes show them.

Each function shows one result, as JSON or as a page, wherever `core/present` sends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from thumbwheel.access import audit, keys, users
from thumbwheel.access.audit import AuditVerdict
from thumbwheel.access.keys import NewKey
from thumbwheel.access.types import ApiKey, AuditEntry, Grants, User
from thumbwheel.core import present
from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace


def key_json(key: ApiKey) -> dict[str, Any]:
    """A key without the key itself."""
    return _plain(key) | {"grants": grants_json(key.grants)}


def user_json(user: User) -> dict[str, Any]:
    """A user with their roles."""
    return _plain(user) | {"roles": dict(user.roles)}


def audit_json(entry: AuditEntry) -> dict[str, Any]:
    """A row of the audit log."""
    return _plain(entry) | {"content": dict(entry.content)}


def _plain(row: ApiKey | User | AuditEntry) -> dict[str, Any]:
    """Its fields, times as text."""
    fields = {}
    for name, value in vars(row).items():
        fields[name] = value.isoformat() if isinstance(value, datetime) else value
    return fields


def verdict_json(verdict: AuditVerdict) -> dict[str, Any]:
    """What was seen of the chain."""
    return {"whole": verdict.problem is None, **vars(verdict)}


def grants_json(grants: Grants) -> dict[str, list[str]]:
    """Grants as JSON has them."""
    return {agent: sorted(verbs) for agent, verbs in grants.items()}


def grants_text(grants: Grants) -> str:
    """Grants in one line: `support: call, rate`."""
    parts = [f"{agent}: {', '.join(sorted(verbs))}" for agent, verbs in grants.items()]
    return "; ".join(parts)


def show_new_key(new: NewKey, json: bool) -> None:
    """A key that was just made, with the key itself."""
    grants = grants_text(new.key.grants)
    note = f"{new.key.name} may {grants}; this is the only time that it is shown:"
    parts: list[present.Part] = [present.Note(note), new.secret]
    present.page(key_json(new.key) | {"secret": new.secret}, parts, json=json)


def show_keys(listed: Sequence[ApiKey], json: bool) -> None:
    """Keys, without the keys themselves."""
    columns = {
        "name": lambda key: key.name,
        "begins": lambda key: key.prefix,
        "may": lambda key: grants_text(key.grants),
        "expires": lambda key: _day(key.expires_at) or "never",
        "last used": lambda key: _minute(key.used_at) or "never",
    }
    data = [key_json(key) for key in listed]
    present.records(listed, "keys", columns, json=json, data=data)


def show_revoked(key: ApiKey, json: bool) -> None:
    """A key that was forgotten."""
    present.message(key_json(key), f"{key.name} opens nothing any more", json=json)


def show_users(listed: Sequence[User], json: bool) -> None:
    """Users with their roles."""
    columns = {
        "name": lambda user: user.name,
        "roles": lambda user: ", ".join(f"{agent}: {role}" for agent, role in user.roles.items()),
        "logs in by": lambda user: "password" if user.has_password else _provider(user),
        "id": lambda user: user.id,
    }
    data = [user_json(user) for user in listed]
    present.records(listed, "users", columns, json=json, data=data)


def show_role(user: User, role: str, agent: str | None, json: bool) -> None:
    """What a user is from now on."""
    whose = "every agent" if agent is None else f"agent {agent}"
    present.message(user_json(user), f"{user.name} is {role} of {whose}", json=json)


def show_user(user: User, text: str, json: bool) -> None:
    """What happened to a user."""
    present.message(user_json(user), f"{user.name} {text}", json=json)


def show_audit(ws: Workspace, limit: int, before: int | None, json: bool) -> None:
    """Rows of the audit log, with the names that their actors have here."""
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
    data = [audit_json(entry) for entry in entries]
    present.records(entries, "audit log", columns, json=json, data=data)


def show_verdict(verdict: AuditVerdict, json: bool) -> None:
    """What was seen of the chain. Raises DataError where it is not whole."""
    text = f"the audit log is whole: {verdict.rows} rows"
    if verdict.problem is None:
        present.page(verdict_json(verdict), [text], json=json)
        return
    if json:
        present.show_json(verdict_json(verdict))
    raise DataError(
        "the audit log",
        verdict.problem,
        "Compare it with a backup of the home; what it says from there on is not to be trusted",
    )


def actor_names(ws: Workspace) -> dict[str, str]:
    """Id of a user or key -> its name. Whoever is not here any more has none."""
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
