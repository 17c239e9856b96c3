"""How often the gate is wrong, and how often it sees what it says it sees: simulated answers, the
gate's own code, its guards on.

`python benchmarks/gate.py [--json FILE] [--decisions 1000] [--runs 1000] [--seed 0]`.

A world is a number of gold cases in groups, the rate at which two models of equal quality differ,
and how much the cases of a group move as one. A candidate also has a habit: how its answers end,
keep their form and length, what becomes of answers that people liked, and of general text and
tasks. Every guard is measured from simulated items by the evaluation's own code.

- `equal`: decisions between models of equal quality, fresh cases each; the share approved has to
  stay at or under alpha.
- `gain`: the candidate is truly better by the smallest effect that an evaluation of the same world
  states as detectable. The gain itself
  has to be seen in at least 80 %; what the guards then make of it (approved, canary, rejected)
  stands beside it.
- `cycles`: twenty candidates in a row for one agent, judged on the same cases, with the alpha
  budget: runs in which any of those without a
  gain was approved, and the share of those with the gain that is stated at their look whose gain is
  seen.
- `refused`: true gains (twice the detectable one) whose guards only move as a decent training moves
  them, by kind of base. `absolute` is
  the same under margins that ignore what the base can do. The share rejected by a guard has to stay
  at or under 5 %.
- `passed`: the same gains with one true harm beyond its margin. The share approved has to stay at
  or under alpha.
- `graded`: scores between 0 and 1 without a gain on average, of which a few rows lose everything:
  twenty looks, by the interval that
  decides and by the t interval alone; then the power that is lost on ordinary shapes.

A target is missed where the exact 95 % interval of the share excludes it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import raw

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import AnswerLikelihoods, Pair
from thumbwheel.evaluation.gate import decide, inputs_of
from thumbwheel.evaluation.policy import GateInputs, GatePolicy, GateVerdict, Look
from thumbwheel.evaluation.spending import look_number
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    SUCCESS,
    Evaluation,
    EvaluationConfig,
    Guard,
    HeldOutCase,
    JudgedAnswer,
    RecordedAnswer,
)
from thumbwheel.models.types import Basis
from thumbwheel.stats.bounded import units_of
from thumbwheel.stats.multiple import look_level
from thumbwheel.stats.paired import mean
from thumbwheel.stats.rates import clopper_pearson
from thumbwheel.stats.types import Estimate

POLICY = GatePolicy()
ABSOLUTE = GatePolicy(near_chance=0.0, relative_nats=0.0)
"""Margins in nats that ignore what the base can do."""
CYCLES, POWER = 20, 0.8
REFUSALS = 0.05
"""Share of true gains that guards may reject."""
RATE = 0.6
"""Share of cases that the incumbent gets right."""
TEXTS, TASKS = 50, 114
"""Items of the built-in anchors."""


@dataclass(frozen=True)
class World:
    """`cases` in groups of `group`; `discordance`: share on which the models differ; `together`:
    share of a group that moves as one."""

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
    World(100, 0.3),
    World(300, 0.1),
    World(300, 0.3),
    World(300, 0.6),
    World(1000, 0.05),
    World(300, 0.3, 5, 0.6),
    World(1000, 0.2, 10, 0.3),
)


@dataclass(frozen=True)
class Share:
    """A share of items before, how much of it is truly lost, and how many items change besides."""

    before: float
    loss: float = 0.0
    churn: float = 0.0


@dataclass(frozen=True)
class Nats:
    """Nats a token before, their true rise, and how much the rise differs between texts."""

    before: float
    rise: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class Habit:
    """What is true of a base and a candidate besides the gain."""

    ends: Share
    form: Share
    liked: Nats
    general: Nats
    tasks: Share
    chance: float
    growth: float = 1.1
    answers: int = 100
    """Held-out answers that people liked."""


KNOWING = Habit(
    ends=Share(0.99, churn=0.005),
    form=Share(0.98, churn=0.01),
    liked=Nats(0.8, -0.05, 0.3),
    general=Nats(2.7, 0.05, 0.08),
    tasks=Share(0.85, churn=0.04),
    chance=math.log(150_000),
)
"""A base that knows general text, and a decent training of it."""
HALF = replace(
    KNOWING,
    general=Nats(5.0, 0.3, 0.15),
    tasks=Share(0.15, churn=0.03),
    chance=math.log(4096),
)
"""A small base that knows some general text."""
NARROW = replace(HALF, general=Nats(7.7, 0.6, 0.2), tasks=Share(0.02, churn=0.01))
"""A base of 4 million parameters that knows its desk and no general text: what was met on real
messages of bank customers."""
BASES = {"knows general text": KNOWING, "knows some": HALF, "knows its desk only": NARROW}
HARMS: dict[str, Habit] = {
    "10 points fewer answers end": replace(KNOWING, ends=Share(0.99, 0.1, 0.005)),
    "10 points fewer are well-formed": replace(KNOWING, form=Share(0.98, 0.1, 0.01)),
    "answers three times as long": replace(KNOWING, growth=3.0),
    "liked answers 0.6 nats less likely": replace(KNOWING, liked=Nats(0.8, 0.6, 0.3)),
    "general text 0.6 nats less likely": replace(KNOWING, general=Nats(2.7, 0.6, 0.15)),
    "20 points fewer general tasks": replace(KNOWING, tasks=Share(0.85, 0.2, 0.04)),
    "knows some: general text 1 nat less likely": replace(HALF, general=Nats(5.0, 1.0, 0.2)),
    "knows some: most of its tasks": replace(HALF, tasks=Share(0.15, 0.13, 0.02)),
    "knows its desk only: liked answers 0.6 nats": replace(NARROW, liked=Nats(0.8, 0.6, 0.3)),
    "exactly the margin: 5 points fewer end": replace(KNOWING, ends=Share(0.99, 0.05, 0.005)),
    "exactly the margin: general text 0.27 nats": replace(KNOWING, general=Nats(2.7, 0.27, 0.08)),
}
"""One true harm each, beside the gain."""


class Decided(NamedTuple):
    """Of how many candidates the gain was seen, and what the gate said."""

    seen: int
    verdicts: Counter[str]
    total: int


def answers(
    world: World, gain: float, random: np.random.Generator, incumbent: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong before and after [cases]; `incumbent`: the answers of the same incumbent on
    the same cases, in an earlier cycle."""
    groups = np.arange(world.cases) // world.group
    shared = random.random(world.cases) < world.together
    drawn = random.random(world.cases)
    position = np.where(shared, random.random(groups[-1] + 1)[groups], drawn)
    before = (random.random(world.cases) < RATE) if incumbent is None else incumbent
    up, down = (world.discordance + gain) / 2, (world.discordance - gain) / 2
    # so that the right share of all cases changes either way
    lift, drop = min(1.0, up / (1 - RATE)), min(1.0, down / RATE)
    return before.astype(float), np.where(before, position >= drop, position < lift).astype(float)


def shares(habit: Share, n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which of `n` items have it, before and after."""
    before = random.random(n) < habit.before
    position = random.random(n)
    lost = before & (position < (habit.loss + habit.churn / 2) / habit.before)
    won = ~before & (position < habit.churn / 2 / max(1 - habit.before, habit.churn))
    return before, (before & ~lost) | won


def guards(world: World, habit: Habit, random: np.random.Generator) -> tuple[Guard, ...]:
    """All guards of an evaluation of such a candidate."""
    level = 1 - POLICY.alpha
    groups = [str(case // world.group) for case in range(world.cases)]
    ends, forms = shares(habit.ends, world.cases, random), shares(habit.form, world.cases, random)
    lengths = random.lognormal(3.0, 0.5, world.cases)
    longer = lengths * habit.growth * random.lognormal(0.0, 0.2, world.cases)
    before, after = (
        [
            JudgedAnswer("", None, bool(form), bool(end), round(length), {"status": "ok"})
            for end, form, length in zip(*columns, strict=True)
        ]
        for columns in ((ends[0], forms[0], lengths), (ends[1], forms[1], longer))
    )
    all_guards = compare.generation_guards(before, after, groups, level)
    logged = list(liked_answers(habit, random))
    all_guards += (compare.nll_guard(logged, level), compare.liked_guard(logged, level))
    all_guards += anchors(habit, level, random)
    return tuple(
        guard.model_copy(update={"chance": habit.chance}) if "nll" in guard.name else guard
        for guard in all_guards
    )


def liked_answers(habit: Habit, random: np.random.Generator) -> Iterator[AnswerLikelihoods]:
    """Answers of the app that people liked, each in a group of its own."""
    for case in range(habit.answers):
        row = RecordedAnswer(str(case), str(case), [{"place": case}], None, "", True, liked=True)
        tokens = int(random.integers(5, 40))
        nats = max(0.01, random.normal(habit.liked.before, 0.3))
        later = max(0.01, nats + random.normal(habit.liked.rise, habit.liked.spread))
        yield AnswerLikelihoods(row, -nats * tokens, -later * tokens, tokens)


def anchors(habit: Habit, level: float, random: np.random.Generator) -> tuple[Guard, Guard]:
    """General text and tasks."""
    nats = random.normal(habit.general.before, 0.3, TEXTS)
    later = nats + random.normal(habit.general.rise, habit.general.spread, TEXTS)
    places = range(TEXTS)
    text = compare.measure(ANCHOR_NLL, list(nats), list(later), places, level, None)
    before, after = shares(habit.tasks, TASKS, random)
    solved = compare.measure(
        ANCHOR_TASKS,
        [float(correct) for correct in before],
        [float(correct) for correct in after],
        range(TASKS),
        level,
    )
    return compare.guard(ANCHOR_NLL, text), compare.guard(ANCHOR_TASKS, solved)


def evaluation(
    world: World,
    before: np.ndarray,
    after: np.ndarray,
    reads: int = 1,
    watched: tuple[Guard, ...] = (),
) -> Evaluation:
    """As `evaluate` makes it of judged answers."""
    pairs = [
        Pair(_case(case, world), float(x), float(y))
        for case, (x, y) in enumerate(zip(before, after, strict=True))
    ]
    primary = compare.success(SUCCESS, pairs, 1 - POLICY.alpha)
    return Evaluation(
        id="evl",
        agent="simulated",
        candidate_id="c",
        candidate="v2",
        against_id="i",
        against="v1",
        basis=Basis.GOLD,
        fresh=True,
        primary=primary,
        preferences=(),
        guards=watched,
        slices=(),
        examples=(),
        reads=reads,
        suite="success",
        detectable=compare.detectable(primary),
        dropped={},
        notes=(),
        rows="",
        key="",
        config=EvaluationConfig(),
    )


def _case(number: int, world: World) -> HeldOutCase:
    return HeldOutCase(str(number), str(number // world.group), "", [], None, None, None, {})


def judged(
    world: World,
    gain: float,
    random: np.random.Generator,
    reads: int = 1,
    incumbent: np.ndarray | None = None,
    habit: Habit | None = KNOWING,
) -> GateInputs:
    """One candidate before the gate. Where its gain is not seen the guards change nothing, and are
    not simulated."""
    before, after = answers(world, gain, random, incumbent)
    inputs = inputs_of(evaluation(world, before, after, reads), POLICY)
    if habit is None or inputs.low <= 0:
        return inputs
    watched = guards(world, habit, random)
    return inputs_of(evaluation(world, before, after, reads, watched), POLICY)


def stated(world: World, random: np.random.Generator, reads: int = 1) -> float | None:
    """The gain that an evaluation of the same world without one states as detectable; None where
    so large a gain cannot be drawn."""
    detectable = judged(world, 0.0, random, reads, habit=None).detectable
    most = min(world.discordance, 2 * (1 - RATE) - world.discordance)
    return detectable if detectable is not None and detectable <= most else None


def counted(inputs: list[GateInputs], policy: GatePolicy = POLICY) -> Decided:
    """What the gate says of all of them."""
    verdicts = Counter(decide(candidate, policy).verdict.name.lower() for candidate in inputs)
    return Decided(sum(candidate.low > 0 for candidate in inputs), verdicts, len(inputs))


def approved(inputs: GateInputs) -> bool:
    """What the gate says."""
    return decide(inputs, POLICY).verdict is GateVerdict.APPROVED


def equal(world: World, decisions: int, random: np.random.Generator) -> Decided:
    """Without a gain, fresh cases each."""
    return counted([judged(world, 0.0, random) for _ in range(decisions)])


def gain(world: World, decisions: int, random: np.random.Generator) -> Decided:
    """With the gain that an evaluation of the same world stated."""
    gains = [stated(world, random) for _ in range(decisions)]
    return counted(
        [judged(world, true_gain, random) for true_gain in gains if true_gain is not None]
    )


def cycles_equal(world: World, runs: int, random: np.random.Generator) -> Decided:
    """Runs with any approval, of twenty candidates without a gain on the same cases."""
    wrong = 0
    for _ in range(runs):
        incumbent = random.random(world.cases) < RATE
        looks = (judged(world, 0.0, random, reads, incumbent) for reads in _looks(world))
        wrong += any(approved(inputs) for inputs in looks)
    return Decided(wrong, Counter(approved=wrong), runs)


def cycles_gain(world: World, runs: int, random: np.random.Generator) -> Decided:
    """Twenty candidates in a row on the same number of cases, each with the gain stated at its
    look."""
    candidates = list[GateInputs]()
    for _ in range(runs):
        for reads in _looks(world):
            true_gain = stated(world, random, reads)
            if true_gain is not None:
                candidates.append(judged(world, true_gain, random, reads))
    return counted(candidates)


def _looks(world: World) -> Iterator[int]:
    """The number of each look, as the gate counts it."""
    rows, seen = frozenset(str(case) for case in range(world.cases)), list[Look]()
    for cycle in range(CYCLES):
        look = Look(("incumbent", f"candidate {cycle}"), SUCCESS, rows)
        yield look_number(look, seen)
        seen.append(look)


def with_gain(
    world: World, habit: Habit, decisions: int, random: np.random.Generator
) -> list[GateInputs]:
    """Candidates whose gain is seen, so that the guards decide: twice the detectable one."""
    candidates = list[GateInputs]()
    while len(candidates) < decisions:
        true_gain = stated(world, random)
        most = min(world.discordance, 2 * (1 - RATE) - world.discordance)
        inputs = judged(world, min(2 * (true_gain or most), most), random, habit=habit)
        if inputs.low > 0:
            candidates.append(inputs)
    return candidates


def line(kind: str, world: World, decided: Decided) -> dict[str, Any]:
    """One row of the first table, with whether its target is missed."""
    wants_gain = kind.endswith("gain")
    count = decided.seen if wants_gain else decided.verdicts["approved"]
    row = _row(kind, world.name, count, decided, POWER if wants_gain else POLICY.alpha, wants_gain)
    return row | {"world": asdict(world)}


def _row(
    kind: str, name: str, count: int, decided: Decided, target: float, at_least: bool
) -> dict[str, Any]:
    interval = clopper_pearson(count, decided.total)
    verdicts = {
        verdict.name.lower(): decided.verdicts[verdict.name.lower()] for verdict in GateVerdict
    }
    return {
        "kind": kind,
        "name": name,
        "counted": count,
        "of": decided.total,
        "share": count / decided.total if decided.total else None,
        "low": interval.low,
        "high": interval.high,
        "target": f"{'>=' if at_least else '<='} {target:.0%}",
        "missed": interval.high < target if at_least else interval.low > target,
        "verdicts": verdicts,
    }


def mistakes(decisions: int, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """True gains refused by guards, and harms passed."""
    for cases in (60, 100, 300, 1000):
        world = World(cases, 0.3)
        for name, habit in BASES.items():
            candidates = with_gain(world, habit, decisions, random)
            for kind, policy in (("refused", POLICY), ("absolute", ABSOLUTE)):
                decided = counted(candidates, policy)
                row = _row(
                    kind,
                    f"{cases} cases, base {name}",
                    decided.verdicts["rejected"],
                    decided,
                    REFUSALS,
                    False,
                )
                yield row | ({} if policy is POLICY else {"missed": False, "target": ""})
    for cases in (100, 300):
        for name, habit in HARMS.items():
            decided = counted(with_gain(World(cases, 0.3), habit, decisions, random))
            count = decided.verdicts["approved"]
            yield _row("passed", f"{cases} cases, {name}", count, decided, POLICY.alpha, False)


def _rare(share: float, loss: float, noise: float = 0.0) -> Callable[..., np.ndarray]:
    """`share` of the rows lose `loss`, the others gain as much on average."""

    def draw(random: np.random.Generator, n: int) -> np.ndarray:
        gained = random.normal(share * loss / (1 - share), noise, n)
        return np.where(random.random(n) < share, -loss, gained)

    return draw


def _normal(random: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(random.normal(0, 0.3, n), -1, 1)


def _quarters(random: np.random.Generator, n: int) -> np.ndarray:
    return random.choice([-0.5, -0.25, 0, 0.25, 0.5], n, p=[0.05, 0.15, 0.6, 0.15, 0.05])


def _uniform(random: np.random.Generator, n: int) -> np.ndarray:
    return random.uniform(-0.5, 0.5, n)


SHAPES: dict[str, Callable[..., np.ndarray]] = {
    "0.5 % lose 1": _rare(0.005, 1.0),
    "1 % lose 1": _rare(0.01, 1.0),
    "2 % lose 1": _rare(0.02, 1.0),
    "2 % lose 1, the others vary by 0.05": _rare(0.02, 1.0, 0.05),
    "5 % lose 1": _rare(0.05, 1.0),
    "10 % lose 0.5": _rare(0.1, 0.5),
    "normal, deviation 0.3": _normal,
    "uniform from -0.5 to 0.5": _uniform,
    "quarters": _quarters,
}
ORDINARY = ("normal, deviation 0.3", "uniform from -0.5 to 0.5", "quarters")


def graded(decisions: int, random: np.random.Generator) -> Iterator[dict[str, Any]]:
    """False approvals over twenty looks, widened and by t alone; power on ordinary shapes."""
    for n in (100, 300, 1000):
        for name, draw in SHAPES.items():
            samples = [draw(random, n) for _ in range(decisions)]
            t_alone, widened = (
                [_false(_known(sample, wide)) for sample in samples] for wide in (False, True)
            )
            row: dict[str, Any] = {"kind": "graded", "name": f"{n} rows, {name}", "of": decisions}
            row |= {"t_first": _share(t_alone, 1), "first": _share(widened, 1)}
            row |= {"t_twenty": _any(t_alone), "twenty": _any(widened)}
            interval = clopper_pearson(round(row["twenty"] * decisions), decisions)
            yield row | {"missed": interval.low > POLICY.alpha}
        for name in ORDINARY:
            yield _power(n, name, decisions, random)


def _known(changes: np.ndarray, widened: bool) -> Estimate:
    sizes = np.ones(len(changes))
    estimate = mean(changes, sizes, 1.0)
    return replace(estimate, units=units_of(changes, sizes)) if widened else estimate


def _false(estimate: Estimate) -> float:
    """The p value of a gain; 1 for a loss."""
    return estimate.p_value if estimate.value > 0 else 1.0


def _share(p_values: list[float], look: int) -> float:
    return float(np.mean([p_value < 1 - look_level(POLICY.alpha, look) for p_value in p_values]))


def _any(p_values: list[float]) -> float:
    """How often any of twenty independent looks would approve."""
    misses = [1 - _share(p_values, look) for look in range(1, CYCLES + 1)]
    return float(1 - np.prod(misses))


def _power(n: int, name: str, decisions: int, random: np.random.Generator) -> dict[str, Any]:
    """Share of gains seen at the first look, where the t interval alone sees about 80 %."""
    samples = [SHAPES[name](random, n) for _ in range(decisions)]
    gain = 2.8 * float(np.std(np.concatenate(samples))) / math.sqrt(n)
    moved = [np.clip(sample + gain, -1, 1) for sample in samples]
    t_alone, widened = (
        [_false(_known(sample, wide)) for sample in moved] for wide in (False, True)
    )
    row = {"kind": "graded power", "name": f"{n} rows, {name}", "of": decisions, "gain": gain}
    return row | {"t_first": _share(t_alone, 1), "first": _share(widened, 1), "missed": False}


def show(row: dict[str, Any]) -> None:
    """One line for a person."""
    if row["kind"].startswith("graded"):
        twenty = (
            f"; twenty looks: t {row['t_twenty']:.1%}, widened {row['twenty']:.1%}"
            if "twenty" in row
            else ""
        )
        print(
            f"{row['kind']:13} {row['name']:52} first look: t {row['t_first']:.1%}, widened "
            f"{row['first']:.1%}{twenty}",
            flush=True,
        )
        return
    share = (
        ""
        if row["share"] is None
        else f"{row['share']:7.1%} {row['low']:6.1%} .. {row['high']:5.1%}"
    )
    verdicts = " ".join(
        f"{name} {count / max(row['of'], 1):.1%}" for name, count in row["verdicts"].items()
    )
    print(f"{row['kind']:13} {row['name']:56} {share}  {row['target']:7} {verdicts}", flush=True)


def main() -> None:
    """Parse, simulate, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(parser, "gate")
    parser.add_argument("--decisions", type=int, default=1000, help="decisions of each world")
    parser.add_argument(
        "--runs",
        type=int,
        default=1000,
        help="runs of twenty cycles without a gain; a tenth of it with one",
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random, lines = np.random.default_rng(arguments.seed), list[dict[str, Any]]()
    simulations: tuple[tuple[str, Callable[..., Decided], tuple[World, ...], int], ...] = (
        ("equal", equal, WORLDS, arguments.decisions),
        ("gain", gain, WORLDS, arguments.decisions),
        ("cycles equal", cycles_equal, (WORLDS[2], WORLDS[5]), arguments.runs),
        ("cycles gain", cycles_gain, (WORLDS[2], WORLDS[5]), arguments.runs // 10),
    )
    for kind, simulate, worlds, count in simulations:
        for world in worlds:
            lines.append(line(kind, world, simulate(world, count, random)))
            show(lines[-1])
    for rows in (mistakes(arguments.decisions, random), graded(5 * arguments.decisions, random)):
        for row in rows:
            lines.append(row)
            show(row)
    raw.write(
        arguments.json, policy=POLICY.model_dump(), decisions=arguments.decisions, lines=lines
    )
    missed = [f"{row['kind']}: {row['name']}" for row in lines if row["missed"]]
    sys.exit(f"off target: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
