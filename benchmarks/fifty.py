"""How many interactions of one person it takes until the gate sees a gain, in the demo's world.

    make bench-fifty                                  # ten persons, the ways that are recommended
    python benchmarks/fifty.py --tune --ways coming/sft,spread/sft,unsure/sft,coming/dpo,thumbs/kto

An interaction is one answer that the person looks at: a thumb (one in ten wrong, as in the demo),
and where they do not like it the right answer in its stead. After 16, 24, 32, 40 and 50 of them one
turn of the wheel is made in the same home: plan, training from the base, evaluation, gate. So every
further look at the gold cases is a stricter one. The first turn that the gate approves ends it.
Gold are 400 cases of the person's own, which are no interactions.

A way is ORDER/METHOD. Orders: `coming` is that of the mail; `spread` takes next what is least like
all before (TF-IDF), `unsure` what the base's own answer is least sure of; `thumbs` is `coming`
without corrections. Methods: those of `thumbwheel train`, or `plan`.

Ways are chosen on persons 1 to 3 (`--tune`) and proved on 6 to 15.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import platformdirs
import raw
from worlds.mail import MailWorld
from worlds.world import read_lines

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo.emit import EmitOptions, emit
from thumbwheel.demo.person import Person
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation.few_shot import similarity
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.evaluation.types import AskLikelihood, EvaluationConfig
from thumbwheel.loop.cycle import run_cycle
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.models import versions
from thumbwheel.models.types import Agent
from thumbwheel.training.data_plan import data_plan

AGENT = "filer"
CACHE = Path(platformdirs.user_cache_dir("thumbwheel")) / "worlds"
LOOKS = (16, 24, 32, 40, 50)
POOL, GOLD = 200, 400
NOISE = 0.1
RECOMMENDED = ("coming/sft", "spread/sft")
SETTINGS: dict[str, Any] = {
    "dataset": {"gate": 0.0, "dev": 0.1, "plan": {"sft_min": 10, "kto_min": 10, "dpo_min": 10}},
    "evaluation": {"few_shot": 0, "max_new_tokens": 24, "examples": 0},
}


@dataclass(frozen=True)
class Outcome:
    """One person by one way. `interactions`: at which the gate approved; None where it did not."""

    person: int
    way: str
    interactions: int | None
    gains: list[float]
    """Of the gold cases that are right, at each look."""
    verdicts: list[str]
    seconds: float


@dataclass
class Mailbox:
    """A person's home, and what they have not looked at yet."""

    ws: Workspace
    base: Path
    folder: Path
    traces: list[dict[str, Any]]
    wanted: list[str]
    draw: random.Random

    @property
    def agent(self) -> Agent:
        return Agent.named(AGENT)

    def order(self, name: str) -> list[int]:
        """Positions of the traces in the order in which the person looks at them."""
        if name == "unsure":
            return self._unsure_first()
        if name == "spread":
            return self._spread()
        return list(range(len(self.traces)))

    def _unsure_first(self) -> list[int]:
        model = find_base(str(self.base), self.ws.home.cache)
        version = versions.ensure_base(self.ws, AGENT, model.name, model.fingerprint)
        config = self.ws.settings(EvaluationConfig, "evaluation")
        asks = [AskLikelihood(trace["input"], (trace["output"],)) for trace in self.traces]
        responder = LocalModel(self.ws, version, [], config).responder(version)
        sums = responder.log_probabilities(asks)
        return sorted(range(len(asks)), key=lambda index: sums[index][0][0])

    def _spread(self) -> list[int]:
        texts = [trace["input"][-1]["content"] for trace in self.traces]
        alike = similarity(texts, texts)
        order = [0]
        nearest = alike[0].copy()
        while len(order) < len(texts):
            nearest[order] = 2.0
            following = int(nearest.argmin())
            order.append(following)
            nearest = nearest.clip(min=alike[following])
        return order

    def look_at(self, positions: Sequence[int], corrects: bool) -> None:
        """The person judges these answers."""
        path = self.folder / f"feedback-{positions[0]}-{len(positions)}.jsonl"
        lines = [line for index in positions for line in self._feedback(index, corrects)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        report = ingest(self.ws, AGENT, "jsonl", path)
        assert report.refused == 0, report.refusals

    def _feedback(self, index: int, corrects: bool) -> Iterator[dict[str, Any]]:
        trace, wanted = self.traces[index], self.wanted[index]
        common = {"type": "feedback", "target": {"trace": trace["id"]}, "rater": "owner"}
        likes = (trace["output"] == wanted) != (self.draw.random() < NOISE)
        yield {**common, "id": f"t-{trace['id']}", "kind": "thumb", "value": likes}
        if corrects and not likes and trace["output"] != wanted:
            yield {**common, "id": f"c-{trace['id']}", "kind": "correction", "value": wanted}


def until_gain(person: int, way: str, base: Path) -> Outcome:
    """Turn after turn, until the gate approves or fifty interactions are over."""
    order_name, _, method = way.partition("/")
    began = time.monotonic()
    gains: list[float] = []
    verdicts: list[str] = []
    approved_at = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = EmitOptions(seed=person, ratings=POOL // 2, noise=0.0, gold=GOLD)
        emitted = emit(folder / "world", options, base.parent)
        with Workspace.open(Home.at(folder / "home"), Sources(SETTINGS, "bench", {})) as ws:
            ingest(ws, AGENT, "jsonl", emitted.traces)
            ingest(ws, AGENT, "jsonl", emitted.gold, reviewer="owner")
            mails = Person(person).mails(random.Random(f"use:{person}"), options.messages, "known")
            wanted = [Person(person).filing(mail).text() for mail in mails]
            draw = random.Random(f"thumbs:{person}")
            traces = list(read_lines(emitted.traces))
            mailbox = Mailbox(ws, emitted.base, folder, traces, wanted, draw)
            order = mailbox.order(order_name)
            seen = 0
            for count in LOOKS:
                mailbox.look_at(order[seen:count], order_name != "thumbs")
                seen = count
                gain, verdict = turn(mailbox, method)
                gains.append(gain)
                verdicts.append(verdict)
                if verdict == Verdict.APPROVED:
                    approved_at = count
                    break
    seconds = round(time.monotonic() - began, 1)
    return Outcome(person, way, approved_at, gains, verdicts, seconds)


def turn(mailbox: Mailbox, method: str) -> tuple[float, str]:
    """(gain on gold, what the gate says) of one turn."""
    if method == "plan":
        rules = mailbox.ws.settings(DatasetConfig, "dataset")
        method = data_plan(mailbox.ws, AGENT, rules).recommended or "sft"
    config = CycleConfig(base=str(mailbox.base), methods=(method,))
    try:
        cycle = run_cycle(mailbox.ws, mailbox.agent, config, anew=True)
    except ThumbwheelError as error:
        return 0.0, f"no turn: {error.why}"
    if cycle.evaluation is None:
        reason = cycle.reasons[0] if cycle.reasons else "no reason"
        return 0.0, f"no candidate: {reason[:120]}"
    return round(cycle.evaluation.primary.gain, 4), str(cycle.verdict)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Each way over all persons."""
    ways: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        ways.setdefault(outcome.way, []).append(outcome)
    table = {}
    for way, rows in ways.items():
        counts = [row.interactions for row in rows if row.interactions is not None]
        table[way] = {
            "persons": len(rows),
            "gained": len(counts),
            "median": statistics.median(counts) if counts else None,
            "most": max(counts, default=None),
            "mean_last_gain": round(statistics.fmean(row.gains[-1] for row in rows), 3),
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default=",".join(RECOMMENDED))
    parser.add_argument("--tune", action="store_true", help="The persons that ways are chosen on.")
    parser.add_argument("--persons", help="Other persons, as 6,7.")
    raw.option(parser, "fifty")
    options = parser.parse_args()
    logging.getLogger("thumbwheel").setLevel(logging.ERROR)
    world = MailWorld()
    base = world.base(CACHE)
    persons = list(world.tune[:3] if options.tune else world.prove)
    if options.persons:
        persons = [int(text) for text in options.persons.split(",")]
    outcomes = []
    for way in options.ways.split(","):
        for person in persons:
            outcomes.append(until_gain(person, way, base))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    table = summary(outcomes)
    print(json.dumps(table, indent=1))
    raw.write(options.json, ways=table, outcomes=[asdict(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
