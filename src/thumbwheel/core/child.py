"""Processes of our own code: started with this interpreter and this package, with a bound of memory
that they set for themselves.

For work on what strangers made, where a library could take all memory or never end. Not here: what
they are asked (the stage that has them), code of strangers (`sandbox`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

PACKAGE_ROOT = str(Path(__file__).parents[2])


def start(module: str, *arguments: str, stdin: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `python -m module` with pipes for its output; it ends when nobody reads what it writes."""
    search_path = [PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search_path)}
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, wait for it and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was buffered for a process that has ended
                continue


def limit_memory(size: int) -> None:
    """Let this process hold at most `size` bytes of data; beyond it an allocation fails. Systems
    without the limit go without."""
    try:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA,
            (size if hard == resource.RLIM_INFINITY else min(size, hard), hard),
        )
    except (ImportError, ValueError, OSError):
        return
