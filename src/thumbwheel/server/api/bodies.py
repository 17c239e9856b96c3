"""Bodies of requests: a bound on those that are read into memory, and files that are uploaded to
disk."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from starlette.types import Message

from thumbwheel.access.credentials import Credentials
from thumbwheel.access.gate import AccessGate
from thumbwheel.access.needs import Need, need_of
from thumbwheel.access.problem import answered_with
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.capture.uploads import Upload
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, StorageError
from thumbwheel.db.workspace import Workspace

MOST_BYTES = 16 * 2**20
"""Of a body of parameters."""
MOST_OF_STRANGERS = 64 * 2**10
"""Of a body whose sender presents nothing that is known here: it is read before it is refused."""
MOST_UPLOADED = 8 * 2**30
"""Bytes of an uploaded file."""
FILE_NAME = re.compile(r"[^\W_][\w .()+-]{0,199}")


class BoundedRoute(TurnRoute):
    """A route that stops reading a body at MOST_BYTES, that of a stranger soon, and reads none of
    a sender who may not do this."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return FastAPI's handler, with the request body bounded by who sends it."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Any:
            gate: AccessGate = request.app.state.gate
            identity = gate.identify(Credentials.of(request.headers))
            need = need_of(self)
            if identity is not None and isinstance(need, Need):
                need.refuse_early(request, identity.principal)
            most = MOST_OF_STRANGERS if identity is None else MOST_BYTES
            return await handle(Request(request.scope, _Bounded(request.receive, most)))

        return bounded


class _Bounded:
    """Receives a body piece by piece, and no more than so many bytes of it."""

    def __init__(self, receive: Callable[[], Any], most: int) -> None:
        self._receive, self._most, self._left = receive, most, most

    async def __call__(self) -> Message:
        message: Message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, f"a body of parameters has at most {self._most:,} bytes")
        return message


def uploaded(name_parameter: str) -> Callable[[Request], AsyncIterator[Upload]]:
    """Return a FastAPI dependency that yields the uploaded file.

    The query parameter `name_parameter` names the file; the dependency raises InputError unless
    that is a plain file name.
    """

    async def receive(request: Request) -> AsyncIterator[Upload]:
        ws: Workspace = request.app.state.workspace
        name = request.query_params.get(name_parameter, "")
        if not FILE_NAME.fullmatch(name):
            raise InputError(
                f"parameter {name_parameter!r} = {name[:100]!r}",
                "it is not a plain file name; over the API a file is the body of the request",
                f"Give ?{name_parameter}=ratings.jsonl, and send the content",
            )
        upload = Upload(ws.home.uploads / ids.new("upl") / name, 0, "")
        try:
            await _write(request, upload)
            yield upload
        finally:
            if not upload.is_of_job:
                shutil.rmtree(upload.folder, ignore_errors=True)

    return receive


async def _write(request: Request, upload: Upload) -> None:
    """Write the request's body into the upload's file, and set its size and hash. Raises
    StorageError if the disk does not accept it, HTTPException beyond MOST_UPLOADED."""
    content_hash = hashlib.sha256()
    try:
        upload.folder.mkdir(mode=0o700, parents=True)
        with upload.path.open("wb") as stream:
            async for piece in request.stream():
                upload.size += len(piece)
                if upload.size > MOST_UPLOADED:
                    most = f"an uploaded file has at most {MOST_UPLOADED:,} bytes"
                    raise HTTPException(413, most)
                content_hash.update(piece)
                # The disk may be slow, and the loop has others to answer.
                await run_in_threadpool(stream.write, piece)
    except OSError as error:
        refusal = StorageError(
            f"file {upload.path.name!r}",
            f"it cannot be written: {error.strerror or error}",
            "Make room on the server's disk, and send it again",
        )
        raise answered_with(507, refusal) from None
    upload.sha256 = content_hash.hexdigest()
