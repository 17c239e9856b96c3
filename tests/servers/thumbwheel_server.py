"""`thumbwheel serve` in a process of its own, on a free port."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from thumbwheel.llm.port import free_port


@dataclass(frozen=True)
class ThumbwheelServer:
    """A server that runs."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def health(self) -> dict[str, Any]:
        """What `/health` says, whatever its status."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=30) as answer:
                content: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            content = json.load(error)
        return content


LOOPBACK = {"THUMBWHEEL_ENDPOINTS__PRIVATE": "[127.0.0.1]"}
"""The setting with which upstreams of tests may be asked."""


LASTING_PORTS = range(20_000, 32_768)
"""Below those that the kernels of Linux and macOS give to whoever asks for any port."""


def lasting_port() -> int:
    """Return a free port for a server that is killed and started again: nobody who asks for any
    port gets it while that server is away."""
    while not free_port(port := random.choice(LASTING_PORTS)):
        pass
    return port


def serve_command(
    home: Path,
    port: int,
    workers: int = 0,
    prelude: str = "",
    config: Path | None = None,
    python: str | Path = sys.executable,
) -> list[str]:
    """The command that starts a server for this home, with the settings of a file; its process runs
    the `prelude` first."""
    program = ["-m", "thumbwheel"]
    if prelude:
        program = ["-c", f"{prelude}\nfrom thumbwheel.cli.main import main\nmain()"]
    command = [str(python), *program, "--home", str(home)]
    if config is not None:
        command += ["--config", str(config)]
    return [*command, "serve", "--workers", str(workers), "--port", str(port)]


@contextmanager
def running(
    home: Path,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    workers: int = 0,
    prelude: str = "",
    options: Sequence[str] = (),
    config: Path | None = None,
    python: str | Path = sys.executable,
) -> Iterator[ThumbwheelServer]:
    """A server for this home; it is stopped at the end, and what it recorded are rows then."""
    with (log or home.with_suffix(".log")).open("wb") as output:
        process = subprocess.Popen(
            [*serve_command(home, 0, workers, prelude, config, python), *options],
            stderr=output,
            env={**os.environ, **LOOPBACK, **(environment or {})},
        )
    try:
        yield ThumbwheelServer(_await_port(process), process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _await_port(process: subprocess.Popen[bytes]) -> int:
    """The port on which the server listens, as soon as it does. It is asked of the process: what
    answers at a port that was free a moment ago may be the server of another test."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"thumbwheel serve ended with {process.returncode}")
        with suppress(psutil.Error):
            for connection in psutil.Process(process.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    return int(connection.laddr.port)
        time.sleep(0.1)
    raise RuntimeError("thumbwheel serve does not listen")
