"""One side of a comparison: its fresh answers, judged; and its log-probabilities of recorded answers.

Lives here: everything that runs the model. What the numbers mean is `compare.py`'s business. All sides are loaded once over one base, as
adapters of the same model object, so that they share precision, batches and every other circumstance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, DataError, ModelError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.rollout import Rollout, Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.evaluation.types import Case, EvaluationConfig, Given, Judged, Message
from thumbwheel.models import reward_models
from thumbwheel.models.types import ModelVersion, RewardModelRecord
from thumbwheel.models.versions import adapter_folder
from thumbwheel.rewards import function as rewards
from thumbwheel.rewards.checker import checker, checker_of
from thumbwheel.rewards.function import Score, Status

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.tree import Example

BASE = ""
"""Name of the side that is the base with all adapters off."""


@dataclass
class Sides:
    """A base with the adapters of several versions. `names`: side -> PEFT's adapter name."""

    model: Any
    builder: PromptBuilder
    names: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, ws: Workspace, base: ModelVersion, versions: Sequence[ModelVersion], config: EvaluationConfig) -> Sides:
        """Load the base of `base` and the adapters of `versions`; raises ModelError where they do not fit or the base has changed."""
        from thumbwheel.engine.load import load_adapter, load_base
        from thumbwheel.engine.prompt import PromptBuilder
        from thumbwheel.training.base import locate
        from thumbwheel.training.hardware import choose_dtype, count_parameters, device

        _, folder = locate(base.base)
        _check_base(base, folder)
        dtype: Any = choose_dtype(config.dtype, count_parameters(str(folder)))
        model, tokenizer = load_base(str(folder), dtype, local_only=True)
        sides = cls(model, PromptBuilder(tokenizer))
        for version in versions:
            adapter = adapter_folder(ws, version)
            if adapter is not None and not sides.names:
                sides.model, sides.names[version.id] = load_adapter(model, adapter), "default"
            elif adapter is not None:
                sides._add(version, adapter)
                sides.names[version.id] = version.id
        sides.model.to(device()).eval()
        return sides

    def _add(self, version: ModelVersion, adapter: Path) -> None:
        from thumbwheel.engine.load import quiet

        try:
            with quiet():
                self.model.load_adapter(str(adapter), adapter_name=version.id)
        except ValueError as error:  # PEFT holds adapters of one kind only
            raise ModelError(
                f"version {version.name!r} beside another one",
                f"the two are adapters of different kinds ({str(error)[:120]})",
                "Compare each with the base: --compare-base",
            ) from None

    @contextmanager
    def speaking(self, side: str) -> Iterator[None]:
        """The model as this side inside: a version's id, or BASE."""
        from thumbwheel.engine.lora import adapter_layers, switched

        if side != BASE:
            self.model.set_adapter(self.names[side])
            yield
        else:
            with switched(self.model, adapter_layers(self.model), None):
                yield

    def answers(self, side: str, prompts: Sequence[Sequence[Message]], config: EvaluationConfig, what: str) -> list[Rollout]:
        """Fresh greedy answers of `side`, in the order of the prompts."""
        ids = [self.builder.prompt(prompt) for prompt in prompts]
        sampling = Sampling(max_new_tokens=config.max_new_tokens, temperature=0.0, stop_ids=self.builder.stop_ids)
        with self.speaking(side), log.progress(what, len({tuple(one) for one in ids}), "answers") as advance:
            sampler = GroupSampler(self.model, self.builder.tokenizer, rows=config.batch_size)
            return [answer for (answer,) in sampler.sample(ids, 1, sampling, advance=advance)]

    def log_probabilities(
        self, side: str, examples: Sequence[Example], config: EvaluationConfig, what: str
    ) -> list[list[tuple[float, int]]]:
        """For every branch of every example: the summed log-probability of its tokens under `side`, and their number."""
        from thumbwheel.engine.score import Role, ScoreEngine
        from thumbwheel.engine.tree import plan

        found: list[list[tuple[float, int]]] = [[] for _ in examples]
        with self.speaking(side), log.progress(what, len(examples), "prompts") as advance:
            engine = ScoreEngine(self.model)
            for batch in plan(examples, config.token_budget, engine.layout):
                sums = batch.branch_sum(engine.score(batch, Role.POLICY).logp.double()).tolist()
                counts = batch.branch_count().tolist()
                owners = batch.example_of.tolist()
                for owner, total, count in zip(owners, sums, counts, strict=True):
                    found[batch.example_ids[owner]].append((total, count))
                advance(len(batch.examples))
        return found


def _check_base(version: ModelVersion, folder: Path) -> None:
    from thumbwheel.engine.load import base_fingerprint

    if version.base_fingerprint is not None and base_fingerprint(folder) != version.base_fingerprint:
        raise ModelError(
            f"base {version.base!r} of version {version.name!r}",
            "its weights are not those that the version was made with",
            "Restore that base, or register the new one by training on it",
        )


def examples_of(builder: PromptBuilder, rows: Sequence[Given], max_length: int) -> tuple[list[Example], list[list[Given]], int]:
    """Recorded answers as examples, one per prompt with all its answers, the given rows of each, and how many did not fit."""
    from thumbwheel.engine.prompt import Target
    from thumbwheel.engine.tree import Branch, Example

    prompts: dict[str, list[Given]] = {}
    for row in rows:
        prompts.setdefault(json.dumps([row.prompt, row.tools], sort_keys=True), []).append(row)
    examples, kept, refused = [], [], 0
    for same in prompts.values():
        fitted = builder.fit(same[0].prompt, [Target(row.text, row.finish_reason) for row in same], max_length, same[0].tools)
        if fitted.refused:
            refused += len(same)
            continue
        branches = tuple(Branch(row.completion_ids, role="good" if one.good else "bad") for row, one in zip(fitted.rows, same, strict=True))
        examples.append(Example(fitted.rows[0].prompt_ids, branches, same[0].group))
        kept.append(same)
    return examples, kept, refused


def judge(cases: Sequence[Case], answers: Sequence[Rollout]) -> list[Judged]:
    """What the checker of each case says about its answer."""
    texts = [answer.text.strip() for answer in answers]
    scores = score(cases, texts)
    return [
        Judged(text, one.value, one.well_formed, answer.finish == "stop", len(answer.ids), {"status": str(one.status), **one.evidence})
        for text, one, answer in zip(texts, scores, answers, strict=True)
    ]


def score(cases: Sequence[Case], texts: Sequence[str]) -> list[Score]:
    """One score per answer, by the checker that its case names, else by the one that its kind of reference has.

    A case whose checker is unknown or has impossible settings is blocked, with the reason; it says nothing about any answer.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, case in enumerate(cases):
        settings = json.dumps(case.checker_config or {}, sort_keys=True)
        groups.setdefault((case.checker or checker_of(case.reference), settings), []).append(place)
    found: dict[int, Score] = {}
    for (name, settings), places in groups.items():
        try:
            function = checker(name, json.loads(settings), None, f"case {cases[places[0]].id!r}")
        except (NotFound, ConfigError) as error:
            found.update((place, Score.none(Status.BLOCKED, str(error))) for place in places)
            continue
        scores = function.score([rewards.Case(texts[place], cases[place].reference, cases[place].prompt) for place in places])
        found.update(zip(places, scores, strict=True))
    return [found[place] for place in range(len(cases))]


def paired(before: Sequence[Judged], after: Sequence[Judged]) -> Iterator[tuple[int, float, float]]:
    """(place, value before, value after) of the cases that at least one side could be judged on.

    An answer that its checker failed on (too deep, too long) is no success when the other side's answer was judged: leaving the case
    out would reward breaking the checker. A case on which no side has a value is left out.
    """
    for place, (first, second) in enumerate(zip(before, after, strict=True)):
        values = [_value(first), _value(second)]
        if any(one.value is not None for one in (first, second)) and None not in values:
            yield place, float(values[0] or 0.0), float(values[1] or 0.0)


def _value(one: Judged) -> float | None:
    return 0.0 if one.value is None and one.evidence["status"] == Status.FAILED else one.value


def require(sides: Sides, cases: Sequence[Case]) -> None:
    """Raise DataError for a case whose prompt this model's template refuses, before minutes are spent on the others."""
    for case in cases:
        try:
            sides.builder.prompt(case.prompt)
        except DataError as error:
            raise DataError(f"case {case.id!r}", f"{error.what}: {error.why}", error.fix) from None


def opinions(
    ws: Workspace, reward_model: RewardModelRecord, prompts: Sequence[Sequence[Message]], sides: Sequence[Sequence[str]]
) -> list[list[float]]:
    """The scores of a reward model for the answers of each side; nan for one that is too long for it."""
    from thumbwheel.engine.reward_model import RewardModel
    from thumbwheel.training.hardware import device

    model = RewardModel.load(reward_models.folder(ws, reward_model), device=device())
    return [model.score(prompts, answers) for answers in sides]
