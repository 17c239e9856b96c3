"""`hook_into_agent`: an agent's own `a_run` and `arun_function` tell a `TraceCollector` what
happens, until `unhook()`.

Both generations of signatures are taken, and kept: `a_run(query, session_id, ...)` gives a text, or
(text, context) when asked for it; `arun_function(name, *args, **kwargs)`. Tools that only think
become reasoning steps, those of a task stack tasks, all others tool calls. Whatever goes wrong
while recording is a warning, never an error of the agent. Not here: what a trace is (`tracefile`).
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
from typing import Any

from thumbwheel.sdk.collector import TraceCollector
from thumbwheel.sdk.tracefile import ExecutionTrace

Method = Callable[..., Awaitable[Any]]
METHODS = ("a_run", "arun_function")
MARK = "_trace_collector"
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
STACK = {"add": "created", "complete": "completed"}
"""Action on the task stack -> what became of the task; other actions are tool calls like any other."""
_HOOKING = threading.Lock()


@dataclass(eq=False)
class _Turn:
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
        self._turns: set[_Turn] = set()
        self._lock = threading.Lock()
        own = dict(getattr(agent, "__dict__", {}))
        for name, wrap in zip(METHODS, (self._running, self._calling), strict=True):
            if callable(method := getattr(agent, name, None)):
                wrapper = wrap(method)
                _set(agent, name, wrapper)
                self._replaced[name] = (wrapper, own.get(name))
        if not self._replaced:
            raise TypeError(
                f"{type(agent).__name__} has neither a_run nor arun_function: there is nothing to "
                "record"
            )
        _set(agent, MARK, self)

    def unhook(self) -> None:
        """Give the agent its methods back; where somebody has wrapped ours since, theirs stays and
        ours only passes through."""
        with _HOOKING:
            if not self.active:
                return
            self.active = False
            for name, (wrapper, before) in self._replaced.items():
                if vars(self.agent).get(name) is wrapper:
                    _restore(self.agent, name, before)
            if vars(self.agent).get(MARK) is self:
                delattr(self.agent, MARK)

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
            query, session, user = _asked(signature, args, kwargs, self.agent)
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
            named = dict(kwargs)
            name = str(args[0] if args else named.pop("function_name", ""))
            given, started = (args[1:], named), time.monotonic()
            try:
                result = await method(*args, **kwargs)
            except BaseException as error:
                spent, why = _since(started), _reason(error)
                self._safely(lambda: self._called(trace, name, given, None, spent, why))
                raise
            spent = _since(started)
            self._safely(lambda: self._called(trace, name, given, result, spent))
            return result

        return arun_function

    def _called(
        self,
        trace: ExecutionTrace,
        name: str,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        result: Any,
        spent: float,
        error: str | None = None,
    ) -> None:
        positional, named = given
        said = dict(zip(THINKING.get(name, ()), positional, strict=False)) | named
        if (
            error is None
            and name in THINKING
            and _thought(self.collector, trace, name, said, result)
        ):
            return
        arguments = {"args": list(positional), "kwargs": named}
        self.collector.record_tool_call(
            name, arguments, result, error is None, spent, error, trace=trace
        )

    def _finish(
        self,
        trace: ExecutionTrace | None,
        result: Any,
        started: float,
        turn: _Turn,
        error: BaseException | None = None,
    ) -> None:
        if trace is None:
            return
        self.collector.leave(trace)  # whatever fails from here on, nothing more belongs to this run
        text = result[0] if isinstance(result, tuple) and result else result
        response = text if isinstance(text, str) else "" if text is None else str(text)
        why = (
            _reason(error)
            if error
            else self._failed(result)
            if self._failed
            else _reported(self.agent, trace.session_id, response)
        )
        if why is not None:
            kind = (
                "cancelled"
                if error is not None and not isinstance(error, Exception)
                else "execution_error"
            )
            trace.tasks_failed.append({"error": why[:500], "type": kind})
        known = _deltas(turn.before, _counters(self.agent)) if turn.alone else {}
        self.collector.finish_trace(
            response, **known, execution_duration_ms=_since(started), trace=trace
        )

    @contextmanager
    def _counting(self) -> Iterator[_Turn]:
        turn = _Turn(_counters(self.agent))
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
    agent: Any, collector: TraceCollector, *, failed: Callable[[Any], str | None] | None = None
) -> Hook:
    """Record the runs of `agent` (any object with async `a_run` or `arun_function`) with
    `collector`; twice is once.

    `failed(result)` says why an answer stands for a failure, None where it does not; without it an
    answer counts as failed where the agent's history marks that message as an error. Raises
    TypeError where there is nothing to hook or the object takes no attributes, RuntimeError where
    another collector already listens.
    """
    with _HOOKING:
        before = getattr(agent, "__dict__", {}).get(MARK)
        if isinstance(before, Hook) and before.active:
            if before.collector is not collector:
                raise RuntimeError(
                    f"another collector already records this {type(agent).__name__}: call "
                    "unhook() on its hook first"
                )
            return before
        return Hook(agent, collector, failed)


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


def _asked(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], agent: Any
) -> tuple[str, str, str | None]:
    """(query, session, user) of a call, however they were passed."""
    found = dict(kwargs)
    try:
        bound = signature.bind(*args, **kwargs) if signature else None
    except TypeError:
        bound = None  # the agent itself says what is wrong with the call
    if bound is not None:
        bound.apply_defaults()
        found = bound.arguments | found
    query = found.get("query", args[0] if args else "")
    session = found.get("session_id") or getattr(agent, "active_session", None) or "default"
    rest = found.get("kwargs")
    user = found.get("user_id") or (rest.get("user_id") if isinstance(rest, dict) else None)
    return (
        query if isinstance(query, str) else str(query),
        str(session),
        str(user) if user else None,
    )


def _thought(
    collector: TraceCollector,
    trace: ExecutionTrace,
    name: str,
    said: Mapping[str, Any],
    result: Any,
) -> bool:
    """Record a tool that says what the agent thinks; False where this call of it does something
    else."""
    if name == "manage_internal_task_stack":
        status = STACK.get(str(said.get("action", "")).lower())
        if status:
            task = {
                "task_id": said.get("outline_step_ref"),
                "type": "internal_task",
                "description": said.get("task_description"),
            }
            if status == "completed":
                task["result"] = result
            collector.record_task(task, status, trace=trace)  # type: ignore[arg-type]
        return status is not None
    if name == "internal_reasoning":
        sure, insights, issues = (
            said.get("confidence_level"),
            said.get("key_insights"),
            said.get("potential_issues"),
        )
        number = (
            float(sure) if isinstance(sure, int | float) and not isinstance(sure, bool) else None
        )
        collector.record_reasoning_step(
            name, said.get("thought", ""), number, _list(insights), _list(issues), trace=trace
        )
    elif name == "delegate_to_llm_tool_node":
        collector.record_reasoning_step(
            "task_delegation",
            said.get("task_description", ""),
            None,
            _list(said.get("tools_list")),
            trace=trace,
        )
    else:
        told = [
            str(said[key]) for key in ("completion_evidence", "next_step_focus") if said.get(key)
        ]
        collector.record_reasoning_step("outline_step", "\n".join(told), trace=trace)
    return True


def _list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found] if found else []


def _reported(agent: Any, session: str, response: str) -> str | None:
    """Why the agent's own history calls this answer an error; an agent that catches everything says
    it only there."""
    sessions = getattr(agent, "session_data", None)
    own = sessions.get(session) if isinstance(sessions, Mapping) else None
    for history in (
        own.get("history") if isinstance(own, Mapping) else own,
        getattr(agent, "conversation_history", None),
    ):
        last = history[-1] if isinstance(history, list) and history else None
        metadata = (
            last.get("metadata")
            if isinstance(last, Mapping) and last.get("content") == response
            else None
        )
        if isinstance(metadata, Mapping) and metadata.get("error") is True:
            return str(metadata.get("error_type") or response)
    return None


def _counters(agent: Any) -> dict[str, Any]:
    found = {}
    for key, names in COUNTERS.items():
        values = [_peek(agent, name) for name in names]
        numbers = [
            value
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        found[key] = numbers[0] if numbers else None
    return found


def _peek(agent: Any, name: str) -> Any:
    try:
        return getattr(agent, name, None)
    except Exception:  # noqa: BLE001 - a property of the agent that raises is a number that nobody knows
        return None


def _deltas(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What a run added to each counter; null where there is none or it was set back meanwhile."""
    known = {
        key
        for key in before
        if before[key] is not None and after[key] is not None and after[key] >= before[key]
    }
    return {
        key: round(after[key] - before[key], 9)
        if key == "total_cost"
        else int(after[key] - before[key])
        for key in known
    }


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _since(started: float) -> float:
    return (time.monotonic() - started) * 1000
