"""The ledger: what is known is not judged again, what changes is, failures are data, and the past
can be computed again."""

from __future__ import annotations

import json
import time
import tracemalloc
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Config, Home, Sources
from thumbwheel.core.errors import NotFound
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import MOST_MATES, stored_cases
from thumbwheel.rewards.component import Component, components, time_limit
from thumbwheel.rewards.explain import explain
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status
from thumbwheel.rewards.ledger_stats import missing_values, reward_summary, reweigh

AGENT = "support"
EVERY_FIELD = (
    "text",
    "reference",
    "prompt",
    "steps",
    "finish",
    "status",
    "metadata",
    "feedback",
    "mates",
    "occurred_at",
    "as_of",
)


class World:
    """A home, and lines that are imported as a user imports them."""

    def __init__(self, folder, settings=None):
        self.folder, self.files = folder, 0
        self.ws = Workspace.open(
            Home.at(folder / "home"), Sources({"rewards": settings or {}}, "test.yaml", {})
        )

    def add(self, *lines):
        self.files += 1
        path = self.folder / f"{self.files}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = ingest(self.ws, AGENT, "jsonl", path)
        assert report.refused == 0, report.refusals
        time.sleep(0.002)  # what comes next has a later time
        return datetime.now(UTC)

    def configure(self, settings):
        self.ws.sources = Sources({"rewards": settings}, "test.yaml", {})

    @property
    def config(self):
        return ledger.settings(self.ws, AGENT)

    def run(self, **options):
        return ledger.run(self.ws, AGENT, components(self.ws, AGENT, self.config), **options)

    def rewards(self, as_of=None):
        with self.ws.db.read() as connection:
            parts = components(self.ws, AGENT, self.config)
            found = list(ledger.rewards(connection, AGENT, self.config, parts, as_of))
            names = dict(
                connection.execute(sa.select(schema.traces.c.id, schema.traces.c.external_id))
                .tuples()
                .all()
            )
        return {names[one.target_id]: one for one in found}

    def rows(self, **where):
        with self.ws.db.read() as connection:
            rows = connection.execute(sa.select(schema.rewards)).mappings().all()
        return [row for row in rows if all(row[key] == value for key, value in where.items())]


@pytest.fixture
def world(tmp_path):
    made = []

    def make(settings=None):
        made.append(World(tmp_path, settings))
        return made[-1]

    yield make
    for one in made:
        one.ws.db.close()


def trace(name, text="hello there", **more):
    return {
        "type": "trace",
        "id": name,
        "input": more.pop("asked", f"question {name}"),
        "output": text,
        **more,
    }


def said(kind, value, target, **more):
    return {
        "type": "feedback",
        "kind": kind,
        "value": value,
        "target": {"trace": target},
        "rater": "r1",
        **more,
    }


CASE = {"type": "case", "id": "c1", "input": "3 + 4?", "reference": "7"}


def test_a_run_judges_and_a_second_one_finds_everything_there(world):
    one = world()
    one.add(
        CASE,
        trace("t1", "A: 7", case="c1"),
        trace("t2"),
        said("thumb", True, "t1"),
        said("rating", 2, "t2"),
    )
    first = one.run()
    assert (first.traces, first.rewarded) == (2, 2)
    assert first.judged.total() == 2 * len(one.config.parts()) == len(one.rows())
    found = one.rewards()
    assert {
        name: score.value for name, score in found["t1"].scores.items() if score.value is not None
    } == {"checker": 1.0, "thumb": 1.0}
    assert (found["t1"].value, found["t2"].value) == (1.0, 0.25)
    again = one.run()
    assert (again.judged.total(), again.rewarded) == (0, 0)
    assert again.standing.total() == first.judged.total()


def test_late_feedback_judges_again_only_what_reads_it(world):
    one = world()
    one.add(trace("t1"), trace("t2"), said("thumb", False, "t1"))
    one.run()
    before = one.rewards()
    one.add(said("rating", 5, "t1"))
    late = one.run()
    assert dict(late.judged) == {"rating": 1}
    after = one.rewards()
    assert (before["t1"].value, after["t1"].value) == (0.0, 0.5)
    old, new = sorted(
        one.rows(target_id=after["t1"].target_id, component="rating"),
        key=lambda row: row["recorded_at"],
    )
    assert [(row["current"], row["status"], row["value"]) for row in (old, new)] == [
        (False, "not_applicable", None),
        (True, "ok", 1.0),
    ]


def test_defect_2c10_late_feedback_changes_a_reward_that_was_there(world):
    one = world({"preset": "ocd"})
    decision = {"decision": {"agent_type": "LIBRARIAN", "confidence": 0.9}}
    one.add(trace("d1", "[]", metadata=decision))
    one.run()
    assert one.rewards()["d1"].value is None
    assert one.rewards()["d1"].statuses == {"decision": "pending"}
    assert [(row["value"], row["status"]) for row in one.rows()] == [(None, "pending")]
    one.add(said("label", "CONFIRMED", "d1", name="user_feedback"))
    assert one.run().rewarded == 1
    assert one.rewards()["d1"].value == pytest.approx(0.75)
    one.add(said("outcome", True, "d1", name="conflictPrevented", rater="nightly job"))
    assert one.run().rewarded == 0
    assert one.rewards()["d1"].value == pytest.approx(1.25)


def test_defect_2c11_a_retriever_without_an_item_is_not_left_out_of_pending(world):
    one = world({"preset": "ocd"})
    metadata = {"decision": {"agent_type": "RETRIEVER", "confidence": 0.4}}
    one.add(
        trace("d1", None, metadata=metadata),
        trace("d2", None, metadata=metadata),
        said("label", "CONFIRMED", "d1", name="feedback"),
    )
    one.run()
    assert {name: found.value for name, found in one.rewards().items()} == {"d1": 0.75, "d2": None}
    (waiting,) = missing_values(one.ws, AGENT)
    assert (waiting["component"], waiting["status"], waiting["count"]) == ("decision", "pending", 1)


def test_taken_back_feedback_finds_the_row_of_before(world):
    one = world()
    one.add(trace("t1"))
    one.run()
    one.add(said("thumb", True, "t1", id="f1"))
    one.run()
    one.add(
        {
            "type": "feedback",
            "kind": "thumb",
            "value": True,
            "retracts": "f1",
            "rater": "r1",
            "target": {"trace": "t1"},
        }
    )
    back = one.run()
    assert back.judged.total() == 0
    assert one.rewards()["t1"].value is None
    assert [
        row["current"]
        for row in sorted(one.rows(component="thumb"), key=lambda row: row["recorded_at"])
    ] == [True, False]


def test_a_run_as_of_a_time_gives_what_it_gave_then_and_leaves_today_alone(world):
    one = world()
    then = one.add(trace("t1"), said("thumb", False, "t1"))
    one.run()
    held = one.rewards()["t1"].value
    one.add(trace("t2"), said("thumb", True, "t1", rater="r2"), said("rating", 5, "t2"))
    one.run()
    today = {name: found.value for name, found in one.rewards().items()}
    assert (held, today) == (0.0, {"t1": 0.5, "t2": 1.0})
    assert {name: found.value for name, found in one.rewards(then).items()} == {"t1": held}
    assert one.run(as_of=then).judged.total() == 0
    between = one.add(said("thumb", True, "t1", rater="r3"))
    fresh = one.run(as_of=between)
    assert dict(fresh.judged) == {"thumb": 1}
    assert {name: found.value for name, found in one.rewards().items()} == today
    assert one.rewards(between)["t1"].value == pytest.approx(2 / 3)
    assert one.run().judged.total() == 0
    assert one.rewards()["t1"].value == pytest.approx(2 / 3)


def test_the_feedback_of_a_trace_that_comes_late_does_not_take_that_of_others_away(world):
    one = world()
    one.add(
        *[trace(f"t{number}") for number in range(6)],
        *[said("thumb", True, f"t{number}") for number in range(6)],
    )
    then = one.add(*[said("thumb", False, f"late{number}") for number in range(6)])
    assert one.run(as_of=then).statuses["thumb", "ok"] == 6
    held = {name: found.value for name, found in one.rewards(then).items()}
    one.add(*[trace(f"late{number}") for number in range(6)])
    assert held == {f"t{number}": 1.0 for number in range(6)}
    assert {name: found.value for name, found in one.rewards(then).items()} == held
    assert one.run(as_of=then).judged.total() == 0
    one.run()
    assert {name: found.value for name, found in one.rewards().items()} == held | {
        f"late{number}": 0.0 for number in range(6)
    }


def test_other_settings_are_another_version_and_other_weights_are_not(world):
    part = {"preset": "none", "components": {"length": {"settings": {"most": 1}}}}
    one = world(part)
    one.add(trace("t1", "one two"))
    one.run()
    assert one.rewards()["t1"].value == 0.0
    one.configure(
        {"preset": "none", "components": {"length": {"weight": 7, "settings": {"most": 1}}}}
    )
    assert one.run().judged.total() == 0
    one.configure({"preset": "none", "components": {"length": {"settings": {"most": 2}}}})
    assert one.rewards() == {}
    assert one.run().judged.total() == 1
    assert one.rewards()["t1"].value == 1.0
    one.configure(part)
    assert one.run().judged.total() == 0
    assert one.rewards()["t1"].value == 0.0


class Trying(RewardFunction[Config]):
    Config = Config
    reads = frozenset({"text"})
    calls = 0

    def judge(self, case):
        type(self).calls += 1
        if case.text == "raise":
            raise ZeroDivisionError("by nothing")
        if case.text == "exit":
            raise SystemExit(0)
        while case.text == "loop":
            pass
        if case.text == "blocked":
            return Score.none(Status.BLOCKED, "no sandbox")
        return Score(0.5, evidence={"odd": datetime(2026, 1, 5, tzinfo=UTC), "nan": float("nan")})


class Together(Trying):
    def score(self, cases):
        if any(case.text == "short" for case in cases):
            return []
        return [Score(2.0) for _ in cases]


def test_what_raises_exits_or_never_ends_is_failed_and_the_others_are_judged(world):
    one = world()
    one.add(*(trace(name, name) for name in ("fine", "raise", "exit", "loop", "blocked")))
    report = ledger.run(one.ws, AGENT, [Component("trying", Trying.create({}), "v1", 0.2)])
    assert {status: count for (_, status), count in report.statuses.items()} == {
        "ok": 1,
        "failed": 3,
        "blocked": 1,
    }
    assert sorted(reason.split(":")[0] for _, _, reason in report.reasons) == [
        "SystemExit",
        "TimeoutError",
        "ZeroDivisionError",
        "no sandbox",
    ]
    assert all(row["value"] is None for row in one.rows() if row["status"] != "ok")
    assert next(row for row in one.rows(status="ok"))["evidence"] == {
        "odd": "2026-01-05 00:00:00+00:00",
        "nan": "NaN",
    }


def test_blocked_is_tried_again_and_failed_on_demand(world):
    one = world()
    one.add(trace("a", "raise"), trace("b", "blocked"), trace("c", "fine"))
    parts = [Component("trying", Trying.create({}), "v1", 5)]
    ledger.run(one.ws, AGENT, parts)
    assert ledger.run(one.ws, AGENT, parts).judged.total() == 1
    assert ledger.run(one.ws, AGENT, parts, retry=True).judged.total() == 2
    assert len(one.rows()) == 3


@pytest.mark.parametrize("text", ["short", "too much"])
def test_a_function_that_judges_together_is_held_to_number_and_range(world, text):
    one = world()
    one.add(trace("a", text), trace("b", "fine"))
    report = ledger.run(one.ws, AGENT, [Component("together", Together.create({}), "v1", 5)])
    assert dict(report.statuses) == {("together", "failed"): 2}


def test_a_limit_of_time_leaves_no_alarm_behind():
    import signal

    with pytest.raises(TimeoutError, match=r"0\.05 s"), time_limit() as bell:
        bell(0.05)
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_answer_that_was_not_recorded_is_not_an_empty_one(world):
    one = world({"preset": "none", "components": {"length": {}, "thumb": {}}})
    one.add(trace("t1", None), trace("t2", ""), said("thumb", True, "t1"))
    one.run()
    found = one.rewards()
    assert found["t1"].statuses == {"length": "not_applicable", "thumb": "ok"}
    assert found["t2"].scores["length"].value == 0.0


def test_a_dry_run_counts_and_stores_nothing(world):
    one = world()
    one.add(trace("t1"), said("thumb", True, "t1"))
    report = one.run(dry_run=True)
    assert report.judged.total() == len(one.config.parts())
    assert one.rows() == []


def test_a_case_carries_everything_that_was_stored(world):
    one = world()
    steps = [
        {"kind": "tool", "name": "search", "input": {"q": 1}, "output": "x", "status": "error"},
        {
            "kind": "llm",
            "finish_reason": "length",
            "tokens": {"prompt": 5, "completion": 7},
            "started_at": "2026-01-05T08:00:00Z",
            "ended_at": "2026-01-05T08:00:02Z",
        },
    ]
    first = trace(
        "t1",
        "A: 7",
        case="c1",
        asked="3 + 4?",
        steps=steps,
        occurred_at="2026-01-05T08:00:00Z",
        metadata={"tier": 1, "checker": "regex"},
        status="error",
    )
    one.add(
        CASE,
        first,
        trace("t2", "A: 8", asked="3 + 4?"),
        trace("t3", None, asked="3 + 4?"),
        said("thumb", True, "t1", occurred_at="2026-01-06T00:00:00Z"),
    )
    with one.ws.db.read() as connection:
        cases = {
            found.case.text: found
            for batch in stored_cases(connection, AGENT, EVERY_FIELD)
            for found in batch
        }
    case = cases["A: 7"].case
    assert (case.reference, case.metadata) == (
        "7",
        {"tier": 1, "checker": None, "checker_config": None},
    )
    assert [message["content"] for message in case.prompt] == ["3 + 4?"]
    assert [(step.kind, step.name, step.status, step.seconds) for step in case.steps] == [
        ("tool", "search", "error", None),
        ("llm", None, "ok", 2.0),
    ]
    assert (case.steps[1].prompt_tokens, case.steps[0].prompt_tokens) == (5, None)
    assert (case.finish, case.status, case.mates) == ("length", "error", ("A: 8",))
    assert [(one.kind, one.value) for one in case.feedback] == [("thumb", True)]
    assert case.occurred_at == datetime(2026, 1, 5, 8, tzinfo=UTC)
    assert case.as_of is not None
    assert (cases["A: 8"].case.mates, cases[""].answered) == (("A: 7",), False)
    assert (
        cases["A: 8"].case.metadata == {}
    )  # a trace cannot name its own checker, not even by its metadata


def test_mates_are_a_bounded_number_of_other_answers(world):
    one = world()
    one.add(
        *(trace(f"t{place}", f"answer {place}", asked="same") for place in range(MOST_MATES + 5))
    )
    with one.ws.db.read() as connection:
        cases = [
            found.case
            for batch in stored_cases(connection, AGENT, ("text", "mates"))
            for found in batch
        ]
    assert {len(case.mates) for case in cases} == {MOST_MATES}
    assert all(case.text not in case.mates for case in cases)


def test_more_traces_than_a_batch_keep_their_feedback_apart(world, monkeypatch):
    monkeypatch.setattr("thumbwheel.rewards.cases.BATCH", 7)
    one = world()
    one.add(
        *(trace(f"t{place}", asked=f"q{place % 5}") for place in range(40)),
        *(said("rating", 1 + place % 5, f"t{place}") for place in range(0, 40, 3)),
    )
    one.run()
    found = one.rewards()
    assert {name: one.value for name, one in found.items()} == {
        f"t{place}": None if place % 3 else (place % 5) / 4 for place in range(40)
    }


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_traces(world):
    one = world()

    def peak():
        tracemalloc.start()
        one.run(dry_run=True)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    text = "word " * 200
    one.add(*(trace(f"a{place}", text + str(place)) for place in range(1500)))
    few = peak()
    one.add(*(trace(f"b{place}", text + str(place)) for place in range(3000)))
    assert peak() < 1.2 * few


def test_reweighing_runs_nothing_and_says_what_would_change(world):
    one = world()
    one.add(
        trace("t1"),
        trace("t2"),
        said("thumb", True, "t1"),
        said("rating", 1, "t1"),
        said("thumb", True, "t2"),
    )
    one.run()
    rows = one.rows()
    found = reweigh(one.ws, AGENT, {"thumb": 3.0})
    assert (
        found["before"]["mean"],
        found["after"]["mean"],
        found["changed"],
        found["now_good"],
    ) == (0.75, 0.875, 1, 1)
    assert one.rows() == rows
    one.configure({"agents": {AGENT: {"components": {"thumb": {"weight": 3}}}}})
    assert one.rewards()["t1"].value == 0.75
    assert one.run().judged.total() == 0
    with pytest.raises(NotFound, match="no_such"):
        reweigh(one.ws, AGENT, {"no_such": 1.0})


def test_an_explanation_names_value_weight_evidence_and_feedback(world):
    one = world()
    one.add(CASE, trace("t1", "A: 8", case="c1"), said("thumb", True, "t1"))
    one.run()
    found = explain(one.ws, AGENT, "t1")
    (row,) = one.rows(component="thumb")
    parts = found.as_dict()["components"]
    assert found.as_dict()["reward"] == pytest.approx(1 / 3)
    assert parts["checker"]["evidence"] == {
        "checker": "exact_answer",
        "found": "8",
        "expected": "7",
        "mark": "line",
    }
    assert parts["thumb"]["feedback_ids"] == row["evidence"]["feedback_ids"]
    assert parts["rating"] == {
        "weight": 1.0,
        "value": None,
        "status": "not_applicable",
        "evidence": {"reason": "nobody gave a rating"},
        "counts_as": None,
        "in_decision": False,
        "feedback_ids": [],
        "outdated": False,
    }
    words = "\n".join(found.to_words())
    assert words.startswith("t1: reward 0.3333"), "by the name that the user gave"
    assert "(2 x 0 + 1 x 1) / 3" in words
    assert "rating (weight 1): not applicable: nobody gave a rating" in words
    one.add(said("rating", 5, "t1"))
    late = explain(one.ws, AGENT, "t1")
    assert late.as_dict()["reward"] == one.rewards()["t1"].value, (
        "as every other command has it, until the next run"
    )
    assert {name for name, part in late.as_dict()["components"].items() if part["outdated"]} == {
        "rating"
    }
    assert "judged before its feedback or its case changed" in "\n".join(late.to_words())
    with pytest.raises(NotFound, match="no-such"):
        explain(one.ws, AGENT, "no-such")


def test_a_survey_counts_statuses_and_shows_the_lowest(world):
    one = world()
    one.add(
        *(trace(f"t{place}") for place in range(6)),
        *(said("rating", 1 + place, f"t{place}") for place in range(5)),
    )
    one.run()
    found = reward_summary(one.ws, AGENT, lowest=2)
    assert found["components"]["rating"] == {
        "weight": 1.0,
        "mean": 0.5,
        "statuses": {"ok": 5, "not_applicable": 1},
        "not_judged": 0,
    }
    assert found["reward"] == {
        "n": 5,
        "mean": 0.5,
        "least": 0.0,
        "most": 1.0,
        "good": 2,
        "good_from": 0.6,
    }
    assert [one["reward"] for one in found["lowest"]] == [0.0, 0.25]
    one.add(trace("late"))
    assert reward_summary(one.ws, AGENT)["components"]["rating"]["not_judged"] == 1


def test_the_checker_of_a_case_that_nobody_has_is_blocked_and_its_settings_count(world):
    one = world()
    pattern = {
        "type": "case",
        "id": "c2",
        "input": "x",
        "checker": "regex",
        "checker_config": {"pattern": "^yes"},
    }
    one.add(
        {**CASE, "checker": "no_such"},
        pattern,
        trace("t1", "7", case="c1"),
        trace("t2", "yes", case="c2"),
        trace("t3", "7", case="gone"),
    )
    one.run()
    scores = {name: found.scores["checker"] for name, found in one.rewards().items()}
    assert (scores["t1"].status, scores["t2"].value, scores["t3"].status) == (
        Status.BLOCKED,
        1.0,
        Status.NOT_APPLICABLE,
    )


def test_inputs_are_the_fingerprint_of_what_is_read_and_of_nothing_else(world):
    part = components(world().ws, AGENT, ledger.settings(world().ws, AGENT), ["edit_distance"])[0]
    from thumbwheel.rewards.cases import StoredCase

    first = part.inputs(StoredCase(Case("a", metadata={"x": 1}, as_of=datetime.now(UTC)), True))
    assert first == part.inputs(StoredCase(Case("a", metadata={"x": 2}, steps=()), True))
    assert first != part.inputs(StoredCase(Case("b"), True))
