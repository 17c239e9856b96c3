"""`prompts`: a prompt to be answered afresh, with what judges the answer. Cases that are not gold,
and what was asked in traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from thumbwheel.core import ids
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.split import group_of
from thumbwheel.datasets.types import WAITS, Case, DatasetConfig, Drop, Evidence, PromptRow
from thumbwheel.rewards.checker import needs_feedback


class Prompts(Shape):
    """One row for each case; a prompt without one gives a row that no checker can judge. What was
    said about answers plays no part."""

    name = "prompts"
    row = PromptRow
    unjudged = True

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[PromptRow | Drop]:
        """The cases of the prompt, else the prompt alone."""
        for case in evidence.cases:
            yield self._row(evidence, case)
        if not evidence.cases and evidence.asked:
            yield (
                self._row(evidence, None)
                if config.prompts_from_traces
                else Drop("no case says what a right answer is")
            )

    def trl_columns(self, row: PromptRow) -> dict[str, Any]:
        """`prompt`, and `reference` as text for the reward function."""
        reference = (
            row.reference
            if isinstance(row.reference, str)
            else json.dumps(row.reference, ensure_ascii=False)
        )
        return {"prompt": row.prompt, "reference": reference}

    def _row(self, evidence: Evidence, case: Case | None) -> PromptRow:
        liked = evidence.liked
        judged = [case.reference, case.checker, case.checker_config] if case else [None, None, None]
        return PromptRow(
            row_id=ids.derived(
                "row", self.name, evidence.prompt_id, json.dumps(judged, sort_keys=True)
            ),
            group=evidence.asked[0].group if evidence.asked else group_of(evidence.prompt_id),
            split=evidence.split,
            prompt=evidence.prompt,
            tools=evidence.tools,
            weight=1.0,
            origin=(WAITS if needs_feedback(case.checker) else "case") if case else "trace",
            feedback_ids=sorted(liked.feedback_ids) if liked else [],
            trace_ids=sorted(
                {one.trace_id for one in evidence.asked}.union(liked.trace_ids if liked else ())
            ),
            subject_ids=sorted(
                {one.subject_id for one in evidence.asked if one.subject_id}.union(
                    liked.subject_ids if liked else ()
                )
            ),
            reference=judged[0],
            checker=judged[1],
            checker_config=judged[2],
            case_id=case.id if case else None,
            success=evidence.success,
            liked=liked.text if liked else None,
        )
