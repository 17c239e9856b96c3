"""A run of several model and tool steps as one prompt and one answer: everything before the last
answer, and that answer.

Only the last answer is learned from (data rule 8), so the calls and answers before it are part of
what the model is shown. A run records all of it if every model step after the first has the
messages since the step before, or all messages up to it, as `{"messages": [...]}`. Pure functions;
reading is in `store` and `evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from thumbwheel.core.written_calls import write_answer
from thumbwheel.datasets.types import Message

UNRECORDED = (
    "the answer took several model or tool steps, which do not tell what the last one was shown"
)
LAST_ONLY = (
    "runs of several steps: their last answer alone is learned from, by the judgement of the whole "
    "run"
)
LAST_ONLY_OF_ONE = (
    "1 run of several steps: its last answer alone is learned from, by the judgement of the whole "
    "run"
)
OTHER_ANSWER = "the answer of the run is not that of its last step"


class RunStep(NamedTuple):
    """A model or tool step of a run, in its order."""

    kind: str
    input: Any
    output: Any


def history(
    prompt: Sequence[Message], steps: Sequence[RunStep], answer: str | None
) -> list[Message] | str:
    """Return the messages that the last model step was shown, or the reason why they are unknown.

    >>> reply = {"messages": [{"role": "user", "content": "R1."}]}
    >>> steps = [RunStep("llm", None, "Which one?"), RunStep("llm", reply, "Done.")]
    >>> shown = history([{"role": "user", "content": "Cancel it."}], steps, "Done.")
    >>> [message["content"] for message in shown]
    ['Cancel it.', 'Which one?', 'R1.']
    """
    model_steps = [step for step in steps if step.kind == "llm"]
    if not model_steps or not prompt:
        return UNRECORDED
    shown = list(prompt)
    for index, step in enumerate(model_steps):
        new_messages = _messages(step.input)
        if new_messages is None and index > 0:
            return UNRECORDED
        shown = _extended(shown, new_messages or [])
        message = _assistant_message(step.output)
        if index == len(model_steps) - 1:
            return _shown_to_last(shown, message, step.output, answer)
        if message is None:
            return UNRECORDED
        shown.append(message)
    return shown


def _shown_to_last(
    shown: list[Message], message: Message | None, output: Any, answer: str | None
) -> list[Message] | str:
    """Return `shown` if the last step answers it with the answer of the run, else the reason why
    not."""
    if shown[-1]["role"] == "assistant":
        return UNRECORDED
    if output is not None:
        if message is None:
            return OTHER_ANSWER
        if (answer or "").strip() not in _texts(message):
            return OTHER_ANSWER
    return shown


def _texts(message: Message) -> tuple[str, ...]:
    """Return the possible outputs of a run that ends in this message: a message with calls has no
    text, or is written down."""
    content, calls = message["content"], message.get("tool_calls")
    if calls:
        return "", write_answer(content, calls)
    return ((content or "").strip(),)


def _messages(step_input: Any) -> list[Message] | None:
    messages = step_input.get("messages") if isinstance(step_input, dict) else None
    if not isinstance(messages, list) or not messages:
        return None
    if all(isinstance(message, dict) and "role" in message for message in messages):
        return messages
    return None


def _extended(shown: list[Message], new_messages: list[Message]) -> list[Message]:
    """Append `new_messages` to the messages shown so far, or return them alone if they begin with
    all of these."""
    if len(new_messages) > len(shown) and new_messages[: len(shown)] == shown:
        return new_messages
    return [*shown, *new_messages]


def _assistant_message(output: Any) -> Message | None:
    if isinstance(output, str):
        return {"role": "assistant", "content": output}
    if not isinstance(output, dict):
        return None
    calls, content = output.get("tool_calls"), output.get("content")
    if not calls and not isinstance(content, str):
        return None
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    return message
