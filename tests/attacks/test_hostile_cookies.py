"""Cookies of nobody: what comes before a key or a session is known costs the server nothing.

60 KB of backslashes stopped every answer of a server for 18 seconds, without any key.
"""

from __future__ import annotations

import time

import pytest

from tests.worlds.gateway_world import GatewayWorld
from thumbwheel.access.credentials import COOKIE, Credentials, own_cookies

SECONDS = 2
"""Of the processor; a millisecond is enough."""
LENGTH = 120_000
NAMES = ("a", COOKIE, "thumbwheel_other")
ATTACKS = {
    "backslashes": "\\" * LENGTH,
    "quotes": '\\"' * (LENGTH // 2),
    "octal": "\\101" * (LENGTH // 4),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_cookie_is_read_in_no_time(name: str, attack: str) -> None:
    began = time.process_time()
    Credentials.of({"cookie": f'{name}="{ATTACKS[attack]}"'})
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("path", ["/api/whoami", "/api/openapi.json", "/login/provider/callback"])
@pytest.mark.parametrize("name", [COOKIE, "thumbwheel_login"])
def test_a_cookie_of_nobody_stops_no_server(gateway: GatewayWorld, path: str, name: str) -> None:
    began = time.process_time()
    for attack in ATTACKS.values():
        reply = gateway.client.get(path, headers={"cookie": f'b=1; {name}="{attack}"'})
        assert reply.status_code in (200, 401, 404)
    assert time.process_time() - began < SECONDS


def test_cookies_of_ours_are_kept() -> None:
    header = f'a=1; {COOKIE}=secret;thumbwheel_login="e30=.mac";thumbwheel_csrf=c; b="x\\"y"'
    assert Credentials.of({"cookie": header}).session == "secret"
    expected = f'{COOKIE}=secret; thumbwheel_login="e30=.mac"; thumbwheel_csrf=c'
    assert own_cookies(header) == expected
