"""`CommandCenterDPOTrainer`: `thumbwheel train dpo` over pairs, in a home below the output folder.

Whether the result is better than what answers today is asked by `thumbwheel evaluate` and the gate,
not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thumbwheel.app.open import opener
from thumbwheel.compat.command_center.config import get_config, training_options
from thumbwheel.compat.training_rows import import_rows
from thumbwheel.core import ids
from thumbwheel.core.errors import (
    Conflict,
    DataError,
    InputError,
    ThumbwheelError,
    TrainingError,
)

AGENT = "widgets"
"""Prefix of the agents of a trainer's home: each set of pairs has its own agent."""
OUTPUT = "rl_checkpoints"


@dataclass
class TrainingResult:
    """The result of a training; `error_message` says why it failed."""

    success: bool
    checkpoint_path: str | None = None
    final_loss: float | None = None
    train_samples: int = 0
    eval_samples: int = 0
    epochs_completed: float = 0
    error_message: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)


class CommandCenterDPOTrainer:
    """Trains a LoRA adapter by DPO. `config` is what `get_config` returns, or has settings of
    `thumbwheel train dpo` and `base_model`, which win over those of the name. A name alone may
    stand in its place.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | None = None,
        config_name: str = "default",
    ) -> None:
        own_settings: dict[str, Any] = {}
        if isinstance(config, str):
            config_name = config
        settings = get_config(config_name)
        if isinstance(config, Mapping):
            if config.keys() & {"dpo", "qlora"}:
                settings |= config
            else:
                own_settings = dict(config)
        self.base_model = str(own_settings.pop("base_model", settings["base_model"]))
        self.options = training_options(settings) | own_settings

    def load_base_model(self) -> CommandCenterDPOTrainer:
        """Check the settings and the base before anything is trained; raises ConfigError,
        ModelError, MissingExtra.
        """
        from thumbwheel.core.config import build
        from thumbwheel.models.base import locate, require_training
        from thumbwheel.training.algorithms.dpo import DpoConfig

        require_training()
        build(DpoConfig, self.options, "settings of CommandCenterDPOTrainer")
        locate(self.base_model)
        return self

    def train(
        self,
        train_dataset: Iterable[Mapping[str, Any]],
        eval_dataset: Iterable[Mapping[str, Any]] | None = None,
        output_dir: str | Path | None = None,
    ) -> TrainingResult:
        """Train on rows of prompt, chosen, rejected and question_id; the adapter goes to `final` in
        `output_dir`.

        Rows of `eval_dataset` are never trained on. A part of the other questions is held out too.
        """
        train_rows, eval_rows = list(train_dataset), list(eval_dataset or ())
        result = TrainingResult(False, train_samples=len(train_rows), eval_samples=len(eval_rows))
        try:
            self._train(train_rows, eval_rows, Path(output_dir or OUTPUT), result)
            result.success = True
        except ThumbwheelError as error:
            result.error_message = str(error)
        return result

    def _train(
        self,
        train_rows: list[Mapping[str, Any]],
        eval_rows: list[Mapping[str, Any]],
        folder: Path,
        result: TrainingResult,
    ) -> None:
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.export.package import export
        from thumbwheel.models import versions
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train

        final = folder / "final"
        if final.exists():
            raise Conflict(
                f"folder {str(final)!r}",
                "it already contains a trained adapter",
                "Name another output_dir",
            )
        lines: list[dict[str, Any]] = []
        for rows, held_out in ((train_rows, False), (eval_rows, True)):
            for number, row in enumerate(rows, 1):
                for key in ("prompt", "chosen", "rejected"):
                    if not isinstance(row.get(key), str):
                        what = f"{'eval' if held_out else 'train'} row {number}"
                        raise InputError(what, f"its {key} is not text", "Give all three as text")
                lines += _lines(row, held_out)
        if not lines:
            raise DataError("0 pairs", "there is nothing to train on", "Collect some ratings")

        folder.mkdir(parents=True, exist_ok=True)
        # earlier trainings in this folder had rows of their own
        agent = f"{AGENT}-{ids.fingerprint(lines)[:16]}"
        with opener(folder / "home", None, "info")() as ws:
            import_rows(ws, agent, lines, folder / "pairs.thumbwheel.jsonl")
            base = find_base(self.base_model, ws.home.cache)
            run = train(ws, require_agent(ws, agent), "dpo", base, options=self.options)
            if run.version is None:
                raise TrainingError(
                    f"run {run.run_id!r}",
                    run.reason or "it made no version",
                    "See its log in the home",
                )
            exported = export(ws, versions.version(ws, agent, run.version), "adapter", final)
        last = run.metrics.get("last_step") or {}
        result.checkpoint_path = str(exported.path)
        result.final_loss = last.get("loss")
        result.epochs_completed = last.get("epoch") or 0
        result.metrics = dict(run.metrics)


def train_from_config(
    dataset: Any, config_name: str = "default", output_dir: str | Path | None = None
) -> TrainingResult:
    """Train by the settings of this name on a DatasetDict with train and validation, or on rows."""
    trainer = CommandCenterDPOTrainer(config_name=config_name)
    if isinstance(dataset, Mapping):
        return trainer.train(dataset["train"], dataset.get("validation"), output_dir)
    return trainer.train(dataset, None, output_dir)


def _lines(row: Mapping[str, Any], held_out: bool) -> Iterator[dict[str, Any]]:
    """Yield Thumbwheel's lines for a pair: two answers to one question, and the preference. Rows of
    one question stay on one side of the split."""
    targets = []
    for text in (row["chosen"], row["rejected"]):
        trace_id = ids.fingerprint([row["prompt"], text, held_out])[:24]
        targets.append({"trace": trace_id})
        trace = {"type": "trace", "id": trace_id, "input": row["prompt"], "output": text}
        if row.get("question_id"):
            trace["session"] = f"question:{row['question_id']}"
        if held_out:
            trace["metadata"] = {"is_validation_data": True}
        yield trace
    yield {
        "type": "feedback",
        "kind": "preference",
        "targets": targets,
        "value": {"ranking": [[0], [1]]},
    }
