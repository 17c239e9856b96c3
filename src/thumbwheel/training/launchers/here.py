"""Trains on the host of the worker, in a process for each rank."""

from __future__ import annotations

import os
import subprocess
from typing import Literal

from thumbwheel.core.hardware import Device, device
from thumbwheel.training.children import Children, start_rank
from thumbwheel.training.launcher import Launcher
from thumbwheel.training.placement import Placement, free_listener, rank_variables, require_ranks
from thumbwheel.training.rundir import RunDir


class Here(Launcher):
    """Each rank is a child of this process."""

    def require(self, ranks: int, where: Literal["auto"] | Device, placement: Placement) -> None:
        """Raise ConfigError if this machine cannot place so many ranks."""
        require_ranks(ranks, device(where))

    def start(self, run: RunDir, lock: int, placement: Placement) -> Children:
        """Start a process for each rank of the run."""
        config = run.spec().config
        ranks = int(config.get("ranks", 1))
        if ranks == 1:
            return Children([start_rank(run, lock)])
        where = device(config.get("device", "auto"))
        members: list[subprocess.Popen[bytes]] = []
        try:
            with free_listener() as listener:
                for rank, variables in enumerate(
                    rank_variables(ranks, where, listener, os.environ)
                ):
                    handles = () if rank else (listener.fileno(),)
                    members.append(start_rank(RunDir(run.path, rank), lock, variables, handles))
        except BaseException:
            Children(members).kill()
            raise
        return Children(members)


LAUNCHER = Here()
