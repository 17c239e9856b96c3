"""Which source reads a file, and why; what its first rows would become. Nothing is stored.

A file that two sources claim is said to be ambiguous, with the candidates; nothing is guessed between them. A table that no source knows
is one of columns, whose meanings are guessed by name and shown (`mapping.py`). Not here: reading a file for good (`ingest.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from thumbwheel.capture.mapping import Mapped, Scales
from thumbwheel.capture.rowfile import container_of, rows
from thumbwheel.capture.source import AnyRecord, Line, Source
from thumbwheel.capture.sources import SOURCES
from thumbwheel.capture.types import CaseRecord, TraceRecord
from thumbwheel.core.errors import InputError

LOOKED_AT, SHOWN = 50, 3
"""Rows that are looked at to recognise a file; rows that are shown."""


@dataclass(frozen=True)
class Options:
    """What a person says about a file: meaning -> column, and the scales of its numbers by name."""

    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)

    @classmethod
    def parsed(cls, columns: list[str] | None, scales: list[str] | None) -> Options:
        """From MEANING=COLUMN and NAME=LOW:HIGH; raises InputError for what is neither."""
        return cls(dict(_pairs("--column", columns)), {key: _ends(key, value) for key, value in _pairs("--scale", scales)})


@runtime_checkable
class Mappable(Protocol):
    """A source to which Options can be said."""

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Source:
        """The same source with them."""


@runtime_checkable
class Tabular(Protocol):
    """A source of tables whose columns are anybody's."""

    def mapping(self, path: Path) -> Mapped:
        """What the columns of the file are."""


@dataclass(frozen=True)
class Detection:
    """The source that reads the file, the reason in words, and for a table what its columns are taken for."""

    source: str
    why: str
    mapping: list[str]

    def words(self) -> str:
        """One line."""
        return f"source {self.source}: {self.why}"


def source_of(name: str, options: Options) -> Source:
    """The source called `name`, told the options; raises NotFound, and InputError for options that it cannot be told."""
    source = SOURCES.get(name)
    if not options.columns and not options.scales:
        return source
    if not isinstance(source, Mappable):
        given = "--column" if options.columns else "--scale"
        takers = ", ".join(one for one in SOURCES.names() if isinstance(SOURCES.get(one), Mappable))
        raise InputError(given, f"source {name!r} has its own keys and scales", f"Leave it out; it is for the sources {takers}")
    return source.with_mapping(options.columns, options.scales)


def detect(path: Path, options: Options | None = None, told: str | None = None) -> Detection:
    """The source that reads this file, by its first rows unless it is told; raises InputError where none does or where several would."""
    if told is not None:
        return Detection(told, "as told", _mapping(path, told, options))
    found, keys = _claims(path)
    if len(found) > 1:
        each = ", ".join(f"{name} ({count} of the first rows)" for name, count in found.most_common())
        raise InputError(f"file {str(path)!r}", f"it is ambiguous: {each} could read it", "Say which: thumbwheel import SOURCE PATH")
    if found:
        (name,) = found
        return Detection(name, _reason(SOURCES.get(name)), _mapping(path, name, options))
    name = container_of(path)
    if name == "json":
        known = ", ".join(SOURCES.names())
        raise InputError(f"file {str(path)!r}", f"no source knows lines with the keys {', '.join(keys[:8])}", f"Sources: {known}")
    return Detection(name, "a table whose columns are known by their names", _mapping(path, name, options))


def sample(path: Path, source: str, options: Options | None = None) -> list[dict[str, Any]]:
    """What the first rows become: number, and the records in words, or the reason of a refusal."""
    items = islice(source_of(source, options or Options()).read(path, lambda position: None), SHOWN)
    return [
        {"number": item.number, "records": [describe(one) for one in item.records]}
        if isinstance(item, Line)
        else {"number": item.number, "refused": item.reason}
        for item in items
    ]


def describe(record: AnyRecord) -> str:
    """A record in one line."""
    if isinstance(record, TraceRecord):
        steps = f", {len(record.steps)} steps" if len(record.steps) > 1 else ""
        return f"trace: {_clip(record.input[-1].get('content'))} -> {_clip(record.output)}{steps}"
    if isinstance(record, CaseRecord):
        checker = f", checker {record.checker}" if record.checker else ""
        return f"case: {_clip(record.input[-1].get('content'))}, reference {_clip(record.reference)}{checker}"
    scale = f" of {record.scale.min:g} to {record.scale.max:g}" if record.scale else ""
    rater = f" by {record.rater.id}" if record.rater else ""
    return f"{record.kind}{f' {record.name}' if record.name else ''}: {_clip(record.value)}{scale}{rater}"


def _clip(value: Any) -> str:
    text = " ".join(value.split()) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _claims(path: Path) -> tuple[Counter[str], list[str]]:
    """(source -> how many of the first rows it claims, the keys of the first row)."""
    sources = {name: SOURCES.get(name) for name in SOURCES.names()}
    found: Counter[str] = Counter()
    keys: list[str] | None = None
    for row in islice((one.row for one in rows(path, lambda position: None) if one.row is not None), LOOKED_AT):
        keys = list(row) if keys is None else keys
        found.update(name for name, source in sources.items() if source.claims(row))
    if keys is None:
        raise InputError(f"file {str(path)!r}", "no line of it is a JSON object", "Give a file with one object a line")
    return found, keys


def _mapping(path: Path, name: str, options: Options | None) -> list[str]:
    """What the columns are taken for, where the source takes any table."""
    source = source_of(name, options or Options())
    return source.mapping(path).words() if isinstance(source, Tabular) else []


def _reason(source: Source) -> str:
    said = (source.claims.__doc__ or "its keys").strip().splitlines()[0].rstrip(".")
    return said[:1].lower() + said[1:]


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    found = [text.partition("=") for text in given or []]
    if bad := next((text for text, (key, _, value) in zip(given or [], found, strict=True) if not key or not value), None):
        example = "prompt=question" if option == "--column" else "rating=1:10"
        raise InputError(f"{option} {bad!r}", "it is not NAME=VALUE", f"Give for example {option} {example}")
    return [(key, value) for key, _, value in found]


def _ends(name: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not ends[0] < ends[1] < float("inf"):
        raise InputError(f"--scale {name}={text}", "a scale has a low and a higher end", f"Give for example --scale {name}=1:10")
    return ends
