"""Trains on hosts of a Ray cluster, which only places the work.

Ray lives in a process of its own (ray_driver.py): it ends the process that uses it when its daemon
or its head is lost, and the worker has to outlive that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import ClassVar, Literal

from thumbwheel.core.errors import ConfigError, MissingExtra
from thumbwheel.core.hardware import Device
from thumbwheel.core.private import UMASK
from thumbwheel.engine.ranks import LOST
from thumbwheel.training.children import Children, environment
from thumbwheel.training.launcher import Launcher
from thumbwheel.training.placement import Placement
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

MODULE = "thumbwheel.training.ray_driver"
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray sends no statistics of its use to its makers."""


class Driver(Children):
    """The driver, which stands for the processes on the hosts."""

    def memory_gb(self) -> float | None:
        """Return None: the memory of the run is that of other processes."""
        return None


class RayCluster(Launcher):
    """The child of this process is the driver, and the ranks are children of its actors."""

    computes_here: ClassVar[bool] = False

    def require(self, ranks: int, where: Literal["auto"] | Device, placement: Placement) -> None:
        """Raise MissingExtra without Ray, ConfigError if the ranks cannot be divided."""
        if find_spec("ray") is None:
            raise MissingExtra.of("placement by Ray", "ray", "ray")
        hosts, gpus = placement.settings.hosts, placement.settings.gpus_per_host
        if ranks % hosts:
            raise ConfigError(
                f"ranks {ranks}",
                f"they cannot be divided among {hosts} hosts (placement.hosts)",
                f"Set ranks to a multiple of {hosts}, or placement.hosts to 1",
            )
        if gpus and ranks // hosts > gpus:
            raise ConfigError(
                f"ranks {ranks}",
                f"every rank needs a GPU, and {hosts} hosts with {gpus} GPUs are placed "
                "(placement.hosts, placement.gpus_per_host)",
                f"Set ranks to {hosts * gpus}",
            )

    def start(self, run: RunDir, lock: int, placement: Placement) -> Children:
        """Start the driver."""
        run.write_status(Status(RunState.RUNNING))
        command = [sys.executable, "-P", "-m", MODULE, str(run.path)]
        command += ["--lock-fd", str(lock), "--parent", str(os.getpid())]
        order = asdict(placement) | {"settings": placement.settings.model_dump()}
        with run.driver_log.open("ab") as out:
            driver = subprocess.Popen(
                [*command, "--placement", json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(os.environ) | NO_REPORTS,
                pass_fds=(lock,),
                umask=UMASK,
                process_group=0,
            )
        return Driver([driver])

    def is_lost(self, code: int, status: Status | None) -> bool:
        """Return whether hosts or the cluster were lost: the driver says so, or was ended by
        Ray."""
        return code == LOST or status is None or status.state is RunState.RUNNING


LAUNCHER = RayCluster()
