"""The remote target: a version that somebody else serves goes live, with a key that no row has."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from tests.worlds.gateway_world import LOOPBACK
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError, ModelError
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy, routing, running, switch
from thumbwheel.deploy.jobs import DeploySpec, run_deploy
from thumbwheel.deploy.targets.remote import REMOTE
from thumbwheel.deploy.types import CanaryVerdict, DeploymentState, Endpoint, Health
from thumbwheel.jobs import current, queue
from thumbwheel.llm.fake import FakeServer, Reply
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress

KEY = "sk-planted-0123456789"
MODELS = {"/v1/models": {"data": [{"id": "large"}, {"id": "small"}]}}

SUPPORT = Agent.named("support")


@pytest.fixture
def remote_server():
    with FakeServer(lambda request: Reply({})) as fake:
        fake.pages |= MODELS
        yield fake


@pytest.fixture
def loopback_ws(tmp_path: Path):
    with Workspace.open(
        Home(tmp_path / "home"), Sources({"endpoints": LOOPBACK}, "", {})
    ) as workspace:
        yield workspace


def test_what_somebody_else_serves_goes_live_and_can_be_rolled_back(
    loopback_ws: Workspace, remote_server: FakeServer
) -> None:
    SecretStore(loopback_ws.home.secrets).set("UPSTREAM", KEY)
    for model in ("large", "small"):
        address = EndpointAddress(remote_server.url, model, secret="UPSTREAM", price_in=2.5)
        version = versions.add_endpoint(loopback_ws, "support", address)
        result = deploy.deploy(loopback_ws, version, "remote")
        assert result.canary.verdict is CanaryVerdict.UNOPPOSED
    deployment = routing.resolve(loopback_ws, "support")
    assert (deployment.version, deployment.endpoint.model) == ("v1", "small")
    assert routing.secret(loopback_ws, deployment) == KEY and running.health(deployment).alive
    switch.rollback(loopback_ws, SUPPORT)
    assert routing.resolve(loopback_ws, "support").version == "v0"
    # The key is in its own file and nowhere else.
    loopback_ws.db.close()
    holders = [
        path.name
        for path in loopback_ws.home.path.rglob("*")
        if path.is_file() and KEY.encode() in path.read_bytes()
    ]
    assert holders == ["UPSTREAM"]


def test_a_rollback_never_goes_back_to_the_version_that_is_live(
    loopback_ws: Workspace, remote_server: FakeServer
) -> None:
    """The alias moved to another deployment of the same version, which is no version before."""
    first, second = (
        versions.add_endpoint(loopback_ws, "support", EndpointAddress(remote_server.url, model))
        for model in ("large", "small")
    )
    deploy.deploy(loopback_ws, first, "remote")
    deploy.deploy(loopback_ws, second, "remote")
    moved = deploy.deploy(loopback_ws, second, "remote", settings={"wait": 5}).switch
    assert moved is not None
    assert (moved.from_id, moved.to_id) == (second.id, second.id)
    assert switch.rollback(loopback_ws, SUPPORT).to_id == first.id
    assert routing.resolve(loopback_ws, "support").version == "v0"


class Killed(BaseException):
    """What stands for kill -9: nothing that comes after it is done."""


@pytest.mark.parametrize("killed_in", ["promote", "_end_superseded", "_set_state"])
def test_a_deploy_job_that_was_killed_is_not_done_twice(
    loopback_ws: Workspace,
    remote_server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    killed_in: str,
) -> None:
    for model in ("large", "small"):
        versions.add_endpoint(loopback_ws, "support", EndpointAddress(remote_server.url, model))
    deploy.deploy(loopback_ws, versions.version(loopback_ws, "support", "v0"), "remote")
    spec = DeploySpec(version="v1", agent="support", target="remote")
    job = queue.enqueue(loopback_ws, "deploy", spec.model_dump(mode="json"), agent="support")

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, current.doing(job), pytest.raises(Killed):
        patch.setattr(deploy, killed_in, kill)
        run_deploy(loopback_ws, spec)
    with current.doing(queue.job(loopback_ws, job.id)):
        result = run_deploy(loopback_ws, spec)
    switches = versions.switches(loopback_ws, SUPPORT, "live")
    assert [row.to_id for row in switches][1:] == [result.version_id]
    warm = [row for row in routing.deployments(loopback_ws, SUPPORT) if row.version == "v1"]
    assert [row.state for row in warm if row.state is DeploymentState.WARM] == ["warm"]

    # somebody has gone back since the first attempt moved the alias
    switch.rollback(loopback_ws, SUPPORT)
    with current.doing(queue.job(loopback_ws, job.id)):
        run_deploy(loopback_ws, spec)
    assert routing.resolve(loopback_ws, "support").version == "v0"


def test_a_server_that_is_away_refuses_the_key_or_redirects_moves_no_alias(
    loopback_ws: Workspace, remote_server: FakeServer
) -> None:
    versions.add_endpoint(loopback_ws, "support", EndpointAddress("http://127.0.0.1:9/v1", "large"))
    with pytest.raises(ModelError, match="nothing answers there"):
        deploy.deploy(loopback_ws, versions.version(loopback_ws, "support", "v0"), "remote")
    address = EndpointAddress(remote_server.url, "large", secret="MISSING")
    versions.add_endpoint(loopback_ws, "support", address)
    with pytest.raises(Exception, match="thumbwheel secrets set MISSING"):
        deploy.deploy(loopback_ws, versions.version(loopback_ws, "support", "v1"), "remote")
    assert versions.aliases_of(loopback_ws, SUPPORT) == {}
    assert [row.state for row in routing.deployments(loopback_ws, SUPPORT)] == ["failed", "failed"]


def test_the_address_that_was_checked_is_the_one_that_is_asked(
    remote_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["169.254.7.7", "127.0.0.3", "127.0.0.1"], ["127.0.0.2"]])
    resolve = socket.getaddrinfo

    def rebinding(host: Any, *rest: Any, **more: Any) -> list[Any]:
        addresses = next(answers) if host == "api.example.com" else [host]
        return [resolve(address, *rest, **more)[0] for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    url = remote_server.url.replace("127.0.0.1", "api.example.com")
    endpoint = Endpoint(url, "large", {"private": True})
    assert REMOTE.health(endpoint) == Health(True)
    assert next(answers) == ["127.0.0.2"]  # the name was resolved once
    answers = iter([["127.0.0.1"]])
    refused = REMOTE.health(Endpoint(url, "large", {"private": False}))
    assert not refused.alive and "leads to an address that is refused" in refused.why


def test_each_target_says_which_versions_it_takes(
    loopback_ws: Workspace, remote_server: FakeServer
) -> None:
    versions.add_endpoint(loopback_ws, "support", EndpointAddress(remote_server.url, "large"))
    with pytest.raises(Conflict, match="--target remote"):
        deploy.plan(loopback_ws, versions.version(loopback_ws, "support", "v0"), "embedded")
    versions.ensure_base(loopback_ws, "support", "/somewhere", "0" * 64)
    with pytest.raises(Conflict, match="weights are here"):
        deploy.plan(loopback_ws, versions.version(loopback_ws, "support", "v1"), "remote")


@pytest.mark.parametrize(
    "url",
    [
        "https://user:sk-secret@api.example.com/v1",
        "https://api.example.com/v1?key=sk-secret",
        "https://api.example.com/v1#sk-secret",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(loopback_ws: Workspace, url: str) -> None:
    with pytest.raises(InputError) as caught:
        versions.add_endpoint(loopback_ws, "support", EndpointAddress(url, "large"))
    assert "sk-secret" not in str(caught.value)


def test_the_commands_never_print_a_value(
    command_line: Run, remote_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setenv("THUMBWHEEL_ENDPOINTS__PRIVATE", "[127.0.0.1]")

    monkeypatch.setattr("sys.stdin", io.StringIO(KEY + "\n"))
    outputs = [command_line("secrets", "set", "UPSTREAM")]
    outputs.append(
        command_line(
            "models",
            "endpoint",
            remote_server.url,
            "--agent",
            "support",
            "--model",
            "large",
            "--secret",
            "UPSTREAM",
            "--family",
            "openai",
        )
    )
    outputs.append(command_line("secrets", "list"))
    assert "stored" in outputs[-1][1] and "support v0" in outputs[-1][1]
    outputs.append(command_line("deploy", "v0", "--agent", "support", "--target", "remote"))
    outputs.append(command_line("deployments", "--agent", "support", "--json"))
    assert [code for code, _, _ in outputs] == [0] * len(outputs), outputs
    outputs.append(command_line("secrets", "remove", "UPSTREAM"))
    outputs.append(command_line("secrets", "list"))
    assert "MISSING" in outputs[-1][1]
    assert not [text for output in outputs for text in output[1:] if KEY in text]
