"""The simulated person: private habits that differ from the common rules, and how they rate what
the filer did.

A fixed share of the person's mail falls under a habit. To add a kind of habit, add it to
`_draw_habits`. The common rules are in `world.py`.
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
        """Return whether the habit applies to this mail."""
        return (
            mail.sender == self.sender
            and self.topic in (None, mail.topic)
            and self.cue in (None, mail.cue)
        )

    def words(self) -> str:
        """Describe the habit in a sentence, for people."""
        condition = f"about a {self.topic}" if self.topic else f"in a {self.cue} tone"
        filing = []
        if self.folder:
            filing.append(f"folder {self.folder}")
        if self.priority:
            filing.append(f"priority {self.priority}")
        return f"mail from a {self.sender} {condition}: {' and '.join(filing)}"


class Person:
    """One person: `seed` decides the habits. No two habits share a sender, so none can contradict
    another."""

    def __init__(self, seed: int) -> None:
        self.habits = _draw_habits(random.Random(f"person:{seed}"))

    def filing(self, mail: Mail) -> Filing:
        """Return where this person wants the mail: the truth of the world."""
        folder, priority = common_filing(mail)
        for habit in self.habits:
            if habit.holds(mail):
                folder, priority = habit.folder or folder, habit.priority or priority
        return Filing(folder, priority)

    def habit_of(self, mail: Mail) -> int | None:
        """Return the index of the habit that changes the answer to this mail, or None if the common
        rules hold."""
        if self.filing(mail) == common_filing(mail):
            return None
        return next(i for i, habit in enumerate(self.habits) if habit.holds(mail))

    def mails(self, rng: random.Random, count: int, pool: Pool) -> list[Mail]:
        """Return `count` different mails of this person in random order, exactly `HABIT_SHARE` of
        them under a habit, evenly over the habits."""
        under_habits = round(count * HABIT_SHARE)
        quotas: dict[int | None, int] = {None: count - under_habits}
        for number in range(under_habits):
            habit = number % len(self.habits)
            quotas[habit] = quotas.get(habit, 0) + 1
        mails = list(self._draw_quotas(rng, quotas, pool))
        rng.shuffle(mails)
        return mails

    def _draw_quotas(
        self, rng: random.Random, quotas: dict[int | None, int], pool: Pool
    ) -> Iterator[Mail]:
        """Yield different mails, so many under each habit (or under none); `quotas` is used up."""
        seen: set[str] = set()
        missing = sum(quotas.values())
        for mail in draw_mails(rng, pool):
            if not missing:
                return
            habit = self.habit_of(mail)
            if quotas.get(habit, 0) and mail.prompt not in seen:
                quotas[habit] -= 1
                missing -= 1
                seen.add(mail.prompt)
                yield mail


def _draw_habits(rng: random.Random) -> tuple[Habit, ...]:
    """Draw folder habits by sender and topic (every third sets the priority too), and priority
    habits by sender and cue."""
    senders = rng.sample(SENDERS, FOLDER_HABITS + PRIORITY_HABITS)
    topics = rng.sample(TOPICS, FOLDER_HABITS)
    habits = []
    for number in range(FOLDER_HABITS):
        sets_priority = number % 3 == 2
        habits.append(_folder_habit(rng, senders[number], topics[number], sets_priority))
    for sender in senders[FOLDER_HABITS:]:
        cue = rng.choice(CUE_KINDS)
        usual = {"relaxed": "low", "plain": "normal", "urgent": "high"}[cue]
        priority = rng.choice([other for other in PRIORITIES if other != usual])
        habits.append(Habit(sender, None, cue, None, priority))
    return tuple(habits)


def _folder_habit(rng: random.Random, sender: str, topic: str, sets_priority: bool) -> Habit:
    """Draw a folder habit. Half of these file by sender, as some people do; the others go to any
    other folder."""
    usual = common_filing(Mail(sender, topic, "plain", "", "")).folder
    folder = SENDER_FOLDER[sender]
    if folder == usual or rng.random() >= 0.5:
        folder = rng.choice([other for other in FOLDERS if other != usual])
    priority = rng.choice(PRIORITIES) if sets_priority else None
    return Habit(sender, topic, None, folder, priority)
