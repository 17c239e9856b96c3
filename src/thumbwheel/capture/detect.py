"""Which source reads a file, and why; what its first rows would become. Nothing is stored.

A file that two sources claim is said to be ambiguous, with the candidates; nothing is guessed
between them. A table that no source knows is one of columns, whose meanings are guessed by name and
shown (`mapping.py`). Not here: reading a file for good (`ingest.py`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from thumbwheel.capture.foreign import foreign
from thumbwheel.capture.location import Address, place_of
from thumbwheel.capture.mapping import Mapped, Scales
from thumbwheel.capture.rating_filter import ALL_COUNT, RatingFilter
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
    agent: str | None = None
    """Only the rows of the agent that the data calls so."""
    gold: bool = False
    """The lines were reviewed: they are cases."""
    ratings: RatingFilter = ALL_COUNT
    """Which ratings count."""
    zone: tzinfo | None = None
    """Of times that are written without one; None is UTC."""

    @classmethod
    def parsed(
        cls,
        columns: list[str] | None,
        scales: list[str] | None,
        agent: str | None = None,
        gold: bool = False,
        ratings: RatingFilter = ALL_COUNT,
        timezone: str | None = None,
    ) -> Options:
        """From MEANING=COLUMN, NAME=LOW:HIGH and the name of a zone; raises InputError for what is
        none of them."""
        numbers = {key: _ends(key, value) for key, value in _pairs("--scale", scales)}
        zone = _zone(timezone) if timezone else None
        return cls(dict(_pairs("--column", columns)), numbers, agent, gold, ratings, zone)


@runtime_checkable
class Mappable(Protocol):
    """A source to which Options can be said."""

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Source:
        """The same source with them."""


@runtime_checkable
class OfAgents(Protocol):
    """A source whose data is of several agents."""

    def of_agent(self, name: str) -> Source:
        """The same source for the rows of one of them; raises InputError for a name that none can
        have."""


@runtime_checkable
class Reviewable(Protocol):
    """A source whose lines are no cases until somebody reviewed them."""

    def as_gold(self) -> Source:
        """The same source, every line a case."""


@runtime_checkable
class Rated(Protocol):
    """A source whose ratings have tags and confidences."""

    def with_ratings(self, ratings: RatingFilter) -> Source:
        """The same source with these ratings only."""


@runtime_checkable
class Gathering(Protocol):
    """A source that reads folders or addresses."""

    def claims_place(self, path: Path) -> bool:
        """Whether the folder or the address is one that it reads."""


@runtime_checkable
class Addressed(Protocol):
    """A source whose address the environment may have."""

    address_variable: str


@runtime_checkable
class Tabular(Protocol):
    """A source of tables whose columns are anybody's."""

    def mapping(self, path: Path) -> Mapped:
        """What the columns of the file are."""


@dataclass(frozen=True)
class Detection:
    """The source that reads the file, the reason in words, and for a table what its columns are
    taken for."""

    source: str
    why: str
    mapping: list[str]

    def words(self) -> str:
        """One line."""
        return f"source {self.source}: {self.why}"


def source_of(name: str, options: Options) -> Source:
    """The source called `name`, told the options; raises NotFound, and InputError for options that
    it cannot be told."""
    source = SOURCES.get(name)
    if options.columns or options.scales:
        if not isinstance(source, Mappable):
            given = "--column" if options.columns else "--scale"
            why = f"source {name!r} has its own keys and scales"
            raise InputError(
                given, why, f"Leave it out; it is for the sources {_those_that_are(Mappable)}"
            )
        source = source.with_mapping(options.columns, options.scales)
    if options.agent is not None:
        if not isinstance(source, OfAgents):
            why = f"the data of source {name!r} does not say whose it is"
            raise InputError(
                "--agent-type",
                why,
                f"Leave it out; it is for the sources {_those_that_are(OfAgents)}",
            )
        source = source.of_agent(options.agent)
    if options.ratings:
        if not isinstance(source, Rated):
            why = f"the ratings of source {name!r} have neither"
            raise InputError(
                "a filter of ratings by tag or confidence",
                why,
                f"It is for the sources {_those_that_are(Rated)}",
            )
        source = source.with_ratings(options.ratings)
    if options.gold and isinstance(source, Reviewable):
        source = source.as_gold()
    return source


def _those_that_are(kind: type[Any]) -> str:
    return ", ".join(name for name in SOURCES.names() if isinstance(SOURCES.get(name), kind))


def address_of(source: str) -> Path:
    """Where a source reads when nothing is named: the address that the environment has. Raises
    InputError where it has none."""
    found = SOURCES.get(source)
    variable = found.address_variable if isinstance(found, Addressed) else None
    address = os.environ.get(variable, "") if variable else ""
    if not address:
        why = (
            f"and the environment has no {variable}"
            if variable
            else "and this source reads files only"
        )
        raise InputError(
            "import without PATH",
            f"it is not said what is read, {why}",
            "Give: thumbwheel import SOURCE PATH --agent AGENT",
        )
    return place_of(address)


def detect(path: Path, options: Options | None = None, told: str | None = None) -> Detection:
    """The source that reads this file, by its first rows unless it is told; raises InputError where
    none does or where several would."""
    if told is not None:
        return Detection(told, "as told", _mapping(path, told, options))
    if isinstance(path, Address) or path.is_dir():
        return _detect_place(path)
    found, first = _claims(path)
    if len(found) > 1:
        each = ", ".join(
            f"{name} ({count} of the first rows)" for name, count in found.most_common()
        )
        raise InputError(
            f"file {str(path)!r}",
            f"it is ambiguous: {each} could read it",
            "Say which: thumbwheel import SOURCE PATH",
        )
    if found:
        (name,) = found
        return Detection(name, _reason(SOURCES.get(name)), _mapping(path, name, options))
    if kind := foreign(first):
        raise InputError(f"file {str(path)!r}", f"no source reads {kind[0]}", kind[1])
    name = container_of(path)
    if name == "json":
        known = ", ".join(SOURCES.names())
        raise InputError(
            f"file {str(path)!r}",
            f"no source knows lines with the keys {', '.join(list(first)[:8])}",
            f"Sources: {known}",
        )
    return Detection(
        name, "a table whose columns are known by their names", _mapping(path, name, options)
    )


def advice(path: Path) -> str:
    """What to do with a file that the named source does not take, as far as its first rows tell."""
    try:
        found, first = _claims(path)
    except InputError:
        return ""
    if len(found) == 1:
        return f"It looks like source {next(iter(found))!r}. "
    kind = foreign(first) if not found else None
    return f"It looks like {kind[0]}. {kind[1]}. " if kind else ""


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
        return (
            f"case: {_clip(record.input[-1].get('content'))}, reference "
            f"{_clip(record.reference)}{checker}"
        )
    scale = f" of {record.scale.min:g} to {record.scale.max:g}" if record.scale else ""
    rater = f" by {record.rater.id}" if record.rater else ""
    return (
        f"{record.kind}{f' {record.name}' if record.name else ''}: "
        f"{_clip(record.value)}{scale}{rater}"
    )


def _clip(value: Any) -> str:
    text = (
        " ".join(value.split())
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, default=str)
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _detect_place(path: Path) -> Detection:
    """The source that reads this folder or address; raises InputError where none does or where
    several would."""
    what = f"address {str(path)!r}" if isinstance(path, Address) else f"folder {str(path)!r}"
    sources = {name: SOURCES.get(name) for name in SOURCES.names()}
    found = [
        name
        for name, source in sources.items()
        if isinstance(source, Gathering) and source.claims_place(path)
    ]
    if len(found) > 1:
        raise InputError(
            what,
            f"it is ambiguous: {', '.join(found)} could read it",
            "Say which: thumbwheel import SOURCE PATH",
        )
    if not found:
        fix = "Name one file in it, or the source that reads it: thumbwheel import SOURCE PATH"
        fix = "Give postgresql://USER:PASSWORD@HOST/DATABASE" if isinstance(path, Address) else fix
        raise InputError(
            what, f"no source knows it; {_those_that_are(Gathering)} read folders or addresses", fix
        )
    return Detection(found[0], "by what is there", [])


def _claims(path: Path) -> tuple[Counter[str], dict[str, Any]]:
    """(source -> how many of the first rows it claims, the first row)."""
    sources = {name: SOURCES.get(name) for name in SOURCES.names()}
    found: Counter[str] = Counter()
    first: dict[str, Any] | None = None
    for row in islice(
        (one.row for one in rows(path, lambda position: None) if one.row is not None), LOOKED_AT
    ):
        first = row if first is None else first
        found.update(name for name, source in sources.items() if source.claims(row))
    if first is None:
        raise InputError(
            f"file {str(path)!r}",
            "no line of it is a JSON object",
            "Give a file with one object a line",
        )
    return found, first


def _mapping(path: Path, name: str, options: Options | None) -> list[str]:
    """What the columns are taken for, where the source takes any table."""
    source = source_of(name, options or Options())
    return source.mapping(path).words() if isinstance(source, Tabular) else []


def _reason(source: Source) -> str:
    said = (source.claims.__doc__ or "its keys").strip().splitlines()[0].rstrip(".")
    return said[:1].lower() + said[1:]


def _zone(name: str) -> tzinfo:
    """The zone of that name, or with that offset (+02:00)."""
    try:
        if name[:1] in ("+", "-"):
            return datetime.fromisoformat(f"2026-01-01T00:00:00{name}").tzinfo or UTC
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise InputError(
            f"--timezone {name!r}",
            "there is no such zone",
            "Give for example Europe/Berlin, UTC or +02:00",
        ) from None


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    found = [text.partition("=") for text in given or []]
    if bad := next(
        (
            text
            for text, (key, _, value) in zip(given or [], found, strict=True)
            if not key or not value
        ),
        None,
    ):
        example = "prompt=question" if option == "--column" else "rating=1:10"
        raise InputError(
            f"{option} {bad!r}", "it is not NAME=VALUE", f"Give for example {option} {example}"
        )
    return [(key, value) for key, _, value in found]


def _ends(name: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not ends[0] < ends[1] < float("inf"):
        raise InputError(
            f"--scale {name}={text}",
            "a scale has a low and a higher end",
            f"Give for example --scale {name}=1:10",
        )
    return ends
