"""Whether a grammar can be compiled in little time and memory: a child process, whose program is
grammar_child.py, tries it before the process that holds the models compiles it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import threading

from thumbwheel.core import child
from thumbwheel.core.errors import MissingExtra

SECONDS = 3.0
"""Time limit of one grammar; the largest schemas that are taken need half a second."""
START_SECONDS = 60.0
MEMORY = 2**29


class GrammarTrial:
    """The child process, which is started when it is first needed, and again after a grammar that
    broke it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def problem(self, grammar: str) -> str:
        """Return why the grammar cannot be compiled; an empty text if it can."""
        line = json.dumps({"grammar": grammar}).encode() + b"\n"
        with self._lock:
            process = self._running()
            try:
                return str(child.ask(process, line, SECONDS)["problem"])
            except TimeoutError:
                problem = f"compiling it takes more than {SECONDS:g} seconds"
            except (OSError, EOFError):
                problem = f"compiling it takes more than {MEMORY >> 20} MiB of memory"
            self.close()
            return problem

    def _running(self) -> subprocess.Popen[bytes]:
        """Return this process's child, started if needed. Raises MissingExtra if it does not
        start."""
        is_ours = self._owner == os.getpid()
        if self._process is not None and is_ours and self._process.poll() is None:
            return self._process
        process = child.start("thumbwheel.deploy.grammar_child", str(MEMORY), stdin=subprocess.PIPE)
        try:
            child.read_line(process, START_SECONDS)
        except (EOFError, TimeoutError):
            child.end(process)
            raise MissingExtra.of("structured output", "llguidance", "train") from None
        self._process, self._owner = process, os.getpid()
        return process

    def close(self) -> None:
        """End the child."""
        if self._process is not None and self._owner == os.getpid():
            child.end(self._process)
        self._process = None


TRIAL = GrammarTrial()
atexit.register(TRIAL.close)
