"""The dataset layouts of TRL, as texts and as chats.

prompt + completion (a good answer), + label (unpaired preference: a thumb), prompt + completions +
labels (stepwise: each completion is a step, labelled), prompt alone, chosen + rejected with or
without prompt, messages. A bare `text` is refused: it does not say what was asked. Rows with chosen
and rejected are recognised as `preference`, those with messages as `openai`: they mean the same
there.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.fields import chat, is_chat, list_at, split_answer
from thumbwheel.capture.mapping import thumb_of
from thumbwheel.capture.pairs import messages_of, pair_records, split_pair
from thumbwheel.capture.source import JsonLines, Row
from thumbwheel.capture.types import (
    AnyRecord,
    FeedbackRecord,
    StepRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
)

USED = frozenset(
    {
        "prompt",
        "completion",
        "completions",
        "label",
        "labels",
        "chosen",
        "rejected",
        "messages",
        "text",
        "tools",
    }
)
GOOD: Row = {"kind": "label", "name": "good", "value": True}
"""What the file says of an answer without a label."""
EXAMPLE = (
    '{"prompt": "The sky is", "completion": " blue."}\n'
    '{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", '
    '"content": "Hello!"}], "label": true}\n'
    '{"prompt": "What is 2 + 3 * 4?", "completions": ["3 * 4 = 12.", "2 + 12 = 15."], "labels": '
    "[true, false]}"
)


def claims(row: Row) -> bool:
    """A prompt with what completes it, or a text of language modelling."""
    metadata = row.get("metadata")
    if isinstance(metadata, dict) and "decisionId" in metadata:
        return False  # an exported decision, which says more
    keys = {key for key, value in row.items() if value is not None}
    return (
        keys in ({"text"}, {"prompt"})
        or {"prompt", "completion"} <= row.keys()
        or {"prompt", "completions", "labels"} <= row.keys()
    )


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """The records of a row of any layout."""
    metadata = {key: value for key, value in row.items() if key not in USED and value is not None}
    if row.get("tools"):
        metadata["tools"] = row["tools"]
    about = {"metadata": metadata or None}
    if "chosen" in row or "rejected" in row:
        prompt, *answers = split_pair(row.get("prompt"), row.get("chosen"), row.get("rejected"))
        return pair_records(prompt, (answers[0], answers[1]), [(None, [[0], [1]])], {}, **about)
    if is_chat(row.get("messages")):
        prompt, answer = split_answer(chat(row["messages"]), "the chat")
        return _answered(prompt, answer, about, GOOD)
    if "prompt" not in row:
        why = "it has neither prompt, nor messages, nor chosen and rejected"
        if "text" in row:
            why = (
                "a bare text does not say what was asked and what was answered; give prompt and "
                "completion, or messages"
            )
        raise Unreadable(why)
    if row.get("completions") is not None:
        return _stepwise(row, about)
    prompt = _prompt(row["prompt"])
    if row.get("completion") is None:
        return [TraceRecord.model_validate({"input": prompt} | about)]
    signal = GOOD
    if row.get("label") is not None:
        signal = {"kind": "thumb", "value": thumb_of(row["label"])}
    return _answered(prompt, _completion(row["completion"]), about, signal)


def _answered(
    prompt: list[dict[str, Any]], answer: str, about: dict[str, Any], signal: Row
) -> list[AnyRecord]:
    trace = TraceRecord.model_validate({"input": prompt, "output": answer} | about)
    feedback = FeedbackRecord.model_validate({"targets": [trace.as_target()], **signal})
    return [trace, feedback]


def _prompt(value: Any) -> list[dict[str, Any]]:
    return chat(value) if is_chat(value) else messages_of(value)


def _completion(value: Any) -> str:
    if is_chat(value) and len(value) == 1:
        value = chat(value)[0]["content"]
    if not isinstance(value, str):
        raise Unreadable("its completion is neither a text nor one message of the assistant")
    return value


def _stepwise(row: Row, about: dict[str, Any]) -> list[AnyRecord]:
    """One trace with a reasoning step for each completion, and a label on each of them."""
    parts = [_completion(completion) for completion in list_at(row, "completions")]
    labels = list_at(row, "labels")
    if not parts or len(parts) != len(labels):
        raise Unreadable(f"{len(labels)} labels for {len(parts)} completions")
    steps = [StepRecord(kind="reasoning", output=part) for part in parts]
    fields = {
        "input": _prompt(row["prompt"]),
        "output": "\n".join(parts),
        "steps": [*steps, StepRecord()],
    }
    trace = TraceRecord.model_validate(fields | about)
    name = trace.external_id
    records: list[AnyRecord] = [trace]
    for position, label in enumerate(labels):
        target = TargetRef(kind="step", id=name, step=position)
        value = thumb_of(label)
        records.append(FeedbackRecord(kind="label", name="correct", value=value, targets=[target]))
    return records


SOURCE = JsonLines(parse, claims, EXAMPLE)
