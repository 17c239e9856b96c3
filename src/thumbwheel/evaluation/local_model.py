"""Responders in this process: a base with the adapters of several versions, loaded once, so that
all versions run under the same conditions.

The model is loaded when the first question is asked. An evaluation whose replies are all stored
loads only a tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, ModelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.types import (
    Answers,
    Ask,
    AskLikelihood,
    EvaluationConfig,
    ModelAnswer,
    Sums,
)
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings, template_settings
from thumbwheel.models.types import ModelVersion
from thumbwheel.models.versions import adapter_folder

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.sampler import GroupSampler
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import Example, TreeBatch

BASE = ""
"""Adapter name that stands for the base with all adapters off."""
CONFIG_FILES = ("*.json", "*.jinja", "*.model")
"""Files of a model's folder that its answers depend on, besides the weights."""
METHOD = 2
"""Raise it when the same question would get another reply, so that stored replies are not used."""


@dataclass
class LocalModel:
    """A base with the adapters of `versions`. Raises ModelError where they do not fit or the base
    has changed."""

    ws: Workspace
    base: ModelVersion
    versions: Sequence[ModelVersion]
    config: EvaluationConfig
    template: TemplateSettings | None = None
    """How the base's chat template is used where no version was trained; unset, as the agent's
    settings have it."""
    _adapter_names: dict[str, str] = field(default_factory=dict)
    """Version id -> the name of its adapter in PEFT."""
    _builders: dict[str | None, PromptBuilder] = field(default_factory=dict)
    """Chat template that was saved with an adapter -> what builds its prompts."""

    @cached_property
    def folder(self) -> Path:
        """The base's files, checked to be those that the versions were trained over."""
        from thumbwheel.engine.base_check import locate_unchanged

        return locate_unchanged(self.ws, self.base)[1]

    @cached_property
    def builder(self) -> PromptBuilder:
        """Turn prompts into token ids as the first version was trained; the base answers the same
        prompts."""
        trained = [version for version in self.versions if version.adapter]
        return self.builder_of(trained[0] if trained else self.base)

    def builder_of(self, version: ModelVersion) -> PromptBuilder:
        """Return the prompt builder that turns prompts into token ids as `version` was trained."""
        from thumbwheel.engine.adapted_template import stored_template
        from thumbwheel.engine.load import load_tokenizer
        from thumbwheel.engine.prompt import trained_builder

        adapter = None
        with suppress(Conflict):  # a retired version has no files, and its replies are stored
            adapter = adapter_folder(self.ws, version)
        template = None if adapter is None else stored_template(adapter)
        if template not in self._builders:
            settings = self.template or template_settings(self.ws, self.base.agent)
            tokenizer = load_tokenizer(str(self.folder))
            self._builders[template] = trained_builder(tokenizer, adapter, settings)
        return self._builders[template]

    @cached_property
    def dtype(self) -> str:
        """The precision of the base, the same for all versions."""
        from thumbwheel.core.hardware import choose_dtype
        from thumbwheel.engine.load import count_parameters

        return choose_dtype(self.config.dtype, count_parameters(str(self.folder)))

    @cached_property
    def room(self) -> int:
        """Tokens of the longest sequence that the model takes."""
        from thumbwheel.engine.load import load_config

        text_config = load_config(self.folder).get_text_config()
        return int(getattr(text_config, "max_position_embeddings", None) or 1 << 40)

    @cached_property
    def model(self) -> Any:
        """The base with all adapters."""
        from thumbwheel.core.hardware import device
        from thumbwheel.engine.load import load_adapter, load_base

        model, _ = load_base(str(self.folder), self.dtype, local_only=True)  # type: ignore[arg-type]
        for version in self.versions:
            adapter = adapter_folder(self.ws, version)
            if adapter is not None and not self._adapter_names:
                model = load_adapter(model, adapter)
                self._adapter_names[version.id] = "default"
            elif adapter is not None and version.id not in self._adapter_names:
                _add_adapter(model, version, adapter)
                self._adapter_names[version.id] = version.id
        return model.to(device()).eval()

    def responder(self, version: ModelVersion) -> LocalResponder:
        """Return the responder for `version`; for a version without an adapter, the base."""
        from thumbwheel.core.hardware import device

        builder = self.builder_of(version) if version.adapter else self.builder
        identity = ids.fingerprint(
            [
                METHOD,
                self.base.base_fingerprint,
                version.adapter,
                self.dtype,
                str(device()),
                builder.template_hash,
                self.config.max_length,
                self.config.token_budget,
                self.config.batch_size,
            ]
        )
        version_id = version.id if version.adapter else BASE
        return LocalResponder(self, version_id, version.name, identity, builder)

    @contextmanager
    def with_adapter(self, version_id: str) -> Iterator[Any]:
        """Activate the adapter of this version (BASE: none) and yield the model."""
        from thumbwheel.engine.lora import adapter_layers, switched

        model = self.model
        if version_id != BASE:
            model.set_adapter(self._adapter_names[version_id])
            yield model
        else:
            with switched(model, adapter_layers(model), None):
                yield model


@dataclass
class LocalResponder:
    """One version of a `LocalModel`."""

    local_model: LocalModel
    version_id: str
    """The version whose adapter answers, or BASE."""
    name: str
    identity: str
    builder: PromptBuilder
    scores: bool = True
    is_stored: bool = True
    """Whether other hosts have its files, too; those of an export are in a folder of this one."""
    _engine: ScoreEngine | None = None
    _sampler: GroupSampler | None = None

    @property
    def batch(self) -> int:
        """The batch size of the settings."""
        return self.local_model.config.batch_size

    def recipe(self) -> dict[str, Any] | None:
        """Return what another host needs to be this responder."""
        if not self.is_stored:
            return None
        model = self.local_model
        return {
            "identity": self.identity,
            "base": model.base.id,
            "versions": [version.id for version in model.versions],
            "version": self.version_id,
            "config": model.config.model_dump(mode="json"),
            "template": None if model.template is None else model.template.model_dump(mode="json"),
        }

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Generate answers; questions with the same sampling settings are decoded together."""
        by_sampling: dict[tuple[int, int, float], list[int]] = {}
        for index, ask in enumerate(asks):
            settings = (ask.max_new_tokens, ask.samples, ask.temperature)
            by_sampling.setdefault(settings, []).append(index)
        replies: list[Answers] = [()] * len(asks)
        for _, indices in sorted(by_sampling.items()):
            sampled = self._sampled([asks[index] for index in indices])
            for index, answers in zip(indices, sampled, strict=True):
                replies[index] = answers
        return replies

    def _sampled(self, asks: Sequence[Ask]) -> list[Answers]:
        from thumbwheel.engine.rollout import Sampling
        from thumbwheel.engine.sampler import GroupSampler

        builder, first = self.builder, asks[0]
        prompts = [builder.prompt(ask.prompt) for ask in asks]
        sampling = Sampling(
            max_new_tokens=first.max_new_tokens,
            temperature=first.temperature,
            stop_ids=builder.stop_ids,
        )
        with self.local_model.with_adapter(self.version_id) as model:
            began = time.perf_counter()
            if self._sampler is None:
                rows = self.local_model.config.batch_size
                self._sampler = GroupSampler(model, builder.tokenizer, rows=rows)
            groups = self._sampler.sample(prompts, first.samples, sampling)
            seconds = (time.perf_counter() - began) / (len(asks) * first.samples)
        replies: list[Answers] = []
        for prompt, group in zip(prompts, groups, strict=True):
            answers = []
            for sample in group:
                answer = ModelAnswer(
                    sample.text,
                    sample.finish,
                    tokens=len(sample.ids),
                    prompt_tokens=len(prompt),
                    seconds=seconds,
                    ids=sample.ids,
                    busy=seconds,
                )
                answers.append(answer)
            replies.append(tuple(answers))
        return replies

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        """Return summed log-probabilities. The texts of one prompt form one tree, and a pass scores
        as many prompts as the token budget holds."""
        from thumbwheel.engine.score import ScoreEngine

        examples: list[Example] = []
        example_of_ask: list[int | None] = []
        for ask in asks:
            example = self._example(ask)
            example_of_ask.append(None if example is None else len(examples))
            if example is not None:
                examples.append(example)
        sums: list[list[tuple[float, int]]] = [[] for _ in examples]
        with self.local_model.with_adapter(self.version_id) as model:
            engine = self._engine = self._engine or ScoreEngine(model)
            if examples:
                budget = self.local_model.config.token_budget
                for batch, logp in engine.map_batches(examples, budget, _policy_logp):
                    totals = batch.branch_sum(logp.double()).tolist()
                    counts = batch.branch_count().tolist()
                    owners = batch.example_of.tolist()
                    for owner, total, count in zip(owners, totals, counts, strict=True):
                        sums[batch.example_ids[owner]].append((total, count))
        return [() if index is None else tuple(sums[index]) for index in example_of_ask]

    def _example(self, ask: AskLikelihood) -> Example | None:
        """Return the prompt with its texts as branches; None if it does not fit the model."""
        from thumbwheel.engine.prompt import TargetText
        from thumbwheel.engine.tree import Branch, Example

        if not ask.prompt:
            return self._example_of_text(ask.texts[0])
        finish_reasons = ask.finish or (None,) * len(ask.texts)
        targets = [
            TargetText(text, reason) for text, reason in zip(ask.texts, finish_reasons, strict=True)
        ]
        max_length = self.local_model.config.max_length
        fitted = self.builder.fit(ask.prompt, targets, max_length, ask.tools)
        if fitted.refused:
            return None
        branches = tuple(Branch(row.completion_ids) for row in fitted.rows)
        return Example(fitted.rows[0].prompt_ids, branches, "")

    def _example_of_text(self, text: str) -> Example | None:
        """Return a text without a prompt as an example, or None if it has fewer than two tokens.
        Its first token (or the one that the tokenizer puts before it) is the context of the
        others."""
        from thumbwheel.engine.tree import Branch, Example

        longest = min(self.local_model.config.max_length, self.local_model.room)
        token_ids = list(self.builder.tokenizer(text)["input_ids"])[:longest]
        if len(token_ids) < 2:
            return None
        return Example((token_ids[0],), (Branch(tuple(token_ids[1:])),), "")

    def close(self) -> None:
        """Free the model; the next question loads it again."""
        self.local_model.__dict__.pop("model", None)
        self._engine = self._sampler = None


def exported(
    ws: Workspace, version: ModelVersion, name: str, folder: Path, config: EvaluationConfig
) -> LocalResponder:
    """Return the merged model in `folder` as a responder for `version`. Raises ModelError for a
    folder without a whole model."""
    from thumbwheel.engine.base_check import remembered_fingerprint

    folder = folder.expanduser()
    merged = replace(
        version,
        base=str(folder),
        base_fingerprint=remembered_fingerprint(folder, ws.home.cache),
        adapter=None,
        endpoint=None,
    )
    # its tokenizer was saved with the chat template of the training
    responder = LocalModel(ws, merged, [], config, AS_IT_IS).responder(merged)
    hashes = {}
    for pattern in CONFIG_FILES:
        for path in folder.glob(pattern):
            hashes[path.name] = ids.file_hash(path)
    identity = ids.fingerprint([responder.identity, hashes])
    return replace(responder, name=name, identity=identity, is_stored=False)


def _policy_logp(engine: ScoreEngine, batch: TreeBatch) -> torch.Tensor:
    from thumbwheel.engine.score import Role

    return engine.score(batch, Role.POLICY).logp.cpu()


def _add_adapter(model: Any, version: ModelVersion, adapter: Path) -> None:
    from thumbwheel.engine.load import quiet_transformers

    try:
        with quiet_transformers():
            model.load_adapter(str(adapter), adapter_name=version.id)
    except ValueError as error:  # PEFT holds adapters of one kind only
        raise ModelError(
            f"version {version.name!r} beside another one",
            f"the two are adapters of different kinds ({str(error)[:120]})",
            "Compare each with the base: --compare-base",
        ) from None
