"""The commands of `thumbwheel --server URL`: parsed here, run there (app/server_client.py).

Results, errors and exit codes are those of the command itself. Files that a command reads are
uploaded, files that it writes are written here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from thumbwheel.access.protocol import EXIT, PAGE, path_names
from thumbwheel.access.typed_password import typed_password
from thumbwheel.app.command_table import LOCAL, is_json_flag, parameter_name
from thumbwheel.app.job_progress import event_line
from thumbwheel.app.server_client import (
    PIECE,
    RemoteOperation,
    ServerClient,
    file_to_upload,
    json_of,
    unpack,
)
from thumbwheel.core import log, present
from thumbwheel.core.errors import InputError, NotFound

LOG = "jobs logs"
WITHOUT_PASSWORD = "by_provider"
"""The flag of a user who has none."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a log that is followed."""


@dataclass(frozen=True)
class RemoteCommands:
    """The commands of a server, which are run there."""

    client: ServerClient

    @classmethod
    def of_url(
        cls, url: str, key_file: Path | None, environment: Mapping[str, str], home: Path
    ) -> RemoteCommands:
        """Return the commands of the server at `url`, with the key of a file, else of
        THUMBWHEEL_KEY; on this machine, else with the token of `home`.

        Raises InputError for an invalid address or an unreadable key file.
        """
        key = environment.get("THUMBWHEEL_KEY")
        if key_file is not None:
            try:
                key = key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is no text"
                fix = "Name the file that holds the key"
                raise InputError(f"--key-file {str(key_file)!r}", why, fix) from None
        return cls(ServerClient.of_url(url, key, home))

    def run(self, command: str, parameters: list[Any], context: Any) -> None:
        """Run the command on the server with the typed parameters."""
        values = _typed(parameters, context)
        as_json = any(is_json_flag(each) and context.params[each.name] for each in parameters)
        if command == LOG and values.pop("follow", False):
            self._follow_log(values["job"], values.get("after", 0), as_json=as_json)
            return
        operation = self._operation(command, values)
        values |= _passwords(operation, values)
        target = _target(operation, values)
        file = file_to_upload(operation, values)
        _check(operation, values, command)
        request = operation.encoded(values)
        accept = "application/json" if as_json else f"{PAGE}, application/json"
        with self.client.answered(operation, request, accept, file) as response:
            if operation.download:
                code = _write(response, target)
            else:
                code = _show(response, as_json=as_json)
        if code:
            raise typer.Exit(code)

    def _follow_log(self, job: str, after: int, *, as_json: bool) -> None:
        """Show the log of a job until it has ended."""
        path = f"/api/jobs/{quote(job, safe='')}"
        while True:
            # asked first, so that no line of its end is missed
            has_ended = self.client.value(path)["ended_at"] is not None
            for event in self.client.value(f"{path}/log?after={after}"):
                after = event["number"]
                if as_json:
                    present.show_json_line(event)
                else:
                    recorded_at = datetime.fromisoformat(event["recorded_at"])
                    present.show([event_line(event["kind"], event["content"], recorded_at)])
            if has_ended:
                return
            time.sleep(LOOK_EVERY)

    def _operation(self, command: str, values: dict[str, Any]) -> RemoteOperation:
        """Return the request of a command. A flag that chooses between several operations is
        removed from `values`. Raises NotFound if the server does not offer the command."""
        name = command.replace(" ", ".")
        for flag in [option for option, value in values.items() if value is True]:
            operation = self.client.operation(f"{name}.{flag}")
            if operation is not None:
                del values[flag]
                return operation
        operation = self.client.operation(name)
        if operation is not None:
            return operation
        reason = LOCAL.get(command, "the server does not offer it")
        fix = "Run it without --server, on the machine that it is about"
        raise NotFound(f"command {command!r} over a server", reason, fix)


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


def _target(operation: RemoteOperation, values: dict[str, Any]) -> Path | None:
    """Return the path to which the download is written, removed from `values`; None without one."""
    if operation.download is None:
        return None
    path = values.pop(operation.download, None)
    return None if path is None else Path(path)


def _check(operation: RemoteOperation, values: Mapping[str, Any], command: str) -> None:
    """Raise InputError for a value that the operation does not take or a missing path parameter."""
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


def _show(response: HTTPResponse, *, as_json: bool) -> int:
    """Show the result; return the exit code."""
    content = json_of(response)
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
        path = target or Path(disposition).with_suffix("")
        unpack(response, path)
    else:
        path = target or Path(Path(disposition).name)
        with path.open("wb") as stream:
            while piece := response.read(PIECE):
                stream.write(piece)
    log.say(f"written: {path.absolute()}")
    return 0
