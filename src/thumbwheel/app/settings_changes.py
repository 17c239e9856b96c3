"""Changes settings in thumbwheel.yaml, for the home's owner.

A request changes numbers, switches and choices alone. Settings that name files, hosts, code,
environment variables or people are changed in the file itself: no request decides what runs or
where something is sent, and no value of this kind is a secret.
"""

from __future__ import annotations

import threading
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union

from pydantic import BaseModel

from thumbwheel.app.settings import sections
from thumbwheel.core.config import PREFIX, Config, Sources, check_sections
from thumbwheel.core.errors import Changed, ConfigError, Conflict, InputError, NotFound, at_field
from thumbwheel.core.files import replace
from thumbwheel.core.ids import fingerprint
from thumbwheel.core.plugins import nearest
from thumbwheel.core.settings_file import Scalar, with_setting, without_setting
from thumbwheel.db.workspace import Workspace

AT_START = frozenset(
    {"access", "capture", "gateway", "jobs", "log", "mcp", "notify", "quotas", "server"}
)
"""Sections that the server reads when it starts. The others are read when they are used."""
_WRITING = threading.Lock()


@dataclass(frozen=True)
class SettingChange:
    """A setting that was changed in the file."""

    setting: str
    """Its name, with those of its groups before it: `label.smoothing`"""
    before: Scalar | None
    """What was in force"""
    after: Scalar | None
    """What the file says now; null: the default, which is in force again"""
    needs_restart: bool
    """Whether the server has to start again before it is in force"""


def is_changeable(annotation: Any) -> bool:
    """Return whether a request may change a setting of this type: a number, a switch or a
    choice."""
    if typing.get_origin(annotation) in (Union, UnionType):
        parts = typing.get_args(annotation)
        return all(part is NoneType or is_changeable(part) for part in parts)
    if typing.get_origin(annotation) is Literal:
        return True
    return isinstance(annotation, type) and issubclass(annotation, bool | int | float | Enum)


def changeable(cls: type[Config]) -> Iterator[str]:
    """Yield the names of the settings of a section that a request may change."""
    for name, field in cls.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for inner in changeable(typing.cast(type[Config], kind)):
                yield f"{name}.{inner}"
        elif is_changeable(kind):
            yield name


def fixed_by_environment(sources: Sources, section: str, setting: str) -> str | None:
    """Return the environment variable that sets this setting, and so outvotes the file; None if
    there is none."""
    name = f"{PREFIX}{section}.{setting}".upper().replace(".", "__")
    return name if name in sources.environment else None


def file_etag(sources: Sources) -> str:
    """Return the state of the settings file, which a change is compared with."""
    return fingerprint(_text_of(sources.file_path)) if sources.file_path else ""


def change_settings(
    ws: Workspace, section: str, changes: Mapping[str, Scalar], expected: str | None = None
) -> list[SettingChange]:
    """Write settings of a section into the file, and put them in force where that needs no restart.
    `changes`: name, with dots for groups -> value; `expected`: the file's state that is meant.

    Raises NotFound for an unknown section or setting, InputError for a setting that is changed in
    the file alone, ConfigError for a value that the section refuses, Changed if the file is in
    another state, Conflict if it cannot be changed.
    """
    if not changes:
        raise InputError("the settings", "nothing was changed", "Change a value, then save")
    for setting in changes:
        _check_changeable(ws.sources, section, setting)

    def edited(text: str) -> str:
        for setting, value in changes.items():
            text = with_setting(text, [*section.split("."), *setting.split(".")], value)
        return text

    return _rewrite(ws, section, [*changes], edited, expected)


def reset_setting(
    ws: Workspace, section: str, setting: str, expected: str | None = None
) -> SettingChange:
    """Take a setting out of the file, so that its default is in force again. Raises the errors of
    `change_settings`."""
    _check_changeable(ws.sources, section, setting)

    def edited(text: str) -> str:
        return without_setting(text, [*section.split("."), *setting.split(".")])

    (change,) = _rewrite(ws, section, [setting], edited, expected)
    return change


def _check_changeable(sources: Sources, section: str, setting: str) -> None:
    classes = sections()
    if section not in classes:
        fix = f"Known: {', '.join(classes)}.{nearest(section, classes)}"
        raise NotFound(f"section {section!r}", "no such section", fix)
    names = [*changeable(classes[section])]
    if setting not in names:
        why = "only numbers, switches and choices are changed here"
        fix = f"Change others in the settings file.{nearest(setting, names)}"
        raise at_field(InputError(f"setting {setting!r} of {section}", why, fix), setting)
    if variable := fixed_by_environment(sources, section, setting):
        why = f"the environment variable {variable} sets it, and outvotes the file"
        fix = "Change or remove the variable, and start the server again"
        raise at_field(InputError(f"setting {setting!r} of {section}", why, fix), setting)


def _rewrite(
    ws: Workspace,
    section: str,
    settings: list[str],
    edited: typing.Callable[[str], str],
    expected: str | None,
) -> list[SettingChange]:
    path = ws.sources.file_path
    if path is None:
        raise Conflict("the settings", "this server reads no settings file", "Start it with one")
    with _WRITING:
        text = _text_of(path)
        if expected and fingerprint(text) != expected:
            raise Changed(
                f"the settings file {str(path)!r}",
                "somebody else has changed it since you read it",
                "Read it again, then decide again",
            )
        before = _values(ws.sources, section)
        # What somebody wrote into the file by hand takes effect together with the change, so it
        # has to be sound, too.
        check_sections(ws.sources.with_file(text), sections())
        changed = edited(text)
        sources = ws.sources.with_file(changed)
        try:
            check_sections(sources, sections())
        except ConfigError as error:
            error.field = _field_of(error, settings)
            raise
        _write(path, changed)
        ws.sources = sources
        written, after = _values(sources, section), _values_of_file(sources, section)
    changes = []
    for setting in settings:
        differs = written.get(setting) != before.get(setting)
        needs_restart = section in AT_START and differs
        changes.append(
            SettingChange(setting, before.get(setting), after.get(setting), needs_restart)
        )
    return changes


def _field_of(error: ConfigError, settings: list[str]) -> str | None:
    """Return the field of a refused value; a rule over several fields is shown at the only one that
    was changed."""
    if error.field is None and len(settings) == 1:
        return settings[0]
    return error.field


def _values(sources: Sources, section: str) -> dict[str, Any]:
    """Return every value of a section that is in force, by its dotted name."""
    try:
        values = sources.load(sections()[section], section).model_dump(mode="json")
    except ConfigError:
        return {}  # a section with a required setting that nobody has set
    return dict(flat(values))


def _values_of_file(sources: Sources, section: str) -> dict[str, Any]:
    content: Any = sources.file
    for part in section.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return dict(flat(content or {}))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with their dotted names.

    >>> [*flat({"dev": 0.1, "label": {"folds": 5}})]
    [('dev', 0.1), ('label.folds', 5)]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _unwritable(path, str(error)) from None


def _write(path: Path, text: str) -> None:
    # a link stays a link, and the file keeps its permissions
    target = path.resolve()
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        replace(target, text, mode=mode)
        target.chmod(mode)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, why: str) -> Conflict:
    return Conflict(
        f"the settings file {str(path)!r}",
        why,
        "Let the user of the server read and write it, or change it by hand",
    )
