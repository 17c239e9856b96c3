"""Sides in this process: a base with the adapters of several versions, loaded once, so that all
share precision and circumstance.

What is loaded is loaded when the first question is asked: an evaluation whose replies are all known
loads nothing but a tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import ids
from thumbwheel.core.errors import ModelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.types import Answer, Answers, Ask, EvaluationConfig, Known, Sums
from thumbwheel.models.types import ModelVersion
from thumbwheel.models.versions import adapter_folder

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.sampler import GroupSampler
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import Example, TreeBatch

BASE = ""
"""Name of the side that is the base with all adapters off."""
BESIDE = ("*.json", "*.jinja", "*.model")
"""Files of a model's folder that its answers depend on, besides the weights."""
METHOD = 2
"""Raise it when the same question would get another reply, so that kept ones are not taken for new
ones."""


@dataclass
class LocalModel:
    """A base with the adapters of `versions`. Raises ModelError where they do not fit or the base
    has changed."""

    ws: Workspace
    base: ModelVersion
    versions: Sequence[ModelVersion]
    config: EvaluationConfig
    _names: dict[str, str] = field(default_factory=dict)

    @cached_property
    def folder(self) -> Path:
        """The base's files, which are still those that the versions were made with."""
        from thumbwheel.training.base import locate_unchanged

        return locate_unchanged(self.base)[1]

    @cached_property
    def builder(self) -> PromptBuilder:
        """Makes the token ids."""
        from thumbwheel.engine.load import load_tokenizer
        from thumbwheel.engine.prompt import PromptBuilder

        return PromptBuilder(load_tokenizer(str(self.folder)))

    @cached_property
    def dtype(self) -> str:
        """The precision of every side."""
        from thumbwheel.training.hardware import choose_dtype, count_parameters

        return choose_dtype(self.config.dtype, count_parameters(str(self.folder)))

    @cached_property
    def room(self) -> int:
        """Tokens of the longest sequence that the model takes."""
        from thumbwheel.engine.load import load_config

        return int(
            getattr(load_config(self.folder).get_text_config(), "max_position_embeddings", None)
            or 1 << 40
        )

    @cached_property
    def model(self) -> Any:
        """The base with all adapters."""
        from thumbwheel.engine.load import load_adapter, load_base
        from thumbwheel.training.hardware import device

        model, _ = load_base(str(self.folder), self.dtype, local_only=True)  # type: ignore[arg-type]
        for version in self.versions:
            adapter = adapter_folder(self.ws, version)
            if adapter is not None and not self._names:
                model, self._names[version.id] = load_adapter(model, adapter), "default"
            elif adapter is not None and version.id not in self._names:
                _add(model, version, adapter)
                self._names[version.id] = version.id
        return model.to(device()).eval()

    def side(self, version: ModelVersion) -> LocalResponder:
        """`version` as a side; one without an adapter is the base."""
        from thumbwheel.training.hardware import device

        about = [
            METHOD,
            self.base.base_fingerprint,
            version.adapter,
            self.dtype,
            str(device()),
            self.builder.template_hash,
        ]
        limits = [self.config.max_length, self.config.token_budget, self.config.batch_size]
        return LocalResponder(
            self,
            version.id if version.adapter else BASE,
            version.name,
            ids.fingerprint([*about, *limits]),
        )

    @contextmanager
    def speaking(self, side: str) -> Iterator[Any]:
        """The model as this side inside: a version's id, or BASE."""
        from thumbwheel.engine.lora import adapter_layers, switched

        model = self.model
        if side != BASE:
            model.set_adapter(self._names[side])
            yield model
        else:
            with switched(model, adapter_layers(model), None):
                yield model


@dataclass
class LocalResponder:
    """One version of them; see `side.Side`."""

    own: LocalModel
    voice: str
    name: str
    identity: str
    scores: bool = True
    _engine: ScoreEngine | None = None
    _sampler: GroupSampler | None = None

    @property
    def batch(self) -> int:
        """As the settings say."""
        return self.own.config.batch_size

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        """Those that are asked alike are decoded together."""
        found: dict[int, Answers] = {}
        places = sorted(range(len(asks)), key=lambda place: _manner(asks[place]))
        for _, same in groupby(places, key=lambda place: _manner(asks[place])):
            chosen = list(same)
            found.update(zip(chosen, self._sampled([asks[place] for place in chosen]), strict=True))
        return [found[place] for place in range(len(asks))]

    def _sampled(self, asks: Sequence[Ask]) -> list[Answers]:
        from thumbwheel.engine.rollout import Sampling
        from thumbwheel.engine.sampler import GroupSampler

        builder, first = self.own.builder, asks[0]
        prompts = [builder.prompt(one.prompt) for one in asks]
        sampling = Sampling(
            max_new_tokens=first.max_new_tokens,
            temperature=first.temperature,
            stop_ids=builder.stop_ids,
        )
        with self.own.speaking(self.voice) as model:
            began = time.perf_counter()
            self._sampler = self._sampler or GroupSampler(
                model, builder.tokenizer, rows=self.own.config.batch_size
            )
            groups = self._sampler.sample(prompts, first.samples, sampling)
            seconds = (time.perf_counter() - began) / (len(asks) * first.samples)
        return [
            tuple(
                Answer(one.text, one.finish, len(one.ids), len(prompt), seconds, one.ids, seconds)
                for one in group
            )
            for prompt, group in zip(prompts, groups, strict=True)
        ]

    def log_probabilities(self, asks: Sequence[Known]) -> list[Sums]:
        """All texts of one prompt in one tree, as many prompts at once as the token budget holds."""
        from thumbwheel.engine.score import ScoreEngine

        made = [self._example(one) for one in asks]
        examples = [one for one in made if one is not None]
        found: list[list[tuple[float, int]]] = [[] for _ in examples]
        with self.own.speaking(self.voice) as model:
            engine = self._engine = self._engine or ScoreEngine(model)
            for batch, logp in (
                engine.map_batches(examples, self.own.config.token_budget, _scored)
                if examples
                else ()
            ):
                sums = batch.branch_sum(logp.double()).tolist()
                for owner, total, count in zip(
                    batch.example_of.tolist(), sums, batch.branch_count().tolist(), strict=True
                ):
                    found[batch.example_ids[owner]].append((total, count))
        sums_of = iter(found)
        return [() if one is None else tuple(next(sums_of)) for one in made]

    def _example(self, asked: Known) -> Example | None:
        """None for what does not fit."""
        from thumbwheel.engine.prompt import Target
        from thumbwheel.engine.tree import Branch, Example

        if not asked.prompt:
            return self._plain(asked.texts[0])
        finish = asked.finish or (None,) * len(asked.texts)
        targets = [Target(text, why) for text, why in zip(asked.texts, finish, strict=True)]
        fitted = self.own.builder.fit(
            asked.prompt, targets, self.own.config.max_length, asked.tools
        )
        if fitted.refused:
            return None
        return Example(
            fitted.rows[0].prompt_ids, tuple(Branch(row.completion_ids) for row in fitted.rows), ""
        )

    def _plain(self, text: str) -> Example | None:
        """A text that stands alone: its first token is what the others follow, unless the tokenizer
        puts one before."""
        from thumbwheel.engine.tree import Branch, Example

        found = list(self.own.builder.tokenizer(text)["input_ids"])[
            : min(self.own.config.max_length, self.own.room)
        ]
        return Example((found[0],), (Branch(tuple(found[1:])),), "") if len(found) > 1 else None

    def close(self) -> None:
        """Let go of the model; the next question loads it again."""
        self.own.__dict__.pop("model", None)
        self._engine = self._sampler = None


def exported(
    ws: Workspace, version: ModelVersion, name: str, folder: Path, config: EvaluationConfig
) -> LocalResponder:
    """The model in `folder` in the place of `version`. Raises ModelError for a folder without a
    whole model."""
    from thumbwheel.engine.load import base_fingerprint

    folder = folder.expanduser()
    whole = replace(
        version,
        base=str(folder),
        base_fingerprint=base_fingerprint(folder),
        adapter=None,
        endpoint=None,
    )
    side = LocalModel(ws, whole, [], config).side(whole)
    beside = {path.name: ids.file_hash(path) for pattern in BESIDE for path in folder.glob(pattern)}
    return replace(side, name=name, identity=ids.fingerprint([side.identity, beside]))


def _scored(engine: ScoreEngine, batch: TreeBatch) -> torch.Tensor:
    from thumbwheel.engine.score import Role

    return engine.score(batch, Role.POLICY).logp.cpu()


def _manner(one: Ask) -> tuple[int, int, float]:
    return one.max_new_tokens, one.samples, one.temperature


def _add(model: Any, version: ModelVersion, adapter: Path) -> None:
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
