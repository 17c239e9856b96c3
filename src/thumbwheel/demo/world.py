"""The demo world: features of mails, folders and priorities, the common rules of filing, and how
other people file.

The base model has seen the filing of these other people. The one person with private habits is in
`person.py`. To add a topic, add a line to `TOPIC_FOLDER` and its wordings to `mail.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from thumbwheel.demo.mail import CUES, DOMAINS, Mail, Pool, write_mail

SYSTEM = "File this mail as JSON."

TOPIC_FOLDER = {
    "bill": "money",
    "meeting": "calendar",
    "trip": "travel",
    "parcel": "orders",
    "offer": "promos",
    "digest": "reading",
    "draft": "work",
    "alert": "accounts",
}
SENDER_FOLDER = {
    "colleague": "work",
    "bank": "money",
    "shop": "orders",
    "airline": "travel",
    "school": "family",
    "club": "calendar",
    "media": "reading",
    "city": "archive",
    "friend": "family",
}
SENDER_FIRST = ("colleague", "school", "city", "friend")
"""Senders whose mail is filed by sender, whatever it is about."""
SENDERS = tuple(DOMAINS)
TOPICS = tuple(TOPIC_FOLDER)
CUE_KINDS = tuple(CUES)
FOLDERS = (*TOPIC_FOLDER.values(), "family", "archive")
PRIORITIES = ("low", "normal", "high")

# Shares of mail that other people file by sender, in any folder, and with another priority. The
# base model learns this mixture, so its sampled answers explore while its greedy answer follows the
# common rules.
BY_SENDER, ANYWHERE, OTHER_PRIORITY = 0.18, 0.06, 0.06


class Filing(NamedTuple):
    """Where a mail goes and how pressing it is."""

    folder: str
    priority: str

    def text(self) -> str:
        """Return the compact JSON that the model has to answer with."""
        return f'{{"folder":"{self.folder}","priority":"{self.priority}"}}'


def common_filing(mail: Mail) -> Filing:
    """Return where the common rules file the mail: the folder follows the topic, or the sender for
    some; the cue sets the priority, which offers and digests lower by a step and alerts raise by
    one."""
    level = {"relaxed": 0, "plain": 1, "urgent": 2}[mail.cue]
    level += {"offer": -1, "digest": -1, "alert": 1}.get(mail.topic, 0)
    folder = SENDER_FOLDER[mail.sender] if mail.sender in SENDER_FIRST else TOPIC_FOLDER[mail.topic]
    return Filing(folder, PRIORITIES[min(max(level, 0), 2)])


def population_filing(rng: random.Random, mail: Mail) -> Filing:
    """Return where some other person files the mail: mostly by the common rules."""
    folder, priority = common_filing(mail)
    chance = rng.random()
    if chance < BY_SENDER:
        folder = (
            TOPIC_FOLDER[mail.topic] if mail.sender in SENDER_FIRST else SENDER_FOLDER[mail.sender]
        )
    elif chance < BY_SENDER + ANYWHERE:
        folder = rng.choice(FOLDERS)
    if rng.random() < OTHER_PRIORITY:
        priority = rng.choice(PRIORITIES)
    return Filing(folder, priority)


def draw_mails(rng: random.Random, pool: Pool) -> Iterator[Mail]:
    """Yield an endless stream of mails with independent, uniform features."""
    while True:
        yield write_mail(rng, rng.choice(SENDERS), rng.choice(TOPICS), rng.choice(CUE_KINDS), pool)


def messages(mail: Mail) -> list[dict[str, str]]:
    """Return the chat that the filer answers to."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": mail.prompt}]
