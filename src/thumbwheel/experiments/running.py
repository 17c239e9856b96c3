"""The experiments that run, as whoever answers calls needs them. What is decided about them, and
the statistics for it, is in controller.py."""

from __future__ import annotations

from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments import store
from thumbwheel.experiments.types import Experiment, State


def running(ws: Workspace) -> list[Experiment]:
    """Return the running experiments."""
    with ws.db.read() as connection:
        return store.find(connection, store.in_state(State.RUNNING))


def routing_state(ws: Workspace) -> str:
    """Return a text that changes whenever an experiment makes a call go elsewhere."""
    with ws.db.read() as connection:
        return repr(store.routing_rows(connection))
