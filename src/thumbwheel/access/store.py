"""All SQL of access: keys, users, roles, sessions, the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.access.types import ApiKey, AuditEntry, LoginSession, Role, User, grants_of
from thumbwheel.core.errors import NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.engine import streamed
from thumbwheel.db.schema import api_keys, audit, login_sessions, user_roles, users

Fields = Mapping[str, Any]


def insert_key(connection: sa.Connection, key: ApiKey, mac: str) -> None:
    """Store a key with its hash."""
    grants = {agent: sorted(verbs) for agent, verbs in key.grants.items()}
    values = vars(key) | {"grants": grants, "mac": mac}
    connection.execute(sa.insert(api_keys).values(values))


def keys(connection: sa.Connection) -> list[tuple[ApiKey, str]]:
    """Return all keys, each with its hash, newest last."""
    query = sa.select(api_keys).order_by(api_keys.c.id)
    return [(_key(row), row.mac) for row in connection.execute(query)]


def key_named(connection: sa.Connection, name: str) -> ApiKey | None:
    """Return the key with this name, or None."""
    row = connection.execute(sa.select(api_keys).where(api_keys.c.name == name)).first()
    return None if row is None else _key(row)


def delete_key(connection: sa.Connection, key_id: str) -> None:
    """Delete a key."""
    connection.execute(sa.delete(api_keys).where(api_keys.c.id == key_id))


def mark_used(connection: sa.Connection, used: Mapping[str, datetime]) -> None:
    """Store when keys were last used."""
    for key_id, used_at in used.items():
        query = sa.update(api_keys).where(api_keys.c.id == key_id).values(used_at=used_at)
        connection.execute(query)


def insert_user(connection: sa.Connection, user: User, password: str | None) -> None:
    """Store a user with the hash of the password, and their roles."""
    values = {
        "id": user.id,
        "name": user.name,
        "password": password,
        "recorded_at": user.recorded_at,
    }
    connection.execute(sa.insert(users).values(values))
    for agent, role in user.roles.items():
        set_role(connection, user.id, agent, role)


def all_users(connection: sa.Connection) -> list[User]:
    """Return all users with their roles, newest last."""
    roles: dict[str, dict[str, Role]] = {}
    for row in connection.execute(sa.select(user_roles).order_by(user_roles.c.agent)):
        roles.setdefault(row.user_id, {})[row.agent] = row.role
    query = sa.select(users).order_by(users.c.id)
    return [_user(row, roles.get(row.id, {})) for row in connection.execute(query)]


def user_named(connection: sa.Connection, name: str) -> User | None:
    """Return the user with this name, or None."""
    return _user_where(connection, users.c.name == name)


def require_user(connection: sa.Connection, name: str) -> User:
    """Return the user with this name. Raises NotFound."""
    user = user_named(connection, name)
    if user is None:
        names = [existing.name for existing in all_users(connection)]
        raise NotFound(
            f"user {name[:80]!r}",
            "no such user",
            f"Known: {', '.join(names) or 'none'}.{nearest(name, names)}",
            outside="See: thumbwheel users list",
        )
    return user


def user_of_provider(connection: sa.Connection, issuer: str, external_id: str) -> User | None:
    """Return the user whom a provider knows by this id, or None."""
    condition = sa.and_(users.c.issuer == issuer, users.c.external_id == external_id)
    return _user_where(connection, condition)


def password_of(connection: sa.Connection, user_id: str) -> str | None:
    """Return the hash of a user's password; None without one."""
    query = sa.select(users.c.password).where(users.c.id == user_id)
    return connection.execute(query).scalar()


def update_user(connection: sa.Connection, user_id: str, fields: Fields) -> None:
    """Change columns of a user."""
    connection.execute(sa.update(users).where(users.c.id == user_id).values(**fields))


def delete_user(connection: sa.Connection, user_id: str) -> None:
    """Delete a user with their roles, keys and sessions."""
    for table in (user_roles, api_keys, login_sessions):
        connection.execute(sa.delete(table).where(table.c.user_id == user_id))
    connection.execute(sa.delete(users).where(users.c.id == user_id))


def delete_everybody(connection: sa.Connection) -> dict[str, int]:
    """Delete all users, keys and sessions; return kind -> how many there were."""
    counts = {}
    for kind, table in (("sessions", login_sessions), ("keys", api_keys), ("users", users)):
        counts[kind] = connection.execute(
            sa.select(sa.func.count()).select_from(table)
        ).scalar_one()
    for table in (user_roles, login_sessions, api_keys, users):
        connection.execute(sa.delete(table))
    return counts


def set_role(connection: sa.Connection, user_id: str, agent: str, role: Role | None) -> None:
    """Set a user's role for an agent; None removes it."""
    is_theirs = sa.and_(user_roles.c.user_id == user_id, user_roles.c.agent == agent)
    connection.execute(sa.delete(user_roles).where(is_theirs))
    if role is not None:
        values = {"user_id": user_id, "agent": agent, "role": role}
        connection.execute(sa.insert(user_roles).values(values))


def insert_session(connection: sa.Connection, session: LoginSession, mac: str) -> None:
    """Store a session with the hash of its cookie; delete expired sessions."""
    expired = login_sessions.c.expires_at < session.recorded_at
    connection.execute(sa.delete(login_sessions).where(expired))
    connection.execute(sa.insert(login_sessions).values(vars(session) | {"mac": mac}))


def sessions(connection: sa.Connection) -> list[tuple[LoginSession, str]]:
    """Return all sessions, each with the hash of its cookie."""
    result = []
    for row in connection.execute(sa.select(login_sessions)):
        session = LoginSession(row.id, row.user_id, row.expires_at, row.recorded_at)
        result.append((session, row.mac))
    return result


def delete_sessions(
    connection: sa.Connection, *, session_id: str | None = None, user_id: str | None = None
) -> None:
    """Delete one session, or all of a user."""
    column, value = login_sessions.c.id, session_id
    if session_id is None:
        column, value = login_sessions.c.user_id, user_id
    connection.execute(sa.delete(login_sessions).where(column == value))


def delete_sessions_of_token(connection: sa.Connection) -> None:
    """Delete the sessions that were opened as the home's owner."""
    connection.execute(sa.delete(login_sessions).where(login_sessions.c.user_id.is_(None)))


def insert_audit(connection: sa.Connection, entry: AuditEntry) -> None:
    """Add a row to the audit log."""
    connection.execute(sa.insert(audit).values(vars(entry)))


def last_audit(connection: sa.Connection) -> AuditEntry | None:
    """Return the newest row of the audit log; None if it is empty."""
    query = sa.select(audit).order_by(audit.c.number.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _entry(row)


def last_number(connection: sa.Connection) -> int:
    """Return the number of the newest row of the audit log, 0 if it is empty. Every change of keys,
    users and sessions writes such a row, so the number changes with each."""
    return connection.execute(sa.select(sa.func.max(audit.c.number))).scalar() or 0


def audit_entries(connection: sa.Connection) -> Iterator[AuditEntry]:
    """Yield the audit log from its beginning."""
    for row in streamed(connection, sa.select(audit).order_by(audit.c.number)):
        yield _entry(row)


def newest_audit(connection: sa.Connection, limit: int, before: int | None) -> list[AuditEntry]:
    """Return up to `limit` rows of the audit log, newest first; with `before`, only those with
    smaller numbers."""
    query = sa.select(audit).order_by(audit.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.number < before)
    return [_entry(row) for row in connection.execute(query)]


def _key(row: Any) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        user_id=row.user_id,
        prefix=row.prefix,
        grants=grants_of(row.grants),
        expires_at=row.expires_at,
        used_at=row.used_at,
        recorded_at=row.recorded_at,
    )


def _user(row: Any, roles: Mapping[str, Role]) -> User:
    return User(
        id=row.id,
        name=row.name,
        roles=roles,
        has_password=row.password is not None,
        provider=row.issuer,
        recorded_at=row.recorded_at,
    )


def _user_where(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> User | None:
    row = connection.execute(sa.select(users).where(condition)).first()
    if row is None:
        return None
    query = sa.select(user_roles).where(user_roles.c.user_id == row.id)
    roles = {entry.agent: entry.role for entry in connection.execute(query)}
    return _user(row, roles)


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        number=row.number,
        recorded_at=row.recorded_at,
        actor=row.actor,
        action=row.action,
        agent=row.agent,
        content=row.content,
        mac=row.mac,
    )
