"""Rating queues: who gets what, what becomes of a rating, and that nothing is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.capture import trace_queries
from thumbwheel.capture.cases import list_cases
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.judged import Judged
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.core.errors import Conflict, DataError, Forbidden, InputError, NotFound
from thumbwheel.db import schema
from thumbwheel.db.feedback_in_force import newest_words
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.review.hand_out import next_items, return_skipped
from thumbwheel.review.order import reorder
from thumbwheel.review.queues import QueueSelection, add, all_queues, close, create, require_queue
from thumbwheel.review.rate import RatingRequest, approve, labels_of, rate, skip, undo, withdraw
from thumbwheel.review.raters import report
from thumbwheel.review.types import Origin, Queue, QueueConfig, RaterVerdict, ranking_of

BAD = TraceFilter(judged=Judged.BAD)
UP, DOWN = RaterVerdict(thumb=True), RaterVerdict(thumb=False)
TRACES = 12


@pytest.fixture
def unreviewed_answers(tmp_path: Path) -> Iterator[Workspace]:
    """Twelve prompts with two different answers each, and a case that nobody reviewed."""
    world = FeedbackWorld()
    for number in range(TRACES):
        prompt = world.prompt(f"Question {number}?")
        subject = "carla" if number == 0 else f"customer-{number}"
        for version in "ab":
            name = f"t{number}{version}"
            text = f"Answer {version} to {number}"
            world.trace(name, prompt, text, subject=subject, session=f"s{number}")
    world.case("c1", world.prompt("2 + 2?"), basis="feedback")
    with world.into(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def agent(unreviewed_answers: Workspace) -> Agent:
    return require_agent(unreviewed_answers, AGENT)


def new_queue(ws: Workspace, agent: Agent, of: Origin = Origin.TRACES, **config: Any) -> Queue:
    return create(ws, agent, "q", QueueConfig(**config), QueueSelection(of))


def rated(
    ws: Workspace, queue: Queue, item: str, rater: str, verdict: RaterVerdict = UP, key: str = ""
) -> Any:
    agent = require_agent(ws, AGENT)
    return rate(ws, agent, RatingRequest(queue, item, rater, key or f"{item}-{rater}"), verdict)


def in_force(ws: Workspace) -> list[tuple[str, Any]]:
    """(kind, value) of the feedback that counts."""
    agent_id = require_agent(ws, AGENT).id
    query = sa.select(schema.feedback.c.kind, schema.feedback.c.value)
    with ws.db.read() as connection:
        rows = connection.execute(query.where(schema.feedback.c.id.in_(newest_words(agent_id))))
        return sorted(((row.kind, row.value) for row in rows), key=str)


def test_items_are_shared_out_by_overlap_and_nobody_gets_one_twice(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent, overlap=3)
    raters = [f"rater {number}" for number in range(7)]
    pairs: list[tuple[str, str]] = []

    def work(rater: str) -> None:
        while items := next_items(unreviewed_answers, queue, rater, 2).items:
            for item in items:
                pairs.append((item.id, rater))
                rated(unreviewed_answers, queue, item.id, rater)

    with ThreadPoolExecutor(len(raters)) as pool:
        list(pool.map(work, raters))
    assert len(pairs) == len(set(pairs)) == 3 * 2 * TRACES
    assert set(Counter(item for item, _ in pairs).values()) == {3}
    assert require_queue(unreviewed_answers, agent, "q").done == 2 * TRACES
    assert len(list_feedback(unreviewed_answers, AGENT, limit=500)) == 3 * 2 * TRACES


def test_a_rater_gets_what_they_hold_first_and_others_get_what_they_left(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent, lease_minutes=10)
    now = datetime.now(UTC)
    held = [item.id for item in next_items(unreviewed_answers, queue, "anna", 3, now).items]
    assert [item.id for item in next_items(unreviewed_answers, queue, "anna", 3, now).items] == held
    others = next_items(unreviewed_answers, queue, "ben", 100, now).items
    assert not {item.id for item in others} & set(held)
    assert len(others) == 2 * TRACES - 3
    later = now + timedelta(minutes=11)
    taken_over = next_items(unreviewed_answers, queue, "carl", 3, later).items
    assert [item.id for item in taken_over] == held
    # a rating that comes after its lease has ended is stored all the same
    assert rated(unreviewed_answers, queue, held[0], "anna").state == "rated"
    rated(unreviewed_answers, queue, held[0], "carl")
    assert in_force(unreviewed_answers) == [("thumb", True), ("thumb", True)]
    assert require_queue(unreviewed_answers, agent, "q").done == 1


def test_the_same_request_twice_changes_nothing(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent)
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    first = rated(unreviewed_answers, queue, item.id, "anna", UP, "k1")
    again = rated(unreviewed_answers, queue, item.id, "anna", UP, "k1")
    assert (first.replayed, again.replayed) == (False, True)
    assert again.feedback == first.feedback
    with pytest.raises(InputError, match="something else was done under it"):
        rated(unreviewed_answers, queue, item.id, "anna", DOWN, "k1")
    assert in_force(unreviewed_answers) == [("thumb", True)]


def test_whatever_was_done_can_be_taken_back(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent, labels=("topic=billing|other",), tags=("rude",))
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    labels = labels_of(queue, ["topic=billing"])
    everything = RaterVerdict(
        thumb=False,
        rating=2,
        labels=labels,
        tags=("rude",),
        correction="Better.",
        note="Look here",
    )
    rated(unreviewed_answers, queue, item.id, "anna", everything, "k1")
    assert in_force(unreviewed_answers) == [
        ("correction", "Better."),
        ("label", "billing"),
        ("label", True),
        ("rating", 2),
        ("thumb", False),
    ]
    undo(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k2"))
    undo(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k2"))
    assert in_force(unreviewed_answers) == []
    assert next_items(unreviewed_answers, queue, "anna").items[0].id == item.id
    # the first request comes again, late: it has been carried out, and stays taken back
    assert rated(unreviewed_answers, queue, item.id, "anna", everything, "k1").replayed
    assert in_force(unreviewed_answers) == []
    rated(unreviewed_answers, queue, item.id, "anna", UP, "k3")
    rated(unreviewed_answers, queue, item.id, "anna", DOWN, "k4")
    assert in_force(unreviewed_answers) == [("thumb", False)]
    assert require_queue(unreviewed_answers, agent, "q").done == 1
    with pytest.raises(Conflict, match="neither rated nor skipped"):
        undo(unreviewed_answers, agent, RatingRequest(queue, item.id, "ben", "k5"))


def test_skipping_leaves_an_item_to_others(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent)
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    skip(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k1"))
    everything = next_items(unreviewed_answers, queue, "anna", 100).items
    assert item.id not in {other.id for other in everything}
    assert next_items(unreviewed_answers, queue, "ben", 100).items[0].id == item.id
    with pytest.raises(Conflict, match="somebody else has it by now"):
        undo(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k2"))
    assert in_force(unreviewed_answers) == []


def test_what_was_skipped_can_be_had_again_unless_others_took_it(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent)
    items = next_items(unreviewed_answers, queue, "anna", 100).items
    for item in items:
        skip(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", f"skip {item.id}"))
    batch = next_items(unreviewed_answers, queue, "anna", 100)
    assert (batch.items, batch.skipped) == ([], 2 * TRACES)
    (lost,) = next_items(unreviewed_answers, queue, "ben").items
    assert next_items(unreviewed_answers, queue, "anna").skipped == 2 * TRACES - 1
    assert return_skipped(unreviewed_answers, queue, "anna") == 2 * TRACES - 1
    batch = next_items(unreviewed_answers, queue, "anna", 100)
    assert [item.id for item in batch.items] == [item.id for item in items if item.id != lost.id]
    assert batch.skipped == 0
    with pytest.raises(Conflict, match="neither rated nor skipped"):
        undo(unreviewed_answers, agent, RatingRequest(queue, lost.id, "anna", "too late"))
    for item in batch.items:
        rated(unreviewed_answers, queue, item.id, "anna")
    assert require_queue(unreviewed_answers, agent, "q").done == 2 * TRACES - 1


def test_comparisons_are_blind_and_turned_around(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent, Origin.COMPARISONS, overlap=2)
    assert queue.items == TRACES
    (first,) = next_items(unreviewed_answers, queue, "anna").items
    (second,) = next_items(unreviewed_answers, queue, "ben").items
    assert first.id == second.id
    assert list(first.answers) == list(second.answers)[::-1]
    with unreviewed_answers.db.read() as connection:
        trace_ids = set(connection.execute(sa.select(schema.traces.c.id)).scalars())
    assert not [name for name in trace_ids if name in str(first.to_json())]
    rated(unreviewed_answers, queue, first.id, "anna", RaterVerdict(ranking=ranking_of("A>B", 2)))
    rated(unreviewed_answers, queue, first.id, "ben", RaterVerdict(ranking=ranking_of("A=B", 2)))
    stored = {
        tuple(_texts(unreviewed_answers, row["targets"])): row["value"]
        for row in list_feedback(unreviewed_answers, AGENT)
    }
    assert stored == {
        tuple(first.answers): {"ranking": [[0], [1]]},
        tuple(second.answers): {"ranking": [[0, 1]]},
    }
    with pytest.raises(InputError, match="asks for a ranking"):
        rated(unreviewed_answers, queue, first.id, "anna", UP, "k9")


def _texts(ws: Workspace, targets: list[dict[str, Any]]) -> list[str]:
    query = sa.select(schema.traces.c.id, schema.traces.c.output)
    with ws.db.read() as connection:
        outputs = dict(connection.execute(query).tuples().all())
    return [outputs[target["target_id"]] for target in targets]


def test_only_a_review_makes_gold(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent, Origin.CASES)
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    assert item.answers == ["x"]
    with pytest.raises(InputError, match="are cases"):
        rated(unreviewed_answers, queue, item.id, "anna")
    approve(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k1"), reference="4")
    counts, cases = list_cases(unreviewed_answers, AGENT)
    assert counts == {"feedback": 1, "gold": 1}
    (gold,) = [case for case in cases if case["basis"] == "gold"]
    assert (gold["reference"], gold["reviewer"]) == ("4", "anna")
    withdraw(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k2"))
    assert list_cases(unreviewed_answers, AGENT)[0] == {"feedback": 2}
    assert next_items(unreviewed_answers, queue, "anna").items[0].id == item.id


def test_an_answer_becomes_gold_as_it_is_or_edited(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent)
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    approve(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k1"))
    _, (case,) = list_cases(unreviewed_answers, AGENT, basis="gold")
    assert case["reference"] == item.answers[0]
    with pytest.raises(Conflict, match="it was approved"):
        undo(unreviewed_answers, agent, RatingRequest(queue, item.id, "anna", "k2"))


def test_assigned_raters_and_closed_queues(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent, raters=("anna", "ben"), overlap=2)
    assert require_queue(unreviewed_answers, agent, "q").config.raters == ("anna", "ben")
    with pytest.raises(Forbidden, match="assigned to anna, ben"):
        next_items(unreviewed_answers, queue, "carl")
    with pytest.raises(Conflict, match="one of that name"):
        new_queue(unreviewed_answers, agent)
    (item,) = next_items(unreviewed_answers, queue, "anna").items
    closed = close(unreviewed_answers, agent, queue)
    with pytest.raises(Conflict, match="closed"):
        next_items(unreviewed_answers, closed, "anna")
    rated(unreviewed_answers, closed, item.id, "anna")
    assert in_force(unreviewed_answers) == [("thumb", True)]
    assert all_queues(unreviewed_answers, agent) == []
    assert len(all_queues(unreviewed_answers, agent, every=True)) == 1


def test_conflicts_make_a_queue(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent, overlap=2)
    for item in next_items(unreviewed_answers, queue, "anna", 4).items:
        rated(unreviewed_answers, queue, item.id, "anna", UP)
    items = next_items(unreviewed_answers, queue, "ben", 4).items
    for number, item in enumerate(items):
        rated(unreviewed_answers, queue, item.id, "ben", UP if number else DOWN)
    result = report(unreviewed_answers, queue)
    assert list(result.conflicts) == [items[0].id]
    assert [rater.rated for rater in result.raters] == [4, 4]
    assert [(week.agreed, week.compared) for week in result.raters[0].weeks] == [(3, 4)]
    again = create(
        unreviewed_answers, agent, "again", QueueConfig(), QueueSelection(differing=queue)
    )
    assert (again.items, again.kind) == (1, queue.kind)
    disputed = create(
        unreviewed_answers, agent, "all", QueueConfig(), QueueSelection(Origin.CONFLICTS)
    )
    assert disputed.items == 1


def test_what_people_said_or_a_text_makes_a_queue(
    unreviewed_answers: Workspace, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_queries, "WINDOWS", (5,))
    queue = new_queue(unreviewed_answers, agent)
    items = next_items(unreviewed_answers, queue, "anna", 2 * TRACES).items
    for number, item in enumerate(items):
        rated(unreviewed_answers, queue, item.id, "anna", DOWN if number in (3, 20) else UP)
    disliked = create(
        unreviewed_answers, agent, "disliked", QueueConfig(), QueueSelection(traces=BAD)
    )
    answers = [item.answers for item in next_items(unreviewed_answers, disliked, "ben", 100).items]
    assert answers == [items[3].answers, items[20].answers]

    wanted = TraceFilter(text="question 7")
    few = create(unreviewed_answers, agent, "few", QueueConfig(), QueueSelection(traces=wanted))
    answers_of_few = {
        item.answers[0] for item in next_items(unreviewed_answers, few, "ben", 100).items
    }
    assert answers_of_few == {"Answer a to 7", "Answer b to 7"}
    with pytest.raises(DataError, match="none of what is recorded"):
        create(
            unreviewed_answers,
            agent,
            "none",
            QueueConfig(),
            QueueSelection(traces=TraceFilter(version=3)),
        )
    single = create(
        unreviewed_answers, agent, "single", QueueConfig(), QueueSelection(traces=BAD, most=1)
    )
    assert [
        item.answers for item in next_items(unreviewed_answers, single, "ben", 9).items
    ] == answers[:1]


def test_an_active_queue_begins_with_what_people_differ_on(
    unreviewed_answers: Workspace, agent: Agent
) -> None:
    queue = new_queue(unreviewed_answers, agent, overlap=2)
    (item,) = next_items(unreviewed_answers, queue, "anna", 1).items
    rated(unreviewed_answers, queue, item.id, "anna", UP)
    rated(unreviewed_answers, queue, item.id, "ben", DOWN)
    active = create(
        unreviewed_answers, agent, "active", QueueConfig(order="active"), QueueSelection()
    )
    (first,) = next_items(unreviewed_answers, active, "carl").items
    assert first.answers == item.answers
    assert reorder(unreviewed_answers, agent, active) == "unlike those before"
    assert len(next_items(unreviewed_answers, active, "dora", 100).items) == 2 * TRACES - 1


def test_traces_are_added_once(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = create(unreviewed_answers, agent, "few", QueueConfig(), QueueSelection(most=2))
    assert queue.items == 2
    assert add(unreviewed_answers, agent, queue, ["t3a", "t3a", "t4b"]) == 2
    assert add(unreviewed_answers, agent, queue, ["t3a"]) == 0
    assert require_queue(unreviewed_answers, agent, "few").items == 4
    with pytest.raises(NotFound, match="none of that id"):
        add(unreviewed_answers, agent, queue, ["nothing"])


def test_an_erased_subject_is_in_no_queue(unreviewed_answers: Workspace, agent: Agent) -> None:
    queue = new_queue(unreviewed_answers, agent, overlap=2, raters=("carla", "ben", "dora"))
    items = next_items(unreviewed_answers, queue, "ben", 100).items
    for item in items:
        rated(unreviewed_answers, queue, item.id, "ben")
    for item in next_items(unreviewed_answers, queue, "carla", 3).items:
        rated(unreviewed_answers, queue, item.id, "carla")
    erase(unreviewed_answers, agent, "carla")
    left = require_queue(unreviewed_answers, agent, "q")
    assert left.items == 2 * TRACES - 2
    assert left.config.raters == ("ben", "dora")
    with unreviewed_answers.db.read() as connection:
        for table in (schema.review_actions, schema.review_assignments, schema.review_raters):
            raters = set(connection.execute(sa.select(table.c.rater)).scalars())
            assert "carla" not in raters
    gone = [item.id for item in items if " to 0" in item.answers[0]]
    assert len(gone) == 2
    with pytest.raises(NotFound, match="may be erased"):
        rated(unreviewed_answers, queue, gone[0], "ben", UP, "late")
