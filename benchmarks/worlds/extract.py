"""`extract`: orders in plain text, of which a pretrained model makes JSON with five fields.

A third of the gold orders is worded as no rated one is, so that a contestant has to read and not to
remember. Tuning and proving seeds have wordings of their own. All texts are ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import ClassVar

from thumbwheel.rewards.json_answer import equal, parse_object
from worlds.corrected import Corrected
from worlds.world import Example

SYSTEM = "Write the order as JSON with person, item, count, city and day."
WORDINGS = (
    "Hi, this is {person}. Please send {count} {item} to {city} on {day}.",
    "{person} here, I need {count} {item} by {day}. The shop is in {city}.",
    "Order for {city}: {count} {item}, delivery on {day}, name {person}.",
    "Could you bring {count} {item} to our place in {city}? {day} suits us. Regards, {person}",
    "We ran out again. {count} {item} for {day} please, to {city}. {person}",
    "For {person} in {city}: {item}, {count} pieces, arriving {day}.",
    "My name is {person} and I would like {count} {item}. I live in {city}. Is {day} possible?",
    "On {day} we open in {city} and need {count} {item}. Ask for {person}.",
    "{count} {item}. {city}. {day}. Thanks, {person}",
    "Dear team, {person} from {city} asks for {count} {item}, best on {day}.",
    "Is it true that you deliver to {city} on {day}? Then {count} {item} for {person}, please.",
    "{person} called: {count} {item} must be in {city} before the market on {day}.",
    "Good morning, please note {count} {item} for {person}, {city}, {day}.",
    "As agreed with {person}: on {day} {count} {item} go to {city}.",
    "Our branch in {city} wants {count} {item}. Contact is {person}, day is {day}.",
    "Please put aside {count} {item}; {person} comes from {city} to fetch them on {day}.",
    "{day} delivery, {city}. {person} takes {count} {item}.",
    "Hello! {count} {item} for the party of {person} in {city} this {day}.",
    "I am {person}. Last time the {item} were great, so {count} more for {day}, to {city} again.",
    "Can {count} {item} reach {city} by {day}? It is for {person}.",
    "{item} are needed in {city}: {count} of them, on {day}, says {person}.",
    "New order from {person}. What: {count} {item}. Where: {city}. When: {day}.",
    "We moved to {city}. Please bring the {count} {item} there on {day}. Yours, {person}",
    "{person} would like to change the order to {count} {item}, still {city}, now {day}.",
)
UNRATED = 4
"""Wordings of each kind of seed that stand in gold orders alone."""
FIRST = ("Nora", "Emil", "Ida", "Jonas", "Lena", "Oskar", "Paula", "Ruben", "Selma", "Theo")
LAST = ("Lind", "Berger", "Costa", "Duarte", "Falk", "Hansen", "Keller", "Moreau", "Novak", "Rossi")
ITEMS = (
    "candles", "chairs", "lamps", "mugs", "plates", "towels", "baskets", "brushes", "bottles",
    "boxes", "carpets", "clocks", "cushions", "forks", "glasses", "hammers", "jars", "kettles",
    "ladders", "mirrors", "pans", "pillows", "ropes", "saws", "shelves", "spoons", "tables",
    "tents", "trays", "vases",
)  # fmt: skip
CITIES = (
    "Oslo", "Bergen", "Lyon", "Porto", "Turin", "Ghent", "Graz", "Basel", "Leeds", "Cork", "Malaga",
    "Krakow", "Aarhus", "Turku", "Bonn", "Nantes", "Parma", "Delft", "Linz", "York",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
GOLD = 150
UNRATED_SHARE = 3
"""One in so many gold orders has a wording that is not rated."""


class Extract(Corrected):
    """See the module."""

    name: ClassVar[str] = "extract"
    tune: ClassVar[tuple[int, ...]] = (1, 2)
    prove: ClassVar[tuple[int, ...]] = (3, 4, 5)
    tune_ratings: ClassVar[int] = 300
    prove_ratings: ClassVar[int] = 300
    max_new_tokens: ClassVar[int] = 56
    checker: ClassVar[str] = "json_fields"

    def drawn(self, rng: random.Random, seed: int) -> tuple[list[Example], list[Example]]:
        """See `Corrected.drawn`."""
        half = len(WORDINGS) // 2
        wordings = WORDINGS[:half] if seed in self.tune else WORDINGS[half:]
        rated_wordings, others = wordings[:-UNRATED], wordings[-UNRATED:]
        rated = [order(rng, rated_wordings) for _ in range(self.prove_ratings)]
        gold = [
            order(rng, rated_wordings if number % UNRATED_SHARE else others)
            for number in range(GOLD)
        ]
        return rated, gold

    def mistake(self, rng: random.Random, example: Example, rated: Sequence[Example]) -> str:
        """Return the order with another count, or for another day."""
        del rated
        fields = json.loads(example.answer)
        if rng.random() < 0.5:
            fields["count"] += 1
        else:
            fields["day"] = rng.choice([day for day in DAYS if day != fields["day"]])
        return json.dumps(fields)

    def right(self, answer: str, example: Example) -> bool:
        """Whether every field is right."""
        try:
            answered = parse_object(answer)
        except ValueError:
            return False
        expected = json.loads(example.answer)
        return all(equal(answered.get(name), value) for name, value in expected.items())


def order(rng: random.Random, wordings: Sequence[str]) -> Example:
    """Return an order with its fields."""
    fields = {
        "person": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
        "item": rng.choice(ITEMS),
        "count": rng.randint(2, 40),
        "city": rng.choice(CITIES),
        "day": rng.choice(DAYS),
    }
    text = rng.choice(wordings).format(**fields)
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    return Example(prompt, json.dumps(fields), text)
