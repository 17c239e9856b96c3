"""The client of a server: `thumbwheel --server URL` (cli/remote.py) and `thumbwheel.connect`
(app/remote_home.py) send their requests here.

Which request an operation is, the server's /api/openapi.json says. Errors are those of the
operation itself. Nothing heavy is imported: the client is that of the standard library.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

from thumbwheel.access.protocol import DOCUMENT, PROBLEM_TYPE, encode_request
from thumbwheel.app.job_progress import show_progress
from thumbwheel.core import errors, log
from thumbwheel.core.addresses import is_loopback
from thumbwheel.core.errors import Conflict, InputError, ThumbwheelError
from thumbwheel.core.private import ACCESS_TOKEN

PATIENCE = 600.0
"""Seconds in which an answer has to begin."""
PIECE = 2**20
ACCEPTED = 202
"""The status of a request that is a job now."""
STREAM, END = "text/event-stream", "end"
ATTEMPTS = 20
"""So often in a row the server may be gone while a job of it is followed."""


@dataclass(frozen=True)
class RemoteOperation:
    """A request that an operation is."""

    method: str
    path: str
    names: frozenset[str]
    """Of its parameters."""
    passwords: frozenset[str]
    """Those of them that nobody writes into a command."""
    upload: str | None
    download: str | None

    def encoded(self, values: Mapping[str, Any]) -> tuple[str, bytes | None]:
        """Return (path with its query, body) of a request with these values, which have all
        parameters of the path."""
        plain = {name: _plain(value) for name, value in values.items()}
        has_body = self.method in ("POST", "PUT") and not self.upload
        return encode_request(self.path, plain, has_body=has_body)


@dataclass(frozen=True)
class ServerClient:
    """Somebody's `thumbwheel serve`."""

    url: str
    key: str | None = field(repr=False)

    @classmethod
    def of_url(cls, url: str, key: str | None, home: Path) -> ServerClient:
        """Return the server at `url`; without a key, one on this machine is asked with the token of
        `home`. Raises InputError for an invalid address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InputError(
                f"server {url!r}", "it is not the address of a server", "Give http://HOST:8787"
            )
        token = home / ACCESS_TOKEN
        if not key and is_loopback(parts.hostname) and token.is_file():
            key = token.read_text(encoding="ascii").strip()
        if key and parts.scheme == "http" and not is_loopback(parts.hostname):
            log.say(f"note: the key goes to {parts.netloc} without encryption")
        return cls(url.rstrip("/"), key or None)

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The server's description of its API."""
        document: Mapping[str, Any] = self.value(DOCUMENT)
        return document

    def operation(self, operation_id: str) -> RemoteOperation | None:
        """Return the operation with this id; None if the server does not have it."""
        for path, methods in self.document.get("paths", {}).items():
            for method, described in methods.items():
                if described.get("operationId") == operation_id:
                    return _operation_of(self.document, method, path, described)
        return None

    def value(self, path: str) -> Any:
        """Return the JSON value at a path of the API."""
        with closing(self._connection()) as connection:
            response = self._send(connection, "GET", (path, None), {}, None)
            if response.status >= 400:
                raise _error(response)
            return json_of(response)

    @contextmanager
    def answered(
        self,
        operation: RemoteOperation,
        request: tuple[str, bytes | None],
        accept: str,
        file: Path | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request, and yield the response with its result. If the request becomes a job, its
        progress is shown until it ends. Raises any error of the operation."""
        headers = {"accept": accept}
        if operation.method != "GET":
            # The same request with the same key gives the result of the job that it was.
            headers["idempotency-key"] = uuid.uuid4().hex
        while True:
            with closing(self._connection()) as connection:
                response = self._send(connection, operation.method, request, headers, file)
                if response.status >= 400:
                    raise _error(response)
                if response.status != ACCEPTED:
                    yield response
                    return
                job = str(json_of(response)["id"])
            self._follow(job)
            file = None  # the server has it, and the key tells which job it was

    def _follow(self, job: str) -> None:
        """Show the progress of a job until it has ended."""
        log.say(f"job {job} of {self.url}")
        try:
            show_progress(self._events(job))
        except KeyboardInterrupt:
            command = f"thumbwheel --server {self.url} jobs"
            log.say(
                f"job {job} goes on; look: {command} show {job}; stop it: {command} cancel {job}"
            )
            raise

    def _events(self, job: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield (kind, content) of a job's events. A stream that ends before the job is resumed
        after its last event."""
        last = "0"
        failures = 0
        while True:
            headers = {"accept": STREAM, "last-event-id": last}
            try:
                with closing(self._connection()) as connection:
                    path = f"/api/jobs/{quote(job, safe='')}/events"
                    response = self._send(connection, "GET", (path, None), headers, None)
                    if response.status >= 400:
                        raise _error(response)
                    for number, kind, content in _stream(response):
                        failures = 0
                        if kind == END:
                            return
                        yield kind, content
                        last = number or last
            except (OSError, http.client.HTTPException, Conflict):
                failures += 1
                if failures > ATTEMPTS:
                    raise
            time.sleep(min(failures, 5))

    def _connection(self) -> HTTPConnection:
        """Return a new connection."""
        parts = urlsplit(self.url)
        host = str(parts.hostname)
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return HTTPSConnection(host, parts.port, timeout=PATIENCE, context=context)
        return HTTPConnection(host, parts.port, timeout=PATIENCE)

    def _send(
        self,
        connection: HTTPConnection,
        method: str,
        request: tuple[str, bytes | None],
        headers: Mapping[str, str],
        file: Path | None,
    ) -> HTTPResponse:
        path, body = request
        sent: dict[str, str] = dict(headers)
        if self.key:
            sent["authorization"] = f"Bearer {self.key}"
        if body is not None:
            sent["content-type"] = "application/json"
        prefix = urlsplit(self.url).path
        try:
            if file is None:
                connection.request(method, prefix + path, body, sent)
            else:
                sent["content-type"] = "application/octet-stream"
                sent["content-length"] = str(file.stat().st_size)
                with file.open("rb") as stream:
                    connection.request(method, prefix + path, _pieces(stream), sent)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            why = f"nothing answers there ({error or type(error).__name__})"
            fix = "Start it (thumbwheel serve), or check the address"
            raise Conflict(f"server {self.url}", why, fix) from None


def file_to_upload(operation: RemoteOperation, values: dict[str, Any]) -> Path | None:
    """Return the file to upload, None without one; `values` keeps its name. Raises InputError
    unless it is a file of this machine."""
    if operation.upload is None:
        return None
    path = values.get(operation.upload)
    if path is None or not Path(path).is_file():
        raise InputError(
            f"{operation.upload} {str(path)!r}",
            "it is not a file on this machine, and a server accepts no folders or addresses",
            "Name a file",
        )
    values[operation.upload] = Path(path).name
    return Path(path)


def json_of(response: HTTPResponse) -> Any:
    """Return the JSON value of a response. Raises InputError for anything else."""
    try:
        return json.loads(response.read())
    except ValueError:
        raise InputError(
            "the server", "its answer is not JSON", "Check that it is a Thumbwheel server"
        ) from None


def unpack(response: HTTPResponse, folder: Path) -> None:
    """Write the files of a tar stream, whose top folder becomes `folder`. Raises InputError unless
    that is new or empty."""
    import tarfile

    require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=response, mode="r|") as archive:
        for member in archive:
            inside = member.name.partition("/")[2]
            if inside:
                archive.extract(member.replace(name=inside), folder, filter="data")


def require_empty(folder: Path) -> None:
    """Raise InputError unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"path {str(folder)!r}",
            "it is not an empty folder, and existing files are never overwritten",
            "Name a new folder",
        )


def _stream(response: HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    """Yield (id, kind, content) of server-sent events."""
    fields: dict[str, str] = {}
    for line in response:
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def _operation_of(
    document: Mapping[str, Any], method: str, path: str, described: Mapping[str, Any]
) -> RemoteOperation:
    names = {parameter["name"] for parameter in described.get("parameters", [])}
    content = described.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    reference = schema.get("$ref")
    for candidate in schema.get("anyOf", []):
        reference = reference or candidate.get("$ref")
    if reference:
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    properties = schema.get("properties", {})
    names |= set(properties)
    passwords = {name for name, value in properties.items() if _is_password(value)}
    about = described.get("x-thumbwheel", {})
    return RemoteOperation(
        method.upper(),
        path,
        frozenset(names),
        frozenset(passwords),
        about.get("upload"),
        about.get("download"),
    )


def _is_password(schema: Mapping[str, Any]) -> bool:
    return any(form.get("format") == "password" for form in (schema, *schema.get("anyOf", ())))


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(PIECE):
        yield piece


def _error(response: HTTPResponse) -> ThumbwheelError:
    """Return the error in a problem response, of the same class as on the server."""
    content = json_of(response)
    if not isinstance(content, dict) or "what" not in content:
        return InputError(
            "the server",
            f"it answers HTTP {response.status}",
            "Check that it is a Thumbwheel server",
        )
    name = str(content.get("type", "")).removeprefix(PROBLEM_TYPE)
    cls = getattr(errors, name, ThumbwheelError)
    if not (isinstance(cls, type) and issubclass(cls, ThumbwheelError)):
        cls = ThumbwheelError
    return cls(content["what"], content["why"], content["fix"])
