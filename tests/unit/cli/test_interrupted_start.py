"""Ctrl-C in the first second, while modules are still loaded, is one line and no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_BY_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["thumbwheel", "models", "fetch"]
from thumbwheel.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "thumbwheel.cli.main",
        "typer",
        "thumbwheel.core.private",
        "thumbwheel.loop.commands",
        "thumbwheel.models.fetch",
    ],
)
def test_an_interrupt_while_modules_are_loaded_is_one_line(name: str) -> None:
    command = [sys.executable, "-P", "-c", INTERRUPTED_BY_IMPORT.format(name=name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("interrupted")
