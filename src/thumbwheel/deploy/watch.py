"""Watches the deployments that answer calls, and starts those again that do not.

`serve` runs it. A model server outlives the command that started it, so nobody else sees it die.
After a reboot, too, it is started by this. What a person stopped stays stopped.

A deployment is started by a process of its own, which gives the command `thumbwheel deployments
--restart`: that may load torch, which has no place in the process that passes calls on.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from thumbwheel.core import log
from thumbwheel.core.repeated import Repeated
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import running
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import ENDPOINT, Deployment, Health

LOOK_EVERY = 2.0
"""Seconds between two looks at the deployments."""
LONGEST_PAUSE = 30.0
"""Most seconds between two starts of a deployment that fails to start, or ends soon after."""
STEADY_SECONDS = 60.0
"""A deployment that answered for so long starts without a pause when it ends."""


ANSWERS = Health(True)


@dataclass
class Watched:
    """A deployment that is looked at."""

    deployment: Deployment
    health: Health = ANSWERS
    is_stopped: bool = False
    """A person stopped it."""
    changed_at: float = 0.0
    """Monotonic time since which it answers, or does not."""
    pause: float = 0.0
    start_at: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    """The command that starts it now."""
    output: IO[bytes] | None = None
    """A file with what the command says. A pipe would end with the server, and the command with
    it."""

    @property
    def label(self) -> str:
        """Agent, version and target, for the log."""
        deployment = self.deployment
        return f"{deployment.agent} {deployment.version} on {deployment.target}"


def _is_ours(deployment: Deployment) -> bool:
    """Return whether it can be started here. A server that somebody else runs is not asked again
    and again, and the package of a target may be gone."""
    if deployment.target not in TARGETS.names():
        return False
    return ENDPOINT not in TARGETS.get(deployment.target).kinds


class DeploymentWatch(Repeated):
    """Start it by `with`. `served` returns the deployments that answer calls; `command` is followed
    by agent and deployment and starts one, and without it nothing is started; `changed` is called
    when one ceases to answer, or answers again."""

    def __init__(
        self,
        ws: Workspace,
        served: Callable[[], Iterable[Deployment]],
        changed: Callable[[], None],
        command: Sequence[str] = (),
        every: float = LOOK_EVERY,
    ) -> None:
        self._ws, self._served, self._changed = ws, served, changed
        self._command = command
        self._watched: dict[str, Watched] = {}
        super().__init__("deployments", every=every, failing="deployments cannot be checked")

    def down(self) -> list[Watched]:
        """Return the deployments that answer calls and do not answer now."""
        return [watched for watched in self._watched.values() if not watched.health.alive]

    def problem(self) -> str | None:
        """Return a message if a deployment does not answer that nobody stopped, else None. Who asks
        for health needs no key, so it names neither agent nor log."""
        if failure := super().problem():
            return failure
        now = time.monotonic()
        dead = [watched for watched in self.down() if not watched.is_stopped]
        if not dead:
            return None
        parts = []
        for watched in dead:
            seconds = now - watched.changed_at
            part = f"{watched.deployment.id} on {watched.deployment.target} for {seconds:.0f} s"
            if watched.process is not None:
                part += " (it is being started)"
            parts.append(part)
        return f"models that are deployed do not answer: {', '.join(parts)}"

    def _once(self) -> None:
        watched_before = self._watched
        current: dict[str, Watched] = {}
        for deployment in self._served():
            if not _is_ours(deployment) or deployment.host is not None:
                continue  # the server of that host watches it
            watched = watched_before.get(deployment.id) or Watched(deployment)
            watched.deployment = deployment
            current[deployment.id] = watched
        for watched in current.values():
            self._check(watched)
        self._watched = current

    def _check(self, watched: Watched) -> None:
        """Check whether the deployment answers, and start it if it does not."""
        now = time.monotonic()
        health = running.health(watched.deployment)
        is_new = watched.changed_at == 0.0
        has_changed = health.alive != watched.health.alive
        watched.health = health
        watched.is_stopped = running.is_stopped(self._ws, watched.deployment)
        if is_new or has_changed:
            watched.changed_at = now
        if has_changed:
            state = "answers again" if health.alive else f"does not answer: {health.why}"
            log.say(f"{watched.label} {state}")
            self._changed()
        if health.alive and now - watched.changed_at > STEADY_SECONDS:
            watched.pause = 0.0
        self._reap(watched)
        is_due = now >= watched.start_at and watched.process is None
        if not health.alive and is_due and not watched.is_stopped and self._command:
            self._start(watched)

    def _start(self, watched: Watched) -> None:
        deployment = watched.deployment
        arguments = ["--agent", deployment.agent, "--deployment", deployment.id]
        watched.output = TemporaryFile()  # noqa: SIM115 - it is read once the command has ended
        watched.process = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=watched.output,
            process_group=0,  # Ctrl-C ends the server, and a model that starts goes on
        )

    def _reap(self, watched: Watched) -> None:
        """Note how the command ended that started it. The next one comes later each time, until the
        deployment has answered for a while."""
        process, output = watched.process, watched.output
        if process is None or output is None or process.poll() is None:
            return
        with output:
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        watched.process = watched.output = None
        watched.pause = min(LONGEST_PAUSE, 2 * watched.pause or 1.0)
        watched.start_at = time.monotonic() + watched.pause
        if process.returncode:
            last_line = (text.strip().splitlines() or ["(it said nothing)"])[-1]
            log.complain(
                f"{watched.label} cannot be started, and is tried again in {watched.pause:.0f} s: "
                f"{last_line}"
            )
