"""`hook_into_agent`: an agent's `a_run` and `arun_function` report to a `TraceCollector` what
happens, until `unhook()`.

Both generations of signatures work, and stay as they are: `a_run(query, session_id, ...)` returns a
text, or (text, context) when asked for it; `arun_function(name, *args, **kwargs)`. Tools that only
think become reasoning steps, those of a task stack tasks, all others tool calls. Whatever goes
wrong while recording is a warning, never an error of the agent. Not here: what a trace is
(`tracefile`).
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from thumbwheel.compat.isaa.collector import TraceCollector
from thumbwheel.compat.isaa.tracefile import ExecutionTrace

Method = Callable[..., Awaitable[Any]]
METHODS = ("a_run", "arun_function")
COLLECTOR, HOOK = "_trace_collector", "_trace_hook"
"""Attributes of a hooked agent."""
COUNTERS = {
    "total_tokens_in": ("total_tokens_in",),
    "total_tokens_out": ("total_tokens_out",),
    "total_cost": ("total_cost_accumulated", "total_cost"),
    "llm_calls_count": ("total_llm_calls",),
}
"""Argument of `finish_trace` -> the agent's lifetime counter, under the names that it has had."""
THINKING = {
    "internal_reasoning": (
        "thought",
        "thought_number",
        "total_thoughts",
        "next_thought_needed",
        "current_focus",
        "key_insights",
        "potential_issues",
        "confidence_level",
    ),
    "delegate_to_llm_tool_node": ("task_description", "tools_list"),
    "advance_outline_step": ("step_completed", "completion_evidence", "next_step_focus"),
    "outline_step_completion": ("step_completed", "completion_evidence", "next_step_focus"),
    "manage_internal_task_stack": ("action", "task_description", "outline_step_ref"),
}
"""Tools that say what the agent thinks -> their parameters in order."""
STACK: Mapping[str, Literal["created", "completed"]] = {"add": "created", "complete": "completed"}
"""Action on the task stack -> what became of the task; other actions are tool calls like any
other."""
_HOOKING = threading.Lock()


@dataclass(eq=False)
class _PendingRun:
    """A run that is on its way; `alone` turns false when another run of the same agent overlaps,
    because they share the counters."""

    before: dict[str, Any]
    alone: bool = True


class Hook:
    """What `hook_into_agent` returns; `unhook()`, or the end of a `with` block, takes the recording
    off again."""

    def __init__(
        self,
        agent: Any,
        collector: TraceCollector,
        failed: Callable[[Any], str | None] | None = None,
    ) -> None:
        self.agent, self.collector, self.active = agent, collector, True
        self._failed = failed
        self._replaced: dict[str, tuple[Method, Any]] = {}
        self._turns: set[_PendingRun] = set()
        self._lock = threading.Lock()
        before = dict(getattr(agent, "__dict__", {}))
        for name, wrap in zip(METHODS, (self._running, self._calling), strict=True):
            if callable(method := getattr(agent, name, None)):
                wrapper = wrap(method)
                _set(agent, name, wrapper)
                self._replaced[name] = (wrapper, before.get(name))
        if not self._replaced:
            raise TypeError(
                f"{type(agent).__name__} has neither a_run nor arun_function: there is nothing to "
                "record"
            )
        _set(agent, COLLECTOR, collector)
        _set(agent, HOOK, self)

    def unhook(self) -> None:
        """Restore the agent's methods. A method that was wrapped again since keeps that wrapper,
        and the hook inside only passes calls through."""
        with _HOOKING:
            if not self.active:
                return
            self.active = False
            for name, (wrapper, before) in self._replaced.items():
                if vars(self.agent).get(name) is wrapper:
                    _restore(self.agent, name, before)
            if vars(self.agent).get(HOOK) is self:
                delattr(self.agent, HOOK)
                delattr(self.agent, COLLECTOR)

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *raised: object) -> None:
        self.unhook()

    def _running(self, method: Method) -> Method:
        signature = _signature(method)

        @functools.wraps(method)
        async def a_run(*args: Any, **kwargs: Any) -> Any:
            if not self.active:
                return await method(*args, **kwargs)
            query, session, user = _call_of(signature, args, kwargs, self.agent)
            trace = self._safely(
                lambda: self.collector.start_trace(session, query, user_id=user, owner=self)
            )
            started = time.monotonic()
            with self._counting() as turn:
                try:
                    result = await method(*args, **kwargs)
                except BaseException as error:
                    why = error
                    self._safely(lambda: self._finish(trace, "", started, turn, why))
                    raise
                self._safely(lambda: self._finish(trace, result, started, turn))
                return result

        return a_run

    def _calling(self, method: Method) -> Method:
        @functools.wraps(method)
        async def arun_function(*args: Any, **kwargs: Any) -> Any:
            trace = self.collector.current(self) if self.active else None
            if trace is None:
                return await method(*args, **kwargs)
            keywords = dict(kwargs)
            name = str(args[0] if args else keywords.pop("function_name", ""))
            started = time.monotonic()
            try:
                result = await method(*args, **kwargs)
            except BaseException as error:
                spent, why = _since(started), _reason(error)
                self._safely(
                    lambda: self._called(trace, name, args[1:], keywords, None, spent, why)
                )
                raise
            spent = _since(started)
            self._safely(lambda: self._called(trace, name, args[1:], keywords, result, spent))
            return result

        return arun_function

    def _called(
        self,
        trace: ExecutionTrace,
        name: str,
        positional: tuple[Any, ...],
        keywords: dict[str, Any],
        result: Any,
        spent: float,
        error: str | None = None,
    ) -> None:
        """Record a call of a tool."""
        if error is None and name in THINKING:
            arguments = dict(zip(THINKING[name], positional, strict=False)) | keywords
            if _record_thought(self.collector, trace, name, arguments, result):
                return
        self.collector.record_tool_call(
            name,
            {"args": list(positional), "kwargs": keywords},
            result,
            error is None,
            spent,
            error,
            trace=trace,
        )

    def _finish(
        self,
        trace: ExecutionTrace | None,
        result: Any,
        started: float,
        turn: _PendingRun,
        error: BaseException | None = None,
    ) -> None:
        """Record the end of a run."""
        if trace is None:
            return
        self.collector.leave(trace)  # whatever fails from here on, nothing more belongs to this run
        text = result[0] if isinstance(result, tuple) and result else result
        response = "" if text is None else str(text)
        why: str | None
        if error:
            why = _reason(error)
        elif self._failed:
            why = self._failed(result)
        else:
            why = _reported(self.agent, trace.session_id, response)
        if why is not None:
            is_cancelled = error is not None and not isinstance(error, Exception)
            kind = "cancelled" if is_cancelled else "execution_error"
            trace.tasks_failed.append({"error": why[:500], "type": kind})
        counters = _deltas(turn.before, _counters(self.agent)) if turn.alone else {}
        self.collector.finish_trace(
            response, **counters, execution_duration_ms=_since(started), trace=trace
        )

    @contextmanager
    def _counting(self) -> Iterator[_PendingRun]:
        turn = _PendingRun(_counters(self.agent))
        with self._lock:
            turn.alone = not self._turns
            for other in self._turns:
                other.alone = False
            self._turns.add(turn)
        try:
            yield turn
        finally:
            with self._lock:
                self._turns.discard(turn)

    def _safely(self, recording: Callable[[], Any]) -> Any:
        try:
            return recording()
        except Exception as error:  # noqa: BLE001 - a full disk or an odd object must not cost the agent its answer
            warnings.warn(
                f"this run of {type(self.agent).__name__} is not recorded: {error!r}",
                RuntimeWarning,
                stacklevel=3,
            )
            return None


def hook_into_agent(
    agent: Any,
    trace_collector: TraceCollector,
    *,
    failed: Callable[[Any], str | None] | None = None,
) -> Hook:
    """Record the runs of `agent` (any object with async `a_run` or `arun_function`) with
    `trace_collector`, and return the hook; hooking twice is the same as once.

    `failed(result)` returns why an answer counts as a failure, None if it does not; without it an
    answer counts as failed if the agent's history marks that message as an error. Raises TypeError
    if there is nothing to hook or the object takes no attributes, RuntimeError if another collector
    already listens.
    """
    with _HOOKING:
        before = getattr(agent, "__dict__", {}).get(HOOK)
        if isinstance(before, Hook) and before.active:
            if before.collector is not trace_collector:
                raise RuntimeError(
                    f"another collector already records this {type(agent).__name__}: call "
                    "unhook() on its hook first"
                )
            return before
        return Hook(agent, trace_collector, failed)


def _set(agent: Any, name: str, value: Any) -> None:
    try:
        setattr(agent, name, value)
    except (AttributeError, ValueError) as error:
        raise TypeError(
            f"{type(agent).__name__} takes no attributes, so it cannot be hooked ({error})"
        ) from None


def _restore(agent: Any, name: str, before: Any) -> None:
    if before is None:
        delattr(agent, name)  # the class's own method shows again
    else:
        setattr(agent, name, before)


def _signature(method: Method) -> inspect.Signature | None:
    try:
        return inspect.signature(method)
    except (TypeError, ValueError):
        return None


def _call_of(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], agent: Any
) -> tuple[str, str, str | None]:
    """Return (query, session, user) of a call, however they were passed; user may be None."""
    arguments = dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs) if signature else None
    except TypeError:
        bound = None  # the agent itself says what is wrong with the call
    if bound is not None:
        bound.apply_defaults()
        arguments = bound.arguments | arguments
    query = arguments.get("query", args[0] if args else "")
    session = arguments.get("session_id") or getattr(agent, "active_session", None) or "default"
    rest = arguments.get("kwargs")
    user = arguments.get("user_id")
    if not user and isinstance(rest, dict):
        user = rest.get("user_id")
    return str(query), str(session), str(user) if user else None


def _record_thought(
    collector: TraceCollector,
    trace: ExecutionTrace,
    name: str,
    arguments: Mapping[str, Any],
    result: Any,
) -> bool:
    """Record a call of a tool for the agent's thoughts; return False if this call is something
    else."""
    if name == "manage_internal_task_stack":
        status = STACK.get(str(arguments.get("action", "")).lower())
        if status is None:
            return False
        task = {
            "task_id": arguments.get("outline_step_ref"),
            "type": "internal_task",
            "description": arguments.get("task_description"),
        }
        if status == "completed":
            task["result"] = result
        collector.record_task(task, status, trace=trace)
    elif name == "internal_reasoning":
        confidence = arguments.get("confidence_level")
        if isinstance(confidence, int | float) and not isinstance(confidence, bool):
            confidence = float(confidence)
        else:
            confidence = None
        collector.record_reasoning_step(
            name,
            arguments.get("thought", ""),
            confidence,
            _list(arguments.get("key_insights")),
            _list(arguments.get("potential_issues")),
            trace=trace,
        )
    elif name == "delegate_to_llm_tool_node":
        collector.record_reasoning_step(
            "task_delegation",
            arguments.get("task_description", ""),
            None,
            _list(arguments.get("tools_list")),
            trace=trace,
        )
    else:
        texts = [arguments.get("completion_evidence"), arguments.get("next_step_focus")]
        content = "\n".join(str(text) for text in texts if text)
        collector.record_reasoning_step("outline_step", content, trace=trace)
    return True


def _list(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return [value] if value else []


def _reported(agent: Any, session_id: str, response: str) -> str | None:
    """Return why the agent's history calls this answer an error, else None; an agent that catches
    every exception reports it only there."""
    sessions = getattr(agent, "session_data", None)
    session = sessions.get(session_id) if isinstance(sessions, Mapping) else None
    history = session.get("history") if isinstance(session, Mapping) else session
    for messages in (history, getattr(agent, "conversation_history", None)):
        last = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last, Mapping) or last.get("content") != response:
            continue
        metadata = last.get("metadata")
        if isinstance(metadata, Mapping) and metadata.get("error") is True:
            return str(metadata.get("error_type") or response)
    return None


def _counters(agent: Any) -> dict[str, Any]:
    """Return the agent's lifetime counters; None for a counter that it does not have."""
    counters = {}
    for key, names in COUNTERS.items():
        values = [_peek(agent, name) for name in names]
        numbers = [
            value
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        counters[key] = numbers[0] if numbers else None
    return counters


def _peek(agent: Any, name: str) -> Any:
    try:
        return getattr(agent, name, None)
    except Exception:  # noqa: BLE001 - a property of the agent that raises is a number that nobody knows
        return None


def _deltas(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the increase of each counter in a run, without counters that are missing or were reset
    meanwhile."""
    deltas: dict[str, Any] = {}
    for key in before:
        if before[key] is None or after[key] is None or after[key] < before[key]:
            continue
        delta = after[key] - before[key]
        deltas[key] = round(delta, 9) if key == "total_cost" else int(delta)
    return deltas


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000
