"""Files that are complete or absent, and locks between processes."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.waiting import until
from thumbwheel.core import files, locks
from thumbwheel.core.errors import Conflict, InputError


def test_a_file_is_replaced_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    files.replace(path, "one")
    files.replace(path, "two \ud800", mode=0o600, errors="backslashreplace")
    assert path.read_text() == "two \\ud800" and os.listdir(tmp_path) == ["state.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    files.replace(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.replace(path, "new \ud800")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        files.replace(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["state.json"]
    error = files.unwritable("the state", raised.value)
    assert str(error) == (
        "the state: it cannot be written: No space left on device. Free space, then try again"
    )
    assert "only a part of it (zip\n" not in str(files.unwritable("it", ValueError("zip\nmore")))


def test_an_output_that_cannot_be_written_names_its_option(tmp_path: Path) -> None:
    files.write_output("--out", tmp_path / "new.txt", "text")
    assert (tmp_path / "new.txt").read_text() == "text"
    with pytest.raises(InputError) as failure:
        files.write_output("--out", tmp_path, b"")
    assert str(failure.value).startswith(f"--out '{tmp_path}': Is a directory")


def test_a_lock_is_held_by_one_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        locks.try_lock(path, create=False)
    handle = locks.lock(path, "the run", "another process has it")
    assert locks.try_lock(path) is None
    with pytest.raises(Conflict, match="the run: another process has it"):
        locks.lock(path, "the run", "another process has it")
    os.close(handle)
    with locks.wait_for(path):
        assert locks.try_lock(path) is None
    os.close(locks.lock(path, "the run", "nobody has it"))


def fair(path: Path, seconds: float = 60.0) -> AbstractContextManager[None]:
    return locks.FairLock(path).hold(seconds, notice_after=60, notice=lambda: None)


WAITING = """
import sys
from pathlib import Path
from thumbwheel.core.locks import FairLock
lock, log = FairLock(Path(sys.argv[1])), open(sys.argv[2], "a", buffering=1)
for _ in sys.stdin:
    with lock.hold(60, notice_after=60, notice=lambda: None):
        log.write("waited\\n")
"""


def test_who_takes_a_lock_again_and_again_keeps_nobody_out(tmp_path: Path) -> None:
    path, log = tmp_path / "lock", tmp_path / "log"
    command = [sys.executable, "-c", WAITING, path, log]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdin
        for turns in range(1, 16):
            with fair(path, 60):
                waiting.stdin.write("\n")
                waiting.stdin.flush()
                until(lambda: _is_held(path.with_suffix(".queue")), seconds=60)
            with fair(path, 60):
                assert log.read_text().splitlines() == ["waited"] * turns


def _is_held(path: Path) -> bool:
    handle = locks.try_lock(path)
    if handle is not None:
        os.close(handle)
    return handle is None


HOLDING = """
import sys, time
from pathlib import Path
from thumbwheel.core.locks import FairLock
with FairLock(Path(sys.argv[1])).hold(60, notice_after=60, notice=lambda: None):
    print(flush=True)
    time.sleep(60)
"""


def test_the_end_of_a_killed_process_frees_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDING, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(TimeoutError), fair(path, 0.05):
            pass
        holder.kill()
    with fair(path):
        pass


FORKING = """
import os, sys, time
from pathlib import Path
from thumbwheel.core.locks import FairLock
with FairLock(Path(sys.argv[1])).hold(60, notice_after=60, notice=lambda: None):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
print(flush=True)
time.sleep(60)
"""


def test_a_process_that_was_forked_meanwhile_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", FORKING, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with fair(path):
                pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_who_gives_up_waiting_neither_blocks_others_nor_loses_the_turn(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waiting = locks.FairLock(path)
    notices: list[str] = []
    with fair(path):
        for _ in range(3):
            with (
                pytest.raises(TimeoutError),
                waiting.hold(0.05, notice_after=0.01, notice=lambda: notices.append("waits")),
            ):
                pass
    assert notices == ["waits"] * 3
    assert sum(thread.name == "thumbwheel-lock" for thread in threading.enumerate()) <= 1
    with fair(path):  # nobody holds it for the caller who gave up
        pass
    with waiting.hold(60, notice_after=60, notice=lambda: None):
        assert locks.try_lock(path) is None


def test_a_lock_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), fair(tmp_path / "missing" / "lock"):
        pass
