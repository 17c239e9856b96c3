"""Imports: every line accounted for, twice is once, any order, any crash, and feedback that finds
its trace."""

from __future__ import annotations

import gzip
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.public_data import public_data
from tests.worlds.sealed_calls import record_calls
from thumbwheel.capture import store
from thumbwheel.capture.cases import add_case, list_cases, read_cases
from thumbwheel.capture.feedback import add_feedback, feedback_stats, list_feedback
from thumbwheel.capture.ingest import ingest, rehearse, scope_of
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import InputError, NotFound, StorageError
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace, any_case
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.importers.types import TraceRecord
from thumbwheel.models.versions import ensure_base

Write = Callable[..., Path]


def open_home(path: Path) -> Workspace:
    return Workspace.open(Home.at(path), Sources({}, "none", {}))


@pytest.fixture
def stored_ws(tmp_path: Path) -> Iterator[Workspace]:
    with open_home(tmp_path / "home") as workspace:
        yield workspace


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_lines(*lines: dict[str, Any] | str, name: str = "lines.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(
            "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        )
        return path

    return write_lines


def trace(name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "trace",
        "id": name,
        "input": f"question {name}",
        "output": f"answer {name}",
        **more,
    }


def thumb(name: str, of: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "feedback",
        "id": name,
        "target": {"trace": of},
        "kind": "thumb",
        "value": True,
        "rater": "ann",
        **more,
    }


def rows(ws: Workspace, table: sa.Table) -> list[sa.RowMapping]:
    with ws.db.read() as connection:
        return list(
            connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings()
        )


def count(ws: Workspace, table: sa.Table) -> int:
    with ws.db.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


CAPTURED = (
    "sessions",
    "subjects",
    "raters",
    "messages",
    "cases",
    "traces",
    "steps",
    "feedback",
    "feedback_targets",
)


def dump(ws: Workspace) -> dict[str, list[dict[str, Any]]]:
    """All that was captured, without the time at which it was."""
    return {
        name: [
            {key: row[key] for key in row if key != "recorded_at"}
            for row in rows(ws, schema.metadata.tables[name])
        ]
        for name in CAPTURED
    }


def links(ws: Workspace) -> dict[str, str | None]:
    """External id of the feedback -> external id of what it is linked to."""
    names = {
        row["id"]: row["external_id"]
        for table in (schema.traces, schema.sessions, schema.feedback)
        for row in rows(ws, table)
    }
    return {
        names[row["feedback_id"]]: names.get(row["target_id"])
        for row in rows(ws, schema.feedback_targets)
    }


def accounted(report: ImportReport) -> bool:
    return report.read == report.stored + report.duplicates + report.refused


class TestRealFiles:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("source", "file", "lines", "counts"),
        [
            (
                "preference",
                "preferences/hh-rlhf-harmless-base-test.jsonl",
                1156,
                {"feedback": 1156, "preference": 1156},
            ),
            (
                "preference",
                "preferences/pandalm-testset-v1-3annotators.jsonl",
                404,
                {"feedback": 1212, "preference": 1212},
            ),
            (
                "graded",
                "math/gsm8k-model-solutions-graded.jsonl",
                652,
                {"case": 652, "trace": 2608, "feedback": 2608, "label": 2608},
            ),
        ],
    )
    def test_they_are_stored_once_and_whole(
        self, stored_ws: Workspace, source: str, file: str, lines: int, counts: dict[str, int]
    ) -> None:
        first = ingest(stored_ws, "a", source, public_data(file))
        assert (first.read, first.stored, first.duplicates, first.refused) == (lines, lines, 0, 0)
        assert counts.items() <= first.records.items()
        before = dump(stored_ws)
        second = ingest(stored_ws, "a", source, public_data(file))
        assert (
            second.read,
            second.stored,
            second.duplicates,
            second.refused,
            dict(second.records),
        ) == (lines, 0, lines, 0, {})
        assert dump(stored_ws) == before
        assert feedback_stats(stored_ws, "a").unresolved == 0

    def test_pandalm_raters_stay_apart(self, stored_ws: Workspace) -> None:
        ingest(
            stored_ws,
            "a",
            "preference",
            public_data("preferences/pandalm-testset-v1-3annotators.jsonl"),
        )
        stats = feedback_stats(stored_ws, "a")
        assert stats.raters == {"annotator1": 404, "annotator2": 404, "annotator3": 404}
        judged: dict[str, set[str]] = {}
        for row, targets in zip(*_feedback_with_targets(stored_ws), strict=True):
            judged.setdefault(",".join(targets), set()).add(json.dumps(row["value"]))
        assert sum(len(verdicts) > 1 for verdicts in judged.values()) > 30

    def test_graded_traces_belong_to_their_case(self, stored_ws: Workspace) -> None:
        ingest(stored_ws, "a", "graded", public_data("math/gsm8k-model-solutions-graded.jsonl"))
        inputs = {row["id"]: row["input_id"] for row in rows(stored_ws, schema.cases)}
        traces = rows(stored_ws, schema.traces)
        assert {inputs[row["case_id"]] == row["input_id"] for row in traces} == {True}
        assert {row["basis"] for row in rows(stored_ws, schema.cases)} == {"feedback"}
        assert {row["served_model"] for row in rows(stored_ws, schema.steps)} == {
            "6b_finetuning",
            "6b_verification",
            "175b_finetuning",
            "175b_verification",
        }


def _feedback_with_targets(ws: Workspace) -> tuple[list[sa.RowMapping], list[list[str]]]:
    feedback_rows = rows(ws, schema.feedback)
    targets: dict[str, list[str]] = {row["id"]: [] for row in feedback_rows}
    for row in rows(ws, schema.feedback_targets):
        targets[row["feedback_id"]].append(row["target_id"])
    return feedback_rows, [targets[row["id"]] for row in feedback_rows]


class TestLines:
    def test_every_line_is_accounted_for(
        self, stored_ws: Workspace, write: Write, tmp_path: Path
    ) -> None:
        rating = {"type": "feedback", "target": {"trace": "t1"}, "kind": "rating"}
        lines = [
            trace("t1"),
            "junk",
            thumb("f1", "t1"),
            trace("t1"),
            rating | {"value": 9},
            '{"type": "feedback", "kind": "rating", "value": NaN}',
            "",
            trace("t1", output="other"),
        ]
        path = write(*lines)
        rejects = tmp_path / "rejects.jsonl"
        report = ingest(stored_ws, "a", "jsonl", path, rejects=rejects)
        assert (report.read, report.stored, report.duplicates, report.refused) == (7, 2, 1, 4)
        assert [refusal["number"] for refusal in report.refusals] == [2, 5, 6, 8]
        rejected = [json.loads(line) for line in rejects.read_text().splitlines()]
        texts = path.read_text().splitlines()
        assert [(line["number"], line["text"]) for line in rejected] == [
            (number, texts[number - 1]) for number in (2, 5, 6, 8)
        ]
        assert "differs from what is stored" in rejected[-1]["reason"]
        assert rows(stored_ws, schema.traces)[0]["output"] == "answer t1"

    def test_what_was_refused_can_be_repaired_and_imported(
        self, stored_ws: Workspace, write: Write
    ) -> None:
        ingest(stored_ws, "a", "jsonl", write(trace("t1"), thumb("f1", "t1", value="up")))
        report = ingest(stored_ws, "a", "jsonl", write(trace("t1"), thumb("f1", "t1")))
        assert (report.stored, report.duplicates) == (1, 1)

    def test_a_line_is_stored_as_a_whole_or_not_at_all(
        self, stored_ws: Workspace, write: Write
    ) -> None:
        graded = {"question": "q", "answer": "#### 1", "m": {"is_correct": True, "solution": "1"}}
        ingest(stored_ws, "a", "graded", write(graded))
        (case,) = rows(stored_ws, schema.cases)
        stored_ws.db.write(lambda c: c.execute(schema.cases.update().values(fingerprint="0" * 64)))
        report = ingest(
            stored_ws,
            "a",
            "graded",
            write(
                graded | {"n": {"is_correct": False, "solution": "2"}}, graded | {"question": "r"}
            ),
        )
        assert (report.refused, report.stored) == (1, 1)
        assert count(stored_ws, schema.traces) == 2
        assert case["external_id"] in report.refusals[0]["reason"]

    def test_a_contradicting_rater_is_refused(self, stored_ws: Workspace, write: Write) -> None:
        lines = [
            trace("t1"),
            thumb("f1", "t1"),
            thumb("f2", "t1", rater={"id": "ann", "kind": "model"}),
            thumb("f3", "t1", rater={"id": "ann", "weight": 1.0}),
        ]
        report = ingest(stored_ws, "a", "jsonl", write(*lines))
        assert (report.stored, report.refused) == (3, 1)
        assert "stored as person" in report.refusals[0]["reason"]
        again = ingest(
            stored_ws,
            "a",
            "jsonl",
            write(thumb("f4", "t1", rater={"id": "ann", "weight": 2}), thumb("f5", "t1")),
        )
        assert "weight 2" in again.refusals[0]["reason"]

    def test_what_is_known_of_the_call_is_kept(self, stored_ws: Workspace, write: Write) -> None:
        call = {
            "first_token_at": "2026-01-05T08:30:00.250Z",
            "complete": False,
            "error": "the client left",
            "routing": {"arm": "b", "probabilities": {"a": 0.5, "b": 0.5}, "reason": "experiment"},
            "cost": 0.25,
            "tokens": {"prompt": 12, "completion": 3, "cached": 4, "reasoning": 1},
            "token_logprobs": [-0.5],
        }
        lines = [trace("t1", agent="support", steps=[{"kind": "llm", **call}])]
        assert record_calls(stored_ws, lines) == ["inbox: 1 lines stored"]
        (step,) = rows(stored_ws, schema.steps)
        assert step["first_token_at"] == datetime(2026, 1, 5, 8, 30, 0, 250_000, tzinfo=UTC)
        assert (step["complete"], step["error"]) == (False, "the client left")
        assert step["routing"] == call["routing"]
        assert step["cost"] == 0.25
        counts = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
        assert [step[name] for name in counts] == [12, 3, 4, 1]
        assert (step["token_ids"], step["token_logprobs"]) == (None, [-0.5])

    def test_a_model_version_must_exist(self, stored_ws: Workspace, write: Write) -> None:
        ensure_base(stored_ws, "a", "some/base", "0" * 64)
        report = ingest(
            stored_ws,
            "a",
            "jsonl",
            write(trace("t1", model_version="v0"), trace("t2", model_version="v7")),
        )
        assert "no version of agent 'a'" in report.refusals[0]["reason"]
        assert [row["model_version_id"] for row in rows(stored_ws, schema.steps)] == [None]
        record_calls(stored_ws, [trace("t3", agent="a", model_version="v0", deployment="dep_1")])
        record_calls(
            stored_ws, [trace("t4", agent="a", steps=[{"kind": "llm", "model_version": "v0"}])]
        )
        with_version = [bool(row["model_version_id"]) for row in rows(stored_ws, schema.steps)]
        assert sorted(with_version) == [False, False, True]

    def test_histories_are_stored_once(self, stored_ws: Workspace, write: Write) -> None:
        history = [
            {"role": "user" if i % 2 == 0 else "assistant", "content": f"turn {i}"}
            for i in range(9)
        ]
        ingest(
            stored_ws,
            "a",
            "jsonl",
            write(*[trace(f"t{n}", input=history[:n]) for n in (9, 3, 5, 7, 1)]),
        )
        assert count(stored_ws, schema.messages) == 9
        parents = {row["id"]: row["parent_id"] for row in rows(stored_ws, schema.messages)}
        ends = {row["external_id"]: row["input_id"] for row in rows(stored_ws, schema.traces)}
        depth = 0
        message_id: str | None = ends["t9"]
        while message_id:
            depth, message_id = depth + 1, parents[message_id]
        assert depth == 9

    def test_absent_values_are_null_and_times_are_utc(
        self, stored_ws: Workspace, write: Write
    ) -> None:
        ingest(stored_ws, "a", "jsonl", write(trace("t1", occurred_at="2026-01-05 09:00:00+01:00")))
        with stored_ws.db.read() as connection:
            query = sa.select(schema.traces.c.metadata.is_(None), schema.traces.c.occurred_at)
            is_null, occurred_at = connection.execute(query).one()
        assert is_null
        assert occurred_at == datetime(2026, 1, 5, 8, tzinfo=UTC)

    def test_agents_do_not_see_each_other(self, stored_ws: Workspace, write: Write) -> None:
        path = write(trace("t1"), thumb("f1", "t1"))
        assert ingest(stored_ws, "a", "jsonl", path).stored == 2
        assert ingest(stored_ws, "b", "jsonl", path).stored == 2
        ours = rows(stored_ws, schema.traces)[0]["id"]
        report = ingest(
            stored_ws,
            "b" if rows(stored_ws, schema.traces)[0]["agent_id"].endswith("x") else "c",
            "jsonl",
            write(thumb("f9", ours)),
        )
        assert report.stored == 1
        assert feedback_stats(stored_ws, "c").unresolved == 1

    def test_a_rehearsal_stores_nothing(self, stored_ws: Workspace, write: Write) -> None:
        report = rehearse(
            "a", "jsonl", write(trace("t1"), "junk", thumb("f1", "t1")), case_rule=any_case
        )
        assert (report.read, report.stored, report.refused, report.records["trace"]) == (3, 0, 1, 1)
        assert dump(stored_ws)["traces"] == []

    def test_a_file_of_another_source_says_which(self, stored_ws: Workspace, write: Write) -> None:
        with pytest.raises(InputError, match="It looks like source 'preference'"):
            ingest(stored_ws, "a", "jsonl", write({"prompt": "p", "chosen": "a", "rejected": "b"}))
        with pytest.raises(InputError, match=r"agent name '\.\./x'"):
            ingest(stored_ws, "../x", "jsonl", write(trace("t1")))

    def test_rejects_never_overwrite_the_input(
        self, stored_ws: Workspace, write: Write, tmp_path: Path
    ) -> None:
        path = write(trace("t1"))
        with pytest.raises(InputError, match="it is the file that is imported"):
            ingest(stored_ws, "a", "jsonl", path, rejects=path)
        with pytest.raises(InputError):
            ingest(stored_ws, "a", "jsonl", path, rejects=tmp_path)
        assert path.read_text()

    def test_an_archive_that_breaks_off_keeps_what_came_before(
        self, stored_ws: Workspace, tmp_path: Path
    ) -> None:
        noise = random.Random(1)
        whole = "".join(
            json.dumps(trace(f"t{i}", output=str(noise.random()))) + "\n" for i in range(5000)
        ).encode()
        packed = tmp_path / "torn.jsonl.gz"
        packed.write_bytes(gzip.compress(whole)[:-40_000])
        with pytest.raises(InputError, match="breaks off"):
            ingest(stored_ws, "a", "jsonl", packed)
        before = count(stored_ws, schema.traces)
        assert 500 < before < 5000
        packed.write_bytes(gzip.compress(whole))
        report = ingest(stored_ws, "a", "jsonl", packed)
        assert (report.duplicates, report.stored) == (before, 5000 - before)


class TestLinks:
    def test_feedback_before_its_trace(self, stored_ws: Workspace, write: Write) -> None:
        later = [
            thumb("f1", "t1"),
            thumb("f2", "s1", target={"session": "s1"}),
            thumb("f3", "t1", target={"step": ["t1", 0]}),
            thumb("f4", "t1", target={"step": ["t1", 5]}),
        ]
        ingest(stored_ws, "a", "jsonl", write(*later))
        assert feedback_stats(stored_ws, "a").unresolved == 4
        ingest(stored_ws, "a", "jsonl", write(trace("t1", session="s1")))
        assert links(stored_ws) == {"f1": "t1", "f2": "s1", "f3": "t1", "f4": None}

    def test_traces_of_another_source_are_found_when_only_one_has_the_name(
        self, stored_ws: Workspace, write: Write
    ) -> None:
        ingest(
            stored_ws,
            "a",
            "jsonl",
            write(
                thumb("f1", "t1"),
                thumb("f2", "t2"),
                thumb("f3", "t3", target={"trace": "t3", "source": "sdk"}),
            ),
        )
        ingest(
            stored_ws,
            "a",
            "jsonl",
            write(
                *[
                    trace(name, source=source)
                    for name in ("t1", "t2", "t3")
                    for source in ("sdk", "otel")
                ][:-3]
            ),
        )
        assert links(stored_ws) == {"f1": None, "f2": "t2", "f3": None}
        ingest(stored_ws, "a", "jsonl", write(trace("t3", source="otel"), trace("t1")))
        assert links(stored_ws) == {"f1": "t1", "f2": "t2", "f3": None}
        ingest(stored_ws, "a", "jsonl", write(trace("t3", source="sdk")))
        assert links(stored_ws)["f3"] == "t3"

    def test_our_own_ids_are_targets_too(self, stored_ws: Workspace, write: Write) -> None:
        ingest(stored_ws, "a", "jsonl", write(trace("t1")))
        (row,) = rows(stored_ws, schema.traces)
        ingest(stored_ws, "a", "jsonl", write(thumb("f1", row["id"])))
        assert links(stored_ws) == {"f1": "t1"}

    def test_parents_and_cases_may_come_later(self, stored_ws: Workspace, write: Write) -> None:
        ingest(stored_ws, "a", "jsonl", write(trace("child", parent="mother", case="c1")))
        ingest(
            stored_ws,
            "a",
            "jsonl",
            write(trace("mother"), {"type": "case", "id": "c1", "input": "q", "reference": 1}),
        )
        traces = {row["external_id"]: row for row in rows(stored_ws, schema.traces)}
        assert traces["child"]["parent_id"] == traces["mother"]["id"]
        assert traces["child"]["case_id"] == rows(stored_ws, schema.cases)[0]["id"]

    WORLD = (
        *[
            trace(
                f"t{i}",
                session=f"s{i % 2}",
                subject="u",
                occurred_at="2026-01-05T08:00:00Z",
                model="m",
            )
            for i in range(4)
        ],
        *[thumb(f"f{i}", f"t{i}", value=i % 2 == 0) for i in range(4)],
        {
            "type": "feedback",
            "id": "p",
            "targets": [{"trace": "t0"}, {"trace": "o1"}],
            "kind": "preference",
            "value": 1,
        },
        {
            "type": "feedback",
            "id": "r",
            "target": {"session": "s0"},
            "kind": "rating",
            "value": 4,
            "supersedes": "f1",
            "rater": "ann",
        },
        {
            "type": "feedback",
            "id": "st",
            "target": {"step": ["t2", 0]},
            "kind": "label",
            "value": "slow",
            "rater": {"id": "bot", "kind": "model"},
        },
        trace("o1", source="otel"),
        {"type": "case", "id": "c", "input": "question t1", "reference": "x", "slices": {"k": "v"}},
    )

    @pytest.mark.slow
    @given(order=st.permutations(WORLD), cut=st.integers(0, len(WORLD)))
    @settings(
        max_examples=12,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.differing_executors,  # it runs on two databases
        ],
    )
    def test_any_order_in_any_number_of_imports_gives_the_same_rows(
        self, tmp_path_factory: pytest.TempPathFactory, order: list[Any], cut: int
    ) -> None:
        folder = tmp_path_factory.mktemp("order")
        with open_home(folder / "one") as whole, open_home(folder / "two") as parts:
            path = folder / "lines.jsonl"
            path.write_text("\n".join(map(json.dumps, self.WORLD)))
            ingest(whole, "a", "jsonl", path)
            for part in (order[:cut], order[cut:]):
                path.write_text("\n".join(map(json.dumps, part)))
                if part:
                    ingest(parts, "a", "jsonl", path)
            assert dump(parts) == dump(whole)
            assert None not in links(whole).values()


class TestRecordedAnswers:
    def test_of_the_session_and_of_the_same_input(self, stored_ws: Workspace, write: Write) -> None:
        system = {"role": "system", "content": "Be brief."}
        hours = {"role": "user", "content": "Hours?"}
        tool = {"role": "tool", "tool_call_id": "t1", "content": "nine"}
        lines = [
            trace("a", session="c1", input=[system, hours, tool], output="Nine to five."),
            trace("b", session="c1", input="Is it wet?", output="Yes."),
            trace("c", input="Hours?", output="Nine."),
            trace("d", input="Days?", output="Seven."),
            trace("e", session="c1", input="Hours?", output=None),
        ]
        ingest(stored_ws, "desk", "jsonl", write(*lines))
        rated = TraceRecord(id="m1", session="c1", input="Hours?", output="Nine.")
        scope = scope_of(stored_ws, "desk", "openwebui")
        with stored_ws.db.read() as connection:
            ((message, answers),) = store.recorded_answers(connection, scope, [rated])
            (_, of_itself) = store.recorded_answers(
                connection, scope_of(stored_ws, "desk", "jsonl"), [rated]
            )[0]
        assert message.trace is rated and of_itself == []
        by_name = {answer.name: answer for answer in answers}
        assert by_name.keys() == {"a", "b", "c"}
        assert (by_name["a"].question, by_name["a"].session) == ("Hours?", "c1")
        assert by_name["c"].input_id == message.input_id and by_name["c"].session is None
        assert by_name["a"].as_target().source == "jsonl"


class TestCases:
    CASE: ClassVar = {
        "type": "case",
        "id": "c1",
        "input": "2 + 2?",
        "reference": "4",
        "checker": "exact_answer",
    }

    def test_only_the_owner_makes_gold(self, stored_ws: Workspace, write: Write) -> None:
        path = write(self.CASE)
        ingest(stored_ws, "a", "jsonl", path)
        assert [row["basis"] for row in rows(stored_ws, schema.cases)] == ["feedback"]
        report = ingest(stored_ws, "a", "jsonl", path, reviewer="ann")
        assert (report.stored, report.duplicates) == (1, 0)
        assert list_cases(stored_ws, "a")[1][0]["reviewer"] == "ann"
        again = ingest(stored_ws, "a", "jsonl", path)
        assert (again.stored, again.duplicates) == (0, 1)
        assert [row["basis"] for row in rows(stored_ws, schema.cases)] == ["gold"]
        assert ingest(stored_ws, "a", "jsonl", path, reviewer="ben").duplicates == 1

    def test_typed_cases(self, stored_ws: Workspace, tmp_path: Path) -> None:
        first = add_case(
            stored_ws,
            "a",
            "ann",
            input="hi",
            reference={"folder": "work"},
            checker="json_fields",
            slices={"topic": "mail"},
        )
        assert (
            add_case(
                stored_ws,
                "a",
                "ann",
                input="hi",
                reference={"folder": "work"},
                checker="json_fields",
                slices={"topic": "mail"},
            )
            == first
        )
        file = tmp_path / "cases.json"
        file.write_text(
            '[{"id": "c1", "input": "x", "reference": 1}, {"type": "case", "input": "y", '
            '"checker": "z"}]'
        )
        for fields in read_cases(file):
            add_case(stored_ws, "a", "ben", **fields)
        counts, listed = list_cases(stored_ws, "a", basis="gold")
        assert counts == {"gold": 3}
        assert {row["reviewer"] for row in listed} == {"ann", "ben"}
        with pytest.raises(InputError, match="differs from what is stored"):
            add_case(stored_ws, "a", "ann", id="c1", input="x", reference=2)
        with pytest.raises(InputError, match="neither"):
            add_case(stored_ws, "a", "ann", input="x")
        with pytest.raises(NotFound):
            list_cases(stored_ws, "a", basis="silver")
        for text in ("", "3", "[]", "{", "[1]"):
            file.write_text(text)
            with pytest.raises(InputError):
                read_cases(file)


class TestTyped:
    def test_add_list_stats(self, stored_ws: Workspace, write: Write) -> None:
        ingest(
            stored_ws,
            "a",
            "jsonl",
            write(trace("t1", session="s1"), thumb("f1", "t1", value=False)),
        )
        up = add_feedback(stored_ws, "a", "t1", "thumb", True, rater="ben", comment="fine")
        add_feedback(stored_ws, "a", rows(stored_ws, schema.traces)[0]["id"], "rating", 4)
        add_feedback(stored_ws, "a", "s1", "outcome", True, name="resolved")
        first = list_feedback(stored_ws, "a")[0]
        assert first["targets"][0]["kind"] == "session"
        assert [row["kind"] for row in list_feedback(stored_ws, "a", kind="thumb")] == [
            "thumb",
            "thumb",
        ]
        assert len(list_feedback(stored_ws, "a", limit=2)) == 2
        stats = feedback_stats(stored_ws, "a")
        assert (stats.signals["thumb"].count, stats.signals["thumb"].share) == (2, 0.5)
        assert stats.signals["rating"].share == 1.0
        assert "outcome resolved" in stats.signals
        add_feedback(stored_ws, "a", "t1", "thumb", False, supersedes=up)
        add_feedback(stored_ws, "a", "t1", "comment", "", retracts="f1")
        stats = feedback_stats(stored_ws, "a")
        assert (stats.signals["thumb"].count, stats.signals["thumb"].positive, stats.replaced) == (
            1,
            0,
            2,
        )
        assert json.dumps(stats.as_dict())

    def test_impossible_ones_are_refused_and_store_nothing(
        self, stored_ws: Workspace, write: Write
    ) -> None:
        ingest(stored_ws, "a", "jsonl", write(trace("t1"), trace("t1", source="otel")))
        with pytest.raises(InputError, match="matches several"):
            add_feedback(stored_ws, "a", "t1", "thumb", True)
        ours = rows(stored_ws, schema.traces)[0]["id"]
        for kind, value in (
            ("rating", 6),
            ("rating", float("nan")),
            ("score", -1),
            ("thumb", "up"),
            ("correction", " "),
            ("mood", 1),
        ):
            with pytest.raises(InputError):
                add_feedback(stored_ws, "a", ours, kind, value)
        with pytest.raises(NotFound, match="no trace or session"):
            add_feedback(stored_ws, "a", "t7", "thumb", True)
        with pytest.raises(NotFound, match="no feedback of that id"):
            add_feedback(stored_ws, "a", ours, "thumb", True, supersedes="f9")
        with pytest.raises(NotFound, match="no such agent"):
            add_feedback(stored_ws, "b", ours, "thumb", True)
        with pytest.raises(NotFound, match="Did you mean 'thumb'"):
            list_feedback(stored_ws, "a", kind="thumbs")
        assert count(stored_ws, schema.feedback) == 0


IMPORT = """
import resource, sys, time
from pathlib import Path
from thumbwheel.importers.import_report import ImportReport
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
with Workspace.open(Home.at(sys.argv[1]), Sources.read()) as ws:
    start = time.perf_counter()
    report = ingest(ws, "a", "jsonl", Path(sys.argv[2]))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(report.read, report.stored, report.duplicates, time.perf_counter() - start, memory)
"""


def importer(home: Path, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", IMPORT, str(home), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def figures(process: subprocess.Popen[str]) -> list[float]:
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return [float(word) for word in out.split()]


def big(path: Path, pairs: int, words: int = 20) -> Path:
    with path.open("w") as file:
        for i in range(pairs):
            more = {
                "session": f"s{i // 8}",
                "subject": "u",
                "input": f"question {i} " + "word " * words,
                "model": "m",
                "tokens": {"prompt": 50, "completion": 5},
            }
            file.write(
                json.dumps(trace(f"t{i}", occurred_at="2026-01-05T08:00:00Z", **more)) + "\n"
            )
            file.write(json.dumps(thumb(f"f{i}", f"t{i}", value=i % 3 == 0)) + "\n")
    return path


class TestCrashes:
    @pytest.mark.slow
    def test_killed_imports_are_completed_by_the_next(self, tmp_path: Path) -> None:
        file = big(tmp_path / "big.jsonl", 2000)
        home = tmp_path / "home"
        with open_home(home) as ws:
            rng = random.Random(7)
            killed = 0
            for least in sorted(rng.sample(range(1, 1900), 3)):
                child = importer(home, file)
                deadline = time.monotonic() + 60
                while (
                    child.poll() is None
                    and count(ws, schema.traces) < least
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.002)
                child.send_signal(signal.SIGKILL)
                child.communicate()
                killed += child.returncode == -signal.SIGKILL
            assert killed == 3
            before = count(ws, schema.traces)
            assert 0 < before < 2000
            report = ingest(ws, "a", "jsonl", file)
            assert (report.read, report.stored + report.duplicates, report.refused) == (
                4000,
                4000,
                0,
            )
            assert report.duplicates >= before
            with open_home(tmp_path / "other") as other:
                ingest(other, "a", "jsonl", file)
                assert dump(ws) == dump(other)

    def test_two_processes_at_once_store_everything_once(self, tmp_path: Path) -> None:
        file, home = big(tmp_path / "big.jsonl", 1000), tmp_path / "home"
        open_home(home).db.close()
        first, second = (
            figures(process) for process in [importer(home, file), importer(home, file)]
        )
        assert first[1] + second[1] == 2000
        assert first[0] == second[0] == 2000
        with open_home(home) as ws:
            assert (count(ws, schema.traces), count(ws, schema.feedback)) == (1000, 1000)
            assert feedback_stats(ws, "a").unresolved == 0

    def test_an_interrupt_keeps_what_was_committed(
        self, stored_ws: Workspace, tmp_path: Path
    ) -> None:
        file = big(tmp_path / "big.jsonl", 1000)

        def interrupt(position: int) -> None:
            if position > file.stat().st_size // 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ingest(stored_ws, "a", "jsonl", file, on_position=interrupt)
        before = count(stored_ws, schema.traces)
        assert 0 < before < 1000
        assert ingest(stored_ws, "a", "jsonl", file).stored == 2000 - 2 * before

    @pytest.mark.sqlite
    def test_a_full_disk_stops_the_import_and_loses_nothing(
        self, stored_ws: Workspace, tmp_path: Path
    ) -> None:
        file = big(tmp_path / "big.jsonl", 1500)
        pages = stored_ws.db.write(
            lambda c: int(c.exec_driver_sql("PRAGMA page_count").scalar_one())
        )
        stored_ws.db.write(
            lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages + 150}").scalar_one()
        )
        with pytest.raises(StorageError, match="disk is full"):
            ingest(stored_ws, "a", "jsonl", file)
        before = count(stored_ws, schema.traces) + count(stored_ws, schema.feedback)
        assert 0 < before < 3000
        stored_ws.db.write(
            lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1000000").scalar_one()
        )
        report = ingest(stored_ws, "a", "jsonl", file)
        assert report.stored == 3000 - before
        assert feedback_stats(stored_ws, "a").unresolved == 0


class TestSize:
    @pytest.mark.slow
    def test_memory_does_not_grow_with_the_file(self, tmp_path: Path) -> None:
        memory = []
        for pairs in (500, 4000):
            file = big(tmp_path / f"{pairs}.jsonl", pairs, words=1200)
            memory.append(figures(importer(tmp_path / f"home-{pairs}", file))[4])
        assert memory[1] - memory[0] < 25, memory

    @pytest.mark.repeat
    def test_a_hundred_thousand_pairs(self, tmp_path: Path) -> None:
        read, stored, _, seconds, memory = figures(
            importer(tmp_path / "home", big(tmp_path / "big.jsonl", 50_000))
        )
        small = figures(importer(tmp_path / "small", big(tmp_path / "small.jsonl", 2_000)))[4]
        print(f"{read / seconds:.0f} lines/s, {memory:.0f} MB (2,000 pairs: {small:.0f} MB)")
        assert stored == 100_000
        assert memory - small < 40
