"""The split: stable, by question, without a question or a dialogue in two splits, whatever arrives
and in whatever order."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.split import group_of, prompt_key, split_of
from thumbwheel.datasets.split_assignment import ASSIGNMENTS, JUDGED_FLAG, _Groups
from thumbwheel.datasets.types import SPLITS, DatasetConfig

CONFIG = DatasetConfig(dev=0.3, gate=0.3)
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_golden_values() -> None:
    """A changed hash would move old groups between splits."""
    assert [split_of(f"g{number}", DatasetConfig()) for number in range(12)] == GOLDEN
    assert split_of("g0", DatasetConfig(salt="other", gate=0.5, dev=0.4)) == "gate"


GOLDEN = [
    "train",
    "dev",
    "dev",
    "dev",
    "dev",
    "train",
    "train",
    "train",
    "train",
    "train",
    "train",
    "train",
]


def test_shares_are_kept() -> None:
    counts = Counter(split_of(f"group-{number}", DatasetConfig()) for number in range(20_000))
    assert counts["train"] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert counts["dev"] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_what_an_interval_counts_as_one() -> None:
    assert group_of("msg_1") == "msg_1"
    assert group_of("msg_1", "ses_1") == "ses_1"


def test_held_out_takes_dev_and_gate_by_their_shares() -> None:
    counts = Counter(
        split_of(f"group-{number}", DatasetConfig(dev=0.1, gate=0.3), held_out=True)
        for number in range(4000)
    )
    assert counts["gate"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert counts["train"] == 0
    assert split_of("group", DatasetConfig(dev=0, gate=0), held_out=True) is None


def test_the_same_question_in_other_clothes() -> None:
    user = {"role": "user", "content": "How  are\nyou?"}
    plain = prompt_key([{"role": "user", "content": "How are you?"}])
    assert prompt_key([{"role": "system", "content": "Today is Monday"}, user]) == plain
    assert prompt_key([{"role": "user", "content": "How are you now?"}]) != plain
    assert prompt_key([{"role": "system", "content": "only"}]) != prompt_key(
        [{"role": "system", "content": "this"}]
    )


turn = st.tuples(
    st.sampled_from(
        ["How do I reset it?", "how do I  reset it", "Is it waterproof?", "What does it cost?"]
    ),
    st.sampled_from(["Hold the button.", "Yes.", "Ask the desk."]),
)
"""A question of the user and an answer of the assistant."""
events = st.lists(
    st.tuples(
        st.lists(turn, min_size=1, max_size=3),  # the last answer is the output
        st.sampled_from([None, "s1", "s2", "s3"]),
        st.sampled_from(["up", "down", "edit", "five"]),
        st.sampled_from(["r1", "r2"]),
    ),
    min_size=1,
    max_size=20,
)


def world_of(chosen: list[Any], first: int = 0) -> FeedbackWorld:
    world = FeedbackWorld()
    for number, (dialogue, session, signal, rater) in enumerate(chosen, first):
        *texts, output = [text for exchange in dialogue for text in exchange]
        prompt = world.prompt(*texts, system="dated" if number % 3 == 0 else None)
        trace = world.trace(f"t{number}", prompt, output, session=session)
        kind, value = {
            "up": ("thumb", True),
            "down": ("thumb", False),
            "edit": ("correction", "Edited."),
            "five": ("rating", 5),
        }[signal]
        world.say(kind, value, trace, rater=rater, minute=number)
    world.case("g", world.prompt("Is it waterproof?"))
    world.case("f", world.prompt("What does it cost?"), "feedback")
    return world


def rows_of(
    world: FeedbackWorld, shape: str, config: DatasetConfig = CONFIG, shuffle: Any = None
) -> tuple[str, list[Any], dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder, world.into(Path(folder), shuffle) as ws:
        try:
            dataset = build(ws, AGENT, shape, config)
        except DataError:
            return "", [], {}
        return (
            dataset.id,
            [row for split in SPLITS for row in load_rows(ws, dataset.id, split)],
            dataset.manifest["drops"],
        )


def answers_of(row: Any) -> list[str]:
    single = [
        getattr(row, name) for name in ("completion", "chosen", "rejected") if hasattr(row, name)
    ]
    return single + list(getattr(row, "completions", ()))


def turns_of(prompt: list[Any]) -> set[tuple[bytes, str]]:
    """The questions and answers that the history of a prompt holds."""
    answers = [index for index, message in enumerate(prompt) if message["role"] == "assistant"]
    return {(prompt_key(prompt[:index]), prompt[index]["content"]) for index in answers}


@few
@given(events, st.sampled_from(["chats", "pairs", "labels", "scored", "groups", "prompts"]))
def test_no_prompt_and_no_dialogue_stands_in_two_splits(chosen: list[Any], shape: str) -> None:
    world = world_of(chosen)
    _, rows, _ = rows_of(world, shape)
    of_prompt, of_turn = defaultdict(set), defaultdict(set)
    for row in rows:
        of_prompt[prompt_key(row.prompt)].add(row.split)
        for answer in answers_of(row):
            of_turn[prompt_key(row.prompt), answer].add(row.split)
        assert row.prompt[-1]["content"] != "Is it waterproof?" or len(row.prompt) > 2
        assert row.weight > 0
    assert all(len(splits) == 1 for splits in of_prompt.values())
    for row in rows:
        for turn in turns_of(row.prompt):
            assert of_turn.get(turn, {row.split}) == {row.split}, turn
    assert len({row.row_id for row in rows}) == len(rows)


@pytest.mark.slow
@few
@given(events, st.sampled_from(["chats", "pairs", "labels", "scored"]))
def test_the_split_drops_no_row(chosen: list[Any], shape: str) -> None:
    world = world_of(chosen)
    gold = "a gold case asks the same"
    divided, rows, drops = rows_of(world, shape)
    _, whole, undivided_drops = rows_of(world, shape, DatasetConfig(dev=0, gate=0.001))
    if divided:
        kept_out = {reason for reason in drops if reason not in undivided_drops}
        assert not kept_out and drops.get(gold) == undivided_drops.get(gold)
        assert not whole or {row.row_id for row in rows} == {row.row_id for row in whole}


@pytest.mark.slow
@few
@given(events, events)
def test_the_same_questions_again_and_later_turns_move_nothing(
    old: list[Any], new: list[Any]
) -> None:
    """What is new opens as something old did, and asks the same or goes on after it."""
    opened = [dialogue for dialogue, *_ in old]
    later = [
        (opened[number % len(opened)] + dialogue[:2], *rest)
        for number, (dialogue, *rest) in enumerate(new)
    ]
    again = [(opened[number % len(opened)], *rest) for number, (_, *rest) in enumerate(new)]
    _, before, _ = rows_of(world_of(old), "scored")
    _, after, _ = rows_of(world_of(old + later + again), "scored")
    splits = {prompt_key(row.prompt): row.split for row in after}
    assert all(splits.get(prompt_key(row.prompt), row.split) == row.split for row in before)


@pytest.mark.slow
@few
@given(events, st.randoms())
def test_the_order_of_arrival_does_not_matter(chosen: list[Any], random: Any) -> None:
    world = world_of(chosen)
    assert rows_of(world, "labels")[0] == rows_of(world, "labels", CONFIG, random.shuffle)[0]


@pytest.mark.slow
def test_a_question_that_is_asked_in_many_sessions_stays_with_all_its_answers(
    tmp_path: Path,
) -> None:
    """By session, 20 questions of 30 runs gave no training row, and 100 questions in four sessions
    each 144 of 400."""
    for name, questions, answers in (("runs", 20, 30), ("sessions", 100, 4)):
        world = FeedbackWorld()
        for number in range(questions * answers):
            trace = world.trace(
                f"t{number}",
                f"Question {number % questions}?",
                f"answer {number}",
                session=f"s{number}",
            )
            world.say("score", number % 10 / 10, trace)
        with world.into(tmp_path / name) as ws:
            counts = build(ws, AGENT, "scored").counts
        assert sum(counts.values()) == 20 * 30 if name == "runs" else 400
        assert counts["train"] == pytest.approx(0.8 * sum(counts.values()), rel=0.25)
        assert all(count % answers == 0 for count in counts.values())


def test_dialogues_without_a_session_are_not_cut_apart(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        question, answer = f"Where is parcel {number}?", f"On shelf {number}."
        world.say("thumb", True, world.trace(f"first{number}", question, answer))
        world.say(
            "thumb",
            False,
            world.trace(
                f"next{number}",
                world.prompt(question, answer, "And when does it leave?"),
                "Tomorrow.",
            ),
        )
        world.say(
            "thumb",
            False,
            world.trace(
                f"other{number}",
                world.prompt(question, "No idea.", "And when does it leave?"),
                "Today.",
            ),
        )
    with world.into(tmp_path) as ws:
        dataset = build(ws, AGENT, "labels", CONFIG)
        rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
    splits = {(row.prompt[0]["content"], row.completion): row.split for row in rows}
    opened = {
        question: split
        for (question, answer), split in splits.items()
        if answer.startswith("On shelf")
    }
    assert {splits[question, "Tomorrow."] == split for question, split in opened.items()} == {True}
    assert {splits[question, "Today."] == split for question, split in opened.items()} == {
        True,
        False,
    }, "another dialogue"


@pytest.mark.slow
def test_near_copies_of_a_question_stand_together_and_a_template_ties_nothing(
    tmp_path: Path,
) -> None:
    chance = random.Random(5)
    words = ["".join(chance.choices("abcdefgh", k=5)) for _ in range(400)]
    world = FeedbackWorld()
    for number in range(80):
        text = " ".join(chance.choices(words, k=30))
        for variant, spelling in enumerate(
            (text, f"{text.capitalize()}?", f"please {text}", f"{text} again")
        ):
            world.say(
                "thumb",
                number % 2 == 0,
                world.trace(f"t{number}-{variant}", spelling, f"a{number}-{variant}"),
            )
    template = (
        "Decide where the item belongs: home, work, bank, garden or nowhere at all, and say so in "
        "one word. The item: "
    )
    for number in range(120):
        prompt = template + " ".join(chance.choices(words, k=3))
        world.say("thumb", number % 2 == 0, world.trace(f"item{number}", prompt, f"b{number}"))
    with world.into(tmp_path) as ws:
        dataset = build(ws, AGENT, "labels", CONFIG)
        rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
    splits = defaultdict(set)
    for row in rows:
        splits[row.completion.partition("-")[0]].add(row.split)
    assert all(len(splits[f"a{number}"]) == 1 for number in range(80))
    counts = Counter(row.split for row in rows if row.completion.startswith("b"))
    assert all(20 < counts[split] < 80 for split in SPLITS), counts


def test_near_copies_of_a_gold_question_are_held_out_and_what_continues_its_recorded_answers_is_not(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    words = ["".join(chance.choices("abcdefgh", k=5)) for _ in range(400)]
    world = FeedbackWorld()
    for number in range(30):
        gold = " ".join(chance.choices(words, k=20))
        world.case(f"g{number}", gold)
        world.say("thumb", True, world.trace(f"same{number}", gold, "Form 1."))
        world.say("thumb", True, world.trace(f"near{number}", f"{gold} please?", f"near {number}"))
        followed = world.prompt(gold, "Form 1.", f"And form {number}?")
        world.say(
            "thumb", number % 2 == 0, world.trace(f"next{number}", followed, f"next {number}")
        )
    with world.into(tmp_path) as ws:
        dataset = build(ws, AGENT, "labels", CONFIG)
        rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
    assert dataset.manifest["drops"]["a gold case asks the same"] == 30
    assert "train" not in {row.split for row in rows if row.completion.startswith("near")}
    assert sum(row.split == "train" for row in rows if row.completion.startswith("next")) > 5
    assert len(rows) == 60


def test_what_its_owner_holds_out_is_never_trained_on(tmp_path: Path) -> None:
    world = FeedbackWorld()
    marks = {
        0: {"is_training_data": False, "is_validation_data": True},
        1: {"is_training_data": False},
        2: {"is_training_data": True},
    }
    for number in range(90):
        trace = world.trace(
            f"t{number}", f"Question {number}?", f"a{number}", metadata=marks[number % 3]
        )
        world.say("thumb", number % 2 == 0, trace)
        if number % 30 == 0:
            world.say(
                "thumb",
                True,
                world.trace(f"again{number}", f"question {number}", f"again {number}"),
            )
    for number in range(90, 120):
        world.trace(f"t{number}", f"Question {number}?", f"a{number}", metadata=marks[number % 3])
    with world.into(tmp_path / "home") as ws:
        for shape in ("labels", "prompts"):
            dataset = build(ws, AGENT, shape, CONFIG)
            rows = [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]
            numbers = {
                split: [
                    int(row.prompt[0]["content"].strip("?").split()[1])
                    for row in rows
                    if row.split == split
                ]
                for split in SPLITS
            }
            assert {number % 3 for number in numbers["train"]} == {2}
            assert {number % 3 for split in ("dev", "gate") for number in numbers[split]} == {0, 2}
            assert dataset.manifest["drops"][
                "its owner keeps it out of training and validation data"
            ] == (30 if shape == "labels" else 40)
        with pytest.raises(DataError, match="held out, and dev and gate are empty"):
            build(ws, AGENT, "labels", DatasetConfig(dev=0, gate=0, sample=0.0001))


def test_a_continuation_with_a_smaller_key_moves_no_dialogue() -> None:
    """The group's split is that of the prompt that opens the dialogue, whatever its later turns
    hash to."""
    openings = np.arange(1000, 1040, dtype=np.uint64)
    continuations = np.arange(1, 41, dtype=np.uint64)
    keys = np.concatenate([continuations, openings])
    groups = _Groups(keys, np.full(len(keys), JUDGED_FLAG, np.uint8))
    groups.tie(np.array([[number + 40, number] for number in range(40)]), continued=True)
    assigned = groups.assignments(CONFIG)
    expected = [split_of(f"{int(key):016x}", CONFIG) for key in openings]
    assert [ASSIGNMENTS[number] for number in assigned[40:]] == expected
    assert (assigned[:40] == assigned[40:]).all()
    alone = [split_of(f"{int(key):016x}", CONFIG) for key in continuations]
    assert alone != expected, "their own keys would say otherwise"
