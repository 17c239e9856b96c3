"""How much memory the requests of all running calls take together, and the bound on it.

A request is held until its call is over, which may take as long as a model thinks, and its values
take more memory than its text. So who may call could fill the memory with calls that wait. One
caller may never hold all of it, so that the calls of others are still taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thumbwheel.gateway.refusal import Refusal
from thumbwheel.importers.json_text import count_marks

BYTES_OF_VALUE = 64
"""Memory that a value of a request takes beside its text."""
LARGEST_SHARE = 0.75
"""Of what the calls of others leave free: the most that the calls of one caller hold together."""


class HeldBytes:
    """Counts on the event loop alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_caller: Counter[str] = Counter()
        self.total = 0

    @contextmanager
    def of_call(self, caller: str) -> Iterator[CallBytes]:
        """Count the bytes held for a call of the principal with this id until the block ends."""
        call = CallBytes(self, caller)
        try:
            yield call
        finally:
            self.add(caller, -call.count)

    def add(self, caller: str, count: int) -> None:
        """Count so many more bytes, or fewer, as held for this caller."""
        self.total += count
        self._by_caller[caller] += count
        if not self._by_caller[caller]:
            del self._by_caller[caller]

    def has_room(self, caller: str, count: int, of_call: int) -> bool:
        """Return whether a call that holds `of_call` bytes may hold so many more. One that runs
        alone always may."""
        if self.total == of_call:
            return True
        of_caller = self._by_caller[caller]
        of_others = self.total - of_caller
        return of_caller + count <= LARGEST_SHARE * (self._most - of_others)


@dataclass
class CallBytes:
    """What is held for one call."""

    _all: HeldBytes
    _caller: str
    count: int = 0

    def hold(self, count: int) -> None:
        """Hold `count` more bytes. Raises Refusal if all calls, or those of the caller, would hold
        too many."""
        if not self._all.has_room(self._caller, count, self.count):
            message = "the calls that run hold too much memory (setting gateway.max_held)"
            raise Refusal(429, message, {b"retry-after": b"1", b"connection": b"close"})
        self.count += count
        self._all.add(self._caller, count)

    def hold_values(self, body: bytes) -> None:
        """Hold the values of a request, which are about to be read."""
        self.hold(BYTES_OF_VALUE * count_marks(body))
