"""The one split that a prompt may be used in: prompts that ask the same may stand in one split only, whoever asked them.

Every prompt is claimed by the groups that asked it; equal questions (`split.prompt_key`) share the strictest claim, and a question of a
gold case is GOLD: it is never used. Claims of parts of the prompts are settled together, so the parts may be read by several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from thumbwheel.datasets import store
from thumbwheel.datasets.episode import history
from thumbwheel.datasets.split import group_of, prompt_key, split_of
from thumbwheel.datasets.store import GOLD
from thumbwheel.datasets.types import SPLITS, DatasetConfig, Message, Tally
from thumbwheel.rewards.types import Scope

if TYPE_CHECKING:
    import numpy as np

L = TypeVar("L")
R = TypeVar("R")
ORDER = (*SPLITS, GOLD)
"""From the mildest claim to the strictest."""
JUDGED = len(ORDER)
"""Added to a claim of what was judged: what nobody judged stands where an equal prompt that was does, and takes nothing from it."""


class Places:
    """Where the prompts of one part may be used. Read the claims, settle them with those of the other parts, then ask."""

    def __init__(
        self, connection: sa.Connection, agent_id: str, config: DatasetConfig, scope: Scope | None = None, *, unjudged: bool = False
    ) -> None:
        """With `unjudged` what nobody judged is claimed too, where `config` does not leave it out."""
        self.config = config
        self._keys: dict[str, int] = {}
        self._claims: dict[int, int] = {}
        asked = [(prompt_id, GOLD if basis == GOLD else split_of(group_of(prompt_id), config))
                 for prompt_id, basis, _ in store.case_inputs(connection, agent_id)]  # fmt: skip
        chains = store.prompts(connection, {prompt_id for prompt_id, _ in asked})
        for prompt_id, place in asked:
            self._claim(prompt_id, chains.get(prompt_id, []), [place])
        store.find_judged(connection, agent_id, scope)
        for judged in (True, False) if unjudged and not config.require_feedback else (True,):
            self._claim_asked(connection, agent_id, scope, judged)
        self._claim_runs(connection)

    def _claim_asked(self, connection: sa.Connection, agent_id: str, scope: Scope | None, judged: bool) -> None:
        groups = store.judged_groups(connection, agent_id, scope, judged)
        grouped = ((prompt_id, {one[1:] for one in some}) for prompt_id, some in groupby(groups, key=itemgetter(0)))
        messages = store.judged_prompts(connection, agent_id, scope, judged)
        for (prompt_id, kept), prompt in aligned(grouped, itemgetter(0), messages, itemgetter(0)):
            if prompt:
                places = [GOLD if gold else split_of(group_of(prompt_id, name), self.config) for name, gold in kept]
                self._claim(prompt_id, prompt[1], places, judged)

    def _claim_runs(self, connection: sa.Connection) -> None:
        """The row of a run of several steps asks its whole history, which others may ask as a prompt."""
        for some in store.batched(store.judged_runs(connection), store.VARIABLES):
            chains = store.prompts(connection, {prompt_id for _, prompt_id, _, _ in some})
            told = store.run_steps(connection, [name for name, _, _, _ in some])
            for name, prompt_id, kept_with, output in some:
                shown = history(chains.get(prompt_id, []), told.get(name, []), output)
                if not isinstance(shown, str):
                    self._raise(_key(shown), split_of(group_of(prompt_id, kept_with), self.config))

    def claims(self) -> np.ndarray:
        """[keys, 2] of uint64: a question and the strictest claim on it."""
        import numpy as np

        return np.array([list(self._claims.keys()), list(self._claims.values())], np.uint64).T.reshape(-1, 2)

    def settle(self, every: Iterable[np.ndarray]) -> None:
        """Take over what other parts claim about the same questions."""
        import numpy as np

        for claims in every:
            own = claims[np.isin(claims[:, 0], np.fromiter(self._claims, np.uint64, len(self._claims)))]
            for key, place in own.tolist():
                self._claims[key] = max(place, self._claims[key])

    def usable(self, prompt_id: str, count: int, tally: Tally) -> str | None:
        """Its split; None where it is gold or cannot be read, which is counted `count` times."""
        key = self._keys.get(prompt_id)
        if key is None:
            tally.drops["the prompt cannot be read back: a message is missing"] += count
            return None
        return self._open(self._claims[key] % JUDGED, count, tally)

    def usable_run(self, shown: list[Message], place: str, count: int, tally: Tally) -> str | None:
        """The split of runs with this history, whose prompt stands in `place`: the stricter one; None where a gold case asks it."""
        return self._open(max(self._claims.get(_key(shown), 0) % JUDGED, ORDER.index(place)), count, tally)

    def _open(self, claim: int, count: int, tally: Tally) -> str | None:
        if ORDER[claim] == GOLD:
            tally.drops["a gold case asks the same"] += count
            return None
        return ORDER[claim]

    def _claim(self, prompt_id: str, prompt: list[Message], places: Iterable[str], judged: bool = True) -> None:
        if prompt:
            key = self._keys.get(prompt_id)
            if key is None:
                key = self._keys[prompt_id] = _key(prompt)
            for place in places:
                self._raise(key, place, judged)

    def _raise(self, key: int, place: str, judged: bool = True) -> None:
        claim = ORDER.index(place) + (JUDGED if judged or place == GOLD else 0)
        self._claims[key] = max(self._claims.get(key, 0), claim)


def _key(prompt: list[Message]) -> int:
    return int.from_bytes(prompt_key(prompt)[:8], "big")


def aligned(
    left: Iterable[L], left_key: Callable[[L], str], right: Iterator[R], right_key: Callable[[R], str]
) -> Iterator[tuple[L, R | None]]:
    """Each of `left` with the one of `right` that has the same key, None where there is none; both come in the order of their keys."""
    following = next(right, None)
    for one in left:
        if following is not None and right_key(following) == left_key(one):
            yield one, following
            following = next(right, None)
        else:
            yield one, None
