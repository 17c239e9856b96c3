"""The split: stable, by group, without a question in two splits, whatever arrives and in whatever order."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feedback_world import AGENT, World
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.split import group_of, prompt_key, split_of
from thumbwheel.datasets.types import SPLITS, DatasetConfig

CONFIG = DatasetConfig(dev=0.3, gate=0.3)
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_golden_values() -> None:
    """A changed hash would move old groups between splits."""
    assert [split_of(f"g{number}", DatasetConfig()) for number in range(12)] == GOLDEN
    assert split_of("g0", DatasetConfig(salt="other", gate=0.5, dev=0.4)) == "gate"


GOLDEN = ["train", "dev", "dev", "dev", "dev", "train", "train", "train", "train", "train", "train", "train"]


def test_shares_are_kept() -> None:
    counts = Counter(split_of(f"group-{number}", DatasetConfig()) for number in range(20_000))
    assert counts["train"] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert counts["dev"] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_a_case_is_split_by_its_prompt() -> None:
    assert group_of("msg_1") == "msg_1"
    assert group_of("msg_1", "ses_1") == "ses_1"


def test_the_same_question_in_other_clothes() -> None:
    user = {"role": "user", "content": "How  are\nyou?"}
    plain = prompt_key([{"role": "user", "content": "How are you?"}])
    assert prompt_key([{"role": "system", "content": "Today is Monday"}, user]) == plain
    assert prompt_key([{"role": "user", "content": "How are you now?"}]) != plain
    assert prompt_key([{"role": "system", "content": "only"}]) != prompt_key([{"role": "system", "content": "this"}])


events = st.lists(
    st.tuples(
        st.integers(0, 9),  # prompt
        st.sampled_from([None, "s1", "s2", "s3", "s4"]),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["up", "down", "edit", "five"]),
        st.sampled_from(["r1", "r2"]),
    ),
    min_size=1,
    max_size=25,
)


def world_of(chosen: list[Any]) -> World:
    world = World()
    for number, (prompt, session, output, signal, rater) in enumerate(chosen):
        system = "dated" if number % 3 == 0 else None
        trace = world.trace(f"t{number}", world.prompt(f"question {prompt}", system=system), output, session=session)
        kind, value = {"up": ("thumb", True), "down": ("thumb", False), "edit": ("correction", "edited"), "five": ("rating", 5)}[signal]
        world.say(kind, value, trace, rater=rater, at=number)
    world.case("g", world.prompt("question 0"))
    world.case("f", world.prompt("question 1"), "feedback")
    return world


def rows_of(world: World, shape: str, shuffle: Any = None) -> tuple[str, list[Any], set[str]]:
    with tempfile.TemporaryDirectory() as folder, world.into(Path(folder), shuffle) as ws:
        try:
            dataset = build(ws, AGENT, shape, CONFIG)
        except DataError:
            return "", [], set()
        return dataset.id, [row for split in SPLITS for row in load_rows(ws, dataset.id, split)], set(dataset.manifest["drops"])


@few
@given(events, st.sampled_from(["chats", "pairs", "labels"]))
def test_group_integrity_gold_and_provenance(chosen: list[Any], shape: str) -> None:
    world = world_of(chosen)
    _, rows, _ = rows_of(world, shape)
    known = {values["id"] for table, values in world.rows if table.name == "feedback"}
    of_group, of_prompt = defaultdict(set), defaultdict(set)
    for row in rows:
        of_group[row.group].add(row.split)
        of_prompt[prompt_key(row.prompt)].add(row.split)
        assert row.split == split_of(row.group, CONFIG)
        assert row.prompt[-1]["content"] != "question 0"
        assert row.feedback_ids
        assert set(row.feedback_ids) <= known
        assert row.weight > 0
        if row.prompt == [{"role": "user", "content": "question 1"}]:
            held = split_of(group_of(world.prompt("question 1")), CONFIG)
            assert SPLITS.index(row.split) >= SPLITS.index(held)
    assert all(len(splits) == 1 for splits in (*of_group.values(), *of_prompt.values()))
    assert len({row.row_id for row in rows}) == len(rows)


@few
@given(events, events)
def test_adding_data_moves_no_group(old: list[Any], new: list[Any]) -> None:
    _, before, _ = rows_of(world_of(old), "pairs")
    _, after, _ = rows_of(world_of(old + new), "pairs")
    places = {row.group: row.split for row in after}
    assert all(places.get(row.group, row.split) == row.split for row in before)


@few
@given(events, st.randoms())
def test_the_order_of_arrival_does_not_matter(chosen: list[Any], random: Any) -> None:
    world = world_of(chosen)
    assert rows_of(world, "labels")[0] == rows_of(world, "labels", random.shuffle)[0]
