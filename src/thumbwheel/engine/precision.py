"""When a CPU may multiply fp32 numbers in bf16.

Products with the vocabulary may: their factors came from bf16 and lose nothing, while sums and
results stay fp32. Nothing else may: rotations are fp32 products too, and would be wrong. oneDNN has
one setting for the whole process, so threads that compute side by side are at any time either all
inside such products or all elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _PrecisionLock:
    """Threads are inside bf16 products or inside exact ones, never both at the same time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = {False: 0, True: 0}
        self._thread = threading.local()
        self._before: Any = None

    @contextmanager
    def held(self, narrow: bool) -> Iterator[None]:
        """Make this thread compute in narrow or exact precision inside the context, once all
        threads that compute otherwise have left; afterwards it computes as before."""
        outer = getattr(self._thread, "narrow", None)
        self._move(outer, narrow)
        try:
            yield
        finally:
            self._move(narrow, outer)

    def _move(self, left: bool | None, entered: bool | None) -> None:
        with self._changed:
            if left is not None:
                self._inside[left] -= 1
                if left and not self._inside[True]:
                    _settings().fp32_precision = self._before
                self._changed.notify_all()
            if entered is not None:
                self._changed.wait_for(lambda: not self._inside[not entered])
                if entered and not self._inside[True]:
                    self._before = _settings().fp32_precision
                    _settings().fp32_precision = "bf16"
                self._inside[entered] += 1
            self._thread.narrow = entered


def _settings() -> Any:
    import torch

    return torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


_LOCK = _PrecisionLock()


def exact_products() -> Any:
    """Return the context for everything that a thread computes while others compute too."""
    return _LOCK.held(narrow=False)


def bf16_products() -> Any:
    """Return the context for fp32 products whose factors came from bf16."""
    return _LOCK.held(narrow=True)
