"""Which split every prompt stands in: prompts that ask the same, or nearly the same, stand
together, whoever asked them and how often.

A group is tied by three things: prompts are near copies of each other (`near`); the history of one
holds another one and an answer to it that is part of the data; a run belongs to its case, and to
its first question where the user asked no other one. A session ties nothing by itself, so a
question that is asked in a hundred sessions is one group with all its answers. The group's split is
a salted hash of one of its prompts: of those that continue no other one, the one with the smallest
key. So a later turn, or the same question again, moves nothing. Rows that arrive later move earlier
ones only where they tie two groups, begin a dialogue before its first known turn, or are a near
copy with a smaller key.

What nobody judged takes nothing from what was: it joins the group that it is tied to, and is left
out where it is tied to two splits. Claims of parts of the prompts are assigned together, so that
several processes may read the parts. Does not live here: SQL (`store`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa

from thumbwheel.datasets import store
from thumbwheel.datasets.disjoint_sets import DisjointSets
from thumbwheel.datasets.episode import history
from thumbwheel.datasets.minhash import SHORT, SPLIT, WordTriples, bare, near_ties, word_triples
from thumbwheel.datasets.split import asked_text, dialogue_keys, split_of, turn_key
from thumbwheel.datasets.store import GOLD, AskedTrace
from thumbwheel.datasets.types import EXCLUDED, HELD_OUT, SPLITS, DatasetConfig, Message, Tally
from thumbwheel.rewards.types import Scope

if TYPE_CHECKING:
    import numpy as np

L = TypeVar("L")
R = TypeVar("R")
JUDGED_FLAG, GOLD_FLAG, HELD_FLAG = 1, 2, 4
PLACES = (*SPLITS, GOLD, "two splits", "nowhere")
"""What an assignment says of a prompt: its split, or why it has none."""
TWO_SPLITS, NOWHERE = PLACES.index("two splits"), PLACES.index("nowhere")
REASONS = {
    GOLD: "a gold case asks the same",
    "two splits": "nobody judged it, and it is tied to prompts of two splits",
    "nowhere": "it is held out, and dev and gate are empty",
}


@dataclass
class Claims:
    """What the prompts of one part say. Pairs lie flat: the first, the second, the first, ..."""

    keys: array[int] = field(default_factory=lambda: array("Q"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    spellings: array[int] = field(default_factory=lambda: array("Q"))
    """Of each key a hash of its text without punctuation."""
    answered: array[int] = field(default_factory=lambda: array("Q"))
    """Turn, key of its prompt: what a trace has as an answer, or a correction of it."""
    references: array[int] = field(default_factory=lambda: array("Q"))
    """The same of cases."""
    remembered: array[int] = field(default_factory=lambda: array("Q"))
    """Turn, key of a prompt whose history holds it."""
    same: array[int] = field(default_factory=lambda: array("Q"))
    """Key of a prompt, key of its case's or of its first question."""
    long: array[int] = field(default_factory=lambda: array("Q"))
    """Keys of the texts that have word triples."""
    triples: list[WordTriples] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        """As arrays, to be saved."""
        import numpy as np

        names = ("keys", "spellings", "answered", "references", "remembered", "same", "long")
        flat = {name: np.array(getattr(self, name), np.uint64) for name in names}
        counts = [np.diff(part.starts) for part in self.triples]
        flat["flags"] = np.array(self.flags, np.uint8)
        flat["triples"] = np.concatenate(
            [np.zeros(0, np.uint64), *(part.hashes for part in self.triples)]
        )
        flat["triple_counts"] = np.concatenate([np.zeros(0, np.int64), *counts])
        return flat


class SplitAssignment:
    """Where the prompts of one part may be used. Read the claims, settle them with those of the
    other parts, then ask."""

    def __init__(
        self,
        connection: sa.Connection,
        agent_id: str,
        config: DatasetConfig,
        scope: Scope | None = None,
        *,
        unjudged: bool = False,
    ) -> None:
        """With `unjudged` what nobody judged is claimed too, where `config` does not leave it out."""
        self.config = config
        self._keys: dict[str, int] = {}
        self._positions: dict[int, int] = {}
        self._claims = Claims()
        self._texts: list[str] = []
        self._places: dict[int, int] = {}
        self._claim_cases(connection, agent_id)
        store.find_judged(connection, agent_id, scope)
        edited: dict[str, list[str]] = defaultdict(list)
        for trace_id, text in store.edits(connection, agent_id):
            edited[trace_id].append(text)
        for judged in (True, False) if unjudged and not config.require_feedback else (True,):
            self._claim_asked(connection, agent_id, scope, judged, edited)
        self._read_triples()

    def claims(self) -> dict[str, np.ndarray]:
        """What this part says, for `combine_claims`."""
        return self._claims.arrays()

    def settle(self, keys: np.ndarray, places: np.ndarray) -> SplitAssignment:
        """Take over what was assigned to all parts together."""
        import numpy as np

        own = np.fromiter(self._positions, np.uint64, len(self._positions))
        self._places = dict(
            zip(own.tolist(), places[np.searchsorted(keys, own)].tolist(), strict=True)
        )
        return self

    def split_of(self, prompt_id: str) -> str | None:
        """The split of a prompt; None where it is gold, or nothing of this agent asks it alone."""
        place = PLACES[self._places.get(self._keys.get(prompt_id, 0), NOWHERE)]
        return place if place in SPLITS else None

    def usable(self, prompt_id: str, count: int, tally: Tally) -> str | None:
        """Its split; None where it may not be used, which is counted `count` times."""
        if prompt_id not in self._keys:
            tally.drops["the prompt cannot be read back: a message is missing"] += count
            return None
        return self._open(self._keys[prompt_id], count, tally)

    def usable_run(self, shown: Sequence[Message], count: int, tally: Tally) -> str | None:
        """The same for runs of several steps by what their last answer was shown."""
        return self._open(dialogue_keys(shown)[0], count, tally)

    def _open(self, key: int, count: int, tally: Tally) -> str | None:
        place = PLACES[self._places[key]]
        if place in SPLITS:
            return place
        tally.drops[REASONS[place]] += count
        return None

    def _claim_cases(self, connection: sa.Connection, agent_id: str) -> None:
        cases = store.case_inputs(connection, agent_id)
        chains = store.prompts(connection, {case.prompt_id for case in cases})
        for case in cases:
            if prompt := chains.get(case.prompt_id):
                key = self._claim(prompt, JUDGED_FLAG | (GOLD_FLAG if case.basis == GOLD else 0))
                self._keys[case.prompt_id] = key
                if isinstance(case.reference, str):
                    self._claims.references.extend((turn_key(key, case.reference), key))

    def _claim_asked(
        self,
        connection: sa.Connection,
        agent_id: str,
        scope: Scope | None,
        judged: bool,
        edited: dict[str, list[str]],
    ) -> None:
        traces = groupby(
            store.asked_traces(connection, agent_id, scope, judged), key=attrgetter("prompt_id")
        )
        grouped = ((prompt_id, list(some)) for prompt_id, some in traces)
        messages = store.judged_prompts(connection, agent_id, scope, judged)
        runs: list[tuple[list[Message], AskedTrace]] = []
        for (prompt_id, asked), prompt in align_by_key(
            grouped, itemgetter(0), messages, itemgetter(0)
        ):
            if not prompt:
                continue
            alone = [trace for trace in asked if not trace.several and trace.mark != EXCLUDED]
            self._keys[prompt_id] = (
                self._claim(prompt[1], JUDGED_FLAG if judged else 0)
                if alone
                else dialogue_keys(prompt[1])[0]
            )
            for trace in alone:
                self._claim_trace(self._keys[prompt_id], trace, judged, edited)
            runs += [
                (prompt[1], trace)
                for trace in asked
                if trace.several and trace.mark != EXCLUDED and judged
            ]
            if len(runs) >= store.VARIABLES:
                self._claim_runs(connection, runs, edited)
                runs = []
        self._claim_runs(connection, runs, edited)

    def _claim_runs(
        self,
        connection: sa.Connection,
        runs: Sequence[tuple[list[Message], AskedTrace]],
        edited: dict[str, list[str]],
    ) -> None:
        """The row of a run of several steps asks its whole history, which others may ask as a
        prompt."""
        steps = store.run_steps(connection, [trace.trace_id for _, trace in runs]) if runs else {}
        for prompt, trace in runs:
            shown = history(prompt, steps.get(trace.trace_id, []), trace.output)
            if isinstance(shown, str):
                continue
            key = self._claim(shown, JUDGED_FLAG)
            self._claim_trace(key, trace, True, edited)
            if _questions(shown) == _questions(prompt):
                self._keys[trace.prompt_id] = self._claim(prompt, JUDGED_FLAG)
                self._claims.same.extend((key, self._keys[trace.prompt_id]))

    def _claim_trace(
        self, key: int, trace: AskedTrace, judged: bool, edited: dict[str, list[str]]
    ) -> None:
        """What one trace that asked `key` says: its answers, its case, its owner's mark."""
        flag = (GOLD_FLAG if trace.gold else 0) | (HELD_FLAG if trace.mark == HELD_OUT else 0)
        self._claims.flags[self._positions[key]] |= flag
        case_key = self._keys.get(trace.case_prompt_id) if trace.case_prompt_id else None
        if case_key is not None and case_key != key:
            self._claims.same.extend((key, case_key))
        if judged:
            for answer in (trace.output or "", *edited.get(trace.trace_id, ())):
                if answer.strip():
                    self._claims.answered.extend((turn_key(key, answer), key))

    def _claim(self, prompt: Sequence[Message], flags: int) -> int:
        """The key of a prompt that rows may have."""
        key, turns = dialogue_keys(prompt)
        position = self._positions.get(key)
        if position is not None:
            self._claims.flags[position] |= flags
            return key
        self._positions[key] = len(self._claims.keys)
        self._claims.keys.append(key)
        self._claims.flags.append(flags)
        for turn in turns:
            self._claims.remembered.extend((turn, key))
        spelling = bare(asked_text(prompt))
        self._claims.spellings.append(turn_key(0, spelling) if spelling else key)
        if spelling.count(" ") >= SHORT - 1:
            self._claims.long.append(key)
            self._texts.append(spelling)
            if len(self._texts) >= SPLIT:
                self._read_triples()
        return key

    def _read_triples(self) -> None:
        if self._texts:
            self._claims.triples.append(word_triples(self._texts))
            self._texts = []


def assign_splits(
    connection: sa.Connection,
    agent_id: str,
    config: DatasetConfig,
    scope: Scope | None = None,
    *,
    unjudged: bool = False,
) -> SplitAssignment:
    """Where all prompts of an agent may be used."""
    assignment = SplitAssignment(connection, agent_id, config, scope, unjudged=unjudged)
    return assignment.settle(*combine_claims([assignment.claims()], config))


def combine_claims(
    parts: Collection[dict[str, np.ndarray]], config: DatasetConfig
) -> tuple[np.ndarray, np.ndarray]:
    """(keys of all prompts, sorted; the place of each in `PLACES`) by what all parts claim. Their
    order decides nothing."""
    import numpy as np

    whole = {name: np.concatenate([part[name] for part in parts]) for name in next(iter(parts))}
    keys, first, number = np.unique(whole["keys"], return_index=True, return_inverse=True)
    flags = np.zeros(len(keys), np.uint8)
    np.bitwise_or.at(flags, number, whole["flags"])
    groups = _Groups(keys, flags)
    groups.tie(_spelled_alike(whole["spellings"][first]))
    groups.tie(_near_copies(keys, whole))
    groups.tie(np.searchsorted(keys, whole["same"].reshape(-1, 2)))
    groups.tie(_continued(keys, flags, whole), continued=True)
    return keys, groups.places(config)


def _questions(prompt: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in prompt)


def _spelled_alike(spellings: np.ndarray) -> np.ndarray:
    """Pairs of numbers whose texts differ in punctuation only."""
    import numpy as np

    order = np.argsort(spellings, kind="stable")
    same = spellings[order[1:]] == spellings[order[:-1]]
    return np.stack([order[:-1][same], order[1:][same]], 1)


def _near_copies(keys: np.ndarray, whole: dict[str, np.ndarray]) -> np.ndarray:
    """Pairs of numbers whose texts are near copies."""
    import numpy as np

    long, first = np.unique(whole["long"], return_index=True)
    starts = np.concatenate([[0], whole["triple_counts"].cumsum()])
    hashes = [whole["triples"][starts[number] : starts[number + 1]] for number in first.tolist()]
    lengths = whole["triple_counts"][first]
    triples = WordTriples(
        np.concatenate([np.zeros(0, np.uint64), *hashes]), np.concatenate([[0], lengths.cumsum()])
    )
    pairs = np.array(near_ties(triples, long), np.int64).reshape(-1, 2)
    return np.searchsorted(keys, long[pairs])


def _continued(keys: np.ndarray, flags: np.ndarray, whole: dict[str, np.ndarray]) -> np.ndarray:
    """Pairs of numbers: a prompt, and one whose history holds it and an answer to it."""
    import numpy as np

    answered, references, remembered = (
        whole[name].reshape(-1, 2) for name in ("answered", "references", "remembered")
    )
    # recorded answers to a gold question are no rows, so that its reference alone ties what
    # continues it
    gold = (flags[np.searchsorted(keys, answered[:, 1])] & GOLD_FLAG) > 0
    answered = np.concatenate([answered[~gold], references])
    turns, first = np.unique(answered[:, 0], return_index=True)
    if not len(turns):
        return np.zeros((0, 2), np.int64)
    nearest = np.minimum(np.searchsorted(turns, remembered[:, 0]), len(turns) - 1)
    holds = turns[nearest] == remembered[:, 0]
    earlier = answered[first[nearest[holds]], 1]
    return np.searchsorted(keys, np.stack([earlier, remembered[holds, 1]], 1))


class _Groups:
    """Prompts by number, what ties them, and the split of each group."""

    def __init__(self, keys: np.ndarray, flags: np.ndarray) -> None:
        self._keys, self._flags = keys, flags
        self._judged = ((flags & JUDGED_FLAG) > 0).tolist()
        self._sets = DisjointSets(len(keys))
        self._loose: list[tuple[int, int]] = []
        """Ties of what nobody judged."""
        self._continues: set[int] = set()

    def tie(self, pairs: np.ndarray, *, continued: bool = False) -> None:
        """Keep both of each pair together; where `continued`, the second continues the first."""
        for first, second in pairs.tolist():
            if self._judged[first] and self._judged[second]:
                self._sets.join(first, second)
                if continued:
                    self._continues.add(second)
            else:
                self._loose.append((first, second))

    def places(self, config: DatasetConfig) -> np.ndarray:
        """The place of each prompt."""
        import numpy as np

        members: dict[int, list[int]] = defaultdict(list)
        for number, judged in enumerate(self._judged):
            if judged:
                members[self._sets.find(number)].append(number)
        places = np.full(len(self._keys), NOWHERE, np.uint8)
        for group in members.values():
            # numbers are in the order of the keys, so the first one has the smallest key
            first = next(number for number in group if number not in self._continues)
            flags = np.bitwise_or.reduce(self._flags[group])
            place = self._place(first, int(flags), config)
            places[group] = place
        self._place_loose(places, config)
        places[(self._flags & GOLD_FLAG) > 0] = PLACES.index(GOLD)
        return places

    def _place(self, number: int, flags: int, config: DatasetConfig) -> int:
        held_out = bool(flags & (HELD_FLAG | GOLD_FLAG))
        split = split_of(f"{int(self._keys[number]):016x}", config, held_out=held_out)
        return NOWHERE if split is None else PLACES.index(split)

    def _place_loose(self, places: np.ndarray, config: DatasetConfig) -> None:
        """What nobody judged: with what it is tied to, else by itself."""
        sets = DisjointSets(len(self._keys))
        anchors: dict[int, set[int]] = defaultdict(set)
        for first, second in self._loose:
            if not self._judged[first] and not self._judged[second]:
                sets.join(first, second)
            else:
                loose, judged = (second, first) if self._judged[first] else (first, second)
                anchors[loose].add(int(places[judged]))
        groups: dict[int, list[int]] = defaultdict(list)
        for number, judged in enumerate(self._judged):
            if not judged:
                groups[sets.find(number)].append(number)
        for group in groups.values():
            around = set[int]().union(*(anchors.get(number, ()) for number in group))
            if len(around) > 1:
                places[group] = TWO_SPLITS
            elif around:
                places[group] = around.pop()
            else:
                flags = self._flags[group]
                marked = HELD_FLAG if (flags & HELD_FLAG).any() else 0
                places[group] = self._place(group[0], marked, config)


def align_by_key(
    left: Iterable[L],
    left_key: Callable[[L], str],
    right: Iterator[R],
    right_key: Callable[[R], str],
) -> Iterator[tuple[L, R | None]]:
    """Each of `left` with the one of `right` that has the same key, None where there is none; both
    come in the order of their keys."""
    following = next(right, None)
    for one in left:
        if following is not None and right_key(following) == left_key(one):
            yield one, following
            following = next(right, None)
        else:
            yield one, None


def saved(claims: dict[str, np.ndarray], path: Path) -> None:
    """Write claims to a file."""
    import numpy as np

    np.savez(path, allow_pickle=False, **claims)


def loaded(path: Path) -> dict[str, np.ndarray]:
    """Claims from a file."""
    import numpy as np

    with np.load(path) as file:
        return {name: file[name] for name in file.files}
