"""`trace()` and `feedback()`: each call appends one JSON line to a spool in the home's inbox and
returns when the line is on disk.

Any `thumbwheel` command drains the inbox into the database. Where the disk refuses, a trace is
dropped with a warning, because an app must not fail for being recorded; feedback raises, because a
person's word must not be lost silently. Not here: what feedback may say (`judgement`), runs of an
agent step by step (`collector`).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from thumbwheel.sdk.disk import is_file_at, sync
from thumbwheel.sdk.judgement import check_agent, check_feedback

logger = logging.getLogger("thumbwheel.sdk")


def home() -> Path:
    """The home folder: `THUMBWHEEL_HOME`, else the per-user data directory."""
    folder = os.environ.get("THUMBWHEEL_HOME")
    if folder:
        return Path(folder).expanduser().resolve()
    return Path(platformdirs.user_data_dir("thumbwheel"))


def trace(
    agent: str,
    *,
    input: str | Sequence[Mapping[str, Any]],
    output: str | None,
    id: str | None = None,
    session: str | None = None,
    subject: str | None = None,
    model: str | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
    **fields: Any,
) -> str:
    """Record one run of `agent` and return its id, which `feedback()` takes.

    `input` is the user's text or the list of chat messages; `fields` are further keys of a trace
    line (docs: import format). A full or read-only disk raises nothing: the trace is lost, with a
    RuntimeWarning and a line in the log `thumbwheel.sdk`. Raises TypeError or ValueError for what
    is no agent's name and no JSON.
    """
    check_agent(agent)
    messages = (
        [{"role": "user", "content": input}]
        if isinstance(input, str)
        else [dict(message) for message in input]
    )
    line = {
        "type": "trace",
        "id": id or uuid.uuid4().hex,
        "session": session,
        "subject": subject,
        "input": messages,
        "output": output,
        "model": model,
        "steps": [dict(step) for step in steps],
        "occurred_at": _now(),
        **fields,
    }
    record_or_drop(agent, {key: value for key, value in line.items() if value not in (None, [])})
    return str(line["id"])


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
    keywords are keys of the line. What an import would refuse is refused here: raises TypeError for
    none or two signals and for an unknown keyword, ValueError for an impossible value (`rating=9`).
    OSError where it cannot be written.
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
        "occurred_at": _now(),
        **signal,
    }
    spool(agent, {key: value for key, value in line.items() if value is not None or key == "value"})
    return str(line["id"])


def record_or_drop(agent: str, line: Mapping[str, Any]) -> None:
    """As `spool`; where the disk refuses, the line is dropped, with a warning and a line in the
    log."""
    try:
        spool(agent, line)
    except OSError as error:
        text = (
            f"a trace of {agent!r} is not recorded: {error.filename or home()}: "
            f"{error.strerror or error}"
        )
        logger.error(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def spool(agent: str, line: Mapping[str, Any]) -> None:
    """Append `line` to today's spool of the inbox; on disk when this returns. Safe for threads and
    processes."""
    inbox = home() / "inbox"
    # nobody else on the machine reads what is said in the app
    inbox.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    inbox.mkdir(mode=0o700, exist_ok=True)
    text = json.dumps({"agent": agent, **line}, ensure_ascii=False, allow_nan=False)
    data = text.encode("utf-8") + b"\n"
    while True:
        path = inbox / "spool.jsonl"
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not is_file_at(path, handle):
                continue  # a command took the file away for draining between open and lock
            _append(handle, data, inbox)
            return
        finally:
            os.close(handle)


def _append(handle: int, data: bytes, inbox: Path) -> None:
    start = os.fstat(handle).st_size
    if start > 0 and os.pread(handle, 1, start - 1) != b"\n":
        data = b"\n" + data  # a writer was killed in the middle of its line
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
        if start == 0:
            sync(inbox)  # a new file is on disk only when its name is
    except OSError:
        with suppress(OSError):  # what went wrong first is what is said
            os.ftruncate(handle, start)  # half a line would spoil the next one
        raise


def _now() -> str:
    return datetime.now(UTC).isoformat()
