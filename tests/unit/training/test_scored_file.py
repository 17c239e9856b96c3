"""The file of answers that `reward-model score --file` reads."""

from __future__ import annotations

import json
from pathlib import Path

from thumbwheel.training.reward_commands import _answers_to_score


def test_a_line_separator_inside_an_answer_ends_no_row(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = [{"prompt": "q", "answer": "a\u2028b\x85c"}, {"prompt": "q", "answer": "d"}]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    answers = [(answer.line, answer.text) for answer in _answers_to_score(None, None, path)]
    assert answers == [(1, "a\u2028b\x85c"), (2, "d")]
