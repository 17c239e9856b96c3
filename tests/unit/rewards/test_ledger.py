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
from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import MOST_MATES, stored_cases
from thumbwheel.rewards.component import Component, components, time_limit
from thumbwheel.rewards.explain import explain
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
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


class LedgerWorld:
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
        return ledger.run(
            self.ws, Agent.named(AGENT), components(self.ws, AGENT, self.config), **options
        )

    def rewards(self, as_of=None):
        with self.ws.db.read() as connection:
            parts = components(self.ws, AGENT, self.config)
            combined = list(
                ledger.rewards(connection, Agent.named(AGENT), self.config, parts, as_of)
            )
            names = dict(
                connection.execute(sa.select(schema.traces.c.id, schema.traces.c.external_id))
                .tuples()
                .all()
            )
        return {names[reward.target_id]: reward for reward in combined}

    def rows(self, **where):
        with self.ws.db.read() as connection:
            rows = connection.execute(sa.select(schema.rewards)).mappings().all()
        return [row for row in rows if all(row[key] == value for key, value in where.items())]


@pytest.fixture
def make_ledger(tmp_path):
    worlds = []

    def make(settings=None):
        worlds.append(LedgerWorld(tmp_path, settings))
        return worlds[-1]

    yield make
    for opened in worlds:
        opened.ws.db.close()


def trace(name, text="hello there", **more):
    return {
        "type": "trace",
        "id": name,
        "input": more.pop("asked", f"question {name}"),
        "output": text,
        **more,
    }


def feedback_line(kind, value, target, **more):
    return {
        "type": "feedback",
        "kind": kind,
        "value": value,
        "target": {"trace": target},
        "rater": "r1",
        **more,
    }


CASE = {"type": "case", "id": "c1", "input": "3 + 4?", "reference": "7"}


def test_a_run_judges_and_a_second_one_finds_everything_there(make_ledger):
    home = make_ledger()
    home.add(
        CASE,
        trace("t1", "A: 7", case="c1"),
        trace("t2"),
        feedback_line("thumb", True, "t1"),
        feedback_line("rating", 2, "t2"),
    )
    first = home.run()
    assert (first.traces, first.rewarded) == (2, 2)
    assert first.judged.total() == 2 * len(home.config.parts()) == len(home.rows())
    rewards = home.rewards()
    assert {
        name: score.value for name, score in rewards["t1"].scores.items() if score.value is not None
    } == {"checker": 1.0, "thumb": 1.0}
    assert (rewards["t1"].value, rewards["t2"].value) == (1.0, 0.25)
    again = home.run()
    assert (again.judged.total(), again.rewarded) == (0, 0)
    assert again.standing.total() == first.judged.total()


def test_late_feedback_judges_again_only_what_reads_it(make_ledger):
    home = make_ledger()
    home.add(trace("t1"), trace("t2"), feedback_line("thumb", False, "t1"))
    home.run()
    before = home.rewards()
    home.add(feedback_line("rating", 5, "t1"))
    late = home.run()
    assert dict(late.judged) == {"rating": 1}
    after = home.rewards()
    assert (before["t1"].value, after["t1"].value) == (0.0, 0.5)
    old, new = sorted(
        home.rows(target_id=after["t1"].target_id, component="rating"),
        key=lambda row: row["recorded_at"],
    )
    assert [(row["current"], row["status"], row["value"]) for row in (old, new)] == [
        (False, "not_applicable", None),
        (True, "ok", 1.0),
    ]


def test_defect_2c10_late_feedback_changes_a_reward_that_was_there(make_ledger):
    home = make_ledger({"preset": "ocd"})
    decision = {"decision": {"agent_type": "LIBRARIAN", "confidence": 0.9}}
    home.add(trace("d1", "[]", metadata=decision))
    home.run()
    assert home.rewards()["d1"].value is None
    assert home.rewards()["d1"].statuses == {"decision": "pending"}
    assert [(row["value"], row["status"]) for row in home.rows()] == [(None, "pending")]
    home.add(feedback_line("label", "CONFIRMED", "d1", name="user_feedback"))
    assert home.run().rewarded == 1
    assert home.rewards()["d1"].value == pytest.approx(0.75)
    home.add(feedback_line("outcome", True, "d1", name="conflictPrevented", rater="nightly job"))
    assert home.run().rewarded == 0
    assert home.rewards()["d1"].value == pytest.approx(1.25)


def test_defect_2c11_a_retriever_without_an_item_is_not_left_out_of_pending(make_ledger):
    home = make_ledger({"preset": "ocd"})
    metadata = {"decision": {"agent_type": "RETRIEVER", "confidence": 0.4}}
    home.add(
        trace("d1", None, metadata=metadata),
        trace("d2", None, metadata=metadata),
        feedback_line("label", "CONFIRMED", "d1", name="feedback"),
    )
    home.run()
    assert {name: reward.value for name, reward in home.rewards().items()} == {
        "d1": 0.75,
        "d2": None,
    }
    (waiting,) = missing_values(home.ws, AGENT)
    assert (waiting.component, waiting.status, waiting.count) == ("decision", "pending", 1)


def test_taken_back_feedback_finds_the_row_of_before(make_ledger):
    home = make_ledger()
    home.add(trace("t1"))
    home.run()
    home.add(feedback_line("thumb", True, "t1", id="f1"))
    home.run()
    home.add(
        {
            "type": "feedback",
            "kind": "thumb",
            "value": True,
            "retracts": "f1",
            "rater": "r1",
            "target": {"trace": "t1"},
        }
    )
    back = home.run()
    assert back.judged.total() == 0
    assert home.rewards()["t1"].value is None
    assert [
        row["current"]
        for row in sorted(home.rows(component="thumb"), key=lambda row: row["recorded_at"])
    ] == [True, False]


def test_a_run_as_of_a_time_gives_what_it_gave_then_and_leaves_today_alone(make_ledger):
    home = make_ledger()
    then = home.add(trace("t1"), feedback_line("thumb", False, "t1"))
    home.run()
    held = home.rewards()["t1"].value
    home.add(
        trace("t2"),
        feedback_line("thumb", True, "t1", rater="r2"),
        feedback_line("rating", 5, "t2"),
    )
    home.run()
    today = {name: reward.value for name, reward in home.rewards().items()}
    assert (held, today) == (0.0, {"t1": 0.5, "t2": 1.0})
    assert {name: reward.value for name, reward in home.rewards(then).items()} == {"t1": held}
    assert home.run(as_of=then).judged.total() == 0
    between = home.add(feedback_line("thumb", True, "t1", rater="r3"))
    fresh = home.run(as_of=between)
    assert dict(fresh.judged) == {"thumb": 1}
    assert {name: reward.value for name, reward in home.rewards().items()} == today
    assert home.rewards(between)["t1"].value == pytest.approx(2 / 3)
    assert home.run().judged.total() == 0
    assert home.rewards()["t1"].value == pytest.approx(2 / 3)


def test_the_feedback_of_a_trace_that_comes_late_does_not_take_that_of_others_away(make_ledger):
    home = make_ledger()
    home.add(
        *[trace(f"t{number}") for number in range(6)],
        *[feedback_line("thumb", True, f"t{number}") for number in range(6)],
    )
    then = home.add(*[feedback_line("thumb", False, f"late{number}") for number in range(6)])
    assert home.run(as_of=then).statuses["thumb", "ok"] == 6
    held = {name: reward.value for name, reward in home.rewards(then).items()}
    home.add(*[trace(f"late{number}") for number in range(6)])
    assert held == {f"t{number}": 1.0 for number in range(6)}
    assert {name: reward.value for name, reward in home.rewards(then).items()} == held
    assert home.run(as_of=then).judged.total() == 0
    home.run()
    assert {name: reward.value for name, reward in home.rewards().items()} == held | {
        f"late{number}": 0.0 for number in range(6)
    }


def test_other_settings_are_another_version_and_other_weights_are_not(make_ledger):
    part = {"preset": "none", "components": {"length": {"settings": {"most": 1}}}}
    home = make_ledger(part)
    home.add(trace("t1", "one two"))
    home.run()
    assert home.rewards()["t1"].value == 0.0
    home.configure(
        {"preset": "none", "components": {"length": {"weight": 7, "settings": {"most": 1}}}}
    )
    assert home.run().judged.total() == 0
    home.configure({"preset": "none", "components": {"length": {"settings": {"most": 2}}}})
    assert home.rewards() == {}
    assert home.run().judged.total() == 1
    assert home.rewards()["t1"].value == 1.0
    home.configure(part)
    assert home.run().judged.total() == 0
    assert home.rewards()["t1"].value == 0.0


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
            return Score.none(JudgementStatus.BLOCKED, "no sandbox")
        return Score(0.5, evidence={"odd": datetime(2026, 1, 5, tzinfo=UTC), "nan": float("nan")})


class Together(Trying):
    def score(self, cases):
        if any(case.text == "short" for case in cases):
            return []
        return [Score(2.0) for _ in cases]


def test_what_raises_exits_or_never_ends_is_failed_and_the_others_are_judged(make_ledger):
    home = make_ledger()
    home.add(*(trace(name, name) for name in ("fine", "raise", "exit", "loop", "blocked")))
    report = ledger.run(
        home.ws, Agent.named(AGENT), [Component("trying", Trying.create({}), "v1", 0.2)]
    )
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
    assert all(row["value"] is None for row in home.rows() if row["status"] != "ok")
    assert next(row for row in home.rows(status="ok"))["evidence"] == {
        "odd": "2026-01-05 00:00:00+00:00",
        "nan": "NaN",
    }


def test_blocked_is_tried_again_and_failed_on_demand(make_ledger):
    home = make_ledger()
    home.add(trace("a", "raise"), trace("b", "blocked"), trace("c", "fine"))
    parts = [Component("trying", Trying.create({}), "v1", 5)]
    ledger.run(home.ws, Agent.named(AGENT), parts)
    assert ledger.run(home.ws, Agent.named(AGENT), parts).judged.total() == 1
    assert ledger.run(home.ws, Agent.named(AGENT), parts, retry=True).judged.total() == 2
    assert len(home.rows()) == 3


@pytest.mark.parametrize("text", ["short", "too much"])
def test_a_function_that_judges_together_is_held_to_number_and_range(make_ledger, text):
    home = make_ledger()
    home.add(trace("a", text), trace("b", "fine"))
    report = ledger.run(
        home.ws, Agent.named(AGENT), [Component("together", Together.create({}), "v1", 5)]
    )
    assert dict(report.statuses) == {("together", "failed"): 2}


def test_a_limit_of_time_leaves_no_alarm_behind():
    import signal

    with pytest.raises(TimeoutError, match=r"0\.05 s"), time_limit() as bell:
        bell(0.05)
        time.sleep(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_limit_of_time_does_not_break_an_import_off(tmp_path, monkeypatch):
    (tmp_path / "slow_to_load.py").write_text("import time\ntime.sleep(0.5)\nWHOLE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TimeoutError), time_limit() as bell:
        bell(0.05)
        import slow_to_load

        time.sleep(5)
    assert slow_to_load.WHOLE


def test_an_answer_that_was_not_recorded_is_not_an_empty_one(make_ledger):
    home = make_ledger({"preset": "none", "components": {"length": {}, "thumb": {}}})
    home.add(trace("t1", None), trace("t2", ""), feedback_line("thumb", True, "t1"))
    home.run()
    rewards = home.rewards()
    assert rewards["t1"].statuses == {"length": "not_applicable", "thumb": "ok"}
    assert rewards["t2"].scores["length"].value == 0.0


def test_a_dry_run_counts_and_stores_nothing(make_ledger):
    home = make_ledger()
    home.add(trace("t1"), feedback_line("thumb", True, "t1"))
    report = home.run(dry_run=True)
    assert report.judged.total() == len(home.config.parts())
    assert home.rows() == []


def test_a_case_carries_everything_that_was_stored(make_ledger):
    home = make_ledger()
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
    home.add(
        CASE,
        first,
        trace("t2", "A: 8", asked="3 + 4?"),
        trace("t3", None, asked="3 + 4?"),
        feedback_line("thumb", True, "t1", occurred_at="2026-01-06T00:00:00Z"),
    )
    with home.ws.db.read() as connection:
        cases = {
            stored.case.text: stored
            for batch in stored_cases(connection, Agent.named(AGENT), EVERY_FIELD)
            for stored in batch
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
    assert [(home.kind, home.value) for home in case.feedback] == [("thumb", True)]
    assert case.occurred_at == datetime(2026, 1, 5, 8, tzinfo=UTC)
    assert case.as_of is not None
    assert (cases["A: 8"].case.mates, cases[""].answered) == (("A: 7",), False)
    assert (
        cases["A: 8"].case.metadata == {}
    )  # a trace cannot name its own checker, not even by its metadata


def test_mates_are_a_bounded_number_of_other_answers(make_ledger):
    home = make_ledger()
    home.add(
        *(trace(f"t{number}", f"answer {number}", asked="same") for number in range(MOST_MATES + 5))
    )
    with home.ws.db.read() as connection:
        cases = [
            stored.case
            for batch in stored_cases(connection, Agent.named(AGENT), ("text", "mates"))
            for stored in batch
        ]
    assert {len(case.mates) for case in cases} == {MOST_MATES}
    assert all(case.text not in case.mates for case in cases)


def test_more_traces_than_a_batch_keep_their_feedback_apart(make_ledger, monkeypatch):
    monkeypatch.setattr("thumbwheel.rewards.cases.BATCH", 7)
    home = make_ledger()
    home.add(
        *(trace(f"t{number}", asked=f"q{number % 5}") for number in range(40)),
        *(feedback_line("rating", 1 + number % 5, f"t{number}") for number in range(0, 40, 3)),
    )
    home.run()
    rewards = home.rewards()
    assert {name: home.value for name, home in rewards.items()} == {
        f"t{number}": None if number % 3 else (number % 5) / 4 for number in range(40)
    }


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_traces(make_ledger):
    home = make_ledger()

    def peak():
        tracemalloc.start()
        home.run(dry_run=True)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    text = "word " * 200
    home.add(*(trace(f"a{number}", text + str(number)) for number in range(1500)))
    few = peak()
    home.add(*(trace(f"b{number}", text + str(number)) for number in range(3000)))
    assert peak() < 1.2 * few


def test_reweighing_runs_nothing_and_says_what_would_change(make_ledger):
    home = make_ledger()
    home.add(
        trace("t1"),
        trace("t2"),
        feedback_line("thumb", True, "t1"),
        feedback_line("rating", 1, "t1"),
        feedback_line("thumb", True, "t2"),
    )
    home.run()
    rows = home.rows()
    comparison = reweigh(home.ws, AGENT, {"thumb": 3.0})
    assert (
        comparison["before"]["mean"],
        comparison["after"]["mean"],
        comparison["changed"],
        comparison["now_good"],
    ) == (0.75, 0.875, 1, 1)
    assert home.rows() == rows
    home.configure({"agents": {AGENT: {"components": {"thumb": {"weight": 3}}}}})
    assert home.rewards()["t1"].value == 0.75
    assert home.run().judged.total() == 0
    with pytest.raises(NotFound, match="no_such"):
        reweigh(home.ws, AGENT, {"no_such": 1.0})
    with pytest.raises(ConfigError, match="Known: default"):
        reweigh(home.ws, AGENT, {}, "no_such")


def test_an_explanation_names_value_weight_evidence_and_feedback(make_ledger):
    home = make_ledger()
    home.add(CASE, trace("t1", "A: 8", case="c1"), feedback_line("thumb", True, "t1"))
    home.run()
    explanation = explain(home.ws, AGENT, "t1")
    (row,) = home.rows(component="thumb")
    parts = explanation.as_dict()["components"]
    assert explanation.as_dict()["reward"] == pytest.approx(1 / 3)
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
    words = "\n".join(explanation.to_words())
    assert words.startswith("t1: reward 0.3333"), "by the name that the user gave"
    assert "(2 x 0 + 1 x 1) / 3" in words
    assert "rating (weight 1): not applicable: nobody gave a rating" in words
    home.add(feedback_line("rating", 5, "t1"))
    late = explain(home.ws, AGENT, "t1")
    assert late.as_dict()["reward"] == home.rewards()["t1"].value, (
        "as every other command has it, until the next run"
    )
    assert {name for name, part in late.as_dict()["components"].items() if part["outdated"]} == {
        "rating"
    }
    assert "judged before its feedback or its case changed" in "\n".join(late.to_words())
    with pytest.raises(NotFound, match="no-such"):
        explain(home.ws, AGENT, "no-such")


def test_a_survey_counts_statuses_and_shows_the_lowest(make_ledger):
    home = make_ledger()
    home.add(
        *(trace(f"t{number}") for number in range(6)),
        *(feedback_line("rating", 1 + number, f"t{number}") for number in range(5)),
    )
    home.run()
    summary = reward_summary(home.ws, AGENT, lowest=2)
    assert summary["components"]["rating"] == {
        "weight": 1.0,
        "mean": 0.5,
        "statuses": {"ok": 5, "not_applicable": 1},
        "not_judged": 0,
    }
    assert summary["reward"] == {
        "n": 5,
        "mean": 0.5,
        "least": 0.0,
        "most": 1.0,
        "good": 2,
        "good_from": 0.6,
    }
    assert [home["reward"] for home in summary["lowest"]] == [0.0, 0.25]
    home.add(trace("late"))
    assert reward_summary(home.ws, AGENT)["components"]["rating"]["not_judged"] == 1


def test_the_checker_of_a_case_that_nobody_has_is_blocked_and_its_settings_count(make_ledger):
    home = make_ledger()
    pattern = {
        "type": "case",
        "id": "c2",
        "input": "x",
        "checker": "regex",
        "checker_config": {"pattern": "^yes"},
    }
    home.add(
        {**CASE, "checker": "no_such"},
        pattern,
        trace("t1", "7", case="c1"),
        trace("t2", "yes", case="c2"),
        trace("t3", "7", case="gone"),
    )
    home.run()
    scores = {name: reward.scores["checker"] for name, reward in home.rewards().items()}
    assert (scores["t1"].status, scores["t2"].value, scores["t3"].status) == (
        JudgementStatus.BLOCKED,
        1.0,
        JudgementStatus.NOT_APPLICABLE,
    )


def test_inputs_are_the_fingerprint_of_what_is_read_and_of_nothing_else(make_ledger):
    part = components(
        make_ledger().ws, AGENT, ledger.settings(make_ledger().ws, AGENT), ["edit_distance"]
    )[0]
    from thumbwheel.rewards.cases import StoredCase

    first = part.inputs(StoredCase(Case("a", metadata={"x": 1}, as_of=datetime.now(UTC)), True))
    assert first == part.inputs(StoredCase(Case("a", metadata={"x": 2}, steps=()), True))
    assert first != part.inputs(StoredCase(Case("b"), True))
