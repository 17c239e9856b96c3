"""The plan's reward model and PPO: `thumbwheel train reward` and `thumbwheel train ppo` in the home
of its `FeedbackCollector`.

A reward is the chance that people call an answer good, 0 to 1. An epoch of the plan's PPO is one
batch of queries, which is a step here. `options` are settings of the method, as `thumbwheel train
METHOD` has them; what is not named is our recommended setting.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.compat.reward_model import SavedRewardModel
from thumbwheel.compat.rlhf_plan.feedback import AGENT, FeedbackCollector
from thumbwheel.compat.script_home import log_of
from thumbwheel.compat.training_rows import dataset_of_few, import_rows
from thumbwheel.core.errors import Conflict, DataError, MissingExtra, TrainingError
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.types import RunResult

if TYPE_CHECKING:
    from datasets import Dataset

ENCODER = "microsoft/deberta-v3-base"
POLICY = "microsoft/phi-2"
SAVE_STEPS = 10


class RewardModel:
    """A reward model over `base_model`: an encoder, or a language model. It has no opinion until a
    `RewardModelTrainer` trained it.
    """

    def __init__(self, base_model: str = ENCODER, device: str = "auto") -> None:
        self.base_model = base_model
        self.device = device
        self.saved: SavedRewardModel | None = None

    @classmethod
    def load_pretrained(cls, path: str | Path, device: str = "auto") -> RewardModel:
        """Return the model that was trained into `path`. Raises ModelError."""
        saved = SavedRewardModel.load_pretrained(path, device)
        model = cls(saved.scorer().card.base, device)
        model.saved = saved
        return model

    def predict_reward(self, query: str, response: str) -> float:
        """Return the chance that the response is good. Raises Conflict before training, DataError
        for a text that is too long for the model."""
        from thumbwheel.engine.reward_model import RewardInput

        answer = RewardInput([{"role": "user", "content": query}], response)
        ((reward,),) = self.trained().scorer().training_rewards([[answer]])
        if reward != reward:
            raise DataError(
                "a response",
                "it is longer than the reward model can read",
                "Train with a larger max_length",
            )
        return reward

    def trained(self) -> SavedRewardModel:
        """Return the saved reward model. Raises Conflict before training."""
        if self.saved is None:
            raise Conflict(
                "RewardModel",
                "it has not been trained",
                "Call RewardModelTrainer.train, or RewardModel.load_pretrained",
            )
        return self.saved


class RewardModelTrainer:
    """Trains a reward model on what a collector has."""

    def __init__(
        self,
        model: RewardModel | None = None,
        feedback_collector: FeedbackCollector | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model or RewardModel()
        self.feedback_collector = feedback_collector or FeedbackCollector()
        self.options = dict(options or {})

    def prepare_dataset(self) -> Dataset:
        """Return a Hugging Face dataset of the judged answers: text (`Query: ...`, `Response: ...`)
        and label, 1.0 or 0.0."""
        try:
            from datasets import Dataset
        except ImportError:
            raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
        samples = self.feedback_collector.get_training_data()
        rows = []
        for side, label in (("positive", 1.0), ("negative", 0.0)):
            for sample in samples[side]:
                text = f"Query: {sample['query']}\nResponse: {sample['response']}"
                rows.append({"text": text, "label": label})
        return Dataset.from_list(rows)

    def train(
        self,
        output_dir: str | Path = "models/reward_model",
        num_epochs: float = 3,
    ) -> RewardModel:
        """Learn from labels which answers are good; a part of the questions is held out. The files
        in `output_dir` are replaced.

        Raises DataError where there is too little feedback, or feedback of one kind only.
        """
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models import reward_models
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train

        settings = {
            "loss_type": "classification",
            "min_rows": 1,
            "num_train_epochs": num_epochs,
            "batch_size": 8,
            "max_length": 512,
        }
        with self.feedback_collector.open() as ws:
            base = find_base(self.model.base_model, ws.home.cache)
            options = settings | self.options
            dataset = None
            if options["loss_type"] == settings["loss_type"]:
                answers = self.feedback_collector.count_answers()
                dataset = dataset_of_few(ws, AGENT, "labels", answers)
            learner = require_agent(ws, AGENT)
            run = train(ws, learner, "reward", base, dataset=dataset, options=options)
            if run.reward_model is None:
                raise TrainingError(
                    f"run {run.run_id!r}",
                    run.reason or "it made no reward model",
                    log_of(ws, run.run_id),
                )
            files = reward_models.folder(ws, reward_models.find(ws, AGENT, run.reward_model))
            shutil.copytree(files, output_dir, dirs_exist_ok=True)
        self.model.saved = SavedRewardModel(Path(output_dir), self.model.device)
        return self.model


class PPOAssistantTrainer:
    """Trains an assistant by PPO against a reward model, on the queries of a collector."""

    def __init__(
        self,
        model_name: str = POLICY,
        reward_model: RewardModel | None = None,
        feedback_collector: FeedbackCollector | None = None,
        *,
        output_dir: str | Path = "checkpoints",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.reward_model = reward_model or RewardModel()
        self.feedback_collector = feedback_collector or FeedbackCollector()
        self.output_dir = Path(output_dir)
        self.options = dict(options or {})
        self.model_path: Path | None = None
        """Where the trained model lies, once there is one."""
        self.version: str | None = None
        """Its name in the home."""

    async def train_step(self, queries: Sequence[str]) -> dict[str, Any]:
        """Train one step on exactly these queries, from the model of the step before; return the
        step's metrics.

        The model goes to `ppo_step_N`. The KL is measured against the model before the step.
        """
        return await asyncio.to_thread(self._step, list(queries))

    async def train(self, num_epochs: int = 100, queries_per_epoch: int = 32) -> RunResult:
        """Train `num_epochs` steps on `queries_per_epoch` queries each, from the base.

        The model goes to `ppo_epoch_N` in `output_dir`, and so do the adapters of every tenth step;
        those of a later training go to `VERSION/ppo_epoch_N`. A run that learned nothing makes
        none, and gives the reason in `reason`.
        """
        return await asyncio.to_thread(self._train, num_epochs, queries_per_epoch)

    def _train(self, num_epochs: int, queries_per_epoch: int) -> RunResult:
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train

        settings = self._settings(num_epochs, queries_per_epoch)
        with self.feedback_collector.open() as ws:
            base = find_base(self.model_name, ws.home.cache)
            answers = self.feedback_collector.count_answers()
            dataset = dataset_of_few(ws, AGENT, "prompts", answers)
            learner = require_agent(ws, AGENT)
            run = train(ws, learner, "ppo", base, dataset=dataset, options=settings)
            if run.version is not None:
                self.version = run.version
                is_first = not any(self.output_dir.glob("ppo_epoch_*"))
                folder = self.output_dir if is_first else self.output_dir / run.version
                target = folder / f"ppo_epoch_{num_epochs}"
                self.model_path = self._export(ws, AGENT, run.version, target)
                copy_adapters(ws.home.runs / run.run_id / "checkpoints", folder)
        return run

    def _step(self, queries: list[str]) -> dict[str, Any]:
        from thumbwheel.datasets.build import build
        from thumbwheel.datasets.types import DatasetConfig
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train

        number = 1 + len(list(self.output_dir.glob("ppo_step_*.jsonl")))
        agent = f"{AGENT}-step-{number}"
        path = self.output_dir / f"ppo_step_{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.feedback_collector.open() as ws:
            import_rows(ws, agent, [{"type": "trace", "input": query} for query in queries], path)
            dataset = build(ws, agent, "prompts", DatasetConfig(dev=0, gate=0))
            exactly = {"max_steps": 1, "batch_size": len(queries)}
            settings = self._settings(1, len(queries)) | exactly
            base = find_base(self.model_name, ws.home.cache)
            learner = require_agent(ws, agent)
            run = train(ws, learner, "ppo", base, dataset=dataset, options=settings)
            if run.version is not None:
                self.model_path = self._export(ws, agent, run.version, path.with_suffix(""))
                self.model_name = str(self.model_path)
        return dict(run.metrics.get("last_step") or {})

    def _settings(self, steps: int, queries: int) -> dict[str, Any]:
        judge = self.reward_model.trained().folder.resolve()
        settings = {
            "min_rows": 1,
            "reward_functions": (),
            "reward_model": str(judge),
            "max_steps": steps,
            "batch_size": queries,
            "save_steps": SAVE_STEPS,
            "save_total_limit": max(2, steps // SAVE_STEPS + 1),
            "max_completion_length": 256,
        }
        return settings | self.options

    def _export(self, ws: Workspace, agent: str, version: str, folder: Path) -> Path:
        from thumbwheel.export.package import export
        from thumbwheel.models import versions

        return export(ws, versions.version(ws, agent, version), "merged", folder).path


def copy_adapters(checkpoints: Path, folder: Path) -> None:
    """Copy the adapter of every tenth step's checkpoint to `ppo_epoch_N` in `folder`, where there
    is nothing yet."""
    for checkpoint in checkpoints.glob("checkpoint-*"):
        step = int(checkpoint.name.rpartition("-")[2])
        target = folder / f"ppo_epoch_{step}"
        if step % SAVE_STEPS or target.exists():
            continue
        target.mkdir(parents=True)
        for path in checkpoint.glob("adapter_*"):
            shutil.copy2(path, target)
