"""The budget of errors: what looking at the same held-out rows again costs.

Every evaluation of a candidate is a look at the rows behind its primary measure, whether or not the
gate then decides. Rows are known by their content: the same gold cases under another agent's name
are the same rows. The k-th look at a row is judged at the level that `stats.multiple.look_level`
leaves, where k is one more than the number of earlier looks at the most looked-at row among those
that are read. So for every single row, the looks that it took part in may together let a candidate
without a gain past the gate with less than alpha, over any number of candidates; rows that nobody
looked at before cost nothing. Asking the same question of the same two sides again is no new look.

The promise is about candidates that were made without knowing the rows. Whoever reads the judged
answers and trains to please them has taken more out of the rows than a look, and should add cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from thumbwheel.core.seal import make_seal
from thumbwheel.datasets.split import prompt_key
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import Look
from thumbwheel.evaluation.types import Message


def number(look: Look, earlier: Sequence[Look]) -> int:
    """Which look at its rows this is, after `earlier` ones (oldest first); one without rows may
    have read any."""
    before = earlier[: earlier.index(look)] if look in earlier else earlier
    distinct = set(before)
    times = Counter(row for one in distinct for row in one.rows)
    return (
        1
        + sum(not one.rows for one in distinct)
        + max((times[row] for row in look.rows), default=0)
    )


def row_keys(ws: Workspace, prompts: Iterable[Sequence[Message]]) -> tuple[str, ...]:
    """Keyed hashes by which prompts are known again, however they came into the home; they say
    nothing about the text."""
    seal = make_seal(ws.home.signing)
    return tuple(sorted({seal.of("row", prompt_key(prompt).hex())[:16] for prompt in prompts}))
