"""Micro-batches computed side by side: each thread has module objects of its own over the same
parameters.

On a CPU the operations of a small model are too short to be shared out: what two cores gain on one
of them, they lose waiting for each other after it. With a micro-batch each they wait only where
they enter and leave the head (precision.py). What is computed is the same; which thread computes
what decides nothing. Does not live here: what fits into memory (training/memory.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from thumbwheel.engine.precision import exact_products

if TYPE_CHECKING:
    from thumbwheel.engine.tree import TreeBatch

E = TypeVar("E")
T = TypeVar("T")
LEAST = 256
"""Tokens of a micro-batch: with fewer, calling the operations costs more than computing them."""
SLACK = 1.1
"""What a micro-batch may have beyond its even share, because examples are not cut to fit."""


def parallel_batches(rows: Sequence[int], tokens: int) -> int:
    """Micro-batches that are computed side by side under a budget of `tokens`, for examples of so
    many `rows`.

    As many as torch has threads, or the largest part of them of which three quarters of the
    examples fit into a micro-batch.
    """
    import torch

    threads = torch.get_num_threads()
    most = tokens // max(LEAST, sorted(rows)[len(rows) * 3 // 4])
    return max(one for one in range(1, threads + 1) if threads % one == 0 and one <= max(1, most))


def even_token_share(rows: Sequence[int], tokens: int, count: int) -> int:
    """Tokens of a micro-batch with which `count` threads have about as much to do each, at most
    `tokens` at once."""
    if count == 1:
        return tokens
    rounds = -(-sum(rows) // tokens)
    return min(tokens // count, max(LEAST, int(SLACK * sum(rows) / (rounds * count))))


class Replicas(Generic[E]):
    """A thread for each of `copies`, engines over the same parameters: those change and the copies
    stay."""

    def __init__(self, copies: Sequence[E]) -> None:
        import torch

        self._count = count = len(copies)
        self._free = SimpleQueue[E]()
        for one in copies:
            self._free.put(one)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="replica")
        threads, met = torch.get_num_threads(), threading.Barrier(count)

        def begin(_: int) -> None:
            # a thread takes the number of the process when it first looks, also after it was given
            # its own
            torch.get_num_threads()
            torch.set_num_threads(threads // count)
            met.wait()

        try:
            list(self._pool.map(begin, range(count)))
        except BaseException:
            met.abort()
            raise
        finally:
            torch.set_num_threads(
                threads
            )  # torch gives threads that are made later what was set last, wherever that was

    def map(self, batches: Sequence[TreeBatch], work: Callable[[E, TreeBatch], T]) -> Iterator[T]:
        """What `work` makes of each, in their order; the first error ends it, when no thread
        computes any more.

        No more than `count` are under way or wait to be looked at, because what they found may be
        as large as all that trains.
        """
        waiting = iter(batches)
        begun: deque[Future[T]] = deque()
        try:
            begun.extend(
                self._pool.submit(self._run, work, one) for one in islice(waiting, self._count)
            )
            while begun:
                found = [begun.popleft().result()]
                begun.extend(self._pool.submit(self._run, work, one) for one in islice(waiting, 1))
                yield found.pop()
        finally:
            wait([one for one in begun if not one.cancel()])

    def _run(self, work: Callable[[E, TreeBatch], T], batch: TreeBatch) -> T:
        engine = self._free.get()
        try:
            with exact_products():
                return work(engine, batch)
        finally:
            self._free.put(engine)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
