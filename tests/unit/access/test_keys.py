"""API keys: shown once, stored nowhere, gone at once when they are revoked."""

from __future__ import annotations

import re
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from tests.waiting import until
from thumbwheel.access import keys, users
from thumbwheel.access.credentials import Credentials
from thumbwheel.access.directory import Directory
from thumbwheel.access.gate import AccessGate
from thumbwheel.core.errors import Busy, Conflict, InputError, NotFound
from thumbwheel.core.seal import make_seal
from thumbwheel.db.schema import api_keys
from thumbwheel.db.workspace import Workspace

PASSWORD = "correct horse battery"


def presented(secret: str) -> Credentials:
    return Credentials.of_keys({"authorization": f"Bearer {secret}"})


def test_a_key_is_in_no_file_of_the_home(empty_ws: Workspace, gate: AccessGate) -> None:
    secret = keys.add(empty_ws, "mobile").secret
    assert re.fullmatch(r"tw_[A-Za-z0-9_-]{43}", secret)
    gate.directory.refresh()
    assert gate.identify(presented(secret)) is not None
    for path in empty_ws.home.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert stat.S_IMODE(empty_ws.home.access_key.stat().st_mode) == 0o600


def test_revoked_and_expired_keys_open_nothing(empty_ws: Workspace, gate: AccessGate) -> None:
    revoked, expired = (
        keys.add(empty_ws, "revoked").secret,
        keys.add(empty_ws, "expired", days=1).secret,
    )
    gate.directory.refresh()
    assert gate.identify(presented(revoked)) and gate.identify(presented(expired))
    keys.revoke(empty_ws, "revoked")
    past = datetime.now(UTC) - timedelta(seconds=1)
    is_expired = api_keys.c.name == "expired"
    change = sa.update(api_keys).where(is_expired).values(expires_at=past)
    empty_ws.db.write(lambda connection: connection.execute(change))
    keys.add(empty_ws, "another")  # a change that the directory follows
    gate.directory.refresh()
    assert gate.identify(presented(revoked)) is None
    assert gate.identify(presented(expired)) is None


def test_a_key_is_not_refused_before_the_database_was_asked(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = keys.add(empty_ws, "earlier").secret
    seal = make_seal(empty_ws.home.access_key)
    with Directory(empty_ws) as directory:
        asked, released = threading.Event(), threading.Event()
        marker = directory._changes.marker

        def hang() -> object:
            asked.set()
            released.wait()
            return marker()

        monkeypatch.setattr(directory._changes, "marker", hang)
        new = keys.add(empty_ws, "new").secret
        assert asked.wait(60)
        with pytest.raises(Busy, match="has not answered yet"):
            directory.of_key(keys.mac_of(seal, new))
        assert directory.of_key(keys.mac_of(seal, earlier)) is not None
        released.set()
        until(lambda: directory.refresh())
        assert directory.of_key(keys.mac_of(seal, new)) is not None
        assert directory.of_key(keys.mac_of(seal, "tw_unknown")) is None


def test_the_last_use_is_written_later_and_seldom(empty_ws: Workspace) -> None:
    secret = keys.add(empty_ws, "mobile").secret
    mac = keys.mac_of(make_seal(empty_ws.home.access_key), secret)
    with Directory(empty_ws) as directory:
        assert directory.of_key(mac) is not None
        directory.refresh()
        assert keys.listed(empty_ws)[0].used_at is None, "nobody waits for it"
    (key,) = keys.listed(empty_ws)
    assert key.used_at is not None and datetime.now(UTC) - key.used_at < timedelta(minutes=1)


def test_a_key_of_a_user_goes_with_them_and_may_at_most_what_they_may(
    empty_ws: Workspace, gate: AccessGate
) -> None:
    users.add(empty_ws, "ann", password=PASSWORD, role="rater", agent="support")
    secret = keys.add(empty_ws, "anns", verbs=["read", "run"], user="ann").secret
    gate.directory.refresh()
    identity = gate.identify(presented(secret))
    assert identity is not None
    assert identity.principal.grants == {"support": frozenset({"read"})}
    users.remove(empty_ws, "ann")
    gate.directory.refresh()
    assert gate.identify(presented(secret)) is None
    assert keys.listed(empty_ws) == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-a"])
def test_what_is_no_name(empty_ws: Workspace, name: str) -> None:
    with pytest.raises(InputError, match="a name has 1 to 64"):
        keys.add(empty_ws, name)


def test_what_cannot_be_asked_for(empty_ws: Workspace) -> None:
    with pytest.raises(InputError, match="Did you mean 'read'"):
        keys.add(empty_ws, "mobile", verbs=["raed"])
    with pytest.raises(InputError, match="1 to 3650 days"):
        keys.add(empty_ws, "mobile", days=0)
    with pytest.raises(NotFound, match="no such user"):
        keys.add(empty_ws, "mobile", user="nobody")
    keys.add(empty_ws, "mobile")
    with pytest.raises(Conflict, match="keys revoke mobile"):
        keys.add(empty_ws, "mobile")
    with pytest.raises(NotFound, match="Did you mean 'mobile'"):
        keys.revoke(empty_ws, "mobil")
    assert [key.name for key in keys.listed(empty_ws)] == ["mobile"]


def test_a_beginning_of_a_key_is_no_key(empty_ws: Workspace, gate: AccessGate) -> None:
    secret = keys.add(empty_ws, "mobile").secret
    gate.directory.refresh()
    for guess in (
        secret[:-1],
        secret + "x",
        secret.upper(),
        "tw_",
        keys.listed(empty_ws)[0].prefix,
    ):
        assert gate.identify(presented(guess)) is None
