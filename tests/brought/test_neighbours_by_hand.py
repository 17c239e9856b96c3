"""Neighbours of the files that people brought, invented by hand: marks for each message, questions
under other names, answers that say which they are, blocks and columns of other versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import (
    answers,
    brought,
    planned,
    refusals,
    signals,
    traces,
    written,
)
from tests.command_line import Run
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect

ASKED = {"role": "user", "content": "Can I return shoes?"}
RUDE = {"role": "assistant", "content": "Go away."}
KIND = {"role": "assistant", "content": "Yes, within 14 days."}
CHAT = {"messages": [ASKED, RUDE, ASKED, KIND]}


@pytest.mark.parametrize(
    "switches",
    [
        {"weights": [0, 1]},
        {"loss_weights": [0.0, 1.0]},
        {"loss_mask": [0, 0, 0, 1]},
        {"mask": [0, 1]},
        {"train_mask": [False, True]},
        {"train_on_turn": [False, True]},
        {"train_turns": [3]},
        {"learnable": [False, True]},
        {"loss": [0, 1]},
    ],
    ids=lambda switches: next(iter(switches)),
)
def test_a_list_that_switches_turns_off_teaches_no_turn(
    switches: dict[str, Any], tmp_path: Path
) -> None:
    (key,) = switches
    for number, row in enumerate((CHAT, {"conversations": CHAT["messages"]})):
        path = written(tmp_path / f"{number}.jsonl", row | switches)
        (reason,) = refusals(path).values()
        assert f"--column metadata={key}" in reason
        assert signals(path) == []
        left_out = Options.parsed([f"metadata={key}"], None)
        assert signals(path, options=left_out) == [("label", True)] * 2


def test_losses_of_a_training_are_no_switches(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CHAT | {"loss": [0.7, 0.2]})
    assert signals(path) == [("label", True)] * 2


@pytest.mark.parametrize("key", ["task", "title", "topic", "name", "category", "comment"])
def test_a_sentence_that_may_be_the_prompt_of_a_pair_is_asked_about(
    key: str, tmp_path: Path
) -> None:
    """The prompt was `I say`, the words with which both answers begin."""
    pair = {"chosen": "I say a cherry.", "rejected": "I say a stone."}
    path = written(tmp_path / "rows.jsonl", {key: "Which fruit is red?"} | pair)
    (reason,) = refusals(path).values()
    assert f"--column prompt={key}" in reason
    assert signals(path, "csv", Options.parsed([f"prompt={key}"], None)) == [
        ("preference", {"ranking": [[0], [1]]})
    ]


@pytest.mark.parametrize(
    "columns",
    [
        {"good_answer": "cherry", "bad_answer": "stone"},
        {"best_answer": "cherry", "worst_answer": "stone"},
        {"bad_answer": "stone"},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_answers_that_say_which_they_are_are_asked_about(
    columns: dict[str, str], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", {"question": "Red?"} | columns)
    with pytest.raises(InputError, match="known to contain the answer"):
        detect(path)


def test_a_mark_of_a_completion_that_is_null_is_not_lost_in_silence(tmp_path: Path) -> None:
    rows = [
        {"prompt": None, "completion": "x", "label": True},
        {"prompt": "a?", "completion": None, "label": True},
        {"prompt": "a?", "completion": None, "label": None},
        {"prompt": "b?", "completion": "x", "label": False},
    ]
    path = written(tmp_path / "rows.jsonl", *rows)
    assert refusals(path) == {
        1: "its prompt is empty",
        2: "its answer is empty, and somebody judged it",
    }
    assert signals(path) == [("thumb", False)]


BROKEN = {"id": "c", "type": "function", "function": {"name": "hours", "arguments": '{"day": "to'}}


def test_a_call_whose_arguments_broke_off_is_no_good_answer(tmp_path: Path) -> None:
    """The gateway calls such an answer incomplete; a file says the same."""
    called = {"role": "assistant", "content": None, "tool_calls": [BROKEN]}
    chats: list[dict[str, Any]] = [
        {"messages": [ASKED, called]},
        {"prompt": [ASKED], "completion": [called]},
        {"conversations": [ASKED, called]},
    ]
    for number, row in enumerate(chats):
        path = written(tmp_path / f"{number}.jsonl", row)
        assert refusals(path) == {1: "the arguments of its call 'hours' are no JSON object"}
        marked = written(tmp_path / f"{number}-marked.jsonl", row | {"label": False})
        (trace,) = traces(marked)
        assert trace.steps[-1].complete is False
        assert signals(marked) == [("thumb", False)]
    empty = BROKEN | {"function": {"name": "hours", "arguments": ""}}
    path = written(
        tmp_path / "empty.jsonl", {"messages": [ASKED, called | {"tool_calls": [empty]}]}
    )
    assert signals(path) == [("label", True)]


@pytest.mark.parametrize("target", ["target_id", "inference_id", "episode_id"])
def test_feedback_of_tensorzero_without_its_inference_is_named(target: str, tmp_path: Path) -> None:
    row = json.loads(brought("49-tensorzero-demonstration/feedback.json").read_text())
    path = written(
        tmp_path / "rows.jsonl", {target: "L1", "metric_name": "m", "value": row["value"]}
    )
    with pytest.raises(InputError, match="TensorZero"):
        detect(path)


def openwebui(path: Path, content: str) -> Path:
    (row,) = json.loads(brought("02-openwebui-reasoning-blocks/think.json").read_text())
    row["snapshot"]["chat"]["chat"]["history"]["messages"]["b"]["content"] = content
    return written(path, row)


def test_a_block_of_open_webui_that_nobody_knows_is_not_learned(tmp_path: Path) -> None:
    block = '<details type="web_search" done="true">\n<summary>S</summary>\nurl\n</details>\nNine.'
    path = openwebui(tmp_path / "rows.jsonl", block)
    assert "'web_search'" in refusals(path)[1]
    of_the_model = "Nine.\n<details>\n<summary>More</summary>\nAlso on Sunday.\n</details>"
    assert answers(openwebui(tmp_path / "own.jsonl", of_the_model)) == [of_the_model]


@pytest.mark.parametrize("head", ["user-feedback (api)", "# user-feedback (Api, Numeric)"])
@pytest.mark.parametrize("value", ["0", "[0]"])
def test_a_score_column_of_langfuse_may_say_where_it_is_from(
    head: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "traces.csv"
    path.write_text(
        f'id,timestamp,name,userId,sessionId,tags,input,output,"{head}"\n'
        f't1,2026-01-05T09:00:00.000Z,chat,u,s,[],Open?,No.,"{value}"\n'
    )
    assert signals(path) == [("thumb", False)]


def test_the_index_of_pandas_makes_no_other_conversation(tmp_path: Path) -> None:
    plain, *_ = traces(brought("24-parquet-types/bool.parquet"))
    row = {"question": "Open?", "answer": "Yes.", "thumb": True}
    (same,) = traces(written(tmp_path / "rows.jsonl", row | {"Unnamed: 0": 7}))
    assert plain.metadata is None and same.metadata is None
    assert plain.as_target() == same.as_target()


def test_numbers_without_a_scale_are_asked_about_under_the_name_of_their_column(
    command_line: Run, tmp_path: Path
) -> None:
    row = {"question": "Open?", "answer": "Yes.", "quality": 4}
    path = written(tmp_path / "rows.jsonl", row, row | {"quality": 1})
    assert all("--scale quality=WORST:BEST" in reason for reason in refusals(path).values())
    assert planned(command_line, path, "--scale", "quality=1:5") == {"score": (1, 1)}


def test_every_file_that_people_brought_is_in_a_test() -> None:
    """By its name, in one of the tests beside this one."""
    folder = Path(__file__).parent
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    root = brought("01-kto-tag").parent
    names = [path for path in sorted(root.glob("*/*")) if path.name != "README"]
    assert len(names) > 100
    missing = [str(path) for path in names if path.name not in tests and path.stem not in tests]
    assert not missing
