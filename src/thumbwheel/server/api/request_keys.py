"""Idempotency keys: a request that is sent again, because its answer was lost, has its effect once.

The key is stored in the transaction of the first row that the request writes, so a crash leaves
either both or none. The answer is stored when it is known; until then, the same key is refused. A
long answer is not stored, only that the request was carried out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import sqlalchemy as sa
from fastapi import Request, Response

from thumbwheel.access.problem import problem, shown_to
from thumbwheel.core.errors import Conflict, InputError, ThumbwheelError
from thumbwheel.core.ids import slug_of
from thumbwheel.db.schema import request_keys
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS

W = TypeVar("W")
HEADER = "idempotency-key"
REPLAYED = "idempotent-replayed"
"""The header of an answer that was given before."""
LONGEST = 400
REMEMBERED = timedelta(days=7)
NOT_STORED = ("content-length",)
MOST_STORED = 16 * 1024
"""Bytes of an answer that is stored: a short request can ask for a long answer again and again."""


@dataclass(frozen=True)
class RequestKey:
    """The key of a request, and what it asks for."""

    key: str
    """Of whoever asks alone: a hash of both."""
    fingerprint: str
    agent: str | None
    """The agent that the request's path names, whose erasures end the key."""

    @classmethod
    def of(cls, request: Request, values: object) -> RequestKey | None:
        """Return the key of a request with these parameters; None if it has none or is a GET.
        Raises InputError."""
        text = request.headers.get(HEADER)
        if text is None or request.method == "GET":
            return None
        if not 1 <= len(text) <= LONGEST:
            why = f"it has {len(text)} characters"
            raise InputError(f"header {HEADER}", why, f"Give 1 to {LONGEST}")
        content = json.dumps([request.method, request.url.path, values], default=str)
        who = f"{request.state.principal.id}\0{text}"
        agent = request.path_params.get("agent")
        return cls(_hash(who), _hash(content), slug_of(agent) if agent else None)

    def answered(
        self, ws: Workspace, request: Request, answer: Callable[[Workspace], Response | W]
    ) -> Response | W:
        """Return the answer, computed at most once; a job that is still waited for is not stored.
        Raises Conflict if the key is in use for another request, or its request is still
        running."""
        with ws.db.read() as connection:
            earlier = self._answer(connection)
        if earlier is not None:
            return earlier
        written = False

        def guard(connection: sa.Connection) -> None:
            nonlocal written
            # also where the transaction that wrote it was lost
            if not (written and self._is_claimed(connection)):
                self._claim(connection)
                written = True

        keyed = replace(ws, db=ws.db.guarded(guard))
        try:
            response = answer(keyed)
            if not isinstance(response, Response):
                return response
        except ThumbwheelError as error:
            # What was written before it failed stays written.
            response = problem(shown_to(request, error))
        if written:
            ws.db.write(lambda connection: self._store(connection, response), ROWS)
        return response

    def _answer(self, connection: sa.Connection) -> Response | None:
        row = connection.execute(
            sa.select(request_keys).where(request_keys.c.key == self.key)
        ).one_or_none()
        if row is None:
            return None
        if row.fingerprint != self.fingerprint:
            raise InputError(
                f"header {HEADER}",
                "another request had this key, with other parameters",
                "Take a new key for a new request",
            )
        if row.answer is None:
            raise Conflict(
                f"header {HEADER}",
                "the request with this key is being carried out, or the server stopped before it "
                "answered",
                "Look whether it had its effect, and take a new key for a new request",
            )
        if row.answer["body"] is None:
            raise Conflict(
                f"header {HEADER}",
                f"the request with this key was carried out with status {row.answer['status']}, "
                "and its answer was too long to be stored",
                "Read what it changed, and take a new key for a new request",
            )
        headers = {**row.answer["headers"], REPLAYED: "true"}
        return Response(row.answer["body"].encode(), row.answer["status"], headers)

    def _is_claimed(self, connection: sa.Connection) -> bool:
        row = sa.select(request_keys.c.key).where(request_keys.c.key == self.key)
        return connection.execute(row).first() is not None

    def _claim(self, connection: sa.Connection) -> None:
        now = datetime.now(UTC)
        old = request_keys.c.recorded_at < now - REMEMBERED
        connection.execute(request_keys.delete().where(old))
        same_at_once = Conflict(
            f"header {HEADER}", "the same request came twice at once", "Send it again"
        )
        if self._answer(connection) is not None:
            raise same_at_once
        insert = request_keys.insert().values(
            key=self.key,
            fingerprint=self.fingerprint,
            agent=self.agent,
            recorded_at=now,
            answer=None,
        )
        try:
            connection.execute(insert)
        except sa.exc.IntegrityError:  # another server, at this moment
            raise same_at_once from None

    def _store(self, connection: sa.Connection, response: Response) -> None:
        headers = {
            name: value for name, value in response.headers.items() if name not in NOT_STORED
        }
        content = bytes(response.body)
        body = content.decode("utf-8", "replace") if len(content) <= MOST_STORED else None
        answer = {"status": response.status_code, "headers": headers, "body": body}
        connection.execute(
            request_keys.update().where(request_keys.c.key == self.key).values(answer=answer)
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
