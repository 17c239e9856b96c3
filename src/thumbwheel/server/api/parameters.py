"""The parameters of a command as those of a request: the same names as on the command line, the
same types, bounds and texts."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import Field
from typer.models import ArgumentInfo, OptionInfo

from thumbwheel.app.command_table import parameter_name
from thumbwheel.core.present import Answer
from thumbwheel.jobs.request import JobRequest

NO_NUL = r"^[^\x00]*$"
"""Databases take no NUL in a text."""
LARGEST = 2**53
"""The largest integer that every JSON reader reads exactly."""
MOST_ROWS = 1000
"""Of one page of a list."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command."""

    name: str
    """That of the option, with underscores, or of the argument."""
    argument: str
    """That of the function."""
    kind: Any
    """Its Python type; a type of pydantic's, with bounds."""
    required: bool
    default: Any
    description: str
    is_path: bool


@dataclass(frozen=True)
class Signature:
    """What the function of a command takes."""

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, command: Any) -> Signature:
        """Return the signature of a typer command."""
        function = command.callback.__wrapped__
        declared = inspect.signature(function, eval_str=True).parameters
        parameters = []
        for option in command.params:
            if option.name not in declared:
                continue  # --help
            parameters.append(_parameter(option, declared[option.name]))
        return cls(function, tuple(parameters))

    @property
    def is_job(self) -> bool:
        """Whether the command asks for a job."""
        return any(typing.get_origin(form) is JobRequest for form in self._returned())

    @property
    def answer_type(self) -> Any:
        """The type of the value that the command answers with: what its JSON has."""
        answers = [
            form for form in self._returned() if typing.get_origin(form) in (Answer, JobRequest)
        ]
        values = [typing.get_args(form)[-1] for form in answers]
        return Union[tuple(values)] if values else Any  # noqa: UP007 - it is made of parts

    def _returned(self) -> tuple[Any, ...]:
        """Return the types that the function may return."""
        returned = typing.get_type_hints(self.function)["return"]
        is_union = typing.get_origin(returned) in (Union, types.UnionType)
        return typing.get_args(returned) if is_union else (returned,)


def option_is_path(declared: inspect.Parameter) -> bool:
    """Return whether the parameter of a function names a file or a folder."""
    return Path in _parts(declared.annotation)


def _parameter(option: Any, declared: inspect.Parameter) -> Parameter:
    required = declared.default is inspect.Parameter.empty
    name = parameter_name(option)
    return Parameter(
        name=name,
        argument=option.name,
        kind=_kind(declared.annotation, name),
        required=required,
        default=None if required else declared.default,
        description=" ".join((option.help or "").split()),
        is_path=option_is_path(declared),
    )


def _kind(annotation: Any, name: str) -> Any:
    """Return the pydantic type for a typer annotation."""
    info = None
    if typing.get_origin(annotation) is Annotated:
        annotation, *metadata = typing.get_args(annotation)
        info = next(
            (entry for entry in metadata if isinstance(entry, OptionInfo | ArgumentInfo)), None
        )
    if typing.get_origin(annotation) in (Union, types.UnionType):
        inner = next(part for part in typing.get_args(annotation) if part is not type(None))
        return _bounded(inner, info, name) | None
    return _bounded(annotation, info, name)


def _bounded(kind: Any, info: Any, name: str) -> Any:
    text = Annotated[str, Field(pattern=NO_NUL)]
    if kind is str or kind is Path:
        return text
    if kind == list[str]:
        return list[text]
    if typing.get_origin(kind) is list:
        return list[_bounded(typing.get_args(kind)[0], info, name)]  # type: ignore[misc]
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return Literal[tuple(member.value for member in kind)]
    if kind in (int, float):
        return _number(kind, info.min if info else None, info.max if info else None, name)
    if kind in (bool, datetime):
        return kind
    raise TypeError(f"no parameter of a request has the type {kind!r}")


def _number(kind: type[int] | type[float], least: Any, most: Any, name: str) -> Any:
    if kind is float:
        return Annotated[float, Field(ge=least, le=most, allow_inf_nan=False)]
    least = -LARGEST if least is None else least
    most = LARGEST if most is None else most
    if name == "limit":
        most = min(most, MOST_ROWS)
    return Annotated[int, Field(ge=least, le=most)]


def _parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in typing.get_args(annotation):
        if not isinstance(annotation, type(Literal[1])):
            yield from _parts(part)
