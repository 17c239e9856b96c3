"""How much memory the requests of all running calls take together, and the bound on it.

A request is held until its call is over, which may take as long as a model thinks, and its values
take more memory than its text. So who may call could fill the memory with calls that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thumbwheel.gateway.refusal import Refusal
from thumbwheel.importers.json_text import count_marks

BYTES_OF_VALUE = 64
"""Memory that a value of a request takes beside its text."""


class HeldBytes:
    """Counts on the event loop alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.total = 0

    @contextmanager
    def of_call(self) -> Iterator[CallBytes]:
        """Count the bytes held for a call until the block ends."""
        call = CallBytes(self)
        try:
            yield call
        finally:
            self.total -= call.count

    def has_room(self, count: int, of_call: int) -> bool:
        """Return whether a call that holds `of_call` bytes may hold so many more. One that runs
        alone always may."""
        return self.total + count <= self._most or self.total == of_call


@dataclass
class CallBytes:
    """What is held for one call."""

    _all: HeldBytes
    count: int = 0

    def hold(self, count: int) -> None:
        """Hold `count` more bytes. Raises Refusal if all calls together would hold too many."""
        if not self._all.has_room(count, self.count):
            message = "the calls that run hold too much memory (setting gateway.max_held)"
            raise Refusal(429, message, {b"retry-after": b"1", b"connection": b"close"})
        self.count += count
        self._all.total += count

    def hold_values(self, body: bytes) -> None:
        """Hold the values of a request, which are about to be read."""
        self.hold(BYTES_OF_VALUE * count_marks(body))
