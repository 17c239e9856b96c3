"""Micro-batches computed side by side: each thread has module objects of its own over the same
parameters.

On a CPU the operations of a small model are too short to be shared out: what two cores gain on one
of them, they lose waiting for each other after it. With a micro-batch each, they wait only where
they enter and leave the head (precision.py). The results are the same, whichever thread computes
what. What fits into memory is decided in training/memory.py.
"""

from __future__ import annotations

import math
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
MIN_TOKENS = 256
"""Tokens of a micro-batch: with fewer, calling the operations costs more than computing them."""
FEW_ROUNDS = 4
"""With more batches than so many for each thread of a rank, their sizes matter little."""
SLACK = 1.1
"""What a micro-batch may have beyond its even share, because examples are not cut to fit."""


def parallel_batches(rows: Sequence[int], tokens: int) -> int:
    """Return the number of micro-batches computed side by side under a budget of `tokens`, for
    examples with these `rows`.

    As many as torch has threads, or the largest part of them of which three quarters of the
    examples fit into a micro-batch.
    """
    import torch

    threads = torch.get_num_threads()
    upper_quartile = sorted(rows)[len(rows) * 3 // 4]
    most = max(1, tokens // max(MIN_TOKENS, upper_quartile))
    return max(count for count in range(1, threads + 1) if threads % count == 0 and count <= most)


def even_token_share(rows: Sequence[int], tokens: int, threads: int, ranks: int = 1) -> int:
    """Return the tokens of a micro-batch that give each of `threads` in each of `ranks` about the
    same work, with at most `tokens` at once in a rank."""
    if threads * ranks == 1:
        return tokens
    rounds = math.ceil(sum(rows) / (tokens * ranks))
    count = rounds * threads * ranks
    share = int(SLACK * sum(rows) / count)
    if ranks > 1 and rounds <= FEW_ROUNDS:
        # Threads take the next batch when they are free; the batches of a rank are set beforehand.
        share = max(share, _even_capacity(rows, count))
    return min(tokens // threads, max(MIN_TOKENS, share))


def _even_capacity(rows: Sequence[int], count: int) -> int:
    """Return the least rows of a batch with which examples of these `rows` fit into `count`
    batches, packed largest first."""
    low, high = math.ceil(sum(rows) / count), sum(rows)
    while low < high:
        capacity = (low + high) // 2
        if _batches(rows, capacity) <= count:
            high = capacity
        else:
            low = capacity + 1
    return low


def _batches(rows: Sequence[int], capacity: int) -> int:
    """Return how many batches of so many rows the examples fill, packed largest first."""
    filled: list[int] = []
    for size in sorted(rows, reverse=True):
        for number, used in enumerate(filled):
            if used + size <= capacity:
                filled[number] += size
                break
        else:
            filled.append(size)
    return len(filled)


class Replicas(Generic[E]):
    """A thread for each of `copies`, engines over the same parameters: those change and the copies
    stay."""

    def __init__(self, copies: Sequence[E]) -> None:
        import torch

        self._count = count = len(copies)
        self._free = SimpleQueue[E]()
        for engine in copies:
            self._free.put(engine)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="replica")
        threads, all_started = torch.get_num_threads(), threading.Barrier(count)

        def start(_: int) -> None:
            # torch.get_num_threads() comes first: on its first call a thread takes the number of
            # the process, even after it has set its own
            torch.get_num_threads()
            torch.set_num_threads(threads // count)
            all_started.wait()

        try:
            list(self._pool.map(start, range(count)))
        except BaseException:
            all_started.abort()
            raise
        finally:
            # threads that are made later get what was set last, in whichever thread
            torch.set_num_threads(threads)

    def map(self, batches: Sequence[TreeBatch], work: Callable[[E, TreeBatch], T]) -> Iterator[T]:
        """Yield the results of `work` in the order of `batches`; the first error is raised once no
        thread computes any more.

        No more than one a thread is under way or waits to be taken, because a result may be as
        large as all that trains.
        """
        waiting = iter(batches)
        begun: deque[Future[T]] = deque()
        try:
            for batch in islice(waiting, self._count):
                begun.append(self._pool.submit(self._run, work, batch))
            while begun:
                result = [begun.popleft().result()]
                for batch in islice(waiting, 1):
                    begun.append(self._pool.submit(self._run, work, batch))
                yield result.pop()  # held nowhere here while the caller uses it
        finally:
            wait([future for future in begun if not future.cancel()])

    def _run(self, work: Callable[[E, TreeBatch], T], batch: TreeBatch) -> T:
        engine = self._free.get()
        try:
            with exact_products():
                return work(engine, batch)
        finally:
            self._free.put(engine)

    def close(self) -> None:
        self._pool.shutdown()
