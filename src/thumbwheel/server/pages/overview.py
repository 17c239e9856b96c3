"""The home page, and the page of an agent: what waits for a person first, then whether answers get
better, the use of the last week, and what is live. An empty home shows the three ways to begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from thumbwheel.access.types import VERBS
from thumbwheel.capture.recent import WEEK, Quality, Use, quality, use
from thumbwheel.capture.traces import count_traces
from thumbwheel.loop.attention import Attention
from thumbwheel.loop.decision_card import decision_card
from thumbwheel.models.types import Agent, Switch
from thumbwheel.models.versions import agents, aliases_of, switches, versions
from thumbwheel.server.pages.first_visit import ways_to_begin
from thumbwheel.server.pages.operations import CHECK_TONES
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.week_chart import week_chart


@dataclass(frozen=True)
class AgentCard:
    """An agent in short, on the home page of several."""

    slug: str
    n_traces: int
    aliases: Mapping[str, str]
    """Alias -> the name of its version."""
    waits: Attention
    quality: Quality
    may_deploy: bool


@dataclass(frozen=True)
class AliasLine:
    """What answers under an alias, and since when."""

    alias: str
    version: str
    since: Switch | None


@dataclass(frozen=True)
class UseLine:
    """A figure of the last seven days beside that of the seven days before."""

    label: str
    now: float | None
    before: float | None
    form: str
    """How it is written: number, percent, duration or cost."""


def load_home(asked: PageRequest) -> Mapping[str, Any]:
    """Load the overview of the only agent; with several, a card of each; with none, the ways to
    begin."""
    visible = [agent for agent in agents(asked.ws) if asked.principal.may("read", agent.slug)]
    if len(visible) == 1:
        return load_overview(replace(asked, parts={"agent": visible[0].slug})) | {"cards": []}
    cards = [_card(asked, agent) for agent in visible]
    return {"title": "Home", "agent": None, "cards": cards, **ways_to_begin(asked)}


def load_overview(asked: PageRequest) -> dict[str, Any]:
    """Load the overview of an agent: open decisions, quality, usage and aliases."""
    ws, agent = asked.ws, asked.agent
    now = datetime.now(UTC)
    waits = asked.waiting_of(agent)
    shares = quality(ws, agent, now)
    return {
        "title": agent.slug,
        "agent": agent.slug,
        "waits": waits,
        "decisions": [decision_card(ws, pending) for pending in waits.decisions],
        "tones": CHECK_TONES,
        "quality": shares,
        "fall": shares.fall(),
        "chart": week_chart(shares),
        "use": _use_lines(use(ws, agent, now), use(ws, agent, now - WEEK)),
        "aliases": _alias_lines(asked, agent),
        "n_traces": count_traces(ws, agent.slug),
        "may": {verb: asked.principal.may(verb, agent.slug) for verb in VERBS},
        "who": asked.principal.name,
    }


def _use_lines(now: Use, before: Use) -> Sequence[UseLine]:
    lines = [
        UseLine("answers", now.answers, before.answers, "number"),
        UseLine("failed", now.failed_share, before.failed_share, "percent"),
        UseLine("typical time", now.typical_seconds, before.typical_seconds, "duration"),
        UseLine("slowest 5 %, from", now.slow_seconds, before.slow_seconds, "duration"),
        UseLine("cost", now.cost, before.cost, "cost"),
    ]
    return [line for line in lines if line.now is not None or line.before is not None]


def _alias_lines(asked: PageRequest, agent: Agent) -> list[AliasLine]:
    names = {version.id: version.name for version in versions(asked.ws, agent)}
    lines = []
    for alias, version_id in sorted(aliases_of(asked.ws, agent).items()):
        history = switches(asked.ws, agent, alias)
        lines.append(AliasLine(alias, names[version_id], history[-1] if history else None))
    return sorted(lines, key=lambda line: line.alias != "live")


def _card(asked: PageRequest, agent: Agent) -> AgentCard:
    ws = asked.ws
    names = {version.id: version.name for version in versions(ws, agent)}
    aliases = {alias: names[version_id] for alias, version_id in aliases_of(ws, agent).items()}
    return AgentCard(
        agent.slug,
        count_traces(ws, agent.slug),
        aliases,
        asked.waiting_of(agent),
        quality(ws, agent, datetime.now(UTC)),
        asked.principal.may("deploy", agent.slug),
    )
