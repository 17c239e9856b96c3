"""Login by an OIDC provider: authorization code with PKCE, state and nonce.

What the browser keeps between the two steps is signed, and good for ten minutes. The id token has
to be signed by a key that the provider publishes, by an asymmetric algorithm, for this client and
this login.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.httpx_client import OAuth2Client

from thumbwheel.access.settings import ProviderConfig
from thumbwheel.core import log
from thumbwheel.core.addresses import RefusedAddress, allowed_addresses
from thumbwheel.core.errors import ConfigError, Unauthenticated
from thumbwheel.core.seal import Seal
from thumbwheel.core.secret_store import SecretStore

ALGORITHMS = ["RS256", "ES256", "PS256", "EdDSA"]
"""Of id tokens; never one whose secret the client shares."""
REQUIRED = ["exp", "iat", "iss", "aud", "sub"]
SCOPE = "openid email profile"
UNPACKED = {"accept-encoding": "identity"}
"""Headers of every request: a packed reply could be any size."""
TIMEOUT = 10.0
"""Seconds in which the provider has to answer."""
ATTEMPT_SECONDS = 600
LEEWAY = 30
"""Seconds by which the clocks of provider and server may differ."""
MOST_BYTES = 1 << 20
"""Of a reply; metadata, keys and tokens have some thousands."""
LONGEST_NAME = 255
"""Characters of a name, and of the provider's id of a person (OpenID Connect Core, 2)."""
BROKEN = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OverflowError, RecursionError)
"""What a reply that makes no sense, or none, may raise."""


@dataclass(frozen=True)
class LoginAttempt:
    """A login that was begun: what the browser keeps until it comes back."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    expires: float


@dataclass(frozen=True)
class ProviderIdentity:
    """Whom the provider vouches for."""

    issuer: str
    external_id: str
    name: str


@dataclass
class Provider:
    """The provider of the settings. What it says of itself is asked for at the first login."""

    config: ProviderConfig
    secrets: SecretStore
    seal: Seal
    _metadata: Mapping[str, Any] = field(default_factory=dict)

    def begin(self, redirect_uri: str) -> tuple[str, str]:
        """Return (the URL to which the browser is sent, the sealed attempt that it keeps until it
        returns)."""
        attempt = LoginAttempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            expires=time.time() + ATTEMPT_SECONDS,
        )
        with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                self._endpoint("authorization_endpoint"),
                state=attempt.state,
                code_verifier=attempt.verifier,
                nonce=attempt.nonce,
            )
        content = base64.urlsafe_b64encode(json.dumps(vars(attempt)).encode()).decode()
        return url, f"{content}.{self.seal.of('login attempt', content)}"

    def returned(self, cookie: str, parameters: Mapping[str, str]) -> LoginAttempt:
        """Return the login attempt that this browser began and returned with. Raises
        Unauthenticated. The provider is not asked."""
        attempt = self._attempt(cookie)
        if not hmac.compare_digest(parameters.get("state", "").encode(), attempt.state.encode()):
            raise _refused("it is not the one that this browser began")
        if "error" in parameters:
            raise _refused(f"the provider says {parameters['error'][:80]!r}")
        if parameters.get("iss", self.config.issuer) != self.config.issuer:
            raise _refused("it comes from another provider")
        return attempt

    def finish(self, attempt: LoginAttempt, parameters: Mapping[str, str]) -> ProviderIdentity:
        """Return the identity that the provider confirms. Raises Unauthenticated."""
        with self._client(attempt.redirect_uri) as client:
            try:
                answer = client.fetch_token(
                    self._asked_endpoint("token_endpoint"),
                    grant_type="authorization_code",
                    code=parameters.get("code", ""),
                    code_verifier=attempt.verifier,
                )
            except (OAuthError, *BROKEN) as error:
                raise _refused(f"the provider does not confirm it ({error})") from None
        claims = self._claims(str(answer.get("id_token", "")), attempt)
        external_id = str(claims["sub"])
        if not _is_name(external_id):
            raise _refused("the provider's id of the person is empty, too long or no text")
        return ProviderIdentity(self.config.issuer, external_id, self._name(claims))

    def _attempt(self, cookie: str) -> LoginAttempt:
        content, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode(), self.seal.of("login attempt", content).encode()):
            raise _refused("it is not one that began here")
        attempt = LoginAttempt(**json.loads(base64.urlsafe_b64decode(content)))
        if attempt.expires < time.time():
            raise _refused("it took longer than ten minutes")
        return attempt

    def _client(self, redirect_uri: str) -> Any:
        secret = None if self.config.secret is None else self.secrets.require(self.config.secret)
        method = "none" if secret is None else "client_secret_basic"
        return OAuth2Client(
            client_id=self.config.client_id,
            client_secret=secret,
            token_endpoint_auth_method=method,
            scope=SCOPE,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT,
            follow_redirects=False,
            headers=UNPACKED,
            event_hooks={"response": [_bound]},
        )

    def _endpoint(self, name: str) -> str:
        """Return an entry of the provider's metadata; empty if missing. Raises ConfigError if the
        provider names another issuer."""
        if not self._metadata:
            issuer = self.config.issuer
            metadata = _json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if metadata.get("issuer") != issuer:
                raise ConfigError(
                    f"access.provider.issuer {issuer!r}",
                    f"the provider there calls itself {metadata.get('issuer')!r}",
                    "Write it exactly as the provider does",
                )
            self._metadata = metadata
        return str(self._metadata.get(name, ""))

    def _asked_endpoint(self, name: str) -> str:
        """Return an entry of the metadata that this server asks itself. Raises Unauthenticated for
        an address at which no provider of people is: the metadata are of somebody else, and would
        have the server ask its own network.

        The host of the issuer may be private, since it is in the settings; then others may, too.
        """
        url = self._endpoint(name)
        parts, issuer = urlsplit(url), urlsplit(self.config.issuer)
        if issuer.scheme == "https" and parts.scheme != "https":
            raise _refused(f"the {name} in the provider's metadata is not https")
        if parts.hostname == issuer.hostname:
            return url
        try:
            allowed_addresses(url, private=_is_private(self.config.issuer))
        except RefusedAddress as error:
            log.logger.error("the %s in the provider's metadata is refused: %s", name, error)
            why = f"the {name} in the provider's metadata leads to an address that is refused"
            raise _refused(why) from None
        except OSError:
            pass  # it does not resolve here: a proxy may know it
        return url

    def _claims(self, token: str, attempt: LoginAttempt) -> Mapping[str, Any]:
        """Return the claims of an id token. Raises Unauthenticated unless it is valid for this
        login."""
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header.get("kid"))
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[name for name in ALGORITHMS if name == key.algorithm_name],
                audience=self.config.client_id,
                issuer=self.config.issuer,
                leeway=LEEWAY,
                options={"require": REQUIRED},
            )
        except (jwt.PyJWTError, NotImplementedError, *BROKEN) as error:
            raise _refused(f"its id token does not hold ({error})") from None
        nonce = str(claims.get("nonce", "")).encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(nonce, attempt.nonce.encode()):
            raise _refused("its id token is for another login")
        if claims.get("azp", self.config.client_id) != self.config.client_id:
            raise _refused("its id token is for another client")
        return claims

    def _key(self, kid: object) -> jwt.PyJWK:
        """Return the key that the provider publishes under this id. It is fetched anew at each
        login, so that a withdrawn key no longer counts. Raises jwt.InvalidKeyError if there is
        none."""
        keys = jwt.PyJWKSet.from_dict(dict(_json(self._asked_endpoint("jwks_uri")))).keys
        for key in keys:
            if key.key_id == kid or (kid is None and len(keys) == 1):
                return key
        raise jwt.InvalidKeyError("no published key has its kid")

    def _name(self, claims: Mapping[str, Any]) -> str:
        """Return the name under which the user was added here. Raises Unauthenticated if the
        provider gives none, or has not verified the email address."""
        claim = self.config.claim
        name = claims.get(claim)
        if not isinstance(name, str) or not _is_name(name):
            raise _refused(f"the provider gives no claim {claim!r}")
        if claim == "email" and claims.get("email_verified") is not True:
            raise _refused("the provider has not verified the email address")
        return name


def _is_private(url: str) -> bool:
    """Return whether the host of a URL is at private addresses only."""
    try:
        allowed_addresses(url, private=False)
    except RefusedAddress:
        return True
    except OSError:
        return False
    return False


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()


def _json(url: str) -> Mapping[str, Any]:
    try:
        with httpx2.Client(
            timeout=TIMEOUT,
            follow_redirects=False,
            headers=UNPACKED,
            event_hooks={"response": [_bound]},
        ) as client:
            response = client.get(url)
        response.raise_for_status()
        content = response.json()
    except BROKEN as error:
        raise _refused(f"the provider does not answer at {url} ({error})") from None
    if not isinstance(content, dict):
        raise _refused(f"the provider answers no JSON object at {url}")
    return content


class _Body(httpx2.SyncByteStream):
    """The body of a reply, up to MOST_BYTES, and for TIMEOUT."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        end = time.monotonic() + TIMEOUT
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > MOST_BYTES:
                raise httpx2.ReadError(f"the reply has more than {MOST_BYTES:,} bytes")
            if time.monotonic() > end:
                raise httpx2.ReadTimeout(f"the reply takes more than {TIMEOUT:g} seconds")
            yield piece

    def close(self) -> None:
        self._stream.close()


def _bound(response: httpx2.Response) -> None:
    """Bound the body of a reply. Raises HTTPError if it is packed, although the request did not ask
    for it."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.RemoteProtocolError(f"the reply is packed ({encoding[:40]})")
    assert isinstance(response.stream, httpx2.SyncByteStream)  # noqa: S101 - narrows the type
    response.stream = _Body(response.stream)


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated("the login by the provider", why, "Log in again")
