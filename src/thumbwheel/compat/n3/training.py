"""`train_reward_model` and `RLHFTrainer` of the n3 server: scores to a reward model, and PPO
against it.

Both keep a home of their own below the output folder, in which `thumbwheel train reward` and
`thumbwheel train ppo` run. Answers are sampled from the whole distribution (top_k 0, top_p 1),
which PPO needs: a cut distribution is not the one whose ratios it clips.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from thumbwheel.app.open import opener
from thumbwheel.compat.n3.datasets import (
    FeedbackDataset,
    FeedbackExample,
    example_of,
    prepare_feedback_dataset,
)
from thumbwheel.compat.reward_model import SavedRewardModel
from thumbwheel.compat.training_rows import import_rows
from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, DataError, InputError, TrainingError
from thumbwheel.db.workspace import Workspace

AGENT = "policy"
RESULTS = "training_results.json"
REWARD_CARD = "reward.json"


@dataclass
class DatasetConfig:
    """How feedback becomes datasets."""

    max_length: int = 512
    max_prompt_length: int = 256
    train_split: float = 0.8
    normalize_scores: bool = True


@dataclass
class RewardModelConfig:
    """Settings of a reward model: an adapter over the base, and a head that reads the last token of
    the answer."""

    base_model: str = "gpt2"
    use_lora: bool = True
    lora_r: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    learning_rate: float | None = None
    batch_size: int = 8
    num_epochs: float = 3
    max_grad_norm: float = 1.0
    max_length: int = 512
    device: str = "auto"

    def options(self) -> dict[str, Any]:
        """As settings of `thumbwheel train reward`. A learning rate that is unset is the one for
        the base's width."""
        return {
            "loss_type": "regression",
            **_adapter(self),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "num_train_epochs": self.num_epochs,
            "max_grad_norm": self.max_grad_norm,
            "max_length": self.max_length,
            "device": self.device,
        }


@dataclass
class TrainingConfig:
    """Settings of both stages. `target_kl` is nats an answer of `max_new_tokens`; None leaves the
    weight of the KL as it is."""

    base_model: str = "gpt2"
    use_lora: bool = True
    lora_r: int = 8
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    learning_rate: float | None = None
    batch_size: int = 8
    mini_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    ppo_epochs: int = 4
    max_grad_norm: float = 1.0
    init_kl_coef: float = 0.2
    target_kl: float | None = 6.0
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 0.1
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_steps: int = 1000
    device: str = "auto"
    train_reward_model_first: bool = True
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    reward_model_config: RewardModelConfig | None = None

    def reward_model(self) -> RewardModelConfig:
        """The settings of the reward model: its own, else those of the policy."""
        return self.reward_model_config or RewardModelConfig(
            self.base_model,
            self.use_lora,
            self.lora_r,
            self.lora_alpha,
            max_length=self.dataset.max_length,
            device=self.device,
        )

    def options(self, reward_model: Path) -> dict[str, Any]:
        """As settings of `thumbwheel train ppo`; raises ConfigError for sampling that PPO cannot
        learn from."""
        if self.top_k or self.top_p < 1:
            raise ConfigError(
                f"top_k {self.top_k}, top_p {self.top_p}",
                "PPO learns from answers sampled from the whole distribution",
                "Leave top_k at 0 and top_p at 1",
            )
        return {
            "reward_functions": (),
            "reward_model": str(reward_model),
            **_adapter(self),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size * self.gradient_accumulation_steps,
            "num_generations": 1,
            "num_mini_batches": max(1, self.batch_size // self.mini_batch_size),
            "num_ppo_epochs": self.ppo_epochs,
            "max_grad_norm": self.max_grad_norm,
            "init_kl_coef": self.init_kl_coef,
            "kl_target_per_token": None
            if self.target_kl is None
            else self.target_kl / self.max_new_tokens,
            "gamma": self.gamma,
            "lam": self.lam,
            "cliprange": self.cliprange,
            "cliprange_value": self.cliprange_value,
            "vf_coef": self.vf_coef,
            "max_completion_length": self.max_new_tokens,
            "max_length": self.dataset.max_length,
            "temperature": self.temperature,
            "max_steps": self.max_steps,
            "device": self.device,
        }


def _adapter(config: RewardModelConfig | TrainingConfig) -> dict[str, Any]:
    """What is trained: a LoRA adapter, or every layer. Dropout does not exist here, as it makes
    equal answers score differently."""
    if config.lora_dropout:
        raise ConfigError(
            f"lora_dropout {config.lora_dropout!r}",
            "adapters are trained without dropout here",
            "Set it to 0",
        )
    tuning = "lora" if config.use_lora else "full"
    return {"tuning": tuning, "lora_r": config.lora_r, "lora_alpha": config.lora_alpha}


@dataclass
class TrainingResult:
    """What a training came to. The final reward is that of greedy answers to held-out prompts by
    the model that was kept."""

    model_path: str
    reward_model_path: str | None
    feedback_count: int
    final_reward_mean: float | None
    final_reward_std: float | None
    training_steps: int
    reward_history: list[float]
    kl_history: list[float]
    loss_history: list[float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, path: str | Path) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> TrainingResult:
        """Read a file of `save`, or the training_results.json of an export; raises InputError."""
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"file {str(path)!r}", str(error), "Name a training_results.json"
            ) from None


class RewardModel(SavedRewardModel):
    """A trained reward model in `folder`. Scores lie about -1 to 1 as they were normalised;
    `validation` has its errors (mse, mae)."""

    def __init__(
        self, folder: str | Path, device: str = "auto", validation: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder, device)
        self.validation = dict(validation or {})

    def score(self, prompt: str, response: str) -> float:
        """The score of an answer; raises DataError for one that is longer than the model reads."""
        value = self.scores([FeedbackExample(prompt, response, 0.0)])[0]
        if value != value:
            raise DataError(
                "an answer",
                "it is longer than the reward model reads",
                "Train with a larger max_length",
            )
        return value

    def scores(self, examples: Iterable[FeedbackExample]) -> list[float]:
        """The score of each answer; nan for one that is too long."""
        from thumbwheel.engine.reward_model import RewardInput

        answers = [
            RewardInput([{"role": "user", "content": example.prompt}], example.response)
            for example in examples
        ]
        return self.scorer().score(answers)


def train_reward_model(
    train_dataset: FeedbackDataset,
    val_dataset: FeedbackDataset | None = None,
    config: RewardModelConfig | None = None,
    tokenizer: Any = None,
    *,
    output_dir: str | Path = "reward_model_training",
) -> RewardModel:
    """Fit scores by squared error on `train_dataset`, and measure the result on `val_dataset`,
    which training never sees.

    `tokenizer` is the base's own in any case.
    """
    config = config or RewardModelConfig()
    # scores that are not normalised are learned as they are
    scale = train_dataset.scale if train_dataset.normalize_scores else (-1.0, 1.0)
    # an agent for each set of rows: earlier trainings in this folder had rows of their own
    agent = f"{AGENT}-{_digest([asdict(example) for example in train_dataset.examples])}"
    with opener(Path(output_dir) / "home", None, "info")() as ws:
        _import(ws, agent, train_dataset.examples, Path(output_dir))
        model = _reward_model(ws, agent, config, scale)
    if val_dataset is not None and len(val_dataset):
        model.validation = _errors(model, val_dataset)
    return model


class RLHFTrainer:
    """Reward model, then PPO against it."""

    def __init__(self, config: TrainingConfig | None = None) -> None:
        self.config = config or TrainingConfig()
        self.reward_model: RewardModel | None = None

    def train_reward_model_from_feedback(
        self, feedbacks: Iterable[Mapping[str, Any]], output_dir: str | Path = "rlhf"
    ) -> RewardModel:
        data = self.config.dataset
        train, validation = prepare_feedback_dataset(
            feedbacks, None, data.max_length, data.normalize_scores, data.train_split
        )
        self.reward_model = train_reward_model(
            train, validation, self.config.reward_model(), output_dir=Path(output_dir)
        )
        return self.reward_model

    def train(
        self,
        feedbacks: Iterable[Mapping[str, Any]],
        output_dir: str | Path,
        reward_model_path: str | Path | None = None,
    ) -> TrainingResult:
        """Both stages, or PPO alone against the reward model in `reward_model_path`.

        Leaves `policy/v1/policy`, `policy/v1/training_results.json` and `reward_model/` in
        `output_dir`. Called again, it leaves `policy/v2`, and `reward_model/` is the one that
        judged this time.
        """
        from thumbwheel.compat.n3.version_tree import RESULTS as TREE_RESULTS
        from thumbwheel.compat.n3.version_tree import export
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.models import versions
        from thumbwheel.models.versions import require_agent
        from thumbwheel.training.train import train

        folder = Path(output_dir)
        rows = [example_of(row) for row in feedbacks]
        self.reward_model = self._judge(rows, folder, reward_model_path)
        judge = folder / "reward_model"
        if self.reward_model.folder.resolve() != judge.resolve():
            if (judge / REWARD_CARD).exists():
                shutil.rmtree(judge)
            self.reward_model.save_pretrained(judge)
        with opener(folder / "home", None, "info")() as ws:
            _import(ws, AGENT, rows, folder)
            base = find_base(self.config.base_model, ws.home.cache)
            options = self.config.options(judge.resolve())
            run = train(ws, require_agent(ws, AGENT), "ppo", base, options=options)
            if run.version is None:
                raise TrainingError(
                    f"run {run.run_id!r}",
                    run.reason or "it made no version",
                    "See its log in the home",
                )
            exported = export(ws, versions.version(ws, AGENT, run.version), "merged", folder)
        result = TrainingResult.load(exported.path.with_name(TREE_RESULTS))
        result.reward_model_path = str(judge)
        result.feedback_count = len(rows)
        result.save(folder / RESULTS)
        return result

    def estimate_training(self, feedbacks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Counts, score statistics (population deviation) and the settings; time is measured by
        `thumbwheel train ppo --dry-run`."""
        scores = [example_of(row).score for row in feedbacks]
        return {
            "feedback_count": len(scores),
            "score_mean": fmean(scores) if scores else None,
            "score_std": pstdev(scores) if scores else None,
            "estimated_steps": self.config.max_steps,
            "estimated_time_minutes": None,
            "model_config": {
                "base_model": self.config.base_model,
                "use_lora": self.config.use_lora,
                "lora_r": self.config.lora_r,
                "learning_rate": self.config.learning_rate,
            },
        }

    def _judge(
        self, rows: list[FeedbackExample], folder: Path, path: str | Path | None
    ) -> RewardModel:
        if path is not None:
            return RewardModel.load_pretrained(path, self.config.device)
        if not self.config.train_reward_model_first:
            fix = "Name one with reward_model_path, or leave train_reward_model_first on"
            raise InputError(
                "RLHFTrainer.train", "there is no reward model to judge the answers", fix
            )
        return self.train_reward_model_from_feedback(
            [asdict(row) for row in rows], folder / "reward_model_training"
        )


def _import(
    ws: Workspace,
    agent: str,
    examples: Iterable[FeedbackExample],
    folder: Path,
) -> None:
    """The rows as traces with a score. Scores outside of 0 to 1 bring the scale of all of them.

    Ids come from the content, so that a row has its own wherever it stands in a later list. Raises
    DataError where there are no rows, and InputError for one that cannot be stored.
    """
    rows = list(examples)
    if not rows:
        raise DataError("0 feedback rows", "there is nothing to train on", "Collect some")
    scores = [row.score for row in rows]
    scale = {"min": min(0.0, *scores), "max": max(1.0, *scores)}
    occurrences: Counter[str] = Counter()
    lines: list[dict[str, Any]] = []
    for row in rows:
        digest = _digest([asdict(row), scale])
        occurrences[digest] += 1
        trace_id = f"feedback-{digest}-{occurrences[digest]}"
        trace = {"type": "trace", "id": trace_id, "input": row.prompt, "output": row.response}
        if row.run_id:
            trace["session"] = row.run_id
        feedback = {
            "type": "feedback",
            "id": f"{trace_id}-score",
            "target": {"trace": trace_id},
            "kind": "score",
            "value": row.score,
            "scale": scale,
        }
        if row.notes is not None:
            feedback["comment"] = row.notes
        lines += [trace, feedback]
    import_rows(ws, agent, lines, folder / "feedback.thumbwheel.jsonl")


def _digest(content: Any) -> str:
    """A short name of JSON content, always the same."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _reward_model(
    ws: Workspace,
    agent: str,
    config: RewardModelConfig,
    scale: tuple[float, float],
) -> RewardModel:
    from thumbwheel.engine.base_check import find_base
    from thumbwheel.models import reward_models
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.train import train

    options = config.options()
    if scale[0] < scale[1]:
        options["scale"] = scale
    base = find_base(config.base_model, ws.home.cache)
    run = train(ws, require_agent(ws, agent), "reward", base, options=options)
    if run.reward_model is None:
        raise TrainingError(
            f"run {run.run_id!r}",
            run.reason or "it made no reward model",
            "See its log in the home",
        )
    log.say(f"reward model {run.reward_model} of {ws.home.path}")
    return RewardModel(
        reward_models.folder(ws, reward_models.find(ws, agent, run.reward_model)), config.device
    )


def _errors(model: RewardModel, dataset: FeedbackDataset) -> dict[str, Any]:
    """Mean squared and mean absolute error on the scale of -1 to 1; `unreadable` rows are longer
    than the model reads."""
    values = model.scores(dataset.examples)
    gaps = [value - dataset.score(index) for index, value in enumerate(values) if value == value]
    return {
        "n": len(gaps),
        "unreadable": len(values) - len(gaps),
        "mse": fmean([gap * gap for gap in gaps]) if gaps else None,
        "mae": fmean([abs(gap) for gap in gaps]) if gaps else None,
    }
