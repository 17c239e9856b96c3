"""A long operation that a command asks for. Whoever runs the command decides where it is done: in
its own process, or as a job by a worker. Either way the command is called once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from thumbwheel.core.config import Config
from thumbwheel.core.present import Answer

R = TypeVar("R")
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True)
class JobRequest(Generic[R, V_co]):
    """A job that is wanted, and the answer that its result is."""

    kind: str
    spec: Config
    show: Callable[[R], Answer[V_co]]
    """Makes the answer of the result, once there is one."""
    here: bool = False
    """Whether it is done at once, where it was asked for."""
