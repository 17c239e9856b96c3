"""The contract of a target. To add one: a file in targets/ and a line in its table; the contract
tests then run over it.

Every verb may be called again at any time with the same arguments and then changes nothing more. A
failed `apply` leaves neither a process nor a half-written model behind, and what the target served
before goes on answering.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from thumbwheel.deploy.types import Endpoint, Health, Kind, Package, TargetConfig


class Target(Protocol):
    """Brings packages to answer. It sees files and processes; versions, aliases and the database
    belong to switch.py."""

    Config: ClassVar[type[TargetConfig]]
    """The settings of section `deploy.<name>`."""
    kinds: ClassVar[tuple[Kind, ...]]
    """The forms that it takes, the one that is exported for it first."""
    named: ClassVar[bool]
    """Whether clients of its own find versions by the names that `point` gives, and go on doing so
    when an alias moves elsewhere."""

    def check(self, settings: Any) -> None:
        """Raise ModelError where what should answer is not there, before anything is converted for
        it; a server of our own is started."""

    def apply(self, package: Package, settings: Any) -> Endpoint:
        """Make `package` answer under `package.name` and return where, once it does; where a server
        has died it is started again.

        Raises ModelError where the target cannot run it, Conflict for a taken port or name,
        StorageError for a full disk.
        """

    def health(self, endpoint: Endpoint) -> Health:
        """Whether it answers now; raises nothing."""

    def remove(self, endpoint: Endpoint) -> None:
        """Take the model away, and its server where nothing else uses it; the base stays for other
        versions."""

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Let the target's own clients find the version as `alias` (`support`, or
        `support-canary`), in one step.

        A target that is only reached through our front door, which resolves aliases itself, has
        nothing to do.
        """

    def secret(self, endpoint: Endpoint) -> str | None:
        """The bearer token with which the endpoint is asked; None where it needs none."""
