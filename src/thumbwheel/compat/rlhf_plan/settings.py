"""The plan's `rlhf:` settings as ours. Every key that the plan documents becomes a setting, becomes
a word of a command, or is left out with its reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from thumbwheel.app.settings import sections
from thumbwheel.core.config import Sources, check_sections
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest

ROOT = "rlhf"
SETTINGS = {
    "enabled": "training.enabled",
    "reward_model.training.epochs": "train.reward.num_train_epochs",
    "reward_model.training.batch_size": "train.reward.batch_size",
    "reward_model.training.learning_rate": "train.reward.learning_rate",
    "ppo.training.epochs": "train.ppo.max_steps",
    "ppo.training.batch_size": "train.ppo.batch_size",
    "ppo.training.learning_rate": "train.ppo.learning_rate",
    "ppo.training.kl_coef": "train.ppo.init_kl_coef",
}
"""Their key -> our setting. An epoch of their PPO is one batch of queries, which is a step."""
COMMANDS = {
    "feedback.storage": "thumbwheel import feedback_jsonl {value} --agent AGENT",
    "reward_model.base_model": "thumbwheel train reward --agent AGENT --base {value} --loss-type "
    "classification",
    "ppo.base_model": "thumbwheel train ppo --agent AGENT --base {value} --reward-model rm1",
}
"""Their key -> the command of which it is a word: data and models are named where they are used."""
CONTINUOUS = "there is no continuous learning yet: run the commands from a timer"
COMPARED = (
    "there are no A/B tests yet: thumbwheel evaluate VERSION --against VERSION compares two "
    "versions offline"
)
LEFT_OUT = {
    "feedback.collection_rate": "every rating counts: a sample would throw away what people took "
    "the trouble to say. The share of sessions that are recorded: gateway.agents.AGENT.record",
    "continuous_learning.enabled": CONTINUOUS,
    "continuous_learning.buffer_size": "nothing is dropped from a buffer: feedback is stored for "
    "good",
    "continuous_learning.train_threshold": CONTINUOUS,
    "ab_testing.enabled": COMPARED,
    "ab_testing.variants": COMPARED,
}
"""Their key -> why nothing reads it."""
KNOWN = (*SETTINGS, *COMMANDS, *LEFT_OUT)
GROUPS = {
    ".".join(key.split(".")[:depth]) for key in KNOWN for depth in range(1, key.count(".") + 1)
}
"""The keys that hold others."""


@dataclass(frozen=True)
class Converted:
    """What became of a file: our settings by section, commands to run, and key -> reason of what
    was left out."""

    settings: Mapping[str, Any]
    commands: list[str]
    left_out: Mapping[str, str]

    def as_yaml(self) -> str:
        """The text of a thumbwheel.yaml."""
        return yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True)


def convert_settings(path: Path) -> Converted:
    """Our settings for the `rlhf:` file at `path`; raises ConfigError for a key that is not
    documented and a value that cannot be taken."""
    section = Sources.read(path).file.get(ROOT)
    where = f"file {str(path)!r}"
    if not isinstance(section, Mapping):
        raise ConfigError(
            where,
            f"it has no section {ROOT!r} with settings",
            "Give the plan's YAML file; ours is thumbwheel.yaml",
        )
    settings: dict[str, Any] = {}
    commands: list[str] = []
    left_out: dict[str, str] = {}
    for key, value in _leaves(section, where):
        if key in SETTINGS:
            _put(settings, SETTINGS[key].split("."), value)
        elif key in COMMANDS:
            commands.append(COMMANDS[key].format(value=shlex.quote(str(value))))
        elif key in LEFT_OUT:
            left_out[key] = LEFT_OUT[key]
        else:
            raise ConfigError(
                f"setting {f'{ROOT}.{key}'!r} in {where}",
                "the plan knows no such key",
                f"Remove it.{nearest(key, KNOWN)}",
            )
    _check(settings, where)
    return Converted(settings, commands, left_out)


def _leaves(section: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key with the keys above it, value) of everything that holds no further keys."""
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in GROUPS:
            yield from _leaves(value, where, f"{key}.")
        elif key in GROUPS:
            raise ConfigError(
                f"setting {f'{ROOT}.{key}'!r} = {value!r} in {where}",
                "it holds other settings",
                "Indent them below it",
            )
        else:
            yield key, value


def _put(settings: dict[str, Any], parts: list[str], value: Any) -> None:
    for part in parts[:-1]:
        settings = settings.setdefault(part, {})
    settings[parts[-1]] = value


def _check(settings: Mapping[str, Any], where: str) -> None:
    """Read the converted settings as our own are read; raises ConfigError."""
    converted = Sources(settings, f"what {where} became", {})
    models = sections()
    check_sections(converted, models)
    for section in {setting.rpartition(".")[0] for setting in SETTINGS.values()}:
        converted.load(models[section], section)
