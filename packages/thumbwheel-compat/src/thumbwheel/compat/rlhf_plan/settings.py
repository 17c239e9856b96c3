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
from thumbwheel.core import ids
from thumbwheel.core.config import Sources, check_sections
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.plugins import nearest

ROOT = "rlhf"
SETTINGS = {
    "enabled": "training.enabled",
    "feedback.collection_rate": "gateway.agents.{agent}.record",
    "reward_model.training.epochs": "train.reward.num_train_epochs",
    "reward_model.training.batch_size": "train.reward.batch_size",
    "reward_model.training.learning_rate": "train.reward.learning_rate",
    "ppo.training.epochs": "train.ppo.max_steps",
    "ppo.training.batch_size": "train.ppo.batch_size",
    "ppo.training.learning_rate": "train.ppo.learning_rate",
    "ppo.training.kl_coef": "train.ppo.init_kl_coef",
}
"""Their key -> our setting. An epoch of their PPO is one batch of queries, which is a step; the
rate of collection is the share of sessions that the gateway records, and every rating counts."""
COMMANDS = {
    "feedback.storage": "thumbwheel import feedback_jsonl {value} --agent {agent}",
    "reward_model.base_model": "thumbwheel train reward --agent {agent} --base {value} "
    "--loss-type classification",
    "ppo.base_model": "thumbwheel train ppo --agent {agent} --base {value} --reward-model rm1",
}
"""Their key -> the command of which it is a word: data and models are named where they are used."""
SWITCHED = {
    "continuous_learning": ("enabled", "train_threshold"),
    "ab_testing": ("enabled", "variants"),
}
"""Group of their keys -> those that make one command together, if it is enabled."""
LEFT_OUT = {
    "continuous_learning.buffer_size": "nothing is dropped from a buffer: feedback is stored for "
    "good",
}
"""Their key -> why it is not read."""
OFF = "it is off there; {command} switches it on here"
_SWITCHED_KEYS = [f"{group}.{name}" for group, names in SWITCHED.items() for name in names]
KNOWN = (*SETTINGS, *COMMANDS, *_SWITCHED_KEYS, *LEFT_OUT)
GROUPS = {
    ".".join(key.split(".")[:depth]) for key in KNOWN for depth in range(1, key.count(".") + 1)
}
"""The keys that hold others."""


SECTIONS = ("training", "gateway", "train.reward", "train.ppo")
"""Of the settings above."""


@dataclass(frozen=True)
class Converted:
    """What became of a file: our settings by section, commands to run, and key -> reason of what
    was left out."""

    settings: Mapping[str, Any]
    commands: list[str]
    left_out: Mapping[str, str]

    def as_yaml(self) -> str:
        """Return the text of a thumbwheel.yaml."""
        return yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True)


def convert_settings(path: Path, agent: str = "assistant") -> Converted:
    """Convert the `rlhf:` file at `path` to Thumbwheel's settings for this agent. Raises
    ConfigError for a key that is not documented, and for an invalid value."""
    ids.slug(agent)
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
    values = dict(_leaves(section, where))
    for key, value in values.items():
        if key in SETTINGS:
            _put(settings, SETTINGS[key].format(agent=agent).split("."), value)
        elif key in COMMANDS:
            command = COMMANDS[key].format(value=shlex.quote(str(value)), agent=agent)
            commands.append(command)
        elif key in LEFT_OUT:
            left_out[key] = LEFT_OUT[key]
        elif key not in _SWITCHED_KEYS:
            raise ConfigError(
                f"setting {f'{ROOT}.{key}'!r} in {where}",
                "the plan has no such key",
                f"Remove it.{nearest(key, KNOWN)}",
            )
    for group, command in _switched_commands(values, agent, where).items():
        key = f"{group}.enabled"
        if _is_on(values.get(key), key, where):
            commands.append(command)
        else:
            left_out[key] = OFF.format(command=command)
    _check(settings, where)
    return Converted(settings, commands, left_out)


def _switched_commands(values: Mapping[str, Any], agent: str, where: str) -> dict[str, str]:
    """Return group -> its command, for the groups that the file has. Raises ConfigError for an
    invalid value."""
    commands = {}
    groups = {key.partition(".")[0] for key in values}
    if "continuous_learning" in groups:
        command = f"thumbwheel loop enable --agent {agent}"
        threshold = values.get("continuous_learning.train_threshold")
        if threshold is not None:
            if not isinstance(threshold, int) or isinstance(threshold, bool) or threshold < 1:
                key = "rlhf.continuous_learning.train_threshold"
                raise ConfigError(
                    f"setting {key!r} = {threshold!r} in {where}",
                    "it is not a number of interactions",
                    "Give 1 or more",
                )
            command += f" --least {threshold}"
        base = values.get("ppo.base_model")
        if base is not None:
            command += f" --base {shlex.quote(str(base))}"
        commands["continuous_learning"] = command
    if "ab_testing" in groups:
        variants = values.get("ab_testing.variants") or ["control", "variant_a"]
        if not isinstance(variants, list) or len(variants) < 2:
            raise ConfigError(
                f"setting 'rlhf.ab_testing.variants' = {variants!r} in {where}",
                "it is not a list of two or more variants",
                "Write [control, variant_a]",
            )
        # the control is what runs today, and each variant a version that was trained
        arms = " ".join(f"--arm v{number}" for number in range(len(variants)))
        commands["ab_testing"] = f"thumbwheel experiment start --agent {agent} {arms}"
    return commands


def _is_on(value: Any, key: str, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(
            f"setting {f'{ROOT}.{key}'!r} = {value!r} in {where}",
            "it is neither true nor false",
            "Correct it",
        )
    return value is True


def _leaves(section: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key with the keys above it, value) of everything that has no further keys below it.
    Raises ConfigError for a value in place of a group."""
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in GROUPS:
            yield from _leaves(value, where, f"{key}.")
        elif key in GROUPS:
            raise ConfigError(
                f"setting {f'{ROOT}.{key}'!r} = {value!r} in {where}",
                "it contains other settings",
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
    for section in SECTIONS:
        converted.load(models[section], section)
