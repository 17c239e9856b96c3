from __future__ import annotations

import random
import re
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.demo import mail as wordings_module
from thumbwheel.demo.mail import (
    BODIES,
    CUES,
    FILLERS,
    GREETINGS,
    SUBJECTS,
    VAGUE_SUBJECTS,
    wordings,
    write_mail,
)
from thumbwheel.demo.person import HABIT_SHARE, Person
from thumbwheel.demo.world import (
    CUE_KINDS,
    FOLDERS,
    PRIORITIES,
    SENDER_FIRST,
    SENDERS,
    TOPIC_FOLDER,
    TOPICS,
    common_filing,
    draw_mails,
    population_filing,
)

SEEDS = range(30)


def test_equal_seeds_give_equal_persons_and_mails() -> None:
    first = Person(3).mails(random.Random("x"), 60, "known")
    assert first == Person(3).mails(random.Random("x"), 60, "known")
    assert first != Person(3).mails(random.Random("y"), 60, "known")
    assert len({Person(seed).habits for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("pool", ["known", "fresh"])
@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_the_habit_share_differs_from_the_common_rules(seed: int, pool: str) -> None:
    person = Person(seed)
    mails = person.mails(random.Random(f"share:{seed}"), 250, pool)  # type: ignore[arg-type]
    differs = [mail for mail in mails if person.filing(mail) != common_filing(mail)]
    assert len(differs) == round(250 * HABIT_SHARE)
    per_habit = [
        sum(person.habit_of(mail) == habit for mail in mails) for habit in range(len(person.habits))
    ]
    assert max(per_habit) - min(per_habit) <= 1
    assert len({mail.prompt for mail in mails}) == len(mails)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_habit_is_a_conjunction_that_neither_sender_nor_topic_or_cue_decides_alone(
    seed: int,
) -> None:
    person = Person(seed)
    assert len({habit.sender for habit in person.habits}) == len(person.habits)
    for number, habit in enumerate(person.habits):
        assert (habit.topic is None) != (habit.cue is None)
        others = [
            mail
            for mail in islice(draw_mails(random.Random(seed), "any"), 2_000)
            if person.habit_of(mail) is None
        ]
        assert any(mail.sender == habit.sender for mail in others), (
            f"habit {number} is the sender alone"
        )
        assert any(
            habit.topic in (None, mail.topic) and habit.cue in (None, mail.cue) for mail in others
        )


def test_gold_wordings_are_disjoint_from_recorded_wordings() -> None:
    pools = [
        *BODIES.values(),
        *SUBJECTS.values(),
        *(cue for cue in CUES.values() if cue),
        VAGUE_SUBJECTS,
        FILLERS,
        GREETINGS,
    ]
    for phrases in pools:
        recorded, fresh = wordings(phrases, "known"), wordings(phrases, "fresh")
        assert recorded and fresh and not set(recorded) & set(fresh)
        assert (*recorded, *fresh) == tuple(wordings(phrases, "any")) and len(set(phrases)) == len(
            phrases
        )


@settings(max_examples=200, deadline=None)
@given(st.integers(), st.sampled_from(SENDERS), st.sampled_from(TOPICS), st.sampled_from(CUE_KINDS))
def test_no_mail_names_a_folder_or_a_priority(seed: int, sender: str, topic: str, cue: str) -> None:
    mail = write_mail(random.Random(seed), sender, topic, cue, "any")
    assert "{" not in mail.prompt
    assert not set(re.findall(r"[a-z]+", mail.prompt.lower())) & {*FOLDERS, *PRIORITIES}


def test_no_wording_names_a_folder_or_a_priority() -> None:
    texts = [
        *wordings_module.FIRST,
        *wordings_module.LAST,
        *(d for ds in wordings_module.DOMAINS.values() for d in ds),
    ]
    texts += [v for values in wordings_module.SLOTS.values() for v in values]
    for pool in (
        *BODIES.values(),
        *SUBJECTS.values(),
        *CUES.values(),
        VAGUE_SUBJECTS,
        FILLERS,
        GREETINGS,
    ):
        texts += pool
    assert not {word for text in texts for word in re.findall(r"[a-z]+", text.lower())} & {
        *FOLDERS,
        *PRIORITIES,
    }


def test_one_phrase_belongs_to_one_topic() -> None:
    owners: dict[str, str] = {}
    for topic, phrases in (*BODIES.items(), *SUBJECTS.items()):
        for phrase in phrases:
            assert owners.setdefault(phrase, topic) == topic


def test_the_population_mostly_follows_the_common_rules_and_explores() -> None:
    rng = random.Random(0)
    mails = list(islice(draw_mails(rng, "any"), 4_000))
    follows = sum(population_filing(rng, mail) == common_filing(mail) for mail in mails) / len(
        mails
    )
    assert 0.7 < follows < 0.85
    assert {population_filing(rng, mail).folder for mail in mails} == set(FOLDERS)


def test_the_common_folder_follows_the_topic_except_for_senders_that_come_first() -> None:
    for mail in islice(draw_mails(random.Random(1), "any"), 500):
        by_topic = common_filing(mail).folder == TOPIC_FOLDER[mail.topic]
        assert by_topic or mail.sender in SENDER_FIRST


def test_habits_are_said_in_words() -> None:
    for habit in Person(1).habits:
        assert (
            habit.sender in habit.words()
            and (habit.folder or habit.priority or "") in habit.words()
        )
