"""`mail`: the demo's world. A person with private habits rates what a filer made of their mail; all
texts are ours.

Person 1 is the one on whom most defaults were chosen before there were other worlds.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import ClassVar

from thumbwheel.demo.app import tiny_app
from thumbwheel.demo.base import ensure_base
from thumbwheel.demo.emit import WORLD, EmitOptions, emit
from thumbwheel.demo.person import Person
from worlds.world import Example, Files, World, read_lines

GOLD = 800


class MailWorld(World):
    """See the module."""

    name: ClassVar[str] = "mail"
    tune: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5)
    prove: ClassVar[tuple[int, ...]] = (6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    tune_ratings: ClassVar[int] = 750
    prove_ratings: ClassVar[int] = 750
    max_new_tokens: ClassVar[int] = 24

    def base(self, cache: Path) -> Path:
        """The demo's base."""
        return ensure_base(cache.parent / "demo")

    def write(self, folder: Path, seed: int, ratings: int, base: Path) -> Files:
        """See `World.write`."""
        emitted = emit(
            folder, EmitOptions(seed=seed, ratings=ratings, gold=GOLD), tiny_app(base.parent)
        )
        truth = json.loads((folder / WORLD).read_text(encoding="utf-8"))
        person = Person(seed)
        options = EmitOptions(seed=seed, ratings=ratings)
        mails = person.mails(
            random.Random(f"use:{seed}"), options.messages, "known"
        )  # as the demo draws them
        rated = {
            line["target"]["trace"]
            for line in read_lines(emitted.feedback)
            if line["kind"] == "thumb"
        }
        taught = [
            Example(line["input"], person.filing(mail).text(), line["id"])
            for line, mail in zip(read_lines(emitted.traces), mails, strict=True)
            if line["id"] in rated
        ]
        gold = [
            Example(
                line["input"], json.dumps(line["reference"], separators=(",", ":")), line["group"]
            )
            for line in read_lines(emitted.gold)
        ]
        return Files(
            base=emitted.app.folder,
            traces=emitted.traces,
            feedback=emitted.feedback,
            gold=emitted.gold,
            taught=taught,
            gold_examples=gold,
            sampled_right=truth["sampled_accuracy"],
        )
