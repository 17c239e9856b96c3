"""Fallbacks, budgets, keys, and which sessions are recorded."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.servers.scripted_upstream import (
    RESET,
    ScriptedUpstream,
    chat_reply,
    reply,
)
from tests.unit.server.conftest import Serve
from tests.worlds.gateway_world import CHAT, call_of, opened_home, running, serve_remote
from thumbwheel.access import keys
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.gateway import recorder
from thumbwheel.models.types import EndpointAddress


@pytest.mark.parametrize("failure", [[RESET], [reply(b"busy", "503 Busy", [])]])
def test_a_fallback_answers_and_the_record_says_so(
    serve: Serve, upstream: ScriptedUpstream, failure: list[object]
) -> None:
    gateway = serve(agents={"support": {"fallback": ["small"]}})
    with ScriptedUpstream() as second:
        serve_remote(gateway.ws, EndpointAddress(second.url, "small"), alias="small")
        second.requests.clear()
        upstream.script = lambda request: failure
        time.sleep(0.1)
        secrets = {"authorization": "Bearer of-the-first", "cookie": "login=1"}
        answer = gateway.ask(headers=secrets)
        assert upstream.requests[-1].header("authorization") == "Bearer of-the-first"
        assert upstream.requests[-1].header("cookie") is None
        assert answer.status_code == 200
        assert answer.headers["x-thumbwheel-version"] == "v1"
        assert json.loads(second.requests[0].body)["model"] == "small"
        assert second.requests[0].header("authorization") is None
        (line,) = gateway.lines()
        assert call_of(line)["model_version"] == "v1"
        assert "fallback from v0" in call_of(line)["routing"]["reason"]
        # An error that is the client's own is not tried elsewhere.
        upstream.script = lambda request: [reply(b"no", "400 Bad", [])]
        assert gateway.ask().status_code == 400 and len(second.requests) == 1
        # Where the fallback fails too, its own failure is what the client sees.
        second.script = lambda request: [reply(b"down", "500 Down", [])]
        upstream.script = lambda request: failure
        assert gateway.ask().status_code == 500


def test_calls_beyond_the_minute_and_the_day_are_refused(
    serve: Serve, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gateway = serve(agents={"support": {"requests_per_minute": 3, "tokens_per_day": 20}})
    assert gateway.ask().status_code == 200  # 15 tokens
    gateway.lines(1)
    assert gateway.ask().status_code == 200
    gateway.lines(2)
    refused = gateway.ask()
    assert refused.status_code == 402 and "20 tokens of today" in refused.json()["error"]["message"]
    assert len(upstream.requests) == 2 and len(gateway.lines(2)) == 2


def test_calls_beyond_the_minute_are_told_when_to_come_back(serve: Serve) -> None:
    gateway = serve(agents={"support": {"requests_per_minute": 2}})
    assert [gateway.ask().status_code for _ in range(3)] == [200, 200, 429]
    assert 1 <= int(gateway.ask().headers["retry-after"]) <= 60


def test_what_was_spent_outlives_a_restart(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    settings = {"agents": {"support": {"cost_per_day": 0.00006, "record": 0.0}}}
    with opened_home(tmp_path / "home", settings) as ws:
        address = EndpointAddress(upstream.url, "large", price_in=2.0, price_out=10.0)
        serve_remote(ws, address)
        with running(ws) as gateway:
            # 10 tokens of prompt and 5 of answer cost 0.00007
            assert gateway.ask().status_code == 200
        with running(ws) as gateway:
            refused = gateway.ask()
            assert refused.status_code == 402 and "6e-05" in refused.text
            assert "x-thumbwheel-trace" not in refused.headers


def test_a_call_that_is_not_recorded_for_want_of_room_is_charged(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_CALLS", 0)
    gateway = serve(agents={"support": {"tokens_per_day": 15}})
    assert [gateway.ask().status_code for _ in range(2)] == [200, 402]
    assert gateway.application.gateway.recorder.losses.count == 1


def test_a_key_says_whose_call_it_is_and_is_never_passed_on(
    serve: Serve, upstream: ScriptedUpstream
) -> None:
    gateway = serve(keys={"MOBILE": {"requests_per_minute": 3}}, require_key=True)
    mobile = keys.add(gateway.ws, "MOBILE", agents=["support"]).secret
    other = keys.add(gateway.ws, "OTHER", agents=["other"]).secret
    reader = keys.add(gateway.ws, "READER", verbs=["read"]).secret
    time.sleep(0.06)
    assert gateway.ask().status_code == 401
    for headers in (
        {"authorization": f"Bearer {mobile}"},
        {"x-api-key": mobile},
        {"api-key": mobile, "authorization": "Bearer sk-something-else"},
    ):
        assert gateway.ask({"model": "gpt-4o"}, headers=headers).status_code == 200
    assert gateway.ask(headers={"x-api-key": mobile}).status_code == 429
    assert gateway.ask(headers={"x-api-key": "tw_wrong"}).status_code == 401
    refused = gateway.ask(path=f"/a/support{CHAT}", headers={"x-api-key": other})
    assert refused.status_code == 403
    assert gateway.ask(headers={"x-api-key": reader}).status_code == 403
    for request in upstream.requests:
        assert "tw_" not in str(request.headers)
    assert all(mobile not in json.dumps(line) for line in gateway.lines(3))


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/support", "/api/tags", "/api/version"])
def test_lists_of_models_need_a_key_too_and_show_what_it_may_call(serve: Serve, path: str) -> None:
    gateway = serve(require_key=True)
    assert gateway.client.get(path).status_code == 401
    secret = keys.add(gateway.ws, "OTHER", agents=["other"]).secret
    time.sleep(0.06)
    answer = gateway.client.get(path, headers={"x-api-key": secret})
    assert answer.status_code == (404 if path.endswith("support") else 200)
    assert "support:live" not in answer.text


def test_guesses_of_keys_are_slowed_down(serve: Serve) -> None:
    gateway = serve(require_key=True)
    headers = {"x-api-key": f"tw_{'x' * 43}"}
    statuses = [gateway.client.get("/v1/models", headers=headers) for _ in range(70)]
    assert [answer.status_code for answer in statuses[:60]] == [401] * 60
    assert statuses[-1].status_code == 429 and int(statuses[-1].headers["retry-after"]) >= 1


def test_a_key_that_is_revoked_opens_nothing_after_50_ms(serve: Serve) -> None:
    gateway = serve()
    secret = keys.add(gateway.ws, "MOBILE").secret
    headers = {"authorization": f"Bearer {secret}"}
    time.sleep(0.06)
    assert gateway.ask(headers=headers).status_code == 200
    keys.revoke(gateway.ws, "MOBILE")
    time.sleep(0.06)
    assert gateway.ask(headers=headers).status_code == 401, "it is not passed on either"
    assert gateway.ask(headers={"authorization": "Bearer sk-of-the-app"}).status_code == 200


def test_the_upstreams_own_key_takes_the_place_of_the_apps(
    serve: Serve, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    SecretStore(tmp_path / "home" / "secrets").set("UPSTREAM", "sk-of-the-owner")
    gateway = serve()
    serve_remote(gateway.ws, EndpointAddress(upstream.url, "large", secret="UPSTREAM"))
    time.sleep(0.1)
    gateway.ask(headers={"authorization": "Bearer anything", "x-api-key": "y"})
    request = upstream.requests[-1]
    assert request.header("authorization") == "Bearer sk-of-the-owner"
    assert request.header("x-api-key") is None
    # A new value is used at once.
    SecretStore(tmp_path / "home" / "secrets").set("UPSTREAM", "sk-of-tomorrow")
    time.sleep(0.1)
    gateway.ask()
    assert upstream.requests[-1].header("authorization") == "Bearer sk-of-tomorrow"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"sk-two\nlines", 503),
        ("schlüssel".encode("latin-1"), 503),
        ("a folder", 503),
        ("nothing", 502),
    ],
)
def test_a_secret_that_cannot_be_used_stops_its_own_version_only(
    serve: Serve, upstream: ScriptedUpstream, tmp_path: Path, content: bytes | str, status: int
) -> None:
    store = SecretStore(tmp_path / "home" / "secrets")
    store.set("UPSTREAM", "sk-1")
    gateway = serve()
    serve_remote(gateway.ws, EndpointAddress(upstream.url, "b", secret="UPSTREAM"), alias="second")
    path = store.folder / "UPSTREAM"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "a folder":
        path.mkdir()  # as unreadable as a file of somebody else
    time.sleep(0.1)
    answer = gateway.ask({"model": "support:second"})
    assert answer.status_code == status and "secret 'UPSTREAM'" in answer.text
    assert "sk-two" not in answer.text
    assert gateway.ask().status_code == 200
    assert gateway.client.get("/health").status_code == 200


def test_an_anthropic_server_takes_its_key_as_it_wants(
    serve: Serve, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    SecretStore(tmp_path / "home" / "secrets").set("UPSTREAM", "sk-ant")
    gateway = serve()
    serve_remote(
        gateway.ws, EndpointAddress(upstream.url, "claude", "anthropic", secret="UPSTREAM")
    )
    time.sleep(0.1)
    gateway.ask(path="/v1/messages", headers={"x-api-key": "mine", "anthropic-version": "1"})
    request = upstream.requests[-1]
    assert (request.header("x-api-key"), request.header("anthropic-version")) == ("sk-ant", "1")
    assert request.header("authorization") is None


def test_sessions_are_recorded_as_a_whole(serve: Serve) -> None:
    gateway = serve(agents={"support": {"record": 0.5}})
    recorded: dict[str, set[bool]] = {}
    for number in range(24):
        for _ in range(2):
            answer = gateway.ask(headers={"x-thumbwheel-session": f"s{number}"})
            has_trace = "x-thumbwheel-trace" in answer.headers
            recorded.setdefault(f"s{number}", set()).add(has_trace)
    assert all(len(states) == 1 for states in recorded.values())
    whole = [session for session, states in recorded.items() if states == {True}]
    assert 3 < len(whole) < 21
    assert len(gateway.lines(2 * len(whole))) == 2 * len(whole)


def test_the_apps_own_name_for_its_feedback_is_the_trace(serve: Serve) -> None:
    gateway = serve()
    answer = gateway.ask(headers={"x-thumbwheel-feedback-id": "message-17"})
    assert answer.headers["x-thumbwheel-trace"] == "message-17"
    assert gateway.lines()[0]["id"] == "message-17"
    assert chat_reply() == answer.json()


def test_what_is_redacted_passes_and_is_in_no_file(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.script = lambda request: [reply(chat_reply("Write to ada@example.org"))]
    with opened_home(tmp_path / "home", redaction="strict") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as gateway:
            headers = {
                "x-thumbwheel-session": "eve@example.org",
                "x-thumbwheel-feedback-id": "of-bob@example.org",
            }
            message = {"role": "user", "content": "I am bob@example.org"}
            answer = gateway.ask({"messages": [message]}, headers=headers)
            assert "ada@example.org" in answer.text
            assert b"bob@example.org" in upstream.requests[-1].body
            (line,) = gateway.lines()
            assert line["output"] == "Write to [email removed]"
            assert answer.headers["x-thumbwheel-trace"] == line["id"]
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or b"example.org" not in path.read_bytes(), path
