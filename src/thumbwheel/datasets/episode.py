"""A run of several model and tool steps as one prompt and one answer: all that stands before the
last answer, and that answer.

The last answer alone is learned from (data rule 8), so the calls and answers before it belong to
what the model is shown. A run tells all of it where every model step after the first has the
messages that came since the one before, or all messages up to it, as `{"messages": [...]}`. Pure;
reading is `store`'s and `read_evidence`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thumbwheel.datasets.types import Message

UNTOLD = (
    "the answer took several model or tool steps, which do not tell what the last one was shown"
)
CALLS = "the run ends in a tool call, which no row can hold as its answer"
LAST_ONLY = (
    "runs of several steps: their last answer alone is learned from, by the judgement of the whole "
    "run"
)
OTHER = "the answer of the run is not that of its last step"


class RunStep(NamedTuple):
    """A model or tool step of a run, in its order."""

    kind: str
    input: Any
    output: Any


def history(
    prompt: Sequence[Message], steps: Sequence[RunStep], answer: str | None
) -> list[Message] | str:
    """What the last model step was shown, or the reason why it cannot be said.

    >>> steps = [RunStep("llm", None, "Which one?"), RunStep("llm", {"messages": [{"role": "user",
    "content": "R1."}]}, "Done.")]
    >>> [message["content"] for message in history([{"role": "user", "content": "Cancel it."}],
    steps, "Done.")]
    ['Cancel it.', 'Which one?', 'R1.']
    """
    said = [step for step in steps if step.kind == "llm"]
    if not said or not prompt:
        return UNTOLD
    shown = list(prompt)
    for place, step in enumerate(said):
        since = _messages(step.input)
        if since is None and place:
            return UNTOLD
        shown = _on(shown, since or [])
        message = _assistant(step.output)
        if place == len(said) - 1:
            return _ends(shown, message, step.output, answer)
        if message is None:
            return UNTOLD
        shown.append(message)
    return shown


def _ends(
    shown: list[Message], message: Message | None, output: Any, answer: str | None
) -> list[Message] | str:
    if message is not None and message.get("tool_calls"):
        return CALLS
    if shown[-1]["role"] == "assistant":
        return UNTOLD
    if output is not None and (
        message is None or (message["content"] or "").strip() != (answer or "").strip()
    ):
        return OTHER
    return shown


def _messages(given: Any) -> list[Message] | None:
    found = given.get("messages") if isinstance(given, dict) else None
    return (
        found
        if isinstance(found, list)
        and found
        and all(isinstance(one, dict) and "role" in one for one in found)
        else None
    )


def _on(shown: list[Message], since: list[Message]) -> list[Message]:
    """`since` after what was shown, or alone where it begins with all of that."""
    return since if len(since) > len(shown) and since[: len(shown)] == shown else [*shown, *since]


def _assistant(output: Any) -> Message | None:
    if isinstance(output, str):
        return {"role": "assistant", "content": output}
    if not isinstance(output, dict) or not (
        output.get("tool_calls") or isinstance(output.get("content"), str)
    ):
        return None
    called = {"tool_calls": output["tool_calls"]} if output.get("tool_calls") else {}
    return {"role": "assistant", "content": output.get("content")} | called
