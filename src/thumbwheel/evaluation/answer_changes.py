"""How a candidate answers a few fixed prompts, against what answers today.

The prompts are the owner's: answers that have to stay as they are, whatever was learned. Feedback
that was planted to change one answer shows here, though it moves no average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.evaluate import incumbent_of
from thumbwheel.evaluation.responder import Responder, ask
from thumbwheel.evaluation.responders import Responders
from thumbwheel.evaluation.types import Ask, EvaluationConfig
from thumbwheel.models.types import ModelVersion


@dataclass(frozen=True)
class AnswerChange:
    """Both answers to a prompt. `change`: the share of their words that differ, from 0 to 1."""

    prompt: str
    before: str
    after: str
    change: float


def answer_changes(
    ws: Workspace, candidate: ModelVersion, prompts: Sequence[str]
) -> list[AnswerChange]:
    """Ask `candidate` and the incumbent each prompt and return how their answers differ. Raises as
    `evaluate` does."""
    config = ws.settings(EvaluationConfig, "evaluation")
    incumbent = incumbent_of(ws, candidate, None, None, None)
    responders = Responders(ws, config, [], candidate, incumbent)
    asks = [Ask([{"role": "user", "content": text}], config.max_new_tokens) for text in prompts]

    def texts(responder: Responder) -> list[str]:
        replies = ask(ws, candidate.agent_id, responder, asks, "answers to the canary prompts")
        return [reply[0].text if reply else "" for reply in replies]

    try:
        before, after = texts(responders.before), texts(responders.after)
    finally:
        responders.close()
    return [
        AnswerChange(prompt, first, second, difference(first, second))
        for prompt, first, second in zip(prompts, before, after, strict=True)
    ]


def difference(first: str, second: str) -> float:
    """Return the share of the words of two texts that are not common to both, in their order.

    >>> difference("It opens at nine.", "It opens at ten."), difference("yes", "yes")
    (0.25, 0.0)
    """
    return 1.0 - SequenceMatcher(None, first.split(), second.split(), autojunk=False).ratio()
