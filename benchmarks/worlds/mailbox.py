"""A person of the demo's world with mail that nobody has judged yet, in a home of their own."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources, merge
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.app import tiny_app
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.person import Person
from thumbwheel.loop.cycle import run_cycle
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.models.types import Agent
from thumbwheel.training.data_plan import data_plan
from worlds.world import read_lines

AGENT = "filer"
CACHE = Path(platformdirs.user_cache_dir("thumbwheel")) / "worlds"
GOLD = 400
NOISE = 0.1
"""Share of thumbs that say the opposite, as in the demo."""
SETTINGS: dict[str, Any] = {
    "dataset": {"gate": 0.0, "dev": 0.1, "plan": {"sft_min": 10, "kto_min": 10, "dpo_min": 10}},
    "evaluation": {"few_shot": 0, "max_new_tokens": 24, "examples": 0},
}


@dataclass(frozen=True)
class Mailbox:
    """`wanted`: the answer to each trace that the person holds right."""

    ws: Workspace
    base: Path
    folder: Path
    traces: list[dict[str, Any]]
    wanted: list[str]
    draw: random.Random

    @property
    def agent(self) -> Agent:
        return Agent.named(AGENT)

    def turn(self, method: str) -> tuple[float, str]:
        """(gain on gold, what the gate says) of one turn of the wheel, by a method or by what the
        `plan` recommends."""
        if method == "plan":
            rules = self.ws.settings(DatasetConfig, "dataset")
            method = data_plan(self.ws, AGENT, rules).recommended or "sft"
        config = CycleConfig(base=str(self.base), methods=(method,))
        try:
            cycle = run_cycle(self.ws, self.agent, config, anew=True)
        except ThumbwheelError as error:
            return 0.0, f"no turn: {error.why}"
        if cycle.evaluation is None:
            reason = cycle.reasons[0] if cycle.reasons else "no reason"
            return 0.0, f"no candidate: {reason[:120]}"
        return round(cycle.evaluation.primary.gain, 4), str(cycle.verdict)


@contextmanager
def opened_mailbox(
    person: int, pool: int, base: Path, options: Mapping[str, Any] | None = None
) -> Iterator[Mailbox]:
    """The mailbox of a person: `pool` answers of the base, and gold cases that the person has
    reviewed. `options` are further settings, such as {"train": {"sft": {"lora_r": 8}}}."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        emit_options = EmitOptions(seed=person, ratings=pool // 2, noise=0.0, gold=GOLD)
        emitted = emit(folder / "world", emit_options, tiny_app(base.parent))
        settings = Sources(merge(SETTINGS, options or {}), "bench", {})
        with Workspace.open(Home.at(folder / "home"), settings) as ws:
            ingest(ws, AGENT, "jsonl", emitted.traces)
            ingest(ws, AGENT, "jsonl", emitted.gold, reviewer="owner")
            mails = Person(person).mails(
                random.Random(f"use:{person}"), emit_options.messages, "known"
            )
            yield Mailbox(
                ws,
                emitted.app.folder,
                folder,
                list(read_lines(emitted.traces)),
                [Person(person).filing(mail).text() for mail in mails],
                random.Random(f"thumbs:{person}"),
            )
