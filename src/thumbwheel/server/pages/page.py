"""What a page is, and what its `load` function is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request

from thumbwheel.access.gate import AccessGate
from thumbwheel.access.types import Principal, Verb
from thumbwheel.core.config import Config, Sources, build
from thumbwheel.core.errors import NotFound
from thumbwheel.core.ids import slug_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop.attention import Attention, Down, attention
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent

C = TypeVar("C", bound=Config)

OWNER = "owner"
"""Who rates with the token of the home."""


@dataclass(frozen=True)
class PageRequest:
    """What a page is asked for, by whom."""

    ws: Workspace
    gate: AccessGate
    principal: Principal
    parts: Mapping[str, str]
    """Of the path: `agent` is its slug."""
    query: Mapping[str, str]
    """Without those that are empty, as a form sends fields that nobody filled in."""
    down: Down = field(default_factory=dict)
    """The deployments that calls go to and that do not answer."""
    started_with: Sources | None = None
    """The settings that the server started with; None: those of `ws`."""
    _waiting: dict[str, Attention] = field(default_factory=dict)
    """Agent -> what waits for a person, where this request asked for it."""

    @classmethod
    def of(cls, request: Request) -> PageRequest:
        """Return the page request for a request that the gate admitted. Raises NotFound if its
        address contains a NUL character."""
        parts = {name: str(value) for name, value in request.path_params.items()}
        query = {name: value for name, value in request.query_params.items() if value}
        if any("\x00" in text for text in (*parts.values(), *query.values())):
            raise NotFound("the address", "it holds a character that no name has", "Correct it")
        if "agent" in parts:
            parts["agent"] = slug_of(parts["agent"])
        state = request.app.state
        principal = request.state.principal
        started_with = getattr(state, "started_with", None)
        return cls(
            state.workspace, state.gate, principal, parts, query, _down(request), started_with
        )

    @property
    def agent(self) -> Agent:
        """The agent of the path; raises NotFound where there is none of that name."""
        return require_agent(self.ws, self.parts["agent"])

    def waiting_of(self, agent: Agent) -> Attention:
        """Return the agent's items that wait for a person. They are looked up once per request,
        since both the page and its navigation need them."""
        if agent.slug not in self._waiting:
            self._waiting[agent.slug] = attention(self.ws, agent, self.down)
        return self._waiting[agent.slug]

    @property
    def rater(self) -> str:
        """The name under which the judgements of whoever looks are stored."""
        return OWNER if self.principal.kind == "token" else self.principal.name

    def parsed(self, cls: type[C]) -> C:
        """Return the query as a config class. Raises ConfigError with the nearest known name."""
        return build(cls, self.query, "the address")


def _down(request: Request) -> Down:
    watch = getattr(request.app.state, "watch", None)
    if watch is None:
        return {}
    return {
        (watched.deployment.agent, watched.deployment.version): watched.health.why
        for watched in watch.down()
    }


Load = Callable[[PageRequest], Mapping[str, Any]]


@dataclass(frozen=True)
class Page:
    """A page at a path. The context of its template is what `load` returns."""

    name: str
    path: str
    """With `{agent}` in it, it belongs to that agent."""
    need: Verb | None
    """What whoever looks at it must be allowed to do (access/needs.py)."""
    title: str
    template: str
    load: Load
    menu: str | None = None
    """What the navigation calls it; None where other pages lead to it."""
    below: str | None = None
    """The name of the page that leads to it."""
    by_row: bool = False
    """Whether `load` itself leaves out what the principal may not see, because no agent is in the
    path."""

    def url(self, **parts: str | None) -> str:
        """Return the page's address with these path parameters."""
        quoted = {name: quote(part or "", safe="") for name, part in parts.items()}
        return self.path.format(**quoted)

    @property
    def is_of_agent(self) -> bool:
        """Whether it belongs to one agent."""
        return "{agent}" in self.path
