"""How often worthless feedback gets past the gate: many small worlds whose feedback stands on
random answers.

    python benchmarks/shuffled.py --worlds 200 --json docs/results/shuffled.json [--processes
    2]

Every world is the demo's, smaller: a person with habits of their own (the seed), 300 thumbs, 42
corrections and 48 outcomes over 600 mails, all shuffled among the answers, and 200 gold messages. A
candidate is trained for 20 steps over the demo's base, which all worlds share, by kto or sft in
turn, and evaluated and decided on as any other. Its first look is judged at 95 %, so that a
candidate without a gain gets past with 2.5 % at most.

Shuffled is not void: corrections still say which folders the person uses, so a gain may be real.
Where the gate saw one, the candidate is judged again on the 200 messages and 2,000 fresh ones,
which shows whether it was; an approval without it is a mistake.

Results are written after each world. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import raw

from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.stats.rates import clopper_pearson

METHODS = ("kto", "sft")
RATINGS, GOLD, FRESH, STEPS = 300, 200, 2000, 20
FIRST = 1001
"""Seed of the first world."""
NOMINAL = 0.025
"""How often a candidate without a gain may be approved at its first look."""
SETTINGS = {
    "ratings": RATINGS,
    "gold": GOLD,
    "fresh": FRESH,
    "steps": STEPS,
    "methods": list(METHODS),
    "first": FIRST,
}


def world(seed: int) -> dict[str, Any]:
    """The decision on a candidate that learned from the shuffled feedback of person `seed`."""
    import torch

    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.workspace import Workspace
    from thumbwheel.demo.app import tiny_app
    from thumbwheel.demo.emit import EmitOptions, emit
    from thumbwheel.demo.run import AGENT, base_cache, import_world
    from thumbwheel.evaluation.evaluate import evaluate
    from thumbwheel.evaluation.gate import gate
    from thumbwheel.evaluation.types import EvaluationConfig
    from thumbwheel.models import versions
    from thumbwheel.training.train import train

    torch.set_num_threads(1)
    started, method = time.monotonic(), METHODS[seed % len(METHODS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home.at(Path(folder) / "home").prepare(), Sources({}, "shuffled", {})) as ws,
    ):
        options = EmitOptions(seed=seed, ratings=RATINGS, shuffle=True, gold=GOLD)
        files = emit(Path(folder) / "world", options, tiny_app(base_cache()))
        import_world(ws, files)
        steps = {"max_steps": STEPS, "eval_steps": STEPS}
        result = train(
            ws, Agent.named(AGENT), method, find_base(files.app.base, ws.home.cache), options=steps
        )
        row: dict[str, Any] = {
            "seed": seed,
            "method": method,
            "state": result.state.value,
            "verdict": "no candidate",
        }
        if result.version is not None:
            config = EvaluationConfig(max_new_tokens=24, few_shot=0)
            evaluation = evaluate(ws, versions.version(ws, AGENT, result.version), config)
            decision = gate(ws, evaluation)
            primary = evaluation.primary
            row |= {
                "verdict": decision.decision.verdict.value,
                "reasons": list(decision.decision.reasons),
                "before": primary.before,
                "after": primary.after,
                "gain": primary.gain,
                "low": primary.low,
                "high": primary.high,
            }
            if primary.low > 0:
                row["fresh"] = judged_again(ws, Path(folder), seed, result.version, config)
    return row | {"seconds": round(time.monotonic() - started, 1)}


def judged_again(ws: Any, folder: Path, seed: int, version: str, config: Any) -> dict[str, float]:
    """The same candidate on the gold messages and ten times as many that nothing has seen."""
    from thumbwheel.capture.ingest import ingest
    from thumbwheel.demo.person import Person
    from thumbwheel.demo.run import AGENT
    from thumbwheel.demo.world import messages
    from thumbwheel.evaluation.evaluate import evaluate
    from thumbwheel.models import versions

    person, path = Person(seed), folder / "fresh.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, mail in enumerate(person.mails(random.Random(f"again:{seed}"), FRESH, "fresh")):
            case = {
                "type": "case",
                "id": f"again-{number:05d}",
                "input": messages(mail),
                "checker": "json_fields",
                "reference": person.filing(mail)._asdict(),
                "group": mail.address,
            }
            file.write(json.dumps(case, ensure_ascii=False) + "\n")
    ingest(ws, AGENT, "jsonl", path, reviewer="owner")
    candidate = versions.version(ws, AGENT, version)
    success_only = config.model_copy(update={"suite": ("success",)})
    primary = evaluate(ws, candidate, success_only).primary
    return {"gain": primary.gain, "low": primary.low, "high": primary.high, "n": primary.n}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and exact 95 % intervals of the shares."""
    approved = [row for row in rows if row["verdict"] == "approved"]
    seen = [row for row in rows if row.get("low") is not None and row["low"] > 0]
    wrong = [row for row in approved if row["fresh"]["gain"] <= 0]
    counts = {
        "worlds": len(rows),
        "gain seen": len(seen),
        "approved": len(approved),
        "approved without a true gain": len(wrong),
    }
    shares = {
        name: [count / max(len(rows), 1), *_ends(count, len(rows))]
        for name, count in counts.items()
        if name != "worlds"
    }
    return {"counts": counts, "shares": shares, "nominal": NOMINAL}


def _ends(count: int, total: int) -> tuple[float, float]:
    interval = clopper_pearson(count, total)
    return interval.low, interval.high


def exceeds(count: int, total: int, level: float) -> bool:
    """Whether so many of `total` show, at this level, that the rate lies above the nominal one."""
    return clopper_pearson(count, total, level).low > NOMINAL


def finished_rows(path: Path | None) -> list[dict[str, Any]]:
    """Worlds that an earlier call with the same settings finished."""
    if path is None or not path.is_file():
        return []
    stored = json.loads(path.read_text())
    return stored["rows"] if stored["settings"] == SETTINGS else []


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """All of it, in one rename."""
    ordered = sorted(rows, key=lambda row: row["seed"])
    content = {
        "conditions": raw.conditions(),
        "settings": SETTINGS,
        "summary": summary(ordered),
        "rows": ordered,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def show(row: Mapping[str, Any]) -> None:
    """One line for a person."""
    gain = f"{row['gain']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]" if "gain" in row else ""
    again = (
        f"; on {row['fresh']['n']} fresh ones {row['fresh']['gain']:+.3f}" if "fresh" in row else ""
    )
    print(
        f"{row['seed']} {row['method']:4} {row['verdict']:20} {gain}{again} ({row['seconds']} s)",
        flush=True,
    )


def main() -> None:
    """Run the worlds that are missing, and print the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--json", type=Path, help="every world's result; where it is, the run goes on"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = finished_rows(arguments.json)
    finished = {row["seed"] for row in rows}
    missing = [seed for seed in range(FIRST, FIRST + arguments.worlds) if seed not in finished]
    # a process ends after twenty worlds, so that memory is given back
    with multiprocessing.get_context("spawn").Pool(
        arguments.processes, maxtasksperchild=20
    ) as pool:
        for row in pool.imap_unordered(world, missing):
            rows.append(row)
            show(row)
            if arguments.json:
                write(arguments.json, rows)
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
