"""Runs of a FlowAgent: trace files (also many in one file), a folder of them by day, and
checkpoints of both generations.

A trace file becomes a trace with its steps; its label a thumb, its reward_score a score of a
checker that no person is mixed up with. A checkpoint (a pickle; see `unpickle.py` for what is
refused) becomes a trace for every user turn that was answered: in the first generation by the next
message of the assistant, in the second by the last one before the user's next turn that is no "RUN
SUMMARY". Its input is that turn alone, as in a trace file, because a history that is cut off at 50
messages would make another input of the same turn each time. A turn is known by its session, its
texts, its time and how many like it came before, so checkpoints that overlap add nothing; its place
in the history moves when that is cut off. A task belongs to the turn in whose time it was created,
if that is one turn only, with the state that it had when the answer came, and so does what the
scopes `reasoning` and `delegation` have; where these have no time, it is of the question that the
scope `user` names, or of the only turn. Every message of a user ends the turn before it, also one
without a text, which is a turn that teaches nothing. Tokens and costs, which checkpoints count over
a lifetime, stay unknown. Model settings and secrets are never stored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from thumbwheel.compat.isaa.tracefile import LONGEST_NAME, TASK, ExecutionTrace, line_of, user_of
from thumbwheel.compat.isaa.unpickle import MOST_BYTES, Standin, as_json, unpickle
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.importers.fields import content_text
from thumbwheel.importers.json_text import value_in
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.regular_file import files_below, read_regular
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import (
    Item,
    JsonLines,
    LeftOut,
    Line,
    Refused,
    Row,
    Unwanted,
    item_of,
    items_of_files,
    numbered,
)
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    Scale,
    TargetRef,
    TraceRecord,
    Unreadable,
    parse_time,
)
from thumbwheel.sdk.plain import plain
from thumbwheel.sdk.redact import redacted, secrets_in

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
SUMMARY = re.compile(r"\s*RUN SUMMARY \[")
PARTS = ("session_data", "sessions_data", "task_state", "agent_name", "metadata", "variable_scopes")
"""What of a checkpoint is looked at."""
SCOPES = ("reasoning", "delegation", "user")
"""What of a checkpoint's variables is looked at."""
THOUGHT, DELEGATED = 1000, 500
"""Letters that are kept of a final result, and of a delegated task and its answer."""
FINISHED = {"completed": "completed", "failed": "failed"}
REWARDED = Rater(id="reward_score", kind="checker", weight=0.1)
"""Weighs little, so that it decides only where no person spoke."""
EXAMPLE = (
    '{"trace_id": "0a1b2c3d4e5f", "session_id": "s1", "timestamp": "2026-01-05T08:30:00", '
    '"user_query": "Opening hours?", '
    '"tool_calls": [{"tool_name": "search", "arguments": {"q": "hours"}, "result": "9-17", '
    '"success": true, "duration_ms": 12.0, '
    '"error": null, "timestamp": "2026-01-05T08:30:01"}], "final_response": "Nine to five.", '
    '"total_tokens_in": 812, "label": true}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a trace file, which has a trace_id and a user_query."""
    return {"trace_id", "user_query"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the trace of a trace file and its feedback. Raises Unreadable for any other object."""
    if not isinstance(row.get("trace_id"), str | int) or not isinstance(row.get("user_query"), str):
        raise Unreadable("it is no trace file: it has no trace_id or no user_query")
    try:
        trace = ExecutionTrace.from_dict(redacted(row) | {"trace_id": str(row["trace_id"])})
        line = line_of(trace)
    except (TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"it is no trace file: {error}") from None
    if isinstance(trace.extra.get("agent"), str):  # recorded by our sdk
        line["source"] = "sdk"
    record = TraceRecord.model_validate(line)
    target = TargetRef(kind="trace", id=record.external_id, source=record.source)
    return [record, *_feedback(trace, target)]


def _feedback(trace: ExecutionTrace, target: TargetRef) -> Iterator[FeedbackRecord]:
    if trace.label is not None:
        # a label that the collector gave is one vote, whether it comes by the inbox or with the
        # file
        thumb = {
            "kind": "thumb",
            "value": trace.label,
            "targets": [target],
            "comment": str(trace.review_notes or "") or None,
            "source": target.source,
        }
        yield FeedbackRecord.model_validate(thumb)
    if trace.reward_score is not None:
        score = {
            "kind": "score",
            "value": trace.reward_score,
            "scale": Scale(min=0.0, max=1.0),
            "targets": [target],
            "rater": REWARDED,
        }
        yield FeedbackRecord.model_validate(score)


@dataclass(frozen=True)
class FlowAgent(JsonLines):
    """A file of rows, a checkpoint, or a folder of both."""

    agent: str | None = None
    """Only the runs of the agent that the data calls so, and runs that name no agent."""

    def of_agent(self, name: str) -> FlowAgent:
        return replace(self, agent=name)

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is a folder with a checkpoint or a trace file."""
        files = _run_files(path) if path.is_dir() else []
        return any(file.suffix == ".pkl" or _is_trace_file(file) for file in files)

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Yield every item in order. In a folder, a file that is neither a trace file nor a
        checkpoint is refused by its name, and reading continues."""
        if path.is_dir():
            yield from self._folder(path, on_position)
        elif path.suffix == ".pkl" and path.is_file():
            yield from numbered(self._checkpoint(path, {}))
            on_position(path.stat().st_size)
        else:
            yield from super().read(path, on_position)

    def item(self, number: int, row: dict[str, Any], text: str, parse: Any = None) -> Item:
        """Return the item of one row; its text is shown without secrets."""
        item = super().item(number, row, text, self._wanted)
        clean = redacted(row)
        if clean == row:
            return item
        return replace(item, text=json.dumps(clean, ensure_ascii=False))

    def _folder(self, folder: Path, on_position: OnPosition) -> Iterator[Item]:
        files = _run_files(folder)
        if not files:
            raise InputError(
                f"folder {str(folder)!r}",
                "there is no trace file and no checkpoint in it",
                "Name the folder of day folders",
            )
        known_turns: dict[str, list[AnyRecord]] = {}
        newest_copies = _newest_copies(files)

        def read_file(file: Path) -> Iterator[Item]:
            is_checkpoint = file.suffix == ".pkl"
            items = self._checkpoint(file, known_turns) if is_checkpoint else self._file(file)
            if newest_copies.get(file.name, file) != file:
                return (_without_label(item, file.stem) for item in items)
            return items

        readable = False
        for item in items_of_files(folder, files, read_file, on_position):
            readable = readable or isinstance(item, Line | LeftOut)
            yield item
        if not readable:
            raise InputError(
                f"folder {str(folder)!r}",
                f"nothing in its {len(files)} files is a run",
                "See the reasons: --rejects FILE",
            )

    def _file(self, file: Path) -> Iterator[Item]:
        try:
            yield from super().read(file, ignore_position)
        except InputError as error:
            yield Refused(0, error.why, file.name)

    def _wanted(self, row: dict[str, Any]) -> list[AnyRecord]:
        """Return the records of a trace file. Raises Unwanted for a file of another agent."""
        self._require_agent(row.get("agent"))
        return parse(row)

    def _require_agent(self, name: Any) -> None:
        if self.agent is None or not isinstance(name, str) or not name.strip():
            return
        if ids.slug_of(name) != ids.slug_of(self.agent):
            raise Unwanted(f"it is of {name}")

    def _checkpoint(self, file: Path, known_turns: dict[str, list[AnyRecord]]) -> Iterator[Item]:
        """Yield the items of one checkpoint. `known_turns` has the turns of the checkpoints before
        it, which are returned again unchanged."""
        try:
            checkpoint = _opened(unpickle(read_regular(file, MOST_BYTES)))
        except InputError as error:
            yield Refused(0, error.why, file.name)
            return
        except Unreadable as error:
            yield Refused(0, str(error), file.name)
            return

        def records(turn: _Turn) -> list[AnyRecord]:
            self._require_agent(turn.agent)
            return known_turns.setdefault(turn.name, [turn.record()])

        for turn in _turns(checkpoint):
            about = {"checkpoint": file.name, "session": turn.session, "query": turn.query}
            yield item_of(0, json.dumps(about, ensure_ascii=False), partial(records, turn))


def _run_files(folder: Path) -> list[Path]:
    files = files_below(folder, ".json", ".pkl")
    return [file for file in files if not file.name.endswith(".meta.json")]


def _newest_copies(files: Iterable[Path]) -> dict[str, Path]:
    """Return name of a trace file -> the file of that name in the latest day folder. A collector
    saves a relabelled trace in the folder of that day, so the label of an older copy is
    obsolete."""
    by_day = [file for file in files if file.suffix == ".json" and DAY.fullmatch(file.parent.name)]
    return {file.name: file for file in sorted(by_day, key=lambda file: file.parent.name)}


def _without_label(item: Item, trace_id: str) -> Item:
    """Return the item without its feedback if its only trace has this id, else unchanged."""
    if not isinstance(item, Line):
        return item
    traces = [record for record in item.records if isinstance(record, TraceRecord)]
    if [trace.id for trace in traces] != [trace_id]:
        return item
    return replace(item, records=list[AnyRecord](traces))


def _is_trace_file(file: Path) -> bool:
    """Return whether the first object of the file is a trace; False if it cannot be read."""
    try:
        first = next(read_rows(file, ignore_position), None)
    except InputError:
        return False
    return first is not None and first.row is not None and claims(first.row)


def _opened(checkpoint: Any) -> dict[str, Any]:
    """Return the parts of a checkpoint that are read, as JSON without secrets. A text that is
    secret in one place is secret everywhere. Raises Unreadable if it is no checkpoint of an
    agent."""
    if not isinstance(checkpoint, Standin) or checkpoint.name != "AgentCheckpoint":
        raise Unreadable("it is no checkpoint of an agent")
    fields = as_json(checkpoint.fields)
    secrets = secrets_in(fields)
    if "variable_scopes" in fields:
        scopes = _object(fields["variable_scopes"])
        fields["variable_scopes"] = {name: scopes[name] for name in SCOPES if name in scopes}
    return {key: redacted(plain(fields[key]), secrets) for key in PARTS if key in fields}


@dataclass
class _Turn:
    """A user's turn with its answer and what happened in between."""

    session: str
    user: Row
    answer: Row
    query: str
    response: str
    between: list[Row]
    agent: str | None
    subject: str | None = None
    repetition: int = 0
    """How many turns like it came before."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[dict[str, Any]] = field(default_factory=list)
    summary: str | None = None

    @property
    def name(self) -> str:
        """The same in every checkpoint that has this turn."""
        identity = [
            self.session,
            self.query,
            self.response,
            self.user.get("timestamp"),
            self.answer.get("timestamp"),
            self.repetition,
        ]
        return f"turn-{ids.fingerprint(identity)[:40]}"

    def covers(self, time: datetime) -> bool:
        """Return whether the time lies between the question and the answer; False if the turn has
        no times."""
        if self.span is None:
            return False
        asked, answered = self.span
        return asked <= time <= answered

    @cached_property
    def span(self) -> tuple[datetime, datetime] | None:
        """From the question to the answer; None where the messages have no times."""
        first, last = _time(self.user.get("timestamp")), _time(self.answer.get("timestamp"))
        return (first, last) if first and last and first <= last else None

    def record(self) -> TraceRecord:
        about = _object(self.answer.get("metadata"))
        ended, duration = _time(self.answer.get("timestamp")), about.get("execution_duration")
        started = None
        if ended and isinstance(duration, int | float) and 0 <= duration < 10**6:
            started = ended - timedelta(seconds=duration)
        failed = about.get("error") is True
        status = "error" if failed else "ok"
        answer = {
            "kind": "llm",
            "status": status,
            "started_at": started,
            "ended_at": ended if started else None,
        }
        metadata = {
            "agent_name": self.agent,
            "run_summary": self.summary,
            "error_type": about.get("error_type") if failed else None,
        }
        fields = {
            "id": self.name,
            "session": self.session,
            "input": self.query,
            "output": self.response,
            "status": status,
            "subject": self.subject,
            "occurred_at": _time(self.user.get("timestamp")) or ended,
            "steps": [*self.thoughts, *_tools(self.between), *self.tasks, answer],
            "metadata": {key: value for key, value in metadata.items() if value} or None,
        }
        present = {key: value for key, value in fields.items() if value is not None and value != ""}
        # variables are overwritten by the next run, so a later checkpoint knows less of the same
        # turn
        return TraceRecord.model_validate(present).with_identity({"turn": self.name})


def _time(value: Any) -> datetime | None:
    try:
        return parse_time(value)
    except Unreadable:
        return None


def _turns(checkpoint: Row) -> list[_Turn]:
    turns: list[_Turn] = []
    agent = checkpoint.get("agent_name") or _object(checkpoint.get("metadata")).get("agent_name")
    agent = str(agent) if agent else None
    owners = _owners(checkpoint)
    for session, history, is_second in _histories(checkpoint):
        repetitions: Counter[str] = Counter()
        for turn in _answered_turns(session, history, is_second, agent):
            turn.subject = _owner(turn.user) or _owner(turn.answer) or owners.get(session)
            first_name = turn.name
            turn.repetition = repetitions[first_name]
            repetitions[first_name] += 1
            turns.append(turn)
    _give_tasks(turns, _object(checkpoint.get("task_state")))
    _give_thoughts(turns, _object(checkpoint.get("variable_scopes")))
    return turns


def _owner(part: Row) -> str | None:
    """Return the user of a message or a session, or None."""
    return user_of(part.get("metadata"), part)


def _owners(checkpoint: Row) -> dict[str, str]:
    """Return session -> its user, from the session, else from the variables of the last run."""
    owners: dict[str, str] = {}
    last_run = _object(_object(checkpoint.get("variable_scopes")).get("user"))
    user = user_of({"user_id": last_run.get("id")})
    if user and isinstance(last_run.get("session"), str):
        owners[last_run["session"]] = user
    for sessions in (_first_sessions(checkpoint), _second_sessions(checkpoint)):
        for name, session in sessions.items():
            user = _owner(_object(session))
            if user:
                owners[name] = user
    return owners


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_sessions(checkpoint: Row) -> Mapping[str, Any]:
    """Return the sessions of a checkpoint of the first generation."""
    return _object(checkpoint.get("session_data"))


def _second_sessions(checkpoint: Row) -> Mapping[str, Any]:
    """Return the sessions of a checkpoint of the second generation."""
    return _object(_object(checkpoint.get("sessions_data")).get("sessions"))


def _histories(checkpoint: Row) -> Iterator[tuple[str, list[Row], bool]]:
    """Yield (session, its messages, whether it is of the second generation)."""
    for sessions, key, is_second in (
        (_first_sessions(checkpoint), "history", False),
        (_second_sessions(checkpoint), "chat_history", True),
    ):
        for name, session in sessions.items():
            messages = _object(session).get(key)
            if not isinstance(messages, list):
                messages = []
            yield name, [message for message in messages if isinstance(message, dict)], is_second


def _answered_turns(
    session: str, history: list[Row], is_second: bool, agent: str | None
) -> Iterator[_Turn]:
    """Yield the answered turns. A message that nobody answered is not a turn yet; a later
    checkpoint may have the answer."""
    starts = [index for index, message in enumerate(history) if message.get("role") == "user"]
    for start, end in pairwise([*starts, len(history)]):
        query = _text(history[start])
        if query is None:
            continue  # its answer belongs to nothing that was asked in words
        between = history[start + 1 : end]
        summary = None
        answers = []
        for message in between:
            text = _text(message) if message.get("role") == "assistant" else None
            if text is None:
                continue
            if is_second and SUMMARY.match(text):
                summary = text
            else:
                answers.append((message, text))
        if answers:
            message, text = answers[-1 if is_second else 0]
            yield _Turn(
                session, history[start], message, query, text, between, agent, summary=summary
            )


def _text(message: Row) -> str | None:
    """Return the text of a message, also of one in parts; None if it has no text."""
    try:
        text = content_text(message.get("content"))
    except Unreadable:
        return None
    return text if text and text.strip() else None


def _tools(between: list[Row]) -> Iterator[dict[str, Any]]:
    """Yield tool messages as steps; in the second generation the assistant's own message has the
    name and the arguments."""
    calls: dict[str, Row] = {}
    for message in between:
        tool_calls = message.get("tool_calls")
        for call in tool_calls if isinstance(tool_calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                calls[call["id"]] = _object(call.get("function"))
    for message in between:
        if message.get("role") != "tool":
            continue
        call = calls.get(message.get("tool_call_id") or "") or message
        arguments = call.get("arguments")
        error = message.get("error")
        yield {
            "kind": "tool",
            "name": str(call.get("name") or "tool")[:LONGEST_NAME],
            "input": value_in(arguments) if isinstance(arguments, str) else arguments,
            "output": error or message.get("content"),
            "status": "error" if error else "ok",
        }


def _give_tasks(turns: list[_Turn], tasks: Mapping[str, Any]) -> None:
    for name in sorted(tasks):
        task = _object(tasks[name])
        created = _time(task.get("created_at"))
        candidates = [turn for turn in turns if created and turn.covers(created)]
        if len(candidates) != 1:
            continue  # whose it is nobody knows
        (turn,) = candidates
        answered = _time(turn.answer.get("timestamp"))
        done = _time(task.get("completed_at"))
        status = "created"
        if done and answered and done <= answered:
            status = FINISHED.get(str(task.get("status")), "created")
        result = {"completed": task.get("result"), "failed": task.get("error")}.get(status)
        step = {
            "kind": "task",
            "name": str(task.get("type") or "task")[:LONGEST_NAME],
            "input": {
                "task_id": str(task.get("id") or name),
                "description": str(task.get("description") or "")[:TASK],
            },
            "output": None if result is None else str(result)[:TASK],
            "status": status,
        }
        turn.tasks.append(step)


def _give_thoughts(turns: list[_Turn], scopes: Mapping[str, Any]) -> None:
    """Add the steps of the reasoning and delegation scopes to the turns that they belong to; a step
    without a definite turn is left out."""
    last = _last_asked(turns, _object(scopes.get("user")))

    reasoning = _object(scopes.get("reasoning"))
    complete = _object(reasoning.get("session_complete"))
    result = reasoning.get("final_result")
    if isinstance(result, str) and result.strip():
        turn = _turn_at(turns, _time(complete.get("timestamp")), last)
        keys = ("loops", "success")
        about = {key: complete[key] for key in keys if complete.get(key) is not None}
        if turn is not None:
            turn.thoughts.append(_thought("final_result", about or None, result[:THOUGHT]))

    delegation = _object(scopes.get("delegation"))
    names = [name for name in delegation if name.startswith("loop_")]
    for name in sorted(names, key=_loop_order) or ["latest"]:
        loop = _object(delegation.get(name))
        task = loop.get("task") or loop.get("task_description")
        response = loop.get("response") or loop.get("final_response")
        if task is None and response is None:
            continue
        turn = _turn_at(turns, _time(loop.get("timestamp")), last)
        about = {"task": str(task)[:DELEGATED] if task is not None else None, "loop": name}
        output = str(response)[:DELEGATED] if response is not None else None
        if turn is not None:
            turn.thoughts.append(_thought("delegation", about, output))


def _thought(name: str, about: dict[str, Any] | None, output: str | None) -> dict[str, Any]:
    return {"kind": "reasoning", "name": name, "input": about, "output": output}


def _loop_order(name: str) -> tuple[int, str]:
    """Return the sort key of a loop, by its number and not by its text: loop_10 comes after
    loop_9."""
    number = name.removeprefix("loop_")
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    return (int(number) if is_number else -1), name


def _last_asked(turns: list[_Turn], user: Mapping[str, Any]) -> _Turn | None:
    """Return the turn that the user scope names, or the only one; None if it is unknown."""
    if len(turns) == 1:
        return turns[0]
    question = user.get("session"), user.get("query")
    matches = [turn for turn in turns if (turn.session, turn.query) == question]
    return matches[-1] if matches else None


def _turn_at(turns: list[_Turn], time: datetime | None, last: _Turn | None) -> _Turn | None:
    """Return the one turn whose question and answer enclose the time; without a time, or if no turn
    has one, the turn that was asked last. None if no turn or several match."""
    if time is None or not any(turn.span for turn in turns):
        return last
    matches = [turn for turn in turns if turn.covers(time)]
    return matches[0] if len(matches) == 1 else None


SOURCE = FlowAgent(
    parse,
    claims,
    EXAMPLE,
    about="trace files and checkpoints (.pkl) of an agent: one, or a folder of them.",
    reason="a trace file has a trace_id and a user_query",
)
