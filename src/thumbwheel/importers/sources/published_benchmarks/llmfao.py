"""Crowd comparisons of llmfao: who preferred which of two models' answers to one prompt, with ties,
by pseudonymous workers.

A file of comparisons (id, prompt, model_x, model_y, worker?, winner, left, right) is a preference a
row; without a worker the judge is a model. The answers come from `...results.jsonl` and
`...prompts.jsonl` beside it; where they are absent the preferences wait for them. A row of the
results is a trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from thumbwheel.importers.fields import clip, name_of
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import JsonLines, Parse, Row
from thumbwheel.importers.types import (
    AnyRecord,
    FeedbackRecord,
    Rater,
    StepRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
)

RANKINGS = {"left": [[0], [1]], "right": [[1], [0]], "tie": [[0, 1]]}
JUDGE = Rater(id="gpt-4", kind="model")
EXAMPLE = (
    '{"id": "168", "prompt": "5", "model_x": "97", "model_y": "23", "worker": "85", "winner": '
    '"left", "left": "A", "right": "B"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a comparison of two models."""
    return {"prompt", "model_x", "model_y", "winner"} <= row.keys()


def beside(path: Path) -> Parse:
    """Return `parse` bound to the prompts and answers of the files beside `path`."""
    prompts = {str(row.get("id")): row.get("text") for row in _rows_beside(path, "prompts.jsonl")}
    answers = {}
    for row in _rows_beside(path, "results.jsonl"):
        answers[str(row.get("prompt")), str(row.get("model"))] = row
    return partial(parse, prompts=prompts, answers=answers)


def _rows_beside(path: Path, ending: str) -> list[dict[str, Any]]:
    companion = _companion(path, ending)
    if companion is None:
        return []
    return [row.row for row in read_rows(companion, ignore_position) if row.row]


def _companion(path: Path, ending: str) -> Path | None:
    """Return the file beside `path` with this ending and the same beginning; None if there is
    none."""
    for file in sorted(path.parent.glob(f"*{ending}")):
        if path.name.startswith(file.name.removesuffix(ending)):
            return file
    return None


def missing(path: Path) -> str | None:
    """Return a message that names the files missing beside `path`; None if none is missing."""
    endings = ["prompts.jsonl"]
    if not path.name.endswith("results.jsonl"):
        endings.append("results.jsonl")
    beginning = re.split(r"(?<=[-_.])", path.name)[0]
    names = [f"{beginning}{ending}" for ending in endings if _companion(path, ending) is None]
    if not names:
        return None
    return (
        f"beside it is no {' and no '.join(names)}: without prompts and answers the preferences "
        "wait for their traces"
    )


def parse(
    row: dict[str, Any],
    prompts: Row | None = None,
    answers: Mapping[tuple[str, str], Row] | None = None,
) -> list[AnyRecord]:
    """Return the preference with the traces of the answers that are known, or the trace of a row
    that is an answer. Raises Unreadable."""
    prompts, answers = prompts or {}, answers or {}
    if "result" in row and "winner" not in row:
        return [_trace(row, prompts)]
    prompt = name_of(row.get("prompt"))
    models = [name_of(row.get(key)) for key in ("model_x", "model_y")]
    if prompt is None or None in models:
        raise Unreadable("it lacks the prompt or one of the two models")
    winner = row.get("winner")
    if not isinstance(winner, str) or winner not in RANKINGS:
        raise Unreadable(f"winner {clip(winner)} is none of left, right, tie")
    worker = name_of(row.get("worker"))
    rater = Rater(id=f"worker {worker}", kind="person") if worker else JUDGE
    preference = FeedbackRecord.model_validate(
        {
            "id": f"{row.get('id')}/{rater.id}",
            "kind": "preference",
            "value": {"ranking": RANKINGS[winner]},
            "rater": rater,
            "targets": [TargetRef(kind="trace", id=f"{prompt}/{model}") for model in models],
            "metadata": {"shown": [0, 1]},
        }
    )
    traces = []
    for model in models:
        answer = answers.get((prompt, str(model)))
        if answer is not None:
            traces.append(_trace(answer, prompts))
    return [*traces, preference]


def _trace(answer: Row, prompts: Row) -> TraceRecord:
    prompt, model = name_of(answer.get("prompt")), name_of(answer.get("model"))
    text = prompts.get(str(prompt))
    if not isinstance(text, str):
        raise Unreadable(f"prompt {prompt} is not in a file ...prompts.jsonl beside this one")
    if not isinstance(answer.get("result"), str):
        raise Unreadable(f"result {clip(answer.get('result'))} is no text")
    step = StepRecord(served_model=name_of(answer.get("api_id")) or model)
    fields = {"id": f"{prompt}/{model}", "input": text, "output": answer["result"], "steps": [step]}
    return TraceRecord.model_validate(fields | {"metadata": {"model": answer.get("name")}})


SOURCE = JsonLines(parse, claims, EXAMPLE, beside, missing, reason="a comparison of two models")
