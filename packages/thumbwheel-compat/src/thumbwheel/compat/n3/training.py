"""`train_reward_model` and `RLHFTrainer` of the n3 server: scores to a reward model, and PPO
against it.

Both keep a home of their own below the output folder, in which `thumbwheel train reward` and
`thumbwheel train ppo` run. The caller divides the rows, so that all of those that come in are
trained on; of prompts some are held out from PPO where there are enough of them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from thumbwheel.compat.n3.config import RewardModelConfig, TrainingConfig
from thumbwheel.compat.n3.datasets import (
    FeedbackDataset,
    FeedbackExample,
    example_of,
    prepare_feedback_dataset,
)
from thumbwheel.compat.script_home import log_of, open_home
from thumbwheel.compat.training_rows import everything_trains, import_rows
from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, DataError, InputError, ModelError, TrainingError
from thumbwheel.datasets.dataplan import plural
from thumbwheel.db.workspace import Workspace

if TYPE_CHECKING:
    from thumbwheel.compat.n3.policy_model import PolicyModel
    from thumbwheel.compat.n3.reward_model import RewardModel
    from thumbwheel.engine.prompt import PromptBuilder

AGENT = "policy"
POLICY, JUDGE, RESULTS = "policy", "reward_model", "training_results.json"


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
    with open_home(Path(output_dir) / "home", "info") as ws:
        _import(ws, agent, train_dataset.examples, Path(output_dir))
        # their dataset is cut at its max_length, and their model reads every answer all the same
        longest = max(train_dataset.max_length, config.max_length)
        model = _reward_model(ws, agent, config, scale, longest)
    if val_dataset is not None and len(val_dataset):
        model.validation = _errors(model, val_dataset)
    return model


class RLHFTrainer:
    """Reward model, then PPO against it."""

    def __init__(self, config: TrainingConfig | None = None) -> None:
        self.config = config or TrainingConfig()
        self.tokenizer: Any = None
        self.reward_model: RewardModel | None = None
        self.policy_model: PolicyModel | None = None

    def prepare_models(self) -> None:
        """Load the base's tokenizer; raises ModelError where there is no such base."""
        from transformers import AutoTokenizer

        from thumbwheel.models.base import locate

        _, folder = locate(self.config.base_model)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def prepare_policy_model(self) -> PolicyModel:
        """Load the base as a policy with a value head (`v_head`), to look at: `train` holds policy
        and critic as adapters on one base."""
        from transformers import AutoModelForCausalLM

        from thumbwheel.compat.n3.policy_model import PolicyModel
        from thumbwheel.models.base import locate

        _, folder = locate(self.config.base_model)
        self.policy_model = PolicyModel(
            AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False), self.config
        )
        return self.policy_model

    def train_reward_model_from_feedback(
        self, feedbacks: Iterable[Mapping[str, Any]], output_dir: str | Path = "rlhf"
    ) -> RewardModel:
        data = self.config.dataset
        train, validation = prepare_feedback_dataset(
            feedbacks, self.tokenizer, data.max_length, data.normalize_scores, data.train_split
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
        """Train both stages, or PPO alone against the reward model in `reward_model_path`.

        Leaves `policy/`, `reward_model/` and `training_results.json` in `output_dir`. Called again,
        it replaces them, as theirs does. The result names a reward model only where one was
        trained. Raises Conflict where `policy/` is somebody else's.
        """
        from thumbwheel.compat.n3.readiness import split_rules
        from thumbwheel.compat.n3.version_tree import results_of
        from thumbwheel.datasets.build import build
        from thumbwheel.engine.base_check import find_base
        from thumbwheel.export.package import export
        from thumbwheel.models import versions
        from thumbwheel.models.versions import require_agent
        from thumbwheel.report.written_reports import note_copy
        from thumbwheel.training.train import train

        folder = Path(output_dir)
        _require_replaceable(folder / POLICY)
        self.prepare_models()
        rows = [example_of(row) for row in feedbacks]
        self.reward_model = self._judge(rows, folder, reward_model_path)
        judge = folder / JUDGE
        if self.reward_model.folder is None:
            raise ModelError(
                f"reward model {str(reward_model_path)!r}",
                "it has no reward.json: only one that was trained here can judge a training",
                "Train it here: leave reward_model_path out",
            )
        if self.reward_model.folder.resolve() != judge.resolve():
            if judge.exists():
                shutil.rmtree(judge)
            self.reward_model.save_pretrained(judge)
        with open_home(folder / "home", "info") as ws:
            read = _as_the_policy_reads(rows, self.config)
            _import(ws, AGENT, read, folder)
            rules = split_rules(ws, len({row.prompt for row in read}))
            run = train(
                ws,
                require_agent(ws, AGENT),
                "ppo",
                find_base(self.config.base_model, ws.home.cache),
                dataset=build(ws, AGENT, "prompts", rules),
                options=self.config.options(judge.resolve()),
            )
            if run.version is None:
                raise TrainingError(
                    f"run {run.run_id!r}",
                    run.reason or "it made no version",
                    log_of(ws, run.run_id),
                )
            version = versions.version(ws, AGENT, run.version)
            note_copy(ws, version.id, judge)
            if (folder / POLICY).exists():
                shutil.rmtree(folder / POLICY)
            exported = export(ws, version, "merged", folder / POLICY)
            figures = results_of(ws, version) | {"feedback_count": len(rows)}
        result = TrainingResult(
            model_path=str(exported.path),
            reward_model_path=str(judge) if reward_model_path is None else None,
            **figures,
        )
        result.save(folder / RESULTS)
        return result

    def estimate_training(self, feedbacks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return counts, score statistics (population deviation), the settings, and the minutes by
        the tokens and the speed of this machine. Figures that need the base are None if it is not
        here."""
        from thumbwheel.compat.n3.duration import expected_minutes, learning_rate

        rows = [example_of(row) for row in feedbacks]
        scores = [row.score for row in rows]
        minutes, rate = None, self.config.learning_rate
        try:
            minutes = expected_minutes(self.config, rows)
            rate = learning_rate(self.config)
        except ModelError as error:
            log.say(f"note: no time can be estimated: {error}")
        return {
            "feedback_count": len(scores),
            "score_mean": fmean(scores) if scores else None,
            "score_std": pstdev(scores) if scores else None,
            "estimated_steps": self.config.max_steps,
            "estimated_time_minutes": minutes,
            "model_config": {
                "base_model": self.config.base_model,
                "use_lora": self.config.use_lora,
                "lora_r": self.config.lora_r,
                "learning_rate": rate,
            },
        }

    def _judge(
        self, rows: list[FeedbackExample], folder: Path, path: str | Path | None
    ) -> RewardModel:
        from thumbwheel.compat.n3.reward_model import RewardModel

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


def _as_the_policy_reads(
    rows: list[FeedbackExample], config: TrainingConfig
) -> list[FeedbackExample]:
    """Return the rows with longer prompts cut, as `PPODataset` cuts them: to the last
    `max_prompt_length` tokens, those of the chat template included."""
    from thumbwheel.engine.load import load_tokenizer
    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.models.base import locate

    _, folder = locate(config.base_model)
    builder = PromptBuilder(load_tokenizer(str(folder)))
    most = config.dataset.max_prompt_length
    cut: dict[str, str] = {}
    for prompt in {row.prompt for row in rows}:
        missing = _prompt_tokens(builder, prompt) - most
        ids = list(builder.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        # a text that is cut may be encoded in more tokens than were left of it
        while missing > 0 and len(ids) > missing:
            ids = ids[missing:]
            cut[prompt] = builder.tokenizer.decode(ids).lstrip("\ufffd")
            missing = _prompt_tokens(builder, cut[prompt]) - most
    if cut:
        log.say(f"note: {plural(len(cut), 'prompt')} cut to the last {most} tokens")
    return [replace(row, prompt=cut.get(row.prompt, row.prompt)) for row in rows]


def _prompt_tokens(builder: PromptBuilder, prompt: str) -> int:
    return len(builder.prompt([{"role": "user", "content": prompt}]))


def _require_replaceable(folder: Path) -> None:
    """Raise Conflict for a folder that no training wrote."""
    from thumbwheel.export.package import MANIFEST

    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise Conflict(
            f"folder {str(folder)!r}",
            "it contains files that no training here wrote",
            "Name another output_dir",
        )


def _import(
    ws: Workspace,
    agent: str,
    examples: Iterable[FeedbackExample],
    folder: Path,
) -> None:
    """Import the rows as traces with a score. If scores lie outside 0 to 1, the scale of all is
    wider.

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
    """Return a short, stable digest of JSON content."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _reward_model(
    ws: Workspace,
    agent: str,
    config: RewardModelConfig,
    scale: tuple[float, float],
    max_length: int,
) -> RewardModel:
    from thumbwheel.compat.n3.reward_model import RewardModel
    from thumbwheel.datasets.build import build
    from thumbwheel.engine.base_check import find_base
    from thumbwheel.models import reward_models
    from thumbwheel.models.versions import require_agent
    from thumbwheel.training.train import train

    dataset = build(ws, agent, "scored", everything_trains(ws))
    options = config.options(dataset.counts["train"]) | {"max_length": max_length}
    if scale[0] < scale[1]:
        options["scale"] = scale
    base = find_base(config.base_model, ws.home.cache)
    run = train(ws, require_agent(ws, agent), "reward", base, dataset=dataset, options=options)
    if run.reward_model is None:
        raise TrainingError(
            f"run {run.run_id!r}",
            run.reason or "it made no reward model",
            log_of(ws, run.run_id),
        )
    log.say(f"reward model {run.reward_model} of {ws.home.path}")
    record = reward_models.find(ws, agent, run.reward_model)
    model = RewardModel.trained(reward_models.folder(ws, record), config.device)
    # the files of an adapter do not say with which dropout it was trained
    model.config.lora_dropout = config.lora_dropout
    return model


def _errors(model: RewardModel, dataset: FeedbackDataset) -> dict[str, Any]:
    """Return the mean squared and mean absolute error on the scale of -1 to 1; `unreadable` counts
    the rows that are longer than the model reads."""
    values = model.scores(dataset.examples)
    gaps = [value - dataset.score(index) for index, value in enumerate(values) if value == value]
    return {
        "n": len(gaps),
        "unreadable": len(values) - len(gaps),
        "mse": fmean([gap * gap for gap in gaps]) if gaps else None,
        "mae": fmean([abs(gap) for gap in gaps]) if gaps else None,
    }
