"""Replay: general questions that the base answers itself, compared with the base beside the rows of
a run.

A narrow task takes the general skill of a pretrained base within a few steps: after 50 steps of
routing, everything is answered with the name of a team. The base's own answers to other questions
hold it (self-synthesized rehearsal, Huang et al. 2024, arXiv 2403.01244). They are written once,
greedily, and kept in the cache under the identity of the base. At each of their tokens the policy's
whole distribution is held to the base's, by the Kullback-Leibler divergence: to train on the tokens
alone would make the base surer of its first choice than it was, also where nothing was lost.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import ids, log
from thumbwheel.engine.tree import Branch, Example

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.prompt import PromptBuilder
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import TreeBatch

ROLE = "replay"
ROWS = 6
"""Questions a step."""
STATE_TOKENS = 1024
"""Tokens of a batch in which the base's states are computed."""
LONGEST_ANSWER = 24
"""Tokens of an answer; longer ones are cut and teach no end."""


@dataclass(frozen=True)
class Replay:
    """General questions with the base's answers, and the weight of their divergence."""

    examples: Sequence[Example]
    weight: float
    base_states: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Group of an example -> what the base predicts its tokens from; empty where that would be
    logits, which are too large to hold."""

    @classmethod
    def of(
        cls,
        engine: ScoreEngine,
        builder: PromptBuilder,
        weight: float,
        cache: Path,
        *,
        is_trial: bool = False,
    ) -> Replay:
        """Generate the base's answers, or read them from the folder `cache`; of several ranks the
        first one does. A trial, which only measures, has the questions of one step, and their own
        words stand for the answers: they cost as much."""
        texts = random.Random(0).sample(questions(), ROWS) if is_trial else questions()
        prompts = [builder.prompt([{"role": "user", "content": text}]) for text in texts]

        def stored_answers() -> list[list[int]]:
            return _stored_answers(engine, builder, prompts, cache)

        if is_trial:
            answers = [list(prompt[-LONGEST_ANSWER:]) for prompt in prompts]
        else:
            answers = engine.ranks.from_first(stored_answers, "general answers")
        examples = []
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            if answer:
                branch = Branch(tuple(answer), role=ROLE)
                examples.append(Example(tuple(prompt), (branch,), f"{ROLE}-{number}"))
        random.Random(0).shuffle(examples)  # each step has questions of several kinds
        states = _base_states(engine, examples) if engine.knows_head else {}
        return cls(examples, weight, states)

    def rows(self, step: int) -> list[Example]:
        """Return the questions of a step; every question is used before one comes again."""
        count = len(self.examples)
        return [self.examples[(step * ROWS + number) % count] for number in range(min(ROWS, count))]

    def backward(self, engine: ScoreEngine, step: int, token_budget: int) -> float:
        """Add the gradients of this step's questions; return their mean divergence from the base in
        nats per token."""
        import torch

        rows = self.rows(step)
        tokens = sum(len(example.branches[0].ids) for example in rows)

        def loss(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, None]:
            if self.base_states:
                states = torch.cat([self.base_states[each.group] for each in batch.examples])
            else:
                states = engine.base_states(batch)
            divergence = engine.divergence(batch, states)
            return self.weight * divergence.sum() / tokens, None

        total = 0.0
        for _, (batch_loss, _) in engine.backward(rows, token_budget, loss):
            total += float(batch_loss)
        return total / self.weight


def _base_states(engine: ScoreEngine, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Return what the base predicts the tokens of each example from, by its group. They are
    computed at once and in batches of a fixed size, so that a resumed run has the same ones."""
    states: dict[str, torch.Tensor] = {}

    def compute(engine: ScoreEngine, batch: TreeBatch) -> torch.Tensor:
        return engine.base_states(batch)

    for batch, rows in engine.map_batches(examples, STATE_TOKENS, compute):
        for example, tokens in zip(batch.examples, batch.branch_slices, strict=True):
            states[example.group] = rows[tokens].clone()
    return states


def _stored_answers(
    engine: ScoreEngine, builder: PromptBuilder, prompts: Sequence[Sequence[int]], cache: Path
) -> list[list[int]]:
    """Return the base's answers to `prompts` from the folder `cache`, where they are put first if
    there are none."""
    key = ids.fingerprint([list(map(str, engine.reference_identity)), prompts, LONGEST_ANSWER])
    file = cache / f"replay-{key[:32]}.json"
    if not file.is_file():
        log.say(f"the base answers {len(prompts)} general questions, once for all its runs")
        answers = _answers(engine, builder, prompts)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(answers), encoding="utf-8")
        temporary.replace(file)
    stored: list[list[int]] = json.loads(file.read_text(encoding="utf-8"))
    return stored


def _answers(
    engine: ScoreEngine, builder: PromptBuilder, prompts: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the token ids of the base's greedy answers, including the turn's end if they end."""
    from thumbwheel.engine.rollout import Sampling
    from thumbwheel.engine.sampler import GroupSampler

    sampling = Sampling(
        max_new_tokens=LONGEST_ANSWER, temperature=0.0, stop_ids=tuple(builder.stop_ids)
    )
    with engine.model.disable_adapter():
        groups = GroupSampler(engine.model, builder.tokenizer).sample(prompts, 1, sampling)
    return [list(rollout.ids) for (rollout,) in groups]


@cache
def questions() -> tuple[str, ...]:
    """Return the general questions."""
    import yaml

    text = (files("thumbwheel.training") / "replay.yaml").read_text(encoding="utf-8")
    content: Any = yaml.safe_load(text)
    return tuple(content["prompts"])
