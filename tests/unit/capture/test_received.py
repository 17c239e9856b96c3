"""Traces, feedback and spans over HTTP: durable when acknowledged, rows a moment later, refused
with a reason, in our words and in those of other servers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.public_data import public_data
from tests.unit.importers.test_otlp import as_protobuf
from tests.worlds.api_world import opened_api
from thumbwheel.capture import routes
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.capture.feedback_token import DAYS, FeedbackTokens
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.traces import list_traces, show_trace
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Full, Segment

TRACE = {"agent": "desk", "id": "t1", "input": "Opening hours?", "output": "Nine to five."}
FRAMEWORK = "otel-traces/any-agent-otlp-derived/tinyagent.otlp.json"


@pytest.fixture
def client(empty_ws: Workspace) -> Iterator[TestClient]:
    with client_of(Segment(empty_ws.home.inbox), empty_ws.home.path) as test_client:
        yield test_client


@contextmanager
def client_of(segment: Segment, home: Path) -> Iterator[TestClient]:
    router = routes.router(segment, FeedbackTokens.with_key(home / "feedback.key"))
    with opened_api(home, router) as api, TestClient(api) as test_client:
        yield test_client
    segment.close()


def rejected(ws: Workspace) -> list[str]:
    path = ws.home.inbox / "rejected.jsonl"
    return [json.loads(line)["reason"] for line in path.read_text().splitlines()]


def test_a_trace_and_its_feedback(client: TestClient, empty_ws: Workspace) -> None:
    answer = client.post("/api/traces", json=TRACE)
    assert (answer.status_code, answer.json()) == (202, {"ids": ["t1"]})
    row = {"agent": "desk", "trace": "t1", "thumb": False, "rater": "ann", "comment": "Wrong."}
    assert client.post("/api/feedback", json=row).status_code == 202
    drain_inbox(empty_ws)
    (trace,) = list_traces(empty_ws, "desk").traces
    assert (trace.external_id, trace.output, trace.feedback) == (
        "t1",
        "Nine to five.",
        ["thumb down"],
    )
    (feedback,) = list_feedback(empty_ws, "desk")
    assert (feedback["rater"], feedback["comment"]) == ("ann", "Wrong.")
    assert feedback["targets"][0]["target_id"] == trace.id


def test_feedback_may_come_before_its_trace_and_be_taken_back(
    client: TestClient, empty_ws: Workspace
) -> None:
    thumb = {"agent": "desk", "id": "f1", "trace": "t1", "thumb": True, "rater": "ann"}
    client.post("/api/feedback", json=thumb)
    drain_inbox(empty_ws)
    client.post("/api/traces", json=TRACE)
    drain_inbox(empty_ws)
    assert list_traces(empty_ws, "desk").traces[0].feedback == ["thumb up"]
    answer = client.post("/api/feedback", json={"agent": "desk", "retracts": "f1", "rater": "ann"})
    assert answer.status_code == 202, answer.text
    drain_inbox(empty_ws)
    assert list_traces(empty_ws, "desk").traces[0].feedback == []


def test_a_batch_stores_what_it_can(client: TestClient, empty_ws: Workspace) -> None:
    rows = [TRACE, {"agent": "desk", "output": "?"}, 7, {**TRACE, "id": "t2"}]
    answer = client.post("/api/traces", json=rows).json()
    assert answer["ids"] == ["t1", None, None, "t2"]
    assert [refusal["index"] for refusal in answer["refused"]] == [1, 2]
    assert answer["refused"][0]["reason"] == "key 'input' is missing"
    lines = "\n".join(json.dumps({**TRACE, "id": f"l{i}"}) for i in range(3)) + "\n"
    headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    packed = gzip.compress(lines.encode())
    assert client.post("/api/traces", content=packed, headers=headers).json()["ids"] == [
        "l0",
        "l1",
        "l2",
    ]
    drain_inbox(empty_ws)
    assert len(list_traces(empty_ws, "desk").traces) == 5


def test_a_request_that_is_sent_again_is_stored_once(
    client: TestClient, empty_ws: Workspace
) -> None:
    row = {key: TRACE[key] for key in ("input", "output")}
    headers = {"idempotency-key": "k1", "x-thumbwheel-agent": "desk"}
    answers = [client.post("/api/traces", json=[row, row], headers=headers) for _ in range(2)]
    names = answers[0].json()["ids"]
    assert len(set(names)) == 2 and answers[1].json() == {"ids": names}
    for _ in range(2):
        client.post("/api/feedback", json={"trace": names[0], "thumb": True}, headers=headers)
    drain_inbox(empty_ws)
    assert len(list_traces(empty_ws, "desk").traces) == 2
    (judgement,) = list_feedback(empty_ws, "desk")
    assert judgement["occurred_at"] is not None
    assert not (empty_ws.home.inbox / "rejected.jsonl").exists()


def test_the_agent_may_stand_in_the_path(client: TestClient, empty_ws: Workspace) -> None:
    row = {key: TRACE[key] for key in ("id", "input", "output")}
    assert client.post("/a/Support Bot/api/traces", json=row).status_code == 202
    drain_inbox(empty_ws)
    assert [trace.external_id for trace in list_traces(empty_ws, "support-bot").traces] == ["t1"]
    answer = client.post("/api/traces", json=row)
    assert answer.status_code == 422 and "names no agent" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("row", "kind", "name", "value"),
    [
        ({"inference_id": "t1", "metric_name": "thumbs", "value": True}, "thumb", None, True),
        ({"inference_id": "t1", "metric_name": "solved", "value": True}, "outcome", "solved", True),
        (
            {"inference_id": "t1", "metric_name": "comment", "value": "So-so."},
            "comment",
            None,
            "So-so.",
        ),
        (
            {"inference_id": "t1", "metric_name": "demonstration", "value": "Ten to six."},
            "correction",
            None,
            "Ten to six.",
        ),
        ({"episode_id": "s1", "metric_name": "tickets", "value": 7}, "label", "tickets", "7"),
    ],
)
def test_feedback_as_tensorzero_spells_it(
    row: dict[str, Any],
    kind: str,
    name: str | None,
    value: object,
    client: TestClient,
    empty_ws: Workspace,
) -> None:
    headers = {"x-thumbwheel-agent": "desk"}
    answer = client.post("/feedback", json={**row, "tags": {"a": "b"}}, headers=headers)
    assert answer.status_code == 200 and answer.json()["feedback_id"]
    dry = client.post("/feedback", json={**row, "dryrun": True}, headers=headers)
    assert dry.status_code == 200
    drain_inbox(empty_ws)
    (feedback,) = list_feedback(empty_ws, "desk")
    assert (feedback["kind"], feedback["name"], feedback["value"]) == (kind, name, value)
    assert feedback["metadata"] == {"tags": {"a": "b"}}


@pytest.mark.parametrize(
    ("row", "kind", "value"),
    [
        ({"name": "user-feedback", "value": 1}, "thumb", True),
        ({"name": "user-feedback", "value": 1, "dataType": "BOOLEAN"}, "thumb", True),
        ({"name": "stars", "value": 4}, "rating", 4),
        ({"name": "tone", "value": "rude", "dataType": "CATEGORICAL"}, "label", "rude"),
        ({"name": "output", "value": "Ten.", "dataType": "CORRECTION"}, "correction", "Ten."),
    ],
)
def test_scores_as_langfuse_spells_them(
    row: dict[str, Any], kind: str, value: object, client: TestClient, empty_ws: Workspace
) -> None:
    score = {"id": "x1", "traceId": "t1", **row}
    answer = client.post("/a/desk/api/public/scores", json=score)
    assert (answer.status_code, answer.json()) == (200, {"id": "x1"})
    drain_inbox(empty_ws)
    (feedback,) = list_feedback(empty_ws, "desk")
    assert (feedback["kind"], feedback["value"]) == (kind, value)


def test_scores_as_langfuses_sdks_send_them(client: TestClient, empty_ws: Workspace) -> None:
    body = {"id": "x1", "traceId": "t1", "name": "user-feedback", "value": 1}
    event = {"id": "e1", "type": "score-create", "timestamp": "2026-01-05T08:30:00Z", "body": body}
    batch = [
        event,
        event | {"id": "e2", "type": "trace-create"},
        event | {"id": "e3", "body": body | {"value": None}},
        event | {"id": "e4", "body": 7},
        event | {"id": "e5", "timestamp": "yesterday"},
        event | {"id": [None, {}], "type": "trace-create"},
    ]
    path = "/a/desk/api/public/ingestion"
    answer = client.post(path, json={"batch": batch, "metadata": {"sdk_name": "python"}})
    assert answer.status_code == 207
    assert answer.json()["successes"] == [{"id": "e1", "status": 201}]
    errors = answer.json()["errors"]
    assert [(error["id"], error["status"]) for error in errors] == [
        ("e2", 400),
        ("e3", 400),
        ("e4", 400),
        ("e5", 400),
        (None, 400),
    ]
    assert client.post(path, json={"batch": [event]}).status_code == 207  # it is sent again
    drain_inbox(empty_ws)
    (feedback,) = list_feedback(empty_ws, "desk")
    assert (feedback["kind"], feedback["value"]) == ("thumb", True)
    for broken in ({"batch": 7}, {"batch": [7]}, [], {}):
        assert client.post(path, json=broken).status_code == 400


@pytest.mark.parametrize("encoding", ["application/json", "application/x-protobuf"])
def test_spans_of_a_run_in_several_requests(
    encoding: str, client: TestClient, empty_ws: Workspace
) -> None:
    request = json.loads(public_data(FRAMEWORK).read_text())
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    headers = {"content-type": encoding, "x-thumbwheel-agent": "desk"}
    parts = [spans[:3], spans[3:], spans[3:4]]
    for number, part in enumerate(parts):
        body = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": part}]}]}
        content = json.dumps(body).encode() if encoding == "application/json" else as_protobuf(body)
        answer = client.post("/v1/traces", content=content, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == encoding
        assert answer.content in (b"", b"{}")
        drain_inbox(empty_ws)
        assert list_traces(empty_ws, "desk").traces == [], number  # more of the run may come
    drain_inbox(empty_ws, everything=True)
    (trace,) = list_traces(empty_ws, "desk").traces
    shown = show_trace(empty_ws, "desk", trace.id)
    assert len(shown["steps"]) == len(spans) - 1
    assert shown["external_id"] == spans[0]["traceId"]
    drain_inbox(empty_ws, everything=True)
    assert len(list_traces(empty_ws, "desk").traces) == 1


def test_what_is_wrong_with_spans_is_said_and_the_rest_is_kept(
    client: TestClient, empty_ws: Workspace
) -> None:
    request = json.loads(public_data(FRAMEWORK).read_text())
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    nul = {**spans[0], "spanId": "1" * 16, "name": "a\x00b"}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [*spans, nul]}]}]}
    answer = client.post("/a/desk/v1/traces", json=body).json()
    assert answer["partialSuccess"]["rejectedSpans"] == "1"
    assert "NUL" in answer["partialSuccess"]["errorMessage"]
    nameless = client.post("/v1/traces", json=body).json()["partialSuccess"]
    assert nameless["rejectedSpans"] == str(len(spans) + 1)
    assert "OTEL_SERVICE_NAME" in nameless["errorMessage"]
    drain_inbox(empty_ws, everything=True)
    assert len(list_traces(empty_ws, "desk").traces) == 1


def test_evaluation_results_as_logs(client: TestClient, empty_ws: Workspace) -> None:
    pairs = [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "thumbs"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1}},
    ]
    record = {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "eventName": "gen_ai.evaluation.result",
        "attributes": pairs,
    }
    other = {"body": {"stringValue": "a line of a log"}}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, other]}]}]}
    assert client.post("/a/desk/v1/logs", json=body).json() == {}
    drain_inbox(empty_ws)
    (feedback,) = list_feedback(empty_ws, "desk")
    assert (feedback["kind"], feedback["value"]) == ("thumb", True)


@pytest.mark.parametrize("path", ["/api/traces", "/api/feedback", "/v1/traces", "/v1/logs"])
@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"not gzip", {"content-encoding": "gzip"}, 400),
        (gzip.compress(b"{}", mtime=0)[:-4], {"content-encoding": "gzip"}, 400),
        (b"{}", {"content-encoding": "br"}, 415),
        (gzip.compress(bytes(65 * 2**20)), {"content-encoding": "gzip"}, 413),
        (zlib.compress(bytes(65 * 2**20)), {"content-encoding": "deflate"}, 413),
        (bytes(17 * 2**20), {}, 413),
    ],
)
def test_hostile_bodies(
    path: str, content: bytes, headers: dict[str, str], status: int, client: TestClient
) -> None:
    answer = client.post(
        path, content=content, headers={"content-type": "application/json", **headers}
    )
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"thumb": True, "rating": 4, "trace": "t"}, "it has 2 of thumb"),
        ({"trace": "t"}, "it has 0 of thumb"),
        ({"trace": "t", "target": {"trace": "t"}, "thumb": True}, "both trace and target"),
        ({"trace": "t", "thumb": "yes"}, "neither true (up) nor false (down)"),
        ({"trace": "t", "rating": 9}, "outside its scale"),
        ({"type": "case", "trace": "t", "thumb": True}, "type 'case' is not 'feedback'"),
        ({"trace": "t", "thumb": True, "spam": 1}, "key 'spam' is unknown"),
        ({"trace": "a\x00b", "thumb": True}, "NUL"),
    ],
)
def test_feedback_that_cannot_be_is_refused(
    row: dict[str, Any], reason: str, client: TestClient
) -> None:
    answer = client.post("/a/desk/api/feedback", json=row)
    assert answer.status_code in (400, 422)
    assert reason in answer.json()["detail"]


def test_a_gold_case_never_comes_in_by_http(client: TestClient) -> None:
    case = {"type": "case", "input": "2 + 2?", "reference": "4"}
    assert client.post("/a/desk/api/traces", json=case).status_code == 422


class FullSegment(Segment):
    """A segment whose disk does not keep up."""

    def append_all(self, lines: object) -> Any:
        raise Full(self.inbox)


def test_too_much_waits(empty_ws: Workspace) -> None:
    with client_of(FullSegment(empty_ws.home.inbox), empty_ws.home.path) as client:
        answer = client.post("/api/traces", json=TRACE)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert drain_inbox(empty_ws) == []


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with client_of(Segment(tmp_path / "file" / "inbox"), tmp_path) as client:
        answer = client.post("/api/traces", json=TRACE)
    assert answer.status_code == 507
    assert "the disk refuses it: File exists" in answer.json()["detail"]


def test_what_contradicts_a_stored_row_is_set_aside(
    client: TestClient, empty_ws: Workspace
) -> None:
    client.post("/api/traces", json=TRACE)
    drain_inbox(empty_ws)
    client.post("/api/traces", json={**TRACE, "output": "Never."})
    drain_inbox(empty_ws)
    assert rejected(empty_ws) == ["trace 't1' differs from what is stored under that id"]


class TestTokens:
    """What a web page may do with the token of one trace."""

    def token(self, client: TestClient, trace: str = "t1") -> dict[str, str]:
        answer = client.post("/a/desk/api/feedback-tokens", json={"trace": trace})
        assert answer.status_code == 201, answer.text
        return {"authorization": f"Bearer {answer.json()['token']}"}

    def test_it_judges_its_trace(self, client: TestClient, empty_ws: Workspace) -> None:
        headers = self.token(client)
        row = {"trace": "t1", "id": "f1", "correction": "Ten to six."}
        answers = [client.post("/a/desk/api/feedback", json=row, headers=headers) for _ in "ab"]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].headers["access-control-allow-origin"] == "*"
        drain_inbox(empty_ws)
        (feedback,) = list_feedback(empty_ws, "desk")
        assert feedback["value"] == "Ten to six."

    @pytest.mark.parametrize(
        ("path", "row", "reason"),
        [
            ("/a/desk/api/feedback", {"trace": "t2", "thumb": True}, "not for trace 't2'"),
            ("/a/other/api/feedback", {"trace": "t1", "thumb": True}, "of agent 'other'"),
            ("/a/desk/api/feedback", {"session": "t1", "thumb": True}, "valid for one trace"),
            ("/a/desk/api/feedback", {"retracts": "f1"}, "valid for one trace"),
            (
                "/a/desk/api/feedback",
                {"trace": "t1", "retracts": "f1"},
                "cannot take feedback back",
            ),
            (
                "/a/desk/api/feedback",
                {"trace": "t1", "thumb": True, "supersedes": "f1"},
                "cannot take feedback back",
            ),
        ],
    )
    def test_it_does_nothing_else(
        self, path: str, row: dict[str, Any], reason: str, client: TestClient, empty_ws: Workspace
    ) -> None:
        answer = client.post(path, json=row, headers=self.token(client))
        assert answer.status_code == 403, answer.text
        assert reason in answer.json()["detail"]
        assert drain_inbox(empty_ws) == []

    def test_a_number_is_an_id_too(self, client: TestClient, empty_ws: Workspace) -> None:
        answer = client.post("/a/desk/api/feedback-tokens", json={"trace": 7})
        assert answer.json()["trace"] == "7"
        headers = {"authorization": f"Bearer {answer.json()['token']}"}
        for trace in (7, "7"):
            row = {"trace": trace, "thumb": True, "id": f"f{trace!r}"}
            assert client.post("/a/desk/api/feedback", json=row, headers=headers).status_code == 202

    def test_several_judgements_are_refused_when_one_is_not_about_the_trace(
        self, client: TestClient, empty_ws: Workspace
    ) -> None:
        rows = [{"trace": "t1", "thumb": True}, {"trace": "t2", "thumb": True}]
        answer = client.post("/a/desk/api/feedback", json=rows, headers=self.token(client))
        assert answer.status_code == 403
        assert drain_inbox(empty_ws) == []

    def test_a_page_of_another_site_may_ask_first(self, client: TestClient) -> None:
        answer = client.options("/a/desk/api/feedback")
        assert answer.status_code == 204
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-origin" not in client.post("/api/traces", json=TRACE).headers

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://testserver:81"])
    def test_without_one_a_page_of_another_site_stores_nothing(
        self, origin: str, client: TestClient, empty_ws: Workspace
    ) -> None:
        row = {"trace": "t1", "thumb": True}
        for headers in ({}, {"authorization": "Bearer of-the-page"}):
            headers["origin"] = origin
            answer = client.post("/a/desk/api/feedback", json=row, headers=headers)
            assert answer.status_code == 403, answer.text
        assert drain_inbox(empty_ws) == []
        answer = client.post(
            "/a/desk/api/feedback", json=row, headers={"origin": "http://testserver"}
        )
        assert answer.status_code == 202
        headers = self.token(client) | {"origin": origin}
        assert client.post("/a/desk/api/feedback", json=row, headers=headers).status_code == 202

    def test_forged_and_old_ones(self, empty_ws: Workspace, tmp_path: Path) -> None:
        tokens = FeedbackTokens.with_key(empty_ws.home.feedback_key)
        token = tokens.make("desk", "t1", "key_1", now=0)
        assert tokens.objection(token, "desk", "t1", now=DAYS * 86_400 - 1) is None
        assert tokens.objection(token, "desk", "t1", now=(DAYS + 1) * 86_400 + 1) == (
            "the feedback token has expired"
        )
        head, expires, maker, mac = token.split(".")
        later, other_maker = int(expires) + 1, "key_2"
        tokens_of_others = (
            f"{head}.{later}.{maker}.{mac}",
            f"{head}.{expires}.{other_maker}.{mac}",
        )
        for forged in (*tokens_of_others, f"{token}0", "f2...", token.upper()):
            assert tokens.objection(forged, "desk", "t1", now=0) is not None
        other = FeedbackTokens.with_key(tmp_path / "key")
        assert other.objection(token, "desk", "t1", now=0) is not None
        assert empty_ws.home.feedback_key.stat().st_mode & 0o077 == 0
