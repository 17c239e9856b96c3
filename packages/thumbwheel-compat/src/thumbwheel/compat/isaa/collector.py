"""`TraceCollector`: records runs of an agent while they happen, one JSON file a run in a folder of
its day, and into the home's inbox too when it knows the agent's name.

Which run is meant is a matter of the context: tasks and threads of other sessions, and agents that
call agents, each have their own. Not here: what an agent's methods report (`hook`), the form of the
file (`tracefile`).
"""

from __future__ import annotations

import re
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

from thumbwheel.compat.isaa.tracefile import (
    CONTENT,
    RESULT,
    TASK,
    ExecutionTrace,
    ReasoningStep,
    ToolCallTrace,
    clip,
    line_of,
    read_trace,
    write_trace,
)
from thumbwheel.sdk import record
from thumbwheel.sdk.nesting import RUNS, Inherited, inherited, innermost
from thumbwheel.sdk.plain import plain
from thumbwheel.sdk.redact import redacted

DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
FINISHED = 1000
"""Runs that a collector keeps in memory after their end."""
Day = date | str
"""A date, or as text "2026-01-31" (what follows the tenth character does not count)."""


@dataclass(eq=False)
class RecordedRun:
    """A trace that is being recorded. `owner` is the hook that started it, None for `start_trace`
    by hand."""

    collector: TraceCollector
    trace: ExecutionTrace
    owner: object | None
    closed: bool = False

    @property
    def trace_id(self) -> str:
        """The id of its trace."""
        return self.trace.trace_id

    def inherited(self, agent: str) -> Inherited:
        """Return the fields that a trace of `agent` begun inside this run takes from it."""
        user, session = self.trace.extra.get("user_id"), self.trace.session_id
        return inherited(self.collector.agent or agent, self.trace_id, agent, session, user)


class TraceCollector:
    """Records runs below `storage_path` (default: rl_traces in the home), and with `agent` also as
    traces of that agent."""

    def __init__(self, storage_path: str | Path | None = None, *, agent: str | None = None) -> None:
        self.storage_path = Path(storage_path) if storage_path else record.home() / "rl_traces"
        self.agent = agent
        self._finished: deque[ExecutionTrace] = deque(maxlen=FINISHED)
        self._lock = threading.Lock()

    def start_trace(
        self,
        session_id: str,
        user_query: str,
        *,
        user_id: str | None = None,
        owner: object | None = None,
    ) -> ExecutionTrace:
        """Open the trace of a run in this context, and return it. Everything recorded from now on,
        here and in tasks that start here, belongs to it.

        `user_id` is the run's subject, by whom an erasure finds it.
        """
        session = clip(session_id, 512) or "default"
        trace = ExecutionTrace(uuid.uuid4().hex, session, _now(), str(plain(user_query)))
        around = innermost()
        if self.agent:
            trace.extra["agent"] = self.agent
        if around:
            trace.extra["parent_trace_id"] = around.trace_id
        if user_id:
            trace.extra["user_id"] = str(plain(user_id))
        RUNS.set((*RUNS.get(), RecordedRun(self, trace, owner)))
        return trace

    @property
    def traces(self) -> list[ExecutionTrace]:
        """The last runs that were finished in this process; `load_traces` has all of them."""
        return list(self._finished)

    @property
    def current_trace(self) -> ExecutionTrace | None:
        """The open trace of this context."""
        return self.current()

    def current(self, owner: object | None = None) -> ExecutionTrace | None:
        """Return this collector's innermost trace in the context, None if it is closed or there is
        none; with `owner`, only a trace that `owner` or no particular owner started."""
        runs = [run for run in RUNS.get() if isinstance(run, RecordedRun) and run.collector is self]
        for run in reversed(runs):
            if owner is None or run.owner in (None, owner):
                return None if run.closed else run.trace
        return None

    def _open(self, trace: ExecutionTrace | None) -> ExecutionTrace:
        trace = trace or self.current()
        if trace is None:
            raise RuntimeError("no trace is open in this context: call start_trace first")
        return trace

    def record_tool_call(
        self,
        tool_name: str,
        arguments: Any,
        result: Any,
        success: bool,
        duration_ms: float | None = None,
        error: str | None = None,
        *,
        trace: ExecutionTrace | None = None,
    ) -> None:
        """Add a tool call to the open trace (or to `trace`). Raises RuntimeError where none is
        open, as all of these do."""
        call = ToolCallTrace(
            tool_name=str(plain(tool_name)),
            arguments=plain(arguments),
            result=clip(result, RESULT),
            success=success,
            duration_ms=duration_ms,
            error=None if error is None else clip(error, RESULT),
            timestamp=_now(),
        )
        self._open(trace).tool_calls.append(call)

    def record_reasoning_step(
        self,
        step_type: str,
        content: str,
        confidence: float | None = None,
        insights: list[Any] | None = None,
        issues: list[Any] | None = None,
        *,
        trace: ExecutionTrace | None = None,
    ) -> None:
        """Add a step of reasoning."""
        step = ReasoningStep(
            str(plain(step_type)),
            clip(content, CONTENT),
            plain(confidence),
            plain(insights or []),
            plain(issues or []),
        )
        self._open(trace).reasoning_steps.append(step)

    def record_task(
        self,
        task_data: Mapping[str, Any],
        status: Literal["created", "completed", "failed"],
        *,
        trace: ExecutionTrace | None = None,
    ) -> None:
        """Add the state of a task: `task_data` has task_id, type, description and result or error.
        Raises ValueError for another status."""
        if status not in ("created", "completed", "failed"):
            raise ValueError(f"status {status!r} is none of created, completed, failed")
        entry = {}
        task_id, task_type = task_data.get("task_id", task_data.get("id")), task_data.get("type")
        if task_id is not None:
            entry["task_id"] = str(plain(task_id))
        if task_type is not None:
            entry["type"] = str(plain(task_type))
        for key, value in task_data.items():
            if key in ("description", "result", "error") and value:
                entry[key] = clip(value, TASK)
        entry["timestamp"] = _now()
        getattr(self._open(trace), f"tasks_{status}").append(entry)

    def finish_trace(
        self,
        final_response: str,
        total_tokens_in: int | None = None,
        total_tokens_out: int | None = None,
        total_cost: float | None = None,
        execution_duration_ms: float | None = None,
        llm_calls_count: int | None = None,
        *,
        trace: ExecutionTrace | None = None,
    ) -> ExecutionTrace:
        """Close the open trace (or `trace`), write its file and, with an agent, its line in the
        inbox, both without secrets; return the trace.

        Unknown numbers stay null. If the disk is full, the record is dropped with a RuntimeWarning.
        """
        trace = self._open(trace)
        self.leave(trace)
        trace.final_response = str(plain(final_response or ""))
        trace.total_tokens_in, trace.total_tokens_out = total_tokens_in, total_tokens_out
        trace.total_cost, trace.execution_duration_ms = total_cost, execution_duration_ms
        trace.llm_calls_count = llm_calls_count
        stored = ExecutionTrace.from_dict(redacted(trace.to_dict()))
        folder = self.storage_path / f"{datetime.now():%Y-%m-%d}"
        try:
            write_trace(folder / f"{stored.trace_id}.json", stored)
        except OSError as error:  # a full disk is no reason for the app to fail
            text = (
                f"the file of trace {stored.trace_id} is not written: {self.storage_path}: "
                f"{error.strerror or error}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self.agent:
            record.record_or_drop(self.agent, {"type": "trace", **line_of(stored)})
        self._finished.append(trace)
        return trace

    def leave(self, trace: ExecutionTrace) -> None:
        """Stop recording for `trace` in every context, and make the trace around it current again
        in this one."""
        for run in RUNS.get():
            if isinstance(run, RecordedRun):
                run.closed = run.closed or run.trace is trace
        RUNS.set(tuple(run for run in RUNS.get() if run.trace_id != trace.trace_id))

    def files(self) -> list[Path]:
        """Return every trace file, the oldest day first."""
        return trace_files(self.storage_path)

    def load_traces(
        self,
        start_date: Day | None = None,
        end_date: Day | None = None,
        labeled_only: bool = False,
        min_tool_calls: int = 0,
    ) -> list[ExecutionTrace]:
        """Return the traces of these days (both included), the oldest day first. A file that is no
        trace is left out with a warning."""
        first, last = _day(start_date), _day(end_date)
        files = []
        for file in self.files():
            day = file.parent.name
            if (not first or day >= first) and (not last or day <= last):
                files.append(file)
        return [
            trace
            for trace in _readable(files)
            if len(trace.tool_calls) >= min_tool_calls
            and not (labeled_only and trace.label is None)
        ]

    def get_unlabeled_traces(self, limit: int = 100) -> list[ExecutionTrace]:
        """Return at most `limit` traces without a label, the newest first."""
        return [trace for trace in reversed(self.load_traces()) if trace.label is None][:limit]

    def label_trace(self, trace_id: str, label: bool, notes: str = "") -> ExecutionTrace:
        """Label a stored trace as good or bad, and return it; with an agent, also record it as
        feedback. Raises KeyError for an unknown trace, TypeError for a label that is no boolean."""
        if not isinstance(label, bool):
            raise TypeError(f"label {label!r} is neither True (good) nor False (bad)")
        with self._lock:
            paths = []
            if NAME.fullmatch(trace_id):
                paths = [path for path in self.files() if path.stem == trace_id]
            if not paths:
                raise KeyError(f"no trace {trace_id!r} below {self.storage_path}")
            trace = read_trace(paths[-1])
            trace.label, trace.manual_review = label, True
            trace.review_notes = str(redacted(plain(notes)))
            write_trace(paths[-1], trace)
        if self.agent:
            comment = {"comment": trace.review_notes} if notes else {}
            record.feedback(self.agent, trace.trace_id, thumb=label, **comment)
        return trace

    def get_statistics(self) -> dict[str, Any]:
        """Return total, labeled, unlabeled, positive_labels, negative_labels, and averages, which
        are null without values."""
        traces = self.load_traces()
        labels = [trace.label for trace in traces if trace.label is not None]
        costs = [trace.total_cost for trace in traces if trace.total_cost is not None]
        return {
            "total": len(traces),
            "labeled": len(labels),
            "unlabeled": len(traces) - len(labels),
            "positive_labels": labels.count(True),
            "negative_labels": labels.count(False),
            "avg_tool_calls": _mean([len(trace.tool_calls) for trace in traces]),
            "avg_reasoning_steps": _mean([len(trace.reasoning_steps) for trace in traces]),
            "avg_cost": _mean(costs),
        }


def trace_files(storage_path: Path) -> list[Path]:
    """Return the trace files of a collector's folder, the oldest day first."""
    files = []
    for folder in sorted(storage_path.glob("*")):
        if DAY.fullmatch(folder.name) and folder.is_dir():
            files += [path for path in sorted(folder.glob("*.json")) if path.name[0] != "."]
    return files


def _readable(files: list[Path]) -> Iterator[ExecutionTrace]:
    for path in files:
        try:
            yield read_trace(path)
        except (OSError, ValueError, TypeError) as error:
            warnings.warn(f"{path} is left out: {error}", stacklevel=3)


def _day(day: Day | None) -> str | None:
    if day is None:
        return None
    if isinstance(day, str):
        return date.fromisoformat(day[:10]).isoformat()
    return f"{day:%Y-%m-%d}"


def _mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None


def _now() -> str:
    return datetime.now().astimezone().isoformat()
