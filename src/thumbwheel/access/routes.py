"""Keys, users and the audit log over HTTP. An owner of an agent manages what is about that agent;
what is about all of them is for owners of everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from thumbwheel.access import audit, keys, users
from thumbwheel.access.gate import AccessGate
from thumbwheel.access.needs import needs
from thumbwheel.access.presented import (
    audit_answer,
    keys_answer,
    new_key_answer,
    revoked_answer,
    role_answer,
    user_answer,
    users_answer,
    verdict_answer,
)
from thumbwheel.access.protocol import PAGE
from thumbwheel.access.result import respond
from thumbwheel.access.shown import (
    ShownAuditEntry,
    ShownAuditVerdict,
    ShownKey,
    ShownNewKey,
    ShownUser,
)
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.access.types import ANY_AGENT, ApiKey, Principal, User
from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError
from thumbwheel.core.field_words import describe_fields

Text = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=1024)]
"""Databases take no NUL in a text."""
Password = Annotated[Text, Field(json_schema_extra={"format": "password"})]
"""A command line asks for it, and takes it from no argument."""
KeyName = Annotated[
    str, Path(pattern=r"^[^\x00]+$", max_length=400, description="The name of the key.")
]
UserName = Annotated[
    str, Path(pattern=r"^[^\x00]+$", max_length=400, description="The name of the user.")
]
LARGEST = 2**31 - 1
OWN = needs("own", by_row=True, recorded=False)
"""An owner of something; the route looks of what, and the verb writes the audit log."""
OWN_EVERYTHING = needs("own", recorded=False)
ON_A_PAGE: dict[str, Any] = {"content": {PAGE: {"schema": {"type": "object"}}}}
ANSWERED: dict[str, Any] = {"responses": {200: ON_A_PAGE}}
MADE: dict[str, Any] = {"status_code": 201, "responses": {201: ON_A_PAGE}}
"""How a result is documented."""


def _giving(path: str, pointer: str) -> dict[str, Any]:
    """Return the extension that links the operations of a path to the value at `pointer` in the
    result."""
    return {"openapi_extra": {"x-thumbwheel": {"gives": {path: pointer}}}}


class KeyRequest(Config):
    """A key to be made."""

    name: Text
    """Its name"""
    agent: tuple[Text, ...] = ()
    """Agents that it is for [default: every one]"""
    verb: tuple[Text, ...] = ()
    """What it may do to them [default: call, rate]"""
    days: int | None = Field(default=None)
    """Days until it expires [default: never]"""
    user: Text | None = None
    """Whose it is: it goes with the user, and may at most what they may [default: the home's]"""


class UserRequest(Config):
    """A user to be added."""

    name: Text
    """Their name"""
    password: Password | None = None
    """Their password; needed unless by_provider"""
    by_provider: bool = False
    """They log in by the OIDC provider of the settings, and have no password"""
    role: Text = "viewer"
    """What they are: viewer, rater, editor or owner"""
    agent: Text | None = None
    """For which agent [default: every one]"""


class RoleRequest(Config):
    """What a user is from now on."""

    role: Text
    """viewer, rater, editor, owner, or none"""
    agent: Text | None = None
    """For which agent [default: every one]"""


class PasswordRequest(Config):
    """A new password."""

    password: Password
    """The password"""


def router(gate: AccessGate) -> APIRouter:
    """Return the router for keys, users and the audit log."""
    for answer in (ShownKey, ShownNewKey, ShownUser, ShownAuditEntry, ShownAuditVerdict):
        describe_fields(answer)
    routes = APIRouter(route_class=TurnRoute)
    _add_keys(routes, gate)
    _add_users(routes, gate)
    _add_audit(routes, gate)
    return routes


def _add_keys(routes: APIRouter, gate: AccessGate) -> None:
    ws = gate.ws

    @routes.get(
        "/api/keys",
        operation_id="keys.list",
        response_model=list[ShownKey],
        dependencies=[OWN],
        **ANSWERED,
        **_giving("/api/keys/{name}", "/0/name"),
    )
    def list_keys(request: Request) -> Response:
        """List the keys, without their secret parts."""
        principal: Principal = request.state.principal
        owned = [key for key in keys.listed(ws) if _owns(principal, key)]
        return respond(request, keys_answer(owned))

    @routes.post(
        "/api/keys",
        operation_id="keys.add",
        response_model=ShownNewKey,
        dependencies=[OWN],
        **MADE,
        **_giving("/api/keys/{name}", "/name"),
    )
    def add_key(request: Request, asked: KeyRequest) -> Response:
        """Make a key; only this answer has the key itself."""
        principal: Principal = request.state.principal
        _require_own(principal, asked.agent or [None])
        new = keys.add(
            ws,
            asked.name,
            agents=asked.agent,
            verbs=asked.verb,
            days=asked.days,
            user=asked.user,
            actor=principal.id,
        )
        gate.directory.refresh()
        return respond(request, new_key_answer(new), status=201)

    @routes.delete(
        "/api/keys/{name}",
        operation_id="keys.revoke",
        response_model=ShownKey,
        dependencies=[OWN],
        **ANSWERED,
    )
    def revoke_key(request: Request, name: KeyName) -> Response:
        """Forget a key; it opens nothing any more."""
        principal: Principal = request.state.principal
        for key in keys.listed(ws):
            if key.name == name:
                _require_own(principal, _agents_of(key.grants))
        revoked = keys.revoke(ws, name, actor=principal.id)
        gate.directory.refresh()
        return respond(request, revoked_answer(revoked))


def _add_users(routes: APIRouter, gate: AccessGate) -> None:
    ws = gate.ws

    @routes.get(
        "/api/users",
        operation_id="users.list",
        response_model=list[ShownUser],
        dependencies=[OWN],
        **ANSWERED,
        **_giving("/api/users/{name}", "/0/name"),
    )
    def list_users(request: Request) -> Response:
        """List the users with their roles."""
        principal: Principal = request.state.principal
        owned = [
            _with_roles_of(principal, user)
            for user in users.listed(ws)
            if _owns_some(principal, user)
        ]
        return respond(request, users_answer(owned))

    @routes.post(
        "/api/users",
        operation_id="users.add",
        response_model=ShownUser,
        dependencies=[OWN],
        **MADE,
        **_giving("/api/users/{name}", "/name"),
    )
    def add_user(request: Request, asked: UserRequest) -> Response:
        """Add a user."""
        principal: Principal = request.state.principal
        _require_own(principal, [asked.agent])
        if (asked.password is None) != asked.by_provider:
            raise InputError(
                "a user with a password and by_provider, or without both",
                "they log in with one of them",
                "Send password, or by_provider as true",
            )
        user = users.add(
            ws,
            asked.name,
            password=asked.password,
            role=asked.role,
            agent=asked.agent,
            actor=principal.id,
        )
        gate.directory.refresh()
        shown = _with_roles_of(principal, user)
        return respond(request, role_answer(shown, asked.role, asked.agent), status=201)

    @routes.put(
        "/api/users/{name}/role",
        operation_id="users.role",
        response_model=ShownUser,
        dependencies=[OWN],
        **ANSWERED,
    )
    def set_role(request: Request, name: UserName, asked: RoleRequest) -> Response:
        """Change what a user is for an agent."""
        principal: Principal = request.state.principal
        _require_own(principal, [asked.agent])
        user = users.set_role(ws, name, asked.role, agent=asked.agent, actor=principal.id)
        gate.directory.refresh()
        shown = _with_roles_of(principal, user)
        return respond(request, role_answer(shown, asked.role, asked.agent))

    @routes.put(
        "/api/users/{name}/password",
        operation_id="users.password",
        response_model=ShownUser,
        dependencies=[OWN_EVERYTHING],
        **ANSWERED,
    )
    def set_password(request: Request, name: UserName, asked: PasswordRequest) -> Response:
        """Change a password; all sessions of the user end."""
        principal: Principal = request.state.principal
        user = users.set_password(ws, name, asked.password, actor=principal.id)
        gate.directory.refresh()
        return respond(request, user_answer(user, "has a new password"))

    @routes.delete(
        "/api/users/{name}",
        operation_id="users.remove",
        response_model=ShownUser,
        dependencies=[OWN_EVERYTHING],
        **ANSWERED,
    )
    def remove_user(request: Request, name: UserName) -> Response:
        """Remove a user with their keys and sessions."""
        principal: Principal = request.state.principal
        user = users.remove(ws, name, actor=principal.id)
        gate.directory.refresh()
        return respond(request, user_answer(user, "is removed"))


def _add_audit(routes: APIRouter, gate: AccessGate) -> None:
    @routes.get(
        "/api/audit",
        operation_id="audit.list",
        response_model=list[ShownAuditEntry],
        dependencies=[OWN_EVERYTHING],
        **ANSWERED,
    )
    def list_audit(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="Most rows of the answer.")] = 50,
        before: Annotated[
            int | None, Query(ge=1, le=LARGEST, description="Only rows before this number.")
        ] = None,
    ) -> Response:
        """List who did what, newest first."""
        return respond(request, audit_answer(gate.ws, limit, before))

    @routes.get(
        "/api/audit/verify",
        operation_id="audit.verify",
        response_model=ShownAuditVerdict,
        dependencies=[OWN_EVERYTHING],
        **ANSWERED,
    )
    def verify_audit(request: Request) -> Response:
        """Check that the log is as it was written, from its beginning to its end."""
        return respond(request, verdict_answer(audit.verify(gate.ws)))


def _require_own(principal: Principal, agents: Iterable[str | None]) -> None:
    """Raise Forbidden unless the principal owns all of these agents."""
    for agent in agents:
        principal.require("own", agent)


def _owns(principal: Principal, key: ApiKey) -> bool:
    return all(principal.may("own", agent) for agent in _agents_of(key.grants))


def _owns_some(principal: Principal, user: User) -> bool:
    """Return whether the user has a role for an agent that the principal owns."""
    if principal.may("own", None):
        return True
    return any(principal.may("own", agent) for agent in _agents_of(user.roles))


def _with_roles_of(principal: Principal, user: User) -> User:
    """Return the user with only the roles for every agent and for agents that the principal
    owns."""
    roles = {
        agent: role
        for agent, role in user.roles.items()
        if agent == ANY_AGENT or principal.may("own", agent)
    }
    return replace(user, roles=roles)


def _agents_of(entries: Iterable[str]) -> list[str | None]:
    """Return the agents of grants or roles; None stands for every agent."""
    return [None if agent == ANY_AGENT else agent for agent in entries]
