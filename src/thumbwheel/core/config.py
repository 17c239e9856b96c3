"""Configuration: one pydantic class per thing, read from YAML, `THUMBWHEEL_*` variables and
command-line options alike.

Order of precedence: option > environment > file > default; the default is the recommended setting.
Here live the base class, the loader, the generated options and the paths of a home; the classes
themselves live in the stages that they configure.
"""

from __future__ import annotations

import inspect
import os
import stat
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union

from pydantic import BaseModel, ConfigDict, ValidationError

from thumbwheel import sdk
from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest
from thumbwheel.core.private import is_open, tighten

PREFIX = "THUMBWHEEL_"
FILE_NAME = "thumbwheel.yaml"


class Config(BaseModel):
    """Base of every configuration class: frozen, documented under its fields, unknown keys refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


C = TypeVar("C", bound=Config)


def build(cls: type[C], values: Mapping[str, Any], where: str) -> C:
    """`cls(**values)`, with every problem said as a ConfigError that names the key, `where` it
    stood and the nearest key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ConfigError(*_explain(cls, error, where)) from None


def _explain(cls: type[Config], error: ValidationError, where: str) -> tuple[str, str, str]:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        given = "" if first["type"] == "missing" else f" = {first['input']!r}"
        if not path:
            return (
                f"settings{given} in {where}",
                first["msg"][:1].lower() + first["msg"][1:],
                "Change one of them",
            )
        return (
            f"setting {path!r}{given} in {where}",
            first["msg"][:1].lower() + first["msg"][1:],
            "Change or remove it",
        )
    known = _fields_at(cls, first["loc"][:-1])
    return (
        f"setting {path!r} in {where}",
        "there is no such setting",
        f"Known here: {', '.join(known)}.{nearest(str(first['loc'][-1]), known)}",
    )


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
    """Where settings come from: the parsed file (with its path, for messages) and the environment."""

    file: Mapping[str, Any]
    path: str
    environment: Mapping[str, str]

    @classmethod
    def read(
        cls, path: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Sources:
        """Read `path`, or ./thumbwheel.yaml where that exists; raises ConfigError for a file that
        is no YAML mapping."""
        chosen = path or (Path(FILE_NAME) if Path(FILE_NAME).is_file() else None)
        return cls(
            _yaml(chosen) if chosen else {},
            str(chosen or FILE_NAME),
            os.environ if environment is None else environment,
        )

    def load(self, cls: type[C], section: str, options: Mapping[str, Any] | None = None) -> C:
        """The settings of `section` ("train.dpo"): file, then environment
        (`THUMBWHEEL_TRAIN__DPO__BETA`), then `options`."""
        return build(
            cls,
            _merge(self._section(section), self._environment(section) | dict(options or {})),
            f"{section} ({self.path}, environment, options)",
        )

    def _section(self, section: str) -> dict[str, Any]:
        found: Any = self.file
        for part in section.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None and not isinstance(found, Mapping):
            raise ConfigError(
                f"section {section!r} in {self.path}",
                f"it is {found!r}, not a mapping of settings",
                "Indent its settings",
            )
        return dict(found or {})

    def _environment(self, section: str) -> dict[str, Any]:
        import yaml

        start = PREFIX + section.upper().replace(".", "__") + "__"
        found: dict[str, Any] = {}
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
                found = _merge(found, value)
        return found


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key for key in high if isinstance(high[key], Mapping) and isinstance(low.get(key), Mapping)
    }
    return {**low, **high, **{key: _merge(low[key], high[key]) for key in both}}


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"configuration file {str(path)!r}",
            _where(error),
            "Correct the file or name another with --config",
        ) from None
    if found is not None and not isinstance(found, dict):
        raise ConfigError(
            f"configuration file {str(path)!r}",
            "its top level is no mapping",
            "Write sections such as 'train:' at the top level",
        )
    return found or {}


def _where(error: Exception) -> str:
    """What is wrong with a file, in one line, with the place where YAML gives one."""
    at, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if at is not None:
        return f"line {at.line + 1}, column {at.column + 1}: {problem}"
    return getattr(error, "strerror", None) or str(error).split("\n")[0]


def check_sections(sources: Sources, known: Mapping[str, type[Config]]) -> None:
    """Refuse a section or key of file or environment that no class in `known` ("train.dpo" ->
    class) reads; nothing is ignored."""
    _check_level(sources, known, dict(sources.file), "")
    starts = {PREFIX + section.upper().replace(".", "__") + "__" for section in known}
    for name in sources.environment:
        if (
            name.startswith(PREFIX)
            and "__" in name
            and not any(name.startswith(start) for start in starts)
        ):
            raise ConfigError(
                f"variable {name}",
                "nothing reads it",
                f"Sections: {', '.join(sorted(starts))}.{nearest(name, starts)}",
            )


def _check_level(
    sources: Sources, known: Mapping[str, type[Config]], found: Mapping[str, Any], prefix: str
) -> None:
    for key, value in found.items():
        section = prefix + str(key)
        if section in known:
            sources.load(known[section], section)
        elif isinstance(value, Mapping | None) and any(
            name.startswith(section + ".") for name in known
        ):
            _check_level(sources, known, value or {}, section + ".")
        else:
            raise ConfigError(
                f"section {section!r} in {sources.path}",
                "nothing reads it",
                f"Known: {', '.join(known)}.{nearest(section, known)}",
            )


def options(*classes: type[Config]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option per plain field of `classes`; it gets those that were given as
    `options`. A tuple repeats its option.

    The field's docstring is the help and its default is shown, so the class is the one place where
    a setting is described.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        fields = [pair for cls in classes for pair in cls.model_fields.items()]
        extra = {
            name: _parameter(name, field) for name, field in fields if _plain(field.annotation)
        }

        @wraps(command)
        def run(**arguments: Any) -> Any:
            given = {name: _raw(arguments.pop(name)) for name in extra}
            return command(
                **arguments,
                options={name: value for name, value in given.items() if value not in (None, [])},
            )

        kept = [parameter for name, parameter in signature.parameters.items() if name != "options"]
        run.__signature__ = signature.replace(parameters=[*kept, *extra.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {
            parameter.name: parameter.annotation for parameter in [*kept, *extra.values()]
        }
        return run

    return decorate


TEXTS = tuple[str, ...]


def _raw(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _parameter(name: str, field: Any) -> inspect.Parameter:
    import typer

    kind: Any = _option_type(field.annotation)
    default = field.get_default(call_default_factory=True)
    help_text = " ".join((field.description or "").split())
    shown = (
        f"{help_text} (default: {_raw(default)})"
        if not field.is_required() and default is not None
        else help_text
    )
    annotation = Annotated[kind | None, typer.Option(help=shown, show_default=False)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _option_type(annotation: Any) -> Any:
    inner = _without_none(annotation)
    if typing.get_origin(inner) is typing.Literal:
        return Enum("Choice", {str(value): value for value in typing.get_args(inner)})
    return list[str] if inner == TEXTS else inner


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return next(part for part in typing.get_args(annotation) if part is not type(None))
    if typing.get_origin(annotation) is Annotated:
        return _without_none(typing.get_args(annotation)[0])
    return annotation


def _plain(annotation: Any) -> bool:
    inner = _without_none(annotation)
    return (
        inner in (int, float, bool, str, Path, TEXTS) or typing.get_origin(inner) is typing.Literal
    )


ENTRIES = (
    *(
        "thumbwheel.db",
        "thumbwheel.db-wal",
        "thumbwheel.db-shm",
        "jobs.db",
        "writer.lock",
        "erased.key",
        "signing.key",
        "reports.jsonl",
    ),
    *(
        "blobs",
        "runs",
        "cycles",
        "reports",
        "inbox",
        "cache",
        "deployments",
        "exports",
        "unfinished",
    ),
    *("world", "model", "gguf", "report.html", "report.json"),
)
"""What a home may hold; the folder may have been somebody's for other things before, and those stay
as they are."""


@dataclass(frozen=True)
class Home:
    """The folder that holds everything of one installation; nothing here creates it except
    `prepare`."""

    path: Path

    @classmethod
    def at(cls, path: Path | str | None = None) -> Home:
        """`path`, else `THUMBWHEEL_HOME`, else the per-user data directory."""
        return cls(Path(path).expanduser().resolve() if path else sdk.home())

    def prepare(self) -> Home:
        """Create the folders, for their owner only; raises ConfigError where that cannot be done."""
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
        """Take a home that others may read, as earlier ones were made, from them; said once."""
        if not is_open(self.path):
            return
        others = {entry.name for entry in self.path.iterdir()} - set(ENTRIES)
        if (
            others and self.path.stat().st_mode & stat.S_ISVTX
        ):  # an empty one is a file system of the owner's, made just now
            why = "it is a folder for everybody (sticky), and a home is closed to all but its owner"
            raise ConfigError(
                f"home {str(self.path)!r}",
                why,
                "Name a folder of your own with --home or THUMBWHEEL_HOME",
            )
        there = [self.path / name for name in ENTRIES if (self.path / name).exists()]
        old = self.database.exists()
        tighten(self.path, there)
        if old:
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
        """Held by whoever writes the database."""
        return self.path / "writer.lock"

    @property
    def secret(self) -> Path:
        """The secret with which tombstones are keyed; made at the first erasure."""
        return self.path / "erased.key"

    @property
    def signing(self) -> Path:
        """The secret with which decisions are signed and prompts of held-out rows keyed; made when
        first needed."""
        return self.path / "signing.key"

    @property
    def blobs(self) -> Path:
        """Content-addressed artifacts."""
        return self.path / "blobs"

    @property
    def runs(self) -> Path:
        """One folder a training run."""
        return self.path / "runs"

    @property
    def cycles(self) -> Path:
        """One folder an agent, with what its unfinished cycle has done."""
        return self.path / "cycles"

    @property
    def reports(self) -> Path:
        """Reports of cycles."""
        return self.path / "reports"

    @property
    def inbox(self) -> Path:
        """Where the sdk spools what no server took."""
        return self.path / "inbox"

    @property
    def cache(self) -> Path:
        """What can be made again: reference log-probs, downloaded or trained bases."""
        return self.path / "cache"
