"""Secrets by name, and addresses that nothing may be sent to."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from thumbwheel.core.addresses import RefusedAddress, allowed_addresses, refusal
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.core.secret_store import SecretStore, StoredSecret, stored_secrets


def test_a_secret_is_a_file_of_its_owner_and_never_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-shell")
    store = SecretStore(tmp_path / "secrets")
    assert store.get("OPENAI_API_KEY") is None and store.names() == []
    store.set("OPENAI_API_KEY", " sk-stored\n")
    assert store.require("OPENAI_API_KEY") == "sk-stored"
    path = tmp_path / "secrets" / "OPENAI_API_KEY"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    store.remove("OPENAI_API_KEY")
    assert store.get("OPENAI_API_KEY") is None
    with pytest.raises(NotFound, match="Stored: none"):
        store.remove("OPENAI_API_KEY")
    store.set("OPENAI_API_KEX", "x")
    with pytest.raises(NotFound, match="Did you mean 'OPENAI_API_KEX'"):
        SecretStore(tmp_path / "secrets").require("OPENAI_API_KEY")


@pytest.mark.parametrize("name", ["../signing.key", "a/b", "", ".hidden", "sk-" + "x" * 80, "a b"])
def test_what_is_no_name_is_refused_and_not_repeated(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        SecretStore(tmp_path).get(name)
    assert not name or name not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  ", "two\nlines", "b\x00c", "schlüssel"])
def test_a_value_that_no_header_can_hold_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InputError):
        SecretStore(tmp_path).set("KEY", value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1%eth0",
        "100.100.100.200",
        "fd00:ec2::254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
    ],
)
def test_no_setting_opens_metadata_and_link_local_addresses(address: str) -> None:
    assert refusal(address, private=True)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "fd12::1", "100.64.0.1"],
)
def test_private_networks_are_open_where_the_owner_says_so(address: str) -> None:
    assert refusal(address, private=False) and not refusal(address, private=True)


def test_a_secret_of_an_agent_is_not_one_of_the_home_or_of_another_agent(tmp_path: Path) -> None:
    home, alpha, beta = (SecretStore(tmp_path, agent) for agent in (None, "alpha", "beta"))
    alpha.set("KEY", "of-alpha")
    assert home.get("KEY") is None and beta.get("KEY") is None and home.names() == []
    home.set("KEY", "of-the-home")
    assert (alpha.require("KEY"), home.require("KEY")) == ("of-alpha", "of-the-home")
    with pytest.raises(NotFound, match="secrets set KEY --of-agent beta"):
        beta.require("KEY")
    with pytest.raises(InputError):
        home.get("KEY@alpha")
    assert stored_secrets(tmp_path) == [StoredSecret("KEY", None), StoredSecret("KEY", "alpha")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_private_address_in_a_url_is_refused_like_any_other(host: str) -> None:
    with pytest.raises(RefusedAddress, match="loopback"):
        allowed_addresses(f"http://{host}:9/v1", private=False)
    assert allowed_addresses(f"http://{host}:9/v1", private=True)
    with pytest.raises(RefusedAddress, match="credentials"):
        allowed_addresses("http://169.254.169.254/v1", private=True)
