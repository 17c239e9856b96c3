"""Assigns every prompt to a split: prompts that ask the same, or nearly the same, stay together,
whoever asked them and how often.

Three things tie prompts into a group. They are near copies of each other (`minhash`). The history
of one holds another one and an answer to it that is part of the data. A run belongs to its case,
and to its first question if the user asked no other one. A session ties nothing by itself, so a
question that is asked in a hundred sessions is one group with all its answers.

The group's split is a salted hash of one of its prompts: of those that continue no other one, the
one with the smallest key. So a later turn, or the same question again, moves nothing. Rows that
arrive later move earlier ones only if they tie two groups, begin a dialogue before its first known
turn, or are a near copy with a smaller key.

Prompts that nobody judged move no judged ones: they join the group that they are tied to, and are
left out if they are tied to two splits. The claims of several parts of the prompts are combined, so
several processes may read the parts. SQL is in `store`.
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
from thumbwheel.db.batches import VARIABLES
from thumbwheel.db.message_chains import conversations
from thumbwheel.rewards.types import FeedbackScope

if TYPE_CHECKING:
    import numpy as np

L = TypeVar("L")
R = TypeVar("R")
JUDGED_FLAG, GOLD_FLAG, HELD_FLAG = 1, 2, 4
ASSIGNMENTS = (*SPLITS, GOLD, "two splits", "no split")
"""What a prompt can be assigned: its split, or why it has none."""
TWO_SPLITS, NO_SPLIT = ASSIGNMENTS.index("two splits"), ASSIGNMENTS.index("no split")
REASONS = {
    GOLD: "a gold case asks the same",
    "two splits": "nobody judged it, and it is tied to prompts of two splits",
    "no split": "it is held out, and dev and gate are empty",
}


@dataclass
class Claims:
    """What ties the prompts of one part. Pairs are flat: first, second, first, second, ..."""

    keys: array[int] = field(default_factory=lambda: array("Q"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    spellings: array[int] = field(default_factory=lambda: array("Q"))
    """A hash of the text of each key without punctuation."""
    answered: array[int] = field(default_factory=lambda: array("Q"))
    """Pairs of a turn and the key of its prompt: answers of traces and corrections of them."""
    references: array[int] = field(default_factory=lambda: array("Q"))
    """The same for the references of cases."""
    remembered: array[int] = field(default_factory=lambda: array("Q"))
    """Pairs of a turn and the key of a prompt whose history holds it."""
    same: array[int] = field(default_factory=lambda: array("Q"))
    """Pairs of the key of a prompt and that of its case's prompt or of its first question."""
    long: array[int] = field(default_factory=lambda: array("Q"))
    """Keys of the texts that have word triples."""
    triples: list[WordTriples] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the claims as arrays, which can be saved."""
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
    """The splits of the prompts of one part. `read` it, combine its `claims` with those of the
    other parts (`combine_claims`), `load` the result, then ask for splits."""

    def __init__(self, config: DatasetConfig) -> None:
        self.config = config
        self._keys: dict[str, int] = {}
        self._positions: dict[int, int] = {}
        self._claims = Claims()
        self._texts: list[str] = []
        self._assignments: dict[int, int] = {}

    @classmethod
    def read(
        cls,
        connection: sa.Connection,
        agent_id: str,
        config: DatasetConfig,
        scope: FeedbackScope | None = None,
        *,
        unjudged: bool = False,
    ) -> SplitAssignment:
        """Claim the agent's prompts. With `unjudged`, prompts that nobody judged are claimed too,
        unless `config` leaves them out."""
        part = cls(config)
        part._claim_cases(connection, agent_id)
        edited: dict[str, list[str]] = defaultdict(list)
        for trace_id, text in store.edits(connection, agent_id):
            edited[trace_id].append(text)
        part._claim_asked(connection, agent_id, scope, True, edited)
        if unjudged and not config.require_feedback:
            part._claim_asked(connection, agent_id, scope, False, edited)
        part._read_triples()
        return part

    @classmethod
    def restored(cls, config: DatasetConfig, prompts: dict[str, np.ndarray]) -> SplitAssignment:
        """Return a part that was read elsewhere, by its `prompts`; it has no claims."""
        part = cls(config)
        prompt_ids = (prompt_id.decode() for prompt_id in prompts["prompt_ids"].tolist())
        part._keys = dict(zip(prompt_ids, prompts["prompt_keys"].tolist(), strict=True))
        part._positions = dict.fromkeys(prompts["keys"].tolist(), 0)
        return part

    def claims(self) -> dict[str, np.ndarray]:
        """Return the claims of this part, for `combine_claims`."""
        return self._claims.arrays()

    def prompts(self) -> dict[str, np.ndarray]:
        """Return the prompts of this part and their keys, for `restored`."""
        import numpy as np

        return {
            "prompt_ids": np.array([prompt_id.encode() for prompt_id in self._keys], np.bytes_),
            "prompt_keys": np.fromiter(self._keys.values(), np.uint64, len(self._keys)),
            "keys": np.fromiter(self._positions, np.uint64, len(self._positions)),
        }

    def load(self, keys: np.ndarray, assignments: np.ndarray) -> SplitAssignment:
        """Take over the assignments of the prompts of this part from the assignments of all
        parts."""
        import numpy as np

        part_keys = np.fromiter(self._positions, np.uint64, len(self._positions))
        part_assignments = assignments[np.searchsorted(keys, part_keys)]
        self._assignments = dict(zip(part_keys.tolist(), part_assignments.tolist(), strict=True))
        return self

    def split_of(self, prompt_id: str) -> str | None:
        """Return the split of a prompt; None if it is gold, or no trace or case of this agent asks
        it alone."""
        key = self._keys.get(prompt_id, 0)
        assignment = ASSIGNMENTS[self._assignments.get(key, NO_SPLIT)]
        return assignment if assignment in SPLITS else None

    def usable_split(self, prompt_id: str, count: int, tally: Tally) -> str | None:
        """Return the split of a prompt; if it may not be used, None, and `count` drops are
        counted."""
        if prompt_id not in self._keys:
            tally.drops["the prompt cannot be read back: a message is missing"] += count
            return None
        return self._usable(self._keys[prompt_id], count, tally)

    def usable_run_split(self, shown: Sequence[Message], count: int, tally: Tally) -> str | None:
        """Return the split for runs of several steps, by the messages shown to their last answer;
        if it may not be used, None, and `count` drops are counted."""
        return self._usable(dialogue_keys(shown)[0], count, tally)

    def _usable(self, key: int, count: int, tally: Tally) -> str | None:
        assignment = ASSIGNMENTS[self._assignments[key]]
        if assignment in SPLITS:
            return assignment
        tally.drops[REASONS[assignment]] += count
        return None

    def _claim_cases(self, connection: sa.Connection, agent_id: str) -> None:
        cases = store.case_inputs(connection, agent_id)
        chains = conversations(connection, {case.prompt_id for case in cases})
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
        scope: FeedbackScope | None,
        judged: bool,
        edited: dict[str, list[str]],
    ) -> None:
        traces = store.asked_traces(connection, agent_id, scope, judged)
        by_prompt = groupby(traces, key=attrgetter("prompt_id"))
        grouped = ((prompt_id, list(group)) for prompt_id, group in by_prompt)
        prompts = store.judged_prompts(connection, agent_id, scope, judged)
        runs: list[tuple[list[Message], AskedTrace]] = []
        for group, prompt in align_by_key(grouped, itemgetter(0), prompts, itemgetter(0)):
            if not prompt:
                continue
            prompt_id, messages = prompt
            permitted = [trace for trace in group[1] if trace.mark != EXCLUDED]
            single_calls = [trace for trace in permitted if not trace.several]
            if single_calls:
                key = self._claim(messages, JUDGED_FLAG if judged else 0)
            else:
                key, _ = dialogue_keys(messages)
            self._keys[prompt_id] = key
            for trace in single_calls:
                self._claim_trace(key, trace, judged, edited)
            if judged:
                runs += [(messages, trace) for trace in permitted if trace.several]
            if len(runs) >= VARIABLES:
                self._claim_runs(connection, runs, edited)
                runs = []
        self._claim_runs(connection, runs, edited)

    def _claim_runs(
        self,
        connection: sa.Connection,
        runs: Sequence[tuple[list[Message], AskedTrace]],
        edited: dict[str, list[str]],
    ) -> None:
        """Claim the whole history of each run of several steps: it is the prompt of the run's row,
        and other traces may ask it as their prompt."""
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
        """Claim the additions of one trace that asked `key`: its answers, its case, its owner's
        mark."""
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
        """Claim a prompt that rows may have; return its key."""
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
    scope: FeedbackScope | None = None,
    *,
    unjudged: bool = False,
) -> SplitAssignment:
    """Return the splits of all prompts of an agent."""
    assignment = SplitAssignment.read(connection, agent_id, config, scope, unjudged=unjudged)
    return assignment.load(*combine_claims([assignment.claims()], config))


def combine_claims(
    parts: Collection[dict[str, np.ndarray]], config: DatasetConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return (keys of all prompts, sorted; the index of each in `ASSIGNMENTS`) by the claims of all
    parts. The order of the parts does not matter."""
    import numpy as np

    claims = join_arrays(parts)
    keys, first, number = np.unique(claims["keys"], return_index=True, return_inverse=True)
    flags = np.zeros(len(keys), np.uint8)
    np.bitwise_or.at(flags, number, claims["flags"])
    groups = _Groups(keys, flags)
    groups.tie(_same_spellings(claims["spellings"][first]))
    groups.tie(_near_copies(keys, claims))
    groups.tie(np.searchsorted(keys, claims["same"].reshape(-1, 2)))
    groups.tie(_continuations(keys, flags, claims), continued=True)
    return keys, groups.assignments(config)


def _questions(prompt: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in prompt)


def _same_spellings(spellings: np.ndarray) -> np.ndarray:
    """Return pairs of numbers whose texts differ in punctuation only."""
    import numpy as np

    order = np.argsort(spellings, kind="stable")
    same = spellings[order[1:]] == spellings[order[:-1]]
    return np.stack([order[:-1][same], order[1:][same]], 1)


def _near_copies(keys: np.ndarray, claims: dict[str, np.ndarray]) -> np.ndarray:
    """Return pairs of numbers whose texts are near copies."""
    import numpy as np

    # the triples of each long text, in the order of the keys and each text once
    long, first = np.unique(claims["long"], return_index=True)
    starts = np.concatenate([[0], claims["triple_counts"].cumsum()])
    hashes = [claims["triples"][starts[number] : starts[number + 1]] for number in first.tolist()]
    lengths = claims["triple_counts"][first]
    triples = WordTriples(
        np.concatenate([np.zeros(0, np.uint64), *hashes]), np.concatenate([[0], lengths.cumsum()])
    )
    pairs = np.array(near_ties(triples, long), np.int64).reshape(-1, 2)
    return np.searchsorted(keys, long[pairs])


def _continuations(
    keys: np.ndarray, flags: np.ndarray, claims: dict[str, np.ndarray]
) -> np.ndarray:
    """Return pairs of numbers: a prompt, and one whose history holds it and an answer to it."""
    import numpy as np

    answered = claims["answered"].reshape(-1, 2)
    references = claims["references"].reshape(-1, 2)
    remembered = claims["remembered"].reshape(-1, 2)
    # Recorded answers to a gold question are no rows, so only its reference ties continuations.
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
    """Groups of tied prompts, which are numbered in the order of their keys."""

    def __init__(self, keys: np.ndarray, flags: np.ndarray) -> None:
        self._keys, self._flags = keys, flags
        self._judged = ((flags & JUDGED_FLAG) > 0).tolist()
        self._sets = DisjointSets(len(keys))
        self._unjudged_ties: list[tuple[int, int]] = []
        """Ties of which at least one prompt was judged by nobody."""
        self._continues: set[int] = set()

    def tie(self, pairs: np.ndarray, *, continued: bool = False) -> None:
        """Keep both of each pair together; if `continued`, the second continues the first."""
        for first, second in pairs.tolist():
            if self._judged[first] and self._judged[second]:
                self._sets.join(first, second)
                if continued:
                    self._continues.add(second)
            else:
                self._unjudged_ties.append((first, second))

    def assignments(self, config: DatasetConfig) -> np.ndarray:
        """Return the index in `ASSIGNMENTS` of each prompt."""
        import numpy as np

        members: dict[int, list[int]] = defaultdict(list)
        for number, judged in enumerate(self._judged):
            if judged:
                members[self._sets.find(number)].append(number)
        assignments = np.full(len(self._keys), NO_SPLIT, np.uint8)
        for group in members.values():
            # numbers are in the order of the keys, so the first one has the smallest key
            first = next(number for number in group if number not in self._continues)
            flags = int(np.bitwise_or.reduce(self._flags[group]))
            assignments[group] = self._split(first, flags, config)
        self._assign_unjudged(assignments, config)
        assignments[(self._flags & GOLD_FLAG) > 0] = ASSIGNMENTS.index(GOLD)
        return assignments

    def _split(self, number: int, flags: int, config: DatasetConfig) -> int:
        held_out = bool(flags & (HELD_FLAG | GOLD_FLAG))
        split = split_of(f"{int(self._keys[number]):016x}", config, held_out=held_out)
        return NO_SPLIT if split is None else ASSIGNMENTS.index(split)

    def _assign_unjudged(self, assignments: np.ndarray, config: DatasetConfig) -> None:
        """Assign prompts that nobody judged: as the judged ones that they are tied to, else by
        themselves."""
        sets = DisjointSets(len(self._keys))
        anchors: dict[int, set[int]] = defaultdict(set)
        for first, second in self._unjudged_ties:
            if not self._judged[first] and not self._judged[second]:
                sets.join(first, second)
            else:
                unjudged, judged = (second, first) if self._judged[first] else (first, second)
                anchors[unjudged].add(int(assignments[judged]))
        groups: dict[int, list[int]] = defaultdict(list)
        for number, judged in enumerate(self._judged):
            if not judged:
                groups[sets.find(number)].append(number)
        for group in groups.values():
            tied_to = set[int]().union(*(anchors.get(number, ()) for number in group))
            if len(tied_to) > 1:
                assignments[group] = TWO_SPLITS
            elif tied_to:
                assignments[group] = tied_to.pop()
            else:
                held_out = (self._flags[group] & HELD_FLAG).any()
                flags = HELD_FLAG if held_out else 0
                assignments[group] = self._split(group[0], flags, config)


def align_by_key(
    left: Iterable[L],
    left_key: Callable[[L], str],
    right: Iterator[R],
    right_key: Callable[[R], str],
) -> Iterator[tuple[L, R | None]]:
    """Yield each item of `left` with the item of `right` that has the same key, or None. Both come
    in the order of their keys."""
    next_right = next(right, None)
    for item in left:
        if next_right is not None and right_key(next_right) == left_key(item):
            yield item, next_right
            next_right = next(right, None)
        else:
            yield item, None


def join_arrays(parts: Collection[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of several parts, those of one name behind each other."""
    import numpy as np

    names = next(iter(parts))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def save_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    import numpy as np

    np.savez(path, allow_pickle=False, **arrays)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    with np.load(path) as file:
        return {name: file[name] for name in file.files}
