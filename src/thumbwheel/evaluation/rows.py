"""Which held-out rows judge a version: cases, and recorded answers of a split that training did not
see.

Gold cases come first. Without any, the feedback cases whose prompt falls in the gate split are
used; without these, recorded answers can only be ranked. A row that asks the same as one that the
version learned from, or that chose its checkpoint (dev), is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError
from thumbwheel.datasets.build import by_id, datasets, load_rows
from thumbwheel.datasets.split import prompt_key
from thumbwheel.datasets.split_assignment import assign_splits
from thumbwheel.datasets.types import ChatRow, Dataset, DatasetConfig, LabelRow, PairRow
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.types import HeldOutCase, Message, RecordedAnswer
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, ModelVersion

SPLITTING = ("salt", "dev", "gate")
"""Settings that decide which split a group is in. Datasets with equal settings hold out the same
groups."""


@dataclass
class HeldOut:
    """What a version may be judged on, and what was left out, by reason."""

    basis: Basis
    cases: list[HeldOutCase]
    recorded_answers: list[RecordedAnswer]
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def fingerprint(self) -> str:
        """Of every row that is read, in order."""
        cases = [asdict(case) for case in self.cases]
        return ids.fingerprint([cases, [asdict(answer) for answer in self.recorded_answers]])


def gate_rows(ws: Workspace, version: ModelVersion, needed: bool = True) -> HeldOut:
    """Return the rows that the gate reads about `version`: its cases, and the recorded answers of
    the gate split. Raises DataError if both are missing and `needed`."""
    agent_id = version.agent_id
    dropped: Counter[str] = Counter()
    trained_on = dataset_of(ws, version)
    seen = _prompt_keys(ws, _datasets_of_lineage(ws, version), ("train", "dev"))
    with ws.db.read() as connection:
        basis = Basis.GOLD
        stored_cases = store.judgeable(connection, agent_id, basis)
        if not stored_cases:
            basis = Basis.FEEDBACK
            stored_cases = store.judgeable(connection, agent_id, basis)
    if basis is Basis.FEEDBACK and stored_cases:
        with ws.db.read() as connection:
            assignment = assign_splits(connection, agent_id, _split_config(trained_on))
        stored_cases = [
            case for case in stored_cases if assignment.split_of(case.prompt_id) == "gate"
        ]
    cases = list(_unseen(stored_cases, seen, dropped))
    in_gate_split = _recorded_answers(ws, version.agent, trained_on, ["gate"])
    answers = list(_unseen(in_gate_split, seen, dropped))
    if needed and not cases and not answers:
        left_out = ", ".join(f"{count} x {reason}" for reason, count in dropped.items())
        why = "there is nothing to judge it on: no usable case, and no recorded answer in the gate "
        why += f"split (left out: {left_out})" if left_out else "split"
        raise DataError(
            f"version {version.name!r} of agent {version.agent!r}",
            why,
            f"Add cases that you reviewed: thumbwheel case add --agent {version.agent}",
        )
    return HeldOut(basis, cases, answers, dropped)


def _datasets_of_lineage(ws: Workspace, version: ModelVersion) -> Iterator[Dataset]:
    """Yield the datasets that the version and its ancestors were trained on."""
    ancestor: ModelVersion | None = version
    while ancestor is not None:
        dataset = dataset_of(ws, ancestor)
        if dataset is not None:
            yield dataset
        ancestor = versions.by_id(ws, ancestor.parent_id) if ancestor.parent_id else None


def train_rows(
    ws: Workspace, version: ModelVersion, cases: Sequence[HeldOutCase]
) -> list[RecordedAnswer]:
    """Return recorded answers that `version` may have learned from, except answers to a prompt of
    `cases`; none for an untrained version."""
    dataset = dataset_of(ws, version)
    if dataset is None:
        return []
    held_out = {prompt_key(case.prompt): "case" for case in cases}
    answers = _recorded_answers(ws, version.agent, dataset, ["train"])
    return list(_unseen(answers, held_out, Counter()))


def dev_rows(ws: Workspace, versions: Sequence[ModelVersion]) -> list[RecordedAnswer]:
    """Return recorded answers of the dev split whose prompts none of `versions` (of one agent) saw
    in training. Raises NoDevRows if there are none, DataError if the datasets are split in
    different ways."""
    agent = versions[0].agent
    trained_on = []
    for version in versions:
        dataset = dataset_of(ws, version)
        if dataset is not None:
            trained_on.append(dataset)
    if len({_split_settings(dataset) for dataset in trained_on}) > 1:
        raise DataError(
            f"versions {', '.join(version.name for version in versions)}",
            "they were trained on datasets that are split in different ways, so no dev rows are "
            "fair to all",
            "Build their datasets with the same salt, dev and gate",
        )
    seen = _prompt_keys(ws, trained_on, ("train",))
    in_dev_split = _recorded_answers(ws, agent, trained_on[0] if trained_on else None, ["dev"])
    answers = list(_unseen(in_dev_split, seen, Counter()))
    if not answers:
        raise _no_dev_rows(ws, agent, trained_on)
    return answers


class NoDevRows(DataError):
    """There is no recorded answer in the dev split."""


def _no_dev_rows(ws: Workspace, agent: str, trained_on: Sequence[Dataset]) -> NoDevRows:
    if any(dataset.counts.get("dev") for dataset in trained_on):
        return NoDevRows(
            f"agent {agent!r}",
            "the rows of its dev split are prompts without a recorded answer, so nothing says "
            "which answers are good",
            "Collect thumbs or corrections, or evaluate on cases: thumbwheel evaluate VERSION "
            f"--agent {agent}",
        )
    return NoDevRows(
        f"agent {agent!r}",
        "its datasets have no rows in the dev split",
        "Collect more feedback, or raise dataset.dev",
    )


def training_prompts(ws: Workspace, version: ModelVersion) -> Iterator[list[Message]]:
    """Yield the prompts without tools of the version's dataset: the dev rows, then the training
    rows."""
    dataset = dataset_of(ws, version)
    if dataset is None:
        return
    for split in ("dev", "train"):
        for row in load_rows(ws, dataset.id, split):
            if not row.tools:
                yield row.prompt


def dataset_of(ws: Workspace, version: ModelVersion) -> Dataset | None:
    """Return the dataset that the version was trained on; None for an untrained version."""
    if version.run_id is None:
        return None
    with ws.db.read() as connection:
        dataset_id = store.dataset_of_run(connection, version.run_id)
    return by_id(ws, dataset_id) if dataset_id else None


def _split_settings(dataset: Dataset) -> tuple[Any, ...]:
    return tuple(dataset.manifest["config"][name] for name in SPLITTING)


def _split_config(dataset: Dataset | None) -> DatasetConfig:
    if dataset is None:
        return DatasetConfig()
    return DatasetConfig(**dict(zip(SPLITTING, _split_settings(dataset), strict=True)))


def _recorded_answers(
    ws: Workspace, agent: str, trained_on: Dataset | None, splits: Collection[str]
) -> Iterator[RecordedAnswer]:
    """Yield recorded answers, each once, of the newest dataset of each shape. `trained_on` replaces
    a newer one of its shape, and then only datasets with the same split settings count."""
    by_shape = {}
    for dataset in datasets(ws, agent):
        if trained_on is None or _split_settings(dataset) == _split_settings(trained_on):
            by_shape[dataset.shape] = dataset
    if trained_on is not None:
        by_shape[trained_on.shape] = trained_on
    seen: set[tuple[bytes, str, bool, str | None, bool]] = set()
    for dataset in by_shape.values():
        for split in splits:
            for row in load_rows(ws, dataset.id, split):
                for answer in recorded_answers(row):
                    question = prompt_key(answer.prompt)
                    key = (question, answer.text, answer.good, answer.pair, answer.label)
                    if key not in seen:
                        seen.add(key)
                        yield answer


def recorded_answers(row: Any) -> Iterator[RecordedAnswer]:
    """Yield the recorded answers of one dataset row; none for a shape without answers."""
    common = (row.row_id, row.group, row.prompt, row.tools)
    from_app = row.origin != "correction"
    if isinstance(row, PairRow):
        yield RecordedAnswer(
            *common,
            row.chosen,
            True,
            pair=row.row_id,
            finish_reason=row.chosen_finish,
            liked=from_app,
        )
        yield RecordedAnswer(
            *common, row.rejected, False, pair=row.row_id, finish_reason=row.rejected_finish
        )
    elif isinstance(row, LabelRow):
        yield RecordedAnswer(
            *common,
            row.completion,
            row.label,
            label=True,
            finish_reason=row.finish_reason,
            liked=from_app and row.label,
        )
    elif isinstance(row, ChatRow):
        yield RecordedAnswer(
            *common, row.completion, True, finish_reason=row.finish_reason, liked=from_app
        )


def _prompt_keys(
    ws: Workspace, trained_on: Iterable[Dataset], splits: Sequence[str]
) -> dict[bytes, str]:
    """Return prompt key -> the first of `splits` that has the prompt."""
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
    """Yield rows whose prompt is not in `seen`; the others are counted in `dropped`."""
    for row in rows:
        if not row.prompt:
            dropped["the prompt cannot be read back: a message is missing"] += 1
        elif (split := seen.get(prompt_key(row.prompt))) is not None:
            dropped[SEEN_IN[split]] += 1
        else:
            yield row
