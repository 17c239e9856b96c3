"""Configuration: pydantic classes whose settings come from YAML, `THUMBWHEEL_*` variables and
command-line options.

Precedence: option > environment > file > default; the default is the recommended setting. This
module has the base class, the loader, the generated options and the paths of a home. The classes
themselves are in the stages that they configure.
"""

from __future__ import annotations

import inspect
import os
import stat
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union

from pydantic import BaseModel, ConfigDict, ValidationError

from thumbwheel import sdk
from thumbwheel.core import log
from thumbwheel.core.address_secrets import without_path
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest
from thumbwheel.core.private import ACCESS_TOKEN, is_open, may_be_planted, tighten

PREFIX = "THUMBWHEEL_"
FILE_NAME = "thumbwheel.yaml"


class Config(BaseModel):
    """Base of every configuration class: frozen, unknown keys refused, fields with docstrings."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    value_field: ClassVar[str | None] = None
    """The field that a section stands for which is one value: `blobs: VALUE`, and the variable
    `THUMBWHEEL_BLOBS`."""


C = TypeVar("C", bound=Config)


def build(cls: type[C], values: Mapping[str, Any], where: str) -> C:
    """Return `cls(**values)`. Raises ConfigError with the key, `where` it was set, and the nearest
    key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        refusal = ConfigError(*_explain(cls, error, where))
        refusal.field = ".".join(map(str, error.errors()[0]["loc"])) or None
        raise refusal from None


def _explain(cls: type[Config], error: ValidationError, where: str) -> tuple[str, str, str]:
    """Return (what, why, fix) for the first validation error."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        names = _fields_at(cls, first["loc"][:-1])
        return (
            f"setting {path!r} in {where}",
            "there is no such setting",
            f"Known here: {', '.join(names)}.{nearest(str(first['loc'][-1]), names)}",
        )
    value = "" if first["type"] == "missing" else f" = {_without_secrets(first['input'])!r}"
    why = first["msg"][:1].lower() + first["msg"][1:]
    if not path:
        return f"settings{value} in {where}", why, "Change one of them"
    return f"setting {path!r}{value} in {where}", why, "Change or remove it"


def _without_secrets(value: Any) -> Any:
    """Return a refused value for a message: of a group only what is no text, and of an address only
    its host."""
    match value:
        case Mapping():
            return {name: _in_group(part) for name, part in value.items()}
        case list() | tuple():
            return [_without_secrets(part) for part in value]
    return without_path(value)


def _in_group(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | None) else "..."


def _fields_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        field = cls.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        cls = inner
    return list(cls.model_fields)


@dataclass(frozen=True)
class Sources:
    """The sources of settings: the parsed file (with its path for messages) and environment."""

    file: Mapping[str, Any]
    path: str
    environment: Mapping[str, str] = field(repr=False)
    """Has the password of the database and the key of the cluster."""
    file_path: Path | None = None
    """The file that changes are written to, which may not exist yet; None if `file` is no file's
    content."""

    @classmethod
    def read(
        cls, path: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Sources:
        """Read `path`, or ./thumbwheel.yaml if it exists, and return the settings. Raises
        ConfigError if the file is not a YAML mapping, or if nobody named it and another user may
        have put it there."""
        if environment is None:
            environment = os.environ
        if path is None:
            path = Path(FILE_NAME)
            if not path.is_file():
                return cls({}, FILE_NAME, environment, path.absolute())
            if may_be_planted(path):
                raise ConfigError(
                    f"configuration file {str(path.absolute())!r}",
                    "another user put it into a folder to which everybody may write",
                    f"Work in another folder, or name it if you trust it: --config {FILE_NAME}",
                )
        return cls(_yaml(path), str(path), environment, path.absolute())

    def with_file(self, text: str) -> Sources:
        """Return the settings with `text` as the content of the file. Raises ConfigError if it is
        not a YAML mapping."""
        return replace(self, file=_parsed(text, self.path))

    def load(self, cls: type[C], section: str, options: Mapping[str, Any] | None = None) -> C:
        """Return the settings of `section` ("train.dpo"): the file's, overridden by the
        environment's (`THUMBWHEEL_TRAIN__DPO__BETA`), overridden by `options`. Raises
        ConfigError."""
        overrides = self._environment(section)
        name = PREFIX + section.upper()
        if cls.value_field is not None and name in self.environment:
            overrides[cls.value_field] = self.environment[name]
        values = merge(self._section(section, cls.value_field), overrides | dict(options or {}))
        return build(cls, values, f"{section} ({self.path}, environment, options)")

    def _section(self, section: str, value_field: str | None) -> dict[str, Any]:
        content: Any = self.file
        for part in section.split("."):
            content = content.get(part) if isinstance(content, Mapping) else None
        if value_field is not None and isinstance(content, str):
            return {value_field: content}
        if content is not None and not isinstance(content, Mapping):
            raise ConfigError(
                f"section {section!r} in {self.path}",
                f"it is {content!r}, not a mapping of settings",
                "Indent its settings",
            )
        return dict(content or {})

    def _environment(self, section: str) -> dict[str, Any]:
        import yaml

        start = PREFIX + section.upper().replace(".", "__") + "__"
        values: dict[str, Any] = {}
        for name, text in self.environment.items():
            if name.startswith(start):
                try:
                    value = yaml.safe_load(text)
                except yaml.YAMLError as error:
                    raise ConfigError(
                        f"variable {name} = {text!r}",
                        _where(error),
                        "Correct it, or quote it as text",
                    ) from None
                for part in reversed(name[len(start) :].lower().split("__")):
                    value = {part: value}
                values = merge(values, value)
        return values


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return both mappings merged, nested ones too; values of `high` win."""
    merged = {**low, **high}
    for key, value in high.items():
        if isinstance(value, Mapping) and isinstance(low.get(key), Mapping):
            merged[key] = merge(low[key], value)
    return merged


def _yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), error) from None
    return _parsed(text, str(path))


def _parsed(text: str, path: str) -> dict[str, Any]:
    """Return the content of a settings file. Raises ConfigError if it is no YAML mapping."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(
            f"configuration file {path!r}",
            "its top level is not a mapping",
            "Write sections such as 'train:' at the top level",
        )
    return content or {}


def _unreadable(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"configuration file {path!r}",
        _where(error),
        "Correct the file or name another with --config",
    )


def _where(error: Exception) -> str:
    """Return why a file cannot be read, in one line, with line and column if YAML reports them."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    return getattr(error, "strerror", None) or str(error).split("\n")[0]


def check_sections(sources: Sources, classes: Mapping[str, type[Config]]) -> None:
    """Refuse a section or key of file or environment that no class in `known` ("train.dpo" ->
    class) reads; nothing is ignored."""
    _check_level(sources, classes, dict(sources.file), "")
    starts = {PREFIX + section.upper().replace(".", "__") + "__" for section in classes}
    for name in sources.environment:
        is_setting = name.startswith(PREFIX) and "__" in name
        if is_setting and not name.startswith(tuple(starts)):
            raise ConfigError(
                f"variable {name}",
                "no setting has this name",
                f"Sections: {', '.join(sorted(starts))}.{nearest(name, starts)}",
            )


def _check_level(
    sources: Sources, classes: Mapping[str, type[Config]], level: Mapping[str, Any], prefix: str
) -> None:
    for key, value in level.items():
        section = prefix + str(key)
        if section in classes:
            sources.load(classes[section], section)
        elif isinstance(value, Mapping | None) and any(
            name.startswith(section + ".") for name in classes
        ):
            _check_level(sources, classes, value or {}, section + ".")
        else:
            raise ConfigError(
                f"section {section!r} in {sources.path}",
                "no such section",
                f"Known: {', '.join(classes)}.{nearest(section, classes)}",
            )


def options(*classes: type[Config]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command one option per field of `classes` that an option can
    hold; groups and tables are set in a file. The command receives the options that the user set as
    `options`. The option of a tuple may be repeated.

    The help text is the field's docstring with the default, so a setting is described in its class
    only.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        fields = [pair for cls in classes for pair in cls.model_fields.items()]
        extra = {
            name: _parameter(name, field, kind)
            for name, field in fields
            if (kind := _option_type(field.annotation)) is not None
        }

        @wraps(command)
        def run(**arguments: Any) -> Any:
            values = {name: _raw(arguments.pop(name)) for name in extra}
            return command(
                **arguments,
                options={name: value for name, value in values.items() if value not in (None, [])},
            )

        parameters = [
            parameter for name, parameter in signature.parameters.items() if name != "options"
        ]
        run.__signature__ = signature.replace(parameters=[*parameters, *extra.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {
            parameter.name: parameter.annotation for parameter in [*parameters, *extra.values()]
        }
        run.__annotations__["return"] = signature.return_annotation
        return run

    return decorate


def _raw(value: Any) -> Any:
    if isinstance(value, list):
        return [_raw(part) for part in value]
    return value.value if isinstance(value, Enum) else value


def _parameter(name: str, field: Any, kind: Any) -> inspect.Parameter:
    import typer

    default = field.get_default(call_default_factory=True)
    help_text = " ".join((field.description or "").split())
    if not field.is_required() and default is not None:
        shown = ", ".join(map(str, default)) if isinstance(default, tuple) else _raw(default)
        help_text = f"{help_text} (default: {shown})" if shown != "" else help_text
    annotation = Annotated[kind | None, typer.Option(help=help_text, show_default=False)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _option_type(annotation: Any) -> Any:
    """Return the type of an option for such a field, or None if no option can hold its value."""
    inner = _without_none(annotation)
    if typing.get_origin(inner) is typing.Literal:
        return Enum("Choice", {str(value): value for value in typing.get_args(inner)})
    if inner is date:
        return datetime  # a command line knows no days; midnight is read as its day
    parts = typing.get_args(inner)
    if typing.get_origin(inner) is tuple and parts[1:] == (...,):
        part = None if typing.get_origin(parts[0]) is tuple else _option_type(parts[0])
        return None if part is None else list[part]  # type: ignore[valid-type]
    return inner if inner in (int, float, bool, str, Path) else None


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is Annotated:
        return _without_none(typing.get_args(annotation)[0])
    return annotation


ENTRIES = (
    "thumbwheel.db",
    "thumbwheel.db-wal",
    "thumbwheel.db-shm",
    "writer.lock",
    "writer.queue",
    "database.json",
    "host.id",
    "erased.key",
    "feedback.key",
    "signing.key",
    ACCESS_TOKEN,
    "access.key",
    "access.tokens",
    "access.lock",
    "audit.head",
    "audit.lock",
    "reports.jsonl",
    "usage.json",
    "usage.lock",
    "erasures.lock",
    "serving",
    "secrets",
    "workers",
    "blobs",
    "runs",
    "cycles",
    "reports",
    "inbox",
    "unsent",
    "cache",
    "bases",
    "deployments",
    "exports",
    "uploads",
    "unfinished",
    "world",
    "model",
    "gguf",
    "report.html",
    "report.json",
)
"""The files and folders of a home. Others in the folder belong to somebody else, and are left
alone."""


@dataclass(frozen=True)
class Home:
    """The folder with all data of one installation; only `prepare` creates it."""

    path: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> Home:
        """Return the home at `path`, else at `THUMBWHEEL_HOME`, else in the per-user data
        directory."""
        return cls(Path(path).expanduser().resolve() if path else sdk.home())

    def prepare(self) -> Home:
        """Create the folders, for their owner only, and return the home. Raises ConfigError if that
        fails."""
        try:
            for folder in (self.path, self.blobs, self.runs, self.inbox):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._close()
        except OSError as error:
            raise ConfigError(
                f"home {str(self.path)!r}",
                error.strerror or str(error),
                "Name a writable folder with --home or THUMBWHEEL_HOME",
            ) from None
        return self

    def _close(self) -> None:
        """Close a home that others may read, and log that."""
        if not is_open(self.path):
            return
        others = {entry.name for entry in self.path.iterdir()} - set(ENTRIES)
        # An empty folder with the sticky bit is a new file system of the owner's.
        if others and self.path.stat().st_mode & stat.S_ISVTX:
            why = "it is a folder for everybody (sticky), and a home is closed to all but its owner"
            raise ConfigError(
                f"home {str(self.path)!r}",
                why,
                "Name a folder of your own with --home or THUMBWHEEL_HOME",
            )
        existing = [self.path / name for name in ENTRIES if (self.path / name).exists()]
        is_old = self.database.exists()
        tighten(self.path, existing)
        if is_old:
            log.say(
                f"note: home {self.path} was open to others on this machine; it is its owner's "
                "alone now"
            )

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "thumbwheel.db"

    @property
    def lock(self) -> Path:
        """Locked by the process that writes the database."""
        return self.path / "writer.lock"

    @property
    def ownership(self) -> Path:
        """The note which database has the rows of this home."""
        return self.path / "database.json"

    @property
    def host_id(self) -> Path:
        """The random id of this folder, which tells its workers from those of other folders."""
        return self.path / "host.id"

    @property
    def secret(self) -> Path:
        """The key of tombstones; created at the first erasure."""
        return self.path / "erased.key"

    @property
    def feedback_key(self) -> Path:
        """The key of the tokens with which web pages judge a trace."""
        return self.path / "feedback.key"

    @property
    def access_token(self) -> Path:
        """The token with which whoever can read this file may do everything."""
        return self.path / ACCESS_TOKEN

    @property
    def login_codes(self) -> Path:
        """Hashes of the codes that log one browser in."""
        return self.path / "login-codes"

    @property
    def access_key(self) -> Path:
        """The key of the hashes of API keys and sessions, and of the audit log's chain."""
        return self.path / "access.key"

    @property
    def token_keys(self) -> Path:
        """The keys that sign short-lived tokens."""
        return self.path / "access.tokens"

    @property
    def audit_head(self) -> Path:
        """The newest row of the audit log, signed."""
        return self.path / "audit.head"

    @property
    def signing(self) -> Path:
        """The key with which decisions are signed and prompts of held-out rows hashed; created when
        first needed."""
        return self.path / "signing.key"

    @property
    def keys(self) -> tuple[Path, ...]:
        """What the hosts of a cluster share beside the secrets (core/key_files.py)."""
        return (
            self.access_key,
            self.signing,
            self.secret,
            self.feedback_key,
            self.token_keys,
            self.audit_head,
        )

    @property
    def blobs(self) -> Path:
        """Content-addressed artifacts."""
        return self.path / "blobs"

    @property
    def runs(self) -> Path:
        """One folder per training run."""
        return self.path / "runs"

    @property
    def cycles(self) -> Path:
        """One folder per agent, with the state of its unfinished cycle."""
        return self.path / "cycles"

    @property
    def reports(self) -> Path:
        """Reports of cycles."""
        return self.path / "reports"

    @property
    def inbox(self) -> Path:
        """The spool of the sdk, for events that no server took."""
        return self.path / "inbox"

    @property
    def workers(self) -> Path:
        """One lock file for each worker of this host."""
        return self.path / "workers"

    @property
    def secrets(self) -> Path:
        """One file for each secret that an upstream wants (core/secret_store.py)."""
        return self.path / "secrets"

    @property
    def bases(self) -> Path:
        """Base models, or links to them, that requests over the API may name."""
        return self.path / "bases"

    @property
    def cache(self) -> Path:
        """Data that can be computed or downloaded again: reference log-probs, bases."""
        return self.path / "cache"

    @property
    def uploads(self) -> Path:
        """Files that were sent to the server, until they are imported."""
        return self.path / "uploads"
