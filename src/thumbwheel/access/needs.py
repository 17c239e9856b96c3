"""What a route needs: `dependencies=[needs("read")]` beside its path.

An application in which a route names no need does not start (`check_routes`). The agent that a need
is about is the one in the path. A route without one needs the verb for everything there is, unless
it checks each row itself (`by_row`), by `request.state.principal.require(verb, agent)`.

What changes anything is in the audit log before it happens. Traces and feedback that come in are
not: they are records themselves.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.routing import iter_route_contexts

from thumbwheel.access import audit
from thumbwheel.access.audit import Act
from thumbwheel.access.credentials import SAFE_METHODS, Credentials, bearer_of
from thumbwheel.access.gate import AccessGate, Identity
from thumbwheel.access.types import ANONYMOUS, Principal, Verb, forbidden
from thumbwheel.access.work_shares import in_thread_turn
from thumbwheel.core.errors import Forbidden, InputError, Unauthenticated
from thumbwheel.core.ids import slug_of

PLAIN = re.compile(r"[a-z]+_[0-9a-v]{4,}|v\d+")
"""Ids of rows and versions: of a path, only these are in the audit log, because others may hold the
name of a person."""


@dataclass(frozen=True)
class Need:
    """A dependency of FastAPI that lets a request through, and says in `request.state.principal`
    who asks, and in `request.state.identity` how that is known; raises Unauthenticated, Forbidden
    or TooOften."""

    verb: Verb | None
    """None: whoever it is that asks, it has to be somebody."""
    by_row: bool = False
    """Whether the route checks the agent of each row itself, because the path names none."""
    ingest: bool = False
    """Whether apps on this machine send rows there without a key, as long as the server listens on
    loopback and no key is required."""
    elsewhere: Callable[[str], bool] | None = None
    """Whether a bearer is none of ours, and the route checks it itself."""
    recorded: bool = True
    """Whether this writes the audit log, and not what the route calls."""

    async def __call__(self, request: Request) -> None:
        """Check whether a request meets the need."""
        gate: AccessGate = request.app.state.gate
        request.state.verb, request.state.need = self.verb, self
        if self.elsewhere is not None and self.elsewhere(bearer_of(request.headers)):
            request.state.principal = ANONYMOUS
            return
        credentials = Credentials.of(request.headers)
        identity = gate.identify(credentials)
        if identity is None and self.ingest and gate.admits(credentials):
            identity = Identity(ANONYMOUS)
        if identity is None:
            raise _unidentified(gate, credentials, request)
        principal = identity.principal
        request.state.principal, request.state.identity = principal, identity
        changes = request.method not in SAFE_METHODS
        if changes:
            _check_page(identity, credentials, request)
        if principal.kind in ("key", "user"):
            gate.limits.count_request(principal.id)
        agent = _agent(request.path_params)
        self._check(principal, agent)
        is_event = self.verb not in ("read", "call", None) and not self.ingest
        if changes and is_event and self.recorded:
            await in_thread_turn(audit.record, gate.ws, _act(request, principal, agent))

    def refuse_early(self, request: Request, principal: Principal) -> None:
        """Raise Forbidden if the principal lacks the verb, or TooOften: FastAPI reads and parses
        the whole body before it calls the dependencies of a route."""
        if self.elsewhere is not None:
            return
        try:
            self._check(principal, _agent(request.path_params))
        except Forbidden:
            if principal.kind in ("key", "user"):
                gate: AccessGate = request.app.state.gate
                gate.limits.count_request(principal.id)
            raise

    def is_still_met(self, request: Request) -> bool:
        """Return whether a request that was let through still would be: its answer may take longer
        than its key, session, token or role is valid. The principal becomes the current one."""
        gate: AccessGate = request.app.state.gate
        identity = gate.identify(Credentials.of(request.headers))
        if identity is None:
            return False
        request.state.principal = identity.principal
        try:
            self._check(identity.principal, _agent(request.path_params))
        except Forbidden:
            return False
        return True

    def _check(self, principal: Principal, agent: str | None) -> None:
        if self.verb is None:
            return
        if (self.by_row or self.ingest) and agent is None:
            if not principal.may_somewhere(self.verb):
                raise forbidden(principal, self.verb, None)
        else:
            principal.require(self.verb, agent)


@dataclass(frozen=True)
class Public:
    """A dependency that says that a route needs nobody to ask, and why."""

    reason: str

    async def __call__(self) -> None:
        """Let everybody through."""


def needs(
    verb: Verb | None,
    *,
    by_row: bool = False,
    ingest: bool = False,
    elsewhere: Callable[[str], bool] | None = None,
    recorded: bool = True,
) -> Any:
    """Return the dependency of a route that needs `verb`; see Need."""
    return Depends(Need(verb, by_row, ingest, elsewhere, recorded))


def require_agents(request: Request, agents: Iterable[str]) -> None:
    """Raise Forbidden unless the principal may do what the route does to each of these agents: for
    routes whose rows name their agents."""
    principal: Principal = request.state.principal
    for agent in agents:
        principal.require(request.state.verb, agent)


def public(reason: str) -> Any:
    """Return the dependency of a public route, with the reason why it is public."""
    return Depends(Public(reason))


def check_routes(api: FastAPI) -> None:
    """Raise AssertionError if a route of the application declares neither its need nor that it is
    public."""
    unsafe = [path for path, need in needs_of(api).items() if need is None]
    if unsafe:
        raise AssertionError(
            f"routes that name no need (thumbwheel.access.needs): {', '.join(sorted(unsafe))}"
        )


def needs_of(api: FastAPI) -> dict[str, Need | Public | None]:
    """Return `METHOD path` -> what the route needs; None if it does not declare anything. FastAPI's
    own document is left out: it shows only what the documentation shows."""
    needed: dict[str, Need | Public | None] = {}
    for route in iter_route_contexts(api.routes):
        if route.path != api.openapi_url:
            for method in sorted(route.methods or {"ANY"}):
                needed[f"{method} {route.path}"] = need_of(route)
    return needed


def need_of(route: Any) -> Need | Public | None:
    """Return what a route needs; None if it does not declare anything."""
    dependant = getattr(route, "dependant", None)
    for inner in () if dependant is None else dependant.dependencies:
        if isinstance(inner.call, Need | Public):
            return inner.call
    return None


def _unidentified(gate: AccessGate, credentials: Credentials, request: Request) -> Unauthenticated:
    if not credentials.are_given:
        return Unauthenticated(
            "the request",
            "it has neither a key nor a session",
            "Send a key as Authorization: Bearer KEY (thumbwheel keys add), or open the URL that "
            "thumbwheel serve prints",
        )
    gate.limits.count_failure(address_of(request))
    return Unauthenticated(
        "the key or session of the request",
        "this server did not issue it, or it was revoked, or it has expired",
        "Make a new key (thumbwheel keys add), or log in again",
    )


def address_of(request: Request) -> str:
    """Return the client's address, or `unknown`."""
    return request.client.host if request.client is not None else "unknown"


def _check_page(identity: Identity, credentials: Credentials, request: Request) -> None:
    """Raise Forbidden if a page of another site may have sent the request.

    A key is sent on purpose, but a browser adds a cookie to every request. A page named in the
    settings may do what an app without a key may.
    """
    is_proved = identity.session is None and identity.principal is not ANONYMOUS
    if is_proved:
        return
    if credentials.is_foreign and not _is_named_page(identity, request):
        raise Forbidden(
            "the request",
            "a page of another site sends it",
            "Send it from a page of this server, or with a key",
        )
    if identity.csrf is None:
        return
    if not hmac.compare_digest(identity.csrf.encode(), (credentials.csrf or "").encode()):
        raise Forbidden(
            "the request",
            "a change from a session needs the header x-csrf-token",
            "Send the value of the cookie thumbwheel_csrf in it",
        )


def _is_named_page(identity: Identity, request: Request) -> bool:
    """Return whether the request comes without a session, from a page whose origin may use this
    route."""
    if identity.session is not None:
        return False
    origins: frozenset[str] = getattr(request.app.state, "dialect_origins", frozenset())
    paths: frozenset[str] = getattr(request.app.state, "dialect_paths", frozenset())
    return request.headers.get("origin") in origins and request.scope["route"].path in paths


def _act(request: Request, principal: Principal, agent: str | None) -> Act:
    route = request.scope["route"]
    content = {"path": f"{request.method} {route.path}"}
    for name, value in request.path_params.items():
        if name != "agent" and PLAIN.fullmatch(str(value)):
            content[name] = str(value)
    return Act(principal.id, route.operation_id or route.name, agent, content)


def _agent(path_params: Mapping[str, Any]) -> str | None:
    """Return the agent in the path, in the spelling of its rows; None if the path has none."""
    agent = path_params.get("agent")
    if agent is None:
        return None
    try:
        return slug_of(str(agent))
    except InputError:
        return str(agent)
