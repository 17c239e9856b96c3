"""The prompts of one batch that several workers answer: each takes the next one when it is free.
A prompt that a worker could not answer goes to another one."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PromptQueue(Generic[T]):
    """The indices below `count`, each answered once. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._waiting = deque(range(count))
        self._open, self._workers, self._has_begun = count, 0, False
        self._is_over = False
        self._changed = threading.Condition()
        self._results: queue.SimpleQueue[tuple[int, T] | Exception | None] = queue.SimpleQueue()

    def add_worker(self) -> None:
        """Count a worker that will take prompts."""
        with self._changed:
            self._workers, self._has_begun = self._workers + 1, True

    def remove_worker(self) -> None:
        """Count a worker off; after the last one there are no results any more."""
        with self._changed:
            self._workers -= 1
            if not self._workers:
                self._results.put(None)

    def take(self) -> int | None:
        """Return the next prompt, or None if nothing is left to do. Waits while others still answer
        the last ones, since they may give them back."""
        with self._changed:
            while not self._waiting and self._open and not self._is_over:
                self._changed.wait()
            if self._is_over or not self._open:
                return None
            return self._waiting.popleft()

    def give_back(self, index: int) -> None:
        """Let another worker answer a prompt, before those that wait."""
        with self._changed:
            self._waiting.appendleft(index)
            self._changed.notify_all()

    def done(self, index: int, result: T) -> None:
        """Hand over the result of a prompt."""
        with self._changed:
            self._open -= 1
            self._results.put((index, result))
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End everything with an error."""
        with self._changed:
            self._is_over = True
            self._results.put(error)
            self._changed.notify_all()

    def results(self) -> Iterator[tuple[int, T]]:
        """Yield (prompt, result) as they come, until no worker is left. Raises the first error
        once none is left; a reader that stops ends the work."""
        error: Exception | None = None
        if not self._has_begun:
            return
        try:
            while (result := self._results.get()) is not None:
                if isinstance(result, Exception):
                    error = error or result
                elif error is None:
                    yield result
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
        if error is not None:
            raise error
