"""The job `dataset build`. Training itself is a job of the loop, for it can go on to the gate."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field, model_validator

from thumbwheel.core.config import Config
from thumbwheel.datasets.build import build
from thumbwheel.datasets.types import BuiltDataset, DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.data_plan import choose


class DatasetBuildSpec(Config):
    """Which dataset to freeze."""

    agent: str
    """The agent whose feedback is meant."""
    shape: str | None = None
    """What the rows hold."""
    method: str | None = None
    """The method, or auto: the data plan picks the shape."""
    since: datetime | None = None
    """Only feedback from this time on is heard."""
    until: datetime | None = None
    """Only feedback before this time is heard."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the dataset, by their names."""

    @model_validator(mode="after")
    def _has_shape(self) -> DatasetBuildSpec:
        if (self.shape is None) == (self.method is None):
            raise ValueError("it takes either shape or method; method auto is the data plan's")
        return self


def run_build(ws: Workspace, spec: DatasetBuildSpec) -> BuiltDataset:
    """Build the dataset; the same evidence gives the same one."""
    options = dict(spec.options)
    if spec.since is not None:
        options["since"] = spec.since
    if spec.until is not None:
        options["until"] = spec.until
    config = ws.settings(DatasetConfig, "dataset", options)
    shape, reasons = spec.shape, None
    if spec.method is not None:
        choice = choose(ws, spec.agent, spec.method, config)
        shape, reasons = choice.shape, choice.why
    dataset = build(ws, spec.agent, str(shape), config)
    return BuiltDataset(**vars(dataset), why=reasons)
