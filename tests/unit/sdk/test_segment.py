"""A segment: an answer means that the line is on disk, whoever appends, drains or is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until
from thumbwheel.sdk import segment as module
from thumbwheel.sdk.segment import Full, Segment


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    segment = Segment(tmp_path / "home" / "inbox")
    yield segment
    segment.close()


def files(segment: Segment) -> list[bytes]:
    return [path.read_bytes() for path in sorted(segment.inbox.iterdir())]


def test_an_answer_means_that_the_line_is_on_disk(segment: Segment) -> None:
    segment.append(b"a").result(60)
    assert files(segment) == [b"a\n"]
    segment.append(b"b").result(60)
    assert files(segment) == [b"a\nb\n"]
    assert {path.stat().st_mode & 0o777 for path in segment.inbox.iterdir()} == {0o600}
    assert segment.inbox.stat().st_mode & 0o777 == 0o700


def test_lines_that_wait_share_one_fsync(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    all_wait = threading.Event()
    fsync = os.fsync

    def slow(handle: int) -> None:
        synced.append(handle)
        all_wait.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    answers = [segment.append(b"%03d" % number) for number in range(200)]
    all_wait.set()
    for answer in answers:
        answer.result(60)
    assert b"".join(files(segment)) == b"".join(b"%03d\n" % number for number in range(200))
    assert len(synced) <= 5  # a new file costs one for its name


def test_where_the_disk_hangs_a_line_is_refused_at_once(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES", 10)
    fsync = os.fsync
    released = threading.Event()

    def hanging(handle: int) -> None:
        released.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", hanging)
    first = segment.append(b"first")
    until(first.running)
    answers = [first, *(segment.append(b"%d" % number) for number in range(10))]
    with pytest.raises(Full, match="too many lines wait"):
        segment.append(b"too many")
    released.set()
    for answer in answers:
        answer.result(60)
    assert b"".join(files(segment)).count(b"\n") == len(answers)
    monkeypatch.setattr(module, "SIZE", 100)
    with pytest.raises(Full):
        segment.append(b"x" * 101)


def test_a_file_that_was_taken_is_left_alone(segment: Segment) -> None:
    segment.append(b"a").result(60)
    (first,) = segment.inbox.iterdir()
    first.rename(segment.inbox / "draining")
    segment.append(b"b").result(60)
    assert (segment.inbox / "draining").read_bytes() == b"a\n"
    (second,) = set(segment.inbox.iterdir()) - {segment.inbox / "draining"}
    second.unlink()
    segment.append(b"c").result(60)
    assert sorted(files(segment)) == [b"a\n", b"c\n"]


def test_what_the_disk_refuses_is_the_answer_and_leaves_nothing_behind(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment.append(b"kept").result(60)
    write, fsync = os.write, os.fsync

    def full(handle: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data[:30])

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name, failing in (("write", full), ("fsync", broken)):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space|Input/output"):
                    segment.append(b"x" * 70).result(60)
        assert files(segment)[0] == b"kept\n"
        assert b"x" not in b"".join(files(segment))
    assert os.fsync is fsync
    segment.append(b"after").result(60)
    assert b"".join(files(segment)) == b"kept\nafter\n"


def test_a_really_full_and_a_read_only_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root only")
    segment = Segment(disk / "inbox")
    try:
        acknowledged = 0
        with pytest.raises(OSError, match="No space left"):
            for _ in range(100):
                segment.append(b"x" * 999).result(60)
                acknowledged += 1
        assert acknowledged
        assert b"".join(files(segment)) == (b"x" * 999 + b"\n") * acknowledged
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            segment.append(b"y").result(60)
        subprocess.run(["mount", "-o", "remount,rw,size=1m", str(disk)], check=True)
        segment.append(b"z").result(60)
        assert b"".join(files(segment)) == (b"x" * 999 + b"\n") * acknowledged + b"z\n"
    finally:
        segment.close()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_cancelled_line_is_not_written(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync
    goes_on = threading.Event()

    def held(handle: int) -> None:
        goes_on.wait(60)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", held)
    first = segment.append(b"a")
    until(first.running)
    second, third = segment.append(b"b"), segment.append(b"c")
    assert second.cancel() and not first.cancel()
    goes_on.set()
    third.result(60)
    assert b"".join(files(segment)) == b"a\nc\n"


def test_the_thread_ends_where_nothing_comes_and_begins_again(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE", 0.01)
    for number in range(5):
        segment.append(b"%d" % number).result(60)
        until(lambda: segment._thread is None)
    assert files(segment) == [b"0\n1\n2\n3\n4\n"]


def test_what_waits_is_written_before_it_closes_and_nothing_after(segment: Segment) -> None:
    answers = [segment.append(b"x") for _ in range(500)]
    segment.close()
    assert all(answer.done() for answer in answers)
    with pytest.raises(ValueError, match="closed"):
        segment.append(b"y")
    with pytest.raises(ValueError, match="more than a line"):
        Segment(segment.inbox).append(b"a\nb")


def run(code: str, inbox: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"THUMBWHEEL_HOME": str(inbox.parent)}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120)


FORKING = """
import os, thumbwheel
thumbwheel.trace("a", input="x", output="y", id="parent")
child = os.fork()
if not child:
    thumbwheel.trace("a", input="x", output="y", id="child")
    os._exit(0)
os.waitpid(child, 0)
thumbwheel.trace("a", input="x", output="y", id="parent again")
"""


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    done = run(FORKING, inbox)
    assert done.returncode == 0, done.stderr
    texts = sorted(path.read_text() for path in inbox.iterdir())
    assert [text.count("\n") for text in texts] in ([1, 2], [2, 1])
    assert sum('"child"' in text for text in texts) == 1


def test_a_trace_at_the_end_of_the_interpreter_is_written(tmp_path: Path) -> None:
    code = (
        "import atexit, thumbwheel\natexit.register(thumbwheel.trace, 'a', input='x', output='y')"
    )
    done = run(code, tmp_path / "inbox")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "inbox").iterdir())) == 1


DELETED = """
import thumbwheel
class Conversation:
    def __del__(self):
        thumbwheel.trace("a", input="x", output="last")
conversation = Conversation()
thumbwheel.trace("a", input="x", output="first")
"""


def test_a_trace_while_the_interpreter_takes_itself_apart_is_written(tmp_path: Path) -> None:
    done = run(DELETED, tmp_path / "inbox")
    assert (done.returncode, done.stderr) == (0, "")
    texts = "".join(path.read_text() for path in (tmp_path / "inbox").iterdir())
    assert texts.count('"first"') == texts.count('"last"') == 1


WRITER = """
import os, sys
from pathlib import Path
from thumbwheel.sdk.segment import Segment
segment = Segment(Path(sys.argv[1]))
number = 0
while True:
    answers = [(number + i, segment.append(b"%d " % (number + i) + b"x" * 5000)) for i in range(9)]
    number += 9
    for name, answer in answers:
        answer.result()
        os.write(1, b"%d\\n" % name)
"""


def test_kill_9_tears_at_most_the_last_line_of_a_file(tmp_path: Path) -> None:
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout
        first = child.stdout.readline()
        time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        acknowledged = (first + child.stdout.read()).split()
        child.stdout.close()
        child.wait()
        (path,) = tmp_path.iterdir()
        *lines, _ = path.read_bytes().split(b"\n")
        path.unlink()
        assert [line.split()[0] for line in lines] == [b"%d" % i for i in range(len(lines))]
        assert {len(line.split()[1]) for line in lines} == {5000}
        assert len(acknowledged) <= len(lines)
