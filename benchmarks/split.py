"""Does the split lose rows, and does it leak? Both rates, on public dialogues, agent runs and a
generated help desk.

    python benchmarks/split.py

Every world is imported and built twice by the ordinary verbs: once undivided (dev and gate 0), once
with the default shares. A row is lost when the divided dataset has it in no split; those that only
programs judged may not fill the gate and are counted apart. A held-out row leaks when it or a
training row continues the other: its history holds the other's prompt and one of its answers; when
both ask the same; or when their prompts are near copies, by the exact Jaccard similarity of their
word triples. The measures read the rows alone, so they judge any way to split. Seconds on one core.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import raw

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.db.workspace import Workspace

AGENT = "measured"
DATA = Path(__file__).parents[2] / "shared" / "data"
NEAR = 0.85
SHORT = 8
QUESTIONS = (
    "How do I reset the password of my account when I no longer have the phone number that it was "
    "made with",
    "Which documents do I need to send with the form to open an account for a company that was "
    "founded this year",
    "When does the parcel with the replacement arrive if I sent the broken one back on the last "
    "Friday",
    "What does it cost to move the contract to another address in the same town before the end of "
    "the year",
)
SUBJECTS = (
    "account",
    "card",
    "transfer",
    "loan",
    "deposit",
    "statement",
    "branch",
    "limit",
    "fee",
    "app",
)


def normal(text: Any) -> str:
    """Text without case and white space."""
    return " ".join(str(text).casefold().split())


def question(prompt: Iterable[dict[str, Any]]) -> str:
    """What is asked, without instructions."""
    turns = [
        (message["role"], normal(message.get("content")))
        for message in prompt
        if message["role"] not in ("system", "developer")
    ]
    return json.dumps(turns)


def answers(row: Any) -> list[str]:
    """The recorded answers of a row."""
    single = [
        getattr(row, name) for name in ("completion", "chosen", "rejected") if hasattr(row, name)
    ]
    return single + list(getattr(row, "completions", ()))


def turns(prompt: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Every question and answer that the history of a prompt holds."""
    for position, message in enumerate(prompt):
        if message["role"] == "assistant" and position:
            yield question(prompt[:position]), normal(message.get("content"))


def triples(prompt: list[dict[str, Any]]) -> frozenset[tuple[str, ...]]:
    """Triples of words of what is asked; none for a short text."""
    text = " ".join(
        normal(message.get("content"))
        for message in prompt
        if message["role"] not in ("system", "developer")
    )
    words = text.split()
    if len(words) < SHORT:
        return frozenset()
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def leaks(rows: list[Any]) -> dict[str, int]:
    """Held-out rows that continue a training row or are continued by one, ask the same, or nearly
    the same."""
    train = [row for row in rows if row.split == "train"]
    held = [row for row in rows if row.split != "train"]
    learned = {(question(row.prompt), normal(answer)) for row in train for answer in answers(row)}
    remembered = {turn for row in train for turn in turns(row.prompt)}
    asked = {question(row.prompt) for row in train}
    of_triple = defaultdict(set)
    shingles = {question(row.prompt): triples(row.prompt) for row in train}
    for name, shingle in shingles.items():
        for triple in shingle:
            of_triple[triple].add(name)
    counts = Counter(dict.fromkeys(("history", "same", "near"), 0))
    for row in held:
        pairs = {(question(row.prompt), normal(answer)) for answer in answers(row)}
        counts["history"] += not learned.isdisjoint(turns(row.prompt)) or not remembered.isdisjoint(
            pairs
        )
        counts["same"] += question(row.prompt) in asked
        shingle = triples(row.prompt)
        shared = Counter(name for triple in shingle for name in of_triple[triple])
        counts["near"] += any(
            count / len(shingle | shingles[name]) >= NEAR for name, count in shared.items()
        )
    return dict(counts)


def measured(name: str, shape: str, source: str, path: Path) -> dict[str, Any]:
    """Rows and leaks of one world."""
    programs = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home.at(folder), Sources({}, "benchmark", {})) as ws,
    ):
        ingest(ws, AGENT, source, path)
        whole = sum(
            build(
                ws, AGENT, shape, DatasetConfig(dev=0, gate=0, allow=("leakage",))
            ).counts.values()
        )
        counts, rows = dict.fromkeys(SPLITS, 0), []
        try:
            dataset = build(ws, AGENT, shape, DatasetConfig(allow=("leakage",)))
        except DataError as error:
            print(f"{name}: {error}")
        else:
            counts = dataset.counts
            programs = sum(
                count
                for reason, count in dataset.manifest["drops"].items()
                if reason.startswith("only checkers or models")
            )
            rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
    row_count = sum(counts.values())
    lost = whole - row_count - programs
    return {
        "world": name,
        "shape": shape,
        "rows": whole,
        "lost": lost,
        "by_programs": programs,
        **counts,
        "leaks": leaks(rows),
    }


def trace(number: int, prompt: Any, answer: str, session: str | None = None) -> dict[str, Any]:
    """A line of the project's own format."""
    named = {"session": session} if session else {}
    return {"type": "trace", "id": f"t{number}", "input": prompt, "output": answer} | named


def thumb(number: int, up: bool) -> dict[str, Any]:
    """What a person said about it."""
    return {
        "type": "feedback",
        "kind": "thumb",
        "value": up,
        "target": {"trace": f"t{number}"},
        "rater": f"r{number % 7}",
    }


def scored_runs(*, sessions: bool) -> Iterator[dict[str, Any]]:
    """20 questions, each run 30 times, with a score a run."""
    for number in range(600):
        yield trace(
            number,
            f"Question {number % 20} of the desk?",
            f"answer {number}",
            f"run{number}" if sessions else None,
        )
        yield {
            "type": "feedback",
            "kind": "score",
            "value": number % 10 / 10,
            "target": {"trace": f"t{number}"},
            "rater": "r",
        }


def repeated() -> Iterator[dict[str, Any]]:
    """100 questions, each asked in four sessions of other questions."""
    for number in range(400):
        yield trace(
            number,
            f"Question {number % 100} of the desk?",
            f"answer {number}",
            f"session {number // 5}",
        )
        yield thumb(number, number % 3 > 0)


def desk(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Sessions of three turns; three in ten open with a frequent question, in one of its spellings,
    and its usual answer."""
    number = 0
    for session in range(600):
        frequent = chance.random() < 0.3
        subject, detail = chance.choice(SUBJECTS), chance.randrange(10_000)
        opening = chance.choice(QUESTIONS) + chance.choice(("?", "", " please?", "??"))
        first = (
            opening if frequent else f"I have a question about my {subject}, my number is {detail}."
        )
        history: list[dict[str, str]] = []
        for turn in range(3):
            asked = (
                first
                if turn == 0
                else f"And what about the {chance.choice(SUBJECTS)} with the number "
                f"{chance.randrange(10_000)}?"
            )
            history.append({"role": "user", "content": asked})
            usual = (
                f"It is done by the form {len(first) % 3}."
                if frequent and turn == 0
                else f"That is step {chance.randrange(10_000)}."
            )
            if chance.random() < 0.6:
                yield trace(
                    number, list(history), usual, f"session {session}" if session % 2 else None
                )
                yield thumb(number, chance.random() < 0.7)
                number += 1
            history.append({"role": "assistant", "content": usual})


def main() -> None:
    """Print a line for every world, and write all of them to --json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the public data")
    raw.option(parser, "split")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worlds = [
            (
                "hh-rlhf",
                "pairs",
                "preference",
                arguments.data / "preferences/hh-rlhf-harmless-base-test.jsonl",
            )
        ]
        worlds.append(
            (
                "tau-bench",
                "scored",
                "tau",
                arguments.data / "agent-trajectories/tau-bench-gpt4o-airline.jsonl",
            )
        )
        generated = {
            ("20 questions x 30 runs", "scored"): scored_runs(sessions=True),
            ("20 questions x 30 runs, no session", "scored"): scored_runs(sessions=False),
            ("100 questions x 4 sessions", "labels"): repeated(),
            ("help desk, dialogues", "labels"): desk(random.Random(7)),
        }
        for (name, shape), lines in generated.items():
            path = Path(folder) / f"{name}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            worlds.append((name, shape, "jsonl", path))
        results = [measured(*world) for world in worlds]
    for result in results:
        splits = "/".join(str(result[split]) for split in SPLITS)
        leak_counts = ", ".join(f"{name} {count}" for name, count in result["leaks"].items())
        rows = (
            f"{result['rows']:6} rows, {splits:>12}, lost {result['lost']:4}, by programs "
            f"{result['by_programs']:3}"
        )
        print(f"{result['world']:36}{rows}; held-out rows that leak: {leak_counts}")
    raw.write(arguments.json, worlds=results)


if __name__ == "__main__":
    main()
