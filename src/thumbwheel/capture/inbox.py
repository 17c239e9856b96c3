"""The inbox: the lines that apps, the gateway and the ingest of the server spooled (sdk/segment.py)
become rows; a line leaves the inbox only when it is stored or set aside.

A file is renamed away from its writer, who notices before it appends again; read by whoever holds
the renamed file's lock; and deleted after the commit. A crash in between leaves the renamed file;
the next drain reads it again and finds its own rows to be duplicates. `drain_inbox` does that once,
for commands; `Drainer` all the time, for the server.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO

from thumbwheel.capture import store
from thumbwheel.capture.ingest import LINES, SIZE, TARGETS, count_targets, link, save, scope_of
from thumbwheel.capture.span_store import (
    SettledRun,
    check_span,
    remove_spans,
    save_spans,
    settled_runs,
)
from thumbwheel.capture.store import LineResult
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.otlp.request import SPAN
from thumbwheel.importers.source import Item, Line, Refused, Row, row_of, text_of
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.importers.types import TraceRecord, Unreadable
from thumbwheel.sdk.disk import sync
from thumbwheel.sdk.spool_files import locked, oldest_age, take_files

logger = logging.getLogger("thumbwheel.inbox")

REJECTED = "rejected.jsonl"
"""Where the lines are that cannot be stored."""

PATIENCE = 2.0
"""Seconds that a command waits for a file that its writer, or another drain, is busy with."""

LINK_EVERY = 2.0
"""Seconds between two searches of the drainer for the targets of feedback that still waits, and for
runs whose spans are all there."""

TORN = "its writer was killed in the middle of it; it was never acknowledged"

RETRY = 1.0
"""Seconds before the drainer tries again what failed."""

LAST = 5.0
"""Seconds for what still waits when the server stops. The rest is on disk, and the next command or
server drains it."""

BUSY = 0.02
"""Seconds before the drainer looks again, while somebody waits for rows."""

STORED_WITHIN = 30.0
"""Seconds in which lines become rows, where somebody waits for that."""

LATE = 1.0
"""Seconds for which a line waited from which the drainer has a process drain the inbox, too: the
thread shares the interpreter with the requests that bring the lines."""

STANDSTILL = 10.0
"""Seconds for which a line waited, and nothing was stored, from which the drainer counts as
standing still. Under load lines may wait longer while others become rows."""


@dataclass(frozen=True)
class Spooled:
    """A line of the inbox; `agent` is empty if the line names no agent."""

    agent: str
    item: Item
    span: Row | None = None
    """Of a line that is a span: it waits for the rest of its run."""


def drain_inbox(ws: Workspace, *, everything: bool = False) -> list[str]:
    """Store the lines in the inbox and return messages for the user, none if it was empty.

    With `everything`, runs for which more spans may come are made into traces, too.
    """
    drain = _Drain(ws)
    files = take_files(ws.home.inbox)
    had_files = bool(files)
    end = time.monotonic() + PATIENCE
    while files := [path for path in files if not drain.drain(path)]:
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    drain.settle(everything=everything)
    drain.link()
    if had_files:
        sync(ws.home.inbox)
    messages = drain.messages()
    if files:
        messages.append(f"inbox: {len(files)} files are being drained by another process")
    return messages


class Unstored(OSError):
    """The database did not take lines in time. They are in the spool, and become rows later."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "the database does not take it at this moment")


@dataclass(frozen=True)
class _Waiting:
    """Somebody waits until what was spooled by now is stored."""

    stored: Future[None]
    since: float = field(default_factory=time.monotonic)


class Drainer:
    """Drains the inbox in a thread, from the beginning to the end of the block. Where lines wait
    longer than `LATE`, `command` with `--parent PID` drains it in a process beside the thread."""

    def __init__(self, ws: Workspace, every: float = 0.1, command: Sequence[str] = ()) -> None:
        self._ws, self._every, self._command = ws, every, command
        self._process: subprocess.Popen[bytes] | None = None
        self._counts_beside: Counter[str] = Counter()
        """Lines by what became of them in processes beside this one."""
        self._drain = _Drain(ws)
        self._over = threading.Event()
        self._wake = threading.Event()
        """Set when somebody waits for rows, and at the end."""
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="thumbwheel-drainer", daemon=True)
        self.failure: Exception | None = None
        """Why the last pass could not store everything; None where it could."""

    @property
    def counts(self) -> Counter[str]:
        """Lines by what became of them: stored, duplicates, erased, refused."""
        return self._drain.counts + self._counts_beside

    def lag(self) -> float:
        """Return the seconds since the oldest line that is not yet a row was spooled; 0 if there is
        none."""
        return oldest_age(self._ws.home.inbox)

    def resolve_when_stored(self, stored: Future[None]) -> None:
        """Resolve the future once all that is spooled now is in the database; Unstored if that
        takes too long, or the drainer ends before."""
        with self._lock:
            has_ended = self._ended
            if not has_ended:
                self._waiting.append(_Waiting(stored))
        if has_ended:
            _resolve(stored, Unstored())
        self._wake.set()

    def stands_still(self) -> bool:
        """Return whether lines have waited for `STANDSTILL` seconds while nothing was stored, or
        the drainer's thread has ended."""
        idle = time.monotonic() - self._drain.stored_at
        is_idle = idle > STANDSTILL and self.lag() > STANDSTILL
        return is_idle or not self._thread.is_alive()

    def __enter__(self) -> Drainer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drain.end = time.monotonic() + LAST
        self._over.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        linked = time.monotonic()
        while not self._over.is_set():
            if self.failure is None:
                # a file may have been busy for a moment
                pause = min(self._every, BUSY) if self._waiting else self._every
                self._wake.wait(pause)
                self._wake.clear()
            else:
                self._over.wait(RETRY)
            if self._over.is_set():
                break
            self._pass()
            if self._command and self.failure is None and self.lag() > LATE:
                self._attempt(self._start_process)
            if time.monotonic() - linked > LINK_EVERY:
                self._attempt(self._drain.settle)
                self._attempt(self._drain.link)
                linked = time.monotonic()
        self._end_process()
        # a database that somebody holds would make the stop wait for every step
        if self.failure is None and self._pass():
            self._attempt(self._drain.settle)
            self._attempt(self._drain.link)
        with self._lock:
            self._ended = True
            unstored, self._waiting = self._waiting, []
        for waiting in unstored:
            _resolve(waiting.stored, Unstored())

    def _start_process(self) -> None:
        """Start the process that drains, too, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        command = [*self._command, "--parent", str(os.getpid())]
        # A group of its own: Ctrl-C reaches the server, which ends the process.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
        )
        if self._process.stdout is not None:
            read = partial(self._read_counts, self._process.stdout, self._counts_beside)
            threading.Thread(target=read, daemon=True).start()

    def _read_counts(self, output: IO[bytes], before: Counter[str]) -> None:
        """Read what became of the lines of a process until it ends."""
        with output:
            for line in output:
                self._counts_beside = before + Counter(json.loads(line))

    def _end_process(self) -> None:
        """End the process. What it had taken is drained by whoever drains next."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _pass(self) -> bool:
        """Drain every file; a file that cannot be drained stays and holds up no other."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        files: list[Path] = []
        busy: list[Path] = []

        def drain(path: Path) -> None:
            if not self._drain.drain(path):
                busy.append(path)

        failure = self._attempt(lambda: files.extend(take_files(self._ws.home.inbox)))
        for path in files:
            failure = self._attempt(partial(drain, path)) or failure
        self.failure = failure
        self._answer(waiting, is_stored=failure is None and not busy)
        return failure is None

    def _answer(self, waiting: Sequence[_Waiting], is_stored: bool) -> None:
        """Answer those who wait for a pass that began after their lines were spooled."""
        still_waiting = []
        for request in waiting:
            if is_stored:
                _resolve(request.stored, None)
            elif time.monotonic() > request.since + STORED_WITHIN:
                _resolve(request.stored, Unstored())
            else:
                still_waiting.append(request)
        with self._lock:
            self._waiting = [*still_waiting, *self._waiting]

    def _attempt(self, step: Callable[[], object]) -> Exception | None:
        """Run `step` and return the error with which it failed, or None if it succeeded."""
        try:
            step()
        except (ThumbwheelError, OSError) as error:
            # a full disk is said once, not every second
            if self.failure is None or str(error) != str(self.failure):
                logger.error("the inbox waits: %s", error)
            return error
        except Exception as error:
            logger.exception("the inbox waits")
            return error
        return None


def _resolve(future: Future[None], error: Exception | None) -> None:
    """Resolve a future, unless whoever waited for it has left."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class _Drain:
    """Stores the lines of files and counts what became of them."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self.end = math.inf
        """When to leave the rest to the next drain (monotonic seconds)."""
        self.stored_at = -math.inf
        """When lines last became rows (monotonic seconds)."""
        self.counts: Counter[str] = Counter()
        self._first_reason = ""
        self._arrivals: dict[str, store.UnlinkedRecords] = {}
        self._linked: set[str] = set()
        """Agents of which all targets were looked at: an earlier process may have been killed."""
        self._incomplete: dict[tuple[str, str], datetime] = {}

    def drain(self, path: Path) -> bool:
        """Store the lines of a taken file and delete it. Return False if its writer or another
        drain holds it, or the time is over."""
        with locked(path) as file:
            if file is None:
                return not path.exists()
            refused = []
            for batch in _batches(file):
                if time.monotonic() > self.end:
                    return False  # whoever drains next finds what is stored already
                refused += self._store(batch)
                self.stored_at = time.monotonic()
            self._set_aside(refused)
            path.unlink()
        return True

    def link(self) -> None:
        """Link feedback of the drained agents to targets from another source, where the feedback
        or the target is new."""
        for agent in sorted(self._arrivals):
            arrivals = self._arrivals[agent] if agent in self._linked else None
            link(self._ws, scope_of(self._ws, agent, "sdk"), arrivals)
            self._linked.add(agent)
            del self._arrivals[agent]

    def messages(self) -> list[str]:
        """Return messages for the user; none if there was nothing to drain."""
        messages = []
        if self.counts.keys() - {"refused"}:
            message = f"inbox: {self.counts['stored']} lines stored"
            if self.counts["duplicates"]:
                message += f", {self.counts['duplicates']} were there already"
            if self.counts["erased"]:
                message += f", {self.counts['erased']} belong to what was erased and were dropped"
            messages.append(message)
        if self.counts["refused"]:
            rejected = self._ws.home.inbox / REJECTED
            messages.append(
                f"inbox: {self.counts['refused']} lines cannot be stored and are kept in "
                f"{rejected}; the first: {self._first_reason}"
            )
        return messages

    def _store(self, batch: Sequence[Spooled]) -> list[Refused]:
        """Store a batch and return the refused lines."""
        refused = []
        lines: dict[str, list[Line]] = {}
        spans: dict[str, list[Spooled]] = {}
        for spooled in batch:
            if isinstance(spooled.item, Refused):
                refused.append(spooled.item)
            elif spooled.span is not None:
                spans.setdefault(spooled.agent, []).append(spooled)
            elif isinstance(spooled.item, Line):
                lines.setdefault(spooled.agent, []).append(spooled.item)
        for agent, agent_spans in spans.items():
            refused += self._store_spans(agent, agent_spans)
        for agent, agent_lines in lines.items():
            refused += self._store_lines(agent, agent_lines)
        return refused

    def _store_spans(self, agent: str, spans: Sequence[Spooled]) -> list[Refused]:
        """Store spans until their runs are complete; return the spans at which the database
        fails."""
        agent_id = scope_of(self._ws, agent, "sdk").agent_id

        def save_all(part: Sequence[Spooled]) -> None:
            rows = [spooled.span for spooled in part if spooled.span is not None]
            self._ws.db.write(
                partial(save_spans, agent_id=agent_id, rows=rows), of_agent(agent_id, is_quiet=True)
            )

        try:
            save_all(spans)
        except ThumbwheelError:
            raise
        except Exception:
            logger.exception("spans of agent %r are stored one by one", agent)
        else:
            return []
        refused = []
        for spooled in spans:
            try:
                save_all([spooled])
            except ThumbwheelError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                line = spooled.item
                refused.append(Refused(line.number, f"it cannot be stored: {error!r}", line.text))
        return refused

    def settle(self, *, everything: bool = False) -> None:
        """Make traces of the runs whose spans are complete, with `everything` of all waiting
        runs."""
        while True:
            with self._ws.db.read() as connection:
                now = datetime.now(UTC)
                settled = settled_runs(connection, now, self._incomplete, everything=everything)
                runs = list(settled)
            for run in runs:
                self._settle_run(run)
            if not (everything and runs):
                return

    def _settle_run(self, run: SettledRun) -> None:
        item = run.item(0)
        scope = scope_of(self._ws, run.agent, "sdk")
        if isinstance(item, Line):
            records = [record for record in item.records if isinstance(record, TraceRecord)]
            complete = self._ws.db.write(
                partial(store.add_late_steps, scope=scope, records=records, senders=run.senders),
                of_agent(scope.agent_id, is_quiet=True),
            )
            rest = [record for record in item.records if record.external_id not in complete]
            self.counts["stored"] += bool(complete) and not rest
            if rest:
                self._set_aside(self._store_lines(run.agent, [replace(item, records=rest)]))
        elif isinstance(item, Refused):
            self._set_aside([item])
        self._ws.db.write(
            partial(remove_spans, agent_id=scope.agent_id, run=run),
            of_agent(scope.agent_id, is_quiet=True),
        )

    def _store_lines(self, agent: str, lines: list[Line]) -> list[Refused]:
        """Store the lines of an agent and return the refused ones."""
        results, refused = self._save(agent, lines)
        arrivals = self._arrivals.setdefault(agent, store.UnlinkedRecords())
        scope = scope_of(self._ws, agent, "sdk")
        for result in results:
            for record in result.new:
                arrivals.add(scope, record)
            self.counts["stored"] += bool(result.new)
            self.counts["duplicates"] += not (result.new or result.reason or result.erased)
            self.counts["erased"] += result.erased
            if result.reason:
                refused.append(Refused(result.line.number, result.reason, result.line.text))
        return refused

    def _save(self, agent: str, lines: list[Line]) -> tuple[list[LineResult], list[Refused]]:
        """Store the lines of an agent; return their results, and the lines at which the database
        fails."""
        scope = replace(scope_of(self._ws, agent, "sdk"), sender=None)  # the lines say it
        try:
            return save(self._ws, scope, lines), []
        except ThumbwheelError:
            raise
        except Exception:
            logger.exception("lines of agent %r are stored one by one", agent)
        results, failed = [], []
        for line in lines:
            try:
                results += save(self._ws, scope, [line])
            except ThumbwheelError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                failed.append(Refused(line.number, f"it cannot be stored: {error!r}", line.text))
        return results, failed

    def _set_aside(self, refused: list[Refused]) -> None:
        """Keep lines that cannot be stored in a file, on disk when this returns."""
        if not refused:
            return
        self._first_reason = self._first_reason or refused[0].reason
        self.counts["refused"] += len(refused)
        with (self._ws.home.inbox / REJECTED).open("a", encoding="utf-8") as file:
            file.write("".join(refusal.as_json() + "\n" for refusal in refused))
            file.flush()
            os.fsync(file.fileno())
        sync(self._ws.home.inbox)  # the file may be new


def _batches(file: BinaryIO) -> Iterator[list[Spooled]]:
    batch: list[Spooled] = []
    size = targets = 0
    for number, raw in enumerate(file, start=1):
        if raw.strip():
            spooled = _spooled(number, raw)
            batch.append(spooled)
            size += len(raw)
            targets += count_targets(spooled.item)
        if len(batch) >= LINES or size >= SIZE or targets >= TARGETS:
            yield batch
            batch, size, targets = [], 0, 0
    if batch:
        yield batch


def _spooled(number: int, raw: bytes) -> Spooled:
    text = text_of(raw.rstrip(b"\n"))
    if not raw.endswith(b"\n"):
        return Spooled("", Refused(number, TORN, text))
    try:
        row = row_of(raw)
        agent = row.pop("agent", None)
        if not isinstance(agent, str):
            raise Unreadable(f"agent {agent!r} is no name")
        slug = ids.slug_of(agent)
    except (Unreadable, InputError) as error:
        return Spooled("", Refused(number, str(error), text))
    if row.get("type") == SPAN:
        try:
            check_span(row)
        except Unreadable as error:
            return Spooled("", Refused(number, str(error), text))
        return Spooled(slug, Line(number, [], text), row)
    return Spooled(slug, SOURCE.item(number, row, text))
