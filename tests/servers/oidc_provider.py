"""A standards-conforming OIDC provider, made with Authlib's server side, in a process of its own:
`python -m tests.servers.oidc_provider PORT`.

Whoever comes is `ann@example.com`, without being asked. `POST /fault` with a name lets it go wrong
in that way from then on: with a claim, a signature, or a key that a client must not accept.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from authlib.oauth2.rfc6749 import AuthorizationServer, OAuth2Payload, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import OpenIDCode, UserInfo
from joserfc.jwk import RSAKey

from thumbwheel.llm.port import free_port

CLIENT_ID, CLIENT_SECRET = "thumbwheel", "provider-secret"
SUBJECT, EMAIL = "subject-1", "ann@example.com"
KEY, FOREIGN_KEY = (
    RSAKey.generate_key(2048, {"kid": "key-1", "alg": "RS256", "use": "sig"}) for _ in range(2)
)


class Client:
    """The one client that is registered."""

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return urlsplit(redirect_uri).path == "/login/provider/callback"

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class Code:
    """An authorization code that waits for its client."""

    def __init__(self, request: OAuth2Request) -> None:
        data = request.payload.data
        self.redirect_uri, self.scope = request.payload.redirect_uri, request.scope
        self.nonce = data.get("nonce")
        self.code_challenge = data.get("code_challenge")
        self.code_challenge_method = data.get("code_challenge_method")

    def get_redirect_uri(self) -> str:
        return str(self.redirect_uri)

    def get_scope(self) -> str:
        return str(self.scope)

    def get_nonce(self) -> Any:
        return "another" if State.fault == "nonce" else self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


class State:
    """What the process remembers."""

    codes: Mapping[str, Code] = MappingProxyType({})
    issuer = ""
    fault = ""


class CodeGrant(AuthorizationCodeGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        State.codes = {**State.codes, code: Code(request)}

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        return State.codes.get(code)

    def delete_authorization_code(self, authorization_code: Code) -> None:
        State.codes = {
            name: code for name, code in State.codes.items() if code is not authorization_code
        }

    def authenticate_user(self, authorization_code: Code) -> str:
        return SUBJECT


class IdToken(OpenIDCode):  # type: ignore[misc]
    def exists_nonce(self, nonce: str, request: OAuth2Request) -> bool:
        return any(code.nonce == nonce for code in State.codes.values())

    def resolve_client_private_key(self, client: Client) -> RSAKey:
        return FOREIGN_KEY if State.fault == "foreign key" else KEY

    def get_client_algorithm(self, client: Client) -> str:
        return "none" if State.fault == "alg none" else "RS256"

    def get_encode_header(self, client: Client) -> dict[str, str]:
        return {"alg": self.get_client_algorithm(client), "kid": "key-1"}

    def get_client_claims(self, client: Client) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": "https://another.example" if State.fault == "issuer" else State.issuer,
            "aud": ["another"] if State.fault == "audience" else [CLIENT_ID],
            "exp": now - 60 if State.fault == "expired" else now + 60,
        }

    def generate_user_info(self, user: str, scope: str) -> UserInfo:
        return UserInfo(sub=user, email=EMAIL, email_verified=State.fault != "unverified")


class Payload(OAuth2Payload):  # type: ignore[misc]
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    @property
    def data(self) -> dict[str, str]:
        return self._values

    @property
    def datalist(self) -> dict[str, list[str]]:
        return defaultdict(list, {name: [value] for name, value in self._values.items()})


class Request(OAuth2Request):  # type: ignore[misc]
    def __init__(self, handler: Handler, form: dict[str, str]) -> None:
        super().__init__(handler.command, State.issuer + handler.path, None, handler.headers)
        self._args, self._form = dict(parse_qsl(urlsplit(handler.path).query)), form
        self.payload = Payload(self._args | form)

    @property
    def args(self) -> dict[str, str]:
        return self._args

    @property
    def form(self) -> dict[str, str]:
        return self._form


class Server(AuthorizationServer):  # type: ignore[misc]
    def query_client(self, client_id: str) -> Client | None:
        return Client() if client_id == CLIENT_ID else None

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        pass

    def create_oauth2_request(self, request: Request) -> Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any, Any]:
        return status, body, headers

    def send_signal(self, name: str, *arguments: Any, **named: Any) -> None:
        pass


SERVER = Server(["openid", "email", "profile"])
SERVER.register_token_generator(
    "default", BearerTokenGenerator(lambda **_: secrets.token_urlsafe(16))
)
SERVER.register_grant(CodeGrant, [IdToken(require_nonce=True), CodeChallenge(required=True)])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/.well-known/openid-configuration":
            self._send(200, metadata(), [])
        elif path == "/keys":
            self._send(200, {"keys": [KEY.as_dict(private=False)]}, [])
        elif path == "/authorize":
            request = Request(self, {})
            grant = SERVER.get_consent_grant(request, SUBJECT)
            self._send(*SERVER.create_authorization_response(request, SUBJECT, grant))
        else:
            self._send(404, {}, [])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        if self.path == "/fault":
            State.fault = body
            self._send(200, {}, [])
        else:
            self._send(*SERVER.create_token_response(Request(self, dict(parse_qsl(body)))))

    def _send(self, status: int, body: Any, headers: Any) -> None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def metadata() -> dict[str, Any]:
    """What a provider says of itself."""
    return {
        "issuer": State.issuer,
        "authorization_endpoint": f"{State.issuer}/authorize",
        "token_endpoint": f"{State.issuer}/token",
        "jwks_uri": f"{State.issuer}/keys",
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "code_challenge_methods_supported": ["S256"],
    }


@contextmanager
def provider() -> Iterator[str]:
    """A provider that runs; its issuer."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.servers.oidc_provider", str(port)]
    environment = os.environ | {"AUTHLIB_INSECURE_TRANSPORT": "1"}
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                httpx2.get(f"{issuer}/keys", timeout=5)
                break
            except httpx2.HTTPError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield issuer
    finally:
        process.terminate()
        process.wait(10)


def main() -> None:
    """Serve until stopped."""
    port = int(sys.argv[1])
    State.issuer = f"http://127.0.0.1:{port}"
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
