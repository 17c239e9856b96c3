"""API keys: made once, shown once, stored as keyed hashes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from thumbwheel.access import audit, store
from thumbwheel.access.audit import Act
from thumbwheel.access.credentials import KEY_PREFIX
from thumbwheel.access.look_alikes import looks_of
from thumbwheel.access.types import ANY_AGENT, VERBS, ApiKey, Grants, grants_of
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.core.secret_store import NAME
from thumbwheel.db.workspace import Workspace

SHOWN = len(KEY_PREFIX) + 8
"""Characters of a key that stay known."""
KIND = "api key"
"""Of the keyed hash."""
LONGEST_DAYS = 3650


@dataclass(frozen=True)
class NewKey:
    """A key that was just made."""

    key: ApiKey
    secret: str
    """The key itself, which nobody can show again."""


def add(
    ws: Workspace,
    name: str,
    *,
    agents: Iterable[str] = (),
    verbs: Iterable[str] = (),
    days: int | None = None,
    user: str | None = None,
    actor: str = audit.COMMAND_LINE,
) -> NewKey:
    """Create a key for these verbs (default: call and rate) on these agents (default: every one).

    With a `user` it is deleted with that user, and may never do more than the user. Raises
    InputError for an invalid name, verb or time, Conflict for a name in use, NotFound for an
    unknown user.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"key name {name[:80]!r}",
            "a name has 1 to 64 letters, digits, - and _, and starts with a letter",
            "Choose another name, for example mobile-app",
        )
    grants = _grants(agents, verbs)
    if days is not None and not 1 <= days <= LONGEST_DAYS:
        raise InputError(
            f"{days} days", f"a key is valid for 1 to {LONGEST_DAYS} days", "Choose another number"
        )
    now = datetime.now(UTC)
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    mac = mac_of(make_seal(ws.home.access_key), secret)
    expires_at = None if days is None else now + timedelta(days=days)

    looks = looks_of(name)

    def insert(connection: sa.Connection) -> tuple[ApiKey, Act]:
        if store.key_named(connection, name) is not None:
            raise Conflict(
                f"key {name!r}",
                "a key with that name exists",
                f"Choose another name, or revoke it: thumbwheel keys revoke {name}",
            )
        alike = [key.name for key, _ in store.keys(connection) if looks_of(key.name) == looks]
        if alike:
            raise Conflict(
                f"key {name!r}",
                "another key has a name that looks like it",
                "Choose a name that people can tell from it",
            )
        owner = None if user is None else store.require_user(connection, user)
        key = ApiKey(
            id=ids.new("key"),
            name=name,
            user_id=None if owner is None else owner.id,
            prefix=secret[:SHOWN],
            grants=grants,
            expires_at=expires_at,
            used_at=None,
            recorded_at=now,
        )
        store.insert_key(connection, key, mac)
        content = {
            "key": key.id,
            "user": key.user_id,
            "grants": {agent: sorted(granted) for agent, granted in grants.items()},
        }
        return key, Act(actor, "keys.add", content=content)

    return NewKey(audit.write(ws, insert), secret)


def revoke(ws: Workspace, name: str, *, actor: str = audit.COMMAND_LINE) -> ApiKey:
    """Delete a key, so that it is no longer accepted. Raises NotFound."""

    def delete(connection: sa.Connection) -> tuple[ApiKey, Act]:
        key = store.key_named(connection, name)
        if key is None:
            names = [existing.name for existing, _ in store.keys(connection)]
            raise NotFound(
                f"key {name[:80]!r}",
                "no such key",
                f"Known: {', '.join(names) or 'none'}.{nearest(name, names)}",
                outside="See: thumbwheel keys list",
            )
        store.delete_key(connection, key.id)
        return key, Act(actor, "keys.revoke", content={"key": key.id})

    return audit.write(ws, delete)


def listed(ws: Workspace) -> list[ApiKey]:
    """Return all keys, newest last."""
    with ws.db.read() as connection:
        return [key for key, _ in store.keys(connection)]


def mac_of(seal: Seal, secret: str) -> str:
    """Return the keyed hash under which a key is stored."""
    return seal.of(KIND, secret)


def _grants(agents: Iterable[str], verbs: Iterable[str]) -> Grants:
    granted: list[str] = []
    for verb in verbs:
        if verb not in VERBS:
            raise InputError(
                f"verb {verb[:40]!r}",
                "there is no such verb",
                f"Known: {', '.join(VERBS)}.{nearest(verb, VERBS)}",
            )
        granted.append(verb)
    if not granted:
        granted = ["call", "rate"]
    names = [ids.slug_of(agent) for agent in agents]
    return grants_of(dict.fromkeys(names or [ANY_AGENT], granted))
