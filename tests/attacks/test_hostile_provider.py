"""Replies of an OIDC provider that make no sense, or have no end: each is a refused login, and no
error of the server."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from thumbwheel.access.provider import LONGEST_NAME, MOST_BYTES, Provider, ProviderIdentity
from thumbwheel.access.settings import ProviderConfig
from thumbwheel.core.errors import Unauthenticated
from thumbwheel.core.seal import Seal
from thumbwheel.core.secret_store import SecretStore

DEEP = "[" * 200_000
METADATA, KEYS, TOKEN = "/.well-known/openid-configuration", "/jwks", "/token"


class Replies:
    """What the provider answers, and how it differs from what a provider should."""

    def __init__(self) -> None:
        self.issuer = self.nonce = self.packed = ""
        self.claims: Mapping[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.key: Mapping[str, Any] = {}
        self.bodies: Mapping[str, str] = {}
        self.private_key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)

    def body(self, path: str) -> str:
        return self.bodies.get(path) or json.dumps(self.content(path))

    def content(self, path: str) -> Mapping[str, Any]:
        if path == METADATA:
            addresses = {
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}{TOKEN}",
                "jwks_uri": f"{self.issuer}{KEYS}",
            }
            return {"issuer": self.issuer, **addresses, **self.metadata}
        if path == KEYS:
            key = RSAAlgorithm.to_jwk(self.private_key.public_key(), as_dict=True)
            return {"keys": [{**key, "kid": "k", "alg": "RS256", **self.key}]}
        return {"access_token": "a", "token_type": "bearer", "id_token": self.id_token()}

    def id_token(self) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": "thumbwheel",
            "sub": "subject",
            "exp": now + 300,
            "iat": now,
            "nonce": self.nonce,
            "email": "ann@example.com",
            "email_verified": True,
        }
        headers = {"kid": "k"}
        return jwt.encode({**claims, **self.claims}, self.private_key, "RS256", headers)


@pytest.fixture
def replies() -> Iterator[Replies]:
    replies = Replies()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            content = replies.body(self.path).encode()
            self.send_response(200)
            if self.path == replies.packed:
                content = gzip.compress(content)
                self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        replies.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield replies
        server.shutdown()
        thread.join()


@pytest.fixture
def provider(tmp_path: Path, replies: Replies, monkeypatch: pytest.MonkeyPatch) -> Provider:
    monkeypatch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
    config = ProviderConfig(issuer=replies.issuer, client_id="thumbwheel")
    return Provider(config, SecretStore(tmp_path), Seal(b"s" * 32))


def identity(provider: Provider, replies: Replies) -> ProviderIdentity:
    """Log in; return whom the provider vouches for."""
    url, cookie = provider.begin("http://127.0.0.1/login/provider/callback")
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    replies.nonce = query["nonce"]
    parameters = {"state": query["state"], "code": "c"}
    return provider.finish(provider.returned(cookie, parameters), parameters)


def test_a_sound_provider_logs_in(provider: Provider, replies: Replies) -> None:
    assert identity(provider, replies).external_id == "subject"
    replies.claims = {"sub": "s" * LONGEST_NAME}
    assert identity(provider, replies).external_id == "s" * LONGEST_NAME


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", {"jwks_uri": "http://[::1/\x00"}),
        ("metadata", {"token_endpoint": "http://[::1/x"}),
        ("metadata", {"jwks_uri": 5}),
        ("key", {"alg": "none"}),
        ("key", {"alg": "HS256"}),
        ("key", {"n": "AQAB", "e": "AQ"}),
        ("claims", {"nonce": "\ud800"}),
        ("claims", {"sub": ""}),
        ("claims", {"sub": "s" * (LONGEST_NAME + 1)}),
        ("claims", {"sub": "a\x00b"}),
        ("claims", {"email": "ann\ud800@example.com"}),
        ("claims", {"email": "a" * (LONGEST_NAME + 1)}),
        ("bodies", {METADATA: DEEP}),
        ("bodies", {KEYS: DEEP}),
        ("bodies", {TOKEN: DEEP}),
        ("bodies", {TOKEN: '{"access_token": "a", "expires_in": 1e999, "id_token": "x"}'}),
        ("bodies", {TOKEN: '{"access_token": "a", "id_token": "\\ud800.\\ud800.x"}'}),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, dict) else value,
)
def test_a_reply_that_makes_no_sense_is_a_refused_login(
    provider: Provider, replies: Replies, field: str, value: Mapping[str, Any]
) -> None:
    setattr(replies, field, value)
    with pytest.raises(Unauthenticated):
        identity(provider, replies)


@pytest.mark.parametrize("path", [METADATA, KEYS, TOKEN])
def test_no_reply_fills_the_memory(provider: Provider, replies: Replies, path: str) -> None:
    replies.packed = path
    with pytest.raises(Unauthenticated, match="packed"):
        identity(provider, replies)
    replies.packed = ""
    replies.bodies = {path: " " * MOST_BYTES + "{}"}
    with pytest.raises(Unauthenticated, match="more than"):
        identity(provider, replies)


ADDRESSES = {
    "login.example.com": "93.184.216.34",
    "keys.example.com": "93.184.216.35",
    "inside.example.com": "10.0.0.7",
    "other.inside.example.com": "10.0.0.8",
    "cloud.example.com": "169.254.169.254",
    "here.example.com": "127.0.0.1",
}
"""Name -> what it resolves to."""


def provider_at(
    issuer: str, metadata: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Provider:
    """Return a provider whose metadata were read already."""

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        if host not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ADDRESSES[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    config = ProviderConfig(issuer=issuer, client_id="thumbwheel")
    return Provider(config, SecretStore(folder), Seal(b"s" * 32), dict(metadata))


@pytest.mark.parametrize("name", ["token_endpoint", "jwks_uri"])
@pytest.mark.parametrize(
    "issuer, address",
    [
        ("https://login.example.com", "https://inside.example.com:8443/x"),
        ("https://login.example.com", "https://here.example.com/x"),
        ("https://login.example.com", "https://cloud.example.com/latest/meta-data"),
        ("https://login.example.com", "http://keys.example.com/x"),
        ("https://login.example.com", "http://login.example.com/x"),
        ("https://login.example.com", "file:///etc/passwd"),
        ("https://login.example.com", "https://login.example.com@inside.example.com/x"),
        ("http://inside.example.com", "http://cloud.example.com/x"),
    ],
)
def test_the_metadata_name_no_address_of_the_network_of_the_server(
    name: str, issuer: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_at(issuer, {name: address}, tmp_path, monkeypatch)
    with pytest.raises(Unauthenticated) as refused:
        provider._asked_endpoint(name)
    assert "10.0.0.7" not in str(refused.value), "whoever logs in learns no address"


@pytest.mark.parametrize(
    "issuer, address",
    [
        ("https://login.example.com", "https://login.example.com/token"),
        ("https://login.example.com", "https://keys.example.com/keys"),
        ("https://inside.example.com", "https://inside.example.com/token"),
        ("https://inside.example.com", "https://other.inside.example.com/keys"),
        ("http://here.example.com:8080", "http://here.example.com:8080/token"),
        ("https://login.example.com", "https://only.a.proxy.knows.example/keys"),
    ],
)
def test_the_addresses_of_sound_providers_are_asked(
    issuer: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_at(issuer, {"jwks_uri": address}, tmp_path, monkeypatch)
    assert provider._asked_endpoint("jwks_uri") == address
