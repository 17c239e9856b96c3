"""What a running Open WebUI (tried: 0.12.4) has that is new: its ratings, and its chats.

An administrator's key reads everybody's ratings, any other key those of its user. Times are whole
seconds there, and a rating or a chat that is changed gets a new one. Ids and times are listed first
and read from the oldest on, so that an import that breaks off is continued. Lives here: asking. Not
here: what ratings and chats mean (`sources/openwebui.py`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.importers.server_api import NoJson, NotAllowed, NotAnswered, NotThere, ServerApi
from thumbwheel.importers.source import Row
from thumbwheel.importers.types import Unreadable

PRODUCT = "Open WebUI"
MODEL, CHATS = "model", "chats"
PARAMETERS = (MODEL, CHATS)
CHOICES = ("own", "all", "none")
"""Whose chats are read."""
TRIED = "0.12.4"
FRESH = 60.0
"""Seconds after a change in which the server's second of that change may not be over."""
SECOND = 1.1
MOST_ENTRIES = 1_000_000
"""Entries of a list that is read in pages."""
_ID = re.compile(r"[\w-]{1,100}")

_RATINGS = "/api/v1/evaluations/feedbacks"
_CHATS = "/api/v1/chats"


@dataclass(frozen=True)
class ListedItem:
    """A rating or a chat of a list."""

    id: str
    updated_at: int
    """Seconds since 1970."""


class OpenWebUiServer:
    """The ratings and chats of a server."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        reply = api.get("/api/version")
        if not isinstance(reply, dict) or not isinstance(reply.get("version"), str):
            raise api.not_this("it answers GET /api/version without a version")
        self._version = reply["version"][:20]

    def ratings(self, after: int) -> list[ListedItem]:
        """Return the ratings changed after this time, the oldest first."""
        return _settled(lambda: list(self._ratings(after)))

    def _ratings(self, after: int) -> Iterator[ListedItem]:
        try:
            reply = self._ask(f"{_RATINGS}/all/ids")
        except NotAllowed:
            # no administrator's key; where it is wrong, the next question says so
            yield from self._pages(f"{_RATINGS}/user", {}, "items", after)
            return
        entries = map(_entry, self._api.objects(reply))
        yield from (entry for entry in entries if entry.updated_at > after)

    def rating(self, entry: ListedItem) -> Any:
        """Return a rating with its snapshot of the chat, or None if it no longer exists."""
        try:
            return self._api.get(f"/api/v1/evaluations/feedback/{entry.id}")
        except NotThere:
            return None

    def chats(self, whose: str, after: int) -> list[ListedItem]:
        """Return the chats changed after this time, the oldest first."""
        if whose == "none":
            return []
        return _settled(lambda: list(self._chats(whose, after)))

    def _chats(self, whose: str, after: int) -> Iterator[ListedItem]:
        if whose == "own":
            parameters = {"include_pinned": "true", "include_folders": "true"}
            yield from self._pages(f"{_CHATS}/", parameters, None, after)
            return
        try:
            users = self._api.objects(self._ask("/api/v1/users/all"), "users")
            for user in users:
                yield from self._pages(f"{_CHATS}/list/user/{_id(user)}", {}, None, after)
        except NotAllowed as error:
            fix = "An administrator's key, where ENABLE_ADMIN_CHAT_ACCESS is on, reads them"
            raise self._api.error(f"everybody's chats: {error.why}", fix) from None

    def chat(self, entry: ListedItem) -> Any:
        """Return a chat with its history, or None if it no longer exists."""
        try:
            return self._api.get(f"{_CHATS}/{entry.id}")
        except NotAllowed:
            return None  # its answer to an id that does not exist

    def _ask(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the reply to a request that other versions may not know; they answer with an
        error, or with their start page. Raises InputError for such an answer."""
        try:
            return self._api.get(path, parameters)
        except (NotAnswered, NoJson) as error:
            why = f"its version {self._version} does not answer as {TRIED} does: {error.why}"
            raise self._api.error(why, "Update it, or import its feedback export") from None

    def _pages(
        self, path: str, parameters: Mapping[str, Any], key: str | None, after: int
    ) -> Iterator[ListedItem]:
        """Yield the entries of a list sorted newest first, back to this time."""
        names: set[str] = set()
        page = 0
        while len(names) < MOST_ENTRIES:
            page += 1
            reply = self._ask(path, {**parameters, "page": page})
            entries = [_entry(row) for row in self._api.objects(reply, key)]
            # what changes meanwhile moves to the front, and pushes others onto the next page
            unseen = [entry for entry in entries if entry.id not in names]
            yield from (entry for entry in unseen if entry.updated_at > after)
            names.update(entry.id for entry in unseen)
            if not unseen or min(entry.updated_at for entry in entries) <= after:
                return
        raise self._api.error(
            f"GET {path} lists more than {MOST_ENTRIES:,}", f"Give ?{CHATS}=none, or ?since="
        )


def _settled(listed: Callable[[], list[ListedItem]]) -> list[ListedItem]:
    """Return the entries of a list, the oldest first. An entry that changes again within the second
    of its last change would keep its time, so wait until that second is over."""
    entries = listed()
    newest = max((entry.updated_at for entry in entries), default=0)
    if entries and abs(time.time() - newest) < FRESH:
        time.sleep(SECOND)
        entries = [entry for entry in listed() if entry.updated_at <= newest]
    return sorted(entries, key=lambda entry: (entry.updated_at, entry.id))


def _entry(row: Row) -> ListedItem:
    updated_at = row.get("updated_at")
    if isinstance(updated_at, bool) or not isinstance(updated_at, int):
        raise Unreadable(f"updated_at {updated_at!r} is no number of seconds")
    return ListedItem(_id(row), updated_at)


def _id(row: Row) -> str:
    """Return the id of a row, which becomes part of a URL. Raises Unreadable for an invalid one."""
    row_id = row.get("id")
    if not isinstance(row_id, str) or not _ID.fullmatch(row_id):
        raise Unreadable(f"{str(row_id)[:40]!r} is no id")
    return row_id


def whose_chats(parameters: Mapping[str, str]) -> str:
    """Return the address's choice of chats. Raises InputError for an unknown one."""
    choice = parameters.get(CHATS, CHOICES[0])
    if choice not in CHOICES:
        listed = ", ".join(f"?{CHATS}={name}" for name in CHOICES)
        raise InputError(f"?{CHATS}={choice}", "unknown value", f"Give: {listed}")
    return choice
