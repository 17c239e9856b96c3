"""Logging in and out.

A code of the home's owner opens a browser's session: `GET /login?code=...` answers with a cookie
and sends the browser on to the home page. The code works once, so that a history or a log that
keeps the URL gives nothing away. Users log in by their password, or by the OIDC provider of the
settings. A login always makes a new session, and ends the one that the browser had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import Field

from thumbwheel.access import audit, users
from thumbwheel.access.audit import Act
from thumbwheel.access.credentials import COOKIE, CSRF_COOKIE, Credentials
from thumbwheel.access.gate import AccessGate, Identity, OpenedSession
from thumbwheel.access.needs import address_of, needs, public
from thumbwheel.access.types import ANONYMOUS, ANY_AGENT, VERBS, Grants, Verb, grants_of
from thumbwheel.core.config import Config
from thumbwheel.core.errors import Conflict, Forbidden, NotFound, Unauthenticated
from thumbwheel.core.field_words import describe_fields
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.server.entrance import ENTRANCE
from thumbwheel.server.pages.rendering import login_response
from thumbwheel.server.pages.routes import PageRoute

if TYPE_CHECKING:
    from thumbwheel.access.provider import Provider

ATTEMPT_COOKIE = "thumbwheel_login"
CALLBACK = "/login/provider/callback"


class LoginRequest(Config):
    """A name and its password."""

    name: str = Field(pattern=r"^[^\x00]*$", max_length=users.LONGEST_NAME)
    """Of the user"""
    password: str = Field(max_length=users.LONGEST)
    """Of the user"""


class WebTokenRequest(Config):
    """What a token may; by default what its maker may."""

    agent: tuple[str, ...] = ()
    """Agents [default: all that the maker may]"""
    verb: tuple[str, ...] = ()
    """Verbs [default: all that the maker may]"""


@dataclass(frozen=True)
class Caller:
    """The sender of a request, and what they may do."""

    name: str
    """Name of the key or user."""
    kind: str
    """token, key, user or anonymous-loopback."""
    may: dict[str, list[Verb]]
    """Agent (`*` for every agent) -> verbs."""
    csrf: str | None
    """Value of the header x-csrf-token in a browser's session; None without one."""


@dataclass(frozen=True)
class StartedSession:
    """A session that a login has started."""

    name: str
    """Name of the user."""
    csrf: str
    """Value for the header x-csrf-token of requests that change something."""
    seconds: int
    """How long the session lasts."""


@dataclass(frozen=True)
class EndedSession:
    """A session that a logout has ended."""

    name: str
    """Name of the user."""


@dataclass(frozen=True)
class WebToken:
    """A signed token that is valid for minutes."""

    token: str
    """The token, for `Authorization: Bearer`."""
    seconds: int
    """How long it is valid."""


def router(gate: AccessGate) -> APIRouter:
    """Return the router for logging in and out."""
    for answer in (Caller, StartedSession, EndedSession, WebToken):
        describe_fields(answer)
    routes = APIRouter(route_class=PageRoute)
    _add_entrance(routes, gate)
    _add_password(routes, gate)
    _add_web_tokens(routes, gate)
    if gate.config.provider is not None:
        from thumbwheel.access.provider import Provider

        secrets = SecretStore(gate.ws.home.secrets)
        _add_provider(routes, gate, Provider(gate.config.provider, secrets, gate.seal))
    return routes


def _add_entrance(routes: APIRouter, gate: AccessGate) -> None:
    @routes.get(
        ENTRANCE,
        include_in_schema=False,
        dependencies=[public("who logs in has nothing to present yet")],
    )
    def enter(request: Request, code: str | None = None) -> Response:
        if code is None:
            return login_response(request)
        if not gate.redeem(code):
            gate.limits.count_failure(address_of(request))
            raise Unauthenticated(
                "the code in the URL",
                "it was used already, is older than ten minutes, or is none of this home",
                "Run thumbwheel open on the machine of the server",
            )
        response = RedirectResponse("/", 303)
        _log_in(request, response, gate, None)
        return response

    @routes.get("/api/whoami", operation_id="whoami", dependencies=[needs(None)])
    def whoami(request: Request) -> Caller:
        """Return who the caller is, and what they may do."""
        identity: Identity = request.state.identity
        principal = identity.principal
        grants = {agent: sorted(verbs) for agent, verbs in principal.grants.items()}
        return Caller(principal.name, principal.kind, grants, identity.csrf)


def _add_password(routes: APIRouter, gate: AccessGate) -> None:
    @routes.post(
        "/api/login",
        operation_id="login",
        dependencies=[public("who logs in has nothing to present yet")],
    )
    async def log_in(request: Request, login: LoginRequest, response: Response) -> StartedSession:
        """Log a browser in by name and password."""
        if Credentials.of(request.headers).is_foreign:
            raise Forbidden(
                "the login", "a page of another site sends it", "Log in from a page of this server"
            )
        gate.limits.count_login(address_of(request), login.name)
        try:
            user = await gate.passwords.authenticate(gate.ws, login.name, login.password)
        except Unauthenticated:
            await run_in_threadpool(audit.record, gate.ws, Act(ANONYMOUS.id, "login.refused"))
            raise
        session = await run_in_threadpool(_log_in, request, response, gate, user.id)
        return StartedSession(user.name, session.csrf, session.seconds)

    @routes.post("/api/logout", operation_id="logout", dependencies=[needs(None)])
    def log_out(request: Request, response: Response) -> EndedSession:
        """End the session of the browser."""
        identity: Identity = request.state.identity
        if identity.session is None:
            raise Conflict(
                "the logout", "a key was presented, and no session", "Send the cookie alone"
            )
        gate.close_session(identity.session)
        response.delete_cookie(COOKIE)
        response.delete_cookie(CSRF_COOKIE)
        return EndedSession(identity.principal.name)


def _add_web_tokens(routes: APIRouter, gate: AccessGate) -> None:
    @routes.post("/api/web-tokens", operation_id="web-tokens", dependencies=[needs(None)])
    def make_token(request: Request, asked: WebTokenRequest) -> WebToken:
        """Change a key or a session into a token that lives for minutes, perhaps for less than
        they may."""
        identity: Identity = request.state.identity
        if identity.by_web_token:
            raise Forbidden(
                "the token", "a token cannot be changed into a new one", "Present the key itself"
            )
        bound = _bound(asked)
        token, seconds = gate.make_web_token(identity.principal, bound)
        return WebToken(token, seconds)


def _add_provider(routes: APIRouter, gate: AccessGate, provider: Provider) -> None:
    from thumbwheel.access.provider import ATTEMPT_SECONDS

    @routes.get(
        "/login/provider",
        include_in_schema=False,
        dependencies=[public("who logs in has nothing to present yet")],
    )
    def begin(request: Request) -> Response:
        redirect_uri = str(request.base_url).rstrip("/") + CALLBACK
        url, attempt = provider.begin(redirect_uri)
        response = RedirectResponse(url, 303)
        _set_cookie(request, response, ATTEMPT_COOKIE, attempt, ATTEMPT_SECONDS, path=CALLBACK)
        return response

    @routes.get(
        CALLBACK,
        include_in_schema=False,
        dependencies=[public("the provider sends the browser here")],
    )
    def finish(request: Request) -> Response:
        cookie = request.cookies.get(ATTEMPT_COOKIE)
        if cookie is None:
            raise NotFound(
                "the login by the provider", "this browser began none", "Open /login/provider"
            )
        try:
            attempt = provider.returned(cookie, request.query_params)
        except Unauthenticated:
            gate.limits.count_failure(address_of(request))
            audit.record(gate.ws, Act(ANONYMOUS.id, "login.refused"))
            raise
        # by the attempt, whose name nobody else has: strangers use up no login of others
        gate.limits.count_login(address_of(request), attempt.state)
        try:
            identity = provider.finish(attempt, request.query_params)
            user = users.of_provider(gate.ws, identity.issuer, identity.external_id, identity.name)
        except Unauthenticated:
            audit.record(gate.ws, Act(ANONYMOUS.id, "login.refused"))
            raise
        response = RedirectResponse("/", 303)
        response.delete_cookie(ATTEMPT_COOKIE, path=CALLBACK)
        _log_in(request, response, gate, user.id)
        return response


def _log_in(
    request: Request, response: Response, gate: AccessGate, user_id: str | None
) -> OpenedSession:
    """Give the browser a new session, and end its previous one."""
    earlier = gate.identify(Credentials.of(request.headers))
    if earlier is not None and earlier.session is not None:
        gate.close_session(earlier.session)
    session = gate.open_session(user_id)
    _set_cookie(request, response, COOKIE, session.cookie, session.seconds)
    _set_cookie(request, response, CSRF_COOKIE, session.csrf, session.seconds, script=True)
    response.headers["cache-control"] = "no-store"
    response.headers["referrer-policy"] = "no-referrer"
    return session


def _set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    seconds: int,
    *,
    path: str = "/",
    script: bool = False,
) -> None:
    """Set a cookie for `seconds`. `script`: scripts in this server's pages may read it."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, seconds, path=path, httponly=not script, samesite="lax", secure=secure
    )


def _bound(asked: WebTokenRequest) -> Grants | None:
    if not asked.agent and not asked.verb:
        return None
    verbs = list(asked.verb or VERBS)
    return grants_of(dict.fromkeys(asked.agent or (ANY_AGENT,), verbs))
