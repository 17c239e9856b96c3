"""An empty answer has no form to judge, unless a rule asks for something."""

from __future__ import annotations

import pytest

from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.format_compliance import FormatCompliance, FormatComplianceConfig


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_is_no_good_form(text: str) -> None:
    score = FormatCompliance(FormatComplianceConfig()).judge(Case(text=text))
    assert (score.value, score.status) == (None, JudgementStatus.NOT_APPLICABLE)


def test_an_empty_answer_breaks_a_rule_that_asks_for_something() -> None:
    score = FormatCompliance(FormatComplianceConfig(valid_json=True)).judge(Case(text=""))
    assert score.value == pytest.approx(0.9)
