"""A launcher starts the processes of a run somewhere. Its interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from thumbwheel.core.hardware import Device
from thumbwheel.training.children import Children
from thumbwheel.training.placement import Placement
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Status


class Launcher(ABC):
    """Everything that the run leaves behind comes into its folder, wherever it is computed."""

    computes_here: ClassVar[bool] = True
    """Whether this host computes the run."""

    @abstractmethod
    def require(self, ranks: int, where: Literal["auto"] | Device, placement: Placement) -> None:
        """Raise ConfigError or MissingExtra if so many ranks cannot be placed."""

    @abstractmethod
    def start(self, run: RunDir, lock: int, placement: Placement) -> Children:
        """Start the run; its processes hold the lock."""

    def is_lost(self, code: int, status: Status | None) -> bool:
        """Return whether the run ended with this exit code because its place is gone, and not by
        itself."""
        return False
