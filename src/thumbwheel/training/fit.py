"""Makes a run fit into the memory that there is, before its first step, and says what it changed.

What a token costs is measured on the assembled run itself, by two rehearsals of different size. Where the settings do not fit, in this
order: fewer tokens at once; the answers to one prompt apart, where the method samples them; activations computed twice; shorter rows, where
it does not (the oldest turns go, as with any max_length). What cannot be made to fit is refused. What fails nevertheless during the run is
memory.py's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import TrainingError
from thumbwheel.engine.tree import plan
from thumbwheel.training.hardware import GB
from thumbwheel.training.memory import SMALLER, Meter, meter, room_gb, rows
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from thumbwheel.training.assemble import Assembly

SAFE = 0.93
"""Share of the room that is planned with: allocators keep some of what was given back."""
SHORTEST = 64
"""Below this max_length nothing worth having is left of a prompt."""
ADAM = 2
"""States of the optimiser for every number that trains."""


@dataclass(frozen=True)
class Need:
    """What a run takes, in GB: `fixed` whatever the budget, `token` for each token that is computed at once."""

    fixed: float
    token: float

    def of(self, tokens: int) -> float:
        """In all, with so many tokens at once."""
        return self.fixed + self.token * tokens

    def fits(self, room: float) -> int:
        """Tokens at once for which `room` is enough."""
        left = SAFE * room - self.fixed
        return int(left / self.token) if self.token > 0 else (1 << 40 if left > 0 else 0)


class NoRoom(Exception):
    """Not even one row at a time fits; `tokens` would."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


def fitted(make: Callable[[TrainConfig], Assembly], config: TrainConfig, *, shorten: bool = True) -> Assembly:
    """The run that `make` puts together from `config`, with the budget, the checkpointing and the max_length that fit.

    Raises TrainingError for one that cannot be made to fit; without `shorten` max_length stays, because other rows would be another run.
    """
    changes: list[str] = []
    while True:
        made = make(config)
        made.at_work.budget.changes[:0] = changes
        try:
            fit(made)
            return made
        except NoRoom as short:
            shorter = _shorter(made, short.tokens)
        divisible = made.at_work.budget.divisible
        made.at_work.close()
        del made
        gc.collect()
        if divisible:
            what = f"an answer of up to {getattr(config, 'max_completion_length', 0)} tokens to the longest prompt"
            raise TrainingError(what, "it does not fit into memory even alone", f"Lower max_completion_length. {SMALLER}")
        if not shorten:
            why = "less memory is free than when the run began, and shorter rows would make it another run"
            raise TrainingError(f"rows of up to {config.max_length} tokens", why, "Free some memory and resume again, or start a new run")
        if shorter < SHORTEST:
            raise TrainingError(f"rows of up to {config.max_length} tokens", "not even much shorter ones would fit into memory", SMALLER)
        changes.append(f"max_length {config.max_length} -> {shorter}: longer rows do not fit into memory, even one at a time")
        log.say(changes[-1])
        config = config.model_copy(update={"max_length": shorter})


def _shorter(made: Assembly, tokens: int) -> int:
    """A max_length under which the largest row is about `tokens`, to the next lower multiple of 16."""
    examples = made.at_work.examples(made.train.items)
    largest = max(examples, key=lambda one: rows(one, made.engine.layout.kind))
    share = tokens / rows(largest, made.engine.layout.kind)
    return int(min(largest.longest, made.config.max_length) * share) // 16 * 16


def fit(made: Assembly) -> None:
    """Lower the budget, or turn checkpointing on, as far as the memory demands; raises NoRoom."""
    budget, device = made.at_work.budget, str(made.engine.device.type)
    room, gauge = room_gb(device, made.config.memory_limit_gb), meter(device)
    if room is None or gauge is None:
        log.say("memory cannot be measured on this system; the settings are taken as they are")
        return
    examples = made.at_work.examples(made.train.items)
    while True:
        largest = budget.largest(examples)
        need = measure(made, gauge)
        tokens, why = need.fits(room), f"{need.of(max(budget.tokens, largest)):.2f} GB are needed, {room:.2f} GB are there"
        if tokens >= max(budget.tokens, largest):
            return
        if tokens >= largest:
            budget.lower_to(tokens, why)
            return
        if budget.divisible and not budget.divided:
            budget.divide(why)
        elif made.engine.checkpointing:
            raise NoRoom(tokens)
        else:
            budget.recompute(why)


def measure(made: Assembly, gauge: Meter) -> Need:
    """What this run takes, from rehearsals of a small and of a large part of a step; nothing is left of them."""
    small, large = _parts(made)
    made.at_work.rehearse(small)  # what is allocated once, on first use
    gc.collect()
    sizes, peaks = [0], [gauge.now()]
    for items in (small, large):
        gc.collect()
        gauge.reset()
        made.at_work.rehearse(items)
        sizes.append(_at_once(made, items))
        peaks.append(gauge.peak())
    less = 1 if sizes[1] < sizes[2] else 0  # where all items are alike, what is held between them is the other point
    grows = max(0.0, peaks[2] - peaks[less]) / max(1, sizes[2] - sizes[less])
    states = ADAM * sum(one.numel() * one.element_size() for one in made.model.parameters() if one.requires_grad) / GB
    return Need(peaks[2] - grows * sizes[2] + states, grows)


def _at_once(made: Assembly, items: Sequence[Any]) -> int:
    """Rows of the largest forward pass over `items`."""
    budget = made.at_work.budget
    batches = plan(budget.units(made.at_work.examples(items)), budget.tokens, made.engine.layout)
    return max(batch.n_rows for batch in batches)


def _parts(made: Assembly) -> tuple[list[Any], list[Any]]:
    """(the smallest item, items that fill half the budget, or the largest item alone)."""
    items = made.train.items
    costs = [rows(one, made.engine.layout.kind) for one in made.at_work.examples(items)]
    order = sorted(range(len(items)), key=lambda at: costs[at])
    small, chosen, total = order[0], [order[-1]], costs[order[-1]]
    for at in reversed(order[:-1]):
        if total + costs[at] <= made.at_work.budget.tokens // 2:
            chosen.append(at)
            total += costs[at]
    return [items[small]], [items[at] for at in chosen]
