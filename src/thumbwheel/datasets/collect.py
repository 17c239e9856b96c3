"""Collects the rows of a dataset from the database into spill files, in this process or, for large
agents, in several worker processes that share the prompts.

Every worker reads the same state of the database, and its own range of prompts, in two steps: first
the claims of its prompts on the split (`split_assignment`), then, once the claims of all workers
are combined, the rows. Run as a module, this file is such a worker. What evidence is, is in
`evidence`; what becomes of the rows in `build`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    assign_splits,
    combine_claims,
    load_arrays,
    save_arrays,
)
from thumbwheel.datasets.types import DatasetConfig, Drop, Row, Tally
from thumbwheel.db.dialects import opened_at
from thumbwheel.db.engine import Database
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import dominant_rater
from thumbwheel.rewards.types import DominantRater

TRACES_A_WORKER = 50_000
"""Traces from which starting another process pays."""
CLAIMS, ASSIGNED = "claims.npz", "assigned.npz"
"""Files: the claims of one worker, and the splits assigned to the prompts of all."""
MAX_WORKERS = 4
"""Most worker processes: the later passes over the rows are not shared."""


@dataclass(frozen=True)
class CollectionJob:
    """What one process collects: the prompt ids from `first` to before `last`."""

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
        """Add the rows of one process in `folder`, with its counters."""
        self.folders.append(folder)
        for name, counts in counters.items():
            getattr(self, name).update(counts)


def collect(
    db: Database,
    agent: Agent,
    shape: str,
    config: DatasetConfig,
    as_of: datetime | None,
    folder: Path,
    values: Mapping[str, TraceReward] | None,
) -> CollectedRows:
    """Spill the rows of `shape` below `folder`; `values`, trace id -> reward, are the ledger's
    rewards if `config` asks for them.

    Raises StorageError if the disk is full or a worker process dies.
    """
    until = as_of.isoformat() if as_of else None
    job = CollectionJob(agent.slug, shape, config.model_dump(mode="json"), until)
    shape_class = SHAPES.get(shape)
    with db.read() as connection:
        collected = CollectedRows(
            watermark=store.watermark(connection, job.learner.id, as_of),
            loudest=dominant_rater(connection, agent, as_of, config.scope()),
        )

        # A large agent is shared between workers, unless the shape needs all prompts together.
        cuts: list[str] = []
        if not shape_class.merges and values is None:
            cuts = _cuts(connection, job.learner.id)
        if cuts:
            bounds = pairwise([None, *cuts, None])
            jobs = [replace(job, first=first, last=last) for first, last in bounds]
            source = _RowSource(
                db.backend.secret_address,
                db.snapshot(connection),
                store.state(connection, job.learner.id),
            )
            if _collect_in_workers(source, jobs, folder, config, collected):
                return collected

        assignment = assign_splits(
            connection, job.learner.id, config, config.scope(), unjudged=shape_class.unjudged
        )
        collected.add(folder, _spill(connection, job, assignment, folder, values))
    return collected


def _cuts(connection: sa.Connection, agent_id: str) -> list[str]:
    """Return prompt ids that cut the agent into parts for the workers; empty if one process is
    enough."""
    workers = 1 + store.trace_count(connection, agent_id) // TRACES_A_WORKER
    parts = min(usable_cores(), MAX_WORKERS, workers)
    return store.cuts(connection, agent_id, parts) if parts > 1 else []


@dataclass(frozen=True)
class _RowSource:
    """What the workers read: a database, and the state that they have to see."""

    address: str = field(repr=False)
    """Where the database is; may hold a password."""
    snapshot: str | None
    state: list[int]
    """Where the database has no snapshots that processes can share, equal counts show that they see
    the same state."""


def _collect_in_workers(
    source: _RowSource,
    jobs: Sequence[CollectionJob],
    folder: Path,
    config: DatasetConfig,
    collected: CollectedRows,
) -> bool:
    """Run each job in a worker. Returns False, with nothing collected, if one of them sees another
    state of the database."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_Worker(source, job, folder / f"part-{number}"))
            for number, job in enumerate(jobs)
        ]
        states = [worker.receive() for worker in workers]
        if any(worker_state != source.state for worker_state in states):
            return False
        claims = [load_arrays(worker.folder / CLAIMS) for worker in workers]
        keys, assignments = combine_claims(claims, config)
        save_arrays({"keys": keys, "assignments": assignments}, folder / ASSIGNED)
        for worker in workers:
            worker.send(str(folder / ASSIGNED))
        for worker in workers:
            collected.add(worker.folder, worker.receive())
    return True


class _Worker:
    """A worker process and its folder. Messages are JSON lines; it ends when its input closes."""

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
    config = DatasetConfig.model_validate(job.config)
    database = Database(opened_at(source.address))
    with database.read(source.snapshot) as connection:
        state = store.state(connection, job.learner.id)
        scope, unjudged = config.scope(job.first, job.last), SHAPES.get(job.shape).unjudged
        assignment = SplitAssignment(connection, job.learner.id, config, scope, unjudged=unjudged)
        save_arrays(assignment.claims(), folder / CLAIMS)
        send(state)
        if assigned_path := sys.stdin.readline():
            arrays = load_arrays(Path(json.loads(assigned_path)))
            assignment.load(arrays["keys"], arrays["assignments"])
            send(_spill(connection, job, assignment, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
