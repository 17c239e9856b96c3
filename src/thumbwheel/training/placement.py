"""Where the ranks of a run compute: what is asked for, how many this machine has room for, and what
each is told.

By default all ranks of a run are on this host. Each has a GPU to itself, or an equal part of the
processor's threads. They find each other by torchrun's variables. On one host they do so over the
loopback address, so that nobody outside the host can join them.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from thumbwheel.core import log
from thumbwheel.core.config import Config
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.hardware import Device, Machine, machine
from thumbwheel.engine.ranks import LISTENER

LOOPBACK = "127.0.0.1"
GPUS, THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    LISTENER,
)
SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""


class PlacementConfig(Config):
    """Where runs are trained, and what they need there."""

    value_field: ClassVar[str | None] = "launcher"

    launcher: str = "here"
    """`here`: the host of the worker. `ray`: hosts of a Ray cluster. `placement: ray` is short for
    it."""
    address: str | None = None
    """HOST:PORT of the head of the Ray cluster [default: the cluster that this host is in]"""
    hosts: int = Field(default=1, ge=1)
    """Hosts among which the ranks of a run are divided."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors that a run takes on each of its hosts."""
    gpus_per_host: int = Field(default=0, ge=0)
    """GPUs that a run takes on each of its hosts."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Gigabytes of memory that a run takes on each of its hosts."""
    wait_minutes: float = Field(default=10.0, ge=0)
    """Minutes that a run waits for hosts after it lost some."""


@dataclass(frozen=True)
class Placement:
    """How one start of a run is placed."""

    settings: PlacementConfig
    fence: int = 0
    """The fence of the run: whoever has another one stops computing it."""
    lease_seconds: float = 15.0
    """Seconds without an answer after which a host or the database counts as lost."""
    losses: int = 0
    """Places that this run lost in a row."""


HERE = Placement(PlacementConfig())


class PlacementLostError(Exception):
    """The place where a run is computed is gone: hosts, or whatever reaches them."""


@dataclass(frozen=True)
class HostShare:
    """The ranks of a run that one host has."""

    first: int
    """Its first rank."""
    count: int
    world: int
    """The ranks of all hosts."""
    address: str
    """Where the first rank of all listens."""
    port: int
    listener: int | None = None
    """The open socket on which it listens, on its host."""
    threads: int | None = None
    """Threads of each rank; None divides those of the machine."""


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
    """Return the environment variables of each rank, beside the `inherited` ones, where all are on
    this host; the first rank listens on `listener`."""
    port = listener.getsockname()[1]
    share = HostShare(0, ranks, ranks, LOOPBACK, port, listener.fileno())
    return variables_of(share, where, inherited)


def variables_of(
    share: HostShare, where: Device, inherited: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return the environment variables of each rank of this host, beside the `inherited` ones."""
    here = machine()
    every_rank = {
        "WORLD_SIZE": str(share.world),
        "LOCAL_WORLD_SIZE": str(share.count),
        "MASTER_ADDR": share.address,
        "MASTER_PORT": str(share.port),
        "GLOO_SOCKET_IFNAME": interface_towards(share.address),
        # Each wait of more than a few seconds is a warning otherwise.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if share.threads is not None:
        every_rank[THREADS] = str(share.threads)
    elif where == "cpu" and THREADS not in inherited:
        every_rank[THREADS] = str(max(1, here.threads // share.count))
    variables: list[dict[str, str]] = []
    for local_rank in range(share.count):
        rank = share.first + local_rank
        of_rank = every_rank | {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        if rank == 0 and share.listener is not None:
            of_rank[LISTENER] = str(share.listener)
        if where == "cuda":
            of_rank[GPUS] = _gpu_names(here, inherited)[local_rank]
        variables.append(of_rank)
    return variables


def interface_towards(address: str) -> str:
    """Return the name of the network interface over which this host reaches `address`."""
    if address == LOOPBACK:
        return "lo0" if sys.platform == "darwin" else "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # sends nothing: the system only picks the address of this side
        probe.connect((address, 9))
        own_address = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an address
                continue
            # an address to itself goes over the loopback interface, with the address of another
            if socket.inet_ntoa(answer[20:24]) == own_address:
                return name
    raise ConfigError(
        f"address {address!r}",
        "no network interface of this host leads there",
        "See: ip route get ADDRESS",
    )


def _gpu_names(here: Machine, inherited: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that this process may use, as the driver knows them."""
    visible = inherited.get(GPUS, "")
    if visible:
        return [name.strip() for name in visible.split(",")]
    return [str(number) for number in range(len(here.gpus or ()))]


def free_listener(address: str = LOOPBACK) -> socket.socket:
    """Return a socket that listens on a free port of an address of this host."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(os.cpu_count() or 1)
    return listener
