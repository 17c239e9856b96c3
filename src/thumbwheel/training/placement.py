"""Where the ranks of a run compute: how many this machine has room for, and what each is told.

All ranks of a run are on this host. Each has a GPU to itself, or an equal part of the processor's
threads. They find each other by torchrun's variables, over the loopback address, so that nobody
outside the host can join them.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.hardware import Device, Machine, machine
from thumbwheel.engine.ranks import LISTENER

LOOPBACK = "127.0.0.1"
GPUS, THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    LISTENER,
)


def require_ranks(ranks: int, where: Device) -> None:
    """Raise ConfigError if this machine cannot place so many ranks; say so if they are more than
    its processors."""
    if ranks == 1:
        return
    here, what = machine(), f"ranks {ranks}"
    if where == "cpu":
        if ranks > here.threads:
            log.say(
                f"{what}: this machine has {here.threads} processors, so that some ranks wait for "
                "others"
            )
        return
    count = len(here.gpus or ())
    if where == "mps" or ranks > count:
        has = f"this machine has {count} GPU{'' if count == 1 else 's'}, and every rank needs one"
        raise ConfigError(what, has, f"Set ranks to {max(1, count)}, or device to cpu")


def rank_variables(
    ranks: int, where: Device, listener: socket.socket, inherited: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the environment variables of each rank, beside the `inherited` ones; the first rank
    listens on `listener`."""
    here = machine()
    every_rank = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(listener.getsockname()[1]),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        # Each wait of more than a few seconds is a warning otherwise.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if where == "cpu" and THREADS not in inherited:
        every_rank[THREADS] = str(max(1, here.threads // ranks))
    variables: list[dict[str, str]] = []
    for rank in range(ranks):
        of_rank = every_rank | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank == 0:
            of_rank[LISTENER] = str(listener.fileno())
        if where == "cuda":
            of_rank[GPUS] = _gpu_names(here, inherited)[rank]
        variables.append(of_rank)
    return variables


def _gpu_names(here: Machine, inherited: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that this process may use, as the driver knows them."""
    visible = inherited.get(GPUS, "")
    if visible:
        return [name.strip() for name in visible.split(",")]
    return [str(number) for number in range(len(here.gpus or ()))]


def free_listener() -> socket.socket:
    """Return a socket that listens on a free port of the loopback address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOOPBACK, 0))
    listener.listen(os.cpu_count() or 1)
    return listener
