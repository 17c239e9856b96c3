"""Imports: from the items of a source to durable rows, in batches, with a report that accounts for
every line.

Lives here: `ingest`, `rehearse` (read, store nothing). Not here: which source reads a file
(`detect.py`), the sdk's spool (`inbox.py`), formats (`sources/`), SQL (`store.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture import store
from thumbwheel.capture.prepare import PreparedLines, named_versions, prepare
from thumbwheel.capture.rows import Scope, case_objection
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, ThumbwheelError
from thumbwheel.core.seal import read_seal
from thumbwheel.db.batches import batches
from thumbwheel.db.workspace import IMPORTED, CaseRule, Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.importers.counterparts import Message, SourceAnswer
from thumbwheel.importers.detect import Options, advice, source_of
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.location import Address
from thumbwheel.importers.server_api import Connection, Position, is_server, server_name
from thumbwheel.importers.source import (
    Item,
    JsonLines,
    LeftOut,
    Line,
    ReadsColumns,
    ReadsServers,
    ReadsWholeTables,
    Refused,
    Source,
)
from thumbwheel.importers.types import (
    FeedbackRecord,
    TraceRecord,
    naive_times,
)
from thumbwheel.models.versions import ensure_agent

LINES, SIZE, TARGETS = 500, 8 * 2**20, 1_000
"""A batch, which is on disk before the next is read, ends at so many lines, characters, or targets
of feedback."""

PIECE_SECONDS, FEWEST_LINES, MOST_LINES = 0.02, 10, 250
"""Where a writer keeps all others waiting, a batch is written in pieces that take about so long,
within these numbers of lines. Others get their turn between two pieces."""


def ingest(
    ws: Workspace,
    agent: str,
    source: str,
    path: Path,
    *,
    rejects: Path | None = None,
    reviewer: str | None = None,
    on_position: OnPosition = ignore_position,
    options: Options | None = None,
) -> ImportReport:
    """Import the file at `path` for `agent` and return the report. Importing twice adds nothing;
    after a crash the same call completes the import.

    `reviewer` vouches that the cases in it are gold; `rejects` gets every refused line;
    `on_position` gets the position in bytes; `options` has the meanings of its columns. Raises
    InputError for a file that cannot be read as a whole or holds nothing that the source
    understands; StorageError if the disk or the database refuses, with the earlier batches kept.
    """
    ids.slug(agent)
    options = options or Options()
    reader = source_of(source, options)
    progress = ReadingProgress()
    if isinstance(reader, ReadsServers) and is_server(path):
        reader = reader.connected(_connection(ws, agent, source, path, options, progress))
    reader, report = _begin(reader, source, path, agent)
    is_whole_table = isinstance(path, Address) and isinstance(reader, ReadsWholeTables)
    in_table: set[str] = set()
    scope: Scope | None = None  # no agent is created for a file that holds no line of the source
    with ExitStack() as stack, naive_times(options.zone) as naive:
        items = reader.read(path, on_position)
        reject = _reject_writer(stack, path, rejects)
        for batch, failure in _batches(items):
            results: dict[int, store.LineResult] = {}
            lines = [item for item in batch if isinstance(item, Line)]
            if is_whole_table:
                in_table.update(_trace_names(lines))
            if lines:
                scope = scope or scope_of(ws, agent, source, reviewer, IMPORTED)
                results = {result.line.number: result for result in save(ws, scope, lines)}
            _account(batch, results, report, reject)
            if progress.position is not None and scope is not None:
                _save_position(ws, scope, path, progress.position)
            if failure is not None:
                raise failure
    _demand_readable(report, scope is not None, path)
    report.count_naive(naive, options.zone)
    scope = scope or scope_of(ws, agent, source, reviewer, IMPORTED)
    if progress.position is not None:
        _save_position(ws, scope, path, progress.position)  # what comes last may store nothing
    if is_whole_table:
        report.left_table = _left_table(ws, scope, path, options, in_table)
    link(ws, scope)
    return report


def _trace_names(lines: Iterable[Line]) -> Iterator[str]:
    for line in lines:
        for record in line.records:
            if isinstance(record, TraceRecord):
                yield record.external_id


def _left_table(
    ws: Workspace, scope: Scope, path: Path, options: Options, names: Set[str]
) -> list[str]:
    """Return the rows that the latest import of this table read and this one did not; remember the
    rows of this one."""
    table = f"{path} of {options.agent or 'all'}"
    with ws.db.read() as connection:
        position = store.position_of(connection, scope, table) or {}
    remember = partial(
        store.save_position, scope=scope, server=table, position={"rows": sorted(names)}
    )
    ws.db.write(remember, of_agent(scope.agent_id, is_quiet=True))
    return sorted(set(position.get("rows", [])) - names)


@dataclass
class ReadingProgress:
    """What the reading of a server has reached: everything before it has been yielded."""

    position: Position | None = None

    def reach(self, position: Position) -> None:
        self.position = position


def _connection(
    ws: Workspace, agent: str, source: str, path: Path, options: Options, progress: ReadingProgress
) -> Connection:
    """Return a connection that continues where the latest import of this address ended."""
    scope = Scope(ids.derived("agt", agent), agent, source)
    with ws.db.read() as connection:
        position = store.position_of(connection, scope, server_name(path))

    def stored(noun: str, names: Collection[str]) -> set[str]:
        with ws.db.read() as connection:
            return store.stored_names(connection, scope, noun, names)

    def recorded(traces: Sequence[TraceRecord]) -> list[tuple[Message, list[SourceAnswer]]]:
        with ws.db.read() as connection:
            return store.recorded_answers(connection, scope, traces)

    return Connection(options.key, position, stored, recorded, progress.reach)


def _save_position(ws: Workspace, scope: Scope, path: Path, position: Position) -> None:
    remember = partial(
        store.save_position, scope=scope, server=server_name(path), position=dict(position)
    )
    ws.db.write(remember, of_agent(scope.agent_id, is_quiet=True))


def save(ws: Workspace, scope: Scope, lines: Sequence[Line]) -> list[store.LineResult]:
    """Store `lines`; return the result of each once it is on disk."""
    versions: Mapping[str, str] = {}
    if next(named_versions(lines), None) is not None:
        with ws.db.read() as connection:
            versions = store.model_versions_of(connection, scope, lines)
    answers: list[Future[list[store.LineResult]]] = []
    try:
        for piece in batches(lines, _lines_in_piece(ws)):
            # while the writer stores one piece, the next one is prepared
            prepared = prepare(scope, piece, versions, ws.db.dialect)
            work = partial(_save_piece, prepared=prepared)
            answers.append(ws.db.submit(work, of_agent(scope.agent_id, is_quiet=True)))
    finally:
        wait(answers)
    return list(chain.from_iterable(answer.result() for answer in answers))


def _lines_in_piece(ws: Workspace) -> int:
    return LINES if ws.db.backend.has_many_writers else _PACE.lines


def _save_piece(connection: sa.Connection, prepared: PreparedLines) -> list[store.LineResult]:
    began = time.monotonic()
    results = store.save_prepared(connection, prepared)
    _PACE.adapt(len(prepared.candidates), time.monotonic() - began)
    return results


class _Pace:
    """How many lines a piece has: as many as the last one would have written in its time."""

    def __init__(self) -> None:
        self.lines = 100

    def adapt(self, lines: int, seconds: float) -> None:
        possible = lines * PIECE_SECONDS / max(seconds, 1e-6)
        self.lines = round(min(max(possible, FEWEST_LINES), MOST_LINES))


_PACE = _Pace()


def ignore_item(item: Item) -> None:
    """Do nothing with a line that was read."""


def rehearse(
    agent: str,
    source: str,
    path: Path,
    *,
    case_rule: CaseRule,
    rejects: Path | None = None,
    on_position: OnPosition = ignore_position,
    on_item: Callable[[Item], None] = ignore_item,
    options: Options | None = None,
) -> ImportReport:
    """Return the report of a dry run of `ingest`: `records` counts the records in the file;
    `case_rule` decides which cases would be refused; `on_item` gets every line as it would be
    stored, refused or left out."""
    ids.slug(agent)
    options = options or Options()
    reader = source_of(source, options)
    if isinstance(reader, ReadsServers) and is_server(path):
        reader = reader.connected(Connection(options.key))
    reader, report = _begin(reader, source, path, agent)
    with ExitStack() as stack, naive_times(options.zone) as naive:
        reject = _reject_writer(stack, path, rejects)
        for item in reader.read(path, on_position):
            report.read += 1
            if isinstance(item, Line):
                reason = case_objection(item.records, case_rule)
                if reason is not None:
                    item = Refused(item.number, reason, item.text)
            on_item(item)
            if isinstance(item, Line):
                report.count_records(item.records)
                report.count_line(item)
            elif isinstance(item, LeftOut):
                report.left_out[item.reason] += 1
            else:
                report.refuse(item)
                reject(item)
    _demand_readable(report, report.read > report.refused + report.left_out.total(), path)
    report.count_naive(naive, options.zone)
    return report


def _begin(reader: Source, source: str, path: Path, agent: str) -> tuple[Source, ImportReport]:
    """Return the source for this file, and its report, still without counts. It says what the
    columns of a table are taken for, and warns about a file that should be next to this one and is
    missing."""
    report = ImportReport(source, str(path), agent)
    missing = reader.missing(path) if isinstance(reader, JsonLines) and reader.missing else None
    if missing:
        report.warnings.append(missing)
    if isinstance(reader, ReadsColumns):
        reader, report.columns = reader.mapped(path)
    return reader, report


def scope_of(
    ws: Workspace,
    agent: str,
    source: str,
    reviewer: str | None = None,
    sender: str | None = None,
) -> Scope:
    """Return the scope of `source` under `agent`; create the agent if it is new."""
    return scope_under(ws, ensure_agent(ws, agent), agent, source, reviewer, sender)


def scope_under(
    ws: Workspace,
    agent_id: str,
    agent: str,
    source: str,
    reviewer: str | None = None,
    sender: str | None = None,
) -> Scope:
    """Return the scope of `source` under an existing agent; `sender` defaults to the sender of
    `ws`."""
    return Scope(
        agent_id,
        agent,
        source,
        reviewer,
        read_seal(ws.home.secret),
        read_seal(ws.home.signing),
        ws.case_rule,
        sender=sender or ws.sender,
    )


def _demand_readable(report: ImportReport, readable: bool, path: Path) -> None:
    if readable or (is_server(path) and not report.refused):
        return
    if report.left_out and not report.refused:
        reasons = "; ".join(
            f"{count} lines: {reason}" for reason, count in report.left_out.most_common(5)
        )
        raise InputError(
            f"file {report.path!r}",
            f"it contains nothing of that agent ({reasons})",
            "Name another agent",
        )
    first = "; ".join(
        f"line {refusal['number']}: {refusal['reason']}" for refusal in report.refusals[:3]
    )
    raise InputError(
        f"file {report.path!r}",
        f"none of its {report.refused} lines is of source {report.source!r} ({first})",
        f"{advice(path, report.source)}See the lines that a source takes: thumbwheel import --help",
    )


Reject = Callable[[Refused], Any]
"""Takes a refused line to the file of `--rejects`."""


def _reject_writer(stack: ExitStack, path: Path, rejects: Path | None) -> Reject:
    """Return a function that writes refused lines into the file `rejects`, one JSON object each;
    without such a file it does nothing. Raises InputError."""
    if rejects is None:
        return lambda refusal: None
    try:
        if rejects.exists() and path.exists() and rejects.samefile(path):
            raise InputError(
                f"--rejects {str(rejects)!r}",
                "it is the file that is imported",
                "Name another file",
            )
        file = stack.enter_context(rejects.open("w", encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--rejects {str(rejects)!r}",
            error.strerror or str(error),
            "Name a file that can be written",
        ) from None
    return lambda refusal: file.write(refusal.as_json() + "\n")


def count_targets(item: Item) -> int:
    """Return how many targets the feedback of a line has."""
    if not isinstance(item, Line):
        return 0
    return sum(len(record.targets) for record in item.records if isinstance(record, FeedbackRecord))


def _batches(items: Iterator[Item]) -> Iterator[tuple[list[Item], ThumbwheelError | None]]:
    """Yield (batch, error): the error that ended the file comes with the last batch, so that the
    items before it are stored first; else it is None."""
    batch: list[Item] = []
    size = targets = 0
    try:
        for item in items:
            batch.append(item)
            size += len(item.text)
            targets += count_targets(item)
            if len(batch) >= LINES or size >= SIZE or targets >= TARGETS:
                yield batch, None
                batch, size, targets = [], 0, 0
    except ThumbwheelError as error:
        yield batch, error
        return
    if batch:
        yield batch, None


def _account(
    batch: list[Item], results: Mapping[int, store.LineResult], report: ImportReport, reject: Reject
) -> None:
    """Count the results of a batch in the report; `results` maps the numbers of its lines to their
    results."""
    for item in batch:
        report.read += 1
        refusal = item if isinstance(item, Refused) else None
        if isinstance(item, LeftOut):
            report.left_out[item.reason] += 1
        if isinstance(item, Line):
            report.count_line(item)
            result = results[item.number]
            if result.reason:
                refusal = Refused(item.number, result.reason, item.text)
            report.count_records(result.new)
            report.stored += bool(result.new)
            report.erased += result.erased
            report.duplicates += not (result.new or result.erased or refusal)
        if refusal:
            report.refuse(refusal)
            reject(refusal)


def link(ws: Workspace, scope: Scope, arrivals: store.UnlinkedRecords | None = None) -> None:
    """Link feedback whose target is missing to the target of the same name from another source: all
    such feedback, or that which these arrivals may link."""
    with ws.db.read() as connection:
        sources = store.sources_of(connection, scope)
        if not sources:
            return
        waiting = store.waiting_for_other_sources(connection, scope, sources, arrivals)
    for feedback_ids in batches(waiting, store.PAGE):
        ws.db.write(
            partial(
                store.link_across_sources, scope=scope, sources=sources, feedback_ids=feedback_ids
            ),
            of_agent(scope.agent_id, is_quiet=True),
        )
