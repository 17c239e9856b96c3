"""`CommandCenterDPOTrainer`: `thumbwheel train dpo` over pairs, in a home below the output folder.

Whether the result is better than what answers today is asked by `thumbwheel evaluate` and the gate,
not here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thumbwheel.compat.command_center.config import get_config, training_options
from thumbwheel.compat.script_home import log_of, open_home
from thumbwheel.compat.training_rows import dataset_of_few, import_rows
from thumbwheel.core import ids
from thumbwheel.core.errors import (
    Conflict,
    DataError,
    InputError,
    NotFound,
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
        self.checkpoint: Path | None = None
        """The adapter that was trained or loaded last."""

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
        resume_from_checkpoint: str | Path | None = None,
    ) -> TrainingResult:
        """Train on rows of prompt, chosen, rejected and question_id; the adapter goes to `final` in
        `output_dir`.

        Rows of `eval_dataset` are never trained on. A part of the other questions is held out too.
        `resume_from_checkpoint` is a folder in `home/runs/RUN/checkpoints` of an `output_dir`: that
        run, which was stopped, goes on from its newest checkpoint, on the same rows.
        """
        train_rows, eval_rows = list(train_dataset), list(eval_dataset or ())
        result = TrainingResult(False, train_samples=len(train_rows), eval_samples=len(eval_rows))
        try:
            checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
            self._train(train_rows, eval_rows, Path(output_dir or OUTPUT), result, checkpoint)
            result.success = True
        except ThumbwheelError as error:
            result.error_message = str(error)
        return result

    def evaluate(self, eval_dataset: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Measure the adapter on pairs: `eval_accuracy`, the share of pairs whose chosen answer it
        finds more likely, `eval_loss`, the mean negative log-likelihood of a token of the chosen
        answers, and `base`, the same of its base. Raises Conflict where nothing was trained or
        loaded, InputError for a row that is no pair."""
        from thumbwheel.compat.likelihoods import RatedAnswers, compare_versions
        from thumbwheel.loop.outside_adapter import add_adapter

        checkpoint = self._require_checkpoint()
        groups = []
        for number, row in enumerate(eval_dataset, 1):
            require_texts(f"row {number}", row)
            group = RatedAnswers([{"role": "user", "content": row["prompt"]}])
            group.add(row["chosen"], 1.0)
            group.add(row["rejected"], 0.0)
            groups.append(group)
        with (
            tempfile.TemporaryDirectory(prefix="evaluation-") as folder,
            open_home(Path(folder) / "home") as ws,
        ):
            version, _ = add_adapter(ws, AGENT, checkpoint, self.base_model)
            return compare_versions(ws, AGENT, version.name, groups)

    def save_checkpoint(self, path: str | Path) -> None:
        """Copy the adapter to another folder. Raises Conflict where there is none."""
        shutil.copytree(self._require_checkpoint(), path, dirs_exist_ok=True)

    def load_checkpoint(self, path: str | Path) -> None:
        """Take the adapter in a folder, and the base that it names. Raises NotFound."""
        from thumbwheel.engine.load import adapter_base

        folder = Path(path)
        if not (folder / "adapter_config.json").is_file():
            raise NotFound(
                f"checkpoint {str(path)!r}",
                "there is no adapter",
                "Name a folder with an adapter_config.json",
            )
        self.base_model = adapter_base(folder)
        self.checkpoint = folder

    def _require_checkpoint(self) -> Path:
        if self.checkpoint is None:
            raise Conflict(
                "CommandCenterDPOTrainer",
                "nothing was trained or loaded",
                "Call train(...) or load_checkpoint(path)",
            )
        return self.checkpoint

    def _train(
        self,
        train_rows: list[Mapping[str, Any]],
        eval_rows: list[Mapping[str, Any]],
        folder: Path,
        result: TrainingResult,
        checkpoint: Path | None,
    ) -> None:
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.export.package import export
        from thumbwheel.models import versions
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import find_run, resume, train

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
                require_texts(f"{'eval' if held_out else 'train'} row {number}", row)
                lines += _lines(row, held_out)
        if not lines:
            raise DataError("0 pairs", "there is nothing to train on", "Collect some ratings")

        folder.mkdir(parents=True, exist_ok=True)
        # earlier trainings in this folder had rows of their own
        agent = f"{AGENT}-{ids.fingerprint(lines)[:16]}"
        with open_home(folder / "home", "info") as ws:
            import_rows(ws, agent, lines, folder / "pairs.thumbwheel.jsonl")
            if checkpoint is None:
                base = find_base(self.base_model, ws.home.cache)
                dataset = None
                if not eval_rows:
                    dataset = dataset_of_few(ws, agent, "pairs", len(train_rows))
                learner = require_agent(ws, agent)
                run = train(ws, learner, "dpo", base, dataset=dataset, options=self.options)
            else:
                run = resume(ws, find_run(ws, run_of(checkpoint, folder / "home")))
            if run.version is None:
                raise TrainingError(
                    f"run {run.run_id!r}",
                    run.reason or "it made no version",
                    log_of(ws, run.run_id),
                )
            exported = export(ws, versions.version(ws, agent, run.version), "adapter", final)
        last = run.metrics.get("last_step") or {}
        self.checkpoint = exported.path
        result.checkpoint_path = str(exported.path)
        result.final_loss = last.get("loss")
        result.epochs_completed = last.get("epoch") or 0
        result.metrics = dict(run.metrics)


def require_texts(what: str, row: Mapping[str, Any]) -> None:
    """Raise InputError if a row's prompt, chosen or rejected is no text."""
    for key in ("prompt", "chosen", "rejected"):
        if not isinstance(row.get(key), str):
            raise InputError(what, f"its {key} is not text", "Give all three as text")


def run_of(checkpoint: Path, home: Path) -> str:
    """Return the id of the run whose checkpoint this is, in the home of a trainer. Raises NotFound
    for another folder."""
    runs = (home / "runs").resolve()
    folder = checkpoint.resolve()
    if not folder.is_dir() or runs not in folder.parents:
        raise NotFound(
            f"checkpoint {str(checkpoint)!r}",
            "it is not of a run into this output_dir",
            f"Name a folder in {home / 'runs'}/RUN/checkpoints",
        )
    return folder.relative_to(runs).parts[0]


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
