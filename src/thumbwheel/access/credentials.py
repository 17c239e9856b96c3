"""What a request presents to say who asks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

BEARER = "bearer "
KEY_HEADERS = ("x-api-key", "api-key", "x-internal-api-key")
"""Where clients of Anthropic and Azure put their key, and cron jobs of web apps theirs."""
KEY_PREFIX = "tw_"
"""How all keys of ours begin."""
COOKIE = "thumbwheel_session"
COOKIES = "thumbwheel_"
"""How the names of all cookies of ours begin."""
CSRF_COOKIE = "thumbwheel_csrf"
"""What pages of ours read, to send it in the header x-csrf-token."""
SAFE_METHODS = frozenset(["GET", "HEAD", "OPTIONS"])
"""Methods that change nothing."""


@dataclass(frozen=True)
class Credentials:
    """What the headers of a request present."""

    keys: tuple[str, ...]
    """Bearer and the headers of keys, in the order in which they are tried."""
    session: str | None
    """The cookie of a session."""
    csrf: str | None
    """The proof that a page of ours sends what the cookie is sent along with."""
    is_foreign: bool
    """Whether a web page of another site sends it."""

    @property
    def are_given(self) -> bool:
        """Whether anything is presented at all."""
        return bool(self.keys) or self.session is not None

    @property
    def are_of_ours(self) -> bool:
        """Whether a key is meant for us, and not for the server of somebody else behind us."""
        return any(value.startswith(KEY_PREFIX) for value in self.keys)

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Credentials:
        """Read the credentials in `headers`, whose names are in lower case."""
        return cls(
            keys=_keys(headers),
            session=_cookie(headers.get("cookie", "")),
            csrf=headers.get("x-csrf-token"),
            is_foreign=_is_foreign(headers),
        )

    @classmethod
    def of_keys(cls, headers: Mapping[str, str]) -> Credentials:
        """Read the keys in `headers`; what a browser sends by itself does not count."""
        return cls(keys=_keys(headers), session=None, csrf=None, is_foreign=False)


def bearer_of(headers: Mapping[str, str]) -> str:
    """Return the text after Bearer in the Authorization header; empty without one.

    >>> bearer_of({"authorization": "bearer  tw_1"})
    'tw_1'
    """
    authorization = headers.get("authorization", "")
    if not authorization.lower().startswith(BEARER):
        return ""
    return authorization[len(BEARER) :].strip()


def password_of(headers: Mapping[str, str]) -> str:
    """Return the password of basic authentication, where Langfuse clients put their secret key;
    empty without one.

    >>> password_of({"authorization": "Basic cGs6dHdfMQ=="})
    'tw_1'
    """
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:
        return ""
    return text.partition(":")[2]


def own_cookies(header: str) -> str:
    r"""Return a Cookie header with our cookies alone. One with a backslash is left out: none of
    ours has any, and Python's library replaces escapes in quadratic time (CVE-2024-7592), before
    anybody knows who asks.

    >>> own_cookies('a=1; thumbwheel_csrf=2; thumbwheel_session="\\1"; thumbwheel_login="3="')
    'thumbwheel_csrf=2; thumbwheel_login="3="'
    """
    cookies = [cookie.strip() for cookie in header.split(";")]
    ours = [cookie for cookie in cookies if cookie.startswith(COOKIES) and "\\" not in cookie]
    return "; ".join(ours)


def _keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    named = (headers.get(name, "").strip() for name in KEY_HEADERS)
    values = (bearer_of(headers), password_of(headers), *named)
    return tuple(value for value in values if value)


def _cookie(header: str) -> str | None:
    try:
        morsel = SimpleCookie(own_cookies(header)).get(COOKIE)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None


def _is_foreign(headers: Mapping[str, str]) -> bool:
    """Return whether the page that sends the request belongs to another site than the server."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("cross-site", "same-site")
    return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
