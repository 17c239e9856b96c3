"""The gate of a server: who presents what."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from thumbwheel.access import audit, store
from thumbwheel.access.audit import Act
from thumbwheel.access.credentials import KEY_PREFIX, Credentials
from thumbwheel.access.directory import Directory, narrowed
from thumbwheel.access.keys import mac_of
from thumbwheel.access.local_token import LocalToken
from thumbwheel.access.login_codes import LoginCodes
from thumbwheel.access.password_checks import PasswordChecks
from thumbwheel.access.rate_limits import RateLimits
from thumbwheel.access.settings import AccessConfig
from thumbwheel.access.types import (
    LOCAL_TOKEN,
    PAGE_OF_OWNER,
    Grants,
    LoginSession,
    Principal,
)
from thumbwheel.access.web_tokens import WebTokens, looks_like_token
from thumbwheel.access.work_shares import WorkShares
from thumbwheel.core import ids
from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.db.workspace import Workspace


@dataclass(frozen=True)
class Identity:
    """Who asks, and how that is known."""

    principal: Principal
    session: LoginSession | None = None
    """The session whose cookie was sent, by a browser that sends it along with everything."""
    csrf: str | None = None
    """What has to come along with a change in that session."""
    by_web_token: bool = False
    """Whether a token was presented that a key or session was changed into."""


@dataclass(frozen=True)
class OpenedSession:
    """A session that has just begun."""

    cookie: str
    csrf: str
    seconds: int


@dataclass(frozen=True)
class AccessGate:
    """Knows the token of the home, keys, users, sessions and web tokens."""

    ws: Workspace
    config: AccessConfig
    directory: Directory
    token: LocalToken | None
    """None on a server that others can reach: there it opens nothing."""
    codes: LoginCodes
    web_tokens: WebTokens
    limits: RateLimits
    passwords: PasswordChecks
    admits_apps: bool
    """Whether apps on this machine may call, and send traces and feedback, without any key."""
    seal: Seal
    shares: WorkShares = field(default_factory=WorkShares)

    def identify(self, credentials: Credentials) -> Identity | None:
        """Return the identity that presents these credentials; None if nobody here does."""
        for value in credentials.keys:
            principal = self._of_key(value)
            if principal is not None:
                return Identity(principal, by_web_token=looks_like_token(value))
        if credentials.session is None:
            return None
        entry = self.directory.of_session(self._session_mac(credentials.session))
        if entry is None:
            return None
        session, principal = entry
        if session.user_id is None and self.token is None:
            return None
        return Identity(principal, session, self._csrf(credentials.session))

    def admits(self, credentials: Credentials) -> bool:
        """Return whether an app on this machine that presents these credentials, none of them
        known, needs no key. An app that presents something like a key of this home is refused, so
        that it learns that the key no longer works."""
        return self.admits_apps and not credentials.are_of_ours

    def open_session(self, user_id: str | None) -> OpenedSession:
        """Open a session with a new cookie, whatever the browser presented before. Without a user
        it is the home owner's."""
        cookie = secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        lifetime = timedelta(hours=self.config.session_hours)
        session = LoginSession(ids.new("lgn"), user_id, now + lifetime, now)
        act = Act(user_id or LOCAL_TOKEN.id, "login", content={"session": session.id})

        def insert(connection: sa.Connection) -> tuple[None, Act]:
            store.insert_session(connection, session, self._session_mac(cookie))
            return None, act

        audit.write(self.ws, insert)
        self.directory.refresh()
        return OpenedSession(cookie, self._csrf(cookie), int(lifetime.total_seconds()))

    def redeem(self, code: str) -> bool:
        """Use up a login code; return whether it was valid, so that its browser is logged in as the
        home's owner."""
        return self.token is not None and self.codes.redeem(code)

    def close_session(self, session: LoginSession) -> None:
        """Log a browser out."""
        act = Act(session.user_id or LOCAL_TOKEN.id, "logout", content={"session": session.id})

        def delete(connection: sa.Connection) -> tuple[None, Act]:
            store.delete_sessions(connection, session_id=session.id)
            return None, act

        audit.write(self.ws, delete)
        self.directory.refresh()

    def make_web_token(self, principal: Principal, bound: Grants | None) -> tuple[str, int]:
        """Return (a token for the principal, its lifetime in seconds); `bound` limits its
        grants."""
        seconds = int(self.config.token_minutes * 60)
        grants = principal.grants if bound is None else narrowed(principal.grants, bound)
        return self.web_tokens.make(principal, grants, seconds), seconds

    def _of_key(self, value: str) -> Principal | None:
        if self.token is not None and self.token.equals(value):
            return LOCAL_TOKEN
        if value.startswith(KEY_PREFIX):
            return self.directory.of_key(mac_of(self.seal, value))
        if looks_like_token(value):
            return self._of_web_token(value)
        return None

    def _of_web_token(self, token: str) -> Principal | None:
        """Return the principal of a token, with the grants that both have now; None if it is not
        valid."""
        content = self.web_tokens.read(token)
        if content is None:
            return None
        principal_id, grants = content
        is_local = principal_id == LOCAL_TOKEN.id and self.token is not None
        principal = LOCAL_TOKEN if is_local else self.directory.of_id(principal_id)
        if principal is None:
            return None
        allowed = narrowed(principal.grants, grants)
        if is_local and allowed != LOCAL_TOKEN.grants:
            return Principal(PAGE_OF_OWNER, "token of a page", "token", allowed)
        return Principal(principal.id, principal.name, principal.kind, allowed)

    def _session_mac(self, cookie: str) -> str:
        return self.seal.of("session", cookie)

    def _csrf(self, cookie: str) -> str:
        return self.seal.of("csrf", cookie)


@contextmanager
def opened_gate(
    ws: Workspace, config: AccessConfig, *, local: bool, apps: bool
) -> Iterator[AccessGate]:
    """Yield the gate of a server of this home. `local`: only this machine reaches the server, so
    the home's token counts. `apps`: apps on this machine need no key."""
    token = LocalToken.of_file(ws.home.access_token) if local else None
    with Directory(ws) as directory, closing(PasswordChecks()) as passwords:
        yield AccessGate(
            ws=ws,
            config=config,
            directory=directory,
            token=token,
            codes=LoginCodes(ws.home.login_codes),
            web_tokens=WebTokens(ws.home.token_keys),
            limits=RateLimits(config.requests_per_minute),
            passwords=passwords,
            admits_apps=apps and local,
            seal=make_seal(ws.home.access_key),
        )


def replace_token(ws: Workspace) -> None:
    """Replace the home's token, and end the sessions and codes that derive from the old one."""

    def end_sessions(connection: sa.Connection) -> tuple[None, Act]:
        store.delete_sessions_of_token(connection)
        return None, Act(LOCAL_TOKEN.id, "token.replace")

    LocalToken.of_file(ws.home.access_token).replace()
    LoginCodes(ws.home.login_codes).forget()
    audit.write(ws, end_sessions)
