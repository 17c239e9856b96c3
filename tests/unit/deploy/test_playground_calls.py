"""What the playground's page asks: any deployed version, by a session, before the gate decides."""

from __future__ import annotations

import httpx2
import pytest

from tests.worlds.deploy_world import DeployWorld
from tests.worlds.gateway_world import CHAT
from thumbwheel.access import users
from thumbwheel.access.login_codes import LoginCodes


def logged_in(world: DeployWorld, client: httpx2.Client) -> dict[str, str]:
    """Log the client in as the owner; return the header that its pages send."""
    code = LoginCodes(world.ws.home.login_codes).make()
    client.get(f"/login?code={code}")
    return {"x-csrf-token": client.cookies["thumbwheel_csrf"]}


@pytest.mark.slow
def test_the_embedded_target_answers_before_the_gate_has_decided(deployed: DeployWorld) -> None:
    first, second = deployed.version(0), deployed.version(1, basis=None)
    deployed.deploy(first)
    deployed.deploy(second, alias=None)
    path = f"/api/agents/{deployed.agent}/playground"
    with deployed.served() as client:
        proof = logged_in(deployed, client)
        texts = {}
        for name in ("live", second.name):
            reply = client.post(f"{path}/{name}", json=deployed.question(), headers=proof)
            assert reply.status_code == 200, reply.text
            assert reply.headers["x-thumbwheel-trace"]
            texts[reply.headers["x-thumbwheel-version"]] = reply.json()["choices"][0]["message"]
        assert list(texts) == [first.name, second.name]
        assert texts[first.name] != texts[second.name]
        # an app gets no version that the gate has not approved
        refused = client.post(CHAT, json=deployed.question(f"{deployed.agent}:{second.name}"))
        assert refused.status_code == 503
        stream = client.post(
            f"{path}/{second.name}", json=deployed.question(stream=True), headers=proof
        )
        assert stream.text.endswith("data: [DONE]\n\n")


def test_who_may_not_rate_asks_nothing(deployed: DeployWorld) -> None:
    deployed.version(0, basis=None)
    path = f"/api/agents/{deployed.agent}/playground"
    with deployed.served() as client:
        assert client.post(f"{path}/live", json=deployed.question()).status_code == 401
        proof = logged_in(deployed, client)
        assert client.post(f"{path}/live", json=deployed.question()).status_code == 403
        for name, status, words in (
            ("live", 404, "points at no version"),
            ("v1", 409, "it is not deployed"),
            ("v77", 404, "v77"),
            ("No:Name", 422, "pattern"),
        ):
            reply = client.post(f"{path}/{name}", json=deployed.question(), headers=proof)
            assert reply.status_code == status, reply.text
            assert words in reply.text
        client.cookies.clear()
        users.add(
            deployed.ws,
            f"vera-{deployed.agent}",
            password="correct horse battery",
            role="viewer",
            agent=deployed.agent,
        )
        login = {"name": f"vera-{deployed.agent}", "password": "correct horse battery"}
        assert client.post("/api/login", json=login).status_code < 300
        proof = {"x-csrf-token": client.cookies["thumbwheel_csrf"]}
        reply = client.post(f"{path}/v1", json=deployed.question(), headers=proof)
        assert reply.status_code == 403 and "may not rate" in reply.text
