"""A Ray cluster for tests, started as its users start one: `ray start`, a process tree a host.

All hosts of it are on this machine, each with the folder of its own that the variables of the host
name. The programs are those of the Python that runs the tests.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.required import missing
from thumbwheel.llm.port import free_port

START_SECONDS = 240.0
SMALL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # a head that is gone is noticed within seconds
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_gcs_failover_worker_reconnect_timeout": "10",
}
CLAIM = """
import json, sys
from ray._private import ray_constants
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
key, namespace = b"CLUSTER_METADATA", ray_constants.KV_NAMESPACE_CLUSTER
metadata = json.loads(client.internal_kv_get(key, namespace))
metadata["ray_version"] = sys.argv[2]
client.internal_kv_put(key, json.dumps(metadata).encode(), True, namespace)
"""
"""Changes the note of the head about its version."""
OPTIONS = ("--object-store-memory", "80000000", "--disable-usage-stats", "--block")


@dataclass
class RayNode:
    """One host of the cluster."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill all of it at once, as a power cut does; `ray start` is the parent of all."""
        try:
            parent = psutil.Process(self.process.pid)
            members = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            members = []
        for member in members:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of this host."""
        for member in psutil.Process(self.process.pid).children(recursive=True):
            member.send_signal(number)

    def members(self, name: str) -> list[psutil.Process]:
        """Return the processes of this host whose command line has `name`."""
        members = []
        for member in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in " ".join(member.cmdline()):
                    members.append(member)
            except psutil.NoSuchProcess:
                continue
        return members


@dataclass
class RayCluster:
    """Use as a context manager: nothing of it is left afterwards."""

    auth_mode: str = "token"
    token: str = field(default_factory=lambda: secrets.token_hex(32))
    nodes: list[RayNode] = field(default_factory=list)

    def __enter__(self) -> RayCluster:
        if find_spec("ray") is None:
            missing("ray", "Ray is not installed: pip install -e '.[ray]'")
        # Its sockets are below this folder, and their names must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.port = free_port()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which a process uses the cluster."""
        return {
            "RAY_AUTH_MODE": self.auth_mode,
            "RAY_AUTH_TOKEN": self.token,
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def start_head(self, variables: Mapping[str, str], *options: str) -> RayNode:
        """Start the head, which is a host, too."""
        head = ("--head", "--port", str(self.port), "--include-dashboard=false")
        return self._start(variables, *head, "--temp-dir", str(self.folder), *options)

    def start_host(self, variables: Mapping[str, str], *options: str) -> RayNode:
        """Start another host."""
        return self._start(variables, "--address", self.address, *options)

    def claim_version(self, version: str) -> None:
        """Have the head say that it has this version of Ray: what it noted when it started."""
        command = [sys.executable, "-c", CLAIM, self.address, version]
        subprocess.run(command, env=os.environ | self.variables, check=True)

    def _start(self, variables: Mapping[str, str], *options: str) -> RayNode:
        log = self.folder / f"node-{len(self.nodes)}.log"
        environment = os.environ | SMALL | self.variables | dict(variables)
        environment.pop("RAY_ADDRESS")
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        program = Path(sys.executable).with_name("ray")
        arguments = ("start", "--node-ip-address", "127.0.0.1", *OPTIONS, *options)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(program), *arguments],
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = RayNode(process, log)
        self.nodes.append(node)
        deadline = time.monotonic() + START_SECONDS
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Ray did not start: {log.read_text(errors='replace')}")
            time.sleep(0.2)
        return node
