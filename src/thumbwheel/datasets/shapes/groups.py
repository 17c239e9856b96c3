"""`groups`: a prompt with several recorded answers and how good each is, for advantages within the
group without sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thumbwheel.datasets.shape import Shape, base
from thumbwheel.datasets.types import MACHINES, Answer, DatasetConfig, Drop, Evidence, GroupRow


@dataclass(frozen=True)
class _Member:
    answer: Answer
    value: float
    feedback_ids: tuple[str, ...]


class Groups(Shape):
    """One row for each prompt with at least two valued answers, equal values included: that nothing
    is to be learned is a fact too.

    Runs of several steps are one group where they have one task, whatever became of each on the
    way.
    """

    name = "groups"
    row = GroupRow
    merges = True

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[GroupRow | Drop]:
        """The row, and the answers that nothing values."""
        members = []
        for answer in evidence.answers:
            valued = _value(answer)
            if valued is None:
                yield Drop(MACHINES if answer.withheld else "nothing says how good the answer is")
            else:
                members.append(valued)
        if len(members) == 1:
            yield Drop("the only valued answer to its prompt")
        elif members:
            yield self._row(evidence, members)

    def trl_columns(self, row: GroupRow) -> dict[str, Any]:
        """`prompt`, `completions` (texts) and `values`, and `prompts` of runs; no trainer of TRL
        reads recorded groups."""
        own = {"prompts": row.prompts} if row.prompts else {}
        return {"prompt": row.prompt, "completions": row.completions, "values": row.values} | own

    def _row(self, evidence: Evidence, members: list[_Member]) -> GroupRow:
        answers = tuple(one.answer for one in members)
        own = any(one.prompt is not None for one in answers)
        origin = "numbers" if any(one.value is not None for one in answers) else "judgements"
        return GroupRow(
            **base(
                self.name,
                evidence,
                answers,
                origin,
                1.0,
                (name for one in members for name in one.feedback_ids),
            ),
            completions=[one.text for one in answers],
            values=[one.value for one in members],
            finish_reasons=[one.finish_reason for one in answers],
            token_ids=[list(one.token_ids) if one.token_ids else None for one in answers],
            logps=[list(one.logps) if one.logps else None for one in answers],
            success=sum(one.value for one in members) / len(members),
            prompts=[one.prompt or evidence.prompt for one in answers] if own else None,
        )


def _value(answer: Answer) -> _Member | None:
    """0 to 1: the mean of the raters' numbers, else good (1) or bad (0), nearer to the middle the
    more they disagree."""
    if answer.value is not None:
        return _Member(answer, answer.value.unit, answer.value.feedback_ids)
    if answer.good is None:
        return None
    margin = min(answer.strength, 1.0)
    return _Member(answer, (1 + margin if answer.good else 1 - margin) / 2, answer.feedback_ids)
