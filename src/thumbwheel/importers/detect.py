"""Recognising a file, folder or address: which source reads it, why, and what its first rows would
become. Nothing is stored.

A file that two sources claim is ambiguous; the error names the candidates and nothing is guessed
between them. A table that no source knows is one of columns, whose meanings are guessed by name and
shown (`mapping.py`). Not here: reading a file for good (`ingest.py`).
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from thumbwheel.core import log
from thumbwheel.core.errors import InputError, MissingExtra, at_field
from thumbwheel.core.present import shortened
from thumbwheel.core.private import may_be_planted
from thumbwheel.importers.foreign import foreign
from thumbwheel.importers.import_report import SampleRow
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.location import Address, path_or_address
from thumbwheel.importers.marks import SEVERAL, Scale, Scales, Words, plain
from thumbwheel.importers.rating_filter import ALL_COUNT, RatingFilter
from thumbwheel.importers.regular_file import file_error
from thumbwheel.importers.rowfile import container_of, read_rows
from thumbwheel.importers.server_api import Key
from thumbwheel.importers.source import (
    DEFAULT_REASON,
    Addressed,
    Line,
    Mappable,
    OfAgents,
    Rated,
    ReadsLocations,
    Recognised,
    Reviewable,
    Source,
    Tabular,
)
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import AnyRecord, CaseRecord, TraceRecord

DOTENV = ".env"
_announced: set[str] = set()
"""Variables of a .env about which something was printed."""
LOOKED_AT, SHOWN = 50, 3
"""Rows that are looked at to recognise a file; rows that are shown."""


@dataclass(frozen=True)
class Options:
    """What a person says about a file: meaning -> column (SEVERAL between several), and the scales
    of its numbers by name."""

    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)
    agent: str | None = None
    """Only the rows of the agent that the data calls so."""
    gold: bool = False
    """The lines were reviewed: they are cases."""
    ratings: RatingFilter = ALL_COUNT
    """Which ratings count."""
    key: Key | None = None
    """Of the server that is read."""
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
        """Return the options from MEANING=COLUMN, NAME=WORST:BEST and the name of a time zone.
        Raises InputError for any other form."""
        scales_by_name = {name: _ends(name, ends) for name, ends in _pairs("--scale", scales)}
        zone = _zone(timezone) if timezone else None
        column_names: dict[str, str] = {}
        for meaning, name in _pairs("--column", columns):
            before = column_names.get(meaning)
            column_names[meaning] = name if before is None else f"{before}{SEVERAL}{name}"
        return cls(column_names, scales_by_name, agent, gold, ratings, zone=zone)


@dataclass(frozen=True)
class Detection:
    """The source that reads the file, the reason, and for a table what its columns are taken
    for."""

    source: str
    why: str
    mapping: list[str]

    def words(self) -> str:
        return f"source {self.source}: {self.why}"


def source_of(name: str, options: Options) -> Source:
    """Return the source called `name` with these options. Raises NotFound, and InputError for
    options that the source does not take."""
    source = SOURCES.get(name)
    if options.columns or options.scales:
        if not isinstance(source, Mappable):
            option = "--column" if options.columns else "--scale"
            raise InputError(
                option,
                f"source {name!r} has its own keys and scales",
                f"Leave it out; it is for the sources {_names_of(Mappable)}",
            )
        source = source.with_mapping(options.columns, options.scales)
    if options.agent is not None:
        if not isinstance(source, OfAgents):
            raise InputError(
                "--agent-type",
                f"the data of source {name!r} does not name an agent type",
                f"Leave it out; it is for the sources {_names_of(OfAgents)}",
            )
        source = source.of_agent(options.agent)
    if options.ratings:
        if not isinstance(source, Rated):
            raise InputError(
                "a filter of ratings by tag or confidence",
                f"the ratings of source {name!r} have neither",
                f"It is for the sources {_names_of(Rated)}",
            )
        source = source.with_ratings(options.ratings)
    if options.gold and isinstance(source, Reviewable):
        source = source.as_gold()
    return source


def _names_of(protocol: type[Any]) -> str:
    """Return the names of the sources that implement `protocol`, separated by commas."""
    return ", ".join(name for name in SOURCES.names() if isinstance(SOURCES.get(name), protocol))


def address_of(
    name: str,
    caller: str = "import without PATH",
    fix: str = "Give: thumbwheel import SOURCE PATH --agent AGENT",
) -> Path:
    """Return the path or address that source `name` reads if no path is given: its environment
    variable, else that variable in the project's .env file.

    Raises InputError if neither is set; its message begins with `caller` and ends with `fix`.
    """
    source = SOURCES.get(name)
    variable = source.address_variable if isinstance(source, Addressed) else None
    address = ""
    if variable:
        address = os.environ.get(variable) or _of_project(variable) or ""
    if not address:
        why = "and this source reads files only"
        if variable:
            why = f"and neither the environment nor a file {DOTENV} here has {variable}"
            fix = f"{fix}, or set {variable}"
        raise InputError(caller, f"the path is missing, {why}", fix)
    return path_or_address(address)


def _of_project(variable: str) -> str | None:
    """Return the value of a variable in the .env file of the working directory, or None if it is
    not set there. Raises MissingExtra if the file exists and python-dotenv is not installed, and
    InputError if another user may have put it there."""
    file = Path(DOTENV)
    if not file.is_file():
        return None
    if may_be_planted(file):
        raise InputError(
            f"file {str(file.absolute())!r}",
            "another user put it into a folder to which everybody may write",
            f"Work in another folder, or set {variable} in the environment",
        )
    try:
        from dotenv import dotenv_values
    except ImportError:
        raise MissingExtra.of(f"file {DOTENV!r}", "python-dotenv", "postgres") from None
    value: str | None = dotenv_values(file).get(variable)
    if value and variable not in _announced:
        _announced.add(variable)
        log.say(f"{variable} is that of {file.absolute()}")
    return value


def detect(path: Path, options: Options | None = None, source: str | None = None) -> Detection:
    """Return the source that reads this file, as `recognise` does, with the meaning of its columns.
    Raises InputError also for a table whose columns cannot be mapped."""
    recognised = recognise(path, source)
    if isinstance(path, Address) or path.is_dir():
        return recognised
    return replace(recognised, mapping=_mapping(path, recognised.source, options))


def recognise(path: Path, source: str | None = None) -> Detection:
    """Return the source that reads this file: `source` if it is given, else the source recognised
    by the first rows. Raises InputError if no source reads it, or several would."""
    if source is not None:
        return Detection(source, "as told", [])
    if isinstance(path, Address) or path.is_dir():
        return _detect_location(path)
    claims, first_row = _claims(path)
    if len(claims) > 1:
        candidates = ", ".join(
            f"{name} ({count} of the first rows)" for name, count in claims.most_common()
        )
        ambiguous = file_error(
            path,
            f"it is ambiguous: {candidates} could read it",
            "Say which: thumbwheel import SOURCE PATH",
        )
        raise at_field(ambiguous, "source")
    if claims:
        (name,) = claims
        return Detection(name, _reason(SOURCES.get(name)), [])
    if kind := foreign(first_row):
        what, step = kind
        raise file_error(path, f"no source reads {what}", step)
    container = container_of(path)
    source_name = "table" if container == "json" else container
    return Detection(source_name, "a table whose columns are known by their names", [])


def advice(path: Path, source: str) -> str:
    """Return advice for a file that `source` does not read, as far as its first rows tell; an empty
    text if they look like rows of that source."""
    try:
        claims, first_row = _claims(path)
    except InputError:
        return ""
    if len(claims) == 1:
        (name,) = claims
        return "" if name == source else f"It looks like source {name!r}. "
    kind = foreign(first_row) if not claims else None
    if kind is None:
        return ""
    what, step = kind
    return f"It looks like {what}. {step}. "


def sample(path: Path, source: str, options: Options | None = None) -> list[SampleRow]:
    """Return the records, or the refusal, for each of the first rows."""
    reader = source_of(source, options or Options())
    rows = []
    for item in islice(reader.read(path, ignore_position), SHOWN):
        if isinstance(item, Line):
            records = [describe(record) for record in item.records]
            rows.append(SampleRow(item.number, records))
        else:
            rows.append(SampleRow(item.number, refused=item.reason))
    return rows


def describe(record: AnyRecord) -> str:
    """Return a record in one line."""
    if isinstance(record, TraceRecord):
        steps = f", {len(record.steps)} steps" if len(record.steps) > 1 else ""
        return f"trace: {_clip(record.input[-1].get('content'))} -> {_clip(record.output)}{steps}"
    if isinstance(record, CaseRecord):
        question, reference = _clip(record.input[-1].get("content")), _clip(record.reference)
        checker = f", checker {record.checker}" if record.checker else ""
        return f"case: {question}, reference {reference}{checker}"
    name = f" {record.name}" if record.name else ""
    scale = f" of {record.scale.min:g} to {record.scale.max:g}" if record.scale else ""
    rater = f" by {record.rater.id}" if record.rater else ""
    value = f"{record.value:g}" if isinstance(record.value, float) else _clip(record.value)
    return f"{record.kind}{name}: {value}{scale}{rater}"


def _clip(value: Any) -> str:
    if isinstance(value, str):
        return shortened(" ".join(value.split()))
    return shortened(json.dumps(value, ensure_ascii=False, default=str))


def _detect_location(path: Path) -> Detection:
    """Return the source that reads this folder or address. Raises InputError if no source reads it,
    or several would."""
    is_address = isinstance(path, Address)
    what = f"address {str(path)!r}" if is_address else f"folder {str(path)!r}"
    candidates = []
    for name in SOURCES.names():
        source = SOURCES.get(name)
        if isinstance(source, ReadsLocations) and source.claims_location(path):
            candidates.append(name)
    if len(candidates) > 1:
        raise InputError(
            what,
            f"it is ambiguous: {', '.join(candidates)} could read it",
            "Say which: thumbwheel import SOURCE PATH",
        )
    if not candidates:
        fix = "Name one file in it, or the source that reads it: thumbwheel import SOURCE PATH"
        if is_address:
            fix = "Give postgresql://USER:PASSWORD@HOST/DATABASE"
        readers = _names_of(ReadsLocations)
        raise InputError(what, f"no source recognises it; {readers} read folders or addresses", fix)
    return Detection(candidates[0], "by what is there", [])


def _claims(path: Path) -> tuple[Counter[str], dict[str, Any]]:
    """Return (source -> number of the first rows that it claims, the first row). Raises InputError
    if no row can be read."""
    first_rows: list[dict[str, Any]] = []
    problem = ""
    for file_row in read_rows(path, ignore_position):
        if file_row.row is not None:
            first_rows.append(file_row.row)
        problem = problem or file_row.reason
        if len(first_rows) == LOOKED_AT:
            break
    if not first_rows:
        if container_of(path) == "json":
            why = f"no line of it is a JSON object; the first: {problem}"
            fix = (
                "Give a file with one object a line; a table needs a name that ends in .csv or .tsv"
            )
        else:
            why, fix = f"no row of it can be read: {problem}", "Export the table again as CSV"
        raise file_error(path, why, fix)
    sources = {name: SOURCES.get(name) for name in SOURCES.names()}
    claims: Counter[str] = Counter()
    for row in first_rows:
        claims.update(name for name, source in sources.items() if source.claims(row))
    return claims, first_rows[0]


def _mapping(path: Path, name: str, options: Options | None) -> list[str]:
    """Return one line for each column's meaning if the source reads any table, else an empty
    list."""
    source = source_of(name, options or Options())
    return source.mapping(path).words() if isinstance(source, Tabular) else []


def _reason(source: Source) -> str:
    """Return why a source claims a row, in its own words if it has any."""
    return source.reason if isinstance(source, Recognised) else DEFAULT_REASON


def _zone(name: str) -> tzinfo:
    """Return the time zone of that name, or with that offset (+02:00). Raises InputError."""
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


def _pairs(option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or []:
        key, _, value = text.partition("=")
        if not key or not value:
            example = "prompt=question" if option == "--column" else "rating=1:10"
            raise InputError(
                f"{option} {text!r}", "it is not NAME=VALUE", f"Give for example {option} {example}"
            )
        pairs.append((key, value))
    return pairs


def _ends(name: str, text: str) -> Scale:
    """Return the worst and the best number of a scale, or its words from worst to best."""
    parts = [part.strip() for part in text.split(":")]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    words = {plain(part) for part in parts if part}
    if not numbers and len(parts) > 1 and len(words) == len(parts):
        return Words(tuple(parts))
    worst, best = numbers if len(numbers) == 2 else (0.0, 0.0)
    if worst == best or not all(map(math.isfinite, (worst, best))):
        raise InputError(
            f"--scale {name}={text}",
            "a scale has a worst and a best number, or words from the worst to the best",
            f"Give for example --scale {name}=1:10 or --scale {name}=poor:fair:good",
        )
    return worst, best
