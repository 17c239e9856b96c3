"""The contract of a target. To add one: a file in targets/ and a line in its table; the contract
tests then run over it.

Every method is idempotent. A failed `apply` leaves neither a process nor a half-written model
behind, and what the target served before goes on answering.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.deploy.types import Endpoint, Health, Package, RemoteModel, TargetConfig
from thumbwheel.export.types import ModelKind


class Target(Protocol):
    """Serves packages. A target knows files and processes; versions, aliases and the database
    belong to switch.py."""

    Config: ClassVar[type[TargetConfig]]
    """The settings of section `deploy.<name>`."""
    kinds: ClassVar[tuple[ModelKind, ...]]
    """The kinds of exports that it takes, the preferred one first; ENDPOINT alone for a target that
    gets a RemoteModel in place of a package."""
    named: ClassVar[bool]
    """Whether it has clients of its own, which find versions by the names that `point` gives, and
    go on doing so when an alias moves to another target."""

    lacks: ClassVar[frozenset[CallFeature]]
    """What its servers cannot do. Before a promotion last week's calls are held against it, and
    their lengths against `context` in the endpoint's details, where the target says it."""

    def check(self, settings: Any) -> tuple[ModelKind, ...] | None:
        """Raise ModelError if the target's server does not run, before anything is converted for
        it. A server that `apply` starts needs no check. Returns the kinds that the server takes, if
        they are not all of `kinds`."""

    def apply(self, package: Package | RemoteModel, settings: Any) -> Endpoint:
        """Serve `package` under `package.name` and return the endpoint once it answers. If the
        target's own server died, it is started again.

        Raises ModelError if the target cannot run it, Conflict for a taken port or name,
        StorageError for a full disk.
        """

    def health(self, endpoint: Endpoint) -> Health:
        """Return whether it answers now; never raises."""

    def remove(self, endpoint: Endpoint) -> None:
        """Remove the model, and its server if nothing else uses it; the base stays for other
        versions."""

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Let the target's own clients find the version as `alias` (`support`, or
        `support-canary`), in one step.

        A target that is reached only through the gateway, which resolves aliases itself, does
        nothing.
        """

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return the bearer token of the endpoint; None if it needs none."""
