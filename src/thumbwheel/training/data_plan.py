"""The data plan with the training methods in it: datasets counts what the feedback gives, and the
methods say what they need of it."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.datasets import choose_shape, plan
from thumbwheel.datasets.choose_shape import AUTO, ShapeChoice
from thumbwheel.datasets.dataplan import DataPlan
from thumbwheel.datasets.learner import Learner
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.detect import Options
from thumbwheel.training.algorithms import ALGORITHMS


def learners() -> dict[str, Learner]:
    """Return every training method, by name."""
    by_name = {}
    for name in ALGORITHMS.names():
        method = ALGORITHMS.get(name)
        shapes = (method.needs, *method.also_learns_from)
        by_name[name] = Learner(name, method.title, shapes, method.enough)
    return by_name


def data_plan(ws: Workspace, agent: str, config: DatasetConfig | None = None) -> DataPlan:
    """Return the data plan of `agent`: the methods that its feedback in force permits. Raises
    NotFound for an unknown agent."""
    return plan.data_plan(ws, agent, learners(), config)


def plan_file(
    path: Path,
    source: str | None = None,
    agent: str = "file",
    config: DatasetConfig | None = None,
    options: Options | None = None,
) -> DataPlan:
    """Return the plan of one file, as `datasets.plan.plan_file` builds it."""
    return plan.plan_file(path, learners(), source, agent, config, options)


def choose(
    ws: Workspace, agent: str, method: str = AUTO, config: DatasetConfig | None = None
) -> ShapeChoice:
    """Return the shape for `method`, as `datasets.choose_shape.choose` finds it."""
    return choose_shape.choose(ws, agent, learners(), method, config)
