"""Prompts, answers and files of pairs, as scripts of the Command Center make them by hand.

A prompt is the one that a dataset has, so what a script formats here reads as what is trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thumbwheel.compat.command_center.pairs import FIXTURES, META, WIDGET, DPOPair
from thumbwheel.compat.command_center.source import choice_of, prompt_of
from thumbwheel.core.errors import InputError
from thumbwheel.importers.json_text import json_value
from thumbwheel.importers.regular_file import read_regular
from thumbwheel.importers.types import Unreadable

DEFAULT_SIZE = "normal"
RATED = ("rating", "tags", "notes")
"""What a rating brings to its entry."""


def format_widget_selection_prompt(
    query: str, available_scenarios: Iterable[str], context: Mapping[str, Any] | None = None
) -> str:
    """Return the question which widgets show `query` best. `context` is what was understood of it:
    domains, entities, time_range."""
    entry = {"question": query, META: {"intent": dict(context or {})}}
    return choice_of(entry, list(available_scenarios))


def format_widget_selection_response(
    selected_scenarios: Iterable[str], sizes: Mapping[str, str] | None = None
) -> str:
    """Return the widgets as an answer, in the order given.

    >>> format_widget_selection_response(["kpi", "trend"], {"kpi": "compact"})
    'kpi (compact), trend (normal)'
    """
    sizes = sizes or {}
    widgets = [
        f"{scenario} ({sizes.get(scenario, DEFAULT_SIZE)})" for scenario in selected_scenarios
    ]
    return ", ".join(widgets)


def format_fixture_selection_prompt(
    scenario: str,
    query: str,
    available_fixtures: Iterable[str],
    data_context: Mapping[str, Any] | None = None,
    size: str = DEFAULT_SIZE,
) -> str:
    """Return the question which fixture shows a scenario best. `data_context` is the entry's
    data_override, or its demoData alone."""
    context = dict(data_context or {})
    if not context.keys() & {"demoData", "data", "config"}:
        context = {"demoData": context}
    entry = {"scenario": scenario, "question": query, "size": size, "data_override": context}
    return prompt_of(entry, dict.fromkeys(available_fixtures, ""))


def format_fixture_selection_response(fixture: str) -> str:
    """Return the fixture as an answer: its name alone."""
    return fixture


def merge_entries_with_ratings(
    entries: Iterable[Mapping[str, Any]], ratings: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the entries with rating, tags and notes of {entry_id: rating}; an entry that nobody
    rated stays as it is, and the caller's own are not changed."""
    merged = []
    for entry in entries:
        rating = ratings.get(str(entry.get("entry_id")), {})
        merged.append({**entry, **{key: rating[key] for key in RATED if key in rating}})
    return merged


def get_dataset_stats(pairs: Sequence[DPOPair]) -> dict[str, Any]:
    """Count pairs by type, scenarios and questions. Mean lengths are in characters, null where
    there are no pairs."""
    types = [(pair.metadata or {}).get("type") for pair in pairs]
    lengths: dict[str, float | None] = {}
    for side in ("prompt", "chosen", "rejected"):
        sizes = [len(getattr(pair, side)) for pair in pairs]
        lengths[f"avg_{side}_length"] = fmean(sizes) if sizes else None
    return {
        "total_pairs": len(pairs),
        "widget_selection_pairs": types.count(WIDGET),
        "fixture_selection_pairs": types.count(FIXTURES),
        "unique_scenarios": len({pair.scenario for pair in pairs if pair.scenario}),
        "unique_questions": len({pair.question_id for pair in pairs}),
        **lengths,
    }


def pairs_to_jsonl(pairs: Iterable[DPOPair], output_path: str | Path) -> int:
    """Write a line a pair, in the form of theirs; returns their number."""
    lines = []
    for pair in pairs:
        row: dict[str, Any] = {
            "prompt": pair.prompt,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "question_id": pair.question_id,
        }
        if pair.scenario:
            row["scenario"] = pair.scenario
        if pair.metadata:
            row["metadata"] = pair.metadata
        lines.append(json.dumps(row) + "\n")
    path = Path(output_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def load_pairs_from_jsonl(input_path: str | Path) -> list[DPOPair]:
    """Read a file of `pairs_to_jsonl`, here or in their system; raises InputError with the line
    that is no pair."""
    path = Path(input_path)
    pairs = []
    for number, line in enumerate(read_regular(path).split(b"\n"), 1):
        if line.strip():
            pairs.append(_pair(path, number, line))
    return pairs


def _pair(path: Path, number: int, line: bytes) -> DPOPair:
    fix = "A line has prompt, chosen and rejected"
    try:
        row = json_value(line)
    except Unreadable as error:
        raise InputError(f"file {str(path)!r}, line {number}", str(error), fix) from None
    if not isinstance(row, dict):
        raise InputError(f"file {str(path)!r}, line {number}", "it is not a JSON object", fix)
    for side in ("prompt", "chosen", "rejected"):
        if not isinstance(row.get(side), str):
            raise InputError(f"file {str(path)!r}, line {number}", f"its {side} is not text", fix)
    return DPOPair(
        row["prompt"],
        row["chosen"],
        row["rejected"],
        str(row.get("question_id") or ""),
        row.get("scenario"),
        row.get("metadata") or {},
    )
