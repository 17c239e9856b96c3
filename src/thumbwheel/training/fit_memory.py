"""Makes a run fit into the memory that there is, before its first step, and says what it changed.

What a token costs is measured on the assembled run itself, by rehearsals of growing parts of a
step. Where the settings do not fit, in this order: fewer tokens at once; the answers to one prompt
apart, where the method samples them; activations computed twice; shorter rows, where it does not
(the oldest turns go, as with any max_length). What cannot be made to fit is refused. What fails
nevertheless during the run is memory.py's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thumbwheel.core import log
from thumbwheel.core.errors import TrainingError
from thumbwheel.engine.out_of_memory import out_of_memory
from thumbwheel.engine.replicas import parallel_batches
from thumbwheel.training.hardware import GB
from thumbwheel.training.memory import SMALLER, Meter, meter, room_gb
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.engine.tree import Example
    from thumbwheel.training.assemble import Assembly

SAFE = 0.93
"""Share of the room that is planned with: allocators keep some of what was given back."""
SHORTEST = 64
"""Below this max_length nothing worth having is left of a prompt."""
ADAM = 2
"""States of the optimiser for every number that trains."""


@dataclass(frozen=True)
class Need:
    """What a run takes, in GB: `fixed` whatever the budget, `token` for each token that is computed
    at once; more than `most` at once ran out of memory when it was tried."""

    fixed: float
    token: float
    most: int = 1 << 40

    def of(self, tokens: int) -> float:
        """In all, with so many tokens at once."""
        return self.fixed + self.token * tokens

    def fits(self, room: float) -> int:
        """Tokens at once for which `room` is enough."""
        left = SAFE * room - self.fixed
        return min(
            self.most, int(left / self.token) if self.token > 0 else (1 << 40 if left > 0 else 0)
        )


class OutOfMemoryBudget(Exception):
    """Not even one row at a time fits; `tokens` would."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def fitted(
    make: Callable[[TrainConfig], Assembly], config: TrainConfig, *, shorten: bool = True
) -> Assembly:
    """The run that `make` puts together from `config`, with the budget, the checkpointing and the
    max_length that fit.

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
        if not shorten:
            why = (
                "less memory is free than when the run began, and shorter rows would make it "
                "another run"
            )
            raise TrainingError(
                f"rows of up to {config.max_length} tokens",
                why,
                "Free some memory and resume again, or start a new run",
            )
        if divisible:
            what = (
                f"an answer of up to {getattr(config, 'max_completion_length', 0)} tokens to the "
                "longest prompt"
            )
            raise TrainingError(
                what,
                "it does not fit into memory even alone",
                f"Lower max_completion_length. {SMALLER}",
            )
        if shorter < SHORTEST:
            raise TrainingError(
                f"rows of up to {config.max_length} tokens",
                "not even much shorter ones would fit into memory",
                SMALLER,
            )
        changes.append(
            f"max_length {config.max_length} -> {shorter}: longer rows do not fit into memory, "
            "even one at a time"
        )
        log.say(changes[-1])
        config = config.model_copy(update={"max_length": shorter})


def _shorter(assembly: Assembly, tokens: int) -> int:
    """A max_length under which the largest row is about `tokens`, to the next lower multiple of 16."""
    examples = assembly.runner.examples(assembly.train.items)
    largest = max(examples, key=lambda example: example.rows(assembly.engine.layout.kind))
    share = tokens / largest.rows(assembly.engine.layout.kind)
    return int(min(largest.longest, assembly.config.max_length) * share) // 16 * 16


def fit(assembly: Assembly) -> None:
    """Lower the budget, or turn checkpointing on, as far as the memory demands; raises OutOfMemoryBudget."""
    budget, device = assembly.runner.budget, str(assembly.engine.device.type)
    room, gauge = room_gb(device, assembly.config.memory_limit_gb), meter(device)
    if room is None or gauge is None:
        log.say("memory cannot be measured on this system; the settings are taken as they are")
        return
    examples = assembly.runner.examples(assembly.train.items)
    while True:
        largest = budget.largest(examples)
        need = measure(assembly, gauge, room)
        tokens, why = (
            need.fits(room),
            f"{need.of(max(budget.tokens, largest)):.2f} GB are needed, {room:.2f} GB are there",
        )
        if need.most < max(budget.tokens, largest):
            why = f"more than {need.most} tokens at once ran out of memory"
        if tokens >= max(budget.tokens, largest):
            return
        if tokens >= largest:
            budget.lower_to(tokens, why)
            return
        if budget.divisible and not budget.divided:
            budget.divide(why)
        elif assembly.engine.checkpointing:
            raise OutOfMemoryBudget(tokens)
        else:
            budget.recompute(why)


def measure(assembly: Assembly, gauge: Meter, room: float) -> Need:
    """What this run takes, from rehearsals of growing parts of a step, as far as they are foretold
    to fit into `room`; nothing is left."""
    states = (
        ADAM
        * sum(
            parameter.numel() * parameter.element_size()
            for parameter in assembly.model.parameters()
            if parameter.requires_grad
        )
        / GB
    )
    parts, points = _parts(assembly), list[tuple[int, float]]()
    try:
        assembly.runner.rehearse(parts[0])  # what is allocated once, on first use
        gc.collect()
        gauge.reset()
        points.append((0, gauge.now()))
        for units in parts:
            if (
                _apart(points)
                and (need := _line(points, states)).of(
                    assembly.engine.peak_rows(units, assembly.runner.budget.tokens)
                )
                > room
            ):
                return need
            points.append(_peak(assembly, gauge, units))
        return _line(points, states)
    except Exception as error:
        if not out_of_memory(error):
            raise
    assembly.runner.budget.free()  # here, where the traceback no longer holds the tensors
    return (
        replace(_line(points, states), most=points[-1][0])
        if len(points) > 1
        else Need(room, 0.0, 0)
    )


def _apart(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The measured points that are far enough below the last one to tell a slope from noise."""
    return [point for point in points[1:] if 2 * point[0] <= points[-1][0]]


def _line(points: Sequence[tuple[int, float]], states: float) -> Need:
    """Through the last point (tokens at once, GB) and the nearest far enough below it, and what the
    optimiser will hold besides."""
    low, high = (_apart(points) or points[:1])[-1], points[-1]
    token = max(0.0, high[1] - low[1]) / max(1, high[0] - low[0])
    return Need(high[1] - token * high[0] + states, token)


def _peak(assembly: Assembly, gauge: Meter, units: Sequence[Example]) -> tuple[int, float]:
    gc.collect()
    gauge.reset()
    assembly.runner.rehearse(units)
    return assembly.engine.peak_rows(units, assembly.runner.budget.tokens), gauge.peak()


def _parts(assembly: Assembly) -> list[list[Example]]:
    """The smallest unit, ones that are twice as large each, the largest, and units that fill the
    budget: those are computed side by side.

    Where branches may be computed apart, the ones between are 1, 2, 4, ... branches of the largest.
    """
    budget, kind = assembly.runner.budget, assembly.engine.layout.kind
    units = sorted(
        budget.units(assembly.runner.examples(assembly.train.items)),
        key=lambda unit: unit.rows(kind),
    )
    small, largest, between = units[0], units[-1], units
    if budget.divisible:
        small = replace(small, branches=small.branches[:1])
        between = [
            replace(largest, branches=largest.branches[: 1 << power])
            for power in range(len(largest.branches).bit_length())
        ]
    rungs = [small]
    for unit in between:
        if unit.rows(kind) >= 2 * rungs[-1].rows(kind):
            rungs.append(unit)
    if largest.rows(kind) > rungs[-1].rows(kind):
        rungs.append(largest)
    share = budget.tokens // parallel_batches([unit.rows(kind) for unit in units], budget.tokens)
    chosen: list[Example] = []
    total = 0
    for unit in reversed(units):
        if unit.rows(kind) <= share and total + unit.rows(kind) <= budget.tokens:
            chosen.append(unit)
            total += unit.rows(kind)
    return [[unit] for unit in rungs] + ([chosen] if len(chosen) > 1 else [])
