"""Whether a grammar can be compiled in little time and memory: a child process, whose program is
grammar_child.py, tries it before the process that holds the models compiles it."""

from __future__ import annotations

import atexit
import json
import threading
from functools import partial

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
        self._child = child.LazyChild(
            "thumbwheel.deploy.grammar_child",
            str(MEMORY),
            start_seconds=START_SECONDS,
            not_started=partial(MissingExtra.of, "structured output", "llguidance", "train"),
        )

    def problem(self, grammar: str) -> str:
        """Return why the grammar cannot be compiled; an empty text if it can."""
        line = json.dumps({"grammar": grammar}).encode() + b"\n"
        with self._lock:
            process = self._child.running()
            try:
                return str(child.ask(process, line, SECONDS)["problem"])
            except TimeoutError:
                problem = f"compiling it takes more than {SECONDS:g} seconds"
            except (OSError, EOFError):
                problem = f"compiling it takes more than {MEMORY >> 20} MiB of memory"
            self.close()
            return problem

    def close(self) -> None:
        """End the child."""
        self._child.close()


TRIAL = GrammarTrial()
atexit.register(TRIAL.close)
