"""Judges what contestants made: by their answers to gold examples, by which answer of a held-out
pair they prefer, or by how often a person prefers their answers.

All contestants are judged by the same code, whoever trained them; it is plain transformers and PEFT
where preferences are judged.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from learners.learner import load, token_row
from peft import PeftModel

from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.stats.paired import compare
from thumbwheel.stats.types import Comparison
from thumbwheel.training.base_defaults import is_pretrained
from worlds.answers import answer
from worlds.general_skill import GeneralSkill
from worlds.world import Example, Files, Pair, World

BATCH = 16
"""Pairs that are read together."""


def gain_figures(change: Comparison) -> dict[str, float]:
    """Before, after, and the gain with its interval."""
    return {
        "before": change.before,
        "after": change.after,
        "gain": change.gain,
        "low": change.low,
        "high": change.high,
    }


def general_skill(base: tuple[Any, Any]) -> GeneralSkill | None:
    """Return the measure of the general skill that a base brings; None for a small one, which
    brings none."""
    text_config = base[0].config.get_text_config()
    has_skill = is_pretrained(text_config.hidden_size, text_config.vocab_size)
    return GeneralSkill(base) if has_skill else None


def skill_row(skill: GeneralSkill | None, tuned: tuple[Any, Any]) -> dict[str, Any]:
    """Return the general skill that is left: the share of the base's right answers to general
    questions that are right still, those of the gate and others, and nats a token of a general
    text before and after."""
    if skill is None:
        return {}
    after = skill.of(tuned)
    return {
        "general": mean(after.solved),
        "general_questions": len(after.solved),
        "unseen": mean(after.unseen),
        "unseen_questions": len(after.unseen),
        "general_nats_before": skill.before.nats,
        "general_nats": after.nats,
    }


class Judge(ABC):
    """Compares with the base. `groups` has the group of each example or pair."""

    before: Sequence[float]
    groups: Sequence[str]

    @abstractmethod
    def model_row(self, adapter: str) -> dict[str, Any]:
        """Success of the model in folder `adapter` against the base's, and what it gained or lost
        at other work."""

    def unchanged_row(self) -> dict[str, Any]:
        """Of a contestant that made nothing: users keep the base."""
        after = mean(self.before)
        return {
            "before": after,
            "after": after,
            "gain": 0.0,
            "low": 0.0,
            "high": 0.0,
            "kept": 1.0,
            "elsewhere": None,
        }

    def row(self, after: Sequence[float]) -> dict[str, Any]:
        """Success before and after (0 or 1 each), the gain with its paired 95 % interval, and what
        share of the right ones stayed right."""
        change = compare(self.before, after, self.groups)
        still_right = [new for old, new in zip(self.before, after, strict=True) if old]
        return gain_figures(change) | {"kept": sum(still_right) / max(1, len(still_right))}


class AnswerJudge(Judge):
    """By greedy answers to the gold examples."""

    def __init__(self, world: World, files: Files) -> None:
        self._world, self._base = world, files.base
        self.examples: Sequence[Example] = files.gold_examples
        self.groups = [example.group for example in self.examples]
        self._others = world.elsewhere()
        model = load_base(str(files.base))
        self.before = self._success(model, self.examples)
        self._elsewhere_before = self._success(model, self._others)
        self._skill = general_skill(model)

    def answers_row(self, answers: Sequence[str]) -> dict[str, Any]:
        """Success of `answers` to the gold examples against the base's."""
        return self.row(
            [
                float(self._world.right(text, example))
                for text, example in zip(answers, self.examples, strict=True)
            ]
        )

    def model_row(self, adapter: str) -> dict[str, Any]:
        """See `Judge.model_row`."""
        model, tokenizer = load_base(str(self._base))
        tuned = (load_adapter(model, Path(adapter)), tokenizer)
        row = self.row(self._success(tuned, self.examples))
        elsewhere = self._success(tuned, self._others)
        return (
            row
            | skill_row(self._skill, tuned)
            | {"elsewhere": mean(elsewhere) - mean(self._elsewhere_before) if elsewhere else None}
        )

    def _success(self, model: tuple[Any, Any], examples: Sequence[Example]) -> list[float]:
        answers = answer(
            model, [example.prompt for example in examples], self._world.max_new_tokens
        )
        return [
            float(self._world.right(text, example))
            for (text, _), example in zip(answers, examples, strict=True)
        ]


class PreferenceJudge(Judge):
    """By the share of held-out pairs of which the model prefers the chosen answer.

    A reward model prefers what it scores higher; a policy what became more likely than it was in
    the base (DPO's implicit reward, Rafailov et al. 2023, arXiv 2305.18290); the base itself what
    it finds more likely a token.
    """

    def __init__(self, world: World, files: Files) -> None:
        del world
        self._base = str(files.base)
        self.pairs: Sequence[Pair] = files.gold_pairs
        self.groups = [pair.group for pair in self.pairs]
        model, tokenizer = load(self._base)
        texts = [
            (pair.prompt, text) for pair in self.pairs for text in (pair.chosen, pair.rejected)
        ]
        self._rows = [token_row(tokenizer, prompt, text) for prompt, text in texts]
        self._base_logps = log_probabilities(model, self._rows)
        lengths = torch.tensor([len(answer_ids) for _, answer_ids in self._rows])
        self.before = preferred(self._base_logps / lengths)

    def model_row(self, adapter: str) -> dict[str, Any]:
        """See `Judge.model_row`."""
        task = json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))[
            "task_type"
        ]
        model, _ = load(self._base, scores=task == "SEQ_CLS")
        tuned = PeftModel.from_pretrained(model, adapter)
        numbers = (
            scores(tuned, self._rows)
            if task == "SEQ_CLS"
            else log_probabilities(tuned, self._rows) - self._base_logps
        )
        return self.row(preferred(numbers)) | {"elsewhere": None}


class TasteJudge(Judge):
    """By how often a person with a taste prefers the greedy answer to a fresh request over the
    base's; of equally good ones half count."""

    def __init__(self, world: World, files: Files) -> None:
        assert files.score is not None
        self._world, self._base, self._score = world, files.base, files.score
        self._prompts = [example.prompt for example in files.gold_examples]
        self.groups = [example.group for example in files.gold_examples]
        model = load_base(str(files.base))
        self._base_scores = self._scores(model)
        self.before = [0.5] * len(self._prompts)
        self._skill = general_skill(model)

    def model_row(self, adapter: str) -> dict[str, Any]:
        """See `Judge.model_row`; `kept` is the share of answers that are no worse."""
        model, tokenizer = load_base(str(self._base))
        tuned = (load_adapter(model, Path(adapter)), tokenizer)
        preferred = [
            0.5 * ((new > old) + (new >= old))
            for old, new in zip(self._base_scores, self._scores(tuned), strict=True)
        ]
        row = self.row(preferred) | {"kept": mean(share > 0 for share in preferred)}
        return row | skill_row(self._skill, tuned) | {"elsewhere": None}

    def _scores(self, model: tuple[Any, Any]) -> list[float]:
        answers = answer(model, self._prompts, self._world.max_new_tokens)
        return [self._score(text, finish_reason) for text, finish_reason in answers]


JUDGES: dict[str, type[AnswerJudge] | type[PreferenceJudge] | type[TasteJudge]] = {
    "answers": AnswerJudge,
    "preferences": PreferenceJudge,
    "taste": TasteJudge,
}

TokenRow = tuple[list[int], list[int]]
"""(ids of the prompt, ids of the answer with its end)."""


def preferred(numbers: torch.Tensor) -> list[float]:
    """1 for each pair whose chosen answer has the higher number, for numbers of chosen, rejected,
    chosen, ..."""
    chosen, rejected = numbers.view(-1, 2).unbind(1)
    return [float(better) for better in chosen > rejected]


@torch.no_grad()
def log_probabilities(model: Any, rows: Sequence[TokenRow]) -> torch.Tensor:
    """The log-probability of each answer, shape (rows,)."""
    model.eval()
    sums = []
    for batch, ids, _ in batches(rows):
        logits = model(input_ids=ids[:, :-1]).logits.log_softmax(-1)
        tokens = logits.gather(2, ids[:, 1:, None])[:, :, 0]
        for number, (prompt, answer_ids) in enumerate(batch):
            sums.append(tokens[number, len(prompt) - 1 : len(prompt) + len(answer_ids) - 1].sum())
    return torch.stack(sums)


@torch.no_grad()
def scores(model: Any, rows: Sequence[TokenRow]) -> torch.Tensor:
    """The score of each answer, read at its last token, shape (rows,)."""
    model.eval()
    numbers = []
    for batch, ids, mask in batches(rows):
        hidden = model.base_model.model.model(input_ids=ids, attention_mask=mask).last_hidden_state
        every = model.base_model.model.score(hidden)[:, :, 0]
        numbers += [
            every[number, len(prompt) + len(answer_ids) - 1]
            for number, (prompt, answer_ids) in enumerate(batch)
        ]
    return torch.stack(numbers)


def batches(
    rows: Sequence[TokenRow],
) -> Iterator[tuple[Sequence[TokenRow], torch.Tensor, torch.Tensor]]:
    """(rows, padded ids, mask) of each batch; padded on the right, so that positions are those of
    training."""
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        texts = [torch.tensor(prompt + answer_ids) for prompt, answer_ids in batch]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(text) for text in texts], batch_first=True
        )
        yield batch, ids, mask
