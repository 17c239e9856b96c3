"""Fitting a classifier of traces on people's labels, with a cross-validated report.

Labels are the verdicts of persons, resolved by the rule for raters that differ (`types.RULE`).
Verdicts of machines and suggestions that nobody accepted are no labels. Folds keep traces of one
prompt or one session together. Figures come from answers that neither the regression nor its
calibration had seen; their intervals resample those groups, and the baseline always says the more
frequent label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import documents
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.rewards import feedback_queries
from thumbwheel.rewards.cases import stored_cases
from thumbwheel.rewards.classifier import Array, Classifier, calibrate, calibrated, fit
from thumbwheel.rewards.features import READS, Features, features
from thumbwheel.stats.paired import bootstrap, compare
from thumbwheel.stats.rates import ranking_area

if TYPE_CHECKING:
    from thumbwheel.engine.embed import Embedder
from thumbwheel.rewards.person_labels import group_of, person_labels

KIND = "classifier"
ROUNDS = 500


@dataclass(frozen=True)
class Labelled:
    """Traces that people judged: features, labels (1 good, 0 bad) and groups, in the order of the
    trace ids."""

    traces: Sequence[str]
    rows: Sequence[Features]
    good: Array
    groups: Sequence[str]

    def about(self) -> dict[str, Any]:
        """Return the fields that identify these labels in a classifier."""
        return {
            "fingerprint": ids.fingerprint(list(zip(self.traces, self.good.tolist(), strict=True))),
            "rule": "persons only",
        }


def learn(ws: Workspace, agent: str, config: LearnConfig) -> tuple[str, Classifier]:
    """Fit a classifier on all labels of persons in force and store it; return (hash, classifier).
    Raises DataError if there are too few."""
    return learn_with(ws, agent, config, embedder_of(config))


def learn_with(
    ws: Workspace, agent: str, config: LearnConfig, embedder: Embedder | None
) -> tuple[str, Classifier]:
    """Do the same as `learn` with the model that `config` names, already loaded."""
    learner = require_agent(ws, agent)
    with ws.db.read() as connection:
        labels = labelled(connection, learner, embedder)
    check_enough(agent, labels, config)
    classifier = fitted(
        labels,
        config,
        {"agent": agent} | ({} if embedder is None else {"embeddings": embedder.about()}),
    )
    return documents.save(ws, KIND, classifier.document()), classifier


def embedder_of(config: LearnConfig) -> Embedder | None:
    """Load the model that `config` names; return None if it names none. Raises ModelError if it
    cannot be loaded, MissingExtra without torch."""
    if config.embeddings is None:
        return None
    from thumbwheel.engine.embed import Embedder

    return Embedder(config.embeddings)


def labelled(connection: sa.Connection, agent: Agent, embedder: Embedder | None = None) -> Labelled:
    """Return every answered trace that persons called good or bad."""
    labels = person_labels(connection, agent)
    rows: dict[str, Features] = {}
    for batch in stored_cases(connection, agent, READS):
        for stored in batch:
            if stored.answered and stored.case.target_id in labels:
                rows[str(stored.case.target_id)] = features(stored.case, embedder)
    names = sorted(rows)
    groups = group_of(feedback_queries.groups(connection, agent.id, names))
    return Labelled(
        names,
        [rows[name] for name in names],
        np.array([float(labels[name]) for name in names]),
        [groups[name] for name in names],
    )


def check_enough(agent: str, labelled_traces: Labelled, config: LearnConfig) -> None:
    """Raise DataError if the labels are too few for a classifier, naming what is missing."""
    good = int(labelled_traces.good.sum())
    bad, groups = len(labelled_traces.good) - good, len(set(labelled_traces.groups))
    missing = [(config.least_good - good, "good"), (config.least_bad - bad, "bad")]
    lacking = [
        f"{count} more traces that people called {what}" for count, what in missing if count > 0
    ]
    lacking += (
        [f"{config.folds - groups} more prompts or sessions"] if groups < config.folds else []
    )
    parts = folds(labelled_traces.groups, config.folds)
    if not lacking and any(
        len(set(labelled_traces.good[parts != fold])) < 2 for fold in range(config.folds)
    ):
        lacking = ["good and bad traces of more different prompts or sessions"]
    if lacking:
        have = f"there are {good} good and {bad} bad ones of {groups} prompts or sessions"
        fix = (
            f"Needed: {', '.join(lacking)}. Give thumbs: thumbwheel feedback add TRACE --agent "
            f"{agent} --thumb up"
        )
        raise DataError(f"labels of {agent!r}", f"they are too few to learn from: {have}", fix)


def folds(groups: Sequence[str], count: int) -> NDArray[np.intp]:
    """Return the fold of each row, [n]: groups in the order of a hash, dealt out in turn."""
    order = sorted(set(groups), key=lambda name: sha256(f"label folds:{name}".encode()).digest())
    fold_of = {name: index % count for index, name in enumerate(order)}
    return np.array([fold_of[name] for name in groups])


def fitted(labels: Labelled, config: LearnConfig, about: Mapping[str, Any]) -> Classifier:
    """Fit the classifier to all labels, and calibrate and report it by cross-validation."""
    parts = folds(labels.groups, config.folds)
    margins = np.zeros(len(parts))
    for fold in range(config.folds):
        seen = [row for row, part in zip(labels.rows, parts, strict=True) if part != fold]
        held = [row for row, part in zip(labels.rows, parts, strict=True) if part == fold]
        margins[parts == fold] = fit(seen, labels.good[parts != fold], config.strength).margins(
            held
        )
    chances = np.zeros(len(parts))
    for fold in range(config.folds):
        seen_margins = calibrate(margins[parts != fold], labels.good[parts != fold])
        chances[parts == fold] = calibrated(margins[parts == fold], seen_margins)
    whole = fit(labels.rows, labels.good, config.strength)
    report = figures(chances, labels, parts)
    facts = {
        **about,
        "settings": config.model_dump(mode="json"),
        "labels": labels.about(),
        "report": report,
    }
    return Classifier(whole, calibrate(margins, labels.good), facts)


def figures(chances: Array, labels: Labelled, parts: NDArray[np.intp]) -> dict[str, Any]:
    """Return accuracy, area under the ROC curve and Brier score of the cross-validation, each with
    its interval, and the accuracy of always predicting the more frequent label of the fitting
    folds."""
    good, groups = labels.good, list(labels.groups)
    usual = np.array([float(good[parts != part].mean() >= 0.5) for part in parts])
    right, base = (
        (guess == good).astype(float) for guess in ((chances >= 0.5).astype(float), usual)
    )
    gain = compare(base.tolist(), right.tolist(), groups)
    squares = (chances - good) ** 2
    return {
        "labels": len(good),
        "good": int(good.sum()),
        "bad": int(len(good) - good.sum()),
        "groups": len(set(groups)),
        "accuracy": _figure(
            float(right.mean()), lambda indices: float(right[indices].mean()), groups
        ),
        "majority": float(base.mean()),
        "gain": {"value": gain.gain, "low": gain.low, "high": gain.high},
        "auc": _figure(
            ranking_area(chances.tolist(), good.astype(bool).tolist()),
            lambda indices: ranking_area(
                chances[indices].tolist(), good[indices].astype(bool).tolist()
            ),
            groups,
        ),
        "brier": _figure(
            float(squares.mean()), lambda indices: float(squares[indices].mean()), groups
        ),
        "brier_majority": float(((good.mean() - good) ** 2).mean()),
    }


def _figure(value: float | None, statistic: Any, groups: Sequence[str]) -> dict[str, float | None]:
    if len(set(groups)) < 2:
        return {"value": value, "low": None, "high": None}
    interval = bootstrap(statistic, len(groups), groups, rounds=ROUNDS)
    return {"value": value, "low": interval.low, "high": interval.high}


def unlabelled(
    connection: sa.Connection,
    agent: Agent,
    labels: Collection[str],
    decided: Collection[str],
    most: int,
    embedder: Embedder | None = None,
) -> tuple[list[str], list[Features], int]:
    """Return (traces, their features, the number of all answered traces without a label). The
    traces are neither among `labels` nor among `decided`. If the agent has more than `most`
    traces, they are a sample by a hash of the id, so that it stays the same."""
    total = feedback_queries.trace_count(connection, agent.id, None)
    share = most / total if total > most else 1.0
    names: list[str] = []
    rows: list[Features] = []
    count = 0
    for batch in stored_cases(connection, agent, READS):
        for stored in batch:
            name = str(stored.case.target_id)
            if not stored.answered or name in labels:
                continue
            count += 1
            if name not in decided and is_drawn(name, share):
                names.append(name)
                rows.append(features(stored.case, embedder))
    return names, rows, count


def is_drawn(trace_id: str, share: float) -> bool:
    """Return whether a trace belongs to the sample."""
    return int.from_bytes(sha256(trace_id.encode()).digest()[:4]) < share * 2**32
