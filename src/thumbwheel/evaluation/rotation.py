"""Which of the held-out rows a look reads: rows rotate as fresh ones come.

The level of a look follows from the most looked-at row among those that it reads (spending.py). So
rows that many candidates were judged on cost more than they tell, once enough fresh ones are there.
A look reads the rows with the fewest earlier looks, down to the cut at which a gain is seen best:
few rows at a mild level, or many at a strict one. The cut depends on counts alone, never on what
was seen, and looks at the candidate itself do not count: asked again, it reads the same rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import NormalDist

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.evaluation.policy import GatePolicy, Look
from thumbwheel.evaluation.rows import HeldOut
from thumbwheel.evaluation.spending import keys_in_order
from thumbwheel.models.types import Agent, Basis, ModelVersion
from thumbwheel.stats.multiple import look_level
from thumbwheel.stats.power import detectable_gain

FEWEST_READ = 60
"""Rows that are read at least, where there are so many: on fewer the guards cannot be measured."""
READ_BEFORE = "looked at before, and enough rows that were looked at less often are there"


@dataclass(frozen=True)
class Cut:
    """Rows that were looked at so often at most: how many they are, and which look at them the next
    one is."""

    most: int
    rows: int
    look: int

    def width(self, alpha: float) -> float:
        """Return the width of the interval of the gain, up to a factor that all cuts share."""
        level = look_level(alpha, self.look)
        return NormalDist().inv_cdf((1 + level) / 2) / math.sqrt(self.rows)


def least_read(
    ws: Workspace, candidate: ModelVersion, rows: HeldOut, policy: GatePolicy
) -> HeldOut:
    """Return the rows that the next look at `candidate` reads; the rows left out are counted in
    `dropped`."""
    questions = rows.cases or rows.recorded_answers
    if not questions:
        return rows
    keys = keys_in_order(ws, [question.prompt for question in questions])
    with ws.db.read() as connection:
        earlier = store.looks_at_others(connection, candidate)
        experiments = store.experiments_of(connection, candidate.agent_id)
    times_read, cut = _best_cut(keys, earlier, experiments, policy)
    is_read = [times_read[key] <= cut.most for key in keys]
    if all(is_read):
        return rows
    dropped = rows.dropped + Counter({READ_BEFORE: is_read.count(False)})
    if rows.cases:
        return replace(rows, cases=list(compress(rows.cases, is_read)), dropped=dropped)
    answers = list(compress(rows.recorded_answers, is_read))
    return replace(rows, recorded_answers=answers, dropped=dropped)


def _best_cut(
    keys: Sequence[str], earlier: Sequence[Look], experiments: int, policy: GatePolicy
) -> tuple[Counter[str], Cut]:
    """Return (row -> how often it was read, the cut at which a gain is seen best)."""
    distinct_looks = set(earlier)
    times_read = Counter[str]()
    for look in distinct_looks:
        times_read.update(look.rows)
    unknown_rows = sum(not look.rows for look in distinct_looks)
    counts = Counter(times_read[key] for key in set(keys))

    cuts = []
    rows = 0
    for times in sorted(counts):
        rows += counts[times]
        cuts.append(Cut(times, rows, 1 + times + unknown_rows + experiments))
    fewest = max(FEWEST_READ, policy.min_cases)
    usable = [cut for cut in cuts[:-1] if cut.rows >= fewest]
    best = min([*usable, cuts[-1]], key=lambda cut: cut.width(policy.alpha))
    return times_read, best


@dataclass(frozen=True)
class GoldPower:
    """What the reviewed cases of an agent can still show."""

    cases: int
    look: int
    """Which look at them, or at the freshest of them, the next one is."""
    detectable: float | None
    """The gain that the next look sees four times out of five; None where they are too few."""
    missing: int
    """Cases to review, so that it sees the gain that is wanted."""


def gold_power(ws: Workspace, agent: Agent, wanted: float, discordance: float) -> GoldPower:
    """Estimate which gain the next look at the agent's gold cases can show, and how many more cases
    would show a gain of `wanted`. `discordance`: the share of answers that a new version
    changes."""
    policy = policy_of(ws, agent)
    with ws.db.read() as connection:
        cases = store.judgeable(connection, agent.id, Basis.GOLD)
        earlier = store.own_looks(connection, agent.id)
        experiments = store.experiments_of(connection, agent.id)
    keys = keys_in_order(ws, [case.prompt for case in cases if case.prompt])
    fresh = _needed(wanted, discordance, look_level(policy.alpha, 1 + experiments), policy)
    if not keys:
        return GoldPower(0, 1 + experiments, None, fresh)
    _, cut = _best_cut(keys, earlier, experiments, policy)
    level = look_level(policy.alpha, cut.look)
    detectable = None
    if cut.rows >= policy.min_cases:
        detectable = detectable_gain(cut.rows, discordance, level)
    beside = _needed(wanted, discordance, level, policy) - cut.rows
    return GoldPower(len(set(keys)), cut.look, detectable, max(0, min(fresh, beside)))


def _needed(wanted: float, discordance: float, level: float, policy: GatePolicy) -> int:
    """Return the number of cases on which a gain of `wanted` is seen four times out of five."""
    if wanted >= discordance:
        wanted = discordance
    rows = policy.min_cases
    while True:
        detectable = detectable_gain(rows, discordance, level)
        if detectable is not None and detectable <= wanted:
            return rows
        rows += max(1, rows // 50)
