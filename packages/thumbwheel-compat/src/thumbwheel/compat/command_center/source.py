"""Widgets that people rated: exhaustive_data.json ({run_id, entries} or the entries alone) and the
ratings beside it, in every form.

What is named decides: a data file brings the rating files of its folder along (*rating*.json:
{ratings: {entry: ...}}, the bare map, or a list of rows), a folder all its runs, a rating file the
data file of its folder, without which nobody knows whose ratings they are: entry ids begin anew
with every run. An entry is a trace named "run:entry": its input is the question which fixture shows
this scenario, size and data best, its answer the fixture. So two entries are answers to one prompt
exactly where scenario, query, size, title and data are equal, and up beside down there is a pair of
different answers; entries that differ in data never meet. A natural entry is a second trace too,
"run:entry:widget": its input is the question which widget shows this best, its answer scenario and
size, so that liked and disliked scenarios of one question are pairs, and one that was liked with
one fixture and disliked with another is neither. A forced entry is a fixture to judge, but no
choice that a model made. Questions are sessions, so that a question is never split. A rating is a
thumb of its device, "up" or "down" and nothing else, and of each device the newest counts. What
there is to choose from is what the catalogue beside the data has (*catalog*.json: {scenario:
{fixture: description}}), with its descriptions, else what the run has. An answer may be several
widgets: where people liked or disliked more than one of a question, all that they liked and all
that they disliked are two answers more, and a preference between them. What is named by a run is
known by that name, so a catalogue that comes later makes no other trace of it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thumbwheel.core.errors import InputError
from thumbwheel.importers.json_text import HasNul, has_nul, json_value
from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.rating_filter import ALL_COUNT, RatingFilter
from thumbwheel.importers.regular_file import file_error, files_below, read_regular
from thumbwheel.importers.rowfile import FileRow
from thumbwheel.importers.source import (
    Item,
    JsonLines,
    LeftOut,
    Line,
    Parse,
    Refused,
    Row,
    item_of,
    items_of_files,
    numbered,
)
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
    parse_time,
)

THUMBS = {"up": True, "down": False}
SHOWN = ("label", "value", "unit", "state", "labelA", "valueA", "labelB", "valueB")
"""Fields of the data that the prompt has."""
KEPT = (
    "question",
    "scenario",
    "fixture",
    "size",
    "category",
    "question_id",
    "natural",
    "forced",
    "pipeline_selected_fixture",
    "widget_index",
)
ASKED = (
    "Which widgets show this best? Answer with the scenario and size of each, as: kpi (normal), "
    "trend (normal)"
)
MOST_VALUES = 5_000_000
"""Of the file of a run, which is held in memory."""
EXAMPLE = (
    '{"entry_id": "e00001", "question_id": "q001", "question": "How is pump 4?", "scenario": '
    '"kpi", "fixture": "kpi-dial", '
    '"size": "normal", "natural": true, "forced": false, "data_override": {"demoData": {"label": '
    '"Flow", "value": 3}}, "rating": "up"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is an entry, or the file of a run."""
    if {"entry_id", "scenario", "fixture"} <= row.keys():
        return True
    return "run_id" in row and isinstance(row.get("entries"), list)


@dataclass
class _Run:
    """What is known about a run: its name, when it was made, which fixtures each scenario has."""

    name: str | None = None
    made_at: Any = None
    fixtures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Scenario -> fixture -> its description, empty where nobody described it."""
    entries: Mapping[str, list[str]] = field(default_factory=dict)
    """Entry -> the names of its traces."""
    confidences: Mapping[str, Any] = field(default_factory=dict)
    """Entry -> how sure the app was of what it meant."""


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the traces of an entry outside a run file, and its own rating."""
    return _entry(row, _Run(row.get("run_id")), ALL_COUNT)


def _entry(row: Row, run: _Run, ratings: RatingFilter) -> list[AnyRecord]:
    """Return the traces of an entry, and its rating if it counts. Raises Unreadable if its entry_id
    or fixture is missing."""
    fixture = row.get("fixture")
    has_id = isinstance(row.get("entry_id"), str | int)
    if not has_id or not isinstance(fixture, str) or not fixture.strip():
        raise Unreadable("an entry has an entry_id, a scenario and a fixture; this one has not")
    metadata = {key: row[key] for key in KEPT if row.get(key) is not None}
    if row.get("data_override"):
        metadata["data"] = row["data_override"]
    metadata["entry_id"] = row["entry_id"]
    if run.name:
        metadata["run_id"] = run.name
    if _intent(row):
        metadata["intent"] = _intent(row)
    if isinstance(_confidence(row), int | float):
        metadata["confidence"] = _confidence(row)
    card = f"{run.name or ''}:{row['entry_id']}"

    # which fixture, and for a natural entry also which widget
    fixtures = run.fixtures.get(str(row.get("scenario")), {})
    questions = [("", prompt_of(row, fixtures), fixture)]
    if row.get("natural") is True and row.get("scenario") and row.get("question"):
        questions.append((":widget", choice_of(row, sorted(run.fixtures)), _widget(row)))

    counts = ratings.objection(row, _confidence(row)) is None
    records: list[AnyRecord] = []
    for suffix, prompt, answer in questions:
        fields = {
            "id": f"{run.name}:{row['entry_id']}{suffix}" if run.name else None,
            "session": f"question:{row['question_id']}" if row.get("question_id") else None,
            "input": prompt,
            "output": answer,
            "metadata": metadata | {"card_of" if suffix else "card": card},
        }
        present = {key: value for key, value in fields.items() if value is not None}
        trace = TraceRecord.model_validate(present)
        if trace.id:
            trace.with_identity({"widget": trace.id})
        records.append(trace)
        if counts:
            records += _rating(row, trace.external_id, run.made_at)
    return records


def _widget(row: Row) -> str:
    return f"{row['scenario']} ({row.get('size') or 'normal'})"


def _intent(row: Row) -> Mapping[str, Any]:
    """Return the intent that the app recognised in the question; empty if there is none."""
    meta = row.get("pipeline_meta")
    intent = meta.get("intent") if isinstance(meta, dict) else None
    return intent if isinstance(intent, dict) else {}


def _confidence(row: Row) -> Any:
    """Return the confidence of the app in that intent, or None."""
    return _intent(row).get("confidence")


def prompt_of(entry: Row, fixtures: Mapping[str, str]) -> str:
    """Return the prompt for the choice of a fixture; it is equal for two entries if and only if
    everything that it shows is equal.

    >>> entry = {"scenario": "kpi", "question": "Pump 4?", "size": "hero"}
    >>> print(prompt_of(entry, {"dial": "a round scale", "bar": ""}))
    Scenario: kpi
    Query: Pump 4?
    Size: hero
    Fixtures: bar, dial
    - dial: a round scale
    <BLANKLINE>
    Which fixture shows this best? Answer with its name only.
    """
    override = entry.get("data_override")
    override = override if isinstance(override, dict) else {}
    parts = [override.get("demoData"), override.get("data")]
    data: Mapping[str, Any] = next((part for part in parts if isinstance(part, dict)), {})
    config = override.get("config")
    title = config.get("title") if isinstance(config, dict) else None
    lines = [
        ("Scenario", entry.get("scenario")),
        ("Query", entry.get("question")),
        ("Size", entry.get("size")),
        ("Fixtures", ", ".join(sorted(fixtures)) or None),
    ]
    lines += [(f"- {name}", fixtures[name] or None) for name in sorted(fixtures)]
    lines += [(f"Data.{key}", data.get(key)) for key in SHOWN]
    lines.append(("Title", title))
    return _prompt(lines, "Which fixture shows this best? Answer with its name only.")


def choice_of(entry: Row, scenarios: list[str]) -> str:
    """Return the prompt for the choice of widgets; it is the same for all entries of a question.

    >>> intent = {"domains": ["ops"], "entities": {"pump": ["4"]}, "time_range": "last week"}
    >>> entry = {"question": "Pump 4?", "pipeline_meta": {"intent": intent}}
    >>> print(choice_of(entry, ["kpi", "map"]))  # doctest: +NORMALIZE_WHITESPACE
    Query: Pump 4?
    Scenarios: kpi, map
    Domains: ops
    Entities: pump: 4
    Time range: last week
    <BLANKLINE>
    Which widgets show this best? Answer with the scenario and size of each, as: kpi (normal), trend
    (normal)
    """
    intent = _intent(entry)
    domains, time_range = intent.get("domains"), intent.get("time_range")
    entities = []
    if isinstance(intent.get("entities"), dict):
        entities = [f"{name}: {_listed(value)}" for name, value in intent["entities"].items()]
    lines = [
        ("Query", entry.get("question")),
        ("Scenarios", ", ".join(scenarios) or None),
        ("Domains", _listed(domains) if domains else None),
        ("Entities", ", ".join(entities) or None),
        ("Time range", _listed(time_range) if time_range else None),
    ]
    return _prompt(lines, ASKED)


def _listed(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _prompt(lines: Iterable[tuple[str, Any]], question: str) -> str:
    facts = "\n".join(f"{name}: {value}" for name, value in lines if value is not None)
    return f"{facts}\n\n{question}"


def _rating(row: Row, trace: str, made_at: Any = None) -> Iterator[FeedbackRecord]:
    rating = row.get("rating")
    if rating is None:
        return
    if not isinstance(rating, str) or rating not in THUMBS:
        raise Unreadable(f"rating {rating!r} is none of up, down, null")
    fields = {
        "kind": "thumb",
        "value": THUMBS[rating],
        "targets": [TargetRef(kind="trace", id=trace)],
        "metadata": {"tags": row["tags"]} if row.get("tags") else None,
        "rater": {"id": row["device_id"]} if row.get("device_id") else None,
        "occurred_at": row.get("rated_at") or made_at,
        "comment": row.get("notes") or None,
    }
    yield FeedbackRecord.model_validate(fields)


@dataclass(frozen=True)
class Widgets(JsonLines):
    """A run, its ratings, a folder of runs, or entries one by one. `ratings` says which ratings
    count."""

    ratings: RatingFilter = ALL_COUNT

    def with_ratings(self, ratings: RatingFilter) -> Widgets:
        return replace(self, ratings=ratings)

    def items(self, rows: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """Yield the item of every entry outside a run file, and of its rating if that does not
        count."""

        def parse_entry(entry: Row) -> list[AnyRecord]:
            return _entry(entry, _Run(entry.get("run_id")), self.ratings)

        for row in rows:
            yield from super().items(iter([row]), parse_entry)
            if row.row is not None:
                yield from _uncounted(row.row, _confidence(row.row), self.ratings, row.number)

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is a folder with the file of a run."""
        return path.is_dir() and any(_is_run(_value(file)) for file in files_below(path, ".json"))

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Yield every item in order. The file of a run is one JSON object and is held in memory."""
        if path.is_dir():
            yield from self._folder(path, on_position)
            return
        value = _value(path)
        ratings = _ratings(value)
        if _is_run(value):
            yield from numbered(_run_items(path, self.ratings))
        elif ratings:
            yield from numbered(_rated(path, ratings, _run_beside(path), self.ratings))
        else:
            yield from super().read(path, on_position)
            return
        on_position(path.stat().st_size)

    def _folder(self, folder: Path, on_position: OnPosition) -> Iterator[Item]:
        runs = [file for file in files_below(folder, ".json") if _is_run(_value(file))]
        if not runs:
            raise InputError(
                f"folder {str(folder)!r}",
                "no file in it has the entries of a run",
                "Name the folder of exhaustive_data.json",
            )
        read = partial(_run_items, ratings=self.ratings)
        yield from items_of_files(folder, runs, read, on_position)


def _value(path: Path, *, allow_nul: bool = True) -> Any:
    """Return the value of a .json file; None if it cannot be read, and for every other file, whose
    lines are read one by one. Entries with NUL are refused one by one."""
    if path.suffix != ".json":
        return None
    try:
        return json_value(read_regular(path), MOST_VALUES, allow_nul=allow_nul)
    except (InputError, Unreadable):
        return None


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("entries"), list)


def _ratings(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a rating file, each with its entry_id; empty for any other file."""
    ratings = value.get("ratings", value) if isinstance(value, dict) else value
    rows: list[dict[str, Any]] = []
    if isinstance(ratings, dict):
        for name, row in ratings.items():
            if isinstance(row, dict):
                rows.append({"entry_id": name, **row})
    elif isinstance(ratings, list):
        rows = [row for row in ratings if isinstance(row, dict)]
    for row in rows:
        if not {"rating", "entry_id"} <= row.keys() or "fixture" in row:
            return []
    return rows


def _run_of(path: Path) -> _Run:
    """Return the run in this file, with the fixtures of the catalogues beside it. Raises InputError
    if its run_id or created_at contains NUL."""
    value = _value(path)
    if has_nul([value.get("run_id"), value.get("created_at")]):
        raise file_error(path, str(HasNul()), "Correct its run_id or created_at")
    entries = [
        entry for entry in value["entries"] if isinstance(entry, dict) and not has_nul(entry)
    ]

    # the fixtures of each scenario
    fixtures: dict[str, dict[str, str]] = defaultdict(dict)
    for entry in entries:
        if entry.get("scenario"):
            fixtures[str(entry["scenario"])].setdefault(str(entry.get("fixture")), "")
    for file in sorted(path.parent.glob("*catalog*.json")):
        catalogue = _value(file, allow_nul=False)
        if isinstance(catalogue, dict):
            for name, described in catalogue.items():
                fixtures[name] = _described(described, fixtures[name])

    # the traces of each entry
    run = _Run(value.get("run_id") or None, value.get("created_at"), fixtures)
    run.confidences = {str(entry.get("entry_id")): _confidence(entry) for entry in entries}
    names = {}
    for entry in entries:
        try:
            records = _entry(entry, run, ALL_COUNT)
        except (Unreadable, ValidationError):
            continue  # it is refused where it is read
        traces = [record for record in records if isinstance(record, TraceRecord)]
        names[str(entry.get("entry_id"))] = [trace.external_id for trace in traces]
    run.entries = names
    return run


def _described(described: Any, rendered: Mapping[str, str]) -> dict[str, str]:
    """Return fixture -> description of a scenario in a catalogue. A scenario with one fixture has a
    text in place of an object."""
    if isinstance(described, dict):
        return {name: text if isinstance(text, str) else "" for name, text in described.items()}
    if isinstance(described, list):
        return {str(name): "" for name in described}
    text = described if isinstance(described, str) and len(rendered) == 1 else ""
    return dict.fromkeys(rendered, text)


def _run_beside(path: Path) -> _Run:
    runs = [file for file in sorted(path.parent.glob("*.json")) if _is_run(_value(file))]
    if len(runs) != 1:
        raise file_error(
            path,
            f"there are {len(runs)} runs beside it, and entry ids begin anew with every run",
            "Put it into the folder of its exhaustive_data.json",
        )
    return _run_of(runs[0])


def _run_items(path: Path, ratings: RatingFilter) -> Iterator[Item]:
    """Yield the entries of a run, the ratings in its folder, and the preferences between several
    widgets of a question that follow from both."""
    run = _run_of(path)
    readable: list[Row] = []
    counted: list[Row] = []
    for entry in _value(path)["entries"]:
        row = entry if isinstance(entry, dict) else {}
        item = _item(partial(_entry, row, run, ratings), entry)
        yield item
        if not isinstance(item, Line):
            continue
        readable.append(row)
        uncounted = list(_uncounted(row, _confidence(row), ratings))
        yield from uncounted
        if row.get("rating") and not uncounted:
            counted.append(row)
    for file in sorted(path.parent.glob("*rating*.json")):
        rows = _ratings(_value(file))
        for row, item in zip(rows, _rated(file, rows, _run_beside(file), ratings), strict=True):
            yield item
            if isinstance(item, Line) and row.get("rating"):
                counted.append(row)
    yield from _choices(readable, counted, run)


def _uncounted(
    row: Row, confidence: Any, ratings: RatingFilter, number: int = 0
) -> Iterator[LeftOut]:
    """Yield the rating of an entry if it does not count, with the reason."""
    reason = ratings.objection(row, confidence)
    if reason is not None:
        yield LeftOut(number, reason, json.dumps(row, ensure_ascii=False))


def _choices(entries: list[Row], counted: list[Row], run: _Run) -> Iterator[Item]:
    """Yield a preference for every question that has liked and disliked widgets, more than two in
    all: all liked ones over all disliked ones."""
    by_entry = _newest_ratings(counted)
    questions: dict[str, list[Row]] = defaultdict(list)
    for entry in entries:
        has_question = entry.get("question") and entry.get("question_id")
        if entry.get("natural") is True and entry.get("scenario") and has_question:
            questions[str(entry["question_id"])].append(entry)

    for question, shown in questions.items():
        by_widget: dict[str, list[Row]] = defaultdict(list)
        for entry in shown:
            by_widget[_widget(entry)] += by_entry[str(entry.get("entry_id"))]
        thumbs = {}
        for widget in sorted(by_widget):
            thumbs[widget] = {THUMBS[rating["rating"]] for rating in by_widget[widget]}
        liked = [widget for widget, values in thumbs.items() if values == {True}]
        disliked = [widget for widget, values in thumbs.items() if values == {False}]
        if liked and disliked and len(liked) + len(disliked) > 2:
            ratings = list(chain.from_iterable(by_widget[name] for name in (*liked, *disliked)))
            records = partial(_preferred, question, shown[0], (liked, disliked), ratings, run)
            yield _item(records, {"question_id": question})


def _newest_ratings(ratings: list[Row]) -> dict[str, list[Row]]:
    """Return entry -> its ratings, the newest of each device."""
    newest: dict[tuple[str, Any], Row] = {}
    for rating in ratings:
        key = str(rating["entry_id"]), rating.get("device_id")
        if key not in newest or _rated_at(newest[key]) <= _rated_at(rating):
            newest[key] = rating
    by_entry: dict[str, list[Row]] = defaultdict(list)
    for (entry_id, _), rating in newest.items():
        by_entry[entry_id].append(rating)
    return by_entry


def _preferred(
    question: str, entry: Row, sides: tuple[list[str], list[str]], ratings: list[Row], run: _Run
) -> list[AnyRecord]:
    """Return two answers to a question, the liked widgets and the disliked ones, and the preference
    that follows from the ratings."""
    metadata = {"question_id": question}
    if run.name:
        metadata["run_id"] = run.name
    prompt = choice_of(entry, sorted(run.fixtures))
    traces = []
    for widgets in sides:
        fields = {
            "session": f"question:{question}",
            "input": prompt,
            "output": ", ".join(widgets),
            "metadata": metadata,
        }
        traces.append(TraceRecord.model_validate(fields))
    devices = {rating.get("device_id") for rating in ratings}
    device = devices.pop() if len(devices) == 1 else None
    last = max(ratings, key=_rated_at).get("rated_at") or run.made_at
    preference = FeedbackRecord.model_validate(
        {
            "kind": "preference",
            "value": {"ranking": [[0], [1]]},
            "targets": [trace.as_target() for trace in traces],
            "rater": {"id": device} if device else None,
            "occurred_at": last,
        }
    )
    return [*traces, preference]


def _rated_at(rating: Row) -> datetime:
    """Return when the rating was given; the earliest possible time if that is unknown."""
    if rating.get("rated_at"):
        return parse_time(rating["rated_at"])
    return datetime.min.replace(tzinfo=UTC)


def _rated(
    path: Path, rows: list[dict[str, Any]], run: _Run, ratings: RatingFilter
) -> Iterator[Item]:
    """Yield the items of the ratings in a rating file."""
    for row in rows:
        uncounted = list(_uncounted(row, run.confidences.get(str(row["entry_id"])), ratings))
        if uncounted:
            yield from uncounted
        else:
            yield _item(partial(_thumbs, row, run, path), row)


def _thumbs(row: Row, run: _Run, path: Path) -> list[AnyRecord]:
    """Return the thumbs of a rating, one for each trace of its entry. Raises Unreadable if the run
    does not contain the entry, or if it was rated before the run was made."""
    entry = str(row["entry_id"])
    if row.get("run_id") not in (None, run.name) or entry not in run.entries:
        raise Unreadable(f"{path.name}: entry {entry!r} is not of run {run.name!r}")
    rated_at = parse_time(row["rated_at"]) if row.get("rated_at") and run.made_at else None
    if rated_at is not None and rated_at < parse_time(run.made_at):
        raise Unreadable(
            f"{path.name}: entry {entry!r} was rated before this run was made, so another widget "
            "is meant"
        )
    thumbs: list[AnyRecord] = []
    for trace in run.entries[entry]:
        thumbs += _rating(row, trace)
    return thumbs


def _item(records: Callable[[], list[AnyRecord]], row: Any) -> Item:
    text = json.dumps(row, ensure_ascii=False)
    if has_nul(row):
        return Refused(0, str(HasNul()), text)
    return item_of(0, text, records)


SOURCE = Widgets(
    parse,
    claims,
    EXAMPLE,
    about="rated widgets: exhaustive_data.json with the ratings beside it, or a folder of "
    "such runs.",
    reason="an entry, or the file of a run",
)
