"""`thumbwheel plan` of every file that people brought: the counts of good and bad are those that a
person would make."""

from __future__ import annotations

import pytest

from tests.brought.reading import brought, planned, refused
from tests.command_line import Run

Counts = dict[str, tuple[int, int]]

PLANS: dict[str, Counts] = {
    "01-kto-tag/alpaca.json": {"thumb": (1, 1)},
    "01-kto-tag/messages-label.jsonl": {"thumb": (1, 1)},
    "01-kto-tag/messages-thumb.jsonl": {"thumb": (1, 1)},
    "01-kto-tag/messages.jsonl": {"thumb": (1, 1)},
    "01-kto-tag/msgrejected.jsonl": {"preference": (0, 0)},
    "01-kto-tag/sharegpt.json": {"thumb": (1, 1)},
    "01-kto-tag/sharegpt-score.jsonl": {"score": (0, 1)},
    "02-openwebui-reasoning-blocks/feedback.json": {"thumb": (2, 0)},
    "02-openwebui-reasoning-blocks/owui-edit.json": {"thumb": (1, 0), "correction": (0, 0)},
    "02-openwebui-reasoning-blocks/think.json": {"thumb": (1, 0)},
    "04-langfuse-score-columns/traces.csv": {"thumb": (1, 1), "label": (0, 0), "rating": (0, 1)},
    "04-langfuse-score-columns/traces.json": {"thumb": (1, 1), "label": (0, 0), "rating": (0, 1)},
    "05-langfuse-blob-observations-v2/scores.jsonl": {"thumb": (1, 0)},
    "06-langfuse-score-types/traces.jsonl": {"thumb": (2, 4), "comment": (0, 0)},
    "06-langfuse-score-types/lf-bad-score.jsonl": {"thumb": (1, 0)},
    "06-langfuse-score-types/lf-obs-ui.json": {"thumb": (1, 0)},
    "09-alpaca/alpaca.csv": {"label": (2, 0)},
    "09-alpaca/alpaca.json": {"label": (2, 0)},
    "09-alpaca/alpaca-system-history.json": {"label": (1, 0)},
    "09-alpaca/system-as-instruction.json": {"label": (1, 0)},
    "11-anythingllm/chats.csv": {"thumb": (1, 1)},
    "11-anythingllm/chats.json": {"thumb": (1, 1)},
    "11-anythingllm/chats.jsonl": {"label": (2, 0)},
    "12-json-table/rows.jsonl": {"rating": (1, 1)},
    "12-json-table/thumbs.json": {"thumb": (1, 1)},
    "13-openai-weights/weights.jsonl": {"label": (5, 0)},
    "14-openai-tool-call-target/tools.jsonl": {"label": (4, 0)},  # a call in each, and one answer
    "16-sharegpt-tools/tools.json": {"label": (2, 0)},
    "16-sharegpt-tools/ends-in-call.json": {"label": (1, 0)},
    "17-anthropic-blocks/blocks.jsonl": {"label": (2, 0)},
    "23-csv-variants/cr-only.csv": {"rating": (1, 1)},
    "23-csv-variants/goodbad.csv": {"thumb": (1, 1)},
    "23-csv-variants/header-newline.csv": {"rating": (1, 0)},
    "23-csv-variants/minus.csv": {"thumb": (1, 1)},
    "23-csv-variants/pandas.csv": {"thumb": (1, 1)},
    "23-csv-variants/percent.csv": {"rating": (2, 0)},
    "23-csv-variants/sep-line.csv": {"rating": (1, 0)},
    "23-csv-variants/thumbs-words.csv": {"thumb": (2, 2)},
    "23-csv-variants/words.csv": {"rating": (2, 1)},
    "23-csv-variants/zero-one.csv": {"thumb": (2, 1)},
    "24-parquet-types/bool.parquet": {"thumb": (1, 0)},
    "24-parquet-types/nan.parquet": {"thumb": (1, 0)},
    "24-parquet-types/nested.parquet": {"thumb": (1, 1)},
    "24-parquet-types/tools.parquet": {"label": (2, 0)},
    "24-parquet-types/types.parquet": {"rating": (1, 1)},
    "31-think-tags/think.jsonl": {"label": (2, 0)},  # one answer three times, one once
    "34-openwebui-output-items/chats.json": {"thumb": (1, 0)},
    "34-openwebui-output-items/feedback.json": {"thumb": (2, 0)},
    "36-mlflow-files/rows.jsonl": {"thumb": (1, 0)},
    "36-mlflow-files/traces.json": {"thumb": (1, 0)},
    "23-csv-variants/semicolon-bom.csv": {"rating": (2, 0)},
}
"""File -> kind of feedback: good, bad."""

REFUSED = {
    "02-openwebui-reasoning-blocks/owui-think-open.json": "no answer",
    "02-openwebui-reasoning-blocks/owui-undone.json": "not finished",
    "12-json-table/mapped.jsonl": "--column thumb=note (or rating=, score=)",
    "23-csv-variants/backslash.csv": 'written twice ("")',
    "23-csv-variants/cp1252.csv": "iconv -f WINDOWS-1252 -t UTF-8",
    "23-csv-variants/utf16.csv": "iconv -f UTF-16 -t UTF-8",
    "24-parquet-types/decimal.parquet": "column 'blob' holds bytes data",
    "26-label-studio/export.json": "Export, JSON-MIN",
    "26-label-studio/json_min.json": "--scale quality=WORST:BEST",
}
"""File -> what the error says."""

TOLD: dict[str, tuple[tuple[str, ...], Counts]] = {
    "12-json-table/mapped.jsonl": (
        ("prompt=frage", "response=antwort", "rating=note"),
        {"rating": (1, 0)},
    ),
    "23-csv-variants/semicolon-bom.csv": (
        ("prompt=frage", "response=antwort", "rating=sterne"),
        {"rating": (2, 0)},
    ),
    "26-label-studio/json_min.json": (("rating=quality", "correction=fix"), {"rating": (0, 1)}),
}
"""File -> what a person says of its columns, and what is said then."""


@pytest.mark.parametrize("name", PLANS)
def test_its_plan_counts_what_a_person_would_count(name: str, command_line: Run) -> None:
    assert planned(command_line, brought(name)) == PLANS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(name: str, command_line: Run) -> None:
    assert REFUSED[name] in " ".join(refused(command_line, brought(name)).split())


@pytest.mark.parametrize("name", TOLD)
def test_a_table_is_read_by_what_a_person_says(name: str, command_line: Run) -> None:
    columns, counts = TOLD[name]
    options = [option for column in columns for option in ("--column", column)]
    read = planned(command_line, brought(name), *options)
    assert {kind: count for kind, count in read.items() if kind in counts} == counts


PAIRS = (
    "01-kto-tag/msgrejected.jsonl",
    *(
        f"10-alpaca-ranking/{name}"
        for name in (
            "input.jsonl",
            "no-common.jsonl",
            "orca.jsonl",
            "pref-csv.csv",
            "query.jsonl",
            "ranking.json",
            "sys-prompt.jsonl",
            "system-question-csv.csv",
            "tools-pref.jsonl",
            "uf.jsonl",
        )
    ),
)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_nobodys_good_answers(name: str, command_line: Run) -> None:
    assert planned(command_line, brought(name)) == {"preference": (0, 0)}
