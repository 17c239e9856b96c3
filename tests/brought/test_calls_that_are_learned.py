"""Answers that are calls of tools are learned as the chat template renders them, from every source
and through the whole way into a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import brought, signals, written
from tests.models.tiny_models import CHATML, tiny_tokenizer
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.written_calls import read_answer, write_answer
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.prompt import PromptBuilder, TargetText
from thumbwheel.importers.detect import detect

HERMES = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = [{"role": "user", "content": "Open today?"}]
ANSWER = write_answer("", [{"function": {"name": "hours", "arguments": '{"day": "today"}'}}])


def learned(template: str, answer: str = ANSWER) -> tuple[str, tuple[int, ...]]:
    """The text that a template teaches, and its token ids."""
    builder = PromptBuilder(tiny_tokenizer(template))
    (row,) = builder.fit(ASKED, [TargetText(answer)], 10**6).rows
    return str(builder.tokenizer.decode(row.completion_ids)), row.completion_ids


def test_a_call_is_taught_as_the_template_renders_it() -> None:
    text, ids = learned(HERMES)
    assert text == '<call>{"name": "hours", "arguments": {"day": "today"}}</call><|im_end|>'
    assert ids[-1] == PromptBuilder(tiny_tokenizer(HERMES)).turn_end_ids[-1]


def test_words_before_a_call_stay() -> None:
    text, _ = learned(HERMES, write_answer("Let me see.", [{"name": "hours", "arguments": {}}]))
    assert text.startswith('Let me see.<call>{"name": "hours"')


def test_a_template_without_a_form_for_calls_teaches_the_form_that_is_read_back() -> None:
    text, _ = learned(CHATML)
    assert text == f"{ANSWER}<|im_end|>"


@pytest.mark.parametrize(
    "text",
    [
        "Until six.",
        "<tool_call>hours(today)</tool_call>",
        '<tool_call>{"name": "hours"}</tool_call> and more',
        '<tool_call>{"name": "hours"}',
    ],
)
def test_a_text_is_no_call(text: str) -> None:
    assert read_answer(text) is None


ENDS_IN_CALL: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {
            "messages": [
                *ASKED,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "hours", "arguments": '{"day": "today"}'},
                        }
                    ],
                },
            ]
        }
    ],
    "sharegpt": [
        {
            "conversations": [
                {"from": "human", "value": "Open today?"},
                {
                    "from": "function_call",
                    "value": '{"name": "hours", "arguments": {"day": "today"}}',
                },
            ]
        }
    ],
    "anthropic": [
        {
            "messages": [
                *ASKED,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "t", "name": "hours", "input": {"day": "today"}}
                    ],
                },
            ]
        }
    ],
    "langfuse": [
        {
            "trace": {
                "id": "t",
                "timestamp": "2026-01-05T09:00:00Z",
                "input": ASKED,
                "scores": [{"id": "s", "name": "user-feedback", "value": 1}],
                "output": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "hours", "arguments": {"day": "today"}}}],
                },
            },
            "observations": [
                {
                    "id": "o",
                    "traceId": "t",
                    "type": "GENERATION",
                    "startTime": "2026-01-05T09:00:00Z",
                    "input": ASKED,
                    "output": {"content": [{"type": "tool_use", "name": "hours"}]},
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("kind", ENDS_IN_CALL)
def test_a_dataset_teaches_the_call_that_a_row_ends_in(kind: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    path = written(tmp_path / "rows.jsonl", *ENDS_IN_CALL[kind])
    with Workspace.open(home, Sources({}, "", {})) as ws:
        ingest(ws, "desk", detect(path).source, path)
        dataset = build(ws, "desk", "chats", DatasetConfig(dev=0, gate=0))
        (row,) = load_rows(ws, dataset.id, "train")
    assert row.prompt == ASKED
    assert row.completion == ANSWER


def test_every_call_of_a_conversation_is_an_answer_of_its_own() -> None:
    assert signals(brought("14-openai-tool-call-target/tools.jsonl")) == [("label", True)] * 4
