"""Short-lived tokens (JWT) that a key or a session is changed into: for a page or a job that should
not hold the key itself.

They are signed by Ed25519 and nothing else; which key signed says `kid`. A token names who it
stands for, and what it may: what that key or user may no more, it may no more. Keys are changed
every month, and one that signs no more is kept for as long as its tokens live.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.access.types import Grants, Principal, grants_of
from thumbwheel.core import key_files
from thumbwheel.core.errors import StorageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "EdDSA"
ISSUER = AUDIENCE = "thumbwheel"
REQUIRED = ["exp", "iat", "iss", "aud", "sub", "grants"]
MOST_SECONDS = 3600
"""A token lives at most so long, and so does a key that signs no more."""
KEY_DAYS = 30
"""Days after which another key signs."""


@dataclass(frozen=True)
class SigningKey:
    """A key that signs, or did."""

    kid: str
    private: str
    """Its 32 bytes, in hex."""
    since: float
    until: float | None
    """When it stopped signing; None for the one that signs."""

    def is_of_use(self, now: float) -> bool:
        """Return whether a token that the key signed can still be valid."""
        return self.until is None or self.until + MOST_SECONDS > now


class WebTokens:
    """Makes and reads the tokens of a home, whose keys are in a file of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._keys: dict[str, SigningKey] = {}
        self._version: object = None

    def make(self, principal: Principal, grants: Grants, seconds: int) -> str:
        """Return a token for the principal, valid for `seconds` but at most an hour."""
        import jwt  # with all its kinds of keys; most servers never see a token

        now = int(time.time())
        key = self._signing_key()
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal.id,
            "iat": now,
            "exp": now + min(seconds, MOST_SECONDS),
            "grants": {agent: sorted(verbs) for agent, verbs in grants.items()},
        }
        return jwt.encode(claims, _private(key), ALGORITHM, headers={"kid": key.kid})

    def read(self, token: str) -> tuple[str, Grants] | None:
        """Return (id of the principal, grants of the token); None if the token is not valid."""
        import jwt

        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._key(kid) if isinstance(kid, str) else None
            if key is None or not key.is_of_use(time.time()):
                return None
            claims = jwt.decode(
                token,
                _private(key).public_key(),
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                issuer=ISSUER,
                options={"require": REQUIRED},
            )
            return str(claims["sub"]), grants_of(claims["grants"])
        except (jwt.InvalidTokenError, ValueError, TypeError, AttributeError):
            return None

    def _signing_key(self) -> SigningKey:
        now = time.time()
        self._reload()
        for key in self._keys.values():
            if key.until is None and key.since + KEY_DAYS * 86_400 > now:
                return key
        with self._lock:
            key_files.update(self._path, lambda content: self._renewed(content, now))
            self._version = key_files.version(self._path)
            self._keys = _read(self._path)
        return next(key for key in self._keys.values() if key.until is None)

    def _key(self, kid: str) -> SigningKey | None:
        self._reload()
        return self._keys.get(kid)

    def _renewed(self, stored: bytes | None, now: float) -> bytes | None:
        """Return the keys with a new one that signs; None if another process was first."""
        earlier = list(_parsed(self._path, stored).values())
        for key in earlier:
            if key.until is None and key.since + KEY_DAYS * 86_400 > now:
                return None
        return self._with_new_key(earlier, now)

    def _with_new_key(self, earlier: list[SigningKey], now: float) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        private = Ed25519PrivateKey.generate().private_bytes(
            Encoding.Raw, PrivateFormat.Raw, NoEncryption()
        )
        new = SigningKey(secrets.token_hex(8), private.hex(), now, None)
        content = [vars(new)]
        for key in earlier:
            ended = SigningKey(key.kid, key.private, key.since, key.until or now)
            if ended.is_of_use(now):
                content.append(vars(ended))
        return json.dumps(content).encode("ascii")

    def _reload(self) -> None:
        """Read the keys again if they have changed."""
        version = key_files.version(self._path)
        if version is None:
            self._keys = {}
        elif version != self._version:
            self._keys = _read(self._path)
        self._version = version


def looks_like_token(value: str) -> bool:
    """Return whether a bearer value has the form of a JWT."""
    return value.count(".") == 2 and value.startswith("ey")


def _private(key: SigningKey) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.private))


def _read(path: Path) -> dict[str, SigningKey]:
    return _parsed(path, key_files.read(path))


def _parsed(path: Path, stored: bytes | None) -> dict[str, SigningKey]:
    if stored is None:
        return {}
    try:
        content: list[Mapping[str, Any]] = json.loads(stored)
        return {str(entry["kid"]): SigningKey(**entry) for entry in content}
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"keys of tokens {str(path)!r}",
            f"they cannot be read ({error})",
            "Delete the file. Issued tokens become invalid; new ones work",
        ) from None
