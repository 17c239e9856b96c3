"""N9: nobody guesses passwords faster by an invented address, or stops the server by logging in."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from tests.still_minute import still_minute
from tests.worlds.gateway_world import GatewayWorld, opened_home, running
from thumbwheel.access import rate_limits, users
from thumbwheel.access.password_checks import MOST_WAITING
from thumbwheel.access.rate_limits import LOGINS_OF_ADDRESS, LOGINS_OF_NAME, RateLimits, TooOften
from thumbwheel.app.service_settings import ServerConfig
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

__all__ = ["still_minute"]
pytestmark = pytest.mark.usefixtures("still_minute")
PASSWORD = "correct horse battery"


def status(world: GatewayWorld, headers: dict[str, str]) -> int:
    """Return how a login with these headers ends."""
    login = {"name": "nobody", "password": PASSWORD}
    return int(world.client.post("/api/login", json=login, headers=headers).status_code)


def exhaust(world: GatewayWorld, address: str) -> None:
    """Let an address use its logins up."""
    limits: RateLimits = world.application.api.state.gate.limits
    for attempt in range(LOGINS_OF_ADDRESS):
        limits.count_login(address, str(attempt))


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "client-ip"])
def test_an_invented_address_does_not_pass_the_limit(gateway: GatewayWorld, header: str) -> None:
    exhaust(gateway, "127.0.0.1")
    assert status(gateway, {header: "10.0.0.1"}) == 429


def test_a_named_proxy_says_for_whom_it_asks(tmp_path: Path) -> None:
    sources = Sources({"server": {"proxies": ["127.0.0.1"]}}, "thumbwheel.yaml", {})
    with Workspace.open(Home(tmp_path / "home"), sources) as ws, running(ws) as world:
        exhaust(world, "10.0.0.1")
        assert status(world, {"x-forwarded-for": "10.0.0.1"}) == 429
        # what a client adds in front of what the proxy saw changes nothing
        assert status(world, {"x-forwarded-for": "10.9.9.9, 10.0.0.1"}) == 429
        assert status(world, {"x-forwarded-for": "10.0.0.2"}) == 401


def test_a_proxy_has_an_address() -> None:
    with pytest.raises(ValueError, match="proxies"):
        ServerConfig(proxies=("*",))


def test_many_addresses_guess_one_name_no_faster() -> None:
    limits = RateLimits(6000)
    for attempt in range(LOGINS_OF_NAME):
        limits.count_login(f"10.0.{attempt}.1", "ann")
    with pytest.raises(TooOften, match="the name of the login"):
        limits.count_login("10.1.1.1", "ann")
    limits.count_login("10.1.1.1", "bea")


@pytest.mark.slow
def test_a_hundred_logins_at_once_let_others_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request is answered while logins still wait; those beyond a bound are refused."""
    monkeypatch.setattr(rate_limits, "LOGINS_OF_ADDRESS", 1000)
    monkeypatch.setattr(rate_limits, "LOGINS_PER_MINUTE", 1000)
    monkeypatch.setattr(rate_limits, "LOGINS_OF_NAME", 1000)
    answers: Counter[int] = Counter()
    with opened_home(tmp_path / "home") as ws, running(ws) as world:
        users.add(ws, "ann", password=PASSWORD)
        headers = {"authorization": f"Bearer {ws.home.access_token.read_text().strip()}"}
        assert world.client.get("/api/whoami", headers=headers).status_code == 200

        def log_in() -> None:
            login = {"name": "ann", "password": "a wrong password"}
            with httpx2.Client(base_url=world.url, timeout=120, trust_env=False) as client:
                answers[client.post("/api/login", json=login).status_code] += 1

        threads = [threading.Thread(target=log_in) for _ in range(120)]
        for thread in threads:
            thread.start()
        while not answers[401]:
            pass
        assert world.client.get("/api/whoami", headers=headers).status_code == 200
        waiting = sum(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
    assert waiting > 0
    assert answers[401] >= MOST_WAITING
    assert answers[401] + answers[429] == 120
