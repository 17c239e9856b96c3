"""Collects the rows of a dataset from the database into spill files: in this process, in several
processes that share the prompts of a large agent, or on several hosts (build_parts.py).

A range of prompts is collected in two steps: first the claims of its prompts on the split
(`split_assignment`), then, once the claims of all ranges are combined, the rows. All of them read
the same state of the database. Run as a module, this file is a process that collects a range. What
evidence is, is in `evidence`; what becomes of the rows in `build`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from thumbwheel.core.errors import StorageError
from thumbwheel.core.hardware import usable_cores
from thumbwheel.datasets import store
from thumbwheel.datasets.evidence import merge_prompts, read_evidence
from thumbwheel.datasets.files import SpillWriter
from thumbwheel.datasets.ledger_rewards import TraceReward
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.split_assignment import (
    SplitAssignment,
    combine_claims,
    load_arrays,
    save_arrays,
)
from thumbwheel.datasets.types import DatasetConfig, Drop, Row, Tally
from thumbwheel.db.dialects import opened_at
from thumbwheel.db.engine import Database
from thumbwheel.models.types import Agent
from thumbwheel.rewards.feedback_queries import prompt_ranges
from thumbwheel.rewards.types import DominantRater, PromptRange

if TYPE_CHECKING:
    import numpy as np

TRACES_A_WORKER = 50_000
"""Traces from which starting another process pays."""
CLAIMS, PROMPTS, ASSIGNED = "claims.npz", "prompts.npz", "assigned.npz"
"""Files: the claims and the prompts of one range, and the splits assigned to the prompts of all."""
MAX_WORKERS = 4
"""Most processes of a host: the later passes over the rows are not shared."""


@dataclass(frozen=True)
class CollectionJob:
    """What is collected: the prompt ids from `first` to before `last`."""

    agent: str
    shape: str
    config: dict[str, Any]
    as_of: str | None
    first: str | None = None
    last: str | None = None

    @property
    def learner(self) -> Agent:
        """The agent, which a worker process knows by its name."""
        return Agent.named(self.agent)

    @property
    def prompts(self) -> PromptRange:
        """The range of prompts."""
        return PromptRange(self.first, self.last)

    def of(self, prompts: PromptRange) -> CollectionJob:
        """Return the job for another range of prompts."""
        return replace(self, first=prompts.first, last=prompts.last)


@dataclass
class CollectedRows:
    """The folders of the rows, and what was counted on the way. `prompts` counts the prompts with a
    row, by split."""

    folders: list[Path] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    prompts: Counter[str] = field(default_factory=Counter)
    watermark: dict[str, Any] = field(default_factory=dict)
    loudest: DominantRater | None = None

    def add(self, folder: Path, counters: Mapping[str, Any]) -> None:
        """Add the rows of one range in `folder`, with its counters."""
        self.folders.append(folder)
        for name, counts in counters.items():
            getattr(self, name).update(counts)


class Ranges(Protocol):
    """Ranges of prompts that are collected side by side."""

    def claims(self) -> list[dict[str, np.ndarray]]:
        """Return what ties the prompts of each range, for `combine_claims`."""

    def rows(self, assigned: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Spill the rows, by the file with the splits of all prompts. Yield each folder with its
        counters of drops, notes, and prompts by split. Raises StorageError."""


@contextmanager
def local_ranges(
    db: Database,
    connection: sa.Connection,
    job: CollectionJob,
    folder: Path,
    *,
    snapshot: str | None = None,
    values: Mapping[str, TraceReward] | None = None,
    prompts: Path | None = None,
) -> Iterator[LocalRanges]:
    """Yield the ranges of a job as this host collects them: in processes, if there are enough
    traces for several, or in this one, through `connection`, whose state `snapshot` names. Given
    `prompts`, a file of prompts that were read before, they have no claims and read none.

    Raises StorageError if the disk is full or a process dies.
    """
    ranges = [job.prompts]
    if is_divisible(job, values):
        ranges = _ranges(connection, job)
    if len(ranges) > 1:
        source = _RowSource(
            db.backend.secret_address,
            snapshot or db.snapshot(connection),
            store.state(connection, job.learner.id),
            None if prompts is None else str(prompts),
        )
        with ExitStack() as stack:
            workers = [
                stack.enter_context(_Worker(source, job.of(part), folder / f"part-{number}"))
                for number, part in enumerate(ranges)
            ]
            states = [worker.receive() for worker in workers]
            if all(state == source.state for state in states):
                yield LocalRanges(workers)
                return
    yield LocalRanges([_Here(connection, job, folder, values, prompts)])


def is_divisible(job: CollectionJob, values: Mapping[str, TraceReward] | None) -> bool:
    """Return whether ranges of prompts can be collected apart: the shape does not merge prompts,
    and no rewards of the ledger are in the memory of this process."""
    return not SHAPES.get(job.shape).merges and values is None


def _ranges(connection: sa.Connection, job: CollectionJob) -> list[PromptRange]:
    """Return the range of each process."""
    n_traces = store.trace_count(connection, job.learner.id, job.prompts)
    n_ranges = min(usable_cores(), MAX_WORKERS, 1 + n_traces // TRACES_A_WORKER)
    return prompt_ranges(connection, job.learner.id, n_ranges, job.prompts)


def collect(ranges: Ranges, config: DatasetConfig, folder: Path, collected: CollectedRows) -> None:
    """Combine the claims of all ranges and let each spill its rows; `folder` is for what is between
    the two. Raises StorageError."""
    keys, assignments = combine_claims(ranges.claims(), config)
    assigned = folder / ASSIGNED
    save_arrays({"keys": keys, "assignments": assignments}, assigned)
    for rows_folder, counters in ranges.rows(assigned):
        collected.add(rows_folder, counters)


class LocalRanges:
    """Ranges that this host collects."""

    def __init__(self, collectors: Sequence[_Here | _Worker]) -> None:
        self._collectors = collectors

    def claims(self) -> list[dict[str, np.ndarray]]:
        return [collector.claims() for collector in self._collectors]

    def prompts(self) -> list[dict[str, np.ndarray]]:
        """Return the prompts of each range, with which others go on."""
        return [collector.prompts() for collector in self._collectors]

    def rows(self, assigned: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        for collector in self._collectors:
            collector.begin(assigned)
        for collector in self._collectors:
            yield collector.folder, collector.counters()


class _Here:
    """Collects a range in this process."""

    def __init__(
        self,
        connection: sa.Connection,
        job: CollectionJob,
        folder: Path,
        values: Mapping[str, TraceReward] | None = None,
        prompts: Path | None = None,
    ) -> None:
        self.folder = folder
        self._connection, self._job, self._values = connection, job, values
        self._assigned = Path()
        config = DatasetConfig.model_validate(job.config)
        if prompts is not None:
            self._part = SplitAssignment.restored(config, load_arrays(prompts))
            return
        scope, unjudged = config.scope(job.first, job.last), SHAPES.get(job.shape).unjudged
        self._part = SplitAssignment.read(
            connection, job.learner.id, config, scope, unjudged=unjudged
        )

    def claims(self) -> dict[str, np.ndarray]:
        return self._part.claims()

    def prompts(self) -> dict[str, np.ndarray]:
        return self._part.prompts()

    def begin(self, assigned: Path) -> None:
        self._assigned = assigned

    def counters(self) -> Mapping[str, Any]:
        arrays = load_arrays(self._assigned)
        self._part.load(arrays["keys"], arrays["assignments"])
        return _spill(self._connection, self._job, self._part, self.folder, self._values)


@dataclass(frozen=True)
class _RowSource:
    """What the workers read: a database, and the state that they have to see."""

    address: str = field(repr=False)
    """Where the database is; may hold a password."""
    snapshot: str | None
    state: list[int]
    """Where the database has no snapshots that processes can share, equal counts show that they see
    the same state."""
    prompts: str | None
    """The file of the prompts, if their claims were read before."""


class _Worker:
    """A process that collects a range, and its folder. Messages are JSON lines; it ends when its
    input closes."""

    def __init__(self, source: _RowSource, job: CollectionJob, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = [
            sys.executable,
            "-P",
            "-m",
            "thumbwheel.datasets.collect",
            str(folder),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # by its input, where no other user sees it, as a URL may hold a password
        self.send(asdict(source))
        self.send(asdict(job))

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def claims(self) -> dict[str, np.ndarray]:
        return load_arrays(self.folder / CLAIMS)

    def prompts(self) -> dict[str, np.ndarray]:
        return load_arrays(self.folder / PROMPTS)

    def begin(self, assigned: Path) -> None:
        self.send(str(assigned))

    def counters(self) -> Mapping[str, Any]:
        counters: Mapping[str, Any] = self.receive()
        return counters

    def send(self, message: Any) -> None:
        assert self._process.stdin is not None  # noqa: S101 - narrows the type
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died()

    def receive(self) -> Any:
        """Return the worker's next message. Raises StorageError if it has died."""
        assert self._process.stdout is not None  # noqa: S101 - narrows the type
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else self._died()

    def _died(self) -> None:
        self._process.kill()
        _, stderr = self._process.communicate()
        last_line = stderr.strip().splitlines()[-1:]
        why = "; ".join(last_line) or f"exit code {self._process.returncode}"
        raise StorageError(
            "building a dataset",
            f"a process of it ended: {why}",
            "Free memory or disk space, then try again",
        )


def _spill(
    connection: sa.Connection,
    job: CollectionJob,
    assignment: SplitAssignment,
    folder: Path,
    values: Mapping[str, TraceReward] | None = None,
) -> dict[str, Counter[str]]:
    """Write the rows of a job into `folder`; return counters of drops, notes, and prompts by
    split."""
    shape, config, tally = SHAPES.get(job.shape)(), assignment.config, Tally()
    evidence_stream = read_evidence(
        connection,
        job.learner,
        config,
        tally,
        datetime.fromisoformat(job.as_of) if job.as_of else None,
        unjudged=shape.unjudged,
        assignment=assignment,
        scope=config.scope(job.first, job.last),
        values=values,
    )
    if shape.merges:
        evidence_stream = merge_prompts(evidence_stream, tally)
    spill = SpillWriter(folder, shape.row)
    prompts = Counter[str]()
    for evidence in evidence_stream:
        rows = []
        for row in shape.rows(evidence, config):
            if isinstance(row, Drop):
                tally.drops[row.reason] += row.rows
            else:
                rows.append(row)
        for row in _capped(rows, config, tally):
            spill.add(row)
        prompts[evidence.split] += bool(rows)
    spill.close()
    return {"drops": tally.drops, "notes": +tally.notes, "prompts": +prompts}


def _capped(rows: list[Row], config: DatasetConfig, tally: Tally) -> list[Row]:
    if config.per_prompt is None or len(rows) <= config.per_prompt:
        return rows
    reason = f"more than {config.per_prompt} rows of one prompt"
    tally.drops[reason] += len(rows) - config.per_prompt
    return sorted(rows, key=lambda row: row.row_id)[: config.per_prompt]


def main(folder: Path) -> None:
    """Run a worker: write the claims, wait for the splits assigned to all prompts, spill the
    rows."""

    def send(message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    source = _RowSource(**json.loads(sys.stdin.readline()))
    job = CollectionJob(**json.loads(sys.stdin.readline()))
    database = Database(opened_at(source.address))
    with database.read(source.snapshot) as connection:
        state = store.state(connection, job.learner.id)
        prompts = None if source.prompts is None else Path(source.prompts)
        collector = _Here(connection, job, folder, None, prompts)
        if prompts is None:
            save_arrays(collector.claims(), folder / CLAIMS)
            save_arrays(collector.prompts(), folder / PROMPTS)
        send(state)
        if assigned_path := sys.stdin.readline():
            collector.begin(Path(json.loads(assigned_path)))
            send(collector.counters())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
