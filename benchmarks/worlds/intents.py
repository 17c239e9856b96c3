"""What the worlds of routed messages share: a pool of real messages, a base that saw a few of each
kind, recorded answers.

All such worlds have one base, which saw eight examples of each intent of each world. Its sampled
answers are the recorded ones. What a training costs elsewhere shows on the other worlds' messages.
Proving seeds draw their messages from a part of the pool that no tuning seed has ever drawn from.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from worlds import small_base
from worlds.data import Message, first_of_each, messages
from worlds.rated import RatedAnswers
from worlds.taught import taught_base
from worlds.world import Chat, Example

EXAMPLES_AN_INTENT = 8
EPOCHS = 7
"""Of the base over its examples: half of its answers are right then, and it is less sure than after
more."""
ELSEWHERE = 300
"""Messages of the other worlds that show what a training cost there."""


class RoutedMessages(RatedAnswers):
    """Messages of people, each answered by JSON that says where it goes."""

    files: ClassVar[tuple[str, ...]]
    system: ClassVar[str]
    tune_pool: ClassVar[int]
    """Messages that tuning seeds draw from; the others are for proving seeds."""
    most_gold: ClassVar[int] = 1500
    checker: ClassVar[str] = "json_fields"
    all: ClassVar[list[RoutedMessages]] = []
    """Every world of this kind, in the order in which they were made."""

    def __init__(self) -> None:
        self.all.append(self)

    @abstractmethod
    def answer_of(self, message: Message) -> str:
        """The right answer."""

    def base(self, cache: Path) -> Path:
        """A base of 4M parameters; three minutes on two cores."""
        chats: list[Chat] = []
        texts: list[str] = []
        for world in self.all:
            examples, others = world.base_examples()
            chats += [world.chat_of(message) for message in examples]
            texts += [message.text for message in others[: world.tune_pool]]
        return small_base.ensure(small_base.Course("routing", chats, EPOCHS, texts), cache)

    def pretrained_base(self, cache: Path) -> Path:
        """SmolLM2 after eight examples of each intent."""
        chats = [self.chat_of(message) for message in self.base_examples()[0]]
        return taught_base(self.name, chats, cache)

    def drawn(self, rng: random.Random, seed: int) -> tuple[list[Example], list[Example]]:
        """See `RatedAnswers.drawn`."""
        is_tuning = seed in self.tune
        _, others = self.base_examples()
        pool = others[: self.tune_pool] if is_tuning else others[self.tune_pool :]
        drawn = [self.example_of(message) for message in rng.sample(pool, len(pool))]
        most_rated = self.tune_ratings if is_tuning else self.prove_ratings
        return drawn[:most_rated], drawn[most_rated : most_rated + self.most_gold]

    def elsewhere(self) -> list[Example]:
        """Messages of the other worlds, which the base answers too."""
        return [
            world.example_of(message)
            for world in self.all
            if world is not self
            for message in world.base_examples()[1][: ELSEWHERE // (len(self.all) - 1)]
        ]

    def base_examples(self) -> tuple[list[Message], list[Message]]:
        """(what the base was taught to answer, all other messages), in one order for all seeds."""
        pool = messages(*self.files)
        random.Random(f"{self.name} pool").shuffle(pool)
        return first_of_each(pool, EXAMPLES_AN_INTENT)

    def prompt_of(self, message: Message) -> Chat:
        """The chat that is answered."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": message.text},
        ]

    def chat_of(self, message: Message) -> Chat:
        """The chat with its right answer."""
        return self.example_of(message).chat

    def example_of(self, message: Message) -> Example:
        """A message with its right answer; messages are independent of each other."""
        return Example(self.prompt_of(message), self.answer_of(message), message.text)
