"""`trace()` and `feedback()`: each call appends one JSON line to this process's file in the home's
inbox and returns when the line is on disk. With THUMBWHEEL_URL the lines go to that server instead
(`remote`).

Any `thumbwheel` command drains the inbox into the database. Where the disk refuses, a trace is
dropped with a warning, because an app must not fail for being recorded; feedback raises, because a
person's word must not be lost silently. Not here: what feedback may say (`judgement`), runs of an
agent step by step (`collector`).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import platformdirs

from thumbwheel.sdk.judgement import check_agent, check_feedback
from thumbwheel.sdk.plain import plain
from thumbwheel.sdk.segment import Segment
from thumbwheel.sdk.tracing import Input, Trace, now

if TYPE_CHECKING:
    from thumbwheel.sdk.remote import Remote

logger = logging.getLogger("thumbwheel.sdk")


def home() -> Path:
    """Return the home folder: `THUMBWHEEL_HOME`, else the per-user data directory."""
    folder = os.environ.get("THUMBWHEEL_HOME")
    if folder:
        return Path(folder).expanduser().resolve()
    return Path(platformdirs.user_data_dir("thumbwheel"))


@overload
def trace(
    agent: str, *, input: Input, output: str | None, id: str | None = None, **fields: Any
) -> str: ...


@overload
def trace(
    agent: str, *, input: Input | None = None, id: str | None = None, **fields: Any
) -> Trace: ...


def trace(agent: str, *, input: Input | None = None, **fields: Any) -> str | Trace:
    """Record one run of `agent`.

    With `output` the run is over: it is recorded now, and its id is returned, which `feedback()`
    takes. Without, the run is still to come: the returned `Trace` is a `with` or `async with` block
    around it, or a decorator of the function that does it.

    `input` is the user's text or the list of chat messages; `fields` (`session`, `subject`,
    `model`, `steps`, ...) are further keys of a trace line (docs: import format). A full or
    read-only disk raises nothing: the trace is lost, with a RuntimeWarning and a line in the log
    `thumbwheel.sdk`. Lone surrogates and NUL in input and output are replaced. Raises TypeError or
    ValueError for an invalid agent name and values that are no JSON.
    """
    check_agent(agent)
    run = Trace(_Sink(), agent, input, {k: v for k, v in fields.items() if k != "output"})
    if "output" not in fields:
        return run
    if input is None:
        raise TypeError("trace() with an output takes the input too")
    run.begin()
    # what was said may hold half characters and NUL; that is no mistake of the app
    run.input, run.output = plain(input), plain(fields["output"])
    record_or_drop(agent, run.line())
    return run.id


def feedback(
    agent: str,
    target: str | Sequence[str],
    *,
    rater: str | None = None,
    id: str | None = None,
    **signal: Any,
) -> str:
    """Record one judgement about `target`, a trace id (or two and more for `preference=INDEX`), and
    return its id.

    The signal is exactly one keyword: `thumb=True`, `rating=4`, `score=0.7`, `correction="text"`,
    `label="spam"`, `outcome=1.0`, `comment="text"` or `preference=0` (the index of the better
    target, None for a tie). `comment` may also stand beside another signal, as its remark; further
    keywords are keys of the line. Checks what an import would check: raises TypeError for none or
    two signals and for an unknown keyword, ValueError for an impossible value (`rating=9`). Raises
    OSError if the line cannot be written.
    """
    check_agent(agent)
    targets = [target] if isinstance(target, str) else list(target)
    kind = check_feedback(targets, rater, signal)
    line = {
        "type": "feedback",
        "id": id or uuid.uuid4().hex,
        "kind": kind,
        "value": signal.pop(kind),
        "targets": [{"trace": trace_id} for trace_id in targets],
        "rater": rater,
        "occurred_at": now(),
        **signal,
    }
    spool(agent, {key: value for key, value in line.items() if value is not None or key == "value"})
    return str(line["id"])


class _Sink:
    """Where finished traces go."""

    def begin(self, agent: str, line: Mapping[str, Any]) -> Future[None]:
        """Begin to record a trace, and return a future of its storage on the disk. With a server
        the future is done at once: no caller waits for the network."""
        answer = _submit(agent, line)
        if not os.environ.get("THUMBWHEEL_URL"):
            return answer
        answer.add_done_callback(partial(_warn, agent))
        is_sent: Future[None] = Future()
        is_sent.set_result(None)
        return is_sent

    def complain(self, agent: str, answer: Future[None]) -> None:
        """Warn, and log an error, if the trace was not recorded."""
        _warn(agent, answer)


def record_or_drop(agent: str, line: Mapping[str, Any]) -> None:
    """Record a trace; one that neither disk nor server takes is dropped, with a warning and a line
    in the log."""
    answer = _Sink().begin(agent, line)
    wait([answer])
    _warn(agent, answer)


def _warn(agent: str, answer: Future[None]) -> None:
    """Warn, and log an error, if the trace was not recorded."""
    error = answer.exception()
    if error is None:
        return
    why = str(error)
    if isinstance(error, OSError):
        why = f"{error.filename or home()}: {error.strerror or error}"
    text = f"a trace of {agent!r} is not recorded: {why}"
    logger.error(text)
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def spool(agent: str, line: Mapping[str, Any]) -> None:
    """Record `line`: on disk when this returns, or with the server. Safe for threads and processes.

    Raises OSError where neither takes it, ValueError where the server refuses it.
    """
    _submit(agent, line).result()


def flush(seconds: float = 10.0) -> bool:
    """Wait at most `seconds`, and return whether everything recorded before has arrived: at the
    server or, if that is unreachable, on this disk. Without a server, return True."""
    end = time.monotonic() + seconds
    has_arrived = True
    for remote in list(_REMOTES.values()):
        has_arrived &= remote.flush(max(0.0, end - time.monotonic()))
    return has_arrived


def _submit(agent: str, line: Mapping[str, Any]) -> Future[None]:
    """Submit a line to the server of THUMBWHEEL_URL, else to the inbox of the home, and return a
    future of its storage. Never blocks."""
    text = json.dumps({"agent": agent, **line}, ensure_ascii=False, allow_nan=False)
    data = text.encode("utf-8")
    url = os.environ.get("THUMBWHEEL_URL")
    if url:
        return _remote(url, os.environ.get("THUMBWHEEL_KEY")).send(line["type"], data)
    try:
        return _segment(home() / "inbox").append(data)
    except OSError as error:
        answer: Future[None] = Future()
        answer.set_exception(error)
        return answer


_SEGMENTS: dict[Path, Segment] = {}
_REMOTES: dict[tuple[str, str | None, Path], Remote] = {}
_GUARD = threading.RLock()  # a signal handler may record, too


def _segment(inbox: Path) -> Segment:
    with _GUARD:
        if inbox not in _SEGMENTS:
            _SEGMENTS[inbox] = Segment(inbox)
        return _SEGMENTS[inbox]


def _remote(url: str, key: str | None) -> Remote:
    name = url, key, home()
    with _GUARD:
        if name not in _REMOTES:
            from thumbwheel.sdk.remote import Remote  # http.client takes a while to import

            _REMOTES[name] = Remote(url, key, home() / "unsent")
            _at_end(_REMOTES[name].leave)
        return _REMOTES[name]


def _at_end(leave: Callable[[], None]) -> None:
    """Call `leave` at the end of the process, also of one that multiprocessing started: those end
    without atexit."""
    atexit.register(leave)
    multiprocessing_util = sys.modules.get("multiprocessing.util")
    if multiprocessing_util is not None:
        multiprocessing_util.Finalize(None, leave, exitpriority=0)


def _after_fork() -> None:
    """Give the child files and connections of its own."""
    global _GUARD
    _GUARD = threading.RLock()  # another thread of the parent may have held it
    for segment in _SEGMENTS.values():
        segment.abandon()
    for remote in _REMOTES.values():
        remote.abandon()
        atexit.unregister(remote.leave)
    _SEGMENTS.clear()
    _REMOTES.clear()


os.register_at_fork(after_in_child=_after_fork)
