"""`edit_distance`: how much of an answer the raters' correction left as it was: 1 where nothing was
changed, 0 where nothing was kept.

It is 1 - d / n, with d the insertions, deletions and replacements (Levenshtein) and n the length of
the longer text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import agreed_edit, of_kinds
from thumbwheel.rewards.function import (
    LONGEST_ANSWER,
    Case,
    JudgementStatus,
    RewardFunction,
    Score,
    Unjudgeable,
)


class EditDistanceConfig(Config):
    """Settings of `edit_distance`."""

    unit: Literal["characters", "words"] = "characters"
    """What is counted as changed or kept."""


class EditDistance(RewardFunction[EditDistanceConfig]):
    Config = EditDistanceConfig
    case_settings = frozenset({"unit"})
    reads = frozenset({"text", "feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the answer, and the corrections of the feedback."""
        return {"text": case.text, "feedback": of_kinds(case.feedback, "correction")}

    def judge(self, case: Case) -> Score:
        """Return the similarity of answer and correction; evidence: the number of changes, and the
        ids of the corrections."""
        from rapidfuzz.distance import Levenshtein

        edit, conflict = agreed_edit(of_kinds(case.feedback, "correction"))
        if edit is None:
            why = "the corrections differ, without a plurality"
            return Score.none(
                JudgementStatus.NOT_APPLICABLE, why if conflict else "nobody corrected it"
            )
        if len(edit.text) > LONGEST_ANSWER:
            raise Unjudgeable(
                f"the correction has {len(edit.text)} characters; at most {LONGEST_ANSWER} are "
                "compared"
            )
        before: Sequence[str] = case.text.strip()
        after: Sequence[str] = edit.text.strip()
        if self.config.unit == "words":
            before, after = case.text.split(), edit.text.split()
        changes = Levenshtein.distance(before, after)
        longer = max(len(before), len(after))
        evidence = {
            "changes": changes,
            "of": longer,
            "unit": self.config.unit,
            "feedback_ids": list(edit.feedback_ids),
        }
        return Score(1 - changes / longer if longer else 1.0, evidence=evidence)
