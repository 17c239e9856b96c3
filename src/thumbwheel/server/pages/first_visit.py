"""The home page: the agents that there are, and for an empty home the three ways to a first rated
answer: record an app, import a file, or look at an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.capture.sources import SOURCES
from thumbwheel.capture.traces import count_traces
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import agents, aliases_of, versions
from thumbwheel.server.pages.page import PageRequest


@dataclass(frozen=True)
class AgentCard:
    """An agent in short."""

    slug: str
    n_traces: int
    aliases: Mapping[str, str]
    """Alias -> the name of its version."""
    may_deploy: bool


def load_home(asked: PageRequest) -> Mapping[str, Any]:
    """The agents that the principal may see."""
    visible = [agent for agent in agents(asked.ws) if asked.principal.may("read", agent.slug)]
    cards = [_card(asked, agent) for agent in visible]
    return {"agents": cards, **_start(asked)}


def load_start(asked: PageRequest) -> Mapping[str, Any]:
    """The three ways to begin, for one more agent."""
    return _start(asked)


def _start(asked: PageRequest) -> dict[str, Any]:
    principal = asked.principal
    return {
        "may_import": principal.may("run", None),
        "may_record": principal.may("own", None) and principal.may("deploy", None),
        "sources": SOURCES.names(),
        "asks_for_key": not asked.gate.admits_apps,
    }


def _card(asked: PageRequest, agent: Agent) -> AgentCard:
    ws = asked.ws
    names = {version.id: version.name for version in versions(ws, agent)}
    aliases = {alias: names[version_id] for alias, version_id in aliases_of(ws, agent).items()}
    may_deploy = asked.principal.may("deploy", agent.slug)
    return AgentCard(agent.slug, count_traces(ws, agent.slug), aliases, may_deploy)
