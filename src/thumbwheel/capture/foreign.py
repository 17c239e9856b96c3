"""Formats that no source reads and that people try: what they are, and what to do instead. To add
one: a line in FOREIGN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]


def _is_bandit(row: Row) -> bool:
    propensity = {"propensity_score", "propensity", "pscore", "action_prob"} & row.keys()
    return bool(propensity and {"click", "reward"} & row.keys())


def _is_reference(row: Row) -> bool:
    return {"question_id", "choices", "model_id"} <= row.keys()


def _is_experiment(row: Row) -> bool:
    return {"experiment_id", "variant_id", "metric_id"} <= row.keys()


def _is_intent(row: Row) -> bool:
    return {"text", "intent"} == row.keys()


FOREIGN: tuple[tuple[Callable[[Row], bool], str, str], ...] = (
    (
        _is_bandit,
        "logged bandit feedback: actions with propensities, and no texts that a language model "
        "could learn",
        "Export the prompt and the answer that were shown beside each click, then: thumbwheel "
        "import csv FILE --column prompt=... "
        "--column response=... --column thumb=click",
    ),
    (
        _is_reference,
        "answers of one model to MT-Bench questions",
        "Put them into the lines of the questions, as the list `reference`, then: thumbwheel "
        "import mt_bench QUESTIONS",
    ),
    (
        _is_experiment,
        "summary figures of A/B tests, without prompts and answers",
        "Export the rows behind them: what was asked, what was answered, what the person did",
    ),
    (
        _is_intent,
        "texts with their intents",
        "Write cases, input the text and reference the intent with the checker exact_answer, "
        "then: thumbwheel import jsonl",
    ),
)
"""(whether a row is of the kind, what it is, what to do)."""


def foreign(row: Row) -> tuple[str, str] | None:
    """(what the row is, what to do), where it is of a known kind that no source reads."""
    for is_kind, what, step in FOREIGN:
        if is_kind(row):
            return what, step
    return None
