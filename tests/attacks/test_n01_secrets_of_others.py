"""The owner of one agent asks for secrets and addresses that are not theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.worlds.gateway_world import GatewayWorld, opened_home, running
from thumbwheel.access import keys
from thumbwheel.access.types import VERBS
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.evaluation.responders import Responders
from thumbwheel.evaluation.types import Ask, EvaluationConfig
from thumbwheel.models import versions

BETA_KEY, ALPHA_KEY, HOME_KEY = "sk-of-beta-1", "sk-of-alpha-2", "sk-of-home-3"


@pytest.fixture
def listener() -> Iterator[ScriptedUpstream]:
    """The attacker's server."""
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def two_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayWorld]:
    """A home of two agents; only loopback may be asked, so that the listener can be."""
    monkeypatch.setenv("THUMBWHEEL_DATABASE_PASSWORD", HOME_KEY)
    monkeypatch.setenv("THUMBWHEEL_ENDPOINT_KEY", HOME_KEY)
    with opened_home(tmp_path / "home") as ws:
        for agent in ("alpha", "beta"):
            versions.ensure_agent(ws, agent)
        SecretStore(ws.home.secrets, "beta").set("UP_beta", BETA_KEY)
        SecretStore(ws.home.secrets).set("UP_home", HOME_KEY)
        SecretStore(ws.home.secrets, "alpha").set("UP_alpha", ALPHA_KEY)
        key = keys.add(ws, "owner-of-alpha", agents=["alpha"], verbs=VERBS)
        with running(ws) as gateway:
            gateway.client.headers["authorization"] = f"Bearer {key.secret}"
            yield gateway


def register(world: GatewayWorld, url: str, secret: str | None, **more: Any) -> Any:
    body = {"url": url, "model": "m"} | ({} if secret is None else {"secret": secret})
    return world.client.post("/api/agents/alpha/versions", json=body, **more)


def deploy(world: GatewayWorld, **more: Any) -> Any:
    body = {"version": "latest", "target": "remote"}
    return world.client.post("/api/agents/alpha/deployments", json=body, **more)


def sent(listener: ScriptedUpstream) -> str:
    """Everything that the server got."""
    return repr(listener.requests)


@pytest.mark.parametrize(
    "secret",
    [
        "UP_beta",
        "UP_home",
        "THUMBWHEEL_DATABASE_PASSWORD",
        "THUMBWHEEL_ENDPOINT_KEY",
        "PATH",
        "UP_beta@beta",
        "../access",
    ],
)
def test_an_owner_of_one_agent_names_no_secret_of_anybody_else(
    two_agents: GatewayWorld, listener: ScriptedUpstream, secret: str
) -> None:
    reply = register(two_agents, listener.url, secret)
    assert reply.status_code in (404, 422), reply.text
    assert HOME_KEY not in reply.text and BETA_KEY not in reply.text
    assert deploy(two_agents).status_code == 404
    assert listener.requests == []


def test_the_owner_of_the_home_names_its_secrets_and_no_variable(
    two_agents: GatewayWorld, listener: ScriptedUpstream
) -> None:
    for secret in ("UP_home", "THUMBWHEEL_DATABASE_PASSWORD"):
        assert (
            register(two_agents, listener.url, secret, headers=two_agents.owner).status_code == 200
        )
        reply = deploy(two_agents, headers=two_agents.owner)
        assert reply.status_code == (200 if secret == "UP_home" else 404), reply.text
    assert HOME_KEY in sent(listener)


def test_a_secret_of_the_agent_itself_goes_to_its_server(
    two_agents: GatewayWorld, listener: ScriptedUpstream
) -> None:
    assert register(two_agents, listener.url, "UP_alpha").status_code == 200
    assert deploy(two_agents).status_code == 200
    chat = {"model": "alpha", "messages": [{"role": "user", "content": "Hello"}]}
    assert two_agents.client.post("/v1/chat/completions", json=chat).status_code == 200
    assert ALPHA_KEY in sent(listener)


def test_a_version_without_a_secret_is_asked_without_one(
    two_agents: GatewayWorld, listener: ScriptedUpstream
) -> None:
    assert register(two_agents, listener.url, None).status_code == 200
    assert deploy(two_agents).status_code == 200
    version = versions.version(two_agents.ws, "alpha", "latest")
    responders = Responders(two_agents.ws, EvaluationConfig(), [], version, version)
    responders.after.answers([Ask([{"role": "user", "content": "Hello"}], 8)])
    responders.close()
    assert listener.requests and HOME_KEY not in sent(listener)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
def test_no_address_of_a_private_network_is_asked_that_the_settings_do_not_list(
    tmp_path: Path, listener: ScriptedUpstream, host: str
) -> None:
    url = listener.url.replace("127.0.0.1", host)
    with opened_home(tmp_path / "home", private=()) as ws:
        key = keys.add(ws, "owner-of-alpha", agents=["alpha"], verbs=VERBS)
        versions.ensure_agent(ws, "alpha")
        with running(ws) as world:
            for headers in ({"authorization": f"Bearer {key.secret}"}, world.owner):
                assert register(world, url, None, headers=headers).status_code == 200
                reply = deploy(world, headers=headers)
                assert reply.status_code >= 400 and "endpoints.private" in reply.text
    assert listener.requests == []


def test_an_owner_of_one_agent_lists_and_removes_its_secrets_alone(
    two_agents: GatewayWorld,
) -> None:
    listed = two_agents.client.get("/api/secrets", params={"of_agent": "alpha"})
    assert listed.status_code == 200 and [row["name"] for row in listed.json()] == ["UP_alpha"]
    for agent in (None, "beta", "nobody"):
        query = {} if agent is None else {"of_agent": agent}
        for method, path in (("GET", "/api/secrets"), ("DELETE", "/api/secrets/UP_beta")):
            reply = two_agents.client.request(method, path, params=query)
            assert reply.status_code == 403, reply.text
            assert "UP_beta" not in reply.text.partition("/api/secrets")[0], reply.text
    removed = two_agents.client.delete("/api/secrets/UP_alpha", params={"of_agent": "alpha"})
    assert removed.status_code == 200
    assert SecretStore(two_agents.ws.home.secrets, "alpha").get("UP_alpha") is None
    assert SecretStore(two_agents.ws.home.secrets, "beta").get("UP_beta") == BETA_KEY
