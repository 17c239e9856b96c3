"""The dataset layouts of TRL, as texts and as chats.

prompt + completion (a good answer), + label or another mark (unpaired preference: a thumb; null:
nobody said), prompt + completions +
labels (stepwise: each completion is a step, labelled), prompt alone, chosen + rejected with or
without prompt, messages. A bare `text` is refused: it does not say what was asked. Rows with chosen
and rejected are recognised as `preference`, those with messages as `openai`: they mean the same
there.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import list_at
from thumbwheel.importers.marks import thumb_of
from thumbwheel.importers.messages import chat, is_chat, tools_of, with_media, with_thoughts
from thumbwheel.importers.pairs import (
    given_prompt,
    has_side,
    pair_of_row,
    pair_records,
    with_remark,
)
from thumbwheel.importers.source import Row
from thumbwheel.importers.training_rows import (
    RowMarks,
    TrainingRows,
    chat_records,
    judged_answer,
)
from thumbwheel.importers.types import (
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
        "system",
        "images",
    }
)
EXAMPLE = (
    '{"prompt": "The sky is", "completion": " blue."}\n'
    '{"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", '
    '"content": "Hello!"}], "label": true}\n'
    '{"prompt": "What is 2 + 3 * 4?", "completions": ["3 * 4 = 12.", "2 + 12 = 15."], "labels": '
    "[true, false]}"
)


def claims(row: Row) -> bool:
    """Return whether the row has a prompt and its completion, or a text of language modelling."""
    metadata = row.get("metadata")
    if isinstance(metadata, dict) and "decisionId" in metadata:
        return False  # an exported decision, which says more
    keys = {key for key, value in row.items() if value is not None}
    return (
        keys in ({"text"}, {"prompt"})
        or {"prompt", "completion"} <= row.keys()
        or {"prompt", "completions", "labels"} <= row.keys()
    )


def parse(row: dict[str, Any], marks: RowMarks) -> list[AnyRecord]:
    """Return the records of a row in any of the layouts. Raises Unreadable."""
    metadata = {key: value for key, value in row.items() if key not in USED and value is not None}
    tools = tools_of(row.get("tools"))
    if tools:
        metadata["tools"] = tools
    about = {"metadata": metadata or None}
    if has_side(row):
        prompt, answers, remark = pair_of_row(row, row.get("chosen"), row.get("rejected"))
        records = pair_records(prompt, answers, [(None, [[0], [1]])], {}, **about)
        return with_remark(records, remark)
    if is_chat(row.get("messages")):
        return chat_records(row, row["messages"], marks, metadata)
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
    prompt = _prompt(row)
    if row.get("completion") is None:
        if marks.signals(row):
            raise Unreadable("its answer is empty, and somebody judged it")
        return [TraceRecord.model_validate({"input": prompt} | about)]
    answer = with_thoughts(_completion(row["completion"]), row)
    message = row["completion"][0] if is_chat(row["completion"]) else None
    return judged_answer(row, marks, prompt, answer, metadata, message)


def _prompt(row: Row) -> list[dict[str, Any]]:
    prompt = given_prompt({key: row.get(key) for key in ("prompt", "system")})
    if prompt is None:
        raise Unreadable("its prompt is empty")
    return with_media(prompt, row)


def _completion(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = [{"role": "assistant", "content": value}]
    messages = chat(value) if is_chat(value) else []
    if len(messages) != 1:
        raise Unreadable("its completion is neither a text nor one message of the assistant")
    return messages[0]


def _stepwise(row: Row, about: dict[str, Any]) -> list[AnyRecord]:
    """Return one trace with a reasoning step for each completion, and a label for each step. Raises
    Unreadable if completions and labels differ in number."""
    parts = [str(_completion(part)["content"]) for part in list_at(row, "completions")]
    labels = list_at(row, "labels")
    if not parts or len(parts) != len(labels):
        raise Unreadable(f"{len(labels)} labels for {len(parts)} completions")
    steps = [StepRecord(kind="reasoning", output=part) for part in parts]
    fields = {
        "input": _prompt(row),
        "output": "\n".join(parts),
        "steps": [*steps, StepRecord()],
    }
    trace = TraceRecord.model_validate(fields | about)
    name = trace.external_id
    records: list[AnyRecord] = [trace]
    for position, label in enumerate(labels):
        target = TargetRef(kind="step", id=name, step=position)
        value = thumb_of(label, "label")
        records.append(FeedbackRecord(kind="label", name="correct", value=value, targets=[target]))
    return records


SOURCE = TrainingRows.of(
    parse,
    claims,
    EXAMPLE,
    reason="a prompt with what completes it, or a text of language modelling",
)
