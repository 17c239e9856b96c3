"""The process that has hosts of a Ray cluster train a run:
`python -m thumbwheel.training.ray_driver RUN_DIR --lock-fd N --parent PID --placement JSON`.

To its parent it is the child of the run: it stops at a checkpoint on SIGINT, dies with its parent,
and brings status, metrics and checkpoints into the run's folder. It asks Ray for a placement group
and starts an actor (placed_host.py) on each host of it.

Ray is believed nothing about who is dead. A host that gives no answer for a lease is lost, and the
run with it; that host stops by itself within a lease, too (fence_watch.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, Conflict, ThumbwheelError
from thumbwheel.engine.ranks import LOST
from thumbwheel.training.activity import ActivityFile
from thumbwheel.training.children import GRACE, status_of
from thumbwheel.training.placed_host import Order, PlacedHost, versions
from thumbwheel.training.placement import (
    LOOPBACK,
    HostShare,
    Placement,
    PlacementConfig,
    PlacementLostError,
)
from thumbwheel.training.process import INTERRUPTED, Interrupt, die_with, guarded
from thumbwheel.training.run_mirror import FileState, RunMirror, send
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

POLL = 0.5
"""Seconds between two looks at the hosts."""
START_SECONDS = 300.0
"""Seconds in which an actor has to be there once its place is reserved."""
PROBE_SECONDS = 120.0
"""Seconds in which the head of a cluster has to say whom it lets in."""
REACH_SECONDS = 10.0
"""Seconds in which the head of a cluster has to take a connection."""
AGAIN = 5.0
"""Seconds before a cluster that is away is asked again."""
PROBE = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
socket.create_connection((host.strip("[]"), int(port)), 10).close()
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
except AuthenticationError:
    sys.exit(77)
"""
"""Asks the head of a cluster something; ends with REFUSED if that refuses the token."""
REFUSED = 77
AUTH_MODE = "RAY_AUTH_MODE"


class InterruptedWaitError(Exception):
    """The run was asked to stop before it began."""


def main(arguments: list[str]) -> int:
    """Have the run trained and return its exit code."""
    parser = argparse.ArgumentParser(prog="thumbwheel.training.ray_driver")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--placement", required=True)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir)
    interrupt = Interrupt()
    log.configure()
    die_with(options.parent)
    fields = json.loads(options.placement)
    placement = Placement(**fields | {"settings": PlacementConfig(**fields["settings"])})
    with log.sent_to(ActivityFile(run)):
        return guarded(run, lambda: _work(run, placement, interrupt))


def _work(run: RunDir, placement: Placement, interrupt: Interrupt) -> int:
    try:
        with _connected(placement, interrupt) as address:
            _require_token(address)
            # Ray takes the signals for itself
            interrupt = Interrupt(asked=interrupt.asked)
            with _placed(run, placement, interrupt) as hosts:
                return _train(run, placement, hosts, interrupt)
    except InterruptedWaitError:
        reason = "interrupted before the first step"
        run.write_status(Status(RunState.STOPPED, run.last_step(), reason))
        return INTERRUPTED
    except PlacementLostError as loss:
        log.say(f"lost: {loss}")
        run.write_status(Status(RunState.RUNNING, run.last_step(), str(loss)))
        return LOST


# the cluster


@contextmanager
def _connected(placement: Placement, interrupt: Interrupt) -> Iterator[str]:
    """Connect to the cluster; give the address of its head. Raises ConfigError for one that is not
    ours to use, Conflict for one that cannot be reached."""
    import ray

    if os.environ.get(AUTH_MODE) != "token":
        raise ConfigError(
            "placement by Ray",
            f"{AUTH_MODE} is not `token`, and whoever reaches a cluster without tokens can run "
            "any program on its hosts",
            f"Start Ray on every host, and thumbwheel, with {AUTH_MODE}=token and the same token",
        )
    deadline = time.monotonic() + 60 * placement.settings.wait_minutes
    while True:
        try:
            with log.progress("connecting to Ray", None):
                _connect(placement.settings.address)
            break
        except Conflict as error:
            ray.shutdown()
            # at first it is a mistake, later the cluster may come back
            if not placement.losses or time.monotonic() > deadline:
                raise
            log.say(str(error))
            _pause(AGAIN, interrupt)
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def _connect(address: str | None) -> None:
    import ray
    from ray._private.services import canonicalize_bootstrap_address

    head = None
    try:
        head = canonicalize_bootstrap_address(address or "auto")
        if head is None:
            raise ConnectionError("this host is in no cluster, and no address is set")
        host, _, port = head.rpartition(":")
        # Ray itself tries for minutes
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001 - Ray raises whatever its parts raise
        text = " ".join(str(error).split())
        if "ersion mismatch" in text:
            raise ConfigError(
                "placement by Ray",
                f"the cluster has another version ({text[:300]})",
                "Install the same versions of Ray and Python on all hosts",
            ) from None
        # that a token is wrong looks to Ray as if nobody was there
        if head is not None and _is_refused(head, "token"):
            raise ConfigError(
                "placement by Ray",
                f"the cluster at {head} refuses the token of this process",
                "Give it the token of the cluster: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH",
            ) from None
        raise Conflict(
            "placement by Ray",
            f"the cluster cannot be reached ({_first_line(error)})",
            "Start Ray on this host (ray start), or set placement to here",
        ) from None


def _require_token(address: str) -> None:
    """Raise ConfigError unless the cluster refuses whoever has no token."""
    if not _is_refused(address, "disabled"):
        raise ConfigError(
            "placement by Ray",
            f"the cluster at {address} lets in everybody: it was started without {AUTH_MODE}=token",
            f"Stop it, and start it on every host with {AUTH_MODE}=token",
        )


def _is_refused(address: str, auth_mode: str) -> bool:
    """Return whether the head of a cluster refuses a process with this mode and the variables of
    this one. Ray reads the mode once in a process, so another one asks."""
    try:
        probe = subprocess.run(
            [sys.executable, "-P", "-c", PROBE, address],
            env=os.environ | {AUTH_MODE: auth_mode},
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Conflict(
            "placement by Ray",
            f"the head of the cluster at {address} did not answer for {PROBE_SECONDS:g} s",
            "See on its host: ray status",
        ) from None
    return probe.returncode == REFUSED


def _pause(seconds: float, interrupt: Interrupt) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if interrupt():
            raise InterruptedWaitError
        time.sleep(POLL)


# the hosts


@dataclass
class HostLink:
    """The driver's side of an actor. Its methods are those of PlacedHost."""

    actor: Any
    lease: float
    name: str = "a host"

    def call(self, method: str, *arguments: Any, patience: float | None = None) -> Any:
        """Return the answer of a method of the actor. Raises its error, and PlacementLostError if
        there was no answer for a lease."""
        import ray

        patience = self.lease if patience is None else patience
        deadline = time.monotonic() + patience
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                return ray.get(getattr(self.actor, method).remote(*arguments), timeout=left)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, ThumbwheelError):
                    raise error.cause from None
                raise
            except (ray.exceptions.RayError, ConnectionError) as error:
                # also that it has died: whether it has is decided by the lease
                if time.monotonic() >= deadline:
                    raise PlacementLostError(
                        f"{self.name} gave no answer for {patience:g} s ({type(error).__name__})"
                    ) from None
                time.sleep(POLL)

    def listing(self) -> dict[str, FileState]:
        answer: dict[str, FileState] = self.call("listing")
        return answer

    def read(self, path: str, offset: int, size: int) -> bytes | None:
        answer: bytes | None = self.call("read", path, offset, size)
        return answer

    def write(self, path: str, offset: int, content: bytes) -> None:
        self.call("write", path, offset, content)


@contextmanager
def _placed(run: RunDir, placement: Placement, interrupt: Interrupt) -> Iterator[list[HostLink]]:
    """Reserve a place on each host and start an actor there; end them all afterwards."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    settings = placement.settings
    needs = _needs(settings)
    _wait_for_room(placement, needs, interrupt)
    strategy = "STRICT_SPREAD" if settings.hosts > 1 else "PACK"
    group = placement_group([needs] * settings.hosts, strategy=strategy)
    hosts: list[HostLink] = []
    try:
        with log.progress(f"waiting until {_in_words(settings)} are free", None):
            while not group.wait(timeout_seconds=1):
                _pause(0, interrupt)
                if interrupt():
                    raise InterruptedWaitError
        actor_class = ray.remote(PlacedHost)
        for index in range(settings.hosts):
            actor = actor_class.options(
                num_cpus=needs["CPU"],
                num_gpus=needs.get("GPU", 0),
                memory=needs.get("memory"),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote()
            hosts.append(HostLink(actor, placement.lease_seconds))
        yield hosts
    finally:
        with suppress(Exception):  # whatever is left of them ends with this process
            for host in hosts:
                ray.kill(host.actor)
            remove_placement_group(group)


def _needs(settings: PlacementConfig) -> dict[str, float]:
    """Return what a run takes on each host, under Ray's names."""
    needs: dict[str, float] = {"CPU": settings.cpus}
    if settings.gpus_per_host:
        needs["GPU"] = settings.gpus_per_host
    if settings.memory_gb:
        needs["memory"] = settings.memory_gb * 1e9
    return needs


def _in_words(settings: PlacementConfig) -> str:
    """Return the place that is asked for.

    >>> _in_words(PlacementConfig(hosts=2, gpus_per_host=4))
    '2 hosts with 4 GPUs'
    >>> _in_words(PlacementConfig(cpus=2, memory_gb=16))
    '1 host with 2 processors, 16 GB'
    """
    parts = []
    if settings.gpus_per_host:
        parts.append(f"{settings.gpus_per_host} GPU" + "s" * (settings.gpus_per_host > 1))
    if settings.cpus != 1 or not settings.gpus_per_host:
        parts.append(f"{settings.cpus:g} processor" + "s" * (settings.cpus != 1))
    if settings.memory_gb:
        parts.append(f"{settings.memory_gb:g} GB")
    return f"{settings.hosts} host{'s' * (settings.hosts > 1)} with {', '.join(parts)}"


def _wait_for_room(placement: Placement, needs: dict[str, float], interrupt: Interrupt) -> None:
    """Raise ConfigError if the cluster is too small for the run; after a loss its hosts have time
    to come back."""
    import ray

    deadline = time.monotonic() + 60 * placement.settings.wait_minutes
    while True:
        fitting = 0
        for node in ray.nodes():
            resources = node["Resources"]
            if node["Alive"] and all(resources.get(name, 0) >= needs[name] for name in needs):
                fitting += 1
        if fitting >= placement.settings.hosts:
            return
        if not placement.losses or time.monotonic() > deadline:
            raise ConfigError(
                "placement by Ray",
                f"the run asks {_in_words(placement.settings)}, there "
                f"{'is' if fitting == 1 else 'are'} {fitting}",
                "Start Ray on more hosts, or ask for less: placement.hosts, placement.cpus, "
                "placement.gpus_per_host, placement.memory_gb",
            )
        with log.progress(f"waiting for {_in_words(placement.settings)}", None):
            _pause(AGAIN, interrupt)


# the run


def _train(run: RunDir, placement: Placement, hosts: list[HostLink], interrupt: Interrupt) -> int:
    """Have the hosts train the run to its end; return its exit code."""
    spec = run.spec()
    with log.progress("preparing the hosts", None):
        for number, host in enumerate(hosts):
            host.name = f"host {number + 1} of {len(hosts)}"
            _require_same_versions(host)
            host.call("prepare", Order(asdict(spec), placement.fence, placement.lease_seconds))
        for host in hosts:
            while not host.call("is_prepared"):
                _pause(POLL, interrupt)
        mirrors = _mirrors(run, hosts, int(spec.config.get("ranks", 1)))
        for mirror in mirrors:
            send(run, mirror.remote)
            mirror.skip_present()
    _start(hosts, int(spec.config.get("ranks", 1)), placement.settings.cpus)
    ends = _followed(hosts, mirrors, interrupt)
    for host in hosts:
        host.call("close")

    # The first rank speaks for all, unless it only followed another one that failed.
    rank, code = ends[0]
    failed = [end for end in ends if end[1] not in (0, LOST, INTERRUPTED)]
    if code == LOST and failed:
        rank, code = failed[0]
    if code == LOST:
        raise PlacementLostError(f"the connection between the hosts broke; log: {run.log}")
    status = status_of(run, rank, code, 0, was_asked=interrupt.asked)
    run.write_status(status)
    return code


def _require_same_versions(host: HostLink) -> None:
    """Raise ConfigError if a host has other versions than this one."""
    try:
        host_versions = host.call("versions", patience=START_SECONDS)
    except ThumbwheelError:
        raise
    except PlacementLostError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the start of an actor raises there
        raise ConfigError(
            host.name,
            f"it cannot run this version of Thumbwheel ({_first_line(error)})",
            "Install the same version of Thumbwheel on all hosts, with their extras",
        ) from None
    for name, ours in versions().items():
        if host_versions.get(name) != ours:
            raise ConfigError(
                host.name,
                f"it has {name} {host_versions.get(name)}, and this host has {ours}",
                "Install the same versions on all hosts",
            )


def _mirrors(run: RunDir, hosts: list[HostLink], ranks: int) -> list[RunMirror]:
    mirrors = []
    for number, host in enumerate(hosts):
        first = number * ranks // len(hosts)
        status = f"status-{first}.json" if first else "status.json"
        mirrors.append(RunMirror(run, host, status, is_first=not first))
    return mirrors


def _start(hosts: list[HostLink], ranks: int, cpus: float) -> None:
    """Start the ranks on all hosts; the first host listens for the others."""
    address = LOOPBACK
    if len(hosts) > 1:
        address = hosts[0].call("address")
    port = hosts[0].call("listen", address) if ranks > 1 else 0
    count = ranks // len(hosts)
    threads = max(1, int(cpus) // count)
    for number, host in enumerate(hosts):
        first = number * count
        host.call("start", HostShare(first, count, ranks, address, port, threads=threads))


def _followed(
    hosts: list[HostLink], mirrors: list[RunMirror], interrupt: Interrupt
) -> list[tuple[int, int]]:
    """Bring what is new until all have ended; return (rank, exit code) of each host."""
    asked, first_end = False, None
    while True:
        ends = [host.call("poll") for host in hosts]
        for mirror in mirrors:
            mirror.sync()
        if None not in ends:
            return ends
        if interrupt() and not asked:
            hosts[0].call("interrupt")
            asked = True
        if any(ends):
            # The others end at the same time, or find out that they are alone.
            first_end = first_end or time.monotonic()
            if time.monotonic() - first_end > GRACE:
                for host in hosts:
                    host.call("kill")
        time.sleep(POLL)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    # Torch and Ray take seconds to shut down, and whoever stopped the run waits.
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
