"""Two servers of one home: processes with a folder each, over one PostgreSQL database."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases
from tests.servers.scripted_upstream import ScriptedUpstream
from tests.servers.thumbwheel_server import ThumbwheelServer, running
from tests.waiting import until
from tests.worlds.gateway_world import AGENT, CHAT, HELLO, LOOPBACK, serve_remote
from thumbwheel.access import audit, keys, users
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import cluster
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]
PASSWORD = "correct horse battery"
CALLS, TOKENS, ROWS = 6, 100, 3
"""What the settings allow in a minute, and in a day."""
SETTINGS = {
    "THUMBWHEEL_GATEWAY__REQUIRE_KEY": "true",
    "THUMBWHEEL_GATEWAY__KEYS": json.dumps(
        {"often": {"requests_per_minute": CALLS}, "much": {"tokens_per_day": TOKENS}}
    ),
    "THUMBWHEEL_QUOTAS__KEYS": json.dumps({"rows": {"rows_per_day": ROWS}}),
}


@dataclass(frozen=True)
class Hosts:
    """Two servers; `secrets` are the keys that were made for the first one's folder."""

    servers: tuple[ThumbwheelServer, ThumbwheelServer]
    folders: tuple[Path, Path]
    secrets: dict[str, str]
    environment: dict[str, str]

    def call(self, host: int, key: str) -> int:
        """The status of a call to the model."""
        return self.ask(host, CHAT, key, json=HELLO).status_code

    def ask(self, host: int, path: str, key: str, **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.secrets.get(key, key)}"}
        url = f"{self.servers[host].url}{path}"
        return httpx2.post(url, headers=headers, timeout=60, trust_env=False, **more)

    def opened(self, host: int) -> Workspace:
        sources = Sources({}, "none", self.environment)
        return Workspace.open(Home.at(self.folders[host]), sources)


@pytest.fixture(scope="module")
def hosts(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    url = databases.migrated()
    folders = (tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second"))
    key = base64.b64encode(os.urandom(32)).decode()
    environment = {"THUMBWHEEL_DATABASE": url, "THUMBWHEEL_CLUSTER_KEY": key}
    verbs = ("call", "rate", "edit", "run", "read")
    with ScriptedUpstream() as upstream:
        sources = Sources({"endpoints": LOOPBACK}, "thumbwheel.yaml", environment)
        with Workspace.open(Home.at(folders[0]), sources) as ws:
            serve_remote(ws, EndpointAddress(upstream.url, "large-2026"))
            names = ("app", "often", "much", "rows")
            secrets = {name: keys.add(ws, name, verbs=verbs).secret for name in names}
            users.add(ws, "ann", password=PASSWORD, role="owner")
        cluster.initialise(Home.at(folders[0]), environment)
        cluster.join(Home.at(folders[1]), environment)
        variables = environment | SETTINGS
        with (
            running(folders[0], variables, workers=1) as first,
            running(folders[1], variables, workers=1) as second,
        ):
            yield Hosts((first, second), folders, secrets, environment)
    databases.drop(url)


def test_a_key_of_one_host_is_accepted_and_revoked_on_the_other(hosts: Hosts) -> None:
    assert [hosts.call(host, "app") for host in (0, 1)] == [200, 200]
    assert [hosts.call(host, "tw_of-nobody") for host in (0, 1)] == [401, 401]
    with hosts.opened(1) as ws:
        secret = keys.add(ws, "new").secret
        until(lambda: hosts.call(0, secret) == 200)
        keys.revoke(ws, "new")
    until(lambda: [hosts.call(host, secret) for host in (0, 1)] == [401, 401])


def test_a_session_and_a_token_of_one_host_count_on_the_other(hosts: Hosts) -> None:
    first, second = (server.url for server in hosts.servers)
    with httpx2.Client(base_url=first, timeout=60, trust_env=False) as browser:
        answer = browser.post("/api/login", json={"name": "ann", "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        cookie = browser.cookies.get("thumbwheel_session")
        token = browser.post(
            "/api/web-tokens", json={}, headers={"x-csrf-token": answer.json()["csrf"]}
        ).json()["token"]
    for headers in (
        {"cookie": f"thumbwheel_session={cookie}"},
        {"authorization": f"Bearer {token}"},
    ):
        shown = httpx2.get(f"{second}/api/whoami", headers=headers, timeout=60, trust_env=False)
        assert (shown.status_code, shown.json()["name"]) == (200, "ann")


def test_the_calls_of_a_minute_are_counted_together(hosts: Hosts) -> None:
    assert [hosts.call(host, "often") for host in (0, 1)] == [200, 200]
    with hosts.opened(0) as ws:
        query = "SELECT calls + previous FROM call_windows WHERE name = 'key often'"
        with ws.db.read() as connection:
            assert connection.exec_driver_sql(query).scalar_one() == 2
        # so many that it takes two minutes until the next one is allowed
        many = sa.text("UPDATE call_windows SET calls = 1000000 WHERE name = 'key often'")
        ws.db.write(lambda connection: connection.execute(many))
    for host in (0, 1):
        refused = hosts.ask(host, CHAT, "often", json=HELLO)
        assert refused.status_code == 429 and f"{CALLS} calls a minute" in refused.text
        assert 1 <= int(refused.headers["retry-after"]) <= 120


def test_the_tokens_of_a_day_are_counted_together(hosts: Hosts) -> None:
    """Each call has 15. The other host may let calls pass until it has heard of them."""
    calls = 0
    for host in (0, 1):
        while (status := hosts.call(host, "much")) == 200:
            calls += 1
            assert calls < 2 * TOKENS
        assert status == 402
    until(lambda: counted(hosts, "tokens of key much") == 15 * calls)


def test_the_quota_of_a_day_is_counted_together(hosts: Hosts) -> None:
    line = {"type": "trace", "id": "q", "agent": AGENT, "input": "a", "output": "b"}
    statuses = []
    for number in range(ROWS):
        sent = hosts.ask(number % 2, "/api/traces", "rows", json=line | {"id": f"q{number}"})
        statuses.append(sent.status_code)
        until(lambda number=number: counted(hosts, "key rows rows") == number + 1)
    assert {status // 100 for status in statuses} == {2}
    for host in (0, 1):
        assert hosts.ask(host, "/api/traces", "rows", json=line | {"id": "more"}).status_code == 429


def counted(hosts: Hosts, name: str) -> float:
    with hosts.opened(0) as ws, ws.db.read() as connection:
        query = f"SELECT sum(amount) FROM day_counts WHERE name = '{name}'"
        return float(connection.exec_driver_sql(query).scalar() or 0)


def test_the_audit_log_holds_after_both_wrote(hosts: Hosts) -> None:
    for server in hosts.servers * 2:
        login = {"name": "ann", "password": PASSWORD}
        answer = httpx2.post(f"{server.url}/api/login", json=login, timeout=60, trust_env=False)
        assert answer.status_code == 200
    for host in (0, 1):
        with hosts.opened(host) as ws:
            verdict = audit.verify(ws)
            assert verdict.rows > 4 and (verdict.problem, verdict.beyond_head) == (None, 0)


def test_workers_of_two_folders_on_one_kernel_leave_each_other_alive(hosts: Hosts) -> None:
    lines = b'{"type": "trace", "id": "t1", "input": "a", "output": "b"}\n'
    for host in (0, 1):
        answer = httpx2.post(
            f"{hosts.servers[host].url}/api/agents/{AGENT}/imports?source=jsonl&path=lines.jsonl&wait=60",
            content=lines,
            headers={
                "authorization": f"Bearer {hosts.secrets['app']}",
                "content-type": "application/octet-stream",
            },
            timeout=120,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
    for folder in hosts.folders:
        assert "is dead" not in folder.with_suffix(".log").read_text()
