"""Which feedback stands: what is said again, who may take back what, and that a judgement counts
once in the statistics."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from tests.worlds.feedback_world import START, FeedbackWorld
from thumbwheel.capture.feedback import add_feedback, feedback_stats, store_record
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import NotFound
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.sources.openwebui import EXAMPLE as OPENWEBUI
from thumbwheel.importers.types import FeedbackRecord
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import judgements

AGENT = "desk"


def put(ws: Workspace, tmp_path: Path, *rows: Any, source: str = "jsonl") -> ImportReport:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ingest(ws, AGENT, source, path)


def verdicts(ws: Workspace) -> list[bool | None]:
    with ws.db.read() as connection:
        return [judgement.good for judgement in judgements(connection, Agent.named(AGENT))]


def run_with(label: bool | None, score: float | None = None) -> dict[str, Any]:
    return {
        "trace_id": "t1",
        "session_id": "s",
        "user_query": "q",
        "final_response": "a",
        "label": label,
        "reward_score": score,
    }


TRACE = {"type": "trace", "id": "t1", "input": "q", "output": "a"}


def thumb(value: bool, **more: Any) -> dict[str, Any]:
    return {"type": "feedback", "kind": "thumb", "value": value, "target": {"trace": "t1"}} | more


# What is said again


def test_a_relabelled_trace_file_has_its_newest_label(empty_ws: Workspace, tmp_path: Path) -> None:
    for turn, label in enumerate((False, True, False, False, True, False)):
        report = put(empty_ws, tmp_path, run_with(label), source="flowagent")
        assert verdicts(empty_ws) == [label]
        assert report.duplicates == (turn == 3), "only what says what stands already is a duplicate"


def test_of_equal_times_the_later_import_wins(empty_ws: Workspace, tmp_path: Path) -> None:
    """A row may change while its own time does not; of forty no order of ids helps them all."""
    times = {"occurred_at": "2026-01-05T09:00:00Z", "rater": "ann"}
    names = [f"t{number}" for number in range(40)]
    put(empty_ws, tmp_path, *(TRACE | {"id": name, "input": name} for name in names))
    for value in (True, False, True):
        lines = [thumb(value, target={"trace": name}, **times) for name in names]
        named = [line | {"id": f"{time.time_ns()}-{number}"} for number, line in enumerate(lines)]
        put(empty_ws, tmp_path, *named)
        assert verdicts(empty_ws) == [value] * len(names)


def test_a_change_of_mind_in_one_second_is_no_disagreement(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    times = {"occurred_at": "2026-01-05T09:00:00Z", "rater": "ann"}
    put(empty_ws, tmp_path, TRACE, thumb(False, id="f1", **times))
    put(empty_ws, tmp_path, thumb(True, id="f2", **times))
    with empty_ws.db.read() as connection:
        (judgement,) = judgements(connection, Agent.named(AGENT))
    assert (judgement.good, judgement.conflict) == (True, False)


def test_a_trace_that_is_labelled_anew_on_another_day_has_its_newest_label(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    """A collector saves what it labels in the folder of the day, so that two files tell of one
    trace."""
    folder = tmp_path / "rl_traces"
    for day, label in (("2026-01-02", False), ("2026-01-09", True)):
        (folder / day).mkdir(parents=True)
        (folder / day / "t1.json").write_text(json.dumps(run_with(label)))
    for _ in range(2):
        ingest(empty_ws, AGENT, "flowagent", folder)
        assert verdicts(empty_ws) == [True]


def test_a_decision_s_row_without_times_has_the_newest_word(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    row = {
        "id": "d1",
        "agentType": "FILER",
        "state": {"item": {"title": "Bank"}},
        "action": {"swimlane": "HOME"},
    }
    for word, good in (("CONFIRMED", True), ("CORRECTED", False), ("CONFIRMED", True)):
        put(empty_ws, tmp_path, row | {"userFeedback": word}, source="decisions")
        assert verdicts(empty_ws) == [good]


def test_a_stored_reward_that_returns_to_an_older_value_counts_again(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    for score in (0.9, 0.1, 0.9):
        put(empty_ws, tmp_path, run_with(None, score), source="flowagent")
    assert verdicts(empty_ws) == [True]


@pytest.mark.parametrize("rater", [{"rater": "ann"}, {}], ids=["named", "unnamed"])
def test_the_newest_import_of_a_rater_without_times_counts(
    empty_ws: Workspace, tmp_path: Path, rater: dict[str, str]
) -> None:
    put(empty_ws, tmp_path, TRACE)
    for value in (False, True, False):
        put(empty_ws, tmp_path, thumb(value, **rater))
        assert verdicts(empty_ws) == [value]


def test_importing_twice_is_once_whatever_the_file_says_of_itself(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    rows = [TRACE, thumb(True, rater="ann"), thumb(False, rater="ann"), thumb(True), thumb(False)]
    assert put(empty_ws, tmp_path, *rows).stored == 5
    assert put(empty_ws, tmp_path, *rows).duplicates == 5
    assert put(empty_ws, tmp_path, *reversed(rows)).duplicates == 5


def test_a_rater_who_contradicts_himself_in_one_import_is_not_heard_in_whatever_batch(
    empty_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thumbwheel.capture.ingest.LINES", 1)
    put(
        empty_ws,
        tmp_path,
        TRACE,
        thumb(True, rater="ann"),
        thumb(False, rater="ann"),
        thumb(True, rater="ben"),
    )
    with empty_ws.db.read() as connection:
        (all_judgements,) = judgements(connection, Agent.named(AGENT))
    assert (all_judgements.good, all_judgements.conflict, len(all_judgements.feedback_ids)) == (
        True,
        True,
        1,
    )


def test_statements_about_a_text_without_a_name_are_voices_of_their_own_in_every_file(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    up, down = ({"prompt": "q", "completion": "a", "label": value} for value in (True, False))
    for row in (up, down, up):
        put(empty_ws, tmp_path, row, source="trl")
    with empty_ws.db.read() as connection:
        (all_judgements,) = judgements(connection, Agent.named(AGENT))
    assert (all_judgements.good, all_judgements.conflict, len(all_judgements.feedback_ids)) == (
        None,
        True,
        2,
    )


def test_two_scores_of_one_run_without_times_are_averaged(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    shared = {"prompt": "q", "response": "a", "runId": "r1"}
    put(empty_ws, tmp_path, shared | {"score": 0.9}, shared | {"score": 0.5}, source="n3")
    with empty_ws.db.read() as connection:
        (all_judgements,) = judgements(connection, Agent.named(AGENT))
    assert all_judgements.value is not None
    assert (all_judgements.value.raw, all_judgements.good) == (pytest.approx(0.7), True)


# Who may take back what


def test_a_line_may_not_take_back_somebody_else_s_word(empty_ws: Workspace, tmp_path: Path) -> None:
    put(empty_ws, tmp_path, TRACE, thumb(True, id="f1", rater="ann"))
    for key in ("retracts", "supersedes"):
        for who in ({"rater": "ben"}, {}):
            line = (
                {"type": "feedback", "retracts": "f1"}
                if key == "retracts"
                else thumb(False, supersedes="f1")
            )
            report = put(empty_ws, tmp_path, TRACE, line | who)
            reason = report.refusals[0]["reason"]
            assert (
                key in reason
                and "another rater, sender or source" in reason
                and f"thumbwheel feedback add --{key}" in reason
            )
    assert verdicts(empty_ws) == [True]
    report = put(empty_ws, tmp_path, {"type": "feedback", "retracts": "f1", "rater": "ann"})
    assert (report.stored, verdicts(empty_ws)) == (1, [])


def test_a_line_cannot_speak_for_another_source_or_for_the_owner(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    put(empty_ws, tmp_path, json.loads(OPENWEBUI), source="openwebui")
    with empty_ws.db.read() as connection:
        thumbs = connection.execute(
            schema.feedback.select().where(schema.feedback.c.kind == "thumb")
        )
        (feedback_id,) = thumbs.scalars()
    forged = {"type": "feedback", "retracts": feedback_id, "rater": "u1"}
    for line in (forged, forged | {"source": "openwebui"}):
        assert (
            "another rater, sender or source"
            in put(empty_ws, tmp_path, TRACE, line).refusals[0]["reason"]
        )
    owner = forged | {"source": "cli"}
    assert "cannot speak for it" in put(empty_ws, tmp_path, TRACE, owner).refusals[0]["reason"]
    assert verdicts(empty_ws) == [True]


def test_a_retraction_that_comes_first_takes_back_its_own_rater_s_word_only(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    rows = [
        thumb(True, id="f1", rater="ann"),
        {"type": "feedback", "id": "r1", "retracts": "f1", "rater": "ben"},
    ]
    put(empty_ws, tmp_path, TRACE, rows[1])
    put(empty_ws, tmp_path, rows[0])
    assert verdicts(empty_ws) == [True]
    assert feedback_stats(empty_ws, AGENT).replaced == 0
    own_retraction = {"type": "feedback", "id": "r2", "retracts": "f2", "rater": "ben"}
    put(empty_ws, tmp_path, own_retraction)
    put(empty_ws, tmp_path, thumb(False, id="f2", rater="ben"))
    assert verdicts(empty_ws) == [True]


def test_the_owner_takes_back_whatever_there_is(empty_ws: Workspace, tmp_path: Path) -> None:
    put(empty_ws, tmp_path, TRACE, thumb(True, id="f1", rater="ann"))
    add_feedback(empty_ws, AGENT, "t1", "thumb", False, supersedes="f1")
    assert verdicts(empty_ws) == [False]


def test_a_file_replaces_no_word_that_an_app_of_the_home_sent(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    """One speaker, but not in both directions: whoever wrote the file is nobody known here."""
    put(empty_ws, tmp_path, TRACE, thumb(True, rater="ann"))
    sent = FeedbackRecord.model_validate(
        {"kind": "thumb", "value": False, "targets": [{"kind": "trace", "id": "t1"}]}
        | {"rater": {"id": "ann"}, "occurred_at": START}
    )
    store_record(empty_ws, AGENT, sent, source="jsonl")
    assert verdicts(empty_ws) == [False]
    put(empty_ws, tmp_path, thumb(True, rater="ann", occurred_at="2030-01-01T00:00:00Z"))
    assert verdicts(empty_ws) == [False]
    assert feedback_stats(empty_ws, AGENT).signals["thumb"].count == 1


# Statistics


def history() -> FeedbackWorld:
    world = FeedbackWorld()
    for number in range(12):
        model = "old" if number < 8 else "new"
        trace = world.trace(f"t{number}", f"q{number}", "a", model=model)
        world.say(
            "thumb",
            number % 4 == 0 or number >= 8,
            trace,
            rater=f"r{number}",
            minute=number * 24 * 60 * 3,
        )
    world.say("rating", 5, world.trace("t0", "q0", "a", model="old"), rater="r0", minute=0)
    world.say("comment", "hm", world.trace("t0", "q0", "a", model="old"), rater="r0", minute=0)
    machine = world.trace("m", "qm", "a", model="new")
    world.say("score", 0.0, machine, rater="machine", minute=0)
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == "machine":
            values["kind"] = "checker"
    return world


def test_the_share_of_positive_feedback_over_time_and_by_version(tmp_path: Path) -> None:
    with history().into(tmp_path) as opened:
        stats = feedback_stats(opened, "helper", "month")
        weeks = feedback_stats(opened, "helper")
        with pytest.raises(NotFound, match="Known: day, week, month"):
            feedback_stats(opened, "helper", "moon")
    assert {name: (count.judged, count.positive) for name, count in stats.versions.items()} == {
        "old": (8, 2),
        "new": (4, 4),
    }
    assert stats.versions["old"].share == 0.25
    assert {name: (count.judged, count.positive) for name, count in stats.periods.items()} == {
        "2026-01": (9, 3),
        "2026-02": (3, 3),
    }
    first_week = f"{START:%G-W%V}"
    assert weeks.periods[first_week].judged == 3
    assert list(weeks.periods) == sorted(
        f"{START + timedelta(weeks=week):%G-W%V}" for week in range(len(weeks.periods))
    )
    as_json = stats.as_dict()
    assert as_json["by_version"][0] == {
        "version": "new",
        "count": 4,
        "judged": 4,
        "positive": 4,
        "people": 4,
        "share_positive": 1.0,
    }
    assert as_json["over_time"][0]["month"] == "2026-01"
    assert as_json["signals"]["score"]["count"] == 1, (
        "a checker's score is feedback, and no positive feedback of people"
    )


def test_positive_feedback_of_people_counts_each_of_them_once_for_an_answer(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    say = {"type": "feedback", "target": {"trace": TRACE["id"]}}
    rows = [
        TRACE,
        say | {"id": "1", "kind": "thumb", "value": True, "rater": "ann"} | on_day(1),
        say | {"id": "2", "kind": "rating", "value": 1, "rater": "ann"} | on_day(2),
        say | {"id": "3", "kind": "thumb", "value": True, "rater": "bob"} | on_day(1),
        say | {"id": "4", "kind": "outcome", "name": "paid", "value": True},
        say | {"id": "5", "kind": "label", "name": "polite", "value": True, "rater": "ann"},
    ]
    put(empty_ws, tmp_path, *rows)
    (count,) = feedback_stats(empty_ws, AGENT, "month").periods.values()
    assert (count.judged, count.positive, len(count.raters)) == (2, 1, 2), "ann's newest word"


def on_day(day: int) -> dict[str, str]:
    return {"occurred_at": f"2026-01-0{day}T08:00:00Z"}


def test_stats_of_the_command_fit_a_terminal(command_line: Run, tmp_path: Path) -> None:
    rows = [TRACE, thumb(True, rater="a" * 30)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command_line("import", "jsonl", "lines.jsonl", "--agent", AGENT)[0] == 0
    code, out, _ = command_line("feedback", "stats", "--agent", AGENT, "--period", "day")
    assert code == 0
    assert (
        "positive feedback of people by day" in out
        and "positive feedback of people by version" in out
    )
    assert max(map(len, out.splitlines())) <= 80


def test_the_order_of_files_with_times_decides_nothing(tmp_path: Path) -> None:
    time_of = "2026-01-0{}T08:00:00Z".format
    rows = [
        TRACE,
        thumb(True, rater="ann", occurred_at=time_of(3)),
        thumb(False, rater="ann", occurred_at=time_of(1)),
        thumb(False, rater="ben"),
    ]
    for number, order in enumerate(permutations(rows)):
        if number % 5:
            continue
        with Workspace.open(Home.at(tmp_path / str(number)), Sources({}, "test", {})) as opened:
            for row in order:
                put(opened, tmp_path, row)
            assert verdicts(opened) == [None], "ann's later word is up, ben's is down"
