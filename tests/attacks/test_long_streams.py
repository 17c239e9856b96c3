"""Streams that go on longer than their reader may read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worlds.gateway_world import AGENT, GatewayWorld
from thumbwheel.access import keys, users
from thumbwheel.jobs import queue
from thumbwheel.models.versions import ensure_agent

PASSWORD = "correct horse battery"


def key_of(gateway: GatewayWorld) -> dict[str, str]:
    secret = keys.add(gateway.ws, "reader", agents=[AGENT], verbs=["read"]).secret
    return {"authorization": f"Bearer {secret}"}


def token_of(gateway: GatewayWorld) -> dict[str, str]:
    reply = gateway.client.post("/api/web-tokens", json={}, headers=key_of(gateway))
    return {"authorization": f"Bearer {reply.json()['token']}"}


def session_of(gateway: GatewayWorld) -> dict[str, str]:
    users.add(gateway.ws, "ann", password=PASSWORD, agent=AGENT)
    body = {"name": "ann", "password": PASSWORD}
    reply = gateway.client.post("/api/login", json=body, headers={"origin": gateway.url})
    assert reply.status_code == 200, reply.text
    cookies = "; ".join(f"{name}={value}" for name, value in reply.cookies.items())
    gateway.client.cookies.clear()
    return {"cookie": cookies}


def end_key(gateway: GatewayWorld) -> None:
    keys.revoke(gateway.ws, "reader")


def end_role(gateway: GatewayWorld) -> None:
    users.set_role(gateway.ws, "ann", "none", agent=AGENT)


def end_user(gateway: GatewayWorld) -> None:
    users.remove(gateway.ws, "ann")


@pytest.mark.parametrize(
    ("enter", "leave"),
    [(key_of, end_key), (token_of, end_key), (session_of, end_role), (session_of, end_user)],
    ids=["key", "token", "role", "user"],
)
@pytest.mark.parametrize("path", ["/api/jobs/{job}/events", f"/api/agents/{AGENT}/decisions"])
def test_a_stream_ends_with_the_right_to_read_it(
    gateway: GatewayWorld,
    path: str,
    enter: Callable[[GatewayWorld], dict[str, str]],
    leave: Callable[[GatewayWorld], None],
) -> None:
    ensure_agent(gateway.ws, AGENT)
    job = queue.enqueue(gateway.ws, "reward pending", {"agent": AGENT}, agent=AGENT)
    headers = {**enter(gateway), "accept": "text/event-stream"}
    address = path.format(job=job.id)
    with gateway.client.stream("GET", address, headers=headers, timeout=30) as stream:
        assert stream.status_code == 200
        leave(gateway)
        text = "".join(stream.iter_text())
    assert "event: end" not in text
    assert gateway.client.get(address, headers=headers).status_code in (401, 403, 404)
