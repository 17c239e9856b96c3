"""What the rules of `next_turn` read in messages that real people, or a simulated user, wrote.

    python benchmarks/next_turn.py

None of the public data here has people's thumbs about an answer with the user's next message after
it, so how often a reading agrees with a thumb is not among these figures: `thumbwheel reward
calibrate` measures it on the data of an agent. What can be measured:

- CLINC150, test split: crowd workers' messages with their intent. How many thanks and requests to
  repeat are found, and how many messages of other intents are read as a verdict.
- Banking77, test split: first messages of bank customers. None judges an answer.
- MT-Bench: the second question of each dialogue asks for a change and judges nothing.
- tau-bench: 84 dialogues with a simulated user and a reward of the whole task: the share of solved
  tasks among dialogues with a reading in them, and among the others.

Reads ../shared/data, or THUMBWHEEL_TEST_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import raw

from thumbwheel.rewards.next_turn import ReplyReading, read_next_turn

DATA = Path(
    os.environ.get("THUMBWHEEL_TEST_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data"
)
EXPECTED = {"thank_you": ReplyReading.THANKS, "repeat": ReplyReading.REPEAT}
ANSWERS = ("yes", "no", "maybe")
"""Intents that answer a question of the assistant, and may be a verdict or none."""
QUESTION = "what is on my calendar for tomorrow"
"""What the user is assumed to have asked before a lone message."""


def lines(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a file."""
    with (DATA / name).open(encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def clinc() -> dict[str, Any]:
    """Recall of thanks and repeats, and the share of other messages that are read as a verdict."""
    totals: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for row in lines("intents/clinc150-test.jsonl"):
        reading = read_next_turn(QUESTION, row["text"]).reading
        if row["intent"] in EXPECTED:
            totals[row["intent"]] += 1
            hits[row["intent"]] += reading is EXPECTED[row["intent"]]
        elif row["intent"] not in ANSWERS:
            totals["other"] += 1
            hits["other"] += reading is not None
    return {name: {"hits": hits[name], "of": totals[name]} for name in totals}


def without_verdicts(messages: Iterator[tuple[str, str]]) -> dict[str, int]:
    """How many messages that judge nothing are read as a verdict."""
    total = hits = 0
    for question, message in messages:
        total += 1
        hits += read_next_turn(question, message).reading is not None
    return {"hits": hits, "of": total}


def tau() -> dict[str, Any]:
    """Solved tasks among the dialogues with a reading in them, and among the others."""
    dialogues: list[tuple[set[ReplyReading], bool]] = []
    for row in lines("agent-trajectories/tau-bench-gpt4o-airline.jsonl"):
        readings: set[ReplyReading] = set()
        question, answered = "", False
        for message in row["traj"]:
            if message["role"] == "assistant":
                answered |= bool(message.get("content"))
            elif message["role"] == "user":
                text = message["content"].replace("###STOP###", "")
                if answered and (reading := read_next_turn(question, text).reading):
                    readings.add(reading)
                question, answered = text, False
        dialogues.append((readings, row["reward"] == 1))
    figures = {}
    for reading in ReplyReading:
        having = [solved for readings, solved in dialogues if reading in readings]
        others = [solved for readings, solved in dialogues if reading not in readings]
        figures[str(reading)] = {
            "dialogues": len(having),
            "solved": sum(having),
            "others": len(others),
            "others_solved": sum(others),
        }
    return figures


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "next_turn")
    options = parser.parse_args()
    banking = ((QUESTION, row["text"]) for row in lines("intents/banking77-test.jsonl"))
    mt_bench = (tuple(row["turns"][:2]) for row in lines("prompts/mt-bench-questions.jsonl"))
    results = {
        "clinc150": clinc(),
        "banking77": without_verdicts(banking),
        "mt_bench": without_verdicts(mt_bench),
        "tau_bench": tau(),
    }
    for name, counts in results["clinc150"].items():
        print(f"CLINC150 {name}: {counts['hits']} of {counts['of']}")
    for name in ("banking77", "mt_bench"):
        print(f"{name}, read as a verdict: {results[name]['hits']} of {results[name]['of']}")
    for name, counts in results["tau_bench"].items():
        print(
            f"tau-bench, {name}: {counts['solved']} of {counts['dialogues']} solved; without it "
            f"{counts['others_solved']} of {counts['others']}"
        )
    raw.write(options.json, **results)


if __name__ == "__main__":
    main()
