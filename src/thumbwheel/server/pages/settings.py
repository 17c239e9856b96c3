"""The pages of settings: an agent's gate, and the sections of thumbwheel.yaml, with the values in
force and their origin. Numbers, switches and choices are changed on the page; the other settings in
the file alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from thumbwheel.app.settings import sections
from thumbwheel.app.settings_changes import (
    AT_START,
    changeable,
    file_etag,
    fixed_by_environment,
    flat,
)
from thumbwheel.core.address_secrets import addresses_with_secrets
from thumbwheel.core.config import PREFIX, Config, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation import declaration
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.notify.settings import NotifyConfig
from thumbwheel.server.pages.forms import FormField, form_fields
from thumbwheel.server.pages.operations import offered_fields, state_tag
from thumbwheel.server.pages.page import PageRequest

MAIN = ("min_cases", "alpha", "primary", "open_guard", "unmeasured_guard")


HIDDEN = "(an address with a secret)"


@dataclass(frozen=True)
class Setting:
    """A setting: its value in force, and the field that changes it."""

    name: str
    """With the names of its groups: `label.folds`."""
    value: Any
    default: Any
    origin: str
    """`file`, `environment` or `default`."""
    help: str
    variable: str
    """The environment variable that sets it."""
    field: FormField | None
    """None where it is changed in the file alone."""
    pending: Any = None
    """The file's value, if it takes effect at the next start of the server."""
    is_pending: bool = False


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
    written = asked.ws.sources
    in_force = asked.started_with or written
    named = {}
    for name, cls in sorted(sections().items()):
        named[name] = _settings(in_force if name in AT_START else written, written, name, cls)
    chosen = asked.query.get("section")
    section = chosen if chosen in named else next(iter(named))
    pending = {
        name: [setting for setting in settings if setting.is_pending]
        for name, settings in named.items()
    }
    return {
        "sections": named,
        "counts": {name: _changed(settings) for name, settings in named.items()},
        "section": section,
        "changed_here": [setting for setting in named[section] if setting.field],
        "others": [setting for setting in named[section] if not setting.field],
        "waits": {name: settings for name, settings in pending.items() if settings},
        "at_start": section in AT_START,
        "file": written.path,
        "is_writable": written.file_path is not None,
        "etag": file_etag(written),
        "channels": asked.ws.settings(NotifyConfig, "notify").channels,
    }


def _settings(
    in_force: Sources, written: Sources, section: str, cls: type[Config]
) -> list[Setting]:
    """Return the settings of a section. `in_force` and `written` differ where a change waits for
    the next start."""
    current, next_values = _values(in_force, section, cls), _values(written, section, cls)
    of_file = _names_set(replace(written, environment={}), section, cls)
    fields = {field.name: field for field in _flat_fields(form_fields(cls, _nested(next_values)))}
    can_change = set(changeable(cls))
    settings = []
    for name, default, help_text in _described(cls):
        variable = f"{PREFIX}{section}.{name}".upper().replace(".", "__")
        is_fixed = fixed_by_environment(written, section, name) is not None
        origin = "file" if name in of_file else "default"
        if is_fixed or name in _names_set(replace(written, file={}), section, cls):
            origin = "environment"
        value, next_value = current.get(name, default), next_values.get(name, default)
        settings.append(
            Setting(
                name=name,
                value=_shown(value),
                default=_shown(default),
                origin=origin,
                help=help_text,
                variable=variable,
                field=fields[name] if name in can_change and origin != "environment" else None,
                pending=_shown(next_value),
                is_pending=next_value != value,
            )
        )
    return settings


def _described(cls: type[Config], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted name, default, help) of every setting; those of a group one by one."""
    for name, field in cls.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            yield from _described(kind, f"{prefix}{name}.")
            continue
        default = None
        if not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(default, Config):
            default = default.model_dump(mode="json")
        yield f"{prefix}{name}", default, " ".join((field.description or "").split())


def _flat_fields(fields: Sequence[FormField]) -> Iterator[FormField]:
    for field in fields:
        if field.kind == "group":
            yield from _flat_fields(field.fields)
        else:
            yield field


def _values(sources: Sources, section: str, cls: type[Config]) -> dict[str, Any]:
    """Return the values of a section by their dotted names; tables stay whole."""
    try:
        config = sources.load(cls, section)
    except ConfigError:
        return {}  # a section with a required setting that nobody has set
    return dict(_flat_values(config))


def _flat_values(config: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    dumped = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Config):
            yield from _flat_values(getattr(config, name), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", dumped[name]


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        group = nested
        *groups, last = name.split(".")
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = value
    return nested


def _names_set(sources: Sources, section: str, cls: type[Config]) -> set[str]:
    try:
        config = sources.load(cls, section)
    except ConfigError:
        # A part of the settings need not make sense without the other.
        return set()
    names = {name for name, _ in flat(config.model_dump(mode="json", exclude_unset=True))}
    return names | config.model_fields_set


def _shown(value: Any) -> Any:
    """Return the value unless it contains an address with a secret."""
    return HIDDEN if [*addresses_with_secrets(value)] else value


def _changed(settings: Sequence[Setting]) -> int:
    return sum(setting.origin != "default" for setting in settings)
