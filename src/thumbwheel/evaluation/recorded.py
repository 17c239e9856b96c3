"""The responder of form `recorded`: what the app's model answered to the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import Answers, Ask, AskLikelihood, HeldOutCase, ModelAnswer, Sums
from thumbwheel.models.types import ModelVersion


@dataclass
class RecordedResponder:
    """Answers from records; a prompt without a record has no answer, and neither has an `Ask` for
    several samples."""

    name: str
    identity: str
    by_prompt: Mapping[str, ModelAnswer]
    """Canonical prompt -> its answer."""
    batch: int = 1000
    scores: bool = False

    def recipe(self) -> dict[str, Any] | None:
        """Return None: what is recorded is only read."""
        return None

    def answers(self, asks: Sequence[Ask]) -> list[Answers]:
        replies: list[Answers] = []
        for ask in asks:
            answer = self.by_prompt.get(ids.canonical(ask.prompt))
            replies.append((answer,) if answer is not None and ask.samples == 1 else ())
        return replies

    def log_probabilities(self, asks: Sequence[AskLikelihood]) -> list[Sums]:
        return [()] * len(asks)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def recorded(
    ws: Workspace, version: ModelVersion, name: str, cases: Sequence[HeldOutCase]
) -> RecordedResponder:
    """Return a responder that gives the newest answer of `version` to the prompt of each case. An
    answer whose model was not recorded counts as the version's."""
    prompt_ids = {case.prompt_id for case in cases}
    with ws.db.read() as connection:
        answers = store.recorded(connection, version, prompt_ids)
    by_prompt = {
        ids.canonical(case.prompt): answers[case.prompt_id]
        for case in cases
        if case.prompt_id in answers
    }
    texts = {prompt: answer.text for prompt, answer in by_prompt.items()}
    return RecordedResponder(name, ids.fingerprint(["recorded", texts]), by_prompt)
