"""The simulated person: private habits that differ from the common rules, and how they rate what
the filer did.

Lives here: habits, the person's own mail (a fixed share of it falls under a habit), and the
feedback they give. Does not live here: the common rules (`world.py`) and the files (`emit.py`). To
add a kind of habit, add it to `_invent`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from thumbwheel.demo.mail import Mail, Pool
from thumbwheel.demo.world import (
    CUE_KINDS,
    FOLDERS,
    PRIORITIES,
    SENDER_FOLDER,
    SENDERS,
    TOPICS,
    Filing,
    common_filing,
    draw_mails,
)

FOLDER_HABITS, PRIORITY_HABITS = 5, 1
HABIT_SHARE = 0.4  # of the person's mail falls under a habit that changes the answer


class Habit(NamedTuple):
    """For mail of `sender` about `topic` (folder habits) or with `cue` (priority habits): the
    person's own way."""

    sender: str
    topic: str | None
    cue: str | None
    folder: str | None
    priority: str | None

    def holds(self, mail: Mail) -> bool:
        """Does the habit apply to this mail?"""
        return (
            mail.sender == self.sender
            and self.topic in (None, mail.topic)
            and self.cue in (None, mail.cue)
        )

    def words(self) -> str:
        """The habit in a sentence, for people."""
        what = f"about a {self.topic}" if self.topic else f"in a {self.cue} tone"
        to = [
            f"{name} {value}"
            for name, value in (("folder", self.folder), ("priority", self.priority))
            if value
        ]
        return f"mail from a {self.sender} {what}: {' and '.join(to)}"


class Person:
    """One person: `seed` decides the habits. No two habits share a sender, so none can contradict
    another."""

    def __init__(self, seed: int) -> None:
        self.habits = _invent(random.Random(f"person:{seed}"))

    def filing(self, mail: Mail) -> Filing:
        """Where this person wants the mail: the truth of the world."""
        folder, priority = common_filing(mail)
        for habit in self.habits:
            if habit.holds(mail):
                folder, priority = habit.folder or folder, habit.priority or priority
        return Filing(folder, priority)

    def habit_of(self, mail: Mail) -> int | None:
        """Index of the habit that changes the answer to this mail, or None where the common rules
        hold."""
        if self.filing(mail) == common_filing(mail):
            return None
        return next(i for i, habit in enumerate(self.habits) if habit.holds(mail))

    def mails(self, rng: random.Random, count: int, pool: Pool) -> list[Mail]:
        """`count` different mails of this person in random order, exactly `HABIT_SHARE` of them
        under a habit, evenly over the habits."""
        wanted: dict[int | None, int] = {None: count - round(count * HABIT_SHARE)}
        for place in range(round(count * HABIT_SHARE)):
            wanted[place % len(self.habits)] = wanted.get(place % len(self.habits), 0) + 1
        found = list(self._quotas(rng, wanted, pool))
        rng.shuffle(found)
        return found

    def _quotas(
        self, rng: random.Random, wanted: dict[int | None, int], pool: Pool
    ) -> Iterator[Mail]:
        seen: set[str] = set()
        missing = sum(wanted.values())
        for mail in draw_mails(rng, pool):
            if not missing:
                return
            stratum = self.habit_of(mail)
            if wanted.get(stratum, 0) and mail.prompt not in seen:
                wanted[stratum] -= 1
                missing -= 1
                seen.add(mail.prompt)
                yield mail


def _invent(rng: random.Random) -> tuple[Habit, ...]:
    """Folder habits by sender and topic (every third sets the priority too), priority habits by
    sender and cue."""
    senders = rng.sample(SENDERS, FOLDER_HABITS + PRIORITY_HABITS)
    topics = rng.sample(TOPICS, FOLDER_HABITS)
    habits = [
        _folder_habit(rng, senders[i], topics[i], both=i % 3 == 2) for i in range(FOLDER_HABITS)
    ]
    for sender in senders[FOLDER_HABITS:]:
        cue = rng.choice(CUE_KINDS)
        usual = {"relaxed": "low", "plain": "normal", "urgent": "high"}[cue]
        habits.append(
            Habit(sender, None, cue, None, rng.choice([p for p in PRIORITIES if p != usual]))
        )
    return tuple(habits)


def _folder_habit(rng: random.Random, sender: str, topic: str, both: bool) -> Habit:
    """Half of these file by sender, as some people do; the others go to any other folder."""
    usual = common_filing(Mail(sender, topic, "plain", "", "")).folder
    others = [folder for folder in FOLDERS if folder != usual]
    by_sender = SENDER_FOLDER[sender]
    folder = by_sender if by_sender != usual and rng.random() < 0.5 else rng.choice(others)
    return Habit(sender, topic, None, folder, rng.choice(PRIORITIES) if both else None)
