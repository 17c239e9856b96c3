"""Widgets that people rated: exhaustive_data.json ({run_id, entries} or the entries alone) and the ratings beside it, in every form.

What is named decides: a data file brings the rating files of its folder along (*rating*.json: {ratings: {entry: ...}}, the bare map, or a
list of rows), a folder all its runs, a rating file the data file of its folder, without which nobody knows whose ratings they are: entry
ids begin anew with every run. An entry is a trace named "run:entry": its input is the question which fixture shows this scenario, size and
data best, its answer the fixture. So two entries are answers to one prompt exactly where scenario, query, size, title and data are equal,
and up beside down there is a pair of different answers; entries that differ in data never meet. A natural entry is a second trace too,
"run:entry:widget": its input is the question which widget shows this best, its answer scenario and size, so that liked and disliked
scenarios of one question are pairs, and one that was liked with one fixture and disliked with another is neither. A forced entry is a
fixture to judge, but no choice that a model made. Questions are sessions, so that a question is never split. A rating is a thumb of its
device, "up" or "down" and nothing else, and of each device the newest counts. What there is to choose from is what the catalogue beside
the data has (*catalog*.json: {scenario: {fixture: description}}), else what the run has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from thumbwheel.capture.lines import Seen
from thumbwheel.capture.source import AnyRecord, Item, JsonLines, Line, Refused, Row, numbered
from thumbwheel.capture.types import FeedbackRecord, TargetRef, TraceRecord, Unreadable, explain, parse_time
from thumbwheel.core.errors import InputError

THUMBS = {"up": True, "down": False}
SHOWN = ("label", "value", "unit", "state", "labelA", "valueA", "labelB", "valueB")
"""Fields of the data that the prompt has."""
KEPT = ("scenario", "fixture", "size", "category", "question_id", "natural", "forced", "pipeline_selected_fixture", "widget_index")
EXAMPLE = (
    '{"entry_id": "e00001", "question_id": "q001", "question": "How is pump 4?", "scenario": "kpi", "fixture": "kpi-dial", '
    '"size": "normal", "natural": true, "forced": false, "data_override": {"demoData": {"label": "Flow", "value": 3}}, "rating": "up"}'
)


def claims(row: Row) -> bool:
    """An entry, or the file of a run."""
    return {"entry_id", "scenario", "fixture"} <= row.keys() or ("run_id" in row and isinstance(row.get("entries"), list))


@dataclass
class _Run:
    """What is known about a run: its name, when it was made, which fixtures each scenario has."""

    name: str | None = None
    made_at: Any = None
    fixtures: Mapping[str, list[str]] = field(default_factory=dict)
    entries: Mapping[str, list[str]] = field(default_factory=dict)
    """Entry -> the names of its traces."""


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The traces of an entry that stands alone, and its own rating."""
    return _entry(row, _Run(row.get("run_id")))


def _entry(row: Row, run: _Run) -> list[AnyRecord]:
    if not isinstance(row.get("entry_id"), str | int) or not isinstance(row.get("fixture"), str) or not row["fixture"].strip():
        raise Unreadable("an entry has an entry_id, a scenario and a fixture; this one has not")
    override = row.get("data_override")
    about = {key: row[key] for key in KEPT if row.get(key) is not None} | ({"data": override} if override else {})
    asked = [("", prompt_of(row, run.fixtures.get(str(row.get("scenario")), [])), row["fixture"])]
    if row.get("natural") is True and row.get("scenario") and row.get("question"):
        asked.append((":widget", choice_of(row, sorted(run.fixtures)), f"{row['scenario']} ({row.get('size') or 'normal'})"))
    found: list[AnyRecord] = []
    for suffix, prompt, answer in asked:
        fields = {
            "id": f"{run.name}:{row['entry_id']}{suffix}" if run.name else None,
            "session": f"question:{row['question_id']}" if row.get("question_id") else None,
            "input": prompt,
            "output": answer,
            "metadata": about | {"entry_id": row["entry_id"]} | ({"run_id": run.name} if run.name else {}),
        }
        trace = TraceRecord.model_validate({key: value for key, value in fields.items() if value is not None})
        found += [trace, *_rating(row, trace.identified()[0], run.made_at)]
    return found


def prompt_of(entry: Row, fixtures: list[str]) -> str:
    """The question that a fixture answers: equal for two entries exactly where everything that it shows is equal.

    >>> print(prompt_of({"scenario": "kpi", "question": "Pump 4?", "size": "hero"}, ["dial", "bar"]))
    Scenario: kpi
    Query: Pump 4?
    Size: hero
    Fixtures: bar, dial
    <BLANKLINE>
    Which fixture shows this best? Answer with its name only.
    """
    override = entry.get("data_override")
    found: Mapping[str, Any] = override if isinstance(override, dict) else {}
    data: Mapping[str, Any] = next((found[key] for key in ("demoData", "data") if isinstance(found.get(key), dict)), {})
    config = found.get("config")
    title = config.get("title") if isinstance(config, dict) else None
    lines = [("Scenario", entry.get("scenario")), ("Query", entry.get("question")), ("Size", entry.get("size"))]
    lines += [("Fixtures", ", ".join(sorted(fixtures)) or None), *((f"Data.{key}", data.get(key)) for key in SHOWN), ("Title", title)]
    return _told(lines, "Which fixture shows this best? Answer with its name only.")


def choice_of(entry: Row, scenarios: list[str]) -> str:
    """The question that a widget answers: the same for all entries of a question.

    >>> meant = {"domains": ["ops"], "entities": {"pump": ["4"]}}
    >>> print(choice_of({"question": "Pump 4?", "pipeline_meta": {"intent": meant}}, ["kpi", "map"]))
    Query: Pump 4?
    Scenarios: kpi, map
    Domains: ops
    Entities: pump: 4
    <BLANKLINE>
    Which widget shows this best? Answer with its scenario and size, as: kpi (normal)
    """
    meta = entry.get("pipeline_meta")
    intent = meta.get("intent") if isinstance(meta, dict) else None
    known: Mapping[str, Any] = intent if isinstance(intent, dict) else {}
    domains, entities = known.get("domains"), known.get("entities")
    named = [f"{name}: {_listed(value)}" for name, value in entities.items()] if isinstance(entities, dict) else []
    lines = [("Query", entry.get("question")), ("Scenarios", ", ".join(scenarios) or None)]
    lines += [("Domains", _listed(domains) if domains else None), ("Entities", ", ".join(named) or None)]
    return _told(lines, "Which widget shows this best? Answer with its scenario and size, as: kpi (normal)")


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _told(lines: Iterable[tuple[str, Any]], question: str) -> str:
    told = "\n".join(f"{name}: {value}" for name, value in lines if value is not None)
    return f"{told}\n\n{question}"


def _rating(row: Row, trace: str, made_at: Any = None) -> Iterator[FeedbackRecord]:
    rating = row.get("rating")
    if rating is None:
        return
    if not isinstance(rating, str) or rating not in THUMBS:
        raise Unreadable(f"rating {rating!r} is none of up, down, null")
    tags = {"tags": row["tags"]} if row.get("tags") else None
    fields = {"kind": "thumb", "value": THUMBS[rating], "targets": [TargetRef(kind="trace", id=trace)], "metadata": tags}
    rater = {"id": row["device_id"]} if row.get("device_id") else None
    fields |= {"rater": rater, "occurred_at": row.get("rated_at") or made_at, "comment": row.get("notes") or None}
    yield FeedbackRecord.model_validate(fields)


@dataclass(frozen=True)
class Widgets(JsonLines):
    """See the module: a run, its ratings, a folder of runs, or entries one by one."""

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """See Source. The file of a run is one JSON object and is held in memory."""
        if path.is_dir():
            files = sorted(path.rglob("*.json"))
            runs = [one for one in files if _is_run(_object(one))]
            if not runs:
                raise InputError(
                    f"folder {str(path)!r}", "no file in it has the entries of a run", "Name the folder of exhaustive_data.json"
                )
            yield from numbered(item for run in runs for item in _whole(run))
        elif _is_run(found := _object(path)):
            yield from numbered(_whole(path))
        elif found is not None and (ratings := _ratings(found)):
            yield from numbered(_rated(path, ratings, _beside(path)))
        else:
            yield from super().read(path, seen)
            return
        seen(sum(one.stat().st_size for one in ([path] if path.is_file() else files)))


def _object(path: Path) -> Any:
    """The value of a .json file; None for every other file, whose lines are read one by one."""
    try:
        return from_json(path.read_bytes(), allow_inf_nan=False) if path.suffix == ".json" else None
    except (OSError, ValueError):
        return None


def _is_run(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("entries"), list)


def _ratings(found: Any) -> list[dict[str, Any]]:
    """The rows of a rating file, each with its entry_id; none where it is no such file."""
    inner = found.get("ratings", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        inner = [{"entry_id": name, **one} for name, one in inner.items() if isinstance(one, dict)]
    rows = [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
    rated = bool(rows) and all("rating" in one and "entry_id" in one and "fixture" not in one for one in rows)
    return rows if rated else []


def _run_of(path: Path) -> _Run:
    found = _object(path)
    fixtures: dict[str, set[str]] = defaultdict(set)
    entries = [one for one in found["entries"] if isinstance(one, dict)]
    for one in entries:
        if one.get("scenario"):
            fixtures[str(one["scenario"])].add(str(one.get("fixture")))
    for catalogue in sorted(path.parent.glob("*catalog*.json")):
        known = _object(catalogue)
        if isinstance(known, dict):  # a scenario with one fixture has a text in place of an object
            for name, some in known.items():
                fixtures[name] = set(some) if isinstance(some, dict | list) else fixtures[name]
    run = _Run(found.get("run_id") or None, found.get("created_at"), {name: sorted(some) for name, some in fixtures.items()})
    names = {}
    for one in entries:
        try:
            made = _entry(one, run)
            names[str(one.get("entry_id"))] = [trace.identified()[0] for trace in made if isinstance(trace, TraceRecord)]
        except (Unreadable, ValidationError):
            continue  # it is refused where it is read
    run.entries = names
    return run


def _beside(path: Path) -> _Run:
    runs = [one for one in sorted(path.parent.glob("*.json")) if _is_run(_object(one))]
    if len(runs) != 1:
        why = f"there are {len(runs)} runs beside it, and entry ids begin anew with every run"
        raise InputError(f"file {str(path)!r}", why, "Put it into the folder of its exhaustive_data.json")
    return _run_of(runs[0])


def _whole(path: Path) -> Iterator[Item]:
    """The entries of a run, then the ratings in its folder."""
    run = _run_of(path)
    for one in _object(path)["entries"]:
        yield _item(lambda one=one: _entry(one if isinstance(one, dict) else {}, run), one)
    for place in sorted(path.parent.glob("*rating*.json")):
        yield from _rated(place, _ratings(_object(place)), _beside(place))


def _rated(path: Path, rows: list[dict[str, Any]], run: _Run) -> Iterator[Item]:
    for one in rows:
        yield _item(lambda one=one: _given(one, run, path), one)


def _given(row: Row, run: _Run, path: Path) -> list[AnyRecord]:
    entry = str(row["entry_id"])
    if row.get("run_id") not in (None, run.name) or entry not in run.entries:
        raise Unreadable(f"{path.name}: entry {entry!r} is not of run {run.name!r}")
    if row.get("rated_at") and run.made_at and parse_time(row["rated_at"]) < parse_time(run.made_at):
        raise Unreadable(f"{path.name}: entry {entry!r} was rated before this run was made, so another widget is meant")
    return [thumb for trace in run.entries[entry] for thumb in _rating(row, trace)]


def _item(records: Any, row: Any) -> Item:
    text = json.dumps(row, ensure_ascii=False)
    try:
        return Line(0, records(), text)
    except ValidationError as error:
        return Refused(0, explain(error), text)
    except Unreadable as error:
        return Refused(0, str(error), text)


SOURCE = Widgets(parse, claims, EXAMPLE)
