"""Keys, users and sessions in memory: who presents what is looked up without a row being read.

What is new holds at once, wherever it was made; what is revoked, removed or changed holds 50 ms
later (db/refreshed.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from thumbwheel.access import store
from thumbwheel.access.types import (
    ANY_AGENT,
    LOCAL_TOKEN,
    ApiKey,
    Grants,
    LoginSession,
    Principal,
    Verb,
)
from thumbwheel.core.errors import Busy
from thumbwheel.db.refreshed import Refreshed
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS

USED_EVERY = timedelta(minutes=1)
"""The last use of a key is written at most so often."""


@dataclass(frozen=True)
class Entries:
    """One state of the directory."""

    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    """By the keyed hash of the key."""
    sessions: Mapping[str, LoginSession] = field(default_factory=dict)
    """By the keyed hash of the cookie."""
    principals: Mapping[str, Principal] = field(default_factory=dict)
    """Users and keys by their ids."""


class Directory:
    """Start it by `with`."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._changes = ws.db.changes()
        self._entries = Entries()
        self._marker: object = None
        self._number = -1
        self._used: dict[str, datetime] = {}
        self._used_written = datetime.now(UTC)
        self._refreshed = Refreshed(self._look, "keys and users")

    def __enter__(self) -> Directory:
        self._refreshed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._refreshed.__exit__()
        self._changes.close()
        written = self._write_used()
        if written is not None:
            written.result()

    def problem(self) -> str | None:
        """Return why the directory may be out of date; None if it is not."""
        return self._refreshed.problem

    def is_empty(self) -> bool:
        """Return whether there is neither a key nor a user."""
        return not self._current().principals

    def of_key(self, mac: str) -> Principal | None:
        """Return the principal of the key with this hash; None if it is unknown or expired."""
        entries = self._current_with(lambda entries: mac in entries.keys)
        key = entries.keys.get(mac)
        now = datetime.now(UTC)
        if key is None or (key.expires_at is not None and key.expires_at <= now):
            return None
        self._used[key.id] = now
        return entries.principals[key.id]

    def of_session(self, mac: str) -> tuple[LoginSession, Principal] | None:
        """Return the session of the cookie with this hash, and its principal; None if it is unknown
        or expired."""
        entries = self._current_with(lambda entries: mac in entries.sessions)
        session = entries.sessions.get(mac)
        if session is None or session.expires_at <= datetime.now(UTC):
            return None
        if session.user_id is None:
            return session, LOCAL_TOKEN
        principal = entries.principals.get(session.user_id)
        return None if principal is None else (session, principal)

    def of_id(self, principal_id: str) -> Principal | None:
        """Return the current key or user with this id; None if it is unknown or expired."""
        entries = self._current_with(lambda entries: principal_id in entries.principals)
        for key in entries.keys.values():
            is_expired = key.expires_at is not None and key.expires_at <= datetime.now(UTC)
            if key.id == principal_id and is_expired:
                return None
        return entries.principals.get(principal_id)

    def refresh(self) -> bool:
        """Read again; return whether everything written before this call is included, which it is
        not where the database does not answer soon."""
        return self._refreshed.ask(age=0)

    def _current(self) -> Entries:
        self._refreshed.ask()
        return self._entries

    def _current_with(self, has: Callable[[Entries], bool]) -> Entries:
        """Return the entries, after reading them again if `has` does not hold: another process may
        just have written the missing one. Raises Busy if they could not be read soon enough to
        tell."""
        entries = self._current()
        if has(entries):
            return entries
        is_complete = self.refresh()
        if not is_complete and not has(self._entries):
            raise Busy(
                "the key or session of the request",
                "the database has not answered yet whether it was issued",
                "Send the request again in a second",
            )
        return self._entries

    def _look(self) -> None:
        if self._used and datetime.now(UTC) - self._used_written > USED_EVERY:
            self._write_used()
        marker = self._changes.marker()
        if marker == self._marker:
            return
        with self._ws.db.read() as connection:
            # every change of keys, users and sessions is in the audit log
            number = store.last_number(connection)
            if number != self._number:
                keys = store.keys(connection)
                users = store.all_users(connection)
                sessions = store.sessions(connection)
                principals = {
                    user.id: Principal(user.id, user.name, "user", user.grants) for user in users
                }
                for key, _ in keys:
                    principals[key.id] = _principal(key, principals)
                self._entries = Entries(
                    keys={mac: key for key, mac in keys},
                    sessions={mac: session for session, mac in sessions},
                    principals=principals,
                )
                self._number = number
        self._marker = marker

    def _write_used(self) -> Future[None] | None:
        """Submit the last uses for writing, without waiting; return None if there is nothing to
        write or the queue is full."""
        used = dict(self._used)
        self._used_written = datetime.now(UTC)
        if not used:
            return None
        work = partial(store.mark_used, used=used)
        try:
            written = self._ws.db.submit(work, ROWS, wait=False)
        except Busy:
            return None  # the next time
        self._used = {}
        return written


def narrowed(grants: Grants, bound: Grants) -> Grants:
    """Return the grants that both allow.

    >>> narrowed({"*": frozenset({"read"})}, {"support": frozenset({"read", "rate"})})
    {'support': frozenset({'read'})}
    """
    both: dict[str, frozenset[Verb]] = {}
    for agent in {*grants, *bound}:
        verbs = _verbs(grants, agent) & _verbs(bound, agent)
        if verbs:
            both[agent] = verbs
    return both


def _verbs(grants: Grants, agent: str) -> frozenset[Verb]:
    return grants.get(ANY_AGENT, frozenset()) | grants.get(agent, frozenset())


def _principal(key: ApiKey, users: Mapping[str, Principal]) -> Principal:
    grants = key.grants
    if key.user_id is not None:
        grants = narrowed(grants, users[key.user_id].grants)
    return Principal(key.id, key.name, "key", grants)
