"""A running Open WebUI: what of its ratings and chats is new, which recorded call an answer is, and
what every refusal of the server is called."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from tests.servers.openwebui_server import START_PAGE, OpenWebUi, Reply, refusal
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers import openwebui_server, server_api
from thumbwheel.importers.detect import Options
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.server_api import Key

NOON = 1_767_600_000
"""2026-01-05 08:00:00 UTC, in seconds."""


@pytest.fixture
def openwebui() -> Iterator[OpenWebUi]:
    with OpenWebUi() as running:
        yield running


def bring(ws: Workspace, server: OpenWebUi, query: str = "", user: str = "ann") -> ImportReport:
    key = Key(f"KEY_OF_{user.upper()}", f"sk-{user}")
    address = path_or_address(f"{server.url}/{query}")
    return ingest(ws, "desk", "openwebui", address, options=Options(key=key))


def record(ws: Workspace, tmp_path: Path, name: str, **fields: Any) -> None:
    """A call as another source has it."""
    row = {"type": "trace", "id": name, "occurred_at": "2026-01-05T08:00:01Z", **fields}
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps(row))
    assert ingest(ws, "desk", "jsonl", file).stored == 1


def answers(ws: Workspace) -> dict[str, str]:
    """Name -> answer of every trace."""
    with ws.db.read() as connection:
        rows = connection.execute(sa.select(schema.traces.c.external_id, schema.traces.c.output))
        return {row.external_id: row.output for row in rows}


def judged(ws: Workspace) -> list[tuple[str, Any, list[str]]]:
    """(kind, value, names of the judged traces) of all feedback, the oldest first; each target is
    linked to a trace."""
    with ws.db.read() as connection:
        rows = connection.execute(sa.select(schema.traces.c.id, schema.traces.c.external_id))
        names = {row.id: row.external_id for row in rows}
    feedback = list_feedback(ws, "desk", limit=100)
    return [
        (row["kind"], row["value"], [names[target["target_id"]] for target in row["targets"]])
        for row in sorted(feedback, key=lambda row: (row["occurred_at"], row["kind"]))
    ]


class TestWhatIsNew:
    def test_ratings_and_answers_then_nothing_then_what_changed(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where is form A?", {"filer": "In folder A."}, NOON)
        openwebui.ask("c1", "And form B?", {"filer": "In folder B."}, NOON + 10)
        openwebui.rate("c1", rated, 1, NOON + 20)

        # the rated answer once, the other one, the rating
        report = bring(empty_ws, openwebui)
        assert (report.read, report.stored, report.refused) == (2, 2, 0)
        assert report.records == Counter(trace=2, feedback=1, thumb=1)
        assert sorted(answers(empty_ws).values()) == ["In folder A.", "In folder B."]
        assert judged(empty_ws) == [("thumb", True, [rated])]

        # nothing new: the chats and ratings are not even asked for
        openwebui.requests.clear()
        report = bring(empty_ws, openwebui)
        assert (report.read, report.records) == (0, Counter())
        lists = {"/api/version", "/api/v1/chats/", "/api/v1/evaluations/feedbacks/all/ids"}
        assert set(openwebui.requests) == lists

        # a rating that was turned, an answer more
        openwebui.rate("c1", rated, -1, NOON + 30)
        (newest,) = openwebui.ask("c1", "And C?", {"filer": "In folder C."}, NOON + 40)
        report = bring(empty_ws, openwebui)
        assert (report.read, report.stored, report.refused) == (2, 2, 0)
        assert report.records == Counter(trace=1, feedback=1, thumb=1)
        assert judged(empty_ws) == [("thumb", True, [rated]), ("thumb", False, [rated])]
        assert newest in answers(empty_ws)

    def test_the_prompt_the_person_and_the_model_are_stored(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        openwebui.ask("c1", "Where is form A?", {"filer": "In folder A."}, NOON, user="bob")
        (rated,) = openwebui.ask("c1", "Sure?", {"filer": "Yes."}, NOON + 10, user="bob")
        openwebui.rate("c1", rated, 1, NOON + 20, user="bob")
        bring(empty_ws, openwebui)
        with empty_ws.db.read() as connection:
            (row,) = connection.execute(
                sa.select(
                    schema.steps.c.served_model,
                    schema.sessions.c.external_id.label("session"),
                    schema.subjects.c.external_id.label("subject"),
                    schema.messages.c.content,
                    schema.messages.c.parent_id,
                )
                .select_from(schema.traces)
                .join(schema.steps)
                .join(schema.sessions, schema.sessions.c.id == schema.traces.c.session_id)
                .join(schema.subjects, schema.subjects.c.id == schema.traces.c.subject_id)
                .join(schema.messages, schema.messages.c.id == schema.traces.c.input_id)
                .where(schema.traces.c.external_id == rated)
            )
        assert (row.served_model, row.session, row.subject) == ("filer", "c1", "bob")
        assert row.content == {"content": "Sure?"} and row.parent_id

    def test_models_side_by_side_are_a_preference(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        better, worse = openwebui.ask("c1", "Where?", {"filer": "Here.", "other": "There."}, NOON)
        openwebui.rate("c1", better, 1, NOON + 20)
        bring(empty_ws, openwebui, "?chats=none")
        assert judged(empty_ws) == [
            ("preference", {"ranking": [[0], [1]]}, [better, worse]),
            ("thumb", True, [better]),
        ]

    def test_many_pages_are_read_once(self, empty_ws: Workspace, openwebui: OpenWebUi) -> None:
        rated = []
        for number in range(65):  # more than a page of chats, two of one's ratings
            rated += openwebui.ask(
                f"c{number}", "Where?", {"m": f"In {number}."}, NOON + number, "bob"
            )
            openwebui.rate(f"c{number}", rated[-1], 1, NOON + 100 + number, "bob")
        assert bring(empty_ws, openwebui, user="bob").records == Counter(
            trace=65, feedback=65, thumb=65
        )
        assert set(answers(empty_ws)) == set(rated)
        assert bring(empty_ws, openwebui, user="bob").read == 0

    def test_an_import_that_breaks_off_goes_on(
        self, empty_ws: Workspace, openwebui: OpenWebUi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("thumbwheel.importers.sources.openwebui.TOGETHER", 2)
        rating_ids = []
        for number in range(5):
            (rated,) = openwebui.ask(f"c{number}", "Where?", {"m": f"In {number}."}, NOON)
            # three of one second: a position between them would lose one
            rating_ids.append(openwebui.rate(f"c{number}", rated, 1, NOON + max(number - 2, 0)))
        broken = f"/api/v1/evaluations/feedback/{rating_ids[3]}"
        openwebui.faults[broken] = Reply(500, {"detail": "oops"})
        with pytest.raises(InputError, match=r"HTTP 500.*oops"):
            bring(empty_ws, openwebui, "?chats=none")
        assert len(answers(empty_ws)) == 2
        openwebui.faults.clear()
        assert bring(empty_ws, openwebui, "?chats=none").records == Counter(
            trace=3, feedback=3, thumb=3
        )

    def test_a_change_within_the_second_of_the_import_is_not_lost(
        self, empty_ws: Workspace, openwebui: OpenWebUi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"m": "Here."}, NOON)
        (other,) = openwebui.ask("c2", "And?", {"m": "There."}, NOON)
        openwebui.rate("c1", rated, 1, NOON)
        now = [NOON + 0.4]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            openwebui.rate("c1", rated, -1, NOON)  # the same second as before
            openwebui.rate("c2", other, 1, NOON + 1)  # a second that is not over

        monkeypatch.setattr(openwebui_server.time, "time", lambda: now[0])
        monkeypatch.setattr(openwebui_server.time, "sleep", sleep)
        bring(empty_ws, openwebui, "?chats=none")
        assert judged(empty_ws) == [("thumb", False, [rated])]
        openwebui.rate("c2", other, -1, NOON + 1)
        now[0] += 100
        bring(empty_ws, openwebui, "?chats=none")
        assert judged(empty_ws)[1:] == [("thumb", False, [other])]


class TestWhatIsAskedFor:
    def test_an_administrator_reads_everybodys_ratings_and_chats_where_asked(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (unrated,) = openwebui.ask("c1", "Where?", {"m": "Here."}, NOON, user="ann")
        (rated,) = openwebui.ask("c2", "Where?", {"m": "There."}, NOON, user="bob")
        (quiet,) = openwebui.ask("c3", "Where?", {"m": "Nowhere."}, NOON, user="bob")
        openwebui.rate("c2", rated, 1, NOON, user="bob")
        bring(empty_ws, openwebui)
        assert set(answers(empty_ws)) == {unrated, rated}
        assert bring(empty_ws, openwebui, "?chats=all").records == Counter(trace=1)
        assert quiet in answers(empty_ws)

    def test_a_users_key_reads_what_is_the_users(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (of_ann,) = openwebui.ask("c1", "Where?", {"m": "Here."}, NOON, user="ann")
        (of_bob,) = openwebui.ask("c2", "Where?", {"m": "There."}, NOON, user="bob")
        openwebui.rate("c1", of_ann, 1, NOON - 5)
        openwebui.rate("c2", of_bob, -1, NOON, user="bob")
        assert bring(empty_ws, openwebui, user="bob").records == Counter(
            trace=1, feedback=1, thumb=1
        )
        with pytest.raises(InputError, match=r"everybody's chats.*refuses the key KEY_OF_BOB"):
            bring(empty_ws, openwebui, "?chats=all", user="bob")
        # another key starts from the beginning
        assert bring(empty_ws, openwebui).records == Counter(trace=1, feedback=1, thumb=1)

    def test_other_models_are_left_out(self, empty_ws: Workspace, openwebui: OpenWebUi) -> None:
        for model in ("filer", "other"):
            (rated,) = openwebui.ask(f"c-{model}", "Where?", {model: f"By {model}."}, NOON)
            openwebui.rate(f"c-{model}", rated, 1, NOON + 1)
        report = bring(empty_ws, openwebui, "?model=filer")
        assert list(answers(empty_ws).values()) == ["By filer."]
        assert report.left_out == {"it is about another model than filer": 1}

    def test_a_day_to_start_from(self, empty_ws: Workspace, openwebui: OpenWebUi) -> None:
        openwebui.ask("c1", "Where?", {"m": "Before."}, NOON - 86_400)
        openwebui.ask("c2", "Where?", {"m": "Then."}, NOON)
        bring(empty_ws, openwebui, "?since=2026-01-05")
        assert list(answers(empty_ws).values()) == ["Then."]

    def test_half_answers_and_what_answers_nothing_are_no_traces(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        names = openwebui.ask(
            "c1", "Where?", {"a": "Half", "b": "Failed", "c": "", "d": "Orphan"}, NOON
        )
        messages = openwebui.chats["c1"]["chat"]["history"]["messages"]
        messages[names[0]]["done"] = False
        messages[names[1]]["error"] = {"content": "boom"}
        messages[names[3]]["parentId"] = None
        report = bring(empty_ws, openwebui)
        assert answers(empty_ws) == {} and report.refused == 0
        assert report.left_out == {"it is no text that answers a question": 1}


class TestRecordedCalls:
    def test_the_answer_of_the_message_is_judged_and_not_stored_again(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        better, worse = openwebui.ask("c1", "Where?", {"filer": "Here.", "other": "There."}, NOON)
        openwebui.rate("c1", better, 1, NOON + 20)
        for call, message, text in (("call-1", better, "Here."), ("call-2", worse, "There.")):
            record(
                empty_ws,
                tmp_path,
                call,
                session="c1",
                input=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Where?"},
                ],
                output=text,
                metadata={"openwebui_message_id": message},
            )
        report = bring(empty_ws, openwebui)
        assert report.records == Counter(feedback=2, thumb=1, preference=1)
        assert report.left_out == {}
        assert judged(empty_ws) == [
            ("preference", {"ranking": [[0], [1]]}, ["call-1", "call-2"]),
            ("thumb", True, ["call-1"]),
        ]
        openwebui.rate("c1", better, -1, NOON + 30)
        bring(empty_ws, openwebui)
        assert judged(empty_ws)[-1] == ("thumb", False, ["call-1"])
        assert set(answers(empty_ws)) == {"call-1", "call-2"}

    def test_of_the_calls_of_one_message_the_one_that_answered(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"filer": "Here."}, NOON)
        openwebui.rate("c1", rated, 1, NOON + 20)
        shared: dict[str, Any] = {"session": "c1"}
        note = {"openwebui_message_id": rated}
        record(
            empty_ws,
            tmp_path,
            "a-title",
            input="### Task: a title",
            output="Here.",
            metadata={**note, "openwebui_task": "title_generation"},
            **shared,
        )
        record(
            empty_ws,
            tmp_path,
            "look",
            input="Where?",
            output="I look it up.",
            metadata=note,
            **shared,
        )
        after_tool = [
            {"role": "user", "content": "Where?"},
            {"role": "tool", "tool_call_id": "t", "content": "A"},
        ]
        record(
            empty_ws, tmp_path, "answer", input=after_tool, output="Here. ", metadata=note, **shared
        )
        bring(empty_ws, openwebui)
        assert judged(empty_ws) == [("thumb", True, ["answer"])]
        assert len(answers(empty_ws)) == 3

    def test_without_the_message_id_question_and_answer_of_the_session(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        (first,) = openwebui.ask("c1", "Again?", {"filer": "No."}, NOON)
        (second,) = openwebui.ask("c1", "Again?", {"filer": "No."}, NOON + 60)
        openwebui.rate("c1", first, -1, NOON + 80)
        openwebui.rate("c1", second, 1, NOON + 90)
        system = {"role": "system", "content": "Be brief."}
        question = {"role": "user", "content": "Again?"}
        for number, call in enumerate(("early", "late")):
            record(
                empty_ws,
                tmp_path,
                call,
                session="c1",
                input=[system, question],
                output="No.",
                occurred_at=f"2026-01-05T08:0{number}:02Z",
            )
        record(empty_ws, tmp_path, "elsewhere", session="c9", input="Again?", output="No.")
        bring(empty_ws, openwebui)
        assert judged(empty_ws) == [("thumb", False, ["early"]), ("thumb", True, ["late"])]
        assert answers(empty_ws).keys() == {"early", "late", "elsewhere"}

    def test_without_a_session_the_same_input_and_answer_at_that_time(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"filer": "Here."}, NOON)
        openwebui.rate("c1", rated, 1, NOON + 20)
        record(
            empty_ws,
            tmp_path,
            "old",
            input="Where?",
            output="Here.",
            occurred_at="2026-01-01T08:00:00Z",
        )
        shared = {"input": "Where?", "output": "Here."}
        record(empty_ws, tmp_path, "later", occurred_at="2026-01-05T08:20:00Z", **shared)
        shared["occurred_at"] = "2026-01-05T08:00:00Z"
        record(empty_ws, tmp_path, "near", **shared)
        record(empty_ws, tmp_path, "longer", input="Where is it?", output="Here.")
        record(empty_ws, tmp_path, "another-chat", session="c9", **shared)
        bring(empty_ws, openwebui)
        assert judged(empty_ws) == [("thumb", True, ["near"])]
        assert rated not in answers(empty_ws)

    def test_an_answer_that_nobody_recorded_is_stored(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"filer": "Here."}, NOON)
        openwebui.rate("c1", rated, 1, NOON + 20)
        note = {"openwebui_message_id": "of-another-message"}
        shared: dict[str, Any] = {"input": "Where?", "output": "Here.", "session": "c1"}
        record(empty_ws, tmp_path, "regenerated", metadata=note, **shared)
        record(empty_ws, tmp_path, "another", **shared | {"output": "There."})
        bring(empty_ws, openwebui)
        assert judged(empty_ws) == [("thumb", True, [rated])]

    def test_answers_that_are_all_recorded_are_not_looked_at_again(
        self, empty_ws: Workspace, openwebui: OpenWebUi, tmp_path: Path
    ) -> None:
        openwebui.ask("c1", "Where?", {"filer": "Here."}, NOON)
        record(empty_ws, tmp_path, "call-1", session="c1", input="Where?", output="Here.")
        report = bring(empty_ws, openwebui)
        assert (report.stored, report.left_out) == (0, {"its call is recorded": 1})
        assert bring(empty_ws, openwebui).read == 0

    def test_an_answer_that_went_on_after_its_first_import_stays_as_it_was(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"filer": "Here"}, NOON)
        openwebui.rate("c1", rated, 1, NOON + 20)
        bring(empty_ws, openwebui)
        openwebui.chats["c1"]["chat"]["history"]["messages"][rated]["content"] = "Here and there."
        openwebui.rate("c1", rated, -1, NOON + 30)
        report = bring(empty_ws, openwebui)
        assert (report.records, report.refused) == (Counter(feedback=1, thumb=1), 0)
        assert answers(empty_ws) == {rated: "Here"}

    def test_an_answer_that_was_edited_after_its_first_import_stays_one_trace(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"filer": "Hree."}, NOON)
        openwebui.rate("c1", rated, 1, NOON + 20)
        bring(empty_ws, openwebui)
        message = openwebui.chats["c1"]["chat"]["history"]["messages"][rated]
        message |= {"originalContent": "Hree.", "content": "Here."}
        openwebui.rate("c1", rated, -1, NOON + 30)
        report = bring(empty_ws, openwebui)
        assert report.refused == 0
        assert report.records == Counter(feedback=2, thumb=1, correction=1)
        assert answers(empty_ws) == {rated: "Hree."}


class TestFaults:
    @pytest.mark.parametrize(
        ("path", "reply", "words"),
        [
            ("/api/version", Reply(200, START_PAGE), r"no JSON.*Is it Open WebUI"),
            ("/api/version", Reply(200, {"name": "x"}), r"without a version.*Is it Open WebUI"),
            (
                "/api/v1/evaluations/feedbacks/all/ids",
                Reply(200, START_PAGE),
                r"version 0\.12\.4 does not answer as .*no JSON.*feedback export",
            ),
            (
                "/api/v1/evaluations/feedbacks/all/ids",
                Reply(200, [{"id": "../../secret", "updated_at": 1}]),
                r"'\.\./\.\./secret' is no id",
            ),
            (
                "/api/v1/evaluations/feedbacks/all/ids",
                Reply(200, [{"id": "a", "updated_at": "soon"}]),
                r"updated_at 'soon' is no number",
            ),
            ("/api/v1/chats/", Reply(200, {"detail": "x"}), r"answers with \{'detail'"),
            ("/api/v1/chats/", Reply(405, {"detail": "no"}), r"HTTP 405.*Update it"),
        ],
    )
    def test_another_server_or_version_is_named(
        self, path: str, reply: Reply, words: str, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        openwebui.faults[path] = reply
        with pytest.raises(InputError, match=words) as caught:
            bring(empty_ws, openwebui)
        assert caught.value.what == f"Open WebUI at {openwebui.url}"

    def test_a_refused_key_is_named_with_the_servers_words(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        with pytest.raises(InputError, match=r"refuses the key KEY_OF_EVE .*session has expired"):
            bring(empty_ws, openwebui, user="eve")
        for path in ("feedbacks/all/ids", "feedbacks/user"):
            detail = "Use of API key sk-ann is not enabled in the environment."
            openwebui.faults[f"/api/v1/evaluations/{path}"] = refusal(403, detail)
        with pytest.raises(InputError, match=r"403.*API key \*\*\* is not enabled") as caught:
            bring(empty_ws, openwebui)
        assert "sk-ann" not in str(caught.value)
        address = path_or_address(openwebui.url)
        openwebui.faults.clear()
        with pytest.raises(InputError, match=r"wants a key .*Not authenticated.*--key NAME"):
            ingest(empty_ws, "desk", "openwebui", address)

    def test_what_is_deleted_meanwhile_is_left_out(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"m": "Here."}, NOON)
        rating_id = openwebui.rate("c1", rated, 1, NOON)
        openwebui.faults[f"/api/v1/evaluations/feedback/{rating_id}"] = refusal(404, "gone")
        openwebui.faults["/api/v1/chats/c1"] = refusal(401, "gone")
        assert bring(empty_ws, openwebui).left_out == {"it was deleted meanwhile": 2}

    def test_a_broken_rating_or_chat_costs_no_other(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        for name in ("c1", "c2", "c3", "c4"):
            (rated,) = openwebui.ask(name, "Where?", {"m": f"In {name}."}, NOON)
            openwebui.rate(name, rated, 1, NOON)
        first, second, third, _ = openwebui.ratings.values()
        first["data"]["comment"] = "with \x00 in it"
        second["snapshot"]["chat"]["chat"]["history"] = []
        third["data"]["rating"] = "up"
        openwebui.chats["c1"]["chat"] = "none"
        openwebui.chats["c2"]["chat"]["history"]["messages"] = {"x": 7}
        report = bring(empty_ws, openwebui)
        assert report.refused == 5
        assert list(answers(empty_ws).values()) == ["In c4.", "In c3."]

    def test_a_list_without_an_end_ends(
        self, empty_ws: Workspace, openwebui: OpenWebUi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        openwebui.ask("c1", "Where?", {"m": "Here."}, NOON)
        page = [{"id": "c1", "updated_at": NOON}] * 60
        openwebui.faults["/api/v1/chats/"] = Reply(200, page)
        assert bring(empty_ws, openwebui).records == Counter(trace=1)
        monkeypatch.setattr(openwebui_server, "MOST_ENTRIES", 1)
        with pytest.raises(InputError, match=r"lists more than 1\b.*chats=none"):
            bring(empty_ws, openwebui, "?chats=own")

    def test_a_reply_that_is_too_long_ends_the_import(
        self, empty_ws: Workspace, openwebui: OpenWebUi, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (rated,) = openwebui.ask("c1", "Where?", {"m": "x" * 3_000}, NOON)
        openwebui.rate("c1", rated, 1, NOON)
        monkeypatch.setattr(server_api, "LONGEST_REPLY", 2_000)
        with pytest.raises(InputError, match="more than 2,000 bytes"):
            bring(empty_ws, openwebui)

    def test_an_address_that_cannot_be_meant(
        self, empty_ws: Workspace, openwebui: OpenWebUi
    ) -> None:
        with pytest.raises(InputError, match=r"\?chats=everyone.*\?chats=all"):
            bring(empty_ws, openwebui, "?chats=everyone")
        with pytest.raises(InputError, match=r"'agent' is unknown.*\?model=, \?chats=, \?since="):
            bring(empty_ws, openwebui, "?agent=a")


def test_the_command_leaves_the_key_in_no_row(
    command_line: Run, openwebui: OpenWebUi, tmp_path: Path
) -> None:
    (rated,) = openwebui.ask("c1", "Where?", {"m": "Here."}, NOON)
    openwebui.rate("c1", rated, 1, NOON)
    SecretStore(Home.at(tmp_path / "home").secrets).set("WEBUI", "sk-ann")
    arguments = ("import", "openwebui", openwebui.url, "--agent", "desk", "--key", "WEBUI")
    code, out, err = command_line(*arguments, "--dry-run")
    assert code == 0, err
    code, out, err = command_line(*arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["records"] == {"trace": 1, "feedback": 1, "thumb": 1}
    for file in (tmp_path / "home").rglob("*"):
        if file.is_file() and file.parent.name != "secrets":
            assert b"sk-ann" not in file.read_bytes(), file
    assert "sk-ann" not in out + err
