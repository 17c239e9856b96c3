"""What the order `active` of a rating queue is worth: gain on gold by ratings given, against the
order `random`, in the demo's world.

    make bench-active                                 # persons 6 to 15
    python benchmarks/active_order.py --persons 1,2 --counts 50,100

A person has 600 answers of the base that nobody has judged, all in one queue. They rate what the
queue hands out: a thumb (one in ten wrong, as in the demo), and where they do not like it the right
answer in its stead. The rest of the queue is put in order again after every 25 ratings, as the
rating page asks for it. At each count of ratings one turn of the wheel is made, and the gain is
what its evaluation found on 400 gold cases of the person's own. Both orders see the same answers,
and a thumb on an answer is wrong in both or in neither.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import raw
from worlds.mail import MailWorld
from worlds.mailbox import AGENT, CACHE, NOISE, Mailbox, opened_mailbox

from thumbwheel.models.versions import require_agent
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.order import reorder
from thumbwheel.review.queues import Selection, create, require_queue
from thumbwheel.review.rate import Request, rate
from thumbwheel.review.types import QueueConfig, Verdict

POOL = 600
COUNTS = "50,100,200"
AT_ONCE = 25
"""Ratings between two orderings of what is left."""
RATER = "owner"
ORDERS = ("random", "active")


@dataclass(frozen=True)
class Outcome:
    """One person by one order."""

    person: int
    order: str
    gains: dict[int, float]
    """Ratings given -> gain, as a share of the gold cases."""
    verdicts: dict[int, str]
    disliked: dict[int, int]
    """Ratings given -> thumbs down among them."""
    rules: list[str]
    """What decided each order of what was left."""
    seconds: float


def outcome_of(person: int, order: str, counts: Sequence[int], method: str, base: Path) -> Outcome:
    """Rate in this order, with a turn of the wheel at each count."""
    began = time.monotonic()
    gains, verdicts, disliked = {}, {}, {}
    rules: list[str] = []
    with opened_mailbox(person, POOL, base) as mailbox:
        agent = require_agent(mailbox.ws, AGENT)
        create(mailbox.ws, agent, "all", QueueConfig.model_validate({"order": order}), Selection())
        count_rated = down = 0
        for count in counts:
            while count_rated < count:
                rules.append(reorder(mailbox.ws, agent, require_queue(mailbox.ws, agent, "all")))
                batch = min(AT_ONCE, count - count_rated)
                down += rate_next(mailbox, person, batch)
                count_rated += batch
            gains[count], verdicts[count] = mailbox.turn(method)
            disliked[count] = down
    seconds = round(time.monotonic() - began, 1)
    return Outcome(person, order, gains, verdicts, disliked, rules, seconds)


def rate_next(mailbox: Mailbox, person: int, count: int) -> int:
    """The person rates the next answers; how many they did not like."""
    agent = require_agent(mailbox.ws, AGENT)
    queue = require_queue(mailbox.ws, agent, "all")
    wanted_of = {
        trace["input"][-1]["content"]: wanted
        for trace, wanted in zip(mailbox.traces, mailbox.wanted, strict=True)
    }
    down = 0
    for item in next_items(mailbox.ws, queue, RATER, limit=count).items:
        question, answer = str(item.chat[-1]["text"]), item.answers[0]
        wanted = wanted_of[question]
        slips = random.Random(f"slip:{person}:{question}").random() < NOISE
        likes = (answer == wanted) != slips
        correction = wanted if not likes and answer != wanted else None
        verdict = Verdict(thumb=likes, correction=correction)
        rate(mailbox.ws, agent, Request(queue, item.id, RATER, item.id), verdict)
        down += not likes
    return down


def summary(outcomes: Sequence[Outcome], counts: Sequence[int]) -> list[dict[str, Any]]:
    """At each count of ratings: both orders over all persons."""
    table = []
    for count in counts:
        gains = {
            order: [outcome.gains[count] for outcome in outcomes if outcome.order == order]
            for order in ORDERS
        }
        means = {order: statistics.fmean(values) for order, values in gains.items()}
        better = sum(
            active > plain for plain, active in zip(gains["random"], gains["active"], strict=True)
        )
        table.append(
            {
                "ratings": count,
                "persons": len(gains["random"]),
                "random_points": round(100 * means["random"], 1),
                "active_points": round(100 * means["active"], 1),
                "more_gain": round(means["active"] / means["random"] - 1, 3)
                if means["random"] > 0
                else None,
                "active_is_better": better,
            }
        )
    return table


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--persons", help="as 6,7 [default: those that no default was chosen on]")
    parser.add_argument("--counts", default=COUNTS)
    parser.add_argument("--method", default="sft", help="a method, or plan")
    raw.option(parser, "active_order")
    options = parser.parse_args()
    logging.getLogger("thumbwheel").setLevel(logging.ERROR)
    world = MailWorld()
    base = world.base(CACHE)
    persons = list(world.prove)
    if options.persons:
        persons = [int(text) for text in options.persons.split(",")]
    counts = [int(text) for text in options.counts.split(",")]
    outcomes = []
    for person in persons:
        for order in ORDERS:
            outcomes.append(outcome_of(person, order, counts, options.method, base))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    table = summary(outcomes, counts)
    print(json.dumps(table, indent=1))
    raw.write(options.json, table=table, outcomes=[asdict(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
