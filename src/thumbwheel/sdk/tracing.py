"""`Trace`: a run of an agent while it happens, as a `with` block, an `async with` block or a
decorator.

Its line is written at the end, whatever ends it: an exception is its status and goes on. Traces
nest by context: one that begins inside another has it as parent, and its session and subject where
it names none. Not here: how a line gets into the inbox (`record`).
"""

from __future__ import annotations

import functools
import inspect
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from thumbwheel.sdk.nesting import RUNS, Inherited, inherited, innermost
from thumbwheel.sdk.plain import plain

F = TypeVar("F", bound=Callable[..., Any])
Input = str | Sequence[Mapping[str, Any]]
LONGEST_ERROR = 500
"""Characters that are kept of what an exception says."""


class TraceSink(Protocol):
    """Takes the lines of finished traces."""

    def begin(self, agent: str, line: Mapping[str, Any]) -> Future[None]:
        """Begin to record a line, and return a future that resolves once it is stored. Never
        blocks."""

    def complain(self, agent: str, answer: Future[None]) -> None:
        """Warn if the trace was not recorded."""


class Trace:
    """What `thumbwheel.trace()` returns without an `output`.

    Set `output`, and what else becomes known (`model`, `metadata`, ...), inside the block; `step`
    adds a step. `id` is what `feedback()` takes, at any time.
    """

    def __init__(
        self, sink: TraceSink, agent: str, input: Input | None, fields: Mapping[str, Any]
    ) -> None:
        self._sink, self.agent = sink, agent
        self._fields = dict(fields)
        self.id = str(self._fields.pop("id", None) or uuid.uuid4().hex)
        self.input = input
        self.output: Any = None
        self.model: str | None = self._fields.pop("model", None)
        self.session: str | None = self._fields.pop("session", None)
        self.subject: str | None = self._fields.pop("subject", None)
        self.status: str | None = self._fields.pop("status", None)
        self.metadata: dict[str, Any] = dict(self._fields.pop("metadata", None) or {})
        self.steps = [dict(step) for step in self._fields.pop("steps", ())]
        self.closed = False
        self._began: str | None = None

    @property
    def trace_id(self) -> str:
        """The id, as runs of a collector name it."""
        return self.id

    def step(self, kind: str, **fields: Any) -> None:
        """Add a step: `kind` is llm, tool, reasoning, task or decision; `fields` have the names of
        the import format (`name`, `input`, `output`, `status`, ...)."""
        self.steps.append({"kind": kind, **fields})

    def inherited(self, agent: str) -> Inherited:
        """Return the fields that a trace of `agent` begun inside this one takes from it."""
        return inherited(self.agent, self.id, agent, self.session, self.subject)

    def begin(self) -> None:
        """Note the start time, and the fields that the run around this one passes on. Raises
        RuntimeError if the trace has begun already."""
        if self._began is not None:
            raise RuntimeError("this trace was begun already: call trace() again for another run")
        self._began = now()
        around = innermost()
        if around is None:
            return
        inherited = around.inherited(self.agent)
        self.session = self.session or inherited.session
        self.subject = self.subject or inherited.subject
        if "parent" not in self._fields:
            self._fields["parent"] = inherited.parent
            self.metadata = {**inherited.metadata, **self.metadata}

    def line(self) -> dict[str, Any]:
        """Return the line in the import format. Raises ValueError if the input is missing."""
        if self.input is None:
            raise ValueError("nobody said its input")
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": self.input}]
        if not isinstance(self.input, str):
            messages = [dict(message) for message in self.input]
        line = {
            "type": "trace",
            "id": self.id,
            "session": self.session,
            "subject": self.subject,
            "input": messages,
            "output": None if self.output is None else text_of(self.output),
            "model": self.model,
            "status": self.status,
            "steps": self.steps,
            "metadata": self.metadata,
            "occurred_at": self._began,
            **self._fields,
        }
        return {key: value for key, value in line.items() if value not in (None, [], {})}

    def __enter__(self) -> Trace:
        self.begin()
        RUNS.set((*RUNS.get(), self))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._leave(error)
        answer = self._begin()
        wait([answer])
        self._sink.complain(self.agent, answer)

    async def __aenter__(self) -> Trace:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import asyncio  # takes longer to import than all of this

        self._leave(error)
        answer = self._begin()
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # the loop of another library
            wait([answer])
        else:
            # Neither the disk nor the app's own threads stop the event loop, and a cancelled task
            # still gets its line.
            written = asyncio.wrap_future(answer)
            await asyncio.wait([written])
            written.exception()
        self._sink.complain(self.agent, answer)

    def __call__(self, function: F) -> F:
        """Record every call of `function`, sync or async, as a trace: its first argument (or all of
        them as JSON) is the input, its return value the output. Raises TypeError for a
        generator."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator: use `with trace(...)` inside of it instead"
            )
        signature = inspect.signature(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with self._call(signature, args, kwargs) as run:
                    result = await function(*args, **kwargs)
                    run.output = _first_not_none(run.output, result)
                    return result

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self._call(signature, args, kwargs) as run:
                result = function(*args, **kwargs)
                run.output = _first_not_none(run.output, result)
                return result

        return called  # type: ignore[return-value]

    def _call(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Trace:
        """Return the trace for a call of the decorated function."""
        fields = self._fields | {
            "model": self.model,
            "session": self.session,
            "subject": self.subject,
            "status": self.status,
            "metadata": self.metadata,
            "steps": self.steps,
        }
        input = self.input if self.input is not None else _input_of(signature, args, kwargs)
        return Trace(self._sink, self.agent, input, fields)

    def _leave(self, error: BaseException | None) -> None:
        """Close the trace; runs that begin from here on are outside of it. An `error` sets its
        status unless it is set."""
        self.closed = True
        RUNS.set(tuple(run for run in RUNS.get() if run is not self))
        if error is not None:
            is_error = isinstance(error, Exception)
            self.status = self.status or ("error" if is_error else "cancelled")
            self.metadata.setdefault("error", repr(error)[:LONGEST_ERROR])

    def _begin(self) -> Future[None]:
        try:
            return self._sink.begin(self.agent, plain(self.line()))
        except Exception as error:  # noqa: BLE001 - an odd value must not cost the app its answer
            answer: Future[None] = Future()
            answer.set_exception(error)
            return answer


def text_of(value: Any) -> str:
    """Return a text unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def now() -> str:
    return datetime.now(UTC).isoformat()


def _input_of(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Input | None:
    arguments = dict(signature.bind(*args, **kwargs).arguments)
    arguments.pop("self", None)
    arguments.pop("cls", None)
    first: Any = next(iter(arguments.values()), None)
    if isinstance(first, str) or _is_chat(first):
        return first  # type: ignore[no-any-return]
    return text_of(arguments)


def _is_chat(value: Any) -> bool:
    """Return whether the value is a list of chat messages."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(message, dict) and "role" in message for message in value)


def _first_not_none(output: Any, result: Any) -> Any:
    return result if output is None else output
