"""Calls of models as proxies and tracing tools export them: Helicone, LangSmith, Braintrust, Opik,
Lunary, Chainlit, Weave, LiteLLM, the invocation log of Bedrock.

A row is one call, or one run of an app, with what was asked and answered in the values of any
framework. A step of another run is left out. Of the scores only those that are named as opinions
(or `--column thumb=NAME`) are taken as such; any other is a label. A score that cannot be taken is
left out and said. An expected answer beside the answer is a case. To add a product: a line in LOGS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from thumbwheel.importers.chat_messages import objects
from thumbwheel.importers.fields import is_empty, is_number, moment, name_of, unpacked
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.marks import MarkColumn, Scales, plain
from thumbwheel.importers.messages import answer_fields, tools_of
from thumbwheel.importers.opinions import OPINIONS, judgement, named_opinions, opinion_of
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import Item, JsonLines, Row, Unwanted
from thumbwheel.importers.types import (
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Records,
    TraceRecord,
    Unreadable,
    explain,
)
from thumbwheel.importers.wrapped import answer_in, prompt_in

EXAMPLE = (
    '{"request_id": "r1", "request_created_at": "2026-01-05T09:00:00Z", "request_body": {"model": '
    '"m", "messages": [{"role": "user", "content": "Hi"}]}, "response_body": {"choices": '
    '[{"message": {"role": "assistant", "content": "Hello!"}}]}, "feedback_rating": true}'
)
NOTE = "wandb.note.1"
OPINION = "user-feedback"
"""Name of a product's own thumb."""
PROPERTIES = ("properties", "request_properties")
"""Keys of an app's own properties of a call of Helicone, feedback among them."""


class LoggedScore(NamedTuple):
    """A score of a log: its name, its value, and what stands beside it."""

    name: str
    value: Any
    comment: str | None = None
    rater: str | None = None
    problem: str = ""
    """Why it cannot be taken."""


@dataclass(frozen=True)
class CallLog:
    """How a product writes a call; the names of keys have a dot where they stand in an object."""

    claims: Callable[[Row], bool]
    asked: str
    answered: str
    scores: Callable[[Row], Iterator[LoggedScore]]
    name: str = "id"
    moment: str = ""
    subject: tuple[str, ...] = ()
    session: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    is_step: Callable[[Row], bool] = lambda row: False
    """Whether the row is a step of another run."""
    failed: Callable[[Row], bool] = lambda row: bool(row.get("error"))


def _at(row: Row, path: str) -> Any:
    """Return the value at a path of keys; an object may be JSON in a text."""
    value: Any = row
    for key in path.split("."):
        value = unpacked(value)
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _first(row: Row, paths: tuple[str, ...]) -> Any:
    return next((value for path in paths if (value := _at(row, path)) not in (None, "")), None)


def _has(*keys: str) -> Callable[[Row], bool]:
    return lambda row: row.keys() >= set(keys)


def _no_scores(row: Row) -> Iterator[LoggedScore]:
    yield from ()


def _scores_by_name(row: Row) -> Iterator[LoggedScore]:
    """Yield the scores of an object {name: value}."""
    scores = unpacked(row.get("scores"))
    if not isinstance(scores, dict):
        return
    for name, value in scores.items():
        if value is not None:
            yield LoggedScore(str(name), value)


def _scores_of_helicone(row: Row) -> Iterator[LoggedScore]:
    if row.get("feedback_rating") is not None:
        yield LoggedScore(OPINION, row["feedback_rating"])
    yield from _scores_by_name(row)
    for key in PROPERTIES:
        properties = unpacked(row.get(key))
        for name, value in properties.items() if isinstance(properties, dict) else ():
            if opinion_of(str(name)) is not None and value not in (None, ""):
                yield LoggedScore(str(name), value)


def _scores_of_langsmith(row: Row) -> Iterator[LoggedScore]:
    """Yield the feedback of a run, or its statistics by key: a mean counts as a score if it is of a
    single rating, or if all ratings were the same."""
    entries = _objects(row.get("feedback"))
    for entry in entries:
        value = entry.get("score") if entry.get("score") is not None else entry.get("value")
        if value is not None:
            yield LoggedScore(str(entry.get("key")), value, _text(entry.get("comment")))
    if entries:
        return
    stats = unpacked(row.get("feedback_stats"))
    if not isinstance(stats, dict):
        return
    for name, counts in stats.items():
        number = counts.get("n") if isinstance(counts, dict) else None
        if type(number) is not int or number < 1:
            continue
        mean, words = counts.get("avg"), counts.get("values")
        if mean is None and isinstance(words, dict) and len(words) == 1:
            yield LoggedScore(name, next(iter(words)))
        elif is_number(mean) and (number == 1 or _are_alike(mean, counts.get("stdev"))):
            yield LoggedScore(name, mean)
        else:
            problem = f"{name} is the mean of {number} voices, which were not the same"
            yield LoggedScore(name, mean, problem=problem)


def _are_alike(mean: float, deviation: Any) -> bool:
    """Return whether all voices of a mean said the same: a 3 may be that of a 1 and a 5."""
    if is_number(deviation):
        return bool(deviation == 0)
    return mean in (0, 1)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list, which may be JSON text; an empty list for any other value."""
    return list(objects(unpacked(value)))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _scores_of_opik(row: Row) -> Iterator[LoggedScore]:
    for score in _objects(row.get("feedback_scores")):
        value = score.get("category_name") or score.get("value")
        comment, rater = _text(score.get("reason")), _text(score.get("created_by"))
        yield LoggedScore(str(score.get("name")), value, comment, rater)


def _scores_of_lunary(row: Row) -> Iterator[LoggedScore]:
    """Yield Lunary's thumb, or Chainlit's value, whose rows are alike, with its comment."""
    feedback = unpacked(row.get("feedback"))
    if not isinstance(feedback, dict):
        return
    comment = _text(feedback.get("comment"))
    thumb = next(
        (feedback[key] for key in ("thumb", "value") if feedback.get(key) is not None), None
    )
    if thumb is not None:
        yield LoggedScore(OPINION, thumb, comment)
    elif comment is not None:
        yield LoggedScore("", None, comment)


def _scores_of_weave(row: Row) -> Iterator[LoggedScore]:
    for entry in _objects(_at(row, "summary.weave.feedback") or row.get("feedback")):
        payload, rater = unpacked(entry.get("payload")), _text(entry.get("creator"))
        if not isinstance(payload, dict):
            continue
        if payload.get("emoji"):
            yield LoggedScore(OPINION, payload["emoji"], rater=rater)
        elif entry.get("feedback_type") == NOTE:
            yield LoggedScore("", None, _text(payload.get("note")), rater)
        elif isinstance(payload.get("value"), bool | int | float | str):
            yield LoggedScore(str(entry.get("feedback_type")), payload["value"], rater=rater)


def _is_run_of_langsmith(row: Row) -> bool:
    return {"inputs", "outputs"} <= row.keys() and bool(
        {"run_type", "dotted_order", "feedback_stats"} & row.keys()
    )


def _is_step_of_langsmith(row: Row) -> bool:
    return row.get("is_root") is False or bool(row.get("parent_run_id"))


def _is_step_of_braintrust(row: Row) -> bool:
    return row.get("is_root") is False or row["span_id"] != row["root_span_id"]


def _has_failed_status(row: Row) -> bool:
    status = row.get("response_status")
    return isinstance(status, int) and status >= 400


LOGS: Mapping[str, CallLog] = {
    "Helicone": CallLog(
        claims=_has("request_body", "response_body"),
        asked="request_body",
        answered="response_body",
        scores=_scores_of_helicone,
        name="request_id",
        moment="request_created_at",
        subject=("request_user_id", "helicone_user"),
        session=("request_properties.Helicone-Session-Id",),
        model=("response_model", "request_model", "request_body.model"),
        failed=_has_failed_status,
    ),
    "LangSmith": CallLog(
        claims=_is_run_of_langsmith,
        asked="inputs",
        answered="outputs",
        scores=_scores_of_langsmith,
        moment="start_time",
        subject=("extra.metadata.user_id",),
        session=("extra.metadata.session_id", "extra.metadata.thread_id"),
        model=("extra.metadata.ls_model_name",),
        is_step=_is_step_of_langsmith,
    ),
    "Braintrust": CallLog(
        claims=_has("span_id", "root_span_id", "input", "output"),
        asked="input",
        answered="output",
        scores=_scores_by_name,
        moment="created",
        subject=("metadata.user_id",),
        session=("metadata.session_id",),
        model=("metadata.model",),
        is_step=_is_step_of_braintrust,
    ),
    "Opik": CallLog(
        claims=_has("feedback_scores", "input", "output"),
        asked="input",
        answered="output",
        scores=_scores_of_opik,
        moment="start_time",
        session=("thread_id",),
        model=("model",),
        is_step=lambda row: bool(row.get("parent_span_id")),
        failed=lambda row: bool(row.get("error_info")),
    ),
    "Lunary, Chainlit": CallLog(
        claims=_has("feedback", "input", "output", "type", "createdAt"),
        asked="input",
        answered="output",
        scores=_scores_of_lunary,
        moment="createdAt",
        subject=("user.externalId", "user.id"),
        session=("threadId",),
        model=("name",),
        is_step=lambda row: bool(row.get("parentRunId")),
    ),
    "Weave": CallLog(
        claims=_has("op_name", "inputs", "output"),
        asked="inputs",
        answered="output",
        scores=_scores_of_weave,
        moment="started_at",
        subject=("attributes.user_id",),
        session=("thread_id", "attributes.session_id"),
        is_step=lambda row: bool(row.get("parent_id")),
        failed=lambda row: bool(row.get("exception")),
    ),
    "LiteLLM": CallLog(
        claims=_has("call_type", "messages", "response"),
        asked="messages",
        answered="response",
        scores=_no_scores,
        moment="startTime",
        subject=("end_user",),
        model=("model",),
        failed=lambda row: row.get("status") == "failure",
    ),
    "Bedrock": CallLog(
        claims=lambda row: row.get("schemaType") == "ModelInvocationLog",
        asked="input.inputBodyJson",
        answered="output.outputBodyJson",
        scores=_no_scores,
        name="requestId",
        moment="timestamp",
        model=("modelId",),
        failed=lambda row: bool(row.get("errorCode")),
    ),
}
"""Product -> how it writes a call."""
EXPECTED = "expected"
"""Key of an expected answer."""


def _log_of(row: Row) -> CallLog | None:
    return next((log for log in LOGS.values() if log.claims(row)), None)


def claims(row: Row) -> bool:
    """Return whether the row is a call, or a run of an app, as a proxy or tracing tool exports
    it."""
    return _log_of(row) is not None


@dataclass(frozen=True)
class CallLogs(JsonLines):
    """The source with the names of scores that are opinions."""

    opinions: Mapping[str, str] = field(default_factory=lambda: OPINIONS)
    scales: Scales = field(default_factory=dict)
    values: Mapping[str, MarkColumn] = field(default_factory=dict)
    """Name of a score, as `plain` spells it -> all of its values in the file."""

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> CallLogs:
        """Return a copy in which `columns` says which score name is a thumb, a rating or a
        score."""
        return self._with(opinions={**self.opinions, **named_opinions(columns)}, scales=scales)

    def _with(self, **settings: Any) -> CallLogs:
        changed = replace(self, **settings)
        return replace(changed, parse=changed.records)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read the values of all scores first, which tell their scale."""
        values: dict[str, MarkColumn] = {}
        for row in read_rows(path, ignore_position):
            log = _log_of(row.row) if row.row is not None else None
            if log is None or row.row is None:
                continue
            for score in log.scores(row.row):
                if not score.problem:
                    values.setdefault(plain(score.name), MarkColumn()).add(score.value)
        reader = self._with(values=values)
        yield from reader.items(read_rows(path, on_position), reader.parse)

    def records(self, row: dict[str, Any]) -> list[AnyRecord]:
        """Return the trace of a row with its feedback, and a case if the row has an expected
        answer. Raises Unwanted for a step of another run, Unreadable for a failed call or an
        unknown layout."""
        log = _log_of(row)
        if log is None:
            raise Unreadable(f"its keys are those of none of {', '.join(LOGS)}")
        if log.is_step(row):
            raise Unwanted("it is a step of another run")
        if log.failed(row):
            raise Unreadable("the call ended in an error")
        trace = _trace(row, log)
        expected = unpacked(row.get(EXPECTED))
        cases: list[AnyRecord] = []
        if not is_empty(expected):
            reference = answer_in(expected)["content"]
            cases = [CaseRecord.model_validate({"input": trace.input, "reference": reference})]
        feedback: list[AnyRecord] = []
        remarks = []
        for score in log.scores(row):
            try:
                feedback.append(self._feedback(score, trace))
            except ValidationError as error:
                remarks.append(f"a score was left out: {explain(error)}")
            except Unreadable as error:
                remarks.append(f"a score was left out: {error}")
        return Records([*cases, trace, *feedback], dict.fromkeys(remarks))

    def _feedback(self, score: LoggedScore, trace: TraceRecord) -> FeedbackRecord:
        """Convert a score to feedback. Raises Unreadable."""
        if score.problem:
            raise Unreadable(score.problem)
        fields: dict[str, Any] = {
            "targets": [trace.as_target()],
            "rater": {"id": score.rater} if score.rater else None,
        }
        if not score.name:
            return FeedbackRecord.model_validate(
                fields | {"kind": "comment", "value": score.comment}
            )
        label = score.value if isinstance(score.value, str) else None
        signal = judgement(
            score.name,
            None if label is not None else score.value,
            label,
            self.opinions,
            self.scales,
            self.values.get(plain(score.name)),
        )
        return FeedbackRecord.model_validate(fields | signal | {"comment": score.comment or None})


def _trace(row: Row, log: CallLog) -> TraceRecord:
    """Convert a call to a trace. Raises Unreadable if its prompt or answer is empty."""
    asked, answered = unpacked(_at(row, log.asked)), unpacked(_at(row, log.answered))
    if is_empty(asked):
        raise Unreadable(f"its {log.asked} is empty")
    if is_empty(answered):
        raise Unreadable(f"its {log.answered} is empty")
    tools = tools_of(asked.get("tools")) if isinstance(asked, dict) else None
    fields = {
        "id": name_of(_at(row, log.name)),
        "session": name_of(_first(row, log.session)),
        "subject": name_of(_first(row, log.subject)),
        "occurred_at": moment(_at(row, log.moment)) if log.moment else None,
        "input": prompt_in(asked),
        "metadata": {"tools": tools} if tools else None,
    }
    call = {"served_model": name_of(_first(row, log.model))}
    return TraceRecord.model_validate(fields | answer_fields(answer_in(answered), call))


def _parse(row: dict[str, Any]) -> list[AnyRecord]:
    return SOURCE.records(row)


SOURCE = CallLogs(
    _parse,
    claims,
    EXAMPLE,
    about=f"exported calls: {', '.join(LOGS)}",
    reason="a call, or a run of an app, as a proxy or tracing tool exports it",
)
"""The source."""
