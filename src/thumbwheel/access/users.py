"""Users: their passwords, and what they are for which agent.

Passwords are hashed by Argon2id. A login takes as long for a name that nobody has as for one that
somebody has, and a hash of older parameters is renewed when its password comes by.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from thumbwheel.access import audit, store
from thumbwheel.access.audit import Act
from thumbwheel.access.look_alikes import looks_of, scripts_of
from thumbwheel.access.types import ANY_AGENT, ROLES, Role, User
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, Unauthenticated
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ACCESS

if TYPE_CHECKING:
    from argon2 import PasswordHasher

NO_ROLE = "none"
LONGEST_NAME = 120
SHORTEST, LONGEST = 12, 1024
"""Characters of a password."""
AT_ONCE = threading.BoundedSemaphore(2)
"""Each hash takes 64 MiB of memory, so that many new passwords at once wait for each other. Logins
have threads of their own (`password_checks`)."""


def add(
    ws: Workspace,
    name: str,
    *,
    password: str | None,
    role: str = "viewer",
    agent: str | None = None,
    actor: str = audit.COMMAND_LINE,
) -> User:
    """Add a user with a role for an agent (default: every one).

    Without a password they log in through the OIDC provider of the settings, under that name.
    Raises InputError for an invalid name, password or role, Conflict for a name in use.
    """
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InputError(
            f"user name {name[:80]!r}",
            f"a name has 1 to {LONGEST_NAME} printable characters, without spaces around them",
            "Choose another name, for example ann or ann@example.com",
        )
    if len(scripts := scripts_of(name)) > 1:
        raise InputError(
            f"user name {name[:80]!r}",
            f"it has letters of {' and '.join(scripts)}, of which some look the same",
            "Write it in one script",
        )
    hashed = None if password is None else hash_of(password)
    roles = {_agent(agent): _role(role)}
    user = User(ids.new("usr"), name, roles, hashed is not None, None, datetime.now(UTC))

    def insert(connection: sa.Connection) -> tuple[User, Act]:
        if store.user_named(connection, name) is not None:
            raise Conflict(
                f"user {name!r}",
                "a user with that name exists",
                "Choose another name, or change the role: thumbwheel users role NAME ROLE",
            )
        if any(looks_of(user.name) == looks_of(name) for user in store.all_users(connection)):
            raise Conflict(
                f"user {name!r}",
                "another user has a name that looks like it",
                "Choose a name that people can tell from it",
            )
        store.insert_user(connection, user, hashed)
        return user, Act(actor, "users.add", content={"user": user.id, "roles": roles})

    return audit.write(ws, insert)


def set_role(
    ws: Workspace,
    name: str,
    role: str,
    *,
    agent: str | None = None,
    actor: str = audit.COMMAND_LINE,
) -> User:
    """Set a user's role for an agent (default: every agent); `none` removes it. Raises NotFound for
    an unknown user."""
    checked = None if role == NO_ROLE else _role(role)
    slug = _agent(agent)

    def change(connection: sa.Connection) -> tuple[User, Act]:
        user = store.require_user(connection, name)
        store.set_role(connection, user.id, slug, checked)
        content = {"user": user.id, "role": checked}
        whose = None if slug == ANY_AGENT else slug
        return store.require_user(connection, name), Act(actor, "users.role", whose, content)

    return audit.write(ws, change)


def set_password(
    ws: Workspace, name: str, password: str, *, actor: str = audit.COMMAND_LINE
) -> User:
    """Change a user's password and end all their sessions. Raises NotFound, InputError."""
    hashed = hash_of(password)

    def change(connection: sa.Connection) -> tuple[User, Act]:
        user = store.require_user(connection, name)
        store.update_user(connection, user.id, {"password": hashed})
        store.delete_sessions(connection, user_id=user.id)
        return user, Act(actor, "users.password", content={"user": user.id})

    return audit.write(ws, change)


def remove(ws: Workspace, name: str, *, actor: str = audit.COMMAND_LINE) -> User:
    """Remove a user with their keys and sessions. The audit log keeps their acts under an id that
    no longer leads to a name."""

    def delete(connection: sa.Connection) -> tuple[User, Act]:
        ws.db.prepare_erasure(connection)
        user = store.require_user(connection, name)
        store.delete_user(connection, user.id)
        return user, Act(actor, "users.remove", content={"user": user.id})

    return audit.write(ws, delete)


def listed(ws: Workspace) -> list[User]:
    """Return all users, newest last."""
    with ws.db.read() as connection:
        return store.all_users(connection)


def authenticate(ws: Workspace, name: str, password: str) -> User:
    """Return the user with this name and password. Raises Unauthenticated, which does not tell
    whether the user exists."""
    from argon2.exceptions import InvalidHashError, VerificationError

    with ws.db.read() as connection:
        user = store.user_named(connection, name)
        stored = None if user is None else store.password_of(connection, user.id)
    is_right = False
    with suppress(VerificationError, InvalidHashError):
        is_right = hasher().verify(stored or _decoy(), password[: LONGEST + 1])
    if user is None or stored is None or not is_right:
        raise Unauthenticated(
            "the login",
            "the name or the password is wrong",
            "Try again, or ask an owner for a new password: thumbwheel users password NAME",
        )
    if hasher().check_needs_rehash(stored):
        _update(ws, user, {"password": hash_of(password)})
    return user


def of_provider(ws: Workspace, issuer: str, external_id: str, name: str) -> User:
    """Return the user whom a provider knows by this id.

    At the first login that is the user who was added without a password under the name that the
    provider vouches for; the id is stored. Raises Unauthenticated for anybody else.
    """
    with ws.db.read() as connection:
        user = store.user_of_provider(connection, issuer, external_id)
        candidate = store.user_named(connection, name)
    if user is not None:
        return user
    if candidate is None or candidate.has_password or candidate.provider is not None:
        raise Unauthenticated(
            "the login by the provider",
            "no user was added under the name that it gives",
            "Ask an owner: thumbwheel users add NAME --by-provider",
        )
    _update(ws, candidate, {"issuer": issuer, "external_id": external_id})
    return candidate


def hash_of(password: str) -> str:
    """Return the Argon2id hash of a password. Raises InputError if it is too short or too long."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise InputError(
            f"a password of {len(password)} characters",
            f"a password has {SHORTEST} to {LONGEST}",
            "Choose another one; several words are fine",
        )
    with AT_ONCE:
        return hasher().hash(password)


def remove_everybody(connection: sa.Connection) -> dict[str, int]:
    """Remove all users with their roles, keys and sessions, and the keys of apps, from rows that
    come from elsewhere; return kind -> how many. What they did stays in the audit log."""
    return store.delete_everybody(connection)


@cache
def hasher() -> PasswordHasher:
    """Return an Argon2id hasher with the parameters that RFC 9106 recommends for little memory."""
    from argon2 import PasswordHasher
    from argon2.profiles import RFC_9106_LOW_MEMORY

    return PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


@cache
def _decoy() -> str:
    """Return a hash that no password matches, for unknown names."""
    return hasher().hash(ids.new("decoy"))


def _update(ws: Workspace, user: User, fields: Mapping[str, Any]) -> None:
    ws.db.write(lambda connection: store.update_user(connection, user.id, fields), ACCESS)


def _role(role: str) -> Role:
    for name in ROLES:
        if name == role:
            return name
    raise InputError(
        f"role {role[:40]!r}",
        "there is no such role",
        f"Known: {', '.join([*ROLES, NO_ROLE])}.{nearest(role, ROLES)}",
    )


def _agent(agent: str | None) -> str:
    return ANY_AGENT if agent is None else ids.slug_of(agent)
