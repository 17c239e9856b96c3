"""What is said on the way where nobody looks at a terminal: a line every ten seconds, here every
half of one."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thumbwheel.core import log

SHORTER = "import sys, time\nfrom thumbwheel.core import log\nlog.EVERY = 0.5\n"


def piped(code: str, *arguments: str) -> tuple[str, list[str]]:
    """(standard output, lines of standard error) of a Python of its own, both pipes."""
    command = [sys.executable, "-c", SHORTER + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.splitlines()


def test_long_work_says_how_far_it_is() -> None:
    code = """
with log.progress("training", 40, "steps") as advance:
    for step in range(1, 4):
        time.sleep(0.6)
        advance(10, f"loss 0.{step}")
"""
    out, lines = piped(code)
    assert out == "" and len(lines) >= 3
    assert re.fullmatch(r"training: 0 of 40 steps, 0:0\d passed", lines[0])
    assert re.fullmatch(
        r"training: 10 of 40 steps, 0:0\d passed, about 0:0\d left; loss 0\.1", lines[1]
    )


def test_a_line_has_what_is_known() -> None:
    began = time.monotonic() - 65
    assert log._Work("training", 100, "steps", 12, "loss 0.52", began).line() == (
        "training: 12 of 100 steps, 1:05 passed, about 7:57 left; loss 0.52"
    )
    assert (
        log._Work("downloading", None, "bytes", 4096.0, "", began).line()
        == "downloading: 4096 bytes, 1:05 passed"
    )
    assert log._Work("evaluate", None, "", 0, "", began - 7200).line() == "evaluate: 2:01:05 passed"
    assert (
        log._Work("merging", 3, "layers", 3, "", began).line()
        == "merging: 3 of 3 layers, 1:05 passed"
    )


def test_short_work_and_work_that_speaks_says_nothing_more() -> None:
    # so long that no machine stands still for it; each line begins it anew
    code = """
log.EVERY = 4
with log.progress("merging", 2, "layers") as advance:
    advance(2)
with log.working("evaluate"):
    for number in range(6):
        time.sleep(0.9)
        log.say(str(number))
"""
    assert piped(code)[1] == ["0", "1", "2", "3", "4", "5"]


def test_the_innermost_work_speaks() -> None:
    code = """
with log.working("export"):
    time.sleep(0.6)
    with log.progress("sending", None, "MB") as advance:
        advance(3, total=12)
        time.sleep(0.5)
    time.sleep(0.5)
"""
    names = [line.partition(":")[0] for line in piped(code)[1]]
    assert list(dict.fromkeys(names)) == ["export", "sending"] and names[-1] == "export"


def test_a_reader_that_left_ends_no_work() -> None:
    code = """
import os
os.close(2)
with log.working("import"):
    time.sleep(0.8)
print("done")
"""
    assert piped(code)[0] == "done\n"


def test_a_terminal_gets_a_bar_and_no_lines() -> None:
    import os
    import pty

    code = (
        SHORTER + 'with log.progress("training", 4, "steps") as advance:\n    advance(1)\n    '
        "time.sleep(0.8)\n"
    )
    reader, writer = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", code], stderr=writer, stdout=subprocess.PIPE)
    os.close(writer)
    shown = b""
    while True:
        try:
            part = os.read(reader, 4096)
        except OSError:  # the other end is gone
            break
        if not part:
            break
        shown += part
    os.close(reader)
    assert child.wait() == 0 and b"1/4" in shown and b"passed" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "speaks"), [(["demo", "--emit"], True), (["serve"], False)])
def test_every_command_speaks_unless_it_is_endless(
    arguments: list[str], speaks: bool, tmp_path: Path
) -> None:
    """Whatever the command itself says: here its work is a pause."""
    code = """
import typer
from thumbwheel.app import command_table
from thumbwheel.cli import main
def pause() -> None:
    time.sleep(0.8)
table = {sys.argv[1]: ("builtins:None", "A pause.")}
main.COMMANDS = command_table.COMMANDS = table
command_table.load = lambda location: pause
main.build(sys.argv[1:])(prog_name="thumbwheel")
"""
    _, lines = piped(code, arguments[0])
    assert [line.partition(":")[0] for line in lines] == [arguments[0]] * speaks


@pytest.mark.slow
def test_the_base_of_the_demo_tells_how_far_its_training_is(tmp_path: Path) -> None:
    code = """
from thumbwheel.demo.base import BaseConfig, ensure_base
from thumbwheel.demo.run import base_progress
from pathlib import Path
config = BaseConfig(
    vocabulary=300, hidden=32, intermediate=32, layers=1, heads=2, kv_heads=1, mails=256, batch=4
)
with base_progress() as progress:
    def step(done, total, loss):
        progress(done, total, loss)
        time.sleep(0.02)  # however fast the machine: 64 steps take longer than two lines
    ensure_base(Path(sys.argv[1]), config, step)
"""
    lines = [line for line in piped(code, str(tmp_path))[1] if line.startswith("base model: ")]
    assert any(" of 64 steps, " in line and "left; loss " in line for line in lines), lines
