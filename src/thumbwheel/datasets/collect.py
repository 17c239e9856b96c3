"""From the database to spilled rows: in this process, or in several that share the prompts where
there is much to do.

Every process reads the same state of the database, its own range of prompts, in two steps: what its
prompts claim of the split (`split_assignment`), then, once the claims of all are settled, the rows.
Run as a module this is one of these processes. Does not live here: what the evidence is (`read_evidence`),
what becomes of the rows (`build`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.datasets import store
from thumbwheel.datasets.evidence import merged, read_evidence
from thumbwheel.datasets.files import SpillWriter
from thumbwheel.datasets.ledger_rewards import Reward
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.split_assignment import (
    SplitAssignment,
    assign_splits,
    combine_claims,
    loaded,
    saved,
)
from thumbwheel.datasets.types import DatasetConfig, Drop, Row, Tally
from thumbwheel.db.engine import Database
from thumbwheel.rewards.label import dominant_rater
from thumbwheel.rewards.types import DominantRater

SHARED = 50_000
"""Traces from which starting more processes pays."""
CLAIMS, ASSIGNED = "claims.npz", "assigned.npz"
"""What a process says of the split, and what came of it for all."""
PROCESSES = 4
"""Most processes: the later passes over the rows are not shared."""


@dataclass(frozen=True)
class CollectionJob:
    """What is collected. `first` and `last` bound the prompt ids of one process: from, and to
    before."""

    agent: str
    shape: str
    config: dict[str, Any]
    as_of: str | None
    first: str | None = None
    last: str | None = None

    @property
    def agent_id(self) -> str:
        """Of `agent`."""
        return ids.derived("agt", self.agent)


@dataclass
class Collected:
    """Where the rows lie, and what was met on the way. `prompts` counts those with a row, by split."""

    folders: list[Path] = field(default_factory=list)
    drops: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    prompts: Counter[str] = field(default_factory=Counter)
    watermark: dict[str, Any] = field(default_factory=dict)
    loudest: DominantRater | None = None

    def add(self, folder: Path, said: Mapping[str, Any]) -> None:
        """What one process reports of the rows in `folder`."""
        self.folders.append(folder)
        for name, counts in said.items():
            getattr(self, name).update(counts)


def collect(
    db: Database,
    agent: str,
    shape: str,
    config: DatasetConfig,
    as_of: datetime | None,
    folder: Path,
    values: Mapping[str, Reward] | None,
) -> Collected:
    """Spill the rows of `shape` below `folder`; `values`, trace -> reward, are those of the ledger
    where `config` asks for it.

    Raises StorageError where the disk is full or a process dies.
    """
    task = CollectionJob(
        agent, shape, config.model_dump(mode="json"), as_of.isoformat() if as_of else None
    )
    kind = SHAPES.get(shape)
    with db.read() as connection:
        one_voice = dominant_rater(connection, agent, as_of, config.scope())
        found = Collected(
            watermark=store.watermark(connection, task.agent_id, as_of), loudest=one_voice
        )
        if cuts := [] if kind.merges or values is not None else _cuts(connection, task.agent_id):
            bounds = zip([None, *cuts], [*cuts, None], strict=True)
            tasks = [
                CollectionJob(**(asdict(task) | {"first": first, "last": last}))
                for first, last in bounds
            ]
            if _shared(db, tasks, folder, store.state(connection, task.agent_id), config, found):
                return found
        assignment = assign_splits(
            connection, task.agent_id, config, config.scope(), unjudged=kind.unjudged
        )
        found.add(folder, _spill(connection, task, assignment, folder, values))
    return found


def _cuts(connection: sa.Connection, agent_id: str) -> list[str]:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    parts = min(cores, PROCESSES, 1 + store.trace_count(connection, agent_id) // SHARED)
    return store.cuts(connection, agent_id, parts) if parts > 1 else []


def _shared(
    db: Database,
    tasks: Sequence[CollectionJob],
    folder: Path,
    state: list[int],
    config: DatasetConfig,
    found: Collected,
) -> bool:
    """Let a process do each task; False, with nothing done, where one of them sees another state of
    the database."""
    with ExitStack() as stack:
        parts = [
            stack.enter_context(_Part(db, task, folder / f"part-{number}"))
            for number, task in enumerate(tasks)
        ]
        if any(answer != state for answer in [part.hear() for part in parts]):
            return False
        keys, places = combine_claims([loaded(part.folder / CLAIMS) for part in parts], config)
        saved({"keys": keys, "places": places}, folder / ASSIGNED)
        for part in parts:
            part.say(str(folder / ASSIGNED))
        for part in parts:
            found.add(part.folder, part.hear())
    return True


class _Part:
    """A process and its folder; JSON lines go to and fro. It ends when its input is closed."""

    def __init__(self, db: Database, task: CollectionJob, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = [
            sys.executable,
            "-P",
            "-m",
            "thumbwheel.datasets.collect",
            str(folder),
            str(db.path),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.say(asdict(task))

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def say(self, what: Any) -> None:
        """Send `what`."""
        assert self._process.stdin is not None  # noqa: S101 - narrows the type
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died()

    def hear(self) -> Any:
        """What it says next; raises StorageError where it has died."""
        assert self._process.stdout is not None  # noqa: S101 - narrows the type
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else self._died()

    def _died(self) -> None:
        self._process.kill()
        last = self._process.communicate()[1].strip().splitlines()[-1:]
        why = "; ".join(last) or f"exit code {self._process.returncode}"
        raise StorageError(
            "building a dataset",
            f"a process of it ended: {why}",
            "Free memory or disk space, then try again",
        )


def _spill(
    connection: sa.Connection,
    task: CollectionJob,
    assignment: SplitAssignment,
    folder: Path,
    values: Mapping[str, Reward] | None = None,
) -> dict[str, Counter[str]]:
    """The rows of a task into `folder`; returns what was dropped, noted, and prompts by split."""
    kind, config, tally = SHAPES.get(task.shape)(), assignment.config, Tally()
    spill, prompts = SpillWriter(folder, kind.row), Counter[str]()
    as_of = datetime.fromisoformat(task.as_of) if task.as_of else None
    scope = config.scope(task.first, task.last)
    every = read_evidence(
        connection,
        task.agent,
        config,
        tally,
        as_of,
        unjudged=kind.unjudged,
        assignment=assignment,
        scope=scope,
        values=values,
    )
    for evidence in merged(every, tally) if kind.merges else every:
        rows = []
        for found in kind.rows(evidence, config):
            if isinstance(found, Drop):
                tally.drops[found.reason] += 1
            else:
                rows.append(found)
        for row in _capped(rows, config, tally):
            spill.add(row)
        prompts[evidence.split] += bool(rows)
    spill.close()
    return {"drops": tally.drops, "notes": +tally.notes, "prompts": +prompts}


def _capped(rows: list[Row], config: DatasetConfig, tally: Tally) -> list[Row]:
    if config.per_prompt is None or len(rows) <= config.per_prompt:
        return rows
    tally.drops[f"more than {config.per_prompt} rows of one prompt"] += (
        len(rows) - config.per_prompt
    )
    return sorted(rows, key=lambda row: row.row_id)[: config.per_prompt]


def main(folder: Path, path: Path) -> None:
    """One of several processes: claim, wait until the claims of all are settled, spill."""

    def say(what: Any) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    task = CollectionJob(**json.loads(sys.stdin.readline()))
    config = DatasetConfig.model_validate(task.config)
    with Database(path, path.with_name("unused.lock")).read() as connection:
        state = store.state(connection, task.agent_id)
        scope, unjudged = config.scope(task.first, task.last), SHAPES.get(task.shape).unjudged
        assignment = SplitAssignment(connection, task.agent_id, config, scope, unjudged=unjudged)
        saved(assignment.claims(), folder / CLAIMS)
        say(state)
        if settled := sys.stdin.readline():
            arrays = loaded(Path(json.loads(settled)))
            assignment.settle(arrays["keys"], arrays["places"])
            say(_spill(connection, task, assignment, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
