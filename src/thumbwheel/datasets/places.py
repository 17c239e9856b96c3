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
from thumbwheel.datasets.split import group_of, prompt_key, split_of
from thumbwheel.datasets.store import GOLD, TraceRow
from thumbwheel.datasets.types import SPLITS, DatasetConfig, Message, Tally
from thumbwheel.rewards.types import Scope

if TYPE_CHECKING:
    import numpy as np

L = TypeVar("L")
R = TypeVar("R")
ORDER = (*SPLITS, GOLD)
"""From the mildest claim to the strictest."""


class Places:
    """Where the prompts of one part may be used. Read the claims, settle them with those of the other parts, then ask."""

    def __init__(self, connection: sa.Connection, agent_id: str, config: DatasetConfig, scope: Scope | None = None) -> None:
        self.config = config
        self._keys: dict[str, int] = {}
        self._claims: dict[int, int] = {}
        asked = [(prompt_id, GOLD if basis == GOLD else split_of(group_of(prompt_id), config))
                 for prompt_id, basis in store.case_inputs(connection, agent_id)]  # fmt: skip
        chains = store.prompts(connection, {prompt_id for prompt_id, _ in asked})
        for prompt_id, place in asked:
            self._claim(prompt_id, chains.get(prompt_id, []), [place])
        groups = store.judged_groups(connection, agent_id, scope)
        grouped = ((prompt_id, {one[1:] for one in some}) for prompt_id, some in groupby(groups, key=itemgetter(0)))
        messages = store.judged_prompts(connection, agent_id, scope)
        for (prompt_id, kept), prompt in aligned(grouped, itemgetter(0), messages, itemgetter(0)):
            if prompt:
                self._claim(prompt_id, prompt[1], [GOLD if gold else split_of(group_of(prompt_id, name), config) for name, gold in kept])

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

    def learn(self, prompt_id: str, prompt: list[Message], traces: Iterable[TraceRow]) -> None:
        """A prompt that nobody judged stands where an equal one does, else where its own traces have it."""
        if prompt and prompt_id not in self._keys:
            key = self._keys[prompt_id] = _key(prompt)
            own = [split_of(group_of(prompt_id, trace.kept_with), self.config) for trace in traces]
            self._claims.setdefault(key, max(map(ORDER.index, own)))

    def usable(self, prompt_id: str, count: int, tally: Tally) -> str | None:
        """Its split; None where it is gold or cannot be read, which is counted `count` times."""
        key = self._keys.get(prompt_id)
        if key is None:
            tally.drops["the prompt cannot be read back: a message is missing"] += count
            return None
        place = ORDER[self._claims[key]]
        if place == GOLD:
            tally.drops["a gold case asks the same"] += count
            return None
        return place

    def _claim(self, prompt_id: str, prompt: list[Message], places: Iterable[str]) -> None:
        if prompt:
            key = self._keys.get(prompt_id)
            if key is None:
                key = self._keys[prompt_id] = _key(prompt)
            self._claims[key] = max(self._claims.get(key, 0), *map(ORDER.index, places))


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
