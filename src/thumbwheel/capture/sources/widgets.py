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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thumbwheel.capture.json_text import HasNul, has_nul, json_value
from thumbwheel.capture.lines import OnPosition
from thumbwheel.capture.rating_filter import ALL_COUNT, RatingFilter
from thumbwheel.capture.regular_file import files_below, read_regular
from thumbwheel.capture.rowfile import FileRow
from thumbwheel.capture.source import (
    Item,
    JsonLines,
    LeftOut,
    Line,
    Parse,
    Refused,
    Row,
    named,
    numbered,
)
from thumbwheel.capture.types import (
    AnyRecord,
    FeedbackRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
    explain,
    parse_time,
)
from thumbwheel.core.errors import InputError

THUMBS = {"up": True, "down": False}
SHOWN = ("label", "value", "unit", "state", "labelA", "valueA", "labelB", "valueB")
"""Fields of the data that the prompt has."""
KEPT = (
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
    """An entry, or the file of a run."""
    return {"entry_id", "scenario", "fixture"} <= row.keys() or (
        "run_id" in row and isinstance(row.get("entries"), list)
    )


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
    """The traces of an entry that stands alone, and its own rating."""
    return _entry(row, _Run(row.get("run_id")), ALL_COUNT)


def _entry(row: Row, run: _Run, ratings: RatingFilter) -> list[AnyRecord]:
    if (
        not isinstance(row.get("entry_id"), str | int)
        or not isinstance(row.get("fixture"), str)
        or not row["fixture"].strip()
    ):
        raise Unreadable("an entry has an entry_id, a scenario and a fixture; this one has not")
    override = row.get("data_override")
    about = {key: row[key] for key in KEPT if row.get(key) is not None} | (
        {"data": override} if override else {}
    )
    asked = [("", prompt_of(row, run.fixtures.get(str(row.get("scenario")), {})), row["fixture"])]
    if row.get("natural") is True and row.get("scenario") and row.get("question"):
        asked.append((":widget", choice_of(row, sorted(run.fixtures)), _widget(row)))
    found: list[AnyRecord] = []
    for suffix, prompt, answer in asked:
        fields = {
            "id": f"{run.name}:{row['entry_id']}{suffix}" if run.name else None,
            "session": f"question:{row['question_id']}" if row.get("question_id") else None,
            "input": prompt,
            "output": answer,
            "metadata": about
            | {"entry_id": row["entry_id"]}
            | ({"run_id": run.name} if run.name else {}),
        }
        trace = TraceRecord.model_validate(
            {key: value for key, value in fields.items() if value is not None}
        )
        if trace.id:
            trace.with_identity({"widget": trace.id})
        found.append(trace)
        if ratings.objection(row, _intent(row).get("confidence")) is None:
            found += _rating(row, trace.external_id, run.made_at)
    return found


def _widget(row: Row) -> str:
    return f"{row['scenario']} ({row.get('size') or 'normal'})"


def _intent(row: Row) -> Mapping[str, Any]:
    """What the app took the question for."""
    meta = row.get("pipeline_meta")
    intent = meta.get("intent") if isinstance(meta, dict) else None
    return intent if isinstance(intent, dict) else {}


def prompt_of(entry: Row, fixtures: Mapping[str, str]) -> str:
    """The question that a fixture answers: equal for two entries exactly where everything that it
    shows is equal.

    >>> print(prompt_of({"scenario": "kpi", "question": "Pump 4?", "size": "hero"}, {"dial": "a
    round scale", "bar": ""}))
    Scenario: kpi
    Query: Pump 4?
    Size: hero
    Fixtures: bar, dial
    - dial: a round scale
    <BLANKLINE>
    Which fixture shows this best? Answer with its name only.
    """
    override = entry.get("data_override")
    found: Mapping[str, Any] = override if isinstance(override, dict) else {}
    data: Mapping[str, Any] = next(
        (found[key] for key in ("demoData", "data") if isinstance(found.get(key), dict)), {}
    )
    config = found.get("config")
    title = config.get("title") if isinstance(config, dict) else None
    lines = [
        ("Scenario", entry.get("scenario")),
        ("Query", entry.get("question")),
        ("Size", entry.get("size")),
    ]
    lines.append(("Fixtures", ", ".join(sorted(fixtures)) or None))
    lines += [(f"- {name}", fixtures[name] or None) for name in sorted(fixtures)]
    lines += [(f"Data.{key}", data.get(key)) for key in SHOWN]
    lines.append(("Title", title))
    return _told(lines, "Which fixture shows this best? Answer with its name only.")


def choice_of(entry: Row, scenarios: list[str]) -> str:
    """The question that one widget or several answer: the same for all entries of a question.

    >>> meant = {"domains": ["ops"], "entities": {"pump": ["4"]}, "time_range": "last week"}
    >>> print(choice_of({"question": "Pump 4?", "pipeline_meta": {"intent": meant}}, ["kpi",
    "map"]))
    Query: Pump 4?
    Scenarios: kpi, map
    Domains: ops
    Entities: pump: 4
    Time range: last week
    <BLANKLINE>
    Which widgets show this best? Answer with the scenario and size of each, as: kpi (normal), trend
    (normal)
    """
    known = _intent(entry)
    domains, entities = known.get("domains"), known.get("entities")
    named = (
        [f"{name}: {_listed(value)}" for name, value in entities.items()]
        if isinstance(entities, dict)
        else []
    )
    lines = [("Query", entry.get("question")), ("Scenarios", ", ".join(scenarios) or None)]
    lines += [
        ("Domains", _listed(domains) if domains else None),
        ("Entities", ", ".join(named) or None),
    ]
    lines.append(("Time range", _listed(known["time_range"]) if known.get("time_range") else None))
    return _told(lines, ASKED)


def _listed(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {part}" for name, part in value.items())
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
    fields = {
        "kind": "thumb",
        "value": THUMBS[rating],
        "targets": [TargetRef(kind="trace", id=trace)],
        "metadata": tags,
    }
    rater = {"id": row["device_id"]} if row.get("device_id") else None
    fields |= {
        "rater": rater,
        "occurred_at": row.get("rated_at") or made_at,
        "comment": row.get("notes") or None,
    }
    yield FeedbackRecord.model_validate(fields)


@dataclass(frozen=True)
class Widgets(JsonLines):
    """See the module: a run, its ratings, a folder of runs, or entries one by one. `ratings` says
    which of them count."""

    ratings: RatingFilter = ALL_COUNT

    def with_ratings(self, ratings: RatingFilter) -> Widgets:
        """See detect.Rated."""
        return replace(self, ratings=ratings)

    def items(self, found: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """The item of every entry that stands alone, and of its rating where that does not count."""
        for entry in found:
            yield from super().items(
                iter([entry]), lambda row: _entry(row, _Run(row.get("run_id")), self.ratings)
            )
            if entry.row is not None:
                yield from _uncounted(
                    entry.row, _intent(entry.row).get("confidence"), self.ratings, entry.number
                )

    def claims_location(self, path: Path) -> bool:
        """See detect.ReadsLocations: a folder with the file of a run."""
        return path.is_dir() and any(_is_run(_object(file)) for file in files_below(path, ".json"))

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """See Source. The file of a run is one JSON object and is held in memory."""
        if path.is_dir():
            files = list(files_below(path, ".json"))
            runs = [one for one in files if _is_run(_object(one))]
            if not runs:
                raise InputError(
                    f"folder {str(path)!r}",
                    "no file in it has the entries of a run",
                    "Name the folder of exhaustive_data.json",
                )
            yield from numbered(
                item
                for run in runs
                for item in named(_whole(run, self.ratings), run.relative_to(path).as_posix())
            )
        elif _is_run(found := _object(path)):
            yield from numbered(_whole(path, self.ratings))
        elif found is not None and (ratings := _ratings(found)):
            yield from numbered(_rated(path, ratings, _beside(path), self.ratings))
        else:
            yield from super().read(path, on_position)
            return
        on_position(sum(file.stat().st_size for file in ([path] if path.is_file() else files)))


def _object(path: Path, *, allow_nul: bool = True) -> Any:
    """The value of a .json file; None for every other file, whose lines are read one by one.
    Entries with NUL are refused one by one."""
    try:
        return (
            json_value(read_regular(path), MOST_VALUES, allow_nul=allow_nul)
            if path.suffix == ".json"
            else None
        )
    except (InputError, Unreadable):
        return None


def _is_run(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("entries"), list)


def _ratings(found: Any) -> list[dict[str, Any]]:
    """The rows of a rating file, each with its entry_id; none where it is no such file."""
    inner = found.get("ratings", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        inner = [{"entry_id": name, **one} for name, one in inner.items() if isinstance(one, dict)]
    rows = [one for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
    rated = bool(rows) and all(
        "rating" in one and "entry_id" in one and "fixture" not in one for one in rows
    )
    return rows if rated else []


def _run_of(path: Path) -> _Run:
    found = _object(path)
    fixtures: dict[str, dict[str, str]] = defaultdict(dict)
    if has_nul([found.get("run_id"), found.get("created_at")]):
        raise InputError(f"file {str(path)!r}", str(HasNul()), "Correct its run_id or created_at")
    entries = [one for one in found["entries"] if isinstance(one, dict) and not has_nul(one)]
    for one in entries:
        if one.get("scenario"):
            fixtures[str(one["scenario"])].setdefault(str(one.get("fixture")), "")
    for catalogue in sorted(path.parent.glob("*catalog*.json")):
        known = _object(catalogue, allow_nul=False)
        if isinstance(known, dict):
            for name, described in known.items():
                fixtures[name] = _described(described, fixtures[name])
    run = _Run(found.get("run_id") or None, found.get("created_at"), fixtures)
    run.confidences = {
        str(entry.get("entry_id")): _intent(entry).get("confidence") for entry in entries
    }
    names = {}
    for one in entries:
        try:
            made = _entry(one, run, ALL_COUNT)
            names[str(one.get("entry_id"))] = [
                trace.external_id for trace in made if isinstance(trace, TraceRecord)
            ]
        except (Unreadable, ValidationError):
            continue  # it is refused where it is read
    run.entries = names
    return run


def _described(described: Any, rendered: Mapping[str, str]) -> dict[str, str]:
    """Fixture -> description of a scenario in a catalogue. A scenario with one fixture has a text
    in place of an object."""
    if isinstance(described, dict):
        return {name: text if isinstance(text, str) else "" for name, text in described.items()}
    if isinstance(described, list):
        return {str(name): "" for name in described}
    alone = described if isinstance(described, str) and len(rendered) == 1 else ""
    return dict.fromkeys(rendered, alone)


def _beside(path: Path) -> _Run:
    runs = [one for one in sorted(path.parent.glob("*.json")) if _is_run(_object(one))]
    if len(runs) != 1:
        why = f"there are {len(runs)} runs beside it, and entry ids begin anew with every run"
        raise InputError(
            f"file {str(path)!r}", why, "Put it into the folder of its exhaustive_data.json"
        )
    return _run_of(runs[0])


def _whole(path: Path, ratings: RatingFilter) -> Iterator[Item]:
    """The entries of a run, the ratings in its folder, and what both say about several widgets of a
    question."""
    run = _run_of(path)
    entries = _object(path)["entries"]
    shown: list[Row] = []
    counted: list[Row] = []
    for entry in entries:
        row = entry if isinstance(entry, dict) else {}
        item = _item(lambda row=row: _entry(row, run, ratings), entry)
        yield item
        if not isinstance(item, Line):
            continue
        shown.append(row)
        uncounted = list(_uncounted(row, _intent(row).get("confidence"), ratings))
        yield from uncounted
        if row.get("rating") and not uncounted:
            counted.append(row)
    for place in sorted(path.parent.glob("*rating*.json")):
        rows = _ratings(_object(place))
        for row, item in zip(rows, _rated(place, rows, _beside(place), ratings), strict=True):
            yield item
            if isinstance(item, Line) and row.get("rating"):
                counted.append(row)
    yield from _choices(shown, counted, run)


def _uncounted(
    row: Row, confidence: Any, ratings: RatingFilter, number: int = 0
) -> Iterator[LeftOut]:
    """The rating of an entry that does not count."""
    reason = ratings.objection(row, confidence)
    if reason is not None:
        yield LeftOut(number, reason, json.dumps(row, ensure_ascii=False))


def _choices(entries: list[Row], counted: list[Row], run: _Run) -> Iterator[Item]:
    """For every question of which more than one widget was liked or disliked: all that were liked,
    all that were not, which is better."""
    newest: dict[tuple[str, Any], Row] = {}
    for rating in counted:
        key = str(rating["entry_id"]), rating.get("device_id")
        if key not in newest or _rated_at(newest[key]) <= _rated_at(rating):
            newest[key] = rating
    voices: dict[str, list[Row]] = defaultdict(list)
    for (name, _), rating in newest.items():
        voices[name].append(rating)
    questions: dict[str, list[Row]] = defaultdict(list)
    for entry in entries:
        if (
            entry.get("natural") is True
            and entry.get("scenario")
            and entry.get("question")
            and entry.get("question_id")
        ):
            questions[str(entry["question_id"])].append(entry)

    for question, shown in questions.items():
        heard: dict[str, list[Row]] = defaultdict(list)
        for entry in shown:
            heard[_widget(entry)] += voices[str(entry.get("entry_id"))]
        thumbs = {
            widget: {THUMBS[rating["rating"]] for rating in ratings}
            for widget, ratings in heard.items()
            if ratings
        }
        liked = sorted(widget for widget, said in thumbs.items() if said == {True})
        disliked = sorted(widget for widget, said in thumbs.items() if said == {False})
        if liked and disliked and len(liked) + len(disliked) > 2:
            ratings = [rating for widget in (*liked, *disliked) for rating in heard[widget]]
            yield _item(
                partial(_preferred, question, shown[0], (liked, disliked), ratings, run),
                {"question_id": question},
            )


def _preferred(
    question: str, entry: Row, sides: tuple[list[str], list[str]], ratings: list[Row], run: _Run
) -> list[AnyRecord]:
    """Two answers of several widgets to a question, the liked ones and the others, and the
    preference that follows from the ratings."""
    about = {"question_id": question} | ({"run_id": run.name} if run.name else {})
    traces = [
        TraceRecord.model_validate(
            {
                "session": f"question:{question}",
                "input": choice_of(entry, sorted(run.fixtures)),
                "output": ", ".join(widgets),
                "metadata": about,
            }
        )
        for widgets in sides
    ]
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
    """When it was given; what has no time came before everything that has."""
    return (
        parse_time(rating["rated_at"])
        if rating.get("rated_at")
        else datetime.min.replace(tzinfo=UTC)
    )


def _rated(
    path: Path, rows: list[dict[str, Any]], run: _Run, ratings: RatingFilter
) -> Iterator[Item]:
    for row in rows:
        reason = ratings.objection(row, run.confidences.get(str(row["entry_id"])))
        if reason is not None:
            yield LeftOut(0, reason, json.dumps(row, ensure_ascii=False))
        else:
            yield _item(lambda row=row: _given(row, run, path), row)


def _given(row: Row, run: _Run, path: Path) -> list[AnyRecord]:
    entry = str(row["entry_id"])
    if row.get("run_id") not in (None, run.name) or entry not in run.entries:
        raise Unreadable(f"{path.name}: entry {entry!r} is not of run {run.name!r}")
    if (
        row.get("rated_at")
        and run.made_at
        and parse_time(row["rated_at"]) < parse_time(run.made_at)
    ):
        raise Unreadable(
            f"{path.name}: entry {entry!r} was rated before this run was made, so another widget "
            "is meant"
        )
    return [thumb for trace in run.entries[entry] for thumb in _rating(row, trace)]


def _item(records: Any, row: Any) -> Item:
    text = json.dumps(row, ensure_ascii=False)
    try:
        if has_nul(row):
            raise HasNul
        return Line(0, records(), text)
    except ValidationError as error:
        return Refused(0, explain(error), text)
    except Unreadable as error:
        return Refused(0, str(error), text)


SOURCE = Widgets(parse, claims, EXAMPLE)
