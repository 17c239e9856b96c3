"""How often the gate is wrong, and how often it sees what it says it sees: simulated answers, the gate's own code.

`python benchmarks/gate.py [--json FILE] [--decisions 1000] [--runs 1000] [--seed 0]`.

A world is a number of gold cases in groups, the rate at which two models of equal quality differ, and how much the cases of a group move
as one. `equal`: decisions between such models, fresh cases each; the share approved has to stay at or under alpha. `gain`: the candidate is
truly better by the smallest effect that an evaluation of the same world states as detectable; at least 80 % have to be approved. `cycles`:
twenty candidates in a row for one agent, judged on the same cases, with the alpha budget: runs in which any of those without a gain was
approved, and the share approved of those with the gain that is stated at their look. A target is missed where the exact 95 % interval of
the share excludes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Pair
from thumbwheel.evaluation.gate import decide, inputs_of
from thumbwheel.evaluation.policy import GateInputs, GatePolicy, Look, Verdict
from thumbwheel.evaluation.spending import number
from thumbwheel.evaluation.types import EOS, FORMAT, SUCCESS, Case, Evaluation, EvaluationConfig, Guard
from thumbwheel.models.types import Basis
from thumbwheel.stats.rates import clopper_pearson

POLICY = GatePolicy()
CYCLES, POWER = 20, 0.8
RATE = 0.6
"""Share of cases that the incumbent gets right."""


@dataclass(frozen=True)
class World:
    """`cases` in groups of `group`; `discordance`: share on which the models differ; `together`: share of a group that moves as one."""

    cases: int
    discordance: float
    group: int = 1
    together: float = 0.0

    @property
    def name(self) -> str:
        """For a table."""
        grouped = f", groups of {self.group} ({self.together:.0%} as one)" if self.group > 1 else ""
        return f"{self.cases} cases, {self.discordance:.0%} differ{grouped}"


WORLDS = (
    World(100, 0.3), World(300, 0.1), World(300, 0.3), World(300, 0.6), World(1000, 0.05),
    World(300, 0.3, 5, 0.6), World(1000, 0.2, 10, 0.3),
)  # fmt: skip


def answers(world: World, gain: float, random: np.random.Generator, incumbent: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong before and after [cases]; `incumbent`: the answers of the same incumbent on the same cases, in an earlier cycle."""
    groups = np.arange(world.cases) // world.group
    shared = random.random(world.cases) < world.together
    place = np.where(shared, random.random(groups[-1] + 1)[groups], random.random(world.cases))
    before = (random.random(world.cases) < RATE) if incumbent is None else incumbent
    up, down = (world.discordance + gain) / 2, (world.discordance - gain) / 2
    lift, drop = min(1.0, up / (1 - RATE)), min(1.0, down / RATE)  # so that the right share of all cases changes either way
    return before.astype(float), np.where(before, place >= drop, place < lift).astype(float)


def evaluation(world: World, before: np.ndarray, after: np.ndarray, reads: int = 1) -> Evaluation:
    """As `evaluate` makes it of judged answers."""
    pairs = [Pair(_case(place, world), float(x), float(y)) for place, (x, y) in enumerate(zip(before, after, strict=True))]
    primary = compare.success(SUCCESS, pairs, 1 - POLICY.alpha)
    right = Guard(name=EOS, before=1.0, after=1.0, n=0)
    return Evaluation(
        id="evl", agent="simulated", candidate_id="c", candidate="v2", against_id="i", against="v1", basis=Basis.GOLD, fresh=True,
        primary=primary, preferences=(), guards=(right, right.model_copy(update={"name": FORMAT})), slices=(), examples=(), reads=reads,
        suite="success", detectable=compare.detectable(primary), dropped={}, notes=(), rows="", key="", config=EvaluationConfig(),
    )  # fmt: skip


def _case(place: int, world: World) -> Case:
    return Case(str(place), str(place // world.group), "", [], None, None, None, {})


def judged(world: World, gain: float, random: np.random.Generator, reads: int = 1, incumbent: np.ndarray | None = None) -> GateInputs:
    """One candidate before the gate."""
    return inputs_of(evaluation(world, *answers(world, gain, random, incumbent), reads), POLICY)


def approved(inputs: GateInputs) -> bool:
    """What the gate says."""
    return decide(inputs, POLICY).verdict is Verdict.APPROVED


def equal(world: World, decisions: int, random: np.random.Generator) -> tuple[int, int]:
    """(approved, decided) without a gain, fresh cases each."""
    return sum(approved(judged(world, 0.0, random)) for _ in range(decisions)), decisions


def gain(world: World, decisions: int, random: np.random.Generator) -> tuple[int, int]:
    """(approved, decided) with the gain that an evaluation of the same world stated; a gain beyond what differs cannot be drawn."""
    stated = (judged(world, 0.0, random).detectable for _ in range(decisions))
    drawn = [approved(judged(world, one, random)) for one in stated if one is not None and one <= _most(world)]
    return sum(drawn), len(drawn)


def _most(world: World) -> float:
    return min(world.discordance, 2 * (1 - RATE) - world.discordance)


def cycles_equal(world: World, runs: int, random: np.random.Generator) -> tuple[int, int]:
    """(runs with any approval, runs) of twenty candidates without a gain on the same cases."""
    wrong = 0
    for _ in range(runs):
        incumbent = random.random(world.cases) < RATE
        wrong += any(approved(judged(world, 0.0, random, reads, incumbent)) for reads in _looks(world))
    return wrong, runs


def cycles_gain(world: World, runs: int, random: np.random.Generator) -> tuple[int, int]:
    """(approved, decided) of twenty candidates in a row on the same number of cases, each with the gain stated at its look."""
    found = list[bool]()
    for _ in range(runs):
        for reads in _looks(world):
            stated = judged(world, 0.0, random, reads).detectable
            if stated is not None and stated <= _most(world):
                found.append(approved(judged(world, stated, random, reads)))
    return sum(found), len(found)


def _looks(world: World) -> Iterator[int]:
    """The number of each look, as the gate counts it."""
    rows, seen = frozenset(str(place) for place in range(world.cases)), list[Look]()
    for cycle in range(CYCLES):
        look = Look(("incumbent", f"candidate {cycle}"), SUCCESS, rows)
        yield number(look, seen)
        seen.append(look)


def line(kind: str, world: World, found: tuple[int, int]) -> dict[str, Any]:
    """One row of the table, with whether its target is missed."""
    count, total = found
    known = clopper_pearson(count, total)
    wants_gain = kind.endswith("gain")
    missed = known.high < POWER if wants_gain else known.low > POLICY.alpha
    target = f">= {POWER:.0%}" if wants_gain else f"<= {POLICY.alpha:.0%}"
    share = count / total if total else None
    return {"kind": kind, "world": asdict(world), "name": world.name, "approved": count, "of": total, "share": share, "low": known.low,
            "high": known.high, "target": target, "missed": missed}  # fmt: skip


def main() -> None:
    """Parse, simulate, print the table."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", help="write the figures to this file")
    found.add_argument("--decisions", type=int, default=1000, help="decisions of each world")
    found.add_argument("--runs", type=int, default=1000, help="runs of twenty cycles without a gain; a tenth of it with one")
    found.add_argument("--seed", type=int, default=0)
    arguments = found.parse_args()
    random, lines = np.random.default_rng(arguments.seed), []
    print(f"{'':13} {'world':48} {'approved':>14} {'share':>7} {'95 %':>15}  target", flush=True)
    simulations: tuple[tuple[str, Callable[..., tuple[int, int]], tuple[World, ...], int], ...] = (
        ("equal", equal, WORLDS, arguments.decisions),
        ("gain", gain, WORLDS, arguments.decisions),
        ("cycles equal", cycles_equal, (WORLDS[2], WORLDS[5]), arguments.runs),
        ("cycles gain", cycles_gain, (WORLDS[2], WORLDS[5]), arguments.runs // 10),
    )
    for kind, simulate, worlds, count in simulations:
        for world in worlds:
            one = line(kind, world, simulate(world, count, random))
            lines.append(one)
            share = "" if one["share"] is None else f"{one['share']:7.1%} {one['low']:6.1%} .. {one['high']:5.1%}"
            print(f"{kind:13} {one['name']:48} {one['approved']:6} of {one['of']:5} {share}  {one['target']}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"date": datetime.now(UTC).isoformat(), "policy": POLICY.model_dump(), "lines": lines}, indent=1)
        )
    missed = [f"{one['kind']}: {one['name']}" for one in lines if one["missed"]]
    sys.exit(f"off target: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
