"""The SQL of datasets: prompts as chains, the calls of a trace, tools, and datasets that are
inserted once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from tests.store.outside import outside
from tests.worlds.feedback_world import AGENT, START, FeedbackWorld
from thumbwheel.core import ids
from thumbwheel.datasets import store
from thumbwheel.datasets.evidence import read_evidence
from thumbwheel.datasets.types import Dataset, DatasetConfig, Tally
from thumbwheel.db.batches import VARIABLES
from thumbwheel.db.dialects import Postgresql
from thumbwheel.db.message_chains import conversations
from thumbwheel.db.schema import messages
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import judgements

AGENT_ID = ids.derived("agt", AGENT)


def test_prompts_are_read_as_chains_in_order(tmp_path: Path) -> None:
    world = FeedbackWorld()
    long = world.prompt("one", "two", "three", system="be kind")
    short = world.prompt("one", system="be kind")
    many = [world.prompt(f"question {number}") for number in range(VARIABLES + 3)]
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        chains = conversations(connection, [long, short, *many, "msg_missing"])
    assert [message["content"] for message in chains[long]] == ["be kind", "one", "two", "three"]
    assert [message["role"] for message in chains[long]] == ["system", "user", "assistant", "user"]
    assert chains[short] == chains[long][:2]
    assert len(chains) == len(many) + 2
    assert "msg_missing" not in chains


def remove_first_message(ws: Workspace) -> None:
    """As damage would, past the foreign keys."""
    with ws.db.read() as connection:
        (first,) = connection.execute(
            sa.select(messages.c.id).where(messages.c.parent_id.is_(None))
        ).scalars()
    with ws.db.backend.exclusive(), outside(ws.db.backend) as raw:
        if isinstance(ws.db.backend, Postgresql):
            raw.execute("SET session_replication_role = replica")
        assert raw.execute(f"DELETE FROM messages WHERE id = '{first}'").rowcount == 1


def test_a_broken_chain_is_no_prompt_and_its_traces_are_counted(tmp_path: Path) -> None:
    world = FeedbackWorld()
    prompt = world.prompt("one", "two", "three")
    world.say("thumb", True, world.trace("a", prompt, "out"))
    with world.into(tmp_path) as ws:
        remove_first_message(ws)
    with FeedbackWorld().into(tmp_path) as ws, ws.db.read() as connection:
        assert conversations(connection, [prompt]) == {}
        tally = Tally()
        assert list(read_evidence(connection, Agent.named(AGENT), DatasetConfig(), tally)) == []
    assert tally.drops == {"the prompt cannot be read back: a message is missing": 1}


def test_judged_traces_follow_the_order_of_judgements(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(40):
        trace = world.trace(
            f"t{number}",
            f"q{number % 7}",
            "out",
            session=f"s{number % 3}",
            steps=1 + number % 2,
            metadata={"tools": [{"name": "f"}]} if number == 1 else None,
        )
        if number % 3:
            world.say("thumb", True, trace)
    world.trace("unjudged", "q1", "out")
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        traces = list(store.judged_traces(connection, AGENT_ID))
        assert [trace.id for trace in traces] == [
            judgement.trace_id for judgement in judgements(connection, Agent.named(AGENT))
        ]
        asked = [
            (trace.prompt_id, trace.trace_id, trace.several)
            for trace in store.asked_traces(connection, AGENT_ID)
        ]
        assert asked == [(trace.prompt_id, trace.id, trace.calls > 1) for trace in traces]
        assert store.trace_count(connection, AGENT_ID) == 41
    assert {trace.calls for trace in traces} == {1, 2}
    assert [trace.tools for trace in traces if trace.tools] == [[{"name": "f"}]]
    assert {trace.finish_reason for trace in traces} == {"stop"}


def test_another_agent_is_not_seen(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("a", "q", "out"))
    world.case("c", "q", "feedback")
    with world.into(tmp_path) as ws, ws.db.read() as connection:
        other = ids.derived("agt", "other")
        assert list(store.judged_traces(connection, other)) == []
        assert list(store.asked_traces(connection, other)) == []
        assert store.case_inputs(connection, other) == []
        assert store.watermark(connection, other, None) == {"feedback": 0, "recorded_at": None}
        assert store.watermark(connection, AGENT_ID, None) == {
            "feedback": 1,
            "recorded_at": START.isoformat(),
        }
        assert [case.basis for case in store.case_inputs(connection, AGENT_ID)] == ["feedback"]


def test_a_dataset_is_inserted_once(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.trace("a", "q", "out")
    dataset = Dataset(
        "dst_1",
        AGENT,
        "pairs",
        "f" * 64,
        {"counts": {"train": 1, "dev": 0, "gate": 0}},
        datetime.now(UTC),
    )
    with world.into(tmp_path) as ws:
        assert ws.db.write(lambda connection: store.add(connection, dataset)) is True
        assert ws.db.write(lambda connection: store.add(connection, dataset)) is False
        with ws.db.read() as connection:
            stored = store.find(connection, agent=AGENT)
            assert [(row.id, row.shape, row.counts) for row in stored] == [
                ("dst_1", "pairs", dataset.counts)
            ]
            assert store.find(connection, dataset_id="dst_2") == []


def test_a_lone_number_given_to_a_step_is_read(tmp_path: Path) -> None:
    """SQLite keeps it as a number and not as text."""
    world = FeedbackWorld()
    trace = world.trace("t", "q", "a")
    world.say("thumb", True, trace)
    for table, values in world.rows:
        if table.name == "steps":
            values |= {"input": 5, "token_ids": [1], "token_logprobs": [0.5]}
    with world.into(tmp_path / "home") as ws, ws.db.read() as connection:
        (trace,) = store.judged_traces(connection, AGENT_ID)
    assert (trace.calls, trace.tools, trace.token_ids, trace.logps) == (1, None, [1], [0.5])
