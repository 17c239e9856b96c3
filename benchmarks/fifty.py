"""How many interactions of one person it takes until the gate sees a gain, in the demo's world.

    make bench-fifty                                  # ten persons, the ways that are recommended
    python benchmarks/fifty.py --tune --ways coming/sft,spread/sft,unsure/sft,coming/dpo,thumbs/kto
    python benchmarks/fifty.py --tune --looks 50 --options '{"train": {"sft": {"min_steps": 1}}}'

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
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import raw
from options import numbers
from worlds.mail import MailWorld
from worlds.mailbox import AGENT, CACHE, NOISE, Mailbox, opened_mailbox

from thumbwheel.capture.ingest import ingest
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation.few_shot import similarity
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.types import AskLikelihood, EvaluationConfig
from thumbwheel.models import versions

LOOKS = "16,24,32,40,50"
POOL = 200
RECOMMENDED = ("coming/sft", "spread/sft")


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


def ordered(mailbox: Mailbox, name: str) -> list[int]:
    """Positions of the traces in the order in which the person looks at them."""
    if name == "unsure":
        return unsure_first(mailbox)
    if name == "spread":
        return spread(mailbox)
    return list(range(len(mailbox.traces)))


def unsure_first(mailbox: Mailbox) -> list[int]:
    """What the base's own answer is least sure of comes first."""
    ws = mailbox.ws
    model = find_base(str(mailbox.base), ws.home.cache)
    version = versions.ensure_base(ws, AGENT, model.name, model.fingerprint)
    config = ws.settings(EvaluationConfig, "evaluation")
    asks = [AskLikelihood(trace["input"], (trace["output"],)) for trace in mailbox.traces]
    responder = LocalModel(ws, version, [], config).responder(version)
    sums = responder.log_probabilities(asks)
    return sorted(range(len(asks)), key=lambda index: sums[index][0][0])


def spread(mailbox: Mailbox) -> list[int]:
    """What is least like all before comes next."""
    texts = [trace["input"][-1]["content"] for trace in mailbox.traces]
    alike = similarity(texts, texts)
    order = [0]
    nearest = alike[0].copy()
    while len(order) < len(texts):
        nearest[order] = 2.0
        following = int(nearest.argmin())
        order.append(following)
        nearest = nearest.clip(min=alike[following])
    return order


def look_at(mailbox: Mailbox, positions: Sequence[int], corrects: bool) -> None:
    """The person judges these answers."""
    path = mailbox.folder / f"feedback-{positions[0]}-{len(positions)}.jsonl"
    lines: list[dict[str, Any]] = []
    for index in positions:
        lines += feedback(mailbox, index, corrects)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    report = ingest(mailbox.ws, AGENT, "jsonl", path)
    assert report.refused == 0, report.refusals


def feedback(mailbox: Mailbox, index: int, corrects: bool) -> Iterator[dict[str, Any]]:
    """A thumb, and perhaps the right answer."""
    trace, wanted = mailbox.traces[index], mailbox.wanted[index]
    common = {"type": "feedback", "target": {"trace": trace["id"]}, "rater": "owner"}
    likes = (trace["output"] == wanted) != (mailbox.draw.random() < NOISE)
    yield {**common, "id": f"t-{trace['id']}", "kind": "thumb", "value": likes}
    if corrects and not likes and trace["output"] != wanted:
        yield {**common, "id": f"c-{trace['id']}", "kind": "correction", "value": wanted}


def until_gain(
    person: int, way: str, base: Path, looks: Sequence[int], options: Mapping[str, Any]
) -> Outcome:
    """Turn after turn, until the gate approves or all looks are over."""
    order_name, _, method = way.partition("/")
    began = time.monotonic()
    gains: list[float] = []
    verdicts: list[str] = []
    approved_at = None
    with opened_mailbox(person, POOL, base, options) as mailbox:
        order = ordered(mailbox, order_name)
        seen = 0
        for count in looks:
            look_at(mailbox, order[seen:count], order_name != "thumbs")
            seen = count
            gain, verdict = mailbox.turn(method)
            gains.append(gain)
            verdicts.append(verdict)
            if verdict == GateVerdict.APPROVED:
                approved_at = count
                break
    seconds = round(time.monotonic() - began, 1)
    return Outcome(person, way, approved_at, gains, verdicts, seconds)


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
    parser.add_argument("--persons", type=numbers, help="Other persons, as 6,7.")
    parser.add_argument(
        "--looks", type=numbers, default=LOOKS, help="interactions after which a turn is made"
    )
    parser.add_argument(
        "--options",
        type=json.loads,
        default={},
        help="settings of ours as JSON, to try others than the defaults",
    )
    raw.option(parser, "fifty")
    options = parser.parse_args()
    logging.getLogger("thumbwheel").setLevel(logging.ERROR)
    world = MailWorld()
    base = world.base(CACHE)
    persons = options.persons or list(world.tune[:3] if options.tune else world.prove)
    outcomes = []
    for way in options.ways.split(","):
        for person in persons:
            outcomes.append(until_gain(person, way, base, options.looks, options.options))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    table = summary(outcomes)
    print(json.dumps(table, indent=1))
    raw.write(options.json, ways=table, outcomes=[asdict(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
