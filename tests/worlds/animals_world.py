"""A world as files that a tiny model learns in seconds: foxes live in the den, dogs in the yard.
For tests that go all the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.models.tiny_models import tiny_base

PLACES = {"fox": '{"at":"den"}', "dog": '{"at":"yard"}'}
LEARNS = {"learning_rate": 1e-2, "max_steps": 60, "probe_prompts": 0}
"""Settings of sft with which the gate approves."""


def write_world(folder: Path) -> None:
    """world.jsonl: wrong answers, voted down and corrected, and right ones, voted up; gold.jsonl:
    60 cases; base/: a random model."""
    rows: list[dict[str, Any]] = []
    for number in range(60):
        for word, right in PLACES.items():
            name = f"{word}{number}"
            rows.append(
                {
                    "type": "trace",
                    "id": name,
                    "session": name,
                    "input": f"{word} {number}",
                    "output": '{"at":"roof"}',
                }
            )
            target = {"type": "feedback", "target": {"trace": name}, "rater": "ann"}
            rows += [
                target | {"kind": "correction", "value": right},
                target | {"kind": "thumb", "value": False},
            ]
            good = {
                "type": "trace",
                "id": f"{name}-good",
                "session": name,
                "input": f"{word} {number}",
                "output": right,
            }
            rows += [
                good,
                {
                    "type": "feedback",
                    "target": {"trace": f"{name}-good"},
                    "kind": "thumb",
                    "value": True,
                    "rater": "ann",
                },
            ]
    cases: list[dict[str, Any]] = []
    for number in range(60):
        word = ("fox", "dog")[number % 2]
        asked = {"type": "case", "id": f"case{number}", "input": f"{word} {100 + number}"}
        cases.append(asked | {"reference": json.loads(PLACES[word]), "checker": "json_fields"})
    for name, lines in (("world.jsonl", rows), ("gold.jsonl", cases)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    tiny_base(
        folder / "base", hidden_size=64, head_dim=16, intermediate_size=128, initializer_range=0.1
    )
