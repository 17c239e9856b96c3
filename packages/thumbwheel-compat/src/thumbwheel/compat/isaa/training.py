"""`TrainingConfig` and `RLTrainer`: one training run over a dataset of examples, under the names of
the agent's RL pipeline.

The trainer keeps a home of its own below `output_dir`: the examples become traces with feedback
there, `thumbwheel train` does the rest. Their `grpo` learned from recorded answers with rewards,
which is `grpo_offline` here. Whether the result is better than what runs today is another question,
which `TrainingPipeline` asks and this class does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from thumbwheel.compat.isaa.hardware import MODULES, HardwareConfig
from thumbwheel.compat.script_home import open_home
from thumbwheel.compat.training_rows import dataset_of_few, import_rows
from thumbwheel.core import ids, log
from thumbwheel.core.errors import ConfigError, Conflict, DataError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.types import RunResult, RunState

AGENT = "agent"
"""Prefix of the agents of a trainer's home: each set of examples has its own agent."""
METHODS = {"grpo": "grpo_offline", "kto": "kto"}
QUESTION = "User: "
RewardFunc = Callable[..., Sequence[float]]
"""A reward function as TRL calls it: `prompts` and `completions` -> a number for each."""


@dataclass
class TrainingConfig:
    """The settings of a run. Rows an update are `per_device_batch_size` times
    `gradient_accumulation_steps`."""

    base_model: str = "Qwen/Qwen2.5-1.5B-Instruct"
    output_dir: str = "./rl_output"
    method: str = "grpo"
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_target_modules: list[str] = field(default_factory=lambda: list(MODULES))
    learning_rate: float = 5e-5
    num_epochs: float = 3
    per_device_batch_size: int = 1
    gradient_accumulation_steps: int = 8
    max_seq_length: int = 2048
    num_generations: int = 4
    max_completion_length: int = 512
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    use_cpu: bool = True
    use_bf16: bool = False
    use_fp16: bool = False
    gradient_checkpointing: bool = True
    warmup_ratio: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    logging_steps: int = 10
    save_steps: int = 100
    eval_steps: int = 50
    early_stopping_patience: int | None = 3

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_hardware_config(cls, hw_config: HardwareConfig, **overrides: Any) -> TrainingConfig:
        """Return the settings that suit a machine, changed by `overrides`. Raises ConfigError for a
        setting that does not exist."""
        names = {setting.name for setting in fields(cls)}
        for name in overrides:
            if name not in names:
                raise ConfigError(
                    f"setting {name!r}",
                    "TrainingConfig has no such setting",
                    nearest(name, sorted(names)) or "Leave it out",
                )
        arguments = hw_config.to_training_args()
        derived = {
            "lora_r": hw_config.lora_r,
            "lora_alpha": hw_config.lora_alpha,
            "per_device_batch_size": arguments["per_device_train_batch_size"],
            "gradient_accumulation_steps": arguments["gradient_accumulation_steps"],
            "num_generations": hw_config.num_generations,
            "use_cpu": not hw_config.uses_gpu,
            "use_bf16": hw_config.use_bf16,
            "use_fp16": hw_config.use_fp16,
            "gradient_checkpointing": hw_config.gradient_checkpointing,
        }
        return cls(**(derived | overrides))

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> TrainingConfig:
        """Read what `save` wrote, here or in their system. Settings that do not exist here are
        named and not used. Raises InputError."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            names = {setting.name for setting in fields(cls)}
            for name in values.keys() - names:
                log.say(f"note: the setting {name} of {path} does not exist here and is not used")
            return cls(**{name: value for name, value in values.items() if name in names})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"file {str(path)!r}", str(error), "Name a file that TrainingConfig.save wrote"
            ) from None

    def options(self) -> dict[str, Any]:
        """Return the settings of `thumbwheel train METHOD`.

        Half precision is bfloat16.
        """
        shared = {
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.num_epochs,
            # whoever calls the trainer has chosen the examples
            "min_rows": 1,
            "min_steps": 1,
            "batch_size": self.per_device_batch_size * self.gradient_accumulation_steps,
            "max_length": self.max_seq_length,
            "lora_r": self.lora_r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "lora_targets": ",".join(self.lora_target_modules) or "all-linear",
            "device": "cpu" if self.use_cpu else "auto",
            "dtype": "bfloat16" if self.use_bf16 or self.use_fp16 else "auto",
            "gradient_checkpointing": self.gradient_checkpointing,
            "warmup_ratio": self.warmup_ratio,
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "logging_steps": self.logging_steps,
            "save_steps": self.save_steps,
            "eval_steps": self.eval_steps,
            "early_stopping_patience": self.early_stopping_patience,
            "beta": self.beta,
        }
        if self.method != "kto":
            return shared
        weights = {
            "desirable_weight": self.desirable_weight,
            "undesirable_weight": self.undesirable_weight,
        }
        return shared | weights


class RLTrainer:
    """Trains a LoRA adapter by KTO or by GRPO on recorded groups, and writes the model."""

    def __init__(self, config: TrainingConfig) -> None:
        if config.method not in METHODS:
            raise ConfigError(
                f"method {config.method!r}",
                "there is no such method",
                f"Known: {', '.join(METHODS)}",
            )
        self.config = config
        self.output_dir = Path(config.output_dir)
        self.training_stats: dict[str, Any] = {}
        self._result: RunResult | None = None
        self._agent = AGENT
        self.output_dir.mkdir(parents=True, exist_ok=True)
        config.save(self.output_dir / "training_config.json")

    def setup(self) -> RLTrainer:
        """Check the settings and the base before anything is trained; raises ConfigError,
        ModelError, MissingExtra."""
        from thumbwheel.models.base import locate

        self.config.options()
        locate(self.config.base_model)
        return self

    def train(
        self, dataset: Iterable[Any], reward_funcs: Sequence[RewardFunc] | None = None
    ) -> RunResult:
        """Train on examples: `KTOExample` or `GRPOExample` objects, their dicts, or a Hugging Face
        dataset of them.

        With `reward_funcs` the answers of a group are worth the sum of what these functions say of
        them, instead of the example's own rewards. Each is called as TRL calls it, with `prompts`
        and `completions`, and returns a number for each completion.

        Raises InputError for one that cannot be trained on, and DataError where there are none.
        """
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.algorithms import ALGORITHMS
        from thumbwheel.training.train import train

        examples = list(dataset)
        lines: list[dict[str, Any]] = []
        for number, row in enumerate(examples):
            lines += self._lines(number, row, reward_funcs or ())
        if not lines:
            raise DataError(
                "0 examples",
                "there is nothing to train on",
                "Build them with KTODatasetBuilder or GRPODatasetBuilder",
            )
        # earlier trainings in this folder had rows of their own
        self._agent = f"{AGENT}-{ids.fingerprint(lines)[:16]}"
        path = self.output_dir / f"{self.config.method}_dataset.thumbwheel.jsonl"
        method = METHODS[self.config.method]
        shape = ALGORITHMS.get(method).needs
        with self._home() as ws:
            import_rows(ws, self._agent, lines, path)
            result = train(
                ws,
                require_agent(ws, self._agent),
                method,
                find_base(self.config.base_model, ws.home.cache),
                dataset=dataset_of_few(ws, self._agent, shape, len(examples)),
                options=self.config.options(),
            )
        self._result = result
        last = result.metrics.get("last_step") or {}
        self.training_stats = {
            "method": self.config.method,
            "training_time_seconds": result.metrics.get("seconds"),
            "train_loss": last.get("loss"),
            "epochs": last.get("epoch"),
            "total_steps": result.metrics.get("steps"),
        }
        return result

    def train_kto(self, dataset: Iterable[Any]) -> RunResult:
        """Call `train` on a trainer whose method is kto."""
        return self._train_by("kto", dataset)

    def train_grpo(
        self, dataset: Iterable[Any], reward_funcs: Sequence[RewardFunc] | None = None
    ) -> RunResult:
        """Call `train` on a trainer whose method is grpo."""
        return self._train_by("grpo", dataset, reward_funcs)

    def save_model(self, output_path: str | Path | None = None, merge_lora: bool = True) -> str:
        """Write the model, merged or as an adapter, with `training_stats.json`, to `output_path`
        (default: final below output_dir)."""
        from thumbwheel.export.package import export
        from thumbwheel.models import versions

        finished = self._finished()
        if finished.version is None:
            raise Conflict(
                "save_model",
                finished.reason or "the run made no version",
                "See its result: trainer.evaluate()",
            )
        folder = Path(output_path) if output_path else self.output_dir / "final"
        with self._home() as ws:
            version = versions.version(ws, self._agent, finished.version)
            export(ws, version, "merged" if merge_lora else "adapter", folder)
        (folder / "training_stats.json").write_text(
            json.dumps(self.training_stats, indent=2) + "\n", encoding="utf-8"
        )
        return str(folder)

    def evaluate(
        self, eval_dataset: Iterable[Any] | None = None, metrics: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Measure the trained model on examples as `train` takes them: `eval_loss`, the mean
        negative log-likelihood of a token of the good answers, `eval_accuracy`, the share of better
        and worse answers that the model ranks as the examples do, and `base`, the same of the model
        before training. `metrics` selects by name.

        Without a dataset, return the metrics of the run on its held-out rows: before training
        (`base`) and at the best checkpoint (`best`).

        Raises Conflict before training, InputError for a row that is no example.
        """
        finished = self._finished()
        if eval_dataset is None:
            measured = {name: finished.metrics.get(f"dev_{name}") for name in ("base", "best")}
        else:
            measured = self._measured(list(eval_dataset))
        return {name: measured[name] for name in metrics or measured if name in measured}

    def _measured(self, examples: list[Any]) -> dict[str, Any]:
        """Measure the base and the trained version on examples."""
        from thumbwheel.compat.likelihoods import RatedAnswers, compare_versions

        groups: dict[str, RatedAnswers] = {}
        for number, row in enumerate(examples):
            lines = list(self._lines(number, row, ()))
            for trace, feedback in zip(lines[::2], lines[1::2], strict=True):
                group = groups.setdefault(json.dumps(trace["input"]), RatedAnswers(trace["input"]))
                group.add(trace["output"], float(feedback["value"]))
        version = self._finished().version
        if version is None:
            raise Conflict("RLTrainer.evaluate", "the run made no version", "See its result")
        with self._home() as ws:
            return compare_versions(ws, self._agent, version, list(groups.values()))

    def get_training_summary(self) -> str:
        """Summarise the training in a few lines."""
        rows = self.config.per_device_batch_size * self.config.gradient_accumulation_steps
        lines = [
            f"{self.config.method} over {self.config.base_model}",
            f"LoRA r {self.config.lora_r}, alpha {self.config.lora_alpha}; {rows} rows an update, "
            f"rate {self.config.learning_rate:g}",
        ]
        lines += [f"{name}: {value}" for name, value in self.training_stats.items()]
        return "\n".join(lines)

    def _train_by(
        self,
        method: str,
        dataset: Iterable[Any],
        reward_funcs: Sequence[RewardFunc] | None = None,
    ) -> RunResult:
        if self.config.method != method:
            raise ConfigError(
                f"train_{method}",
                f"the method of this trainer is {self.config.method!r}",
                "Call train(dataset)",
            )
        return self.train(dataset, reward_funcs)

    def _finished(self) -> RunResult:
        if self._result is None or self._result.state not in (
            RunState.FINISHED,
            RunState.NOTHING_LEARNED,
        ):
            raise Conflict("RLTrainer", "no training has finished", "Call train(dataset) first")
        return self._result

    def _home(self) -> AbstractContextManager[Workspace]:
        return open_home(self.output_dir / "home", "info")

    def _lines(
        self, number: int, row: Any, reward_funcs: Sequence[RewardFunc]
    ) -> Iterator[dict[str, Any]]:
        """Yield Thumbwheel's lines for one example: a trace for each answer, and its label or
        reward. Raises InputError for a row that is not an example of the method."""
        fix = "KTO needs prompt, completion and label; GRPO needs prompt, completions and rewards"
        try:
            if isinstance(row, Mapping):
                example = dict(row)
            elif hasattr(row, "to_dict"):
                example = row.to_dict()
            else:
                raise ValueError("it is not an object")
            prompt = _text("prompt", example["prompt"])
            if self.config.method == "kto":
                yield from _lines_with_label(
                    number, prompt, example["completion"], example["label"]
                )
            else:
                completions = example["completions"]
                if reward_funcs:
                    rewards = total_rewards([prompt] * len(completions), completions, reward_funcs)
                else:
                    rewards = example["rewards"]
                yield from _lines_with_rewards(number, prompt, completions, rewards)
        except KeyError as error:
            raise InputError(f"example {number}", f"it has no {error}", fix) from None
        except ValueError as error:
            raise InputError(f"example {number}", str(error), fix) from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} {str(value)[:60]} is no text")
    return value


def _lines_with_label(
    number: int, prompt: str, completion: Any, label: Any
) -> Iterator[dict[str, Any]]:
    if label not in (True, False):
        raise ValueError(f"label {label!r} is neither true nor false")
    trace_id = f"example-{number}"
    yield {
        "type": "trace",
        "id": trace_id,
        "input": _messages(prompt),
        "output": _text("completion", completion),
    }
    yield {
        "type": "feedback",
        "id": f"{trace_id}-label",
        "target": {"trace": trace_id},
        "kind": "thumb",
        "value": bool(label),
    }


def total_rewards(
    prompts: Sequence[str], completions: Sequence[str], reward_funcs: Sequence[RewardFunc]
) -> list[float]:
    """Return for each completion the sum of what the functions say. Raises ValueError where one
    says too little."""
    totals = [0.0] * len(completions)
    for function in reward_funcs:
        rewards = list(function(prompts=list(prompts), completions=list(completions)))
        if len(rewards) != len(completions):
            name = getattr(function, "__name__", str(function))
            raise ValueError(f"{name} gives {len(rewards)} rewards of {len(completions)} answers")
        totals = [total + reward for total, reward in zip(totals, rewards, strict=True)]
    return totals


def _lines_with_rewards(
    number: int, prompt: str, completions: list[Any], rewards: list[Any]
) -> Iterator[dict[str, Any]]:
    """Yield a trace and a score for each completion. The scale is the group's own, as advantages do
    not depend on where a scale begins and ends. Raises ValueError if they do not fit together."""
    if not completions:
        raise ValueError("it has no completions")
    if len(completions) != len(rewards):
        raise ValueError(f"it has {len(completions)} completions and {len(rewards)} rewards")
    for reward in rewards:
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise ValueError(f"reward {reward!r} is no number")
    scale = {"min": min(rewards), "max": max(rewards)}
    if scale["min"] == scale["max"]:
        scale["max"] += 1
    for index, (completion, reward) in enumerate(zip(completions, rewards, strict=True)):
        trace_id = f"example-{number}-{index}"
        text = _text("completion", completion)
        yield {"type": "trace", "id": trace_id, "input": _messages(prompt), "output": text}
        feedback = {"type": "feedback", "id": f"{trace_id}-reward", "target": {"trace": trace_id}}
        yield feedback | {"kind": "score", "value": reward, "scale": scale}


def _messages(prompt: str) -> list[dict[str, str]]:
    """Return a prompt text (`system`, a blank line, `User: question`) as chat messages."""
    system, mark, question = prompt.rpartition(f"\n\n{QUESTION}")
    if not mark:
        return [{"role": "user", "content": prompt.removeprefix(QUESTION)}]
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]
