"""A process that drains the inbox beside the server, while lines come faster than the server makes
rows of them.

The drainer of the server is a thread: it shares the interpreter with the requests that bring the
lines, and starts this process where lines wait (capture/inbox.py). Both take files of the inbox,
each its own (sdk/spool_files.py). The process prints once a second what became of its lines, as
JSON; it ends when it has little to do, or its parent has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from thumbwheel.app.service_settings import LogConfig
from thumbwheel.capture.inbox import Drainer
from thumbwheel.core import log
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards.checker import refusal

WINDOW = 10
"""Seconds over which its work is counted."""
LITTLE = 0.1
"""Share of a processor that is too little work for a process of its own."""


def drain_while_needed(ws: Workspace, parent: int) -> None:
    """Drain the inbox until a window had little work, or the process `parent` has ended."""
    with Drainer(ws) as drainer:
        work = LITTLE * WINDOW
        while work >= LITTLE * WINDOW and os.getppid() == parent:
            before = time.process_time()
            for _ in range(WINDOW):
                if os.getppid() == parent:
                    time.sleep(1.0)
                    sys.stdout.write(json.dumps(drainer.counts) + "\n")
                    sys.stdout.flush()
            work = time.process_time() - before


def main() -> None:
    """Drain the inbox of the home that the options name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    settings = Sources.read(options.config)
    log.configure("warning", settings.load(LogConfig, "log").form)
    with Workspace.open(Home.at(options.home), settings, refusal) as ws:
        drain_while_needed(ws, options.parent)


if __name__ == "__main__":
    main()
