"""The commands of `thumbwheel --server URL`: parsed here, run there.

Which request a command is, the server's /api/openapi.json says. Results, errors and exit codes are
those of the command itself. Files that a command reads are uploaded, files that it writes are
written here. Nothing heavy is imported: the client is that of the standard library.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import typer

from thumbwheel.access.protocol import (
    DOCUMENT,
    EXIT,
    PAGE,
    PROBLEM_TYPE,
    encode_request,
    path_names,
)
from thumbwheel.access.typed_password import typed_password
from thumbwheel.app.command_table import LOCAL, is_json_flag, parameter_name
from thumbwheel.app.job_progress import event_line, show_progress
from thumbwheel.core import errors, log, present
from thumbwheel.core.addresses import is_loopback
from thumbwheel.core.errors import Conflict, InputError, NotFound, ThumbwheelError
from thumbwheel.core.private import ACCESS_TOKEN

PATIENCE = 600.0
"""Seconds in which an answer has to begin."""
PIECE = 2**20
ACCEPTED = 202
"""The status of a request that is a job now."""
STREAM, END = "text/event-stream", "end"
ATTEMPTS = 20
"""So often in a row the server may be gone while a job of it is followed."""
LOG = "jobs logs"
WITHOUT_PASSWORD = "by_provider"
"""The flag of a user who has none."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a log that is followed."""


@dataclass(frozen=True)
class RemoteOperation:
    """A request that a command is."""

    method: str
    path: str
    names: frozenset[str]
    """Of its parameters."""
    passwords: frozenset[str]
    """Those of them that nobody writes into a command."""
    upload: str | None
    download: str | None


@dataclass(frozen=True)
class RemoteServer:
    """Somebody's `thumbwheel serve`."""

    url: str
    key: str | None = field(repr=False)

    @classmethod
    def of_url(
        cls, url: str, key_file: Path | None, environment: Mapping[str, str], home: Path
    ) -> RemoteServer:
        """Return the server at `url`, with the key of a file, else of THUMBWHEEL_KEY; on this
        machine, else with the token of `home`.

        Raises InputError for an invalid address or an unreadable key file.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise InputError(
                f"--server {url!r}", "it is not the address of a server", "Give http://HOST:8787"
            )
        key = environment.get("THUMBWHEEL_KEY") or None
        if key_file is not None:
            try:
                key = key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is no text"
                fix = "Name the file that holds the key"
                raise InputError(f"--key-file {str(key_file)!r}", why, fix) from None
        token = home / ACCESS_TOKEN
        if key is None and is_loopback(parts.hostname) and token.is_file():
            key = token.read_text(encoding="ascii").strip()
        if key and parts.scheme == "http" and not is_loopback(parts.hostname):
            log.say(f"note: the key goes to {parts.netloc} without encryption")
        return cls(url.rstrip("/"), key)

    def run(self, command: str, parameters: list[Any], context: Any) -> None:
        """Run the command on the server with the typed parameters."""
        values = _typed(parameters, context)
        as_json = any(is_json_flag(each) and context.params[each.name] for each in parameters)
        if command == LOG and values.pop("follow", False):
            self._follow_log(values["job"], values.get("after", 0), as_json=as_json)
            return
        operation = self._operation(command, values)
        values |= _passwords(operation, values)
        target = _target(operation, values, context)
        file = _file(operation, values)
        request = _request(operation, values, command)
        headers = {"accept": "application/json" if as_json else f"{PAGE}, application/json"}
        if operation.method != "GET":
            # The same request with the same key gives the result of the job that it was.
            headers["idempotency-key"] = uuid.uuid4().hex
        code = None
        while code is None:
            with closing(self._connection()) as connection:
                response = self._send(connection, operation.method, request, headers, file)
                if response.status >= 400:
                    raise _error(response)
                if response.status == ACCEPTED:
                    job = str(_json(response)["id"])
                elif operation.download:
                    code = _write(response, target)
                else:
                    code = _show(response, as_json=as_json)
            if code is None:
                self._follow(job)
                file = None  # the server has it, and the key tells which job it was
        if code:
            raise typer.Exit(code)

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

    def _follow_log(self, job: str, after: int, *, as_json: bool) -> None:
        """Show the log of a job until it has ended."""
        path = f"/api/jobs/{quote(job, safe='')}"
        while True:
            # asked first, so that no line of its end is missed
            has_ended = self._value(path)["ended_at"] is not None
            for event in self._value(f"{path}/log?after={after}"):
                after = event["number"]
                if as_json:
                    present.show_json_line(event)
                else:
                    recorded_at = datetime.fromisoformat(event["recorded_at"])
                    present.show([event_line(event["kind"], event["content"], recorded_at)])
            if has_ended:
                return
            time.sleep(LOOK_EVERY)

    def _value(self, path: str) -> Any:
        """Return the JSON value at a path of the API."""
        with closing(self._connection()) as connection:
            response = self._send(connection, "GET", (path, None), {}, None)
            if response.status >= 400:
                raise _error(response)
            return _json(response)

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

    def _operation(self, command: str, values: dict[str, Any]) -> RemoteOperation:
        """Return the request of a command. A flag that chooses between several operations is
        removed from `values`. Raises NotFound if the server does not offer the command."""
        document = self._value(DOCUMENT)
        name = command.replace(" ", ".")
        for flag in [option for option, value in values.items() if value is True]:
            described = _described(document, f"{name}.{flag}")
            if described is not None:
                del values[flag]
                return described
        described = _described(document, name)
        if described is not None:
            return described
        reason = LOCAL.get(command, "the server does not offer it")
        fix = "Run it without --server, on the machine that it is about"
        raise NotFound(f"command {command!r} over a server", reason, fix)

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
            raise Conflict(f"--server {self.url}", why, fix) from None


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


def _described(document: Mapping[str, Any], operation_id: str) -> RemoteOperation | None:
    """Return the operation with this id; None if the server does not have it."""
    for path, methods in document.get("paths", {}).items():
        for method, described in methods.items():
            if described.get("operationId") == operation_id:
                return _operation_of(document, method, path, described)
    return None


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


def _typed(parameters: list[Any], context: Any) -> dict[str, Any]:
    """Return the typed parameters under their names in requests; the server knows the defaults."""
    typed = {}
    for parameter in parameters:
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE" or is_json_flag(parameter):
            continue
        typed[parameter_name(parameter)] = context.params[parameter.name]
    return typed


def _passwords(operation: RemoteOperation, values: Mapping[str, Any]) -> dict[str, str]:
    """Prompt for the passwords; they must not appear on the command line."""
    if values.get(WITHOUT_PASSWORD):
        return {}
    return {name: typed_password(str(values.get("name"))) for name in operation.passwords}


def _target(operation: RemoteOperation, values: dict[str, Any], context: Any) -> Path | None:
    """Return the path to which the download is written, removed from `values`; None without one."""
    if operation.download is None:
        return None
    path = values.pop(operation.download, None)
    return None if path is None else Path(path)


def _file(operation: RemoteOperation, values: dict[str, Any]) -> Path | None:
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


def _request(
    operation: RemoteOperation, values: dict[str, Any], command: str
) -> tuple[str, bytes | None]:
    """Return (path with its query, body). Raises InputError for a value that the operation does not
    take or a missing path parameter."""
    for name in values:
        if name not in operation.names:
            raise InputError(
                f"--{name.replace('_', '-')}",
                "it concerns the server's own machine, which a request may not name",
                "Leave it out, or run the command on the machine of the server",
            )
    for name in path_names(operation.path):
        if name not in values:
            raise InputError(
                command, f"over a server it needs --{name}", f"Give --{name}, as the path has it"
            )
    plain = {name: _plain(value) for name, value in values.items()}
    has_body = operation.method in ("POST", "PUT") and not operation.upload
    return encode_request(operation.path, plain, has_body=has_body)


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


def _show(response: HTTPResponse, *, as_json: bool) -> int:
    """Show the result; return the exit code."""
    content = _json(response)
    if as_json or response.headers.get_content_type() != PAGE:
        present.show_json(content)
        return int(response.headers.get(EXIT, 0))
    present.show(present.part_of_json(part) for part in content["parts"])
    return int(content["exit"])


def _write(response: HTTPResponse, target: Path | None) -> int:
    """Write the answer to the file or folder `target`; by default to the name that the server
    gives. Return the exit code."""
    disposition = response.headers.get_filename() or "answer"
    if response.headers.get_content_type() == "application/x-tar":
        _unpack(response, target or Path(disposition).with_suffix(""))
        return 0
    path = target or Path(Path(disposition).name)
    with path.open("wb") as stream:
        while piece := response.read(PIECE):
            stream.write(piece)
    log.say(f"written: {path.absolute()}")
    return 0


def _unpack(response: HTTPResponse, folder: Path) -> None:
    """Write the files of a tar stream, whose top folder becomes `folder`. Raises InputError unless
    that is new or empty."""
    import tarfile

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"path {str(folder)!r}",
            "it is not an empty folder, and existing files are never overwritten",
            "Name a new folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=response, mode="r|") as archive:
        for member in archive:
            inside = member.name.partition("/")[2]
            if inside:
                archive.extract(member.replace(name=inside), folder, filter="data")
    log.say(f"written: {folder.absolute()}")


def _json(response: HTTPResponse) -> Any:
    try:
        return json.loads(response.read())
    except ValueError:
        raise InputError(
            "the server", "its answer is not JSON", "Check that it is a Thumbwheel server"
        ) from None


def _error(response: HTTPResponse) -> ThumbwheelError:
    """Return the error in a problem response, of the same class as on the server."""
    content = _json(response)
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
