"""Another program's server as a child of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

PATIENCE = 240.0
"""Seconds until a server answers; a busy machine is slow."""


@contextmanager
def running(
    command: Sequence[str], url: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """Runs the command until the block ends; it has started when `url` answers."""
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nice", *command],
            cwd=folder,
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(process, url, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx2.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx2.HTTPError:
            time.sleep(0.5)
    raise AssertionError(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def output_of(python: Path, program: str, *arguments: str, folder: Path) -> Any:
    """What a program of ours that runs in the peer's environment prints as its last line of
    JSON."""
    path = Path(__file__).parent / "programs" / program
    done = subprocess.run(
        ["nice", str(python), str(path), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
