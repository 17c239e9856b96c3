"""Names of users and keys that people cannot tell from others, and answers that a browser keeps or
whose type it guesses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.gateway_world import GatewayWorld, opened_home
from thumbwheel.access import keys, users
from thumbwheel.access.look_alikes import looks_of
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import ensure_agent

PASSWORD = "correct horse battery"


@pytest.fixture
def named_ws(tmp_path: Path) -> Iterator[Workspace]:
    with opened_home(tmp_path / "home") as ws:
        yield ws


@pytest.mark.parametrize(
    "other",
    [
        "Olga",
        "OLGA@example.com",
        "olga\u00a0",
        "\uff4flga@example.com",
        "olga\u200b@example.com",
        "ol\u200dga@example.com",
        "\u043elga@example.com",
        "olg\u0430@example.com",
        "\u03bflga@example.com",
    ],
)
def test_no_user_has_a_name_that_looks_like_that_of_another(
    named_ws: Workspace, other: str
) -> None:
    for name in ("olga", "olga@example.com"):
        users.add(named_ws, name, password=PASSWORD, role="owner")
    with pytest.raises((Conflict, InputError), match=r"looks like|script|printable|spaces"):
        users.add(named_ws, other, password=PASSWORD)
    users.add(named_ws, "helga@example.com", password=PASSWORD)


def test_a_whole_name_of_another_script_looks_like_a_latin_one(named_ws: Workspace) -> None:
    users.add(named_ws, "coca", password=PASSWORD)
    with pytest.raises(Conflict, match="looks like"):
        users.add(named_ws, "\u0441\u043e\u0441\u0430", password=PASSWORD)
    for name in (
        "J\u00f6rg",
        "\u65e5\u672c\u592a\u90ce",
        "\u041e\u043b\u044c\u0433\u0430",
        "\u05e0\u05e2\u05d4",
    ):
        users.add(named_ws, name, password=PASSWORD)
        assert looks_of(name)


@pytest.mark.parametrize("other", ["Mobile-App", "mobile_app", "MOBILE-APP", "mobile-app"])
def test_no_key_has_a_name_that_looks_like_that_of_another(named_ws: Workspace, other: str) -> None:
    keys.add(named_ws, "mobile-app")
    ensure_agent(named_ws, "support")
    with pytest.raises(Conflict, match="name"):
        keys.add(named_ws, other, agents=["support"])
    keys.add(named_ws, "mobile-app-2", agents=["support"])


def test_every_answer_says_that_nobody_guesses_or_keeps_it(gateway: GatewayWorld) -> None:
    for path in sorted(gateway.application.api.openapi()["paths"]):
        path = path.replace("{agent}", "support").replace("{", "").replace("}", "")
        for headers in ({}, gateway.owner):
            reply = gateway.client.get(path, headers=headers)
            assert reply.headers["x-content-type-options"] == "nosniff", path
            assert reply.headers["cache-control"], path
            if reply.headers.get("content-type", "").startswith("application/"):
                assert "no-store" in reply.headers["cache-control"], path
    for path in ("/v1/models", "/v1/chat/completions", "/nothing"):
        reply = gateway.client.get(path)
        assert reply.headers["x-content-type-options"] == "nosniff", path
        assert "no-store" in reply.headers["cache-control"], path
    assert len(reply.headers.get_list("cache-control")) == 1
