"""The budget of errors: what looking at the same held-out rows again costs.

Every evaluation of a candidate is a look at the rows behind its primary measure, whether or not the
gate then decides. Rows are known by their content: the same gold cases under another agent's name
are the same rows. The k-th look at a row is judged at the level that `stats.multiple.look_level`
leaves, where k is one more than the number of earlier looks at the most looked-at row among those
that are read. So for every single row, the looks that it took part in may together let a candidate
without a gain past the gate with less than alpha, over any number of candidates; rows that nobody
looked at before cost nothing. Asking the same question of the same two sides again is no new look.

Experiments on live traffic are on the same account: each one of the agent counts as a look at all
its rows, and an experiment comes after the looks at the agent's most looked-at row. So over any
number of both, an agent promotes without a gain with less than alpha.

The promise is about candidates that were made without knowing the rows. Whoever reads the judged
answers and trains to please them has taken more out of the rows than a look, and should add cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from thumbwheel.core.seal import make_seal
from thumbwheel.datasets.split import prompt_key
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.policy import Look
from thumbwheel.evaluation.types import Message
from thumbwheel.models.types import Agent


def look_number(look: Look, earlier: Sequence[Look], experiments: int = 0) -> int:
    """Count which look at its rows this is, after `earlier` ones (oldest first) and as many
    experiments; a look without rows may have read any."""
    if look in earlier:
        earlier = earlier[: earlier.index(look)]
    distinct_looks = set(earlier)
    times_read = Counter[str]()
    for earlier_look in distinct_looks:
        times_read.update(earlier_look.rows)
    most_read = max((times_read[row] for row in look.rows), default=0)
    unknown_rows = sum(not earlier_look.rows for earlier_look in distinct_looks)
    return 1 + unknown_rows + most_read + experiments


def experiment_number(ws: Workspace, agent: Agent) -> int:
    """Count which test on the agent's account its next experiment is."""
    with ws.db.read() as connection:
        earlier = set(store.own_looks(connection, agent.id))
        experiments = store.experiments_of(connection, agent.id)
    times_read = Counter[str]()
    for look in earlier:
        times_read.update(look.rows)
    unknown_rows = sum(not look.rows for look in earlier)
    return 1 + experiments + unknown_rows + max(times_read.values(), default=0)


def keys_in_order(ws: Workspace, prompts: Iterable[Sequence[Message]]) -> list[str]:
    """Return a keyed hash of each prompt: equal for equal prompts, whatever their source, and
    without a trace of the text."""
    seal = make_seal(ws.home.signing)
    return [seal.of("row", prompt_key(prompt).hex())[:16] for prompt in prompts]


def row_keys(ws: Workspace, prompts: Iterable[Sequence[Message]]) -> tuple[str, ...]:
    """Return the distinct keys of prompts, sorted."""
    return tuple(sorted(set(keys_in_order(ws, prompts))))
