"""`groups`: a prompt with several recorded answers and how good each is, for advantages within the
group without sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from thumbwheel.datasets.shape import Shape, base
from thumbwheel.datasets.types import MACHINES, DatasetConfig, Drop, Evidence, GroupRow, JudgedText


@dataclass(frozen=True)
class _GroupMember:
    answer: JudgedText
    value: float
    feedback_ids: tuple[str, ...]


class Groups(Shape):
    """One row for each prompt with at least two valued answers. Equal values are included: that
    there is nothing to learn is information too.

    Runs of several steps with the same task are one group, whatever steps each took.
    """

    name = "groups"
    teaches = "learns from recorded answers to one prompt, by how good each was beside the others"
    row = GroupRow
    merges = True

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[GroupRow | Drop]:
        """Yield the row, and a Drop for each answer without a value."""
        members = []
        for answer in evidence.answers:
            member = _valued(answer)
            if member is not None:
                members.append(member)
            elif answer.withheld:
                yield Drop(MACHINES)
            else:
                yield Drop("nothing says how good the answer is")
        if len(members) == 1:
            yield Drop("the only valued answer to its prompt")
        elif members:
            yield self._row(evidence, members)

    def trl_columns(self, row: GroupRow) -> dict[str, Any]:
        """Return `prompt`, `completions` (texts) and `values`, and `prompts` of runs; no trainer of
        TRL reads recorded groups."""
        columns = {"prompt": row.prompt, "completions": row.completions, "values": row.values}
        if row.prompts:
            columns["prompts"] = row.prompts
        return columns

    def _row(self, evidence: Evidence, members: list[_GroupMember]) -> GroupRow:
        answers = tuple(member.answer for member in members)
        values = [member.value for member in members]
        feedback_ids = chain.from_iterable(member.feedback_ids for member in members)
        has_numbers = any(answer.value is not None for answer in answers)
        origin = "numbers" if has_numbers else "judgements"
        prompts = None
        if any(answer.prompt is not None for answer in answers):
            prompts = [answer.prompt or evidence.prompt for answer in answers]
        return GroupRow(
            **base(self.name, evidence, answers, origin, 1.0, feedback_ids),
            completions=[answer.text for answer in answers],
            values=values,
            finish_reasons=[answer.finish_reason for answer in answers],
            token_ids=[list(answer.token_ids or ()) or None for answer in answers],
            logps=[list(answer.logps or ()) or None for answer in answers],
            success=sum(values) / len(values),
            prompts=prompts,
        )


def _valued(answer: JudgedText) -> _GroupMember | None:
    """Return the answer with its value, 0 to 1: the mean of the raters' numbers, else good (1) or
    bad (0), the nearer to 0.5 the more they disagree; None if it has neither."""
    if answer.value is not None:
        return _GroupMember(answer, answer.value.unit, answer.value.feedback_ids)
    if answer.good is None:
        return None
    margin = min(answer.strength, 1.0)
    signed = margin if answer.good else -margin
    return _GroupMember(answer, (1 + signed) / 2, answer.feedback_ids)
