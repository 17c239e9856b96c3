"""The general skill that a pretrained base brings, and what a training leaves of it.

General skill is three figures. Two are the share of short general questions, among those that the
base answers rightly, which are answered rightly still: of the questions by which the gate guards
against forgetting, and of others in other forms (unseen.yaml). The third is the nats a token of a
general text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from thumbwheel.evaluation.measure import judge
from thumbwheel.evaluation.suite import SuiteContext
from thumbwheel.evaluation.suites.regression import RegressionSuite
from thumbwheel.evaluation.types import EvaluationConfig, HeldOutCase, ModelAnswer
from worlds.answers import answer
from worlds.data import data_file

LONGEST_ANSWER, LONGEST_UNSEEN = 8, 24
"""Tokens of an answer to a question of the gate, which asks for a word or a number, and to one of
the others."""
QUESTIONS = 60
"""Most general questions that are asked again after a training."""
SENTENCES, A_TEXT = 40, 8
"""Sentences of the general text, and how many make one text."""


@dataclass(frozen=True)
class Skill:
    """General skill of one model: of each question of the gate, and of each of the others, whether
    it is answered; and nats a token."""

    solved: list[float]
    unseen: list[float]
    nats: float


class GeneralSkill:
    """Measures what a training cost elsewhere. `before` is the base's."""

    def __init__(self, base: tuple[Any, Any]) -> None:
        cases = general_cases()
        solved = self._solved(base, cases)
        right = [case for case, is_right in zip(cases, solved, strict=True) if is_right]
        self._cases = right[:QUESTIONS]
        unseen = unseen_questions()
        answered = solved_unseen(base, unseen)
        self._unseen = [
            question for question, is_right in zip(unseen, answered, strict=True) if is_right
        ]
        self.before = Skill([1.0] * len(self._cases), [1.0] * len(self._unseen), general_nats(base))

    def of(self, model: tuple[Any, Any]) -> Skill:
        """Return the skill of a tuned model and its tokenizer."""
        return Skill(
            self._solved(model, self._cases),
            solved_unseen(model, self._unseen),
            general_nats(model),
        )

    def _solved(self, model: tuple[Any, Any], cases: list[HeldOutCase]) -> list[float]:
        answers = answer(model, [case.prompt for case in cases], LONGEST_ANSWER)
        replies = [(ModelAnswer(text, finish, None),) for text, finish in answers]
        return [float(judged.value or 0.0) for judged in judge(cases, replies, {})]


def general_cases() -> list[HeldOutCase]:
    """Return the built-in questions by which the gate guards against forgetting."""
    return RegressionSuite(SuiteContext([], [], EvaluationConfig())).cases


def unseen_questions() -> list[tuple[str, str]]:
    """Return (question, pattern of a right answer) of unseen.yaml."""
    content = yaml.safe_load((Path(__file__).parent / "unseen.yaml").read_text(encoding="utf-8"))
    return [(entry["prompt"], entry["pattern"]) for entry in content["questions"]]


def solved_unseen(model: tuple[Any, Any], questions: Sequence[tuple[str, str]]) -> list[float]:
    """Return 1.0 for each question that the model answers rightly, else 0.0."""
    prompts = [[{"role": "user", "content": prompt}] for prompt, _ in questions]
    answers = answer(model, prompts, LONGEST_UNSEEN)
    return [
        float(re.search(pattern, text, re.IGNORECASE) is not None)
        for (text, _), (_, pattern) in zip(answers, questions, strict=True)
    ]


def general_nats(model: tuple[Any, Any]) -> float:
    """Return the mean nats a token over sentences of an encyclopedia."""
    import torch

    network, tokenizer = model
    sentences = data_file("intents/wiki-sentences.txt").read_text(encoding="utf-8").splitlines()
    texts = ["\n".join(sentences[start : start + A_TEXT]) for start in range(0, SENTENCES, A_TEXT)]
    nats, tokens = 0.0, 0
    network.eval()
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            logits = network(input_ids=ids[:, :-1]).logits.float()
            nats += float(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum"))
            tokens += ids.shape[1] - 1
    return nats / tokens
