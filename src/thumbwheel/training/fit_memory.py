"""Makes a run fit into the memory that there is, before its first step, and says what it changed.

What a token costs is measured on the assembled run itself, by rehearsals of growing parts of a
step. A GPU computes as many tokens at once as fit, because every pass launches the same kernels
however few its tokens are. Where the settings do not fit, in this order: fewer tokens at once; the
answers to one prompt apart, where the method samples them; activations computed twice; shorter
rows, where it does not (the oldest turns go, as with any max_length). What cannot be made to fit is
refused. What fails nevertheless during the run is memory.py's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import TrainingError
from thumbwheel.engine.out_of_memory import out_of_memory
from thumbwheel.training.memory import SMALLER, Meter, meter, parameter_gb, room_gb
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.engine.tree import Example
    from thumbwheel.training.assemble import Assembly

SAFE = 0.93
"""Share of the room that is planned with: allocators keep some of what was given back."""
SHORTEST = 64
"""Below this max_length nothing worth having is left of a prompt."""
RISES = ("cuda",)
"""Kinds of devices on which more tokens at once than the settings say are faster."""
ADAM = 2
"""States of the optimiser for every number that trains."""


@dataclass(frozen=True)
class MemoryNeed:
    """What a run takes, in GB: `fixed` whatever the budget, `token` for each token that is computed
    at once; more than `most` at once ran out of memory when it was tried."""

    fixed: float
    token: float
    most: int = 1 << 40

    def of(self, tokens: int) -> float:
        """Return the whole need in GB with `tokens` tokens at once."""
        return self.fixed + self.token * tokens

    def fits(self, room: float) -> int:
        """Return how many tokens at once fit into `room` (GB)."""
        left = SAFE * room - self.fixed
        if self.token > 0:
            return min(self.most, int(left / self.token))
        return self.most if left > 0 else 0


@dataclass(frozen=True)
class MemoryPoint:
    """The most memory that was held with so many tokens at once."""

    tokens: int
    gb: float


class OutOfMemoryBudget(Exception):
    """Not even one row at a time fits; `tokens` would."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def fitted(
    make: Callable[[TrainConfig], Assembly], config: TrainConfig, *, shorten: bool = True
) -> Assembly:
    """Return the run that `make` assembles from `config`, with a budget, checkpointing and
    max_length that fit into memory.

    Raises TrainingError for one that cannot be made to fit; without `shorten` max_length stays,
    because other rows would be another run.
    """
    changes: list[str] = []
    while True:
        assembly = make(config)
        assembly.runner.budget.changes[:0] = changes
        try:
            fit(assembly)
            return assembly
        except OutOfMemoryBudget as shortage:
            shorter = _shorter(assembly, shortage.tokens)
        divisible = assembly.runner.budget.divisible
        assembly.runner.close()
        del assembly
        gc.collect()

        # Nothing but shorter rows is left to try.
        if not shorten:
            raise TrainingError(
                f"rows of up to {config.max_length} tokens",
                "less memory is free than when the run began, and shorter rows would make it "
                "another run",
                "Free some memory and resume again, or start a new run",
            )
        if divisible:
            longest = getattr(config, "max_completion_length", 0)
            raise TrainingError(
                f"an answer of up to {longest} tokens to the longest prompt",
                "it does not fit into memory even alone",
                f"Lower max_completion_length. {SMALLER}",
            )
        if shorter < SHORTEST:
            raise TrainingError(
                f"rows of up to {config.max_length} tokens",
                "not even much shorter ones would fit into memory",
                SMALLER,
            )
        change = (
            f"max_length {config.max_length} -> {shorter}: longer rows do not fit into memory, "
            "even one at a time"
        )
        changes.append(change)
        log.say(change)
        config = config.model_copy(update={"max_length": shorter})


def _shorter(assembly: Assembly, tokens: int) -> int:
    """Return a max_length, a multiple of 16, under which the largest row has about `tokens`."""
    kind = assembly.engine.layout.kind
    examples = assembly.runner.examples(assembly.train.items)
    largest = max(examples, key=lambda example: example.rows(kind))
    share = tokens / largest.rows(kind)
    return int(min(largest.longest, assembly.config.max_length) * share) // 16 * 16


def fit(assembly: Assembly) -> None:
    """Raise the budget if that is faster, then lower it, or turn checkpointing on, as far as the
    memory demands. Raises OutOfMemoryBudget.

    Of several ranks the first one measures, once all of them hold their base; the others follow.
    """
    ranks, budget = assembly.engine.ranks, assembly.runner.budget
    ranks.agree()

    def fit_first() -> dict[str, Any]:
        with assembly.engine.alone():
            try:
                _fit(assembly, ranks.world)
            except OutOfMemoryBudget as shortage:
                return {"shortage": shortage.tokens}
        return budget.state()

    state = ranks.from_first(fit_first, "memory")
    if "shortage" in state:
        raise OutOfMemoryBudget(state["shortage"])
    if not ranks.is_first:
        budget.restore(state)


def _fit(assembly: Assembly, ranks: int) -> None:
    """Fit the run into the memory that each of `ranks` may hold. Raises OutOfMemoryBudget."""
    budget, device = assembly.runner.budget, str(assembly.engine.device.type)
    room, gauge = room_gb(device, assembly.config.memory_limit_gb, ranks), meter(device)
    if room is None or gauge is None:
        log.say("memory cannot be measured on this system; the settings are taken as they are")
        return
    examples = assembly.runner.examples(assembly.train.items)
    if device in RISES:
        # what more tokens at once really take is measured below, under the raised budget
        tokens = measure(assembly, gauge, room).fits(room)
        budget.tokens = max(budget.tokens, min(tokens, _step_rows(assembly, examples)))
    while True:
        largest = budget.largest(examples)
        wanted = max(budget.tokens, largest)
        need = measure(assembly, gauge, room)
        tokens = need.fits(room)
        if tokens >= wanted:
            return
        why = f"{need.of(wanted):.2f} GB are needed, {room:.2f} GB are there"
        if need.most < wanted:
            why = f"more than {need.most} tokens at once ran out of memory"

        # What costs least comes first.
        if tokens >= largest:
            budget.lower_to(tokens, why)
            return
        if budget.divisible and not budget.divided:
            budget.divide(why)
        elif not assembly.engine.checkpointing:
            budget.recompute(why)
        else:
            raise OutOfMemoryBudget(tokens)


def _step_rows(assembly: Assembly, examples: Sequence[Example]) -> int:
    """Return the rows of the largest optimiser step that is possible."""
    kind = assembly.engine.layout.kind
    sizes = sorted((example.rows(kind) for example in examples), reverse=True)
    return sum(sizes[: assembly.config.batch_size])


def measure(assembly: Assembly, gauge: Meter, room: float) -> MemoryNeed:
    """Measure what this run needs by rehearsing growing parts of a step, as long as they are
    predicted to fit into `room`; leave nothing behind."""
    runner, engine = assembly.runner, assembly.engine
    optimizer_gb = ADAM * parameter_gb(assembly.model, trains=True)
    parts = _parts(assembly)
    points: list[MemoryPoint] = []
    try:
        runner.rehearse(parts[0])  # what is allocated once, on first use
        gc.collect()
        gauge.reset()
        points.append(MemoryPoint(0, gauge.now()))
        for units in parts:
            tokens = engine.peak_rows(units, runner.budget.tokens)
            if _far_below(points):  # enough is known to foretell the next part
                need = _line(points, optimizer_gb)
                if need.of(tokens) > room:
                    return need
            points.append(_peak(assembly, gauge, units))
        return _line(points, optimizer_gb)
    except Exception as error:
        if not out_of_memory(error):
            raise
    runner.budget.free()  # here, where the traceback no longer holds the tensors
    if len(points) < 2:
        return MemoryNeed(room, 0.0, 0)
    return replace(_line(points, optimizer_gb), most=points[-1].tokens)


def _far_below(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Return the measured points that are far enough below the last one to tell a slope from
    noise."""
    return [point for point in points[1:] if 2 * point.tokens <= points[-1].tokens]


def _line(points: Sequence[MemoryPoint], optimizer_gb: float) -> MemoryNeed:
    """Fit a line through the last point and the nearest one far enough below it, and add what the
    optimiser will hold."""
    low, high = (_far_below(points) or points[:1])[-1], points[-1]
    slope = max(0.0, high.gb - low.gb) / max(1, high.tokens - low.tokens)
    return MemoryNeed(high.gb - slope * high.tokens + optimizer_gb, slope)


def _peak(assembly: Assembly, gauge: Meter, units: Sequence[Example]) -> MemoryPoint:
    """Rehearse `units` and return the measured peak."""
    gc.collect()
    gauge.reset()
    assembly.runner.rehearse(units)
    return MemoryPoint(
        assembly.engine.peak_rows(units, assembly.runner.budget.tokens), gauge.peak()
    )


def _parts(assembly: Assembly) -> list[list[Example]]:
    """Return the smallest unit, units that each double in size, the largest, and units that fill
    the budget, which are computed side by side.

    Where branches may be computed apart, the ones between are 1, 2, 4, ... branches of the largest.
    """
    budget, kind = assembly.runner.budget, assembly.engine.layout.kind
    units = budget.units(assembly.runner.examples(assembly.train.items))
    units = sorted(units, key=lambda unit: unit.rows(kind))
    smallest, largest, between = units[0], units[-1], units
    if budget.divisible:
        smallest = replace(smallest, branches=smallest.branches[:1])
        between = [
            replace(largest, branches=largest.branches[: 1 << power])
            for power in range(len(largest.branches).bit_length())
        ]

    # One unit at a time, each at least twice as large as the one before.
    ladder = [smallest]
    for unit in between:
        if unit.rows(kind) >= 2 * ladder[-1].rows(kind):
            ladder.append(unit)
    if largest.rows(kind) > ladder[-1].rows(kind):
        ladder.append(largest)

    # Units that fill the budget together.
    sizes = [unit.rows(kind) for unit in units]
    share = budget.tokens // assembly.engine.threads(sizes, budget.tokens)
    together: list[Example] = []
    total = 0
    for unit in reversed(units):
        if unit.rows(kind) <= share and total + unit.rows(kind) <= budget.tokens:
            together.append(unit)
            total += unit.rows(kind)
    parts = [[unit] for unit in ladder]
    return [*parts, together] if len(together) > 1 else parts
