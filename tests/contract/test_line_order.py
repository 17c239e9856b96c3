"""The order of lines decides nothing: a file with its lines shuffled is imported to the same rows
and built to the same datasets.

Lines contradict and repeat each other on purpose, most of them without a rater and a time, over
several batches of one import.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thumbwheel.capture import ingest as ingesting
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.sources import SOURCES

AGENT = "desk"
EVERY_CHECK = (
    "balance",
    "duplicates",
    "leakage",
    "conflict",
    "length",
    "noise",
    "pii",
    "control_tokens",
    "truncation",
)
CONFIG = DatasetConfig(allow=EVERY_CHECK)
BATCH = 4
"""Lines of a batch here, so that a small file has several."""


class Line(NamedTuple):
    """What a line is about: which question, which answer, what was said of it, and a number of its
    own."""

    question: int
    answer: int
    good: bool
    number: int

    @property
    def asked(self) -> str:
        return f"Where is parcel {self.question} of {self.question * 7} today?"

    @property
    def answered(self) -> str:
        return f"It is {'on its way' if self.answer else 'still here'}, number {self.question}."

    @property
    def other(self) -> str:
        return f"Nobody knows where number {self.question} is."


def _preference(line: Line) -> dict[str, Any]:
    pair = (line.answered, line.other) if line.good else (line.other, line.answered)
    return {"prompt": line.asked, "chosen": pair[0], "rejected": pair[1]}


def _openwebui(line: Line) -> dict[str, Any]:
    message = f"m{line.question}-{line.answer}"
    messages = {
        "u": {"id": "u", "parentId": None, "role": "user", "content": line.asked},
        message: {
            "id": message,
            "parentId": "u",
            "role": "assistant",
            "content": line.answered,
            "model": "m",
        },
    }
    chat = {"id": f"c{line.question}", "user_id": "u1", "chat": {"history": {"messages": messages}}}
    return {
        "id": f"f{line.number}",
        "user_id": f"u{line.number % 2}",
        "type": "rating",
        "data": {"rating": 1 if line.good else -1},
        "meta": {"chat_id": f"c{line.question}", "message_id": message},
        "snapshot": {"chat": chat},
    }


def _langfuse(line: Line) -> dict[str, Any]:
    score = {
        "id": f"x{line.number}",
        "name": "user-feedback",
        "value": int(line.good),
        "dataType": "NUMERIC",
    }
    trace = {
        "id": f"t{line.question}-{line.answer}",
        "input": line.asked,
        "output": line.answered,
        "scores": [score],
    }
    return {"trace": trace, "observations": []}


def _decision(line: Line) -> dict[str, Any]:
    return {
        "id": f"d{line.question}-{line.answer}",
        "agentType": "FILER",
        "state": {"item": {"title": line.asked}},
        "action": {"swimlane": ("HOME", "PROJECT")[line.answer], "labels": []},
        "userFeedback": "CONFIRMED" if line.good else "OVERRIDDEN",
        "reward": 1.0 if line.good else -1.0,
    }


def _jsonl(line: Line) -> dict[str, Any]:
    name = f"t{line.question}-{line.answer}"
    if line.number % 3 == 0:
        return {"type": "trace", "id": name, "input": line.asked, "output": line.answered}
    feedback: dict[str, Any] = {
        "type": "feedback",
        "kind": "thumb",
        "value": line.good,
        "target": {"trace": name},
    }
    return (
        feedback
        | ({"rater": f"r{line.number % 2}"} if line.number % 4 else {})
        | ({"comment": str(line.number)} if line.number % 5 else {})
    )


def _tau(line: Line) -> dict[str, Any]:
    task = {"instruction": line.asked, "actions": [], "outputs": []}
    messages = [{"role": "system", "content": "P."}, {"role": "user", "content": line.asked}]
    trajectory = [*messages, {"role": "assistant", "content": line.answered}]
    return {
        "task_id": line.question,
        "trial": line.number,
        "reward": float(line.good),
        "info": {"task": task},
        "traj": trajectory,
    }


def _widget(line: Line) -> dict[str, Any]:
    return {
        "entry_id": f"e{line.number}",
        "question_id": f"q{line.question}",
        "question": line.asked,
        "scenario": "kpi",
        "fixture": ("dial", "bar")[line.answer],
        "size": "normal",
        "natural": True,
        "rating": "up" if line.good else "down",
    }


def _bfcl(line: Line) -> dict[str, Any]:
    function = {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "dict", "properties": {}, "required": []},
    }
    return {
        "id": f"irrelevance_{line.number}",
        "question": [[{"role": "user", "content": line.asked}]],
        "function": [function],
    }


def _librechat(line: Line) -> dict[str, Any]:
    question = {
        "messageId": f"q{line.question}",
        "parentMessageId": None,
        "text": line.asked,
        "isCreatedByUser": True,
    }
    answer = {
        "messageId": f"m{line.question}-{line.answer}",
        "parentMessageId": question["messageId"],
        "text": line.answered,
        "isCreatedByUser": False,
        "feedback": {"rating": "thumbsUp" if line.good else "thumbsDown"},
    }
    return {
        "conversationId": f"c{line.question}",
        "endpoint": "openAI",
        "title": line.asked,
        "messages": [question, answer],
    }


LINES: Mapping[str, Callable[[Line], dict[str, Any]]] = {
    "jsonl": _jsonl,
    "preference": _preference,
    "ranked": lambda line: {
        "prompt": line.asked,
        "responses": [line.answered, line.other],
        "scores": [int(line.good), int(not line.good)],
    },
    "graded": lambda line: {
        "question": line.asked,
        "ground_truth": f"#### {line.question}",
        f"model-{line.answer}": {"is_correct": line.good, "solution": line.answered},
    },
    "flowagent": lambda line: {
        "trace_id": f"t{line.question}-{line.answer}",
        "session_id": "s",
        "user_query": line.asked,
        "final_response": line.answered,
        "label": line.good,
        "reward_score": line.number % 3 / 2,
    },
    "decisions": _decision,
    "widgets": _widget,
    "feedback_jsonl": lambda line: {
        "query": line.asked,
        "response": line.answered,
        "feedback_type": "rating",
        "rating": 5 if line.good else 1,
        "timestamp": None,
    },
    "openwebui": _openwebui,
    "langfuse": _langfuse,
    "openai": lambda line: {
        "input": {"messages": [{"role": "user", "content": line.asked}]},
        "preferred_output": [
            {"role": "assistant", "content": line.answered if line.good else line.other}
        ],
        "non_preferred_output": [
            {"role": "assistant", "content": line.other if line.good else line.answered}
        ],
    },
    "sharegpt": lambda line: {
        "conversations": [{"from": "human", "value": line.asked}],
        "chosen": {"from": "gpt", "value": line.answered if line.good else line.other},
        "rejected": {"from": "gpt", "value": line.other if line.good else line.answered},
    },
    "call_log": lambda line: {
        "request_id": f"r{line.question}-{line.answer}-{line.number}",
        "request_created_at": "2026-01-05T09:00:00Z",
        "request_body": {"model": "m", "messages": [{"role": "user", "content": line.asked}]},
        "response_body": {
            "choices": [{"message": {"role": "assistant", "content": line.answered}}]
        },
        "feedback_rating": line.good,
    },
    "dataset_items": lambda line: {
        "messages": [{"role": "user", "content": line.asked}],
        "reference_answer": line.answered,
    },
    "trl": lambda line: {"prompt": line.asked, "completion": line.answered, "label": line.good},
    "alpaca": lambda line: {
        "instruction": line.asked,
        "input": "",
        "output": line.answered,
    },
    # stars are 5 or 2: a column of nothing but 1 is refused, for it may be the worst or the best
    "argilla": lambda line: {
        "id": f"r{line.number}",
        "fields": {"prompt": line.asked, "response": line.answered},
        "metadata": {},
        "suggestions": {},
        "responses": {
            "rating": [{"value": 5 if line.good else 2, "user_id": f"u{line.number % 2}"}]
        },
    },
    "prodigy": lambda line: {
        "prompt": line.asked,
        "response": line.answered,
        "_task_hash": line.number,
        "answer": "accept" if line.good else "reject",
    },
    "gradio": lambda line: {
        "question": line.asked,
        "output": line.answered,
        "flag": "Like" if line.good else "Dislike",
        "username": f"u{line.number % 2}",
        "timestamp": "2026-01-05 09:00:00",
    },
    "dify": lambda line: {
        "feedback_id": f"f{line.number}",
        "conversation_id": f"c{line.number}",
        "message_id": f"m{line.number}",
        "user_query": line.asked,
        "ai_response": line.answered,
        "feedback_rating": "👍" if line.good else "👎",
        "feedback_rating_raw": "like" if line.good else "dislike",
        "feedback_date": "2026-01-05 09:00:00",
        "from_end_user_id": f"u{line.number % 2}",
    },
    "librechat": _librechat,
    "table": lambda line: {
        "question": line.asked,
        "answer": line.answered,
        "stars": 5 if line.good else 2,
    },
    "csv": lambda line: {
        "question": line.asked,
        "answer": line.answered,
        "stars": 5 if line.good else 2,
    },
    "parquet": lambda line: {
        "question": line.asked,
        "answer": line.answered,
        "stars": 5 if line.good else 2,
    },
    "n3": lambda line: {
        "prompt": line.asked,
        "response": line.answered,
        "score": line.number % 5 / 4,
        "runId": f"r{line.question}",
    },
    "tau": _tau,
    "bfcl": _bfcl,
    "mbpp": lambda line: {
        "task_id": line.number,
        "text": line.asked,
        "code": f"def f():\n    return {line.answer}",
        "test_list": [f"assert f() == {line.answer}"],
    },
    "humaneval": lambda line: {
        "task_id": f"HumanEval/{line.number}",
        "prompt": f'def f():\n    """{line.asked}"""\n',
        "entry_point": "f",
        "canonical_solution": f"    return {line.answer}\n",
        "test": "def check(candidate):\n    assert candidate() == 0\n",
    },
    "llmfao": lambda line: {
        "id": str(line.number),
        "prompt": str(line.question),
        "model_x": str(line.answer),
        "model_y": "9",
        "worker": str(line.number % 2),
        "winner": "left" if line.good else "right",
    },
    "mt_bench": lambda line: {
        "question_id": line.number,
        "category": "x",
        "turns": [line.asked],
        "reference": [line.answered],
    },
}
OF_NO_LINES = {
    "kennel": "the package of the tests, whose source reads a folder",
    "huggingface": "a folder, of which each row is read by another source",
    "otlp": "a line holds spans of several runs",
    "openinference": "the lines of a run are put in order by their times",
    "mlflow": "a server",
    "phoenix": "a server",
    "swe_agent": "a run without a judgement, from which nothing is built",
}
"""Source -> why the order of its lines is not shuffled here."""
CASES_ONLY, COMPARISONS = (
    ("bfcl", "mbpp", "humaneval", "mt_bench"),
    ("preference", "ranked", "openai", "sharegpt", "llmfao"),
)
SHAPES = dict.fromkeys(CASES_ONLY, ("prompts",)) | dict.fromkeys(COMPARISONS, ("pairs", "groups"))
USUAL = ("labels", "groups", "scored")


def test_every_source_is_here() -> None:
    assert LINES.keys() == set(SOURCES.names()) - OF_NO_LINES.keys()


def written(source: str, folder: Path, lines: list[Line]) -> Path:
    rows = [LINES[source](line) for line in lines]
    if source == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = folder / "lines.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    if source == "csv":
        text = io.StringIO()
        table = csv.DictWriter(text, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
        path = folder / "lines.csv"
        path.write_text(text.getvalue())
        return path
    if source == "llmfao":
        prompts = {line.question: line.asked for line in lines}
        answers = {(line.question, line.answer): line.answered for line in lines} | {
            (line.question, 9): line.other for line in lines
        }
        results = [
            {"prompt": str(asked), "model": str(model), "result": text}
            for (asked, model), text in answers.items()
        ]
        prompt_rows = [{"id": str(name), "text": text} for name, text in prompts.items()]
        (folder / "lines-prompts.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in prompt_rows)
        )
        (folder / "lines-results.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in results)
        )
    path = folder / "lines-.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with Workspace.open(Home.at(tmp_path_factory.mktemp("home")), Sources({}, "test", {})) as ws:
        yield ws


def results(ws: Workspace, source: str, path: Path) -> tuple[Any, ...]:
    """The rows and the fingerprint of every dataset that the file gives in an empty home."""
    for table in reversed(schema.metadata.sorted_tables):
        if table is schema.homes:  # it says whose rows these are
            continue
        ws.db.write(lambda connection, table=table: connection.execute(table.delete()))
    ingest(ws, AGENT, source, path)
    seen_results: list[Any] = []
    for shape in SHAPES.get(source, USUAL):
        try:
            dataset = build(ws, AGENT, shape, CONFIG)
        except DataError as error:
            seen_results.append((shape, str(error)))
        else:
            rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
            seen_results.append(
                (
                    shape,
                    dataset.fingerprint,
                    rows,
                    dataset.manifest["drops"],
                    dataset.manifest["notes"],
                )
            )
    return tuple(seen_results)


@pytest.mark.slow
@pytest.mark.parametrize("source", LINES)
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_shuffled_lines_are_the_same_datasets(
    source: str,
    data: st.DataObject,
    workspace: Workspace,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingesting, "LINES", BATCH)
    about = st.tuples(st.integers(0, 5), st.integers(0, 1), st.booleans())
    drawn = data.draw(st.lists(about, min_size=10, max_size=30))
    lines = [Line(*line, number) for number, line in enumerate(drawn)]
    folder = tmp_path_factory.mktemp(source)
    wanted = results(workspace, source, written(source, folder, lines))
    assert wanted == results(
        workspace, source, written(source, folder, data.draw(st.permutations(lines)))
    )


def test_contradicting_lines_give_no_pair_wherever_they_stand(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both orders of every pair, adjacent, far apart, and with the halves swapped: nobody was
    preferred."""
    monkeypatch.setattr(ingesting, "LINES", BATCH)
    good_lines, bad_lines = (
        [Line(number, 0, good, number) for number in range(40)] for good in (True, False)
    )
    adjacent = [line for both in zip(good_lines, bad_lines, strict=True) for line in both]
    agreed = [Line(number, 0, True, number) for number in range(40, 60)]
    orders = (adjacent, good_lines + bad_lines, bad_lines + good_lines)
    datasets = [
        results(workspace, "preference", written("preference", tmp_path, [*lines, *agreed]))
        for lines in orders
    ]
    assert datasets[0] == datasets[1] == datasets[2]
    (_, _, rows, drops, notes), _ = datasets[0]
    assert len(rows) == len(agreed)
    assert (
        notes["comparisons with disagreeing raters"],
        drops["no plurality for either answer"],
    ) == (40, 40)


def test_the_rows_of_one_import_have_one_time(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "LINES", BATCH)
    results(
        workspace,
        "trl",
        written("trl", tmp_path, [Line(number, 0, True, number) for number in range(3 * BATCH)]),
    )
    with workspace.db.read() as connection:
        assert len({row.recorded_at for row in connection.execute(schema.feedback.select())}) == 1
