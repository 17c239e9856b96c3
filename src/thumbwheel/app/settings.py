"""The class that reads each section of the configuration.

A class is imported when its section is used: most commands use a few of them, and all together
bring half of the program with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.app.command_table import load
from thumbwheel.core.config import Config
from thumbwheel.core.plugins import VariantTable
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.training.algorithms import ALGORITHMS

STAGES = {
    "access": "thumbwheel.access.settings:AccessConfig",
    "blobs": "thumbwheel.models.blob_settings:BlobsConfig",
    "cache": "thumbwheel.models.blob_settings:CacheConfig",
    "capture": "thumbwheel.capture.redact:CaptureConfig",
    "dataset": "thumbwheel.datasets.types:DatasetConfig",
    "endpoints": "thumbwheel.models.settings:EndpointConfig",
    "evaluation": "thumbwheel.evaluation.types:EvaluationConfig",
    "experiment": "thumbwheel.experiments.types:ExperimentConfig",
    "gate": "thumbwheel.evaluation.policy:GatePolicy",
    "gateway": "thumbwheel.gateway.settings:GatewayConfig",
    "host": "thumbwheel.db.hosts:HostConfig",
    "jobs": "thumbwheel.jobs.types:JobsConfig",
    "label": "thumbwheel.review.label_config:LearnConfig",
    "log": "thumbwheel.app.service_settings:LogConfig",
    "loop": "thumbwheel.loop.cycle_types:CycleConfig",
    "mcp": "thumbwheel.app.service_settings:McpConfig",
    "notify": "thumbwheel.notify.settings:NotifyConfig",
    "placement": "thumbwheel.training.placement:PlacementConfig",
    "quotas": "thumbwheel.capture.quota:QuotaConfig",
    "retention": "thumbwheel.homes.retention:RetentionConfig",
    "rewards": "thumbwheel.rewards.combine:RewardsConfig",
    "rewrite": "thumbwheel.rewards.rewrite_config:RewriteConfig",
    "server": "thumbwheel.app.service_settings:ServerConfig",
    "template": "thumbwheel.models.template_settings:TemplateConfig",
    "training": "thumbwheel.training.types:TrainingSwitch",
}
"""Section of a stage -> "module:class"."""
VARIANTS: Mapping[str, VariantTable[Any]] = {"train": ALGORITHMS, "deploy": TARGETS}
"""What the section of a variant begins with -> the table; the variant has its class as `Config`."""


class Sections(Mapping[str, type[Config]]):
    """Section of the YAML file -> its class."""

    def __init__(self) -> None:
        self._names = [*STAGES]
        for prefix, table in VARIANTS.items():
            self._names += [f"{prefix}.{name}" for name in table.names()]

    def __getitem__(self, section: str) -> type[Config]:
        if section not in self._names:
            raise KeyError(section)
        if section in STAGES:
            stage_class: type[Config] = load(STAGES[section])
            return stage_class
        prefix, _, name = section.partition(".")
        variant_class: type[Config] = VARIANTS[prefix].get(name).Config
        return variant_class

    def __contains__(self, section: object) -> bool:
        return section in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def sections() -> Sections:
    """Return section of the YAML file -> config class."""
    return Sections()
