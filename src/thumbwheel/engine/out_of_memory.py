"""Whether an error means that memory ran out, so that less at once may still do."""

from __future__ import annotations

TEXTS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "bad_alloc",
    "could not create a memory",
    "can't start new thread",
)
"""In RuntimeErrors of torch's allocators, the C++ library, oneDNN and Python's threads."""


def out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in TEXTS)
