"""The five systems that this one replaces: the data that each left behind, from import over rewards
to datasets, as typed.

Every world writes its system's own form and says what must come of it; all counts follow from the
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.datasets.types import MACHINES

DAY = "2026-01-{day:02}T08:30:00"
COUNT = 12


@dataclass(frozen=True)
class SystemWorld:
    """`write` makes the data; what comes of it: records by kind, traces with a reward, rows of a
    dataset by shape and origin."""

    source: str
    write: Callable[[Path], Path]
    records: dict[str, int]
    rewarded: int
    rows: dict[str, dict[str, int]]
    settings: dict[str, Any]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def traces_by_day(folder: Path) -> Path:
    """Trace files of FlowAgent in folders by day; every second one is good, two have no
    label."""
    for number in range(COUNT):
        day = folder / "rl_traces" / f"2026-01-{number % 3 + 1:02}"
        day.mkdir(parents=True, exist_ok=True)
        good = number % 2 == 0
        call = {
            "tool_name": "search",
            "arguments": {"q": f"part {number}"},
            "result": "found" if good else "",
            "success": good,
            "duration_ms": 12.0,
            "error": None if good else "timeout",
            "timestamp": DAY.format(day=number % 3 + 1),
        }
        trace = {
            "trace_id": f"{number:012x}",
            "session_id": f"s{number}",
            "timestamp": DAY.format(day=number % 3 + 1),
            "user_query": f"Where is part {number}?",
            "tool_calls": [call],
            "final_response": f"In shelf {number}.",
            "total_tokens_in": 800,
            "total_tokens_out": 40,
            "label": None if number >= COUNT - 2 else good,
        }
        (day / f"trace_{number:012x}.json").write_text(json.dumps(trace))
    return folder / "rl_traces"


def scored_runs(folder: Path) -> Path:
    """Rows of n3 with scores from 0 to 1, two answers to each question."""
    return lines(
        folder / "feedback.jsonl",
        [
            {
                "prompt": f"Question {number // 2}?",
                "response": f"Answer {number}.",
                "score": round(0.1 + 0.8 * (number % 2), 2),
                "runId": f"run-{number // 2}",
                "notes": None,
            }
            for number in range(COUNT)
        ],
    )


def decisions(folder: Path) -> Path:
    """Rows of the decision table; a third confirmed, a third corrected, a third without a
    word."""
    rows = []
    for number in range(COUNT):
        action = {
            "status": "TODO",
            "swimlane": "HOME",
            "priority": "LOW",
            "labels": [f"Job {number}"],
            "confidence": 0.8,
            "reasoning": "r",
        }
        feedback = (None, "CONFIRMED", "CORRECTED")[number % 3]
        rows.append(
            {
                "id": f"d{number}",
                "agentType": "FILER",
                "state": {"item": {"id": f"i{number}", "title": f"Mail {number}"}},
                "action": action,
                "userId": "ann",
                "confidence": 0.8,
                "userFeedback": feedback,
                "feedbackAt": DAY.format(day=2) if feedback else None,
                "userCorrection": {"swimlane": "PROJECT"} if feedback == "CORRECTED" else None,
                "createdAt": DAY.format(day=1),
            }
        )
    return lines(folder / "decisions.jsonl", rows)


def collected(folder: Path) -> Path:
    """Lines of a FeedbackCollector; thumbs both ways, ratings without a thumb, and
    corrections."""
    kinds = ("thumbs_up", "thumbs_down", "rating", "correction")
    return lines(
        folder / "feedback.jsonl",
        [
            {
                "query": f"Question {number}?",
                "response": f"Answer {number}.",
                "feedback_type": kinds[number % 4],
                "rating": 5 if number % 4 == 2 else None,
                "correction": f"Better {number}." if number % 4 == 3 else None,
                "timestamp": "2026-01-05 09:12:44.120000",
                "metadata": {},
            }
            for number in range(COUNT)
        ],
    )


def rated_widgets(folder: Path) -> Path:
    """What was shown for a question, of one run: the widget that was chosen, liked; two
    forced fixtures, one of them disliked."""
    entries = [
        {
            "entry_id": f"e{number:05}",
            "question_id": f"q{number // 3}",
            "question": f"How is pump {number // 3}?",
            "category": "status",
            "scenario": "kpi",
            "fixture": f"dial-{number}",
            "size": "normal",
            "natural": number % 3 == 0,
            "forced": number % 3 > 0,
            "widget_index": 0,
            "data_override": {"demoData": {"label": "Flow", "value": number // 3}},
            "rating": ("up", "down", None)[number % 3],
            "tags": [],
            "notes": "",
        }
        for number in range(COUNT)
    ]
    path = folder / "exhaustive_data.json"
    path.write_text(
        json.dumps({"run_id": "r1", "created_at": DAY.format(day=1), "entries": entries})
    )
    return path


THIRD, QUARTER = COUNT // 3, COUNT // 4
WORLDS = {
    "isaa": SystemWorld(
        "flowagent",
        traces_by_day,
        {"trace": COUNT, "feedback": COUNT - 2, "thumb": COUNT - 2},
        COUNT,
        {"labels": {"upvote": COUNT // 2 - 1, "downvote": COUNT // 2 - 1}},
        {"preset": "isaa"},
    ),
    "n3": SystemWorld(
        "n3",
        scored_runs,
        {"trace": COUNT, "feedback": COUNT, "score": COUNT},
        COUNT,
        {"labels": {"score": COUNT}, "scored": {"score": COUNT}, "groups": {"numbers": COUNT // 2}},
        {},
    ),
    "ocd": SystemWorld(
        "decisions",
        decisions,
        {
            "trace": COUNT,
            "feedback": 5 * THIRD,
            "label": 2 * THIRD,
            "thumb": 2 * THIRD,
            "correction": THIRD,
        },
        2 * THIRD,
        {
            "labels": {"upvote": THIRD, "downvote": THIRD, "correction": THIRD},
            "pairs": {"correction": THIRD},
        },
        {"preset": "ocd"},
    ),
    "echoes": SystemWorld(
        "feedback_jsonl",
        collected,
        {
            "trace": COUNT,
            "feedback": COUNT,
            "thumb": 2 * QUARTER,
            "rating": QUARTER,
            "correction": QUARTER,
        },
        COUNT,
        {
            "labels": {
                "upvote": QUARTER,
                "downvote": QUARTER,
                "rating": QUARTER,
                "correction": 2 * QUARTER,
            },
            "pairs": {"correction": QUARTER},
        },
        {},
    ),
    "widgets": SystemWorld(
        "widgets",
        rated_widgets,
        {"trace": COUNT + THIRD, "feedback": 3 * THIRD, "thumb": 3 * THIRD},
        3 * THIRD,
        {"labels": {"upvote": 2 * THIRD, "downvote": THIRD}, "pairs": {"siblings": THIRD}},
        {},
    ),
}
"""A corrected answer is a bad one and its correction a good one, and both are a pair."""


@pytest.mark.parametrize("name", WORLDS)
def test_a_systems_own_form_goes_from_import_over_rewards_to_datasets(
    name: str, command_line: Run, tmp_path: Path
) -> None:
    world = WORLDS[name]
    path = world.write(tmp_path)
    (tmp_path / "thumbwheel.yaml").write_text(
        json.dumps({"rewards": {"agents": {"support": world.settings}}})
    )

    def run_json(*arguments: str) -> dict[str, Any]:
        code, out, err = command_line(*arguments, "--agent", "support", "--json")
        assert code == 0, (arguments, out, err)
        return dict(json.loads(out))

    first, again = (run_json("import", world.source, str(path)) for _ in range(2))
    assert (first["stored"], first["refused"], first["records"]) == (COUNT, 0, world.records)
    assert (again["stored"], again["duplicates"], again["records"]) == (0, COUNT, {})
    judged = run_json("reward", "run")
    assert (judged["traces"], judged["rewarded"], judged["reasons"]) == (
        world.records["trace"],
        world.rewarded,
        [],
    )
    reward = run_json("reward", "list")["reward"]
    assert reward["n"] == world.rewarded and 0 <= reward["least"] < reward["most"] <= 1
    for shape, origins in world.rows.items():
        manifest = run_json("dataset", "build", "--shape", shape)["manifest"]
        assert (manifest["origins"], sum(manifest["counts"].values())) == (
            origins,
            sum(origins.values()),
        ), shape
        assert manifest["drops"] == {}
    scored = run_json("dataset", "build", "--shape", "scored", "--reward", "ledger")["manifest"]
    assert sum(scored["counts"].values()) + scored["drops"].pop(MACHINES, 0) == world.rewarded
    assert scored["drops"].keys() <= {
        "no number says how good the answer is"
    }  # texts of corrections, which nobody gave as an answer
