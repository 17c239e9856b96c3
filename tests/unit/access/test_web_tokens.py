"""Short-lived tokens: what is expired, forged or signed by anybody else opens nothing."""

from __future__ import annotations

import base64
import json
import stat
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from thumbwheel.access import keys, users, web_tokens
from thumbwheel.access.credentials import Credentials
from thumbwheel.access.gate import AccessGate
from thumbwheel.access.types import grants_of
from thumbwheel.db.workspace import Workspace


def presented(token: str) -> Credentials:
    return Credentials.of_keys({"authorization": f"Bearer {token}"})


@pytest.fixture
def secret(empty_ws: Workspace, gate: AccessGate) -> str:
    secret = keys.add(empty_ws, "mobile", agents=["support"], verbs=["read", "rate"]).secret
    gate.directory.refresh()
    return secret


@pytest.fixture
def token(gate: AccessGate, secret: str) -> str:
    identity = gate.identify(presented(secret))
    assert identity is not None
    return gate.make_web_token(identity.principal, None)[0]


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims = (
        json.loads(base64.urlsafe_b64decode(part + "==")) for part in token.split(".")[:2]
    )
    return header, claims


def signing_key(gate: AccessGate) -> Ed25519PrivateKey:
    (content,) = json.loads(gate.ws.home.token_keys.read_text())
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(content["private"]))


def test_a_token_stands_for_its_key_and_never_for_more(
    gate: AccessGate, empty_ws: Workspace, secret: str, token: str
) -> None:
    identity = gate.identify(presented(token))
    assert identity is not None and identity.by_web_token
    assert identity.principal.grants == {"support": frozenset({"read", "rate"})}
    assert stat.S_IMODE(empty_ws.home.token_keys.stat().st_mode) == 0o600
    narrow, seconds = gate.make_web_token(identity.principal, grants_of({"*": ["rate", "own"]}))
    assert seconds == 600
    bound = gate.identify(presented(narrow))
    assert bound is not None and bound.principal.grants == {"support": frozenset({"rate"})}
    keys.revoke(empty_ws, "mobile")
    gate.directory.refresh()
    assert gate.identify(presented(token)) is None


def test_a_token_loses_what_its_owner_may_no_more(gate: AccessGate, empty_ws: Workspace) -> None:
    ann = users.add(empty_ws, "ann", password=None, role="editor", agent="support")
    gate.directory.refresh()
    principal = gate.directory.of_id(ann.id)
    assert principal is not None
    token, _ = gate.make_web_token(principal, None)
    users.set_role(empty_ws, "ann", "rater", agent="support")
    gate.directory.refresh()
    identity = gate.identify(presented(token))
    assert identity is not None
    assert identity.principal.may("rate", "support")
    assert not identity.principal.may("edit", "support")


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": 1},
        {"aud": "another"},
        {"iss": "another"},
        {"sub": "key_unknown"},
        {"exp": None},
        {"grants": None},
        {"grants": "everything"},
    ],
    ids=str,
)
def test_claims_that_do_not_hold(gate: AccessGate, token: str, changed: dict[str, Any]) -> None:
    header, claims = parts(token)
    content = {key: value for key, value in (claims | changed).items() if value is not None}
    kid = {"kid": header["kid"]}
    forged = jwt.encode(content, signing_key(gate), "EdDSA", headers=kid)
    assert gate.identify(presented(forged)) is None


def test_another_algorithm_or_another_key(gate: AccessGate, token: str) -> None:
    header, claims = parts(token)
    kid = {"kid": header["kid"]}
    public = signing_key(gate).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    foreign = Ed25519PrivateKey.generate()
    head, body, signature = token.split(".")
    for forged in (
        jwt.encode(claims, None, "none", headers=kid),
        jwt.encode(claims, public, "HS256", headers=kid),
        jwt.encode(claims, foreign, "EdDSA", headers=kid),
        jwt.encode(claims, foreign, "EdDSA", headers={"kid": "another"}),
        jwt.encode(claims, signing_key(gate), "EdDSA"),
        f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{body}x.{signature}",
        "ey..",
        "eyJhbGciOiJFZERTQSJ9.e30.AAAA",
    ):
        assert gate.identify(presented(forged)) is None, forged


def test_keys_change_and_tokens_of_the_earlier_hold_until_they_end(
    gate: AccessGate, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = gate.identify(presented(token))
    assert identity is not None
    with monkeypatch.context() as patch:
        patch.setattr(web_tokens, "KEY_DAYS", 0)
        later, _ = gate.make_web_token(identity.principal, None)
    kids = [parts(each)[0]["kid"] for each in (token, later)]
    stored = json.loads(gate.ws.home.token_keys.read_text())
    assert [key["kid"] for key in stored] == kids[::-1] and kids[0] != kids[1]
    assert gate.identify(presented(token)) and gate.identify(presented(later))
    monkeypatch.setattr(web_tokens, "MOST_SECONDS", 0)  # the hour of the earlier one is over
    assert gate.identify(presented(token)) is None and gate.identify(presented(later))
    gate.ws.home.token_keys.unlink()
    assert gate.identify(presented(later)) is None
