"""The pages of settings: those of an agent that are kept in the home, which are changed here, and
the sections of thumbwheel.yaml as they are in force, which the owner of the machine changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from thumbwheel.app.settings import sections
from thumbwheel.core.config import PREFIX, Config, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation import declaration
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.notify.settings import NotifyConfig
from thumbwheel.server.pages.operations import offered_fields, state_tag
from thumbwheel.server.pages.page import PageRequest

MAIN = ("min_cases", "alpha", "primary", "open_guard", "unmeasured_guard")


@dataclass(frozen=True)
class Setting:
    """A setting as it is in force."""

    name: str
    value: Any
    default: Any
    origin: str
    """`file`, `environment` or `default`."""
    help: str
    variable: str
    """The environment variable that sets it."""


def load_gate(asked: PageRequest) -> Mapping[str, Any]:
    """Load the agent's gate policy as a form, and its history of changes."""
    ws, agent = asked.ws, asked.agent
    policy = declaration.policy_of(ws, agent)
    fields, more_fields = offered_fields("gate declare", GatePolicy, policy, MAIN)
    declared = declaration.declarations(ws, agent)
    changes = []
    for before, after in pairwise(declared):
        words = declaration.differences(before.policy, after.policy)
        changes.append((after.recorded_at, words, after.reason))
    return {
        "title": "Gate",
        "policy": policy,
        "fields": fields,
        "more_fields": more_fields,
        "declared": declared,
        "changes": [*reversed(changes)],
        "etag": state_tag(asked, "gate show"),
        "may_edit": asked.principal.may("edit", agent.slug),
    }


def load_settings(asked: PageRequest) -> Mapping[str, Any]:
    """Load every section of the settings, with each current value and its source."""
    sources = asked.ws.sources
    named = {name: _settings(sources, name, cls) for name, cls in sorted(sections().items())}
    chosen = asked.query.get("section")
    return {
        "sections": named,
        "counts": {name: _changed(settings) for name, settings in named.items()},
        "section": chosen if chosen in named else next(iter(named)),
        "file": sources.path,
        "channels": asked.ws.settings(NotifyConfig, "notify").channels,
    }


def _settings(sources: Sources, section: str, cls: type[Config]) -> list[Setting]:
    try:
        current = sources.load(cls, section).model_dump(mode="json")
    except ConfigError:
        # A section with a setting that is needed, of which nobody set anything.
        current = {}
    of_file = _names_set(Sources(sources.file, sources.path, {}), section, cls)
    of_environment = _names_set(Sources({}, "", sources.environment), section, cls)
    settings = []
    for name, field in cls.model_fields.items():
        default = None
        if not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, Config):
            default = default.model_dump(mode="json")
        origin = "file" if name in of_file else "default"
        if name in of_environment:
            origin = "environment"
        help_text = " ".join((field.description or "").split())
        value = current.get(name, default)
        variable = f"{PREFIX}{section.upper().replace('.', '__')}__{name.upper()}"
        settings.append(Setting(name, value, default, origin, help_text, variable))
    return settings


def _names_set(sources: Sources, section: str, cls: type[Config]) -> set[str]:
    try:
        return sources.load(cls, section).model_fields_set
    except ConfigError:
        # A part of the settings need not make sense without the other.
        return set()


def _changed(settings: list[Setting]) -> int:
    return sum(setting.origin != "default" for setting in settings)
