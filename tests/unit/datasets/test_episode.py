"""Runs of several steps: what their last answer was shown, told by the steps in either form, or the
reason why it is not known."""

from __future__ import annotations

from typing import Any

import pytest

from thumbwheel.core.written_calls import write_answer
from thumbwheel.datasets.episode import OTHER_ANSWER, UNRECORDED, RunStep, history

ASKED = [{"role": "user", "content": "Cancel it."}]
CALL = {
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "cancel", "arguments": "{}"}}
    ],
}
CALLED = {"role": "assistant", **CALL}
GIVEN = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


def step(output: Any, *messages: dict[str, Any]) -> RunStep:
    return RunStep("llm", {"messages": list(messages)} if messages else None, output)


@pytest.mark.parametrize(
    "messages", [[GIVEN], [*ASKED, CALLED, GIVEN]], ids=["what came since", "all of it"]
)
def test_the_history_is_the_same_in_both_forms(messages: list[dict[str, Any]]) -> None:
    steps = [step(CALL), RunStep("tool", {}, "ok"), step("Done.", *messages)]
    assert history(ASKED, steps, "Done.") == [*ASKED, CALLED, GIVEN]


@pytest.mark.parametrize(
    ("steps", "answer", "why"),
    [
        ([step("Which?"), step("Done.")], "Done.", UNRECORDED),
        ([step(None), step("Done.", GIVEN)], "Done.", UNRECORDED),
        ([RunStep("tool", {}, "ok")], "Done.", UNRECORDED),
        ([step("Which?"), step(CALL, GIVEN)], "Which?", OTHER_ANSWER),
        ([step(CALL), step("Done.", GIVEN)], "Something else.", OTHER_ANSWER),
    ],
)
def test_what_is_not_told_has_its_reason(steps: list[RunStep], answer: str, why: str) -> None:
    assert history(ASKED, steps, answer) == why


@pytest.mark.parametrize("answer", [None, write_answer(CALL["content"], CALL["tool_calls"])])
def test_a_run_may_end_in_a_call(answer: str | None) -> None:
    steps = [step("Which?"), step(CALL, GIVEN)]
    assert history(ASKED, steps, answer) == [
        *ASKED,
        {"role": "assistant", "content": "Which?"},
        GIVEN,
    ]
