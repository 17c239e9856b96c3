"""Somebody else's running server, read by its REST API: one host, JSON, bounded replies, errors
that say what to do.

The key goes to the host of the address and nowhere else: redirects are not followed. Lives here:
asking. Not here: what a server's paths and rows mean (`sources/`), what was read before
(`ingest.py`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from thumbwheel.core import log
from thumbwheel.core.address_secrets import HIDDEN, without_secrets
from thumbwheel.core.addresses import leads_to_loopback
from thumbwheel.core.errors import InputError
from thumbwheel.core.present import shortened
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.importers.counterparts import Recorded
from thumbwheel.importers.json_text import HasNul, has_nul, json_value
from thumbwheel.importers.location import Address
from thumbwheel.importers.types import TraceRecord, Unreadable, parse_time

if TYPE_CHECKING:
    import httpx2

PATIENCE = 60.0
"""Seconds in which a reply has to come."""
LONGEST_REPLY = 64 * 2**20
"""Bytes of one reply, unpacked."""
MOST_VALUES = 5_000_000
"""Values in one reply."""
LONGEST_EXCERPT = 120
"""Characters of a reply that an error shows."""
STORE_KEY = "Store a key of it (thumbwheel secrets set NAME)"
ATTEMPTS = 4
LONGEST_WAIT = 30.0
"""Seconds between two attempts, whatever the server asks for."""
BUSY = (429, 502, 503, 504)
SINCE = "since"
"""The parameter of an address that says from when on a server is read."""

Position = Mapping[str, Any]
"""Up to where a server was read, in words of its source."""


@dataclass(frozen=True)
class Key:
    """A stored secret: its name is shown, its value is sent."""

    name: str
    value: str = field(repr=False)

    def header(self) -> str:
        """Return the value of the header `Authorization`: USER:PASSWORD is basic authentication,
        anything else a token."""
        if ":" in self.value:
            return f"Basic {base64.b64encode(self.value.encode()).decode()}"
        return f"Bearer {self.value}"


Stored = Callable[[Literal["trace", "feedback"], Collection[str]], set[str]]
"""Those of these names that an earlier import stored."""


def _nothing(noun: str, names: Collection[str]) -> set[str]:
    return set()


def _unrecorded(traces: Sequence[TraceRecord]) -> list[Any]:
    return []


def _ignore(position: Position) -> None:
    pass


@dataclass(frozen=True)
class Connection:
    """What reading a server needs beside its address."""

    key: Key | None = None
    position: Position | None = None
    """What the latest import of this address reached; None for the first."""
    stored: Stored = field(default=_nothing, compare=False)
    recorded: Recorded = field(default=_unrecorded, compare=False)
    reached: Callable[[Position], None] = field(default=_ignore, compare=False)
    """Called when all items before this position have been yielded."""


def is_server(path: Path) -> bool:
    """Return whether the path is the address of an HTTP server."""
    return isinstance(path, Address) and path.url.lower().startswith(("http://", "https://"))


def server_name(path: Path) -> str:
    """Return the name under which an import of this address stores its position: the address
    without the time from which it is read."""
    parts = urlsplit(str(path))
    query = [pair for pair in parts.query.split("&") if not pair.startswith(f"{SINCE}=")]
    return urlunsplit(parts._replace(query="&".join(query), fragment=""))


def require_key(secrets: Path, name: str, path: Path) -> Key:
    """Return the stored secret of this name, for the server at `path`. Raises NotFound, and
    InputError if `path` is not a server."""
    if not is_server(path):
        raise InputError("--key", f"{str(path)!r} is not a server", "Leave it out")
    return Key(name, SecretStore(secrets).require(name))


@dataclass(frozen=True)
class ServerUrl:
    """An address taken apart: where the API is, and what of the server is asked for."""

    base: str
    """Without a slash at its end."""
    parameters: Mapping[str, str]

    @property
    def since(self) -> datetime | None:
        """The time before which nothing is read, where the address names one; raises InputError."""
        text = self.parameters.get(SINCE)
        try:
            return parse_time(text) if text else None
        except Unreadable as error:
            raise InputError(
                f"address {self.base!r}", f"?{SINCE}=: {error}", f"Give ?{SINCE}=2026-01-31"
            ) from None

    @classmethod
    def of(cls, path: Path, product: str, parameters: Collection[str]) -> ServerUrl:
        """Return the parts of an address such as http://127.0.0.1:5000/?experiment=support. Raises
        InputError for another kind of address, for a password in it, and for other parameters than
        these."""
        example = f"thumbwheel import {product} http://127.0.0.1:5000 --agent AGENT"
        if not is_server(path) or not isinstance(path, Address):
            raise InputError(
                f"address {str(path)!r}", "it is not the address of a server", f"Give: {example}"
            )
        parts = urlsplit(path.url)
        if not parts.hostname:
            raise InputError(f"address {str(path)!r}", "it names no host", f"Give: {example}")
        if "@" in parts.netloc:
            raise InputError(
                f"address {str(path)!r}",
                "it contains a password, which shells write into their history",
                "Store USER:PASSWORD (thumbwheel secrets set NAME) and give --key NAME",
            )
        values = {name: unquote(value[-1]) for name, value in parse_qs(parts.query).items()}
        for name in values:
            if name not in (*parameters, SINCE):
                listed = ", ".join(f"?{parameter}=" for parameter in (*parameters, SINCE))
                raise InputError(
                    f"address {str(path)!r}", f"parameter {name!r} is unknown", f"Known: {listed}"
                )
        base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        return cls(base, values)


@dataclass(frozen=True)
class ServerReply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def excerpt(self, secrets: Collection[str]) -> str:
        """Return the beginning of the reply in one line, with these texts hidden in case the reply
        repeats them."""
        text = self.content[:5_000].decode("utf-8", "replace")
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        return shortened(" ".join(text.split()), LONGEST_EXCERPT)


class NotAnswered(InputError):
    """The server runs, and answers a question with an error of its own."""


class NotThere(NotAnswered):
    """It answers that what was asked for does not exist (404)."""


class NoJson(InputError):
    """The server runs, and answers with something else than JSON."""


class NotAllowed(InputError):
    """The server wants a key, or refuses this one."""


class ServerApi:
    """The API of one server. Every error is an InputError that names the server."""

    def __init__(self, url: ServerUrl, product: str, key: Key | None, client: httpx2.Client):
        self.url, self.product, self.key = url, product, key
        self._client = client
        self._what = f"{product} at {url.base}"

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of a reply."""
        return self._ask("GET", path, params=dict(parameters or {}))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the reply to a JSON body."""
        return self._ask("POST", path, json=dict(body))

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        import httpx2

        wait = 1.0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                reply = self._send(method, path, request)
            except httpx2.TimeoutException:
                why = f"{method} {path} had no answer in {PATIENCE:g} seconds"
                raise self.error(why, "Is the server overloaded? Import again later") from None
            except httpx2.HTTPError as error:
                why = f"nothing answers there ({shortened(str(error) or type(error).__name__)})"
                raise self.error(why, "Start it, or check the address") from None
            if reply.status not in BUSY or attempt == ATTEMPTS:
                break
            time.sleep(_wait(reply, wait))
            wait *= 2
        return self._content(f"{method} {path}", reply)

    def _send(self, method: str, path: str, request: Mapping[str, Any]) -> ServerReply:
        """Return the reply. Raises InputError if its content is longer than LONGEST_REPLY."""
        with self._client.stream(method, f"{self.url.base}{path}", **request) as reply:
            content = bytearray()
            for piece in reply.iter_bytes():
                content += piece
                if len(content) > LONGEST_REPLY:
                    raise self.error(
                        f"{method} {path} answers with more than {LONGEST_REPLY:,} bytes",
                        "Export it into a file, and import that",
                    )
            return ServerReply(reply.status_code, reply.headers, bytes(content))

    def _content(self, question: str, reply: ServerReply) -> Any:
        status = reply.status
        if status in (401, 403):
            reason = f"HTTP {status} to {question}: {self._excerpt(reply)}"
            why, fix = f"it wants a key ({reason})", f"{STORE_KEY} and give --key NAME"
            if self.key:
                why = f"it refuses the key {self.key.name} ({reason})"
                fix = f"Set another one: thumbwheel secrets set {self.key.name}"
            raise NotAllowed(self._what, why, fix)
        if 300 <= status < 400:
            location = without_secrets(reply.headers.get("location", "")).partition("?")[0]
            raise self.error(
                f"it sends {question} on to {location or 'nowhere'}, where nothing is asked",
                "If that is the server that you mean, give its address",
            )
        if status >= 400:
            why = f"it answers HTTP {status} to {question}: {self._excerpt(reply)}"
            fix = f"Check that it is the address of {self.product}"
            error_type = NotThere if status == 404 else NotAnswered
            raise error_type(self._what, why, fix)
        try:
            return json_value(reply.content, MOST_VALUES, allow_nul=True)
        except Unreadable as error:
            fix = f"Is it {self.product}? Give the address of its pages"
            raise NoJson(self._what, f"it answers {question}, and {error}", fix) from None

    def _excerpt(self, reply: ServerReply) -> str:
        secrets = (self.key.value, self.key.header().split()[-1]) if self.key else ()
        return reply.excerpt(secrets)

    def objects(self, reply: Any, key: str | None = None) -> list[dict[str, Any]]:
        """Return the list of objects that a reply is, or has at `key`; [] if the key is missing.
        Raises InputError for anything else."""
        rows = reply
        if key is not None and isinstance(reply, dict):
            rows = reply.get(key, [])
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return rows
        raise self.not_this(f"it answers with {shortened(repr(reply))}")

    def ambiguous(self, parameter: str, wanted: str | None, names: Collection[str]) -> InputError:
        """Return the error for an address that does not select one of `names`."""
        why = f"there is no {parameter} {wanted!r}"
        if wanted is None:
            why = f"it has several with traces: which {parameter} is meant?"
            if not names:
                why = "it has no traces"
        listed = ", ".join(sorted(names)[:20]) or "none"
        return self.error(why, f"Give {self.url.base}/?{parameter}=NAME; there are: {listed}")

    def not_this(self, why: str) -> InputError:
        """Return the error for a server of another product."""
        return self.error(why, f"Is it {self.product}? Give the address of its pages")

    def error(self, why: str, fix: str) -> InputError:
        """Return an error that names the server."""
        return InputError(self._what, why, fix)


def _wait(reply: ServerReply, seconds: float) -> float:
    asked = reply.headers.get("retry-after", "")
    return min(float(asked) if asked.isdecimal() else seconds, LONGEST_WAIT)


@contextmanager
def connected(
    path: Path, product: str, parameters: Collection[str], key: Key | None
) -> Iterator[ServerApi]:
    """Yield the API of the server at this address. Raises InputError."""
    import httpx2

    url = ServerUrl.of(path, product, parameters)
    headers = {"accept": "application/json"}
    if key:
        headers["authorization"] = key.header()
        if url.base.startswith("http://") and not leads_to_loopback(url.base):
            log.say(f"note: the key {key.name} goes to {url.base} without encryption")
    with httpx2.Client(
        headers=headers,
        timeout=PATIENCE,
        follow_redirects=False,
        trust_env=not leads_to_loopback(url.base),
    ) as client:
        api = ServerApi(url, product, key, client)
        try:
            yield api
        except Unreadable as error:
            raise api.not_this(f"of its list {error}") from None


def checked(row: dict[str, Any]) -> dict[str, Any]:
    """Return the same object. Raises HasNul if a text in it contains a NUL character."""
    if has_nul(row):
        raise HasNul
    return row
