"""Langfuse: a trace as downloaded ({trace, observations}), rows of the exported tables of traces,
observations and scores, of a blob storage export (observations_v2, scores), pages of its API.

Input and output are opened whatever framework wrote them: chats, prompts, parts, JSON in a text.
Observations become steps; rows of observations are put together by their trace. A correction is a
correction. Of the scores only those that are named as opinions (OPINIONS, or `--column score=NAME`,
`thumb=`, `rating=`) are taken as such; any other score, say toxicity or a judge's metric, is kept
as a label with its value as text, because nobody says whether more of it is better. A table has its
scores as columns. A score that cannot be taken is left out and said; its trace is kept. A trace
without input and output of its own has those of its observations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from thumbwheel.importers.fields import (
    moment,
    name_of,
    object_at,
    objects_at,
    unpacked,
)
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.marks import OPPOSITES, MarkColumn, Scales, is_unpressed, plain
from thumbwheel.importers.messages import answer_fields, tools_of
from thumbwheel.importers.opinions import OPINIONS, langfuse_signal, named_opinions, opinion_of
from thumbwheel.importers.rowfile import FileRow, read_rows
from thumbwheel.importers.source import Item, JsonLines, Parse, Row, item_of
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Records,
    StepRecord,
    TargetRef,
    Tokens,
    TraceRecord,
    Unreadable,
    explain,
    parse_time,
)
from thumbwheel.importers.wrapped import answer_in, prompt_in

KINDS = {"GENERATION": "llm", "EMBEDDING": "llm", "TOOL": "tool"}
QUIET_ROWS, MOST_HELD = 1_000, 50_000
"""The observations of a trace are put together when so many further rows held none of it, or when
more than so many wait."""
BEFORE_NAME = re.compile(r"\A[^\w(]+")
"""What stands before the name of a score in the head of a column: # user-feedback (api)."""
COLUMNS = frozenset(
    {
        "id",
        "projectId",
        "timestamp",
        "createdAt",
        "updatedAt",
        "startTime",
        "endTime",
        "completionStartTime",
        "name",
        "traceName",
        "traceTags",
        "traceTimestamp",
        "traceId",
        "parentObservationId",
        "type",
        "userId",
        "sessionId",
        "release",
        "version",
        "environment",
        "tags",
        "bookmarked",
        "public",
        "input",
        "output",
        "metadata",
        "latency",
        "timeToFirstToken",
        "usage",
        "usageDetails",
        "costDetails",
        "inputCost",
        "outputCost",
        "totalCost",
        "inputTokens",
        "outputTokens",
        "totalTokens",
        "level",
        "statusMessage",
        "observationCount",
        "observations",
        "scores",
        "corrections",
        "model",
        "modelId",
        "modelParameters",
        "providedModelName",
        "promptName",
        "promptVersion",
        "promptId",
        "comments",
        "errorCount",
        "warningCount",
        "defaultCount",
        "debugCount",
        "toolDefinitions",
        "toolCalls",
        "toolCallNames",
        "htmlPath",
        "externalId",
    }
)
"""Columns of the tables of traces and observations; any other list is the values of a score."""
RATERS = {"ANNOTATION": "person", "EVAL": "model"}
EXAMPLE = (
    '{"trace": {"id": "t1", "timestamp": "2026-01-05T09:00:00.000Z", "input": "\\"Hi\\"", '
    '"output": "\\"Hello!\\"", "sessionId": "s1",'
    ' "userId": "u1", "scores": [{"id": "x1", "traceId": "t1", "name": "user-feedback", "value": '
    '1, "dataType": "NUMERIC", "source":'
    ' "API", "comment": null}], "corrections": []}, "observations": []}\n'
    '{"id": "x2", "trace_id": "t1", "name": "rating", "value": 4, "data_type": "NUMERIC", '
    '"source": "ANNOTATION"}'
)


SCORE_VALUES = frozenset({"value", "stringValue", "dataType"})


def claims(row: Row) -> bool:
    """Return whether the row is a trace with its observations, a row of one of the tables, or a
    page of the API."""
    keys = {_camel(key) for key in row}
    if {"trace", "observations"} <= keys:
        return True
    if {"name", "dataType"} <= keys and {"traceId", "sessionId", "observationId"} & keys:
        return True  # a score
    if _is_observation(row):
        return True
    if {"id", "timestamp", "input", "output"} <= keys:
        is_scored = _are_scores(row.get("scores"))
        return is_scored or bool({"sessionId", "userId", "tags", "release"} & keys)  # a trace
    return False


def _are_scores(value: Any) -> bool:
    """Return whether it is the list of scores of a trace."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and "name" in first and bool(SCORE_VALUES & first.keys())


def _is_observation(row: Row) -> bool:
    keys = {_camel(key) for key in row}
    kind = row.get("type")  # SPAN, GENERATION, TOOL, ...
    is_kind = isinstance(kind, str) and kind.isupper()
    return is_kind and {"id", "traceId", "startTime"} <= keys


@dataclass
class _WaitingObservations:
    """The observations of a trace, while more of them may come."""

    rows: list[dict[str, Any]]
    first_number: int
    last_number: int


_Voice = tuple[str, str, str, str]
"""(trace, observation, author, source): whose scores they are, and of what."""
BUTTONS = frozenset({*OPPOSITES, *OPPOSITES.values()})
"""Names of scores of which one speaks for an answer and another against it."""


def _voice(score: Row, trace: str) -> _Voice:
    observation, author = score.get("observationId"), score.get("authorUserId")
    return trace, str(observation or ""), str(author or ""), str(score.get("source") or "")


def _value(score: Row) -> Any:
    value = score.get("value")
    return score.get("stringValue") if value is None else value


def _require_pressed(score: Row, buttons: Mapping[str, Any]) -> None:
    """Raise Unreadable for a button that nobody pressed, such as thumbs up 0 beside thumbs down 0,
    and for two that were both pressed."""
    name = str(score.get("name"))
    if is_unpressed(name, _value(score), buttons):
        raise Unreadable(f"{name} {_value(score)!r} is a button that nobody pressed")


@dataclass(frozen=True)
class Langfuse(JsonLines):
    """The source with the names of scores that are opinions."""

    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)
    values: Mapping[str, MarkColumn] = field(default_factory=dict)
    """Name of a score, as `plain` spells it -> all of its numbers in the file."""
    buttons: Mapping[_Voice, Mapping[str, Any]] = field(default_factory=dict)
    """Whose scores of one answer -> name -> value of those that are buttons (thumbs up and thumbs
    down), for scores that stand in rows of their own."""

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Langfuse:
        """Return a copy in which `columns` says which score name is a thumb, a rating or a
        score."""
        return self._with(opinions={**self.opinions, **named_opinions(columns)}, scales=scales)

    def _with(self, **settings: Any) -> Langfuse:
        changed = replace(self, **settings)
        return replace(changed, parse=changed.records)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read the numbers of all scores first, which tell their scale."""
        values: dict[str, MarkColumn] = {}
        buttons: dict[_Voice, dict[str, Any]] = {}
        for row in read_rows(path, ignore_position):
            for score in _scores_in(row.row) if row.row is not None else ():
                name = plain(str(score.get("name")))
                if score.get("dataType") in (None, "NUMERIC"):
                    values.setdefault(name, MarkColumn()).add(score.get("value"))
                if name in BUTTONS and score.get("traceId"):
                    voice = _voice(score, str(score["traceId"]))
                    buttons.setdefault(voice, {})[name] = _value(score)
        reader = self._with(values=values, buttons=buttons)
        yield from reader.items(read_rows(path, on_position), reader.parse)

    def items(self, rows: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """Yield an item per trace for rows of observations, which are grouped by trace, and an item
        for every other row."""
        waiting: dict[str, _WaitingObservations] = {}
        for row in rows:
            observation = _cameled(row.row) if row.row and _is_observation(row.row) else {}
            trace = observation.get("traceId")
            if not isinstance(trace, str) or not trace:
                yield from super().items(iter([row]), parse)
                continue
            held = waiting.setdefault(trace, _WaitingObservations([], row.number, row.number))
            held.rows.append(observation)
            held.last_number = row.number
            for name in _settled(waiting, row.number):
                yield self._put_together(name, waiting.pop(name))
        for name, held in waiting.items():
            yield self._put_together(name, held)

    def _put_together(self, trace: str, held: _WaitingObservations) -> Item:
        """Return the item of a trace of which the file has only the observations."""
        row: dict[str, Any] = {"id": trace}
        for observation in sorted(held.rows, key=lambda part: str(part.get("startTime"))):
            row.setdefault("timestamp", observation.get("startTime"))
            for key in ("userId", "sessionId", "release", "version", "environment", "tags"):
                row[key] = row.get(key) or observation.get(key)
            row["name"] = row.get("name") or observation.get("traceName")
        text = json.dumps({"traceId": trace, "observations": held.rows}, ensure_ascii=False)
        return item_of(held.first_number, text, lambda: self._trace(row, held.rows))

    def records(self, row: dict[str, Any]) -> list[AnyRecord]:
        """Return the records of a row in any of the forms."""
        if "trace" in row and "observations" in row:
            trace = _cameled(object_at(row, "trace"))
            observations = objects_at(row, "observations") or objects_at(trace, "observations")
            return self._trace(trace, observations)
        cameled = _cameled(row)
        if "dataType" in cameled:
            voice = _voice(cameled, str(cameled.get("traceId")))
            _require_pressed(cameled, self.buttons.get(voice, {}))
            return [self._score(cameled, None)]
        if _is_observation(row):
            name = name_of(cameled.get("traceId"))
            return self._trace({"id": name, "timestamp": cameled.get("startTime")}, [cameled])
        return self._trace(row, _objects(cameled.get("observations")))

    def _trace(self, trace_row: Row, observations: list[dict[str, Any]]) -> list[AnyRecord]:
        row = _cameled(trace_row)
        name = name_of(row.get("id"))
        if name is None:
            raise Unreadable("it has no id of a trace")
        observations = [_cameled(observation) for observation in observations]
        observations.sort(key=lambda observation: str(observation.get("startTime")))
        roots = [step for step in observations if not step.get("parentObservationId")]
        calls = [step for step in observations if step.get("type") == "GENERATION"]

        # what the trace does not say itself, its observations do
        inputs = [row.get("input"), *(step.get("input") for step in [*roots, *calls])]
        outputs = [row.get("output"), *(step.get("output") for step in [*roots, *calls[::-1]])]
        prompt, answer = _first(inputs), _first(outputs)
        if prompt is None:
            raise Unreadable("neither the trace nor an observation of it holds an input")
        keys = ("name", "tags", "release", "version", "environment")
        metadata = {key: row[key] for key in keys if row.get(key)}
        for call in calls:
            tools = _tools(call.get("input"))
            if tools:
                metadata["tools"] = tools
                break
        fields = {
            "id": name,
            "session": name_of(row.get("sessionId")),
            "subject": name_of(row.get("userId")),
            "input": prompt_in(prompt),
            "occurred_at": moment(row.get("timestamp")),
            "metadata": metadata or None,
        }
        message = None if answer is None else answer_in(answer)
        if message is None:
            fields |= {"output": None, "steps": list(map(_step, observations)) or [{}]}
        else:
            answered = answer_fields(message)
            if observations:
                steps = list(map(_step, observations))
                answered["steps"] = _answering(steps, answered["steps"][-1])
            fields |= answered

        scores = [*_scores(row.get("scores")), *_objects(row.get("corrections"))]
        scores += _column_scores(trace_row)
        for observation in observations:
            scores += [*_scores(observation.get("scores")), *_column_scores(observation)]
        feedback, remarks = self._readable(scores, name)
        if any(isinstance(score, str) for score in _list(row.get("scores"))):
            remarks.append("its scores are named and not there: export the scores as well")
        return Records([TraceRecord.model_validate(fields), *feedback], remarks)

    def _readable(
        self, scores: list[dict[str, Any]], trace: str
    ) -> tuple[list[FeedbackRecord], list[str]]:
        """Return (feedback of the readable scores, remarks on the scores that were left out)."""
        feedback, remarks = [], []
        rows = [_cameled(score) for score in scores]
        buttons: dict[_Voice, dict[str, Any]] = {}
        for row in rows:
            buttons.setdefault(_voice(row, trace), {})[str(row.get("name"))] = _value(row)
        for row in rows:
            try:
                _require_pressed(row, buttons[_voice(row, trace)])
                feedback.append(self._score(row, trace))
            except ValidationError as error:
                remarks.append(f"a score was left out: {explain(error)}")
            except Unreadable as error:
                remarks.append(f"a score was left out: {error}")
        return feedback, list(dict.fromkeys(remarks))

    def _score(self, row: Row, trace: str | None) -> FeedbackRecord:
        """Convert a score to feedback. A score that was edited has a new time and so a new id; the
        newest of a rater counts."""
        score_name, data_type, origin = row.get("name"), row.get("dataType"), row.get("source")
        target = _target(row, trace)
        time = moment(row.get("updatedAt") or row.get("timestamp"))
        time = parse_time(time) if time is not None else None  # written in two ways
        rater = name_of(row.get("authorUserId"))
        if not rater and origin == "EVAL":
            rater = f"{origin}: {score_name}"
        score_id = name_of(row.get("id"))
        if score_id and time:
            score_id = f"{score_id}/{time:%Y%m%dT%H%M%S.%f}"
        shared = {
            "id": score_id,
            "targets": [target],
            "occurred_at": time,
            "rater": {"id": rater, "kind": RATERS.get(str(origin))} if rater else None,
            "comment": row.get("comment") or None,
        }
        text = row.get("longStringValue") or row.get("stringValue")
        is_edited = score_name == "output" and row.get("longStringValue")
        if is_edited and data_type != "CATEGORICAL":
            data_type = "CORRECTION"
        name = str(score_name)
        column = self.values.get(plain(name))
        signal = langfuse_signal(
            name, row.get("value"), data_type, text, self.opinions, self.scales, column
        )
        return FeedbackRecord.model_validate(shared | signal)


def _scores_in(row: Row) -> Iterator[dict[str, Any]]:
    """Yield all scores of a row in any of the forms."""
    cameled = _cameled(row)
    if "dataType" in cameled:
        yield cameled
        return
    trace = row.get("trace")
    holder = trace if isinstance(trace, dict) else row
    observations = _objects(row.get("observations")) or _objects(holder.get("observations"))
    for part in (holder, *observations):
        yield from map(_cameled, _scores(part.get("scores")))
        yield from _column_scores(part)


def _list(value: Any) -> list[Any]:
    elements = unpacked(value)
    return elements if isinstance(elements, list) else []


def _scores(value: Any) -> list[dict[str, Any]]:
    """Return the scores of a list, or of an object that maps each name to its value."""
    scores = unpacked(value)
    if not isinstance(scores, dict):
        return _objects(scores)
    named = []
    for name, part in scores.items():
        if isinstance(part, dict) and isinstance(part.get("values"), list):
            named += [_score_named(name, value) for value in part["values"] if value is not None]
        elif isinstance(part, dict):
            named.append({"name": name, **part})
        elif isinstance(part, list):
            named += [_score_named(name, value) for value in part if value is not None]
        else:
            named.append(_score_named(name, part))
    return named


def _score_named(name: str, value: Any) -> dict[str, Any]:
    """Return a score from its name and value alone."""
    if isinstance(value, str):
        return {"name": name, "stringValue": value, "dataType": "CATEGORICAL"}
    return {"name": name, "value": value}


def _score_name(head: str) -> str:
    """Return the name of a score in the head of a column.

    >>> _score_name("# user-feedback (api)"), _score_name("quality"), _score_name("tone)")
    ('user-feedback', 'quality', 'tone)')
    """
    name = head.strip()
    if name.endswith(")"):
        before, bracket, source = name[:-1].rpartition("(")
        if bracket and ")" not in source:
            name = before.rstrip()
    return BEFORE_NAME.sub("", name)


def _column_scores(row: Row) -> list[dict[str, Any]]:
    """Return the scores that a table has as columns: a list of values in each, or one value if the
    column is named like an opinion."""
    scores = []
    for name, value in row.items():
        if _camel(name) in COLUMNS:
            continue
        name = _score_name(name)
        values = unpacked(value)
        if not isinstance(values, list):
            values = [values] if opinion_of(name) is not None else []
        for part in values:
            if part is None or part == "" or not isinstance(part, bool | int | float | str):
                continue
            scores.append(_score_named(name, part))
    return scores


def _settled(waiting: Mapping[str, _WaitingObservations], number: int) -> list[str]:
    """Return the ids of traces that expect no more observations, and of the oldest ones if too many
    observations are held."""
    settled = [name for name, held in waiting.items() if number - held.last_number >= QUIET_ROWS]
    count = sum(len(held.rows) for held in waiting.values())
    for name, held in waiting.items():
        if count <= MOST_HELD:
            break
        if name not in settled:
            settled.append(name)
            count -= len(held.rows)
    return settled


def _camel(key: str) -> str:
    head, *parts = key.split("_")
    return head + "".join(part.capitalize() for part in parts)


def _cameled(row: Row) -> dict[str, Any]:
    """Return the row with camel-case keys: exports to blob storage and API rows spell their keys
    differently."""
    return {_camel(key): value for key, value in row.items()}


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, which may be JSON text; an empty list for any other value."""
    elements = unpacked(value)
    if not isinstance(elements, list):
        return []
    return [element for element in elements if isinstance(element, dict)]


def _first(values: list[Any]) -> Any:
    """Return the first value that is not empty, parsed if it is JSON text; None if all are
    empty."""
    opened = map(unpacked, values)
    return next((value for value in opened if value not in (None, "", [], {})), None)


def _target(row: Row, trace: str | None) -> TargetRef:
    trace = trace or name_of(row.get("traceId"))
    if trace:
        return TargetRef(kind="trace", id=trace)
    session = name_of(row.get("sessionId"))
    if session is None:
        raise Unreadable("the score names neither a trace nor a session")
    return TargetRef(kind="session", id=session)


def _tools(value: Any) -> list[Any] | None:
    value = unpacked(value)
    return tools_of(value.get("tools")) if isinstance(value, dict) else None


def _answering(steps: list[dict[str, Any]], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a trace with the answer's tool calls as output of the last model call.
    The answer is appended as a step if there is no model call."""
    if "output" not in answer:
        return steps
    models = [index for index, step in enumerate(steps) if step["kind"] == "llm"]
    if not models:
        return [*steps, answer]
    steps[models[-1]]["output"] = answer["output"]
    return steps


def _step(row: Row) -> dict[str, Any]:
    kind = KINDS.get(str(row.get("type")), "task")
    fields = {
        "kind": kind,
        "name": row["name"][:512] if isinstance(row.get("name"), str) else None,
        "input": unpacked(row.get("input")),
        "output": unpacked(row.get("output")),
        "status": "error" if row.get("level") == "ERROR" else "ok",
        "started_at": moment(row.get("startTime")),
        "ended_at": moment(row.get("endTime")),
    }
    step = StepRecord.model_validate(fields).model_dump()
    if kind != "llm":
        return step
    usage = unpacked(row.get("usageDetails"))
    counts = {}
    if isinstance(usage, dict):
        names = {"prompt": "input", "completion": "output"}
        counts = {key: usage[name] for key, name in names.items() if type(usage.get(name)) is int}
    sampling = unpacked(row.get("modelParameters"))
    return step | {
        "served_model": name_of(row.get("model") or row.get("providedModelName")),
        "sampling": sampling if isinstance(sampling, dict) else None,
        "tokens": Tokens.model_validate(counts) if counts else None,
    }


SOURCE = Langfuse(
    Langfuse.records,  # type: ignore[arg-type]
    claims,
    EXAMPLE,
    reason="a trace with its observations, a row of one of the tables, or a page of the API",
).with_mapping({}, {})
