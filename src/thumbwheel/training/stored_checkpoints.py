"""Checkpoints of a run in the bucket of the home, from which another host goes on.

    runs/RUN/FENCE/step-N/   the files of checkpoint-N, and those of the run's folder
    runs/RUN/FENCE/step-0/   the spec alone, from the beginning of the run

Each start of a run, and each resumption, has a fence of its own. A checkpoint counts once its row
(`run_checkpoints`) is in the database, which is written only while the run still has that fence:
what a process uploads whose run was taken over is never read. The steps are those of the folder,
where old checkpoints go; so go their objects here.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import sqlalchemy as sa

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, Fenced, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.models.bucket import Bucket
from thumbwheel.training import store
from thumbwheel.training.checkpoint import MANIFEST, PREFIX, Checkpoints
from thumbwheel.training.rundir import SPEC, RunDir
from thumbwheel.training.types import Run, StoredCheckpoint

LOOK_EVERY = 1.0
"""Seconds between two looks for a new checkpoint."""
OF_FOLDER = (SPEC, "fitted.json", "metrics.jsonl")
"""Files of the run's folder that another host needs besides the checkpoint."""


def forget_stored(ws: Workspace, bucket: Bucket | None, run_id: str) -> None:
    """Delete the checkpoints of a run from the bucket; does nothing without one."""
    if bucket is None:
        return
    ws.db.write(lambda connection: store.forget_checkpoints(connection, run_id), ROWS)
    bucket.remove(_of_run(run_id))


def stored_runs(ws: Workspace) -> set[str]:
    """Return the ids of the runs that have checkpoints in the bucket."""
    with ws.db.read() as connection:
        return store.runs_with_checkpoints(connection)


class StoredCheckpoints:
    """The checkpoints of one attempt at a run. Inside `with`, a thread uploads each new one."""

    def __init__(self, ws: Workspace, bucket: Bucket, run_id: str, fence: int) -> None:
        self._ws, self._bucket = ws, bucket
        self._run_id, self._fence = run_id, fence
        self._folder = RunDir(ws.home.runs / run_id)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._problem = ""

    def __enter__(self) -> StoredCheckpoints:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._try_sync()  # the last checkpoint, of a run that was stopped

    def sync(self) -> None:
        """Upload what is new in the folder, and delete what is gone there.

        Raises Fenced if the run was taken over, StorageError if the bucket does not work.
        """
        with self._ws.db.read() as connection:
            stored = store.checkpoints_of(connection, self._run_id)
        steps = {checkpoint.step for checkpoint in stored}
        if 0 not in steps:
            self._store(0, {SPEC: self._folder.path / SPEC})
        present = {0, *Checkpoints(self._folder.checkpoints, 1).steps()}
        for step in sorted(present - steps):
            # a checkpoint that the training removed meanwhile is not needed
            with suppress(FileNotFoundError):
                self._store(step, self._files(step))
        self._forget([checkpoint for checkpoint in stored if checkpoint.step not in present])

    def _files(self, step: int) -> dict[str, Path]:
        folder = Checkpoints(self._folder.checkpoints, 1).folder_of(step)
        names = [MANIFEST, *json.loads((folder / MANIFEST).read_text(encoding="utf-8"))]
        files = {name: folder / name for name in names}
        for name in OF_FOLDER:
            if (self._folder.path / name).is_file():
                files[f"run-{name}"] = self._folder.path / name
        return files

    def _store(self, step: int, files: Mapping[str, Path]) -> None:
        prefix = _of_step(self._run_id, self._fence, step)
        hashes = {}
        for name, path in files.items():
            # the log of metrics grows while it is uploaded
            copy = self._folder.path / f".upload-{name}"
            try:
                shutil.copyfile(path, copy)
                hashes[name] = ids.file_hash(copy)
                if not self._bucket.upload(f"{prefix}/{name}", copy):
                    self._bucket.replace(f"{prefix}/{name}", copy)
            finally:
                copy.unlink(missing_ok=True)
        checkpoint = StoredCheckpoint(self._run_id, self._fence, step, hashes)

        def work(connection: sa.Connection) -> None:
            store.require_fence(connection, self._run_id, self._fence)
            store.add_checkpoint(connection, checkpoint)

        self._ws.db.write(work, ROWS)

    def _forget(self, old: list[StoredCheckpoint]) -> None:
        def work(connection: sa.Connection) -> None:
            store.require_fence(connection, self._run_id, self._fence)
            for checkpoint in old:
                store.forget_checkpoint(connection, checkpoint)

        if old:
            self._ws.db.write(work, ROWS)
        for checkpoint in old:
            self._bucket.remove(_of_step(self._run_id, checkpoint.fence, checkpoint.step))

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY):
            if not self._try_sync():
                return

    def _try_sync(self) -> bool:
        """Sync, and log what is wrong; return whether to go on."""
        try:
            self.sync()
        except Fenced as error:
            log.say(f"note: {error}")
            return False
        except (ThumbwheelError, OSError) as error:
            # the training does not depend on it, and the bucket may work again
            if str(error) != self._problem:
                log.say(f"note: checkpoints of run {self._run_id} stay on this host: {error}")
            self._problem = str(error)
        return True


def restore(ws: Workspace, bucket: Bucket, run: Run) -> None:
    """Fill the folder of a run with its spec and its stored checkpoints; damaged ones are logged
    and left out. The caller holds the lock of the folder.

    Raises Conflict if nothing of the run is in the bucket, StorageError if the bucket does not
    work.
    """
    folder = RunDir(ws.home.runs / run.id)
    with ws.db.read() as connection:
        stored = store.checkpoints_of(connection, run.id)
    # what an earlier attempt on this host left is older
    for path in (folder.checkpoints, folder.adapter):
        shutil.rmtree(path, ignore_errors=True)
    for name in ("status.json", *OF_FOLDER):
        (folder.path / name).unlink(missing_ok=True)
    folder.checkpoints.mkdir(parents=True)

    for checkpoint in stored:  # the newest first, whose files of the folder count
        target = folder.checkpoints / f"tmp-{checkpoint.step}"
        target.mkdir(exist_ok=True)
        with log.progress(f"fetching checkpoint {checkpoint.step}", None):
            damage = _fetch(bucket, checkpoint, target)
        if damage is not None:
            log.say(f"checkpoint {checkpoint.step} is damaged ({damage}); it is left out")
            shutil.rmtree(target)
            continue
        for name in OF_FOLDER:
            for source in (target / f"run-{name}", target / name):
                if source.exists() and not (folder.path / name).exists():
                    source.replace(folder.path / name)
                source.unlink(missing_ok=True)
        if checkpoint.step:
            target.rename(folder.checkpoints / f"{PREFIX}{checkpoint.step}")
        else:
            shutil.rmtree(target)
    if not (folder.path / SPEC).exists():
        raise Conflict(
            f"run {run.id!r}",
            "nothing of it is in the bucket: it was begun before the blobs were there, or its "
            "host died before the first step",
            "Go on with it on its host, or start a new run, without --resume",
        )


def _fetch(bucket: Bucket, checkpoint: StoredCheckpoint, folder: Path) -> str | None:
    """Write the files of a checkpoint into a folder; return what is wrong with them, or None."""
    prefix = _of_step(checkpoint.run_id, checkpoint.fence, checkpoint.step)
    for name, sha256 in checkpoint.files.items():
        if Path(name).name != name:
            return f"{name!r} is no name of a file"
        actual = bucket.download(f"{prefix}/{name}", folder / name)
        if actual is None:
            return f"{name} is missing"
        if actual != sha256:
            return f"{name} has changed"
    return None


def _of_run(run_id: str) -> str:
    return f"runs/{run_id}"


def _of_step(run_id: str, fence: int, step: int) -> str:
    return f"{_of_run(run_id)}/{fence}/step-{step}"
