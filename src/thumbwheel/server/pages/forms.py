"""Forms from config classes: a field of the class is a field of the form, its docstring the help
beside it. `static/actions.js` makes JSON of it again."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from thumbwheel.core.config import Config
from thumbwheel.core.present import without_commands


@dataclass(frozen=True)
class FormField:
    """A field of a form."""

    name: str
    """With the names of those that it is in before it: `train.dpo.beta`."""
    label: str
    kind: Literal["checkbox", "number", "select", "text", "list", "json", "group"]
    help: str
    value: Any
    """As the field shows it."""
    required: bool
    choices: Sequence[str] = ()
    """Of a select; an empty first choice where the field may be left out."""
    least: float | None = None
    most: float | None = None
    whole: bool = False
    """Whether a number has no fraction."""
    fields: Sequence[FormField] = field(default_factory=tuple)
    """Of a group."""
    always: bool = False
    """Whether a form that sends only changed fields sends it unchanged, too."""


def form_fields(
    cls: type[Config], values: Mapping[str, Any] | Config | None = None, prefix: str = ""
) -> list[FormField]:
    """Return the form fields of a config class, filled with `values` or else its defaults."""
    current = values.model_dump(mode="json") if isinstance(values, Config) else dict(values or {})
    return [
        _field(name, info, current.get(name, PydanticUndefined), prefix)
        for name, info in cls.model_fields.items()
    ]


def _field(name: str, info: FieldInfo, current: Any, prefix: str) -> FormField:
    value = _default(info) if current is PydanticUndefined else current
    kind, optional = _without_none(info.annotation)
    shared: dict[str, Any] = {
        "name": f"{prefix}{name}",
        "label": name.replace("_", " ").capitalize(),
        "help": without_commands(" ".join((info.description or "").replace("`", "").split())),
        "required": info.is_required(),
    }
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = value if isinstance(value, Mapping) else None
        fields = form_fields(kind, inner, f"{prefix}{name}.")  # type: ignore[arg-type]
        return FormField(kind="group", value=None, fields=fields, **shared)
    if kind is bool and not optional:
        return FormField(kind="checkbox", value=bool(value), **shared)
    if choices := _choices(kind):
        listed = ["", *choices] if optional else choices
        return FormField(kind="select", value=_text(value), choices=listed, **shared)
    if kind in (int, float):
        least, most = _bounds(info)
        number: dict[str, Any] = {"least": least, "most": most, "whole": kind is int}
        return FormField(kind="number", value=_text(value), **number, **shared)
    if kind is str:
        return FormField(kind="text", value=_text(value), **shared)
    if _is_list_of_text(kind):
        return FormField(kind="list", value="\n".join(value or ()), **shared)
    shown = "" if value is None else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return FormField(kind="json", value=shown, **shared)


def _default(info: FieldInfo) -> Any:
    if info.is_required():
        return None
    value = info.get_default(call_default_factory=True, validated_data={})
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return (the type without None, whether None is allowed)."""
    if typing.get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(parts) == 1:
            return parts[0], True
    return annotation, False


def _choices(kind: Any) -> list[str]:
    if typing.get_origin(kind) is Literal:
        return [str(choice) for choice in typing.get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return []


def _bounds(info: FieldInfo) -> tuple[float | None, float | None]:
    """Return (the least, the greatest) value of the field; None where it has no bound."""
    least = most = None
    for bound in info.metadata:
        match bound:
            case Ge(ge=limit) | Gt(gt=limit):
                least = limit
            case Le(le=limit) | Lt(lt=limit):
                most = limit
    return least, most  # type: ignore[return-value]


def _is_list_of_text(kind: Any) -> bool:
    if typing.get_origin(kind) not in (list, tuple, frozenset, set):
        return False
    return all(part in (str, ...) for part in typing.get_args(kind))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value.value) if isinstance(value, Enum) else str(value)
