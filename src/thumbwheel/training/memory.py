"""Memory of a run: measured, limited, and got along with when it runs out.

A loss does not depend on how many tokens are computed at once (algorithm.py), so a step that did
not fit is repeated under a smaller budget and comes to the same result. What a run will need is
measured before it starts: fit_memory.py.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from thumbwheel.core import log
from thumbwheel.core.errors import TrainingError
from thumbwheel.core.hardware import GB, memory_gb
from thumbwheel.engine.out_of_memory import out_of_memory

if TYPE_CHECKING:
    from thumbwheel.engine.score import ScoreEngine
    from thumbwheel.engine.tree import Example

T = TypeVar("T")
BYTES = {"float32": 4.0, "bfloat16": 2.0, "float64": 8.0, "nf4": 0.6, "int8": 1.1}
"""Of a parameter of the base."""
SMALLER = (
    "Choose a smaller base, a lower max_length or --quantization nf4, or free memory and raise "
    "memory_limit_gb"
)


def branch_by_branch(examples: Sequence[Example]) -> list[Example]:
    """Return one example per branch, in their order."""
    return [
        replace(example, branches=(branch,)) for example in examples for branch in example.branches
    ]


def parameter_gb(model: Any, *, trains: bool) -> float:
    """Return the GB of the parameters that train, or of the frozen ones."""
    sizes = [
        parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
        if parameter.requires_grad == trains
    ]
    return float(sum(sizes)) / GB


class Budget:
    """How many tokens are computed at once. `changes` says what had to be changed since the run was
    asked for.

    `divisible`: the loss of an example is a sum over its branches, so that they may be computed
    apart where together they do not fit.
    """

    def __init__(self, engine: ScoreEngine, tokens: int, *, divisible: bool = False) -> None:
        self.engine, self.tokens, self.divisible = engine, tokens, divisible
        self.divided = False
        self.changes: list[str] = []

    def units(self, examples: Sequence[Example]) -> list[Example]:
        """Return the units that have to be computed at once: the examples, or each of their
        branches."""
        return branch_by_branch(examples) if self.divided else list(examples)

    def largest(self, examples: Sequence[Example]) -> int:
        """Return the rows of the largest unit, alone in a batch."""
        return max(unit.rows(self.engine.layout.kind) for unit in self.units(examples))

    def run(self, examples: Sequence[Example], attempt: Callable[[], T]) -> T:
        """Return `attempt()`, which scores `examples` under this budget; if memory runs out, repeat
        it under a smaller one.

        All gradients are dropped before that, so there must be none that were made earlier. Where
        one of several ranks runs out, all repeat it. Raises TrainingError when one unit alone does
        not fit even with its activations computed twice.
        """
        ranks = self.engine.ranks
        while True:
            try:
                outcome = attempt()
                ranks.agree()
                return outcome
            except Exception as error:
                if not out_of_memory(error):
                    raise
                ranks.report_shortage(error)
                text = " ".join(str(error).split())[:120] or type(error).__name__
            self.free()  # here, where the traceback no longer holds the tensors
            self._lower(examples, f"out of memory ({text})")

    def lower_to(self, tokens: int, why: str) -> None:
        """Compute fewer tokens at once from now on."""
        self._say(f"token_budget {self.tokens} -> {tokens}: {why}")
        self.tokens = tokens

    def recompute(self, why: str) -> None:
        """Recompute activations in the backward pass from now on instead of storing them."""
        self._say(f"gradient_checkpointing: {why}")
        self.engine.set_checkpointing(True)

    def divide(self, why: str) -> None:
        """Compute the branches of an example apart from now on, because they do not fit
        together."""
        self._say(f"the answers to a prompt are computed apart: {why}")
        self.divided = True

    def _lower(self, examples: Sequence[Example], why: str) -> None:
        largest = self.largest(examples)
        if self.tokens > largest:
            self.lower_to(max(self.tokens // 2, largest), why)
        elif self.divisible and not self.divided:
            self.divide(why)
        elif not self.engine.checkpointing:
            self.recompute(why)
        else:
            raise TrainingError(
                f"a row of {largest} tokens", f"one such row alone does not fit: {why}", SMALLER
            )

    def _say(self, text: str) -> None:
        self.changes.append(text)
        log.say(text)

    def free(self) -> None:
        """Free the memory that a failed attempt left behind."""
        import torch

        self.engine.zero_grad()
        self.engine.drop_replicas()
        gc.collect()
        trim()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def state(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "divided": self.divided,
            "recompute": self.engine.checkpointing,
            "changes": list(self.changes),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the budget from a checkpoint: the same batches as before it, with as many
        threads."""
        self.tokens, self.divided = state["tokens"], state["divided"]
        self.changes = list(state["changes"])
        self.engine.set_checkpointing(state["recompute"])


class Meter(Protocol):
    """Reads how much memory of a device this process holds, in GB."""

    def now(self) -> float:
        """Return the GB in use at this moment."""

    def reset(self) -> None:
        """Reset the high-water mark."""

    def peak(self) -> float:
        """Return the high-water mark since the last reset, in GB."""

    def most(self) -> float:
        """Return the high-water mark of the whole process, in GB."""


def trim() -> None:
    """Make the C library give back the memory that it keeps for later; glibc can do so, and keeps
    much aligned memory."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


class ProcessMeter:
    """Resident memory by Linux's /proc; `able` where the high-water mark can be reset."""

    before: ClassVar[float] = 0.0
    """Highest mark that was forgotten."""

    def __init__(self) -> None:
        try:
            self.reset()
            self.able = self.peak() > 0
        except (OSError, KeyError):
            self.able = False

    def now(self) -> float:
        return _status()["VmRSS"] / GB

    def reset(self) -> None:
        """Make the kernel restart its high-water mark from the resident size, after the C library
        has given back the memory that it keeps for later."""
        trim()
        ProcessMeter.before = self.most()
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")

    def peak(self) -> float:
        """Return the largest resident size since the last reset, in GB."""
        return _status()["VmHWM"] / GB

    def most(self) -> float:
        """Return the largest resident size of the process so far, in GB."""
        return max(self.before, self.peak())


class CudaMeter:
    """Memory of the GPU that torch has given out."""

    before: ClassVar[float] = 0.0
    """Highest mark that was forgotten."""

    def now(self) -> float:
        import torch

        return torch.cuda.memory_allocated() / GB

    def reset(self) -> None:
        import torch

        CudaMeter.before = self.most()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float:
        """Return the most memory that was allocated since the last reset, in GB."""
        import torch

        return torch.cuda.max_memory_allocated() / GB

    def most(self) -> float:
        """Return the most memory that was ever allocated, in GB."""
        return max(self.before, self.peak())


def meter(device: str) -> Meter | None:
    """Return the meter of `device`, or None where nothing can be measured (macOS)."""
    if device == "cuda":
        return CudaMeter()
    if device != "cpu" or sys.platform != "linux":
        return None
    process_meter = ProcessMeter()
    return process_meter if process_meter.able else None


def peak_memory_gb(device: str) -> float | None:
    """Return the most memory of `device` that this process has held, in GB, or None if unknown."""
    gauge = meter(device)
    return round(gauge.most(), 3) if gauge else None


def _status() -> dict[str, int]:
    """Return the sizes in /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")
    }


def room_gb(device: str, limit: float | None, ranks: int) -> float | None:
    """Return the most memory of `device`, in GB, that this process may hold: what it holds plus
    what is free, but at most `limit`. None if unknown.

    Each of several `ranks` may hold its share of the limit. They share the main memory of their
    host, too, but each has a GPU to itself.
    """
    if limit is not None:
        limit /= ranks
    if device == "cuda":
        import torch

        free = (torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) / GB
        return free if limit is None else min(limit, free)
    (_, available), gauge = memory_gb(), meter(device)
    if available is None or gauge is None:
        return limit
    room = available / ranks + gauge.now()
    return room if limit is None else min(limit, room)


def free_gb(device: str, limit: float | None, ranks: int) -> float | None:
    """Return how much of that room is left, in GB, or None if unknown."""
    room, gauge = room_gb(device, limit, ranks), meter(device)
    return None if room is None or gauge is None else room - gauge.now()


def refuse_weights(
    parameters: int, kind: str, device: str, limit: float | None, ranks: int = 1
) -> None:
    """Raise TrainingError if the base alone, stored as `kind`, needs more memory than there is for
    each of `ranks`."""
    size, room = parameters * BYTES[kind] / GB, room_gb(device, limit, ranks)
    if room is None or size <= room:
        return
    why, fix = f"it takes {size:.1f} GB, and there are {room:.1f} GB", SMALLER
    if ranks > 1:
        why += f" for each of {ranks} ranks, which all hold it"
        fix += ", or train with fewer ranks"
    raise TrainingError(f"a base of {parameters:,} parameters in {kind}", why, fix)


def hold_to(device: str, room: float | None) -> None:
    """Make any allocation that would take this process beyond `room` GB fail as an error, instead
    of the system killing it later."""
    if room is None:
        return
    if device == "cuda":
        import torch

        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, room * GB / total))
    elif device == "cpu" and sys.platform == "linux":
        import resource

        sizes = _status()
        limit = sizes["VmData"] + max(0, int(room * GB) - sizes["VmRSS"])
        _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
