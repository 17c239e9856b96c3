"""`prompts`: a prompt to be answered afresh, with what judges the answer. Cases that are not gold,
and what was asked in traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from thumbwheel.core import ids
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.split import group_of
from thumbwheel.datasets.types import WAITS, DatasetConfig, Drop, Evidence, JudgingCase, PromptRow
from thumbwheel.rewards.checker import needs_feedback


class Prompts(Shape):
    """One row for each case. A prompt without a case gives a row that no checker can judge.
    Feedback about answers does not matter."""

    name = "prompts"
    teaches = "answers afresh and learns from what judges the answers"
    row = PromptRow
    unjudged = True

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[PromptRow | Drop]:
        """Yield a row for each case of the prompt, else one for the prompt alone."""
        for case in evidence.cases:
            yield self._row(evidence, case)
        if evidence.cases or not evidence.asked:
            return
        if config.prompts_from_traces:
            yield self._row(evidence, None)
        else:
            yield Drop("no case says what a right answer is")

    def trl_columns(self, row: PromptRow) -> dict[str, Any]:
        """Return `prompt`, and `reference` as text for the reward function."""
        reference = row.reference
        if not isinstance(reference, str):
            reference = json.dumps(reference, ensure_ascii=False)
        return {"prompt": row.prompt, "reference": reference}

    def _row(self, evidence: Evidence, case: JudgingCase | None) -> PromptRow:
        origin, reference, checker, checker_config = "trace", None, None, None
        if case:
            origin = WAITS if needs_feedback(case.checker) else "case"
            reference, checker, checker_config = case.reference, case.checker, case.checker_config
        judged_by = json.dumps([reference, checker, checker_config], sort_keys=True)
        group = group_of(evidence.prompt_id)
        if evidence.asked:
            group = evidence.asked[0].group
        trace_ids = {asked.trace_id for asked in evidence.asked}
        subject_ids = {asked.subject_id for asked in evidence.asked if asked.subject_id}
        liked_text, feedback_ids = None, set[str]()
        if liked := evidence.liked:
            liked_text, feedback_ids = liked.text, set(liked.feedback_ids)
            trace_ids.update(liked.trace_ids)
            subject_ids.update(liked.subject_ids)
        return PromptRow(
            row_id=ids.derived("row", self.name, evidence.prompt_id, judged_by),
            group=group,
            split=evidence.split,
            prompt=evidence.prompt,
            tools=evidence.tools,
            weight=1.0,
            origin=origin,
            feedback_ids=sorted(feedback_ids),
            trace_ids=sorted(trace_ids),
            subject_ids=sorted(subject_ids),
            reference=reference,
            checker=checker,
            checker_config=checker_config,
            case_id=case.id if case else None,
            success=evidence.success,
            liked=liked_text,
        )
