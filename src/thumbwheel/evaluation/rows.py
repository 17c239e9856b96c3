"""Which held-out rows judge a version: cases, and recorded answers of a split that training did not
see.

Gold cases come first; without any, the feedback cases whose prompt falls in the gate split; without
these, recorded answers can only be ranked. Whatever asks the same as a row that the version learned
from, or that chose its checkpoint (dev), is left out and counted, whoever put it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import by_id, datasets, load_rows
from thumbwheel.datasets.split import prompt_key
from thumbwheel.datasets.split_assignment import assign_splits
from thumbwheel.datasets.types import ChatRow, Dataset, DatasetConfig, LabelRow, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import Case, Given, Message
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion

SPLITTING = ("salt", "dev", "gate")
"""Settings that decide which split a group is in; datasets that agree in them hold out the same
groups."""


@dataclass
class HeldOut:
    """What a version may be judged on, and what was left out, by reason."""

    basis: Basis
    cases: list[Case]
    given: list[Given]
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def fingerprint(self) -> str:
        """Of every row that is read, in order."""
        return ids.fingerprint(
            [[asdict(one) for one in self.cases], [asdict(one) for one in self.given]]
        )


def gate_rows(ws: Workspace, version: ModelVersion, needed: bool = True) -> HeldOut:
    """What the gate reads about `version`: its cases, and the recorded answers of the gate split.
    Raises DataError without both, where they are `needed`."""
    agent_id = ids.derived("agt", version.agent)
    dropped: Counter[str] = Counter()
    trained_on = dataset_of(ws, version)
    seen = _prompt_keys(ws, _lineage(ws, version), ("train", "dev"))
    with ws.db.read() as connection:
        gold = store.judgeable(connection, agent_id, Basis.GOLD)
        basis, found = (
            (Basis.GOLD, gold)
            if gold
            else (Basis.FEEDBACK, store.judgeable(connection, agent_id, Basis.FEEDBACK))
        )
    if basis is Basis.FEEDBACK and found:
        with ws.db.read() as connection:
            assignment = assign_splits(connection, agent_id, _split_config(trained_on))
        found = [case for case in found if assignment.split_of(case.prompt_id) == "gate"]
    cases = list(_unseen(found, seen, dropped))
    given = list(_unseen(_given(ws, version.agent, trained_on, ["gate"]), seen, dropped))
    if needed and not cases and not given:
        raise DataError(
            f"version {version.name!r} of agent {version.agent!r}",
            "there is nothing to judge it on: no usable case, and no recorded answer in the gate "
            f"split{_why(dropped)}",
            f"Add cases that you reviewed: thumbwheel case add --agent {version.agent}",
        )
    return HeldOut(basis, cases, given, dropped)


def _lineage(ws: Workspace, version: ModelVersion) -> Iterator[Dataset]:
    """What the version and those that it continues were trained on."""
    at: ModelVersion | None = version
    while at is not None:
        if found := dataset_of(ws, at):
            yield found
        at = versions.by_id(ws, at.parent_id) if at.parent_id else None


def train_rows(ws: Workspace, version: ModelVersion, cases: Sequence[Case]) -> list[Given]:
    """Recorded answers that `version` may have learned from, without those to a prompt of `cases`;
    none for one that nothing trained."""
    own = dataset_of(ws, version)
    held_out = {prompt_key(case.prompt): "case" for case in cases}
    return (
        list(_unseen(_given(ws, version.agent, own, ["train"]), held_out, Counter())) if own else []
    )


def dev_rows(ws: Workspace, agent: str, versions: Sequence[ModelVersion]) -> list[Given]:
    """Recorded answers of the dev split of which none of `versions` saw the prompt in training.
    Raises DataError without any."""
    own = [dataset for one in versions if (dataset := dataset_of(ws, one))]
    seen = _prompt_keys(ws, own, ("train",))
    if len({_splitting(one) for one in own}) > 1:
        raise DataError(
            f"versions {', '.join(one.name for one in versions)}",
            "they were trained on datasets that are split in different ways, so no dev rows are "
            "fair to all",
            "Build their datasets with the same salt, dev and gate",
        )
    found = list(_unseen(_given(ws, agent, own[0] if own else None, ["dev"]), seen, Counter()))
    if not found:
        raise DataError(
            f"agent {agent!r}",
            "its datasets have no rows in the dev split",
            "Collect more feedback, or raise dataset.dev",
        )
    return found


def own_prompts(ws: Workspace, version: ModelVersion) -> Iterator[list[Message]]:
    """Prompts without tools of the rows that stopped the version's training, then of those that it
    was trained on."""
    own = dataset_of(ws, version)
    rows = (
        chain.from_iterable(load_rows(ws, own.id, split) for split in ("dev", "train"))
        if own
        else ()
    )
    return (row.prompt for row in rows if not row.tools)


def dataset_of(ws: Workspace, version: ModelVersion) -> Dataset | None:
    """What the version was trained on; None for one that nothing trained."""
    if version.run_id is None:
        return None
    with ws.db.read() as connection:
        dataset_id = store.dataset_of_run(connection, version.run_id)
    return by_id(ws, dataset_id) if dataset_id else None


def _splitting(dataset: Dataset) -> tuple[Any, ...]:
    return tuple(dataset.manifest["config"][name] for name in SPLITTING)


def _split_config(dataset: Dataset | None) -> DatasetConfig:
    return (
        DatasetConfig(**dict(zip(SPLITTING, _splitting(dataset), strict=True)))
        if dataset
        else DatasetConfig()
    )


def _given(
    ws: Workspace, agent: str, own: Dataset | None, splits: Collection[str]
) -> Iterator[Given]:
    """Recorded answers of the newest dataset of each shape, `own` before any newer one, split as
    `own` is; each answer once."""
    known = {
        one.shape: one
        for one in datasets(ws, agent)
        if own is None or _splitting(one) == _splitting(own)
    }
    if own is not None:
        known[own.shape] = own
    met: set[tuple[bytes, str, bool, str | None, bool]] = set()
    for dataset in known.values():
        for split in splits:
            for row in load_rows(ws, dataset.id, split):
                for one in given(row):
                    key = (prompt_key(one.prompt), one.text, one.good, one.pair, one.label)
                    if key not in met:
                        met.add(key)
                        yield one


def given(row: Any) -> Iterator[Given]:
    """The recorded answers of one dataset row; a shape that has none gives none."""
    common = (row.row_id, row.group, row.prompt, row.tools)
    answered = row.origin != "correction"
    if isinstance(row, PairRow):
        yield Given(
            *common,
            row.chosen,
            True,
            pair=row.row_id,
            finish_reason=row.chosen_finish,
            liked=answered,
        )
        yield Given(
            *common, row.rejected, False, pair=row.row_id, finish_reason=row.rejected_finish
        )
    elif isinstance(row, LabelRow):
        liked = answered and row.label
        yield Given(
            *common,
            row.completion,
            row.label,
            label=True,
            finish_reason=row.finish_reason,
            liked=liked,
        )
    elif isinstance(row, ChatRow):
        yield Given(*common, row.completion, True, finish_reason=row.finish_reason, liked=answered)


def _prompt_keys(
    ws: Workspace, trained_on: Iterable[Dataset], splits: Sequence[str]
) -> dict[bytes, str]:
    """The questions that were asked in `splits` -> the first of these splits that asked it."""
    keys: dict[bytes, str] = {}
    for dataset in trained_on:
        for split in splits:
            for row in load_rows(ws, dataset.id, split):
                keys.setdefault(prompt_key(row.prompt), split)
    return keys


SEEN_IN = {
    "train": "a training row asks the same",
    "dev": "a dev row, which chose the checkpoint, asks the same",
    "case": "a case asks the same",
}


def _unseen(rows: Iterable[Any], seen: Mapping[bytes, str], dropped: Counter[str]) -> Iterator[Any]:
    for row in rows:
        if not row.prompt:
            dropped["the prompt cannot be read back: a message is missing"] += 1
        elif (split := seen.get(prompt_key(row.prompt))) is not None:
            dropped[SEEN_IN[split]] += 1
        else:
            yield row


def _why(dropped: Counter[str]) -> str:
    return (
        f" (left out: {', '.join(f'{count} x {reason}' for reason, count in dropped.items())})"
        if dropped
        else ""
    )
