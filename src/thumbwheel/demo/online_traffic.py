"""What people send in the demo that runs online: the person's mails with a thumb for each answer,
and forgers who want other answers.

Every mail is a call of the gateway and then feedback to the API, over HTTP, as an app would do it.
Names and seeds follow from the number of the mail, so that one that is sent again is no new one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from thumbwheel.core.errors import ModelError
from thumbwheel.demo.emit import TEMPERATURE
from thumbwheel.demo.mail import Mail
from thumbwheel.demo.person import Person
from thumbwheel.demo.world import Filing, messages

OWNER = "owner"
CORRECTED = 0.7
"""Of the wrong answers, while the app is new: the person rewrites them."""
FORGERS = ("mallory-1", "mallory-2", "mallory-3")
FORGED = Filing("archive", "low")
"""Where the forgers want the mail that the person files in a private way."""
PATIENCE = 120.0
"""Seconds that an answer is waited for."""


@dataclass(frozen=True)
class DemoReply:
    """The answer to a mail, and who gave it."""

    trace: str
    version: str
    text: str


@dataclass
class DemoClient:
    """An app that calls the gateway and sends feedback."""

    url: str
    agent: str

    def __post_init__(self) -> None:
        self._http = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> DemoClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, mail: Mail, name: str, subject: str, seed: int) -> DemoReply:
        """Send a mail and return the answer; each mail is a conversation of its own. Raises
        ModelError."""
        body = {
            "model": self.agent,
            "messages": messages(mail),
            "temperature": TEMPERATURE,
            "max_tokens": 64,
            "seed": seed,
        }
        headers = {
            "x-thumbwheel-session": name,
            "x-thumbwheel-subject": subject,
            "x-thumbwheel-feedback-id": name,
        }
        reply = self._post(f"/a/{self.agent}/v1/chat/completions", body, headers)
        text = str(reply.json()["choices"][0]["message"]["content"])
        version = reply.headers["x-thumbwheel-version"]
        return DemoReply(reply.headers["x-thumbwheel-trace"], version, text)

    def rate(self, reply: DemoReply, rater: str, **signals: bool | str) -> None:
        """Send feedback on an answer. Raises ModelError if it is not accepted."""
        lines: list[dict[str, Any]] = []
        for kind, value in signals.items():
            lines.append(
                {
                    "id": f"{reply.trace}-{kind}",
                    "trace": reply.trace,
                    kind: value,
                    "rater": {"id": rater, "kind": "person"},
                }
            )
        self._post(f"/a/{self.agent}/api/feedback", lines, {})

    def _post(self, path: str, body: Any, headers: dict[str, str]) -> httpx2.Response:
        try:
            reply = self._http.post(path, json=body, headers=headers)
        except httpx2.HTTPError as error:
            why = f"it does not answer: {error}"
            raise ModelError(f"the demo's server at {self.url}", why, LOG_HINT) from None
        if reply.status_code >= 300:
            why = f"it answers {reply.status_code}: {reply.text[:300]}"
            raise ModelError(f"the demo's server at {self.url}", why, LOG_HINT)
        return reply


LOG_HINT = "Its log is server/server.log in the demo's home; run the demo again to go on"


@dataclass(frozen=True)
class Mailbox:
    """All mails of a demo, by the stage in which they come. No two have the same text."""

    person: Person
    stages: dict[str, list[Mail]]


def mailbox(seed: int, sizes: dict[str, int], forged: str) -> Mailbox:
    """Draw the mails of every stage; of the stage `forged` three of four fall under a habit of the
    person."""
    person = Person(seed)
    total = sum(size for stage, size in sizes.items() if stage != forged)
    own_mails = person.mails(random.Random(f"online:{seed}"), total, "known")
    stages = {}
    begin = 0
    for stage, size in sizes.items():
        if stage != forged:
            stages[stage] = own_mails[begin : begin + size]
            begin += size
    own_prompts = {mail.prompt for mail in own_mails}
    stages[forged] = _targeted(person, seed, sizes[forged], own_prompts)
    return Mailbox(person, stages)


def _targeted(person: Person, seed: int, count: int, own_prompts: set[str]) -> list[Mail]:
    rng = random.Random(f"forged:{seed}")
    under_habit = round(0.75 * count)
    quotas = Counter({True: under_habit, False: count - under_habit})
    mails = []
    for mail in person.mails(rng, 3 * count, "known"):
        is_habit = person.habit_of(mail) is not None
        if mail.prompt not in own_prompts and quotas[is_habit]:
            quotas[is_habit] -= 1
            mails.append(mail)
    return mails


@dataclass(frozen=True)
class AnswerTally:
    """version -> [its answers, how many of them were right], which only the simulator knows."""

    counts: dict[str, list[int]]

    def add(self, version: str, is_right: bool) -> None:
        """Count one more answer."""
        count = self.counts.setdefault(version, [0, 0])
        count[0] += 1
        count[1] += is_right

    def shares(self) -> dict[str, float]:
        """Return version -> the share of its answers that were right."""
        shares = {}
        for version, (answers, right) in sorted(self.counts.items()):
            shares[version] = right / answers
        return shares


Send = Callable[[int, Mail], DemoReply]
"""(number of the mail, mail) -> the answer, after its feedback was sent."""


def person_sends(
    client: DemoClient, person: Person, stage: str, noise: float, corrects: bool, tally: AnswerTally
) -> Send:
    """Return a function with which the person asks and rates the answer by a thumb; a share `noise`
    of the thumbs is wrong. With `corrects` most of the wrong answers are rewritten."""

    def send(number: int, mail: Mail) -> DemoReply:
        rng = random.Random(f"{stage}:{number}")
        reply = client.ask(mail, f"{stage}-{number:05d}", OWNER, number)
        wanted = person.filing(mail).text()
        is_right = reply.text == wanted
        tally.add(reply.version, is_right)
        signals: dict[str, bool | str] = {"thumb": is_right != (rng.random() < noise)}
        if corrects and not is_right and rng.random() < CORRECTED:
            signals["correction"] = wanted
        client.rate(reply, OWNER, **signals)
        return reply

    return send


def forgers_send(client: DemoClient, person: Person, stage: str) -> Send:
    """Return a function with which forgers correct answers to mails that the person files in a
    private way, and praise right answers elsewhere, so that they are not noticed."""

    def send(number: int, mail: Mail) -> DemoReply:
        forger = FORGERS[number % len(FORGERS)]
        reply = client.ask(mail, f"{stage}-{number:05d}", forger, number)
        if person.habit_of(mail) is not None:
            client.rate(reply, forger, thumb=reply.text == FORGED.text(), correction=FORGED.text())
        elif reply.text == person.filing(mail).text():
            client.rate(reply, forger, thumb=True)
        return reply

    return send
