"""Reward models: one number for an answer, from a decoder at its last token or from an encoder at
its first.

A saved one is a folder in the form that transformers and PEFT load by themselves: a
sequence-classification adapter with its head among `modules_to_save`, whose own metadata names the
base, and beside it reward.json (`RewardModelCard`). This module loads one to score answers, or
mounts it on the base of another model. Training is the method `reward`; records are
models/reward_models.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine import lora
from thumbwheel.engine.adapted_template import stored_template
from thumbwheel.engine.base_check import remembered_fingerprint
from thumbwheel.engine.forward import is_encoder, language_model
from thumbwheel.engine.load import (
    adapter_base,
    base_fingerprint,
    load_adapter,
    load_config,
    load_scorer,
)
from thumbwheel.engine.messages import Message
from thumbwheel.engine.out_of_memory import out_of_memory
from thumbwheel.engine.pairing import PairBuilder
from thumbwheel.engine.prompt import Fitted, PromptBuilder, TargetText, TokenRow
from thumbwheel.engine.ranks import Ranks
from thumbwheel.engine.score import LAST, Role, RoleModel, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, TreeBatch
from thumbwheel.models.base import loadable
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings

if TYPE_CHECKING:
    import torch

CARD = "reward.json"
HEAD = "base_model.model.score.weight"


@dataclass(frozen=True)
class RewardScale:
    """The raw unit of a regression: the model's own runs from -1 at `low` to 1 at `high`."""

    low: float
    high: float

    def normal(self, raw: float) -> float:
        """Convert a raw value to the model's unit; a value outside low..high lies outside -1..1."""
        return 2 * (raw - self.low) / (self.high - self.low) - 1

    def raw(self, normal: float) -> float:
        """Convert a value in the model's unit to a raw value."""
        return self.low + (normal + 1) / 2 * (self.high - self.low)


@dataclass(frozen=True)
class RewardModelCard:
    """reward.json: what was learned, in which unit, over which base, how long a text may be, and
    the metrics on dev rows."""

    loss_type: str
    base: str
    base_fingerprint: str
    max_length: int
    scale: RewardScale | None = None
    dev: Mapping[str, float] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        (folder / CARD).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> RewardModelCard:
        """Read the card of the reward model in `folder`. Raises ModelError if there is none."""
        try:
            fields = json.loads((folder / CARD).read_text(encoding="utf-8"))
            scale = RewardScale(**fields["scale"]) if fields["scale"] else None
            return cls(**fields | {"scale": scale})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"reward model {str(folder)!r}",
                f"its {CARD} cannot be read ({error})",
                "Name one that was trained",
            ) from None


def scorer_prompt_builder(
    model: Any, tokenizer: Any, settings: TemplateSettings | None = None
) -> PromptBuilder:
    """Return the builder of token rows for a scorer: pairs of texts for an encoder, the chat for a
    decoder."""
    config = language_model(model).config
    if not is_encoder(config):
        return PromptBuilder(tokenizer, settings=settings)
    longest = min(config.max_position_embeddings, tokenizer.model_max_length)
    return PairBuilder(tokenizer, longest, settings)


def scorer_role_model(model: Any, adapter: str | None = "default") -> RoleModel:
    """Return the role model of a scorer: the head after the last token of a decoder, or the whole
    encoder."""
    inner = language_model(model)
    if is_encoder(inner.config):
        return RoleModel(adapter)
    head = inner.score
    return RoleModel(adapter, head.modules_to_save[adapter] if adapter is not None else head)


@dataclass(frozen=True, slots=True)
class RewardInput:
    """An answer as a reward model reads it: with the tools that its prompt had and, where it was
    cut off, without an end (`finish`)."""

    prompt: Sequence[Message]
    text: str
    finish: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None


class RewardModel:
    """A saved reward model, frozen."""

    def __init__(
        self, engine: ScoreEngine, tokenizer: Any, card: RewardModelCard, token_budget: int = 4096
    ) -> None:
        self.card, self._budget, self._engine = card, token_budget, engine
        # the tokenizer's template is already that of the training
        self._builder = scorer_prompt_builder(engine.model, tokenizer, AS_IT_IS)

    @classmethod
    def load(
        cls, folder: Path, *, device: str, cache: Path | None = None, ranks: Ranks | None = None
    ) -> RewardModel:
        """Load the reward model in `folder`, over the base that its adapter names. Raises
        ModelError, also if the base has different weights now. `cache` is the home's, which
        remembers fingerprints; `ranks` share out what it scores."""
        card, base = RewardModelCard.read(folder), loadable(adapter_base(folder))
        model, tokenizer = load_scorer(base, local_only=True)
        if Path(base).is_dir() and _fingerprint(Path(base), cache) != card.base_fingerprint:
            raise ModelError(
                f"reward model {str(folder)!r}",
                f"its base {base!r} has different weights now",
                "Train it again",
            )
        model = load_adapter(model, folder).requires_grad_(False).to(device)
        tokenizer.chat_template = stored_template(folder) or tokenizer.chat_template
        role_models = {Role.REWARD: scorer_role_model(model)}
        return cls(ScoreEngine(model, role_models=role_models, ranks=ranks), tokenizer, card)

    @classmethod
    def on_engine(cls, engine: ScoreEngine, tokenizer: Any, folder: Path) -> RewardModel | None:
        """Mount the reward model in `folder` as the role REWARD of an engine over the same base, so
        that the base is in memory once; return None where `mount` returns None."""
        role_model = mount(engine, folder, Role.REWARD.value)
        if role_model is None:
            return None
        engine.add(Role.REWARD, role_model)
        return cls(engine, tokenizer, RewardModelCard.read(folder))

    @property
    def scale(self) -> RewardScale | None:
        """How its output becomes raw units; None where it has none."""
        return self.card.scale

    def score(self, answers: Sequence[RewardInput]) -> list[float]:
        """Return the model's output for each answer alone; nan for an answer that is longer than
        the model was trained on, or refused."""
        return [score for (score,) in self.score_together([[answer] for answer in answers])]

    def score_together(self, groups: Sequence[Sequence[RewardInput]]) -> list[list[float]]:
        """Return the outputs for answers that are compared with each other; the answers of a group
        share their prompt and tools.

        A group is read after one prompt: the older turns that do not fit beside its longest answer
        are dropped for all of them, as in training.
        """
        scores = [[math.nan] * len(group) for group in groups]
        origins: list[tuple[int, int]] = []
        examples: list[Example] = []
        for group_number, group in enumerate(groups):
            for answer_number, row in self._rows(group).items():
                origins.append((group_number, answer_number))
                examples.append(Example(row.prompt_ids, (Branch(row.completion_ids),), ""))
        for example_number, score in self._scores(examples):
            group_number, answer_number = origins[example_number]
            scores[group_number][answer_number] = score
        return scores

    def _rows(self, group: Sequence[RewardInput]) -> dict[int, TokenRow]:
        """Return answer number -> its tokens after the prompt that all have in common; an answer
        that does not fit even alone is left out."""
        fitted = self._fit(group)
        if not fitted.refused:
            return dict(enumerate(fitted.rows))
        readable = {
            number: answer for number, answer in enumerate(group) if not self._fit([answer]).refused
        }
        if not readable:
            return {}
        rows = self._fit(list(readable.values())).rows
        return dict(zip(readable, rows, strict=True)) if rows else {}

    def _fit(self, answers: Sequence[RewardInput]) -> Fitted:
        targets = [TargetText(answer.text, answer.finish) for answer in answers]
        return self._builder.fit(answers[0].prompt, targets, self.card.max_length, answers[0].tools)

    def _scores(self, examples: Sequence[Example]) -> list[tuple[int, float]]:
        """Return (index of the example, score) of each; if memory runs out, use fewer tokens at
        once from then on."""
        if not examples:
            return []
        longest = max(example.longest for example in examples)

        def last(engine: ScoreEngine, batch: TreeBatch) -> list[float]:
            scores: list[float] = engine.score(batch, Role.REWARD, LAST).last.tolist()
            return scores

        while True:
            scores: list[tuple[int, float]] = []
            try:
                for batch, values in self._engine.map_batches(examples, self._budget, last):
                    scores += zip(batch.example_ids, values, strict=True)
                self._engine.ranks.agree()
            except Exception as error:
                if not out_of_memory(error) or 2 * self._budget < longest:
                    raise
                self._engine.ranks.report_shortage(error)
                self._budget //= 2
            else:
                return scores

    def training_rewards(self, groups: Sequence[Sequence[RewardInput]]) -> list[list[float]]:
        """Return the reward of each answer in training: the probability that it is good from a
        model that learned classes, otherwise its score.

        A probability is bounded: an already good answer can gain little more from features that the
        model happens to overrate.
        """
        import torch

        scores = self.score_together(groups)
        if self.card.loss_type == "classification":
            return [torch.tensor(group, dtype=torch.float64).sigmoid().tolist() for group in scores]
        return scores


def start_from_adapter(model: Any, directory: str | Path) -> None:
    """Copy the weights of the adapter in `directory` into the new adapter of a scorer, whose head
    keeps its random weights.

    Raises ModelError if the layers differ.
    """
    import torch
    from safetensors.torch import load_file

    adapter: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            adapter[name.replace(".default.", ".")] = parameter
    tensors = load_file(Path(directory) / "adapter_model.safetensors")
    same_names = tensors.keys() == adapter.keys()
    if not same_names or any(tensors[name].shape != adapter[name].shape for name in adapter):
        why = f"its {len(tensors)} tensors are not the {len(adapter)} of the reward model's adapter"
        raise ModelError(f"adapter {str(directory)!r}", why, "Leave continue_from out")
    with torch.no_grad():
        for name, parameter in adapter.items():
            parameter.copy_(tensors[name])


def _fingerprint(base: Path, cache: Path | None) -> str:
    return base_fingerprint(base) if cache is None else remembered_fingerprint(base, cache)


def mount(engine: ScoreEngine, folder: Path, name: str) -> RoleModel | None:
    """Mount the reward model of `folder` as the frozen adapter `name` on the engine's own base,
    with its head.

    None where it cannot live there: another base, an encoder, a model without PEFT or with another
    kind of adapter. The caller gives it a role: `engine.add`.
    """
    import torch
    from peft import PeftConfig, set_peft_model_state_dict
    from safetensors.torch import load_file

    source = Path(str(engine.language_model.config._name_or_path))
    fingerprint = RewardModelCard.read(folder).base_fingerprint
    same_base = source.is_dir() and base_fingerprint(source) == fingerprint
    if not same_base or not hasattr(engine.model, "peft_config") or is_encoder(load_config(source)):
        return None
    config = PeftConfig.from_pretrained(str(folder))
    adapters = engine.model.peft_config.values()
    if any(config.peft_type != adapter.peft_type for adapter in adapters):
        return None  # PEFT holds adapters of one kind at a time
    config.task_type, config.modules_to_save, config.inference_mode = "CAUSAL_LM", None, True
    tensors = load_file(folder / "adapter_model.safetensors")
    weight = tensors.pop(HEAD)
    engine.model.add_adapter(name, config)
    loaded: Any = set_peft_model_state_dict(engine.model, tensors, adapter_name=name)
    parameters = lora.parameters_of(lora.adapter_layers(engine.model), name)
    if loaded.unexpected_keys or len(parameters) != len(tensors):
        raise ModelError(
            f"reward model {str(folder)!r}",
            "its adapter does not fit the layers of this base",
            "Train it again",
        )
    for parameter in parameters:
        parameter.requires_grad_(False)
    head = torch.nn.Linear(weight.shape[1], 1, bias=False, dtype=weight.dtype).requires_grad_(False)
    head.weight.copy_(weight)
    return RoleModel(name, head)
