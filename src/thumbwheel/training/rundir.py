"""The folder of one run: what the child is told, how it stands, its metrics, its lock. The only
thing that parent and child share.

    spec.json  rows.jsonl  status.json  metrics.jsonl  log.txt  lock  checkpoints/  adapter/

Small files are replaced atomically, so that a reader or a kill never meets half of one.
Checkpoints: checkpoint.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import files, ids
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import replace
from thumbwheel.core.locks import lock
from thumbwheel.training.types import RunSpec, RunState, Status


@dataclass(frozen=True)
class RunDir:
    """Paths and small files of a run."""

    path: Path

    @property
    def metrics(self) -> Path:
        """One JSON object a line: training steps and evaluations."""
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the child printed."""
        return self.path / "log.txt"

    @property
    def checkpoints(self) -> Path:
        """checkpoint-N folders."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The result: adapter and tokenizer files."""
        return self.path / "adapter"

    @property
    def rows(self) -> Path:
        """The rows of the run, train and dev."""
        return self.path / "rows.jsonl"

    def create(self, spec: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> RunSpec:
        """Make the folder with `rows` and the spec, which gets the hash of the rows."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with self.rows.open("w", encoding="utf-8") as out:
                out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            run_spec = RunSpec(**spec, rows_sha256=ids.file_hash(self.rows))
            replace(self.path / "spec.json", json.dumps(asdict(run_spec), indent=2))
        except OSError as error:
            raise unwritable(self.path, error) from error
        return run_spec

    def fitted(self) -> dict[str, Any]:
        """Settings that the run came down to when it began, so that it goes on with the same rows;
        none where nothing is known."""
        try:
            return dict(json.loads((self.path / "fitted.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def write_fitted(self, settings: Mapping[str, Any]) -> None:
        """Keep them; raises StorageError for a full disk."""
        try:
            replace(self.path / "fitted.json", json.dumps(settings))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def spec(self) -> RunSpec:
        """What the run was told; raises StorageError where it is missing or damaged, or the rows
        have changed since."""
        try:
            spec = RunSpec(**json.loads((self.path / "spec.json").read_text(encoding="utf-8")))
            same = ids.file_hash(self.rows) == spec.rows_sha256
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(
                f"run folder {str(self.path)!r}",
                f"its spec cannot be read: {error}",
                "Start a new run",
            ) from None
        if not same:
            raise StorageError(
                f"{str(self.rows)!r}",
                "the rows are not those that the run started with",
                "Start a new run",
            )
        return spec

    def read_rows(self) -> list[dict[str, Any]]:
        """The rows, each with its `split`."""
        with self.rows.open(encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    def write_status(self, status: Status) -> None:
        """Replace the status; raises StorageError for a full disk."""
        try:
            replace(self.path / "status.json", json.dumps(status.to_json(), indent=2, default=str))
        except OSError as error:
            raise unwritable(self.path, error) from error

    def status(self) -> Status | None:
        """The last status; None before the first."""
        try:
            fields = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return Status(**fields | {"state": RunState(fields["state"])})

    def lock(self) -> int:
        """Take the run for this process; the returned handle holds it until every copy is closed.
        Raises Conflict when it is taken."""
        why = "another process is training it at this moment"
        return lock(self.path / "lock", f"run {self.path.name!r}", why)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines of metrics."""
        return list(_lines(self.metrics))

    def forget_metrics_after(self, step: int) -> None:
        """Drop the lines of steps that a resumed run will do again, and half a line that a kill
        left."""
        lines = [line for line in _lines(self.metrics) if line["step"] <= step]
        replace(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def unwritable(path: Path, error: BaseException) -> StorageError:
    """The error for a run folder or checkpoint that could not be written."""
    fix = "Free space or make the home writable, then go on with --resume RUN"
    return files.unwritable(repr(str(path)), error, fix)
