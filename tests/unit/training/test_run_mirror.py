"""The folder of a run that another host computes: whole, in order, and nothing of it twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.training import run_mirror
from thumbwheel.training.run_mirror import FileState, LocalFolder, RunMirror, send
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status


class Remote(LocalFolder):
    """A folder that counts what is read, and can change between a listing and a read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.n_bytes = 0
        self.gone: set[str] = set()

    def read(self, path: str, offset: int, size: int) -> bytes | None:
        content = None if path in self.gone else super().read(path, offset, size)
        self.n_bytes += len(content or b"")
        return content


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    run = RunDir(tmp_path / "there" / "run")
    run.checkpoints.mkdir(parents=True)
    return Remote(run.path)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = RunDir(tmp_path / "here" / "run")
    folder.checkpoints.mkdir(parents=True)
    return folder


def checkpoint(folder: Path, step: int, content: str) -> None:
    path = folder / "checkpoints" / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "weights").write_text(content)
    (path / "checkpoint.json").write_text(json.dumps({}))


def steps(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_files_come_and_grow_and_checkpoints_come_and_go(
    run: RunDir, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_mirror, "CHUNK", 1000)
    there = RunDir(remote.path)
    mirror = RunMirror(run, remote)
    there.write_status(Status(RunState.RUNNING, 1))
    there.metrics.write_text('{"step": 1}\n')
    (remote.path / "spec.json").write_text("of that host")
    (remote.path / "lock").touch()
    checkpoint(remote.path, 1, "x" * 5000)
    mirror.sync()
    assert run.status() == Status(RunState.RUNNING, 1)
    assert run.read_metrics() == [{"step": 1}]
    assert steps(run) == ["checkpoint-1"]
    assert (run.checkpoints / "checkpoint-1" / "weights").read_text() == "x" * 5000
    assert not (run.path / "spec.json").exists() and not (run.path / "lock").exists()

    # what is here is not read again, of a log only its end
    remote.n_bytes = 0
    inode = run.metrics.stat().st_ino
    with there.metrics.open("a") as stream:
        stream.write('{"step": 2}\n')
    mirror.sync()
    assert [line["step"] for line in run.read_metrics()] == [1, 2]
    assert run.metrics.stat().st_ino == inode
    assert remote.n_bytes < 1000

    # a log that was replaced by a shorter one
    there.forget_metrics_after(1)
    (remote.path / "checkpoints" / "checkpoint-1").rename(remote.path / "old")
    checkpoint(remote.path, 3, "y")
    there.write_status(Status(RunState.FINISHED, 3))
    there.adapter.mkdir()
    (there.adapter / "adapter.safetensors").write_text("z")
    mirror.sync()
    assert run.read_metrics() == [{"step": 1}]
    assert steps(run) == ["checkpoint-3"]
    assert (run.adapter / "adapter.safetensors").read_text() == "z"
    assert run.status() == Status(RunState.FINISHED, 3)


def test_a_checkpoint_that_goes_while_it_is_read_does_not_come(run: RunDir, remote: Remote) -> None:
    checkpoint(remote.path, 1, "x")
    remote.gone.add("checkpoints/checkpoint-1/weights")
    mirror = RunMirror(run, remote)
    mirror.sync()
    assert steps(run) == []
    remote.gone.clear()
    mirror.sync()
    assert steps(run) == ["checkpoint-1"]


def test_a_checkpoint_comes_after_its_metrics(run: RunDir, remote: Remote) -> None:
    checkpoint(remote.path, 1, "x")
    RunDir(remote.path).metrics.write_text('{"step": 1}\n')

    class Lost(Remote):
        def read(self, path: str, offset: int, size: int) -> bytes | None:
            if path == "metrics.jsonl":
                raise ConnectionError("the host is gone")
            return super().read(path, offset, size)

    with pytest.raises(ConnectionError):
        RunMirror(run, Lost(remote.path)).sync()
    assert steps(run) == []


def test_a_status_never_speaks_of_what_is_not_here(run: RunDir, remote: Remote) -> None:
    there = RunDir(remote.path)
    there.write_status(Status(RunState.RUNNING))

    class Late(Remote):
        def listing(self) -> dict[str, FileState]:
            files = super().listing()
            # the run ends after the files were listed
            there.write_status(Status(RunState.FINISHED))
            return files

    RunMirror(run, Late(remote.path)).sync()
    status: Any = run.status()
    assert status.state is RunState.RUNNING


def test_a_host_gets_what_a_resumed_run_needs_and_does_not_send_it_back(
    run: RunDir, remote: Remote
) -> None:
    run.metrics.write_text('{"step": 1}\n')
    run.write_fitted({"max_length": 64})
    run.write_status(Status(RunState.STOPPED, 1))
    checkpoint(run.path, 1, "x" * 5000)
    send(run, remote)
    there = RunDir(remote.path)
    assert steps(there) == ["checkpoint-1"]
    assert (there.fitted(), there.read_metrics()) == ({"max_length": 64}, [{"step": 1}])
    assert there.status() is None
    mirror = RunMirror(run, remote)
    mirror.skip_present()
    mirror.sync()
    assert remote.n_bytes == 0


def test_of_another_rank_only_its_status_and_its_log_come(run: RunDir, remote: Remote) -> None:
    RunDir(remote.path, 1).write_status(Status(RunState.FAILED, reason="no memory"))
    RunDir(remote.path, 1).log.write_text("what it printed")
    checkpoint(remote.path, 1, "x")
    (remote.path / "metrics.jsonl").write_text("{}\n")
    RunMirror(run, remote, "status-1.json", is_first=False).sync()
    status = RunDir(run.path, 1).status()
    assert status is not None and status.reason == "no memory"
    assert RunDir(run.path, 1).log.read_text() == "what it printed"
    assert steps(run) == [] and not run.metrics.exists()
