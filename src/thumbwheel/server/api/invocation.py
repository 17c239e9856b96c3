"""Runs a command for a request: the same function as on the command line, on the home that is
served, and what it shows goes into the response."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from fastapi import Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from thumbwheel.app.served_home import ServedHome
from thumbwheel.core import present
from thumbwheel.core.errors import InputError
from thumbwheel.core.ids import slug_of
from thumbwheel.jobs.request import JobRequest
from thumbwheel.server.api.parameters import Signature


@dataclass(frozen=True)
class ServedContext:
    """What typer's context is on the command line."""

    obj: ServedHome


def run(
    home: ServedHome, signature: Signature, arguments: Mapping[str, Any]
) -> present.Answer[Any] | JobRequest[Any, Any]:
    """Run a command and return its answer, or the job that it requests. `arguments` has the names
    of the function's arguments; the others have their defaults."""
    values: dict[str, Any] = {
        parameter.argument: parameter.default for parameter in signature.parameters
    }
    values.update(arguments)
    if isinstance(values.get("agent"), str):
        values["agent"] = slug_of(values["agent"])
    try:
        answer: present.Answer[Any] | JobRequest[Any, Any]
        answer = signature.function(ctx=ServedContext(home), **values)
    except typer.BadParameter as error:
        raise InputError("a parameter", error.message, "Correct it") from None
    return answer


def run_at_once(
    home: ServedHome, signature: Signature, arguments: Mapping[str, Any]
) -> present.Answer[Any]:
    """Run a command that requests no job, and return its answer."""
    answer = run(home, signature, arguments)
    assert not isinstance(answer, JobRequest)  # noqa: S101 - routes say which commands are jobs
    return answer


@dataclass(frozen=True)
class Download:
    """A folder in which a command writes what is the answer."""

    folder: Path
    target: Path
    ended: Callable[[], None]
    """Called once the folder is removed."""

    @classmethod
    def below(cls, cache: Path, ended: Callable[[], None]) -> Download:
        """Create a new temporary folder below `cache`."""
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="download-", dir=cache))
        except BaseException:
            ended()
            raise
        return cls(folder, folder / "files", ended)

    def response(self, name: str) -> Response:
        """Return the file, or the folder as a tar file, called `name`; the folder is removed once
        it is sent."""
        if self.target.is_dir():
            file, media, file_name = self.folder / "files.tar", "application/x-tar", f"{name}.tar"
            with tarfile.open(file, "w") as archive:
                archive.add(self.target, arcname=name)
            shutil.rmtree(self.target)
        else:
            file, media, file_name = self.target, "text/html", f"{name}.html"
        return DownloadResponse(self, file, media_type=media, filename=file_name)

    def remove(self) -> None:
        """Remove the download's folder with its files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.ended()


class DownloadResponse(FileResponse):
    """The file of a download, which is removed however the response ends: Starlette runs no
    background task after an invalid Range header."""

    def __init__(self, download: Download, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self._download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file (ASGI)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._download.remove()
