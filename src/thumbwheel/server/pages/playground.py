"""The playground: a person asks deployed versions, one in a chat or two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.capture.prompts import prompt_of
from thumbwheel.capture.traces import show_trace
from thumbwheel.core.config import Config
from thumbwheel.deploy import routing
from thumbwheel.importers.fields import content_text
from thumbwheel.models.types import LIVE, VersionState
from thumbwheel.models.versions import aliases_of, by_id, versions
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.traces import CHECKERS

CHAT_ROLES = ("system", "user", "assistant")


class PlaygroundQuery(Config):
    """What the page begins with."""

    first: str | None = None
    """An alias or a version"""
    second: str | None = None
    """The one beside it"""
    trace: str | None = None
    """A recorded call whose question is asked again"""
    prompt: str | None = None
    """A system prompt, by its name or id"""


@dataclass(frozen=True)
class TriedModel:
    """Something that can be asked."""

    name: str
    """`live`, or `v3`."""
    label: str


def load_playground(asked: PageRequest) -> Mapping[str, Any]:
    """Load what can be asked, and the recorded call that is asked again."""
    query = asked.parsed(PlaygroundQuery)
    slug = asked.agent.slug
    models = _models(asked)
    names = [model.name for model in models]
    first = query.first if query.first in names else next(iter(names), None)
    others = [name for name in names if name != first]
    # an alias answers with a version that is in the list, too
    second = query.second if query.second in names else next(reversed(others), first)
    recorded = None
    if query.trace is not None:
        trace = show_trace(asked.ws, slug, query.trace)
        recorded = {
            "id": trace["id"],
            "messages": _messages(trace["input"]),
            "answer": trace["output"],
        }
    return {
        "models": models,
        "first": first,
        "second": second,
        "is_comparing": query.second is not None,
        "recorded": recorded,
        "system": prompt_of(asked.ws, asked.agent, query.prompt).text if query.prompt else "",
        "checkers": CHECKERS,
        "settings": {
            "agent": slug,
            "api": f"/api/agents/{slug}",
            "feedback": f"/a/{slug}/api/feedback",
            "rater": asked.rater,
            "recorded": recorded,
        },
        "may_edit": asked.principal.may("edit", slug),
        "may_deploy": asked.principal.may("deploy", slug),
    }


def _models(asked: PageRequest) -> list[TriedModel]:
    """Return what can be asked: the aliases, live first, then every deployed version."""
    ws, agent = asked.ws, asked.agent
    models = []
    aliases = aliases_of(ws, agent)
    for alias in sorted(aliases, key=lambda alias: (alias != LIVE, alias)):
        version = by_id(ws, aliases[alias])
        models.append(TriedModel(alias, f"{alias} ({version.name})"))
    deployments = routing.deployments(ws, agent)
    targets = {row.version: row.target for row in reversed(deployments) if row.state == "warm"}
    for version in reversed(versions(ws, agent)):
        if version.name not in targets:
            continue
        label = f"{version.name} on {targets[version.name]}"
        if version.state is VersionState.CANDIDATE:
            label += ", not approved"
        if (agent.slug, version.name) in asked.down:
            label += ", does not answer"
        models.append(TriedModel(version.name, label))
    return models


def _messages(chat: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the messages of a recorded call that a chat request can repeat: those with a text."""
    messages = []
    for message in chat:
        text = content_text(message.get("content"))
        if text and message["role"] in CHAT_ROLES:
            messages.append({"role": message["role"], "content": text})
    return messages
