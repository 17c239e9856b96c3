"""The folder of one run: what the child is told, how it stands, its metrics, its lock. The only
thing that parent and child share.

    spec.json  status.json  metrics.jsonl  log.txt  lock  checkpoints/  adapter/

Of several ranks the first one writes these; each other has status-N.json and log-N.txt.

The rows are no part of it: they are read from the files of the frozen dataset, which the spec names
by their hashes. Small files are replaced atomically, so that a reader or a kill never meets half of
one.
Checkpoints: checkpoint.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import files
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import replace
from thumbwheel.core.home_paths import located, portable
from thumbwheel.core.locks import lock
from thumbwheel.datasets.files import ParquetRows
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.models.blob_cache import hold
from thumbwheel.models.blob_stores.folder import FolderStore
from thumbwheel.training.types import JUDGED, JUDGED_SHAPE, RunSpec, RunState, Status

SPEC = "spec.json"
LONGEST_LINE = 65_536
"""Bytes of a line of metrics, at most."""


@dataclass(frozen=True)
class RunDir:
    """Paths and small files of a run, as one of its ranks has them."""

    path: Path
    rank: int = 0

    @property
    def metrics(self) -> Path:
        """One JSON object a line: training steps and evaluations."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the child printed."""
        return self.path / f"log{self._suffix}.txt"

    @property
    def driver_log(self) -> Path:
        """What was printed by the process that had other hosts train the run."""
        return self.path / "placement.txt"

    @property
    def checkpoints(self) -> Path:
        """checkpoint-N folders."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The result: adapter and tokenizer files."""
        return self.path / "adapter"

    @property
    def _status(self) -> Path:
        return self.path / f"status{self._suffix}.json"

    @property
    def _suffix(self) -> str:
        return f"-{self.rank}" if self.rank else ""

    @property
    def _home(self) -> Path:
        """The folder of the home, which may move with its runs."""
        return self.path.absolute().parents[1]

    def create(self, spec: RunSpec) -> None:
        """Create the folder with the spec."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            content = portable(asdict(spec), self._home)
            replace(self.path / SPEC, json.dumps(content, indent=2))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def fitted(self) -> dict[str, Any]:
        """Return the max_length that was fitted to memory when the run began and its choice of dev
        rows, so that it resumes with the same rows; empty if unknown."""
        try:
            return dict(json.loads((self.path / "fitted.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def write_fitted(self, settings: Mapping[str, Any]) -> None:
        """Write the fitted settings. Raises StorageError for a full disk."""
        try:
            replace(self.path / "fitted.json", json.dumps(settings))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def spec(self) -> RunSpec:
        """Read the spec that the run was started with. Raises StorageError if it is missing or
        damaged."""
        try:
            content = json.loads((self.path / SPEC).read_text(encoding="utf-8"))
            return RunSpec(**located(content, self._home))
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(
                f"run folder {str(self.path)!r}",
                f"its spec cannot be read: {error}",
                "Start a new run",
            ) from None

    def write_status(self, status: Status) -> None:
        """Replace the status. Raises StorageError for a full disk."""
        try:
            replace(self._status, json.dumps(status.to_json(), indent=2, default=str))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def status(self) -> Status | None:
        """Return the last status, or None before the first."""
        try:
            fields = json.loads(self._status.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Status(**fields | {"state": RunState(fields["state"])})

    def lock(self) -> int:
        """Lock the run for this process; the returned handle holds the lock until every copy is
        closed. Raises Conflict if it is taken."""
        why = "another process is training it at this moment"
        return lock(self.path / "lock", f"run {self.path.name!r}", why)

    def read_metrics(self, skip: int = 0) -> list[dict[str, Any]]:
        """Return all complete lines of metrics after the first `skip`."""
        return list(_lines(self.metrics, skip))

    def last_step(self) -> int:
        """Return the step of the last complete line of metrics, or 0 if there is none yet."""
        try:
            return int(json.loads(self.newest_lines()[-1])["step"])
        except (IndexError, ValueError, KeyError, TypeError):
            return 0

    def newest_lines(self) -> list[bytes]:
        """Return the complete lines of metrics in the last LONGEST_LINE bytes, the newest last;
        none if there is none yet."""
        try:
            with self.metrics.open("rb") as file:
                # with the byte before, which tells whether a line begins there
                start = max(0, self.metrics.stat().st_size - LONGEST_LINE - 1)
                file.seek(start)
                content = file.read()
        except OSError:
            return []
        if start:
            _, _, content = content.partition(b"\n")
        complete, _, _ = content.rpartition(b"\n")
        return complete.split(b"\n") if complete else []

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines of steps that a resumed run will repeat, and the half line that a kill
        left."""
        lines = [line for line in _lines(self.metrics) if line["step"] <= step]
        replace(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))


def open_rows(spec: RunSpec) -> dict[str, ParquetRows]:
    """Return split -> its rows, from the files that the run started with. Raises StorageError for
    one that is damaged or gone, as after an erasure."""
    blobs, rows = FolderStore(Path(spec.blobs)), {}
    for split, sha256 in spec.files.items():
        shape = JUDGED_SHAPE if split == JUDGED else spec.shape
        try:
            path = blobs.path(sha256)
            hold(path)
        except StorageError as error:
            raise StorageError(
                f"rows of split {split!r} of run {spec.run_id!r}",
                f"they differ from those that the run started with: {error.why}",
                "Start a new run",
            ) from error
        rows[split] = ParquetRows(path, SHAPES.get(shape).row)
    return rows


def _lines(path: Path, skip: int = 0) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True)[skip:]:
        if line.endswith(b"\n"):
            yield json.loads(line)


def unwritable(path: Path, error: BaseException) -> StorageError:
    """Return the error for a run folder or checkpoint that could not be written."""
    fix = "Free space or make the home writable, then go on with --resume RUN"
    return files.unwritable(repr(str(path)), error, fix)
