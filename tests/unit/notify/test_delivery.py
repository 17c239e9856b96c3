"""Notices to real receivers: signed, to addresses that are allowed, once, and tried again."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.approvals import approve
from tests.servers.notice_receivers import HttpReceiver, http_receiver, mail_server
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, DeliveryError, NotFound
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, store
from thumbwheel.jobs.types import JobState
from thumbwheel.loop import turn_store
from thumbwheel.loop.trigger_types import Pending, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis
from thumbwheel.notify.delivery import MOST_ATTEMPTS, deliver, dispatch, notice_of_test
from thumbwheel.notify.jobs import NotifySpec, run_notify
from thumbwheel.notify.notices import notices
from thumbwheel.notify.settings import NotifyConfig
from thumbwheel.notify.types import Notice

AGENT = Agent.named("support")
SECRET = "correct-horse-battery"
NOW = datetime(2026, 11, 28, 9, 0, tzinfo=UTC)
ADDRESSES = ("127.0.0.1",)


@contextmanager
def home(
    folder: Path, channels: Mapping[str, Any], private: tuple[str, ...] = ADDRESSES
) -> Iterator[Workspace]:
    section = {"channels": channels, "private": list(private), "url": "https://wheel.example/"}
    sources = Sources({"notify": section}, "thumbwheel.yaml", {})
    with Workspace.open(Home(folder / "home"), sources) as ws:
        SecretStore(ws.home.secrets).set("OPS", SECRET)
        yield ws


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as receiver:
        yield receiver


def webhook(receiver: HttpReceiver, **more: Any) -> dict[str, Any]:
    return {"kind": "webhook", "url": receiver.url, "secret": "OPS"} | more


def test_a_webhook_is_signed_with_its_time(tmp_path: Path, receiver: HttpReceiver) -> None:
    with home(tmp_path, {"ops": webhook(receiver)}) as ws:
        deliver(ws, "ops", notice_of_test(NOW))
        deliver(ws, "ops", notice_of_test(NOW))
    (headers, body), (again, _) = receiver.received
    timestamp = headers["x-thumbwheel-timestamp"]
    assert abs(int(timestamp) - time.time()) < 600
    content = f"{timestamp}.".encode() + body
    expected = hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()
    assert headers["x-thumbwheel-signature"] == f"v1={expected}"
    assert headers["x-thumbwheel-delivery"] == again["x-thumbwheel-delivery"]
    content = json.loads(body)
    assert (content["title"], content["url"]) == ("Thumbwheel: a test", "https://wheel.example/")


def test_slack_gets_its_payload_by_an_address_that_is_a_secret(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    with home(tmp_path, {"team": {"kind": "slack", "url_secret": "SLACK"}}) as ws:
        with pytest.raises(NotFound, match="secrets set SLACK"):
            deliver(ws, "team", notice_of_test(NOW))
        SecretStore(ws.home.secrets).set("SLACK", f"{receiver.url}/services/T0/B0/xyz")
        title = "support: <make> v3 & more live?"
        notice = Notice("k", "decision", "support", title, "v3 wins.", "/agents/support", NOW)
        deliver(ws, "team", notice)
    ((_, body),) = receiver.received
    assert json.loads(body) == {
        "text": "*support: &lt;make&gt; v3 &amp; more live?*\nv3 wins.\n"
        "<https://wheel.example/agents/support|Open>"
    }


def mail_channel(port: int, **more: Any) -> dict[str, Any]:
    to = ["lea@example.com", "ops@example.com"]
    basis = {"kind": "email", "host": "127.0.0.1", "port": port, "tls": "none", "to": to}
    return basis | {"sender": "wheel@example.com"} | more


def test_mail_arrives_at_a_mail_server(tmp_path: Path) -> None:
    with mail_server(password=SECRET) as mail:
        channels = {
            "mail": mail_channel(mail.port, user="wheel", secret="OPS"),
            "nobody": mail_channel(mail.port),
        }
        with home(tmp_path, channels) as ws:
            title, text = "support: Make v3\r\nBcc: x@y live?", "v3 answers 63 more right.\n."
            notice = Notice("k", "decision", "support", title, text, "/agents/support", NOW)
            deliver(ws, "mail", notice)
            with pytest.raises(DeliveryError, match="the mail server does not take it"):
                deliver(ws, "nobody", notice)
    ((recipients, letter),) = mail.letters
    assert recipients == ["lea@example.com", "ops@example.com"]
    assert letter["Subject"] == "support: Make v3 Bcc: x@y live?"
    assert letter["Bcc"] is None
    payload = letter.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert "v3 answers 63 more right." in payload.decode()
    assert "https://wheel.example/agents/support" in payload.decode()


def test_a_mail_server_that_refuses_somebody_is_an_error(tmp_path: Path) -> None:
    with mail_server(refused=("ops@example.com",)) as mail:
        channels = {"mail": mail_channel(mail.port)}
        with (
            home(tmp_path, channels) as ws,
            pytest.raises(DeliveryError, match="refuses 1 of 2 addresses"),
        ):
            deliver(ws, "mail", notice_of_test(NOW))
    assert [recipients for recipients, _ in mail.letters] == [["lea@example.com"]]


def test_a_password_never_goes_over_an_open_connection_by_default(tmp_path: Path) -> None:
    with mail_server(password=SECRET) as mail:
        channel = mail_channel(mail.port, user="wheel", secret="OPS") | {"tls": "starttls"}
        with (
            home(tmp_path, {"mail": channel}) as ws,
            pytest.raises(DeliveryError, match="SMTPNotSupportedError"),
        ):
            deliver(ws, "mail", notice_of_test(NOW))
    assert mail.letters == []


def test_a_private_address_has_to_be_allowed(tmp_path: Path, receiver: HttpReceiver) -> None:
    with mail_server() as mail:
        channels = {"ops": webhook(receiver), "mail": mail_channel(mail.port)}
        with home(tmp_path, channels, private=()) as ws:
            for name in channels:
                with pytest.raises(DeliveryError, match=r"loopback address.*notify\.private"):
                    deliver(ws, name, notice_of_test(NOW))
    assert (receiver.received, mail.letters) == ([], [])


def test_what_the_receiver_refuses_is_said_and_no_redirection_is_followed(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    receiver.statuses = [500, 302]
    with home(tmp_path, {"ops": webhook(receiver)}) as ws:
        for status in (500, 302):
            with pytest.raises(DeliveryError, match=f"answers HTTP {status}"):
                deliver(ws, "ops", notice_of_test(NOW))
    assert len(receiver.received) == 2
    with home(tmp_path, {"ops": webhook(receiver)}) as ws, pytest.raises(NotFound, match="ops"):
        deliver(ws, "opz", notice_of_test(NOW))


@pytest.mark.parametrize(
    ("channel", "why"),
    [
        ({"kind": "webhook", "url": "https://x.example"}, "needs secret"),
        ({"kind": "slack"}, "either url or url_secret"),
        ({"kind": "slack", "url": "https://u:pass@x.example"}, "url holds a secret"),
        ({"kind": "slack", "url": "file:///etc/passwd"}, "no http or https"),
        ({"kind": "email", "host": "mail.example"}, "needs host, sender and to"),
        (mail_channel(25, user="wheel"), "needs secret"),
        (mail_channel(25, to=["a@b.example\r\nRCPT"]), "no mail address"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, channel: dict[str, Any], why: str) -> None:
    sources = Sources({"notify": {"channels": {"ops": channel}}}, "thumbwheel.yaml", {})
    with pytest.raises(ConfigError, match=why):
        sources.load(NotifyConfig, "notify")


HOOK = "hooks.example/services/T0/B0/hidden"


@pytest.mark.parametrize(
    "channels",
    [
        {"ops": {"kind": "slack", "url": f"https://{HOOK}", "url_secret": "HOOK"}},
        {"ops": {"kind": "webhook", "url": f"https://{HOOK}"}},
        {"ops": {"kind": "slack", "url": HOOK}},
        {"ops": {"kind": "slack", "url": f"htps://{HOOK}"}},
        {"ops": {"kind": "slack", "url": [f"https://{HOOK}"]}},
        {"ops": {"kind": "slack", "url": {"value": f"https://{HOOK}"}}},
        {"ops": {"kind": "slack", "url": f"https://{HOOK}", "port": f"https://{HOOK}"}},
        {"ops": {"kind": "slack", "url": f"https://{HOOK}", "kinds": [f"https://{HOOK}"]}},
        {"Ops": {"kind": "slack", "url": f"https://{HOOK}"}},
        [{"kind": "slack", "url": f"https://{HOOK}"}],
    ],
)
def test_no_error_repeats_the_address_of_a_receiver(channels: Any) -> None:
    sources = Sources({"notify": {"channels": channels}}, "thumbwheel.yaml", {})
    with pytest.raises(ConfigError) as refused:
        sources.load(NotifyConfig, "notify")
    assert "hidden" not in str(refused.value)
    assert "channels" in str(refused.value)


def ask(ws: Workspace, folder: Path) -> None:
    """Put a decision into the inbox."""
    base = versions.ensure_base(ws, "support", "base", "f" * 64)
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    version = approve(ws, versions.add_candidate(ws, base, None, adapter), Basis.GOLD)
    pending = Pending(
        "dec_1",
        None,
        Wish.PROMOTE,
        version.id,
        version.name,
        "make v1 live?",
        {},
        WishState.WAITING,
        None,
        None,
        NOW,
        None,
    )
    ws.db.write(lambda connection: turn_store.add_pending(connection, AGENT.id, pending))


def attempt(ws: Workspace) -> None:
    """Do the jobs that wait, as a worker does."""
    waiting, _ = queue.jobs(ws, states=[JobState.QUEUED])
    for job in waiting:
        end: dict[str, Any] = {"ended_at": datetime.now(UTC)}
        state = JobState.SUCCEEDED
        try:
            run_notify(ws, NotifySpec(**job.spec))
        except DeliveryError as error:
            state = JobState.FAILED
            end["error"] = {"kind": "DeliveryError", "what": error.what, "why": error.why}
        _finish(ws, queue.job(ws, job.id), state, end)


def _finish(ws: Workspace, job: Any, state: JobState, end: Mapping[str, Any]) -> None:
    def work(connection: Any) -> None:
        now = datetime.now(UTC)
        store.move(connection, job, JobState.RUNNING, now, attempts=job.attempts + 1)
        (running,) = store.by_id(connection, job.id)
        store.move(connection, running, state, now, **end)

    ws.db.write(work)


def test_each_notice_goes_once_to_each_channel_that_wants_it(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    channels = {
        "ops": webhook(receiver),
        "jobs": webhook(receiver, kinds=["failed_job"]),
        "sales": webhook(receiver, agents=["sales"]),
    }
    with home(tmp_path, channels) as ws:
        ask(ws, tmp_path)
        (job,) = dispatch(ws, {}, NOW)
        assert (job.spec["channel"], job.agent) == ("ops", "support")
        attempt(ws)
        assert dispatch(ws, {}, NOW + timedelta(hours=1)) == []
        ((_, body),) = receiver.received
        content = json.loads(body)
        assert content["title"] == "support: Make v1 live?"
        assert content["text"].startswith("v1 answers 67 of 100 more test questions right")
        assert content["url"] == "https://wheel.example/agents/support"
        dead = {("support", "v1"): "connection refused"}
        (job,) = dispatch(ws, dead, NOW)
        assert job.spec["notice"]["kind"] == "dead_deployment"
        assert "connection refused" not in json.dumps(job.spec), "it may quote an address"


def test_nothing_is_sent_without_a_channel(tmp_path: Path) -> None:
    with home(tmp_path, {}) as ws:
        ask(ws, tmp_path)
        assert dispatch(ws, {}, NOW) == []
        (notice,) = notices(ws, AGENT, {}, NOW)
        assert notice.kind == "decision"


def test_a_receiver_that_is_down_is_tried_again_and_not_for_ever(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    receiver.statuses = [503] * 50
    with home(tmp_path, {"ops": webhook(receiver)}) as ws:
        ask(ws, tmp_path)
        dispatch(ws, {}, NOW)
        attempt(ws)
        assert dispatch(ws, {}, datetime.now(UTC)) == [], "it waits before it tries again"
        for tries in range(2, MOST_ATTEMPTS + 1):
            assert len(dispatch(ws, {}, datetime.now(UTC) + timedelta(hours=1))) == 1
            attempt(ws)
            assert len(receiver.received) == tries
        assert dispatch(ws, {}, datetime.now(UTC) + timedelta(hours=9)) == []
        (failed,), _ = queue.jobs(ws, states=[JobState.FAILED])
        assert failed.attempts == MOST_ATTEMPTS
        kinds = [notice.kind for notice in notices(ws, AGENT, {}, datetime.now(UTC))]
        assert kinds == ["decision"], "a delivery that failed is no notice itself"
        delivery_ids = {headers["x-thumbwheel-delivery"] for headers, _ in receiver.received}
        assert len(delivery_ids) == 1


def test_the_commands(
    tmp_path: Path, receiver: HttpReceiver, command_line: Callable[..., Any]
) -> None:
    with home(tmp_path, {}) as ws:
        ask(ws, tmp_path)
    folder = tmp_path / "home"
    settings = {"notify": {"channels": {"ops": webhook(receiver)}, "private": ["127.0.0.1"]}}
    config = tmp_path / "thumbwheel.yaml"
    config.write_text(json.dumps(settings))
    common = ("--home", str(folder), "--config", str(config), "notify")
    code, out, error = command_line(*common, "channels", "--json")
    assert code == 0, error
    (channel,) = json.loads(out)
    assert (channel["name"], channel["missing_secrets"]) == ("ops", [])
    code, out, _ = command_line(*common, "list", "--agent", "support", "--json")
    assert [notice["title"] for notice in json.loads(out)] == ["support: Make v1 live?"]
    code, _, _ = command_line(*common, "test", "ops")
    assert (code, len(receiver.received)) == (0, 1)
    receiver.statuses = [500]
    code, _, error = command_line(*common, "test", "ops")
    assert code == 12
    assert "answers HTTP 500" in error
    code, out, _ = command_line(*common, "send", "--json")
    assert [row["channel"] for row in json.loads(out)] == ["ops"]
