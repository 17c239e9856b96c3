"""`kennel`: one small server of this package (server.py) for each version."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from thumbwheel.deploy import processes
from thumbwheel.deploy.types import Endpoint, Health, Package, TargetConfig
from thumbwheel.export.types import HF_MODEL

TOKEN = "KENNEL_TOKEN"


class KennelConfig(TargetConfig):
    """Settings of the kennel target."""

    port: int = Field(default=0, ge=0, le=65535)
    """Where the server listens on loopback; 0 takes any free port"""


class Kennel:
    """Serves whole models of transformers; the contract is thumbwheel.deploy.target."""

    Config = KennelConfig
    kinds = (HF_MODEL,)
    named = False

    def check(self, settings: KennelConfig) -> None:
        """The server is started by `apply`."""

    def apply(self, package: Package, settings: KennelConfig) -> Endpoint:
        """Start the server of this version where none runs."""
        folder = package.state_folder / package.name

        def command(port: int, token: str) -> tuple[Sequence[str], Mapping[str, str]]:
            program = [sys.executable, "-W", "ignore", "-m", "kennel.server"]
            return [*program, str(package.folder), package.name, str(port)], {TOKEN: token}

        def ready(server: processes.Running) -> bool:
            return server.answers("v1/models")

        with processes.locked(folder):
            running = processes.answering(folder, ready) or processes.start(
                folder,
                command,
                ready,
                what=f"the kennel server of {package.name}",
                wait=settings.wait,
                port=settings.port,
            )
        return Endpoint(f"{running.url}/v1", package.name, {"folder": str(folder)})

    def health(self, endpoint: Endpoint) -> Health:
        """Whether the server answers."""
        folder = Path(endpoint.details["folder"])
        running = processes.find(folder)
        if running is None or not running.answers("v1/models"):
            return Health(False, processes.failure_reason(folder))
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Stop the server."""
        folder = Path(endpoint.details["folder"])
        with processes.locked(folder):
            processes.stop(folder)

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """The gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """The token of the server."""
        folder = Path(endpoint.details["folder"])
        return processes.token(folder, endpoint.url, f"model {endpoint.model!r} of the kennel")


TARGET = Kennel()
