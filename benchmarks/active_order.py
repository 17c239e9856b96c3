"""What the order `active` of a rating queue is worth: gain on gold by ratings given, against the
order `random`, in the demo's world.

    make bench-active                                 # persons 6 to 15
    python benchmarks/active_order.py --persons 1,2 --counts 50,100
    python benchmarks/active_order.py --persons 1,2,3,4,5 --counts 100 --wrong 0.25,0.7,0.9

A person has 600 answers of the base that nobody has judged, all in one queue. They rate what the
queue hands out: a thumb (one in ten wrong, as in the demo), and where they do not like it the right
answer in its stead. The rest of the queue is put in order again after every 25 ratings, as the
rating page asks for it. At each count of ratings one turn of the wheel is made, and the gain is
what its evaluation found on 400 gold cases of the person's own. All orders see the same answers,
and a thumb on an answer is wrong in all or in none.

`--wrong 0.7` adds an order that nobody has in life, because it knows the truth: each next answer is
a wrong one with this chance. It shows what an order could gain at best by asking for corrections.
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
from operator import gt
from pathlib import Path
from typing import Any

import raw
from options import numbers
from worlds.mail import MailWorld
from worlds.mailbox import AGENT, CACHE, NOISE, Mailbox, opened_mailbox

from thumbwheel.models.versions import require_agent
from thumbwheel.review import store
from thumbwheel.review.hand_out import next_items
from thumbwheel.review.order import reorder, shuffled
from thumbwheel.review.queues import QueueSelection, create, require_queue
from thumbwheel.review.rate import RatingRequest, rate
from thumbwheel.review.types import QueueConfig, RaterVerdict

POOL = 600
COUNTS = "50,100,200"
AT_ONCE = 25
"""Ratings between two orderings of what is left."""
RATER = "owner"
ORDERS = ("random", "active")
WRONG = "wrong "
"""Begins the name of an order by the truth; the chance of a wrong answer follows."""


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
        by_truth = order.startswith(WRONG)
        config = QueueConfig.model_validate({"order": "random" if by_truth else order})
        create(mailbox.ws, agent, "all", config, QueueSelection())
        if by_truth:
            sort_by_truth(mailbox, person, float(order.removeprefix(WRONG)))
        count_rated = down = 0
        for count in counts:
            while count_rated < count:
                if not by_truth:
                    queue = require_queue(mailbox.ws, agent, "all")
                    rules.append(reorder(mailbox.ws, agent, queue))
                batch = min(AT_ONCE, count - count_rated)
                down += rate_next(mailbox, person, batch)
                count_rated += batch
            gains[count], verdicts[count] = mailbox.turn(method)
            disliked[count] = down
    seconds = round(time.monotonic() - began, 1)
    return Outcome(person, order, gains, verdicts, disliked, rules, seconds)


def sort_by_truth(mailbox: Mailbox, person: int, share: float) -> None:
    """Put the queue in an order in which each next answer is a wrong one with the chance `share`,
    as long as there are both."""
    queue = require_queue(mailbox.ws, require_agent(mailbox.ws, AGENT), "all")
    is_right = {
        trace["id"]: trace["output"] == wanted
        for trace, wanted in zip(mailbox.traces, mailbox.wanted, strict=True)
    }
    with mailbox.ws.db.read() as connection:
        items = store.open_items(connection, queue.id)
        rows = store.trace_rows(connection, [traces[0] for traces in items.values()])
    right: list[str] = []
    wrong: list[str] = []
    for item_id in shuffled(items, "by truth"):
        name = rows[items[item_id][0]]["external_id"]
        (right if is_right[name] else wrong).append(item_id)
    draw = random.Random(f"truth:{person}")
    ranked: list[str] = []
    while right and wrong:
        ranked.append((wrong if draw.random() < share else right).pop())
    ranked += right + wrong
    mailbox.ws.db.write(lambda connection: store.set_ranks(connection, queue.id, ranked))


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
        verdict = RaterVerdict(thumb=likes, correction=correction)
        rate(mailbox.ws, agent, RatingRequest(queue, item.id, RATER, item.id), verdict)
        down += not likes
    return down


def summary(outcomes: Sequence[Outcome], counts: Sequence[int]) -> list[dict[str, Any]]:
    """At each count of ratings: every order over all persons, beside the random one."""
    table = []
    for count in counts:
        gains: dict[str, list[float]] = {}
        for outcome in outcomes:
            gains.setdefault(outcome.order, []).append(outcome.gains[count])
        mean_of_random = statistics.fmean(gains["random"])
        for order, values in gains.items():
            mean = statistics.fmean(values)
            better = sum(map(gt, values, gains["random"]))
            more = round(mean / mean_of_random - 1, 3) if mean_of_random > 0 else None
            table.append(
                {
                    "ratings": count,
                    "order": order,
                    "persons": len(values),
                    "points": round(100 * mean, 1),
                    "more_gain": more,
                    "better_than_random": better,
                }
            )
    return table


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--persons", type=numbers, help="as 6,7 [default: those that no default was chosen on]"
    )
    parser.add_argument("--counts", type=numbers, default=COUNTS)
    parser.add_argument("--wrong", default="", help="chances of a wrong answer, as 0.7,0.9")
    parser.add_argument("--method", default="sft", help="a method, or plan")
    raw.option(parser, "active_order")
    options = parser.parse_args()
    logging.getLogger("thumbwheel").setLevel(logging.ERROR)
    world = MailWorld()
    base = world.base(CACHE)
    persons = options.persons or list(world.prove)
    counts = options.counts
    orders = [*ORDERS, *(f"{WRONG}{share}" for share in options.wrong.split(",") if share)]
    outcomes = []
    for person in persons:
        for order in orders:
            outcomes.append(outcome_of(person, order, counts, options.method, base))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    table = summary(outcomes, counts)
    print(json.dumps(table, indent=1))
    raw.write(options.json, table=table, outcomes=[asdict(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
