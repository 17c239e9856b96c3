"""Writes the demo world as plain files, in the line format of the `jsonl` source.

A simulated person uses the filer. `emit` writes what an app would have recorded (`traces.jsonl`,
`feedback.jsonl`), the gold cases that the owner reviewed (`gold.jsonl`) and the simulator's truth
(`world.json`, which is printed beside the result and never read by the gate).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from thumbwheel.core.errors import InputError
from thumbwheel.demo.app import DemoApp
from thumbwheel.demo.filer import Filer, FilerAnswer
from thumbwheel.demo.mail import Mail
from thumbwheel.demo.person import Person
from thumbwheel.demo.world import Filing, population_filing

WORLD = "world.json"
START = datetime(2026, 1, 5, 8, 30, tzinfo=UTC)
MOST_MESSAGES = 2_000
OUTCOMES = 0.16  # per thumb
TEMPERATURE = 1.0
SECOND_RATER = 0.2  # of the thumbs come from somebody who shares the mailbox


@dataclass(frozen=True)
class EmitOptions:
    """The knobs of the simulation; the defaults are the demo."""

    seed: int = 1
    ratings: int = 750
    noise: float = 0.1
    flip: bool = False
    shuffle: bool = False
    gold: int = 800
    corrections: float = 0.14
    """Per thumb."""
    mails: float = 2.0
    """Mails that pass through the filer, per thumb."""

    def __post_init__(self) -> None:
        if not 1 <= self.ratings <= MOST_MESSAGES:
            why = f"the simulated person rates 1 to {MOST_MESSAGES} answers"
            raise InputError(f"--ratings {self.ratings!r}", why, "Choose a number in that range")
        if not 0 <= self.noise <= 1:
            raise InputError(
                f"--noise {self.noise!r}",
                "it is the share of wrong thumbs",
                "Choose a number from 0 to 1",
            )

    @property
    def messages(self) -> int:
        """Mails that pass through the filer, as far as the mailbox goes."""
        return min(round(self.mails * self.ratings), MOST_MESSAGES)


class MailExchange(NamedTuple):
    """A mail, what the filer answered, what the person wants, and whether the person shows to like
    the answer."""

    id: str
    mail: Mail
    answer: FilerAnswer
    wanted: str
    liked: bool
    occurred_at: datetime
    session: str


class Emitted(NamedTuple):
    """Where the files lie, and the app that answered."""

    traces: Path
    feedback: Path
    gold: Path
    world: Path
    app: DemoApp


def emit(directory: Path, options: EmitOptions, app: DemoApp) -> Emitted:
    """Write the four files into `directory` (made if missing).

    Equal options give equal files on one machine. Raises InputError for options out of range.
    """
    directory.mkdir(parents=True, exist_ok=True)
    person = Person(options.seed)
    exchanges = _use(person, app, options)
    gold = person.mails(random.Random(f"gold:{options.seed}"), options.gold, "fresh")
    cases = []
    for number, mail in enumerate(gold, start=1):
        cases.append(_case(_case_id(number), app, mail, person.filing(mail)))
    truth = json.dumps(_truth(person, options, exchanges, gold), indent=1)

    files = Emitted(
        traces=directory / "traces.jsonl",
        feedback=directory / "feedback.jsonl",
        gold=directory / "gold.jsonl",
        world=directory / WORLD,
        app=app,
    )
    _write(files.traces, (_trace(app, exchange) for exchange in exchanges))
    _write(files.feedback, _feedback(exchanges, options))
    _write(files.gold, cases)
    files.world.write_text(truth + "\n", encoding="utf-8")
    return files


def _use(person: Person, app: DemoApp, options: EmitOptions) -> list[MailExchange]:
    """Pass the person's mails through the filer in sessions of four to twelve, two or three
    sessions a day."""
    rng = random.Random(f"use:{options.seed}")
    flip_rng = random.Random(f"whims:{options.seed}")
    mails = person.mails(rng, options.messages, "known")
    filer = Filer(app.folder)
    answers = filer.answer([app.chat(mail.prompt) for mail in mails], TEMPERATURE, options.seed)
    exchanges: list[MailExchange] = []
    clock = START
    session = 0
    left_in_session = 0
    for number, (mail, answer) in enumerate(zip(mails, answers, strict=True), start=1):
        if not left_in_session:
            session += 1
            left_in_session = rng.randint(4, 12)
            clock += timedelta(hours=rng.randint(4, 12))
        left_in_session -= 1
        clock += timedelta(seconds=rng.randint(30, 300))

        wanted = person.filing(mail)
        liked = answer.text == wanted.text()
        if options.flip:
            wanted = _wrong_filing(flip_rng, mail, wanted)
            liked = not liked
        exchanges.append(
            MailExchange(
                id=f"t-{number:06d}",
                mail=mail,
                answer=answer,
                wanted=wanted.text(),
                liked=liked,
                occurred_at=clock,
                session=f"s-{session:04d}",
            )
        )
    return exchanges


def _wrong_filing(rng: random.Random, mail: Mail, truth: Filing) -> Filing:
    while (filing := population_filing(rng, mail)) == truth:
        pass
    return filing


class DemoSignal(NamedTuple):
    """One act of feedback before it is a line; `delay` is counted from the answer."""

    exchange: MailExchange
    kind: str
    value: bool | str | float
    rater: str
    delay: timedelta

    @property
    def occurred_at(self) -> datetime:
        return self.exchange.occurred_at + self.delay


def _feedback(exchanges: Sequence[MailExchange], options: EmitOptions) -> Iterator[dict[str, Any]]:
    rng = random.Random(f"feedback:{options.seed}")
    thumbs = _thumbs(rng, exchanges, options)
    corrections = _corrections(rng, exchanges, thumbs, options)
    outcomes = _outcomes(rng, exchanges, options)
    signals: list[DemoSignal] = []
    for kind in (thumbs, corrections, outcomes):
        signals += _shuffled(rng, kind) if options.shuffle else kind
    signals.sort(key=lambda signal: signal.occurred_at)

    for number, signal in enumerate(signals, start=1):
        line = {
            "type": "feedback",
            "id": f"f-{number:06d}",
            "target": {"trace": signal.exchange.id},
            "kind": signal.kind,
            "value": signal.value,
            "rater": {"id": signal.rater, "kind": "person"},
            "occurred_at": _stamp(signal.occurred_at),
        }
        if signal.kind == "outcome":
            line["name"] = "filed_right"
        yield line


def _thumbs(
    rng: random.Random, exchanges: Sequence[MailExchange], options: EmitOptions
) -> list[DemoSignal]:
    thumbs = []
    for exchange in rng.sample(exchanges, min(options.ratings, len(exchanges))):
        is_mistake = rng.random() < options.noise
        rater = "partner" if rng.random() < SECOND_RATER else "owner"
        delay = timedelta(seconds=rng.randint(2, 90))
        thumbs.append(DemoSignal(exchange, "thumb", exchange.liked != is_mistake, rater, delay))
    return thumbs


def _corrections(
    rng: random.Random,
    exchanges: Sequence[MailExchange],
    thumbs: Sequence[DemoSignal],
    options: EmitOptions,
) -> list[DemoSignal]:
    """Rewrite some of the answers that the person does not like and did not thumb up by mistake."""
    up = {signal.exchange.id for signal in thumbs if signal.value is True}
    wrong = [exchange for exchange in exchanges if not exchange.liked and exchange.id not in up]
    corrections = []
    for exchange in rng.sample(
        wrong, min(round(options.corrections * options.ratings), len(wrong))
    ):
        delay = timedelta(seconds=rng.randint(91, 240))
        corrections.append(DemoSignal(exchange, "correction", exchange.wanted, "owner", delay))
    return corrections


def _outcomes(
    rng: random.Random, exchanges: Sequence[MailExchange], options: EmitOptions
) -> list[DemoSignal]:
    """Return signals, days later, on whether a mail still lies where the filer put it."""
    outcomes = []
    for exchange in rng.sample(exchanges, min(round(OUTCOMES * options.ratings), len(exchanges))):
        delay = timedelta(hours=rng.randint(24, 96))
        outcomes.append(DemoSignal(exchange, "outcome", float(exchange.liked), "owner", delay))
    return outcomes


def _shuffled(rng: random.Random, signals: Sequence[DemoSignal]) -> list[DemoSignal]:
    values = [signal.value for signal in signals]
    rng.shuffle(values)
    return [signal._replace(value=value) for signal, value in zip(signals, values, strict=True)]


def _trace(app: DemoApp, exchange: MailExchange) -> dict[str, Any]:
    answer = exchange.answer
    return {
        "type": "trace",
        "id": exchange.id,
        "session": exchange.session,
        "subject": "u-1",
        "occurred_at": _stamp(exchange.occurred_at),
        "input": app.chat(exchange.mail.prompt),
        "output": answer.text,
        "model": app.model,
        "served_model": app.model,
        "finish_reason": answer.finish_reason,
        "sampling": {"temperature": TEMPERATURE},
        "tokens": {"prompt": answer.prompt_tokens, "completion": answer.completion_tokens},
    }


def _case_id(number: int) -> str:
    return f"g-{number:04d}"


def _case(case_id: str, app: DemoApp, mail: Mail, filing: Filing) -> dict[str, Any]:
    """Return a gold case; mails from one address are one group, since they are not independent."""
    return {
        "type": "case",
        "id": case_id,
        "input": app.chat(mail.prompt),
        "reference": filing._asdict(),
        "checker": "json_fields",
        "group": mail.address,
        "slices": {"topic": mail.topic},
    }


def _truth(
    person: Person, options: EmitOptions, exchanges: Sequence[MailExchange], gold: Sequence[Mail]
) -> dict[str, Any]:
    """Return options, habits, how well the filer really did, and the habit (or null) behind every
    gold case."""
    right = sum(exchange.liked != options.flip for exchange in exchanges)
    habits = {}
    for number, mail in enumerate(gold, start=1):
        habits[_case_id(number)] = person.habit_of(mail)
    return {
        "options": asdict(options) | {"messages": options.messages},
        "habits": [habit.words() for habit in person.habits],
        "sampled_accuracy": right / len(exchanges),
        "gold_habit": habits,
    }


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
