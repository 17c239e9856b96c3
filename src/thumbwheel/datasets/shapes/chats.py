"""`chats`: a prompt and one good answer, for imitation. Edits, answers that were judged good, and
preferred ones as an option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import (
    MACHINES,
    WITHHELD_JUDGEMENT,
    ChatRow,
    DatasetConfig,
    Drop,
    Evidence,
    JudgedText,
)


class Chats(Shape):
    """An edited answer gives only its edit; a bad or undecided answer gives nothing."""

    name = "chats"
    teaches = "imitates good answers"
    row = ChatRow

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[ChatRow | Drop]:
        """Yield one row for each good answer, and the drops."""
        worse = {edge.worse for edge in evidence.edges}
        preferred = {
            edge.better: edge
            for edge in evidence.edges
            if edge.origin == "preference" and edge.better not in worse
        }
        for position, answer in enumerate(evidence.answers):
            edge = preferred.get(position)
            if answer.good and answer.corrected:
                yield Drop("good answer that was edited: its edit stands for it")
            elif answer.good:
                weight = answer.strength
                if answer.origin == "correction":
                    weight *= config.correction_weight
                yield self._row(evidence, answer, answer.origin, weight, answer.feedback_ids)
            elif (
                answer.good is None
                and not answer.conflict
                and edge
                and config.chats_from_preferences
            ):
                yield self._row(evidence, answer, "preference", edge.strength, edge.feedback_ids)
            else:
                yield Drop(_drop_reason(answer))

    def trl_columns(self, row: ChatRow) -> dict[str, Any]:
        """Return `messages`, the answer last."""
        return {"messages": [*row.prompt, *assistant(row.completion)]}

    def _row(
        self,
        evidence: Evidence,
        answer: JudgedText,
        origin: str,
        weight: float,
        feedback_ids: tuple[str, ...],
    ) -> ChatRow:
        tokens = None if answer.token_ids is None else list(answer.token_ids)
        shared = base(self.name, evidence, (answer,), origin, weight, feedback_ids)
        return ChatRow(
            **shared, completion=answer.text, finish_reason=answer.finish_reason, token_ids=tokens
        )


def _drop_reason(answer: JudgedText) -> str:
    if WITHHELD_JUDGEMENT in answer.withheld:
        return MACHINES
    if answer.good is not None:
        return "the answer was judged bad"
    if answer.conflict:
        return "raters contradict each other evenly"
    return "no judgement that calls the answer good"
