"""However the prompts are shared between processes, the rows and what is said about them are those
of one process."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core import ids
from thumbwheel.datasets.collect import CollectionJob, _spill
from thumbwheel.datasets.files import SpillReader
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.split_assignment import SplitAssignment, combine_claims
from thumbwheel.datasets.types import SPLITS, DatasetConfig
from thumbwheel.db.schema import messages

CONFIG = DatasetConfig(dev=0.3, gate=0.3)
SAID = {
    "thumb": st.booleans(),
    "score": st.sampled_from([0.0, 0.4, 1.0]),
    "correction": st.sampled_from(["better", "best"]),
}
TRACES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["", " ", "  "]),
        st.sampled_from("xyz"),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=12,
)
"""Question, white space after it, answer, session."""
STATEMENTS = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(sorted(SAID)).flatmap(
            lambda kind: SAID[kind].map(lambda value: (kind, value))
        ),
        st.sampled_from(["ann", "ben"]),
    ),
    max_size=20,
)
COMPARED = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=4)


def world_of(traces: Any, statements: Any, compared: Any, gold: set[int]) -> FeedbackWorld:
    world = FeedbackWorld()
    names = [
        world.trace(f"t{number}", f"Question {question}{space}", answer, session=f"s{session}")
        for number, (question, space, answer, session) in enumerate(traces)
    ]
    for number, (kind, value), rater in statements:
        world.say(kind, value, names[number % len(names)], rater=rater)
    for better, worse in compared:
        if better % len(names) != worse % len(names):
            world.say(
                "preference",
                {"ranking": [[0], [1]]},
                names[better % len(names)],
                names[worse % len(names)],
                rater="cleo",
            )
    for number in gold:
        world.case(f"gold{number}", f"question {number}")
    return world


def collected(
    connection: sa.Connection, shape: str, folder: Path, cuts: list[str]
) -> tuple[list[Any], dict[str, Counter[str]]]:
    """Rows and tallies of as many parts as `cuts` make, with their claims combined."""
    kind = SHAPES.get(shape)()
    bounds = list(pairwise([None, *cuts, None]))
    agent_id = ids.derived("agt", AGENT)
    parts = [
        SplitAssignment.read(
            connection, agent_id, CONFIG, CONFIG.scope(*bound), unjudged=kind.unjudged
        )
        for bound in bounds
    ]
    settled = combine_claims([part.claims() for part in parts], CONFIG)
    for part in parts:
        part.load(*settled)
    folders, tallies = [], {name: Counter[str]() for name in ("drops", "notes", "prompts")}
    for number, (bound, part) in enumerate(zip(bounds, parts, strict=True)):
        folders.append(folder / str(number))
        folders[-1].mkdir(parents=True)
        job = CollectionJob(AGENT, shape, CONFIG.model_dump(mode="json"), None, *bound)
        for name, counts in _spill(connection, job, part, folders[-1]).items():
            tallies[name].update(counts)
    spilled = SpillReader(folders, kind.row)
    return [
        row
        for split in SPLITS
        for table in spilled.tables(split)
        for row in spilled.columns.decoded(table)
    ], tallies


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["labels", "pairs", "chats", "scored", "prompts"])
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    TRACES,
    STATEMENTS,
    COMPARED,
    st.sets(st.integers(0, 5), max_size=1),
    st.lists(st.integers(0, 30), max_size=3),
)
def test_parts_say_together_what_one_says(
    shape: str, traces: Any, statements: Any, compared: Any, gold: set[int], indexes: list[int]
) -> None:
    world = world_of(traces, statements, compared, gold)
    with (
        tempfile.TemporaryDirectory() as name,
        world.into(Path(name) / "home") as ws,
        ws.db.read() as connection,
    ):
        message_ids = sorted(connection.execute(sa.select(messages.c.id)).scalars())
        cuts = sorted({message_ids[index % len(message_ids)] for index in indexes})
        alone = collected(connection, shape, Path(name) / "alone", [])
        assert collected(connection, shape, Path(name) / "parts", cuts) == alone
