"""Every variation of a catalogue of widgets, as the file of a run that people rate: each question
with each scenario, fixture and size, on each sample of its data.

The catalogue is {scenario: {fixture: description}}; a scenario with one fixture may have a text
instead. Questions are those of a question bank ([{id, question, category, ...}]), data is
{scenario: [{label, value, ...}, ...]}. An entry's id is that of its content, so ratings stay with
what was rated when a catalogue grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.compat.command_center.pairs import FIXTURE
from thumbwheel.core import ids
from thumbwheel.importers.json_text import json_value
from thumbwheel.importers.regular_file import file_error, read_regular
from thumbwheel.importers.types import Unreadable

SIZES = ("compact", "normal", "expanded", "hero")
MOST = 200_000
"""Entries of a run."""


def run_of(
    catalogue: Path, questions: Path | None, data: Path | None, sizes: Sequence[str]
) -> dict[str, Any]:
    """Return the run with every variation. Raises InputError for a file of another kind, and for a
    run that would be too large."""
    fixtures = _catalogue(catalogue)
    bank = _questions(questions) if questions is not None else []
    samples = _samples(data) if data is not None else {}
    count = 0
    for scenario, names in fixtures.items():
        count += len(names) * len(samples.get(scenario, [None]))
    count *= len(sizes) * (len(bank) or 1)
    if count > MOST:
        raise file_error(
            catalogue,
            f"it has {count:,} variations, and a run holds {MOST:,}",
            "Name fewer sizes (--size), questions or samples of data",
        )
    entries = list(_entries(fixtures, bank, samples, sizes))
    return {
        "run_id": f"exhaustive_{ids.fingerprint(entries)[:12]}",
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "total_questions": len(bank) or len(fixtures),
        "entries": entries,
    }


def _entries(
    fixtures: Mapping[str, Sequence[str]],
    bank: Sequence[Mapping[str, Any]],
    samples: Mapping[str, Sequence[Any]],
    sizes: Sequence[str],
) -> Iterator[dict[str, Any]]:
    for scenario, names in fixtures.items():
        # without a question bank each scenario is a question of its own
        asked = bank or [{"id": scenario, "question": f"Show {scenario}"}]
        for question in asked:
            for sample in samples.get(scenario, [None]):
                for size in sizes:
                    for fixture in names:
                        yield _entry(question, scenario, fixture, size, sample)


def _entry(
    question: Mapping[str, Any], scenario: str, fixture: str, size: str, sample: Any
) -> dict[str, Any]:
    content = {
        "question_id": str(question["id"]),
        "question": question["question"],
        "category": question.get("category"),
        "scenario": scenario,
        "fixture": fixture,
        "size": size,
        "data_override": {"demoData": sample} if sample is not None else {},
    }
    return {
        "entry_id": f"e{ids.fingerprint(content)[:12]}",
        **content,
        "natural": False,
        "forced": True,
        "pipeline_selected_fixture": None,
        "widget_index": -1,
        "rating": None,
        "tags": [],
        "notes": "",
    }


def _catalogue(path: Path) -> dict[str, list[str]]:
    """Return scenario -> its fixtures. Raises InputError for any other file."""
    value = _read(path)
    if not isinstance(value, dict) or not value:
        raise file_error(path, "it is no {scenario: {fixture: description}}", "Correct it")
    fixtures = {}
    for scenario, described in value.items():
        names = list(described) if isinstance(described, dict | list) else [FIXTURE]
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise file_error(
                path, f"scenario {scenario!r} has no fixture with a name", "Correct it"
            )
        fixtures[scenario] = names
    return fixtures


def _questions(path: Path) -> list[dict[str, Any]]:
    value = _read(path)
    if isinstance(value, dict):
        value = value.get("questions")
    if not isinstance(value, list) or not value:
        raise file_error(path, "it is not a list of questions", "Give [{id, question}, ...]")
    for question in value:
        is_question = isinstance(question, dict) and isinstance(question.get("question"), str)
        if not is_question or not isinstance(question.get("id"), str | int):
            raise file_error(path, f"{question!r:.80} has no id and question", "Correct it")
    return value


def _samples(path: Path) -> dict[str, list[Any]]:
    """Return scenario -> samples of its data. Raises InputError for any other file."""
    value = _read(path)
    if not isinstance(value, dict):
        raise file_error(path, "it is no {scenario: [data, ...]}", "Correct it")
    samples = {}
    for scenario, listed in value.items():
        several = listed if isinstance(listed, list) else [listed]
        if not several or not all(isinstance(sample, dict) for sample in several):
            raise file_error(path, f"the data of {scenario!r} are no objects", "Correct it")
        samples[scenario] = several
    return samples


def _read(path: Path) -> Any:
    try:
        return json_value(read_regular(path))
    except Unreadable as error:
        raise file_error(path, str(error), "Give a JSON file") from None
