"""Suggested labels: a classifier fitted on people's labels proposes more, people decide, and only
their decisions are learned from.

The queue begins with the most uncertain trace. Each next one has the highest product of uncertainty
(1 - |2p - 1|) and distance to the nearest trace already in the queue. So near copies of one hard
case do not fill it.

A verdict is an ordinary thumb of its rater, with the suggestion's id in its metadata. What a person
saw before deciding matters: a review hides the suggestion unless asked not to, and suggestions that
were accepted unseen count nothing towards how often suggestions are right. Suggestions move open ->
confirmed or corrected (reviewed), accepted (unseen), skipped, or replaced by those of a later
classifier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

import numpy as np
import sqlalchemy as sa

from thumbwheel.capture.feedback import add_feedback
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS, of_agent
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.review import suggestion_store
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.learn import embedder_of, learn_with, unlabelled
from thumbwheel.review.types import (
    AgreementFigure,
    ClassifierReport,
    ConfidenceBand,
    LabelStatus,
    Suggested,
)
from thumbwheel.rewards.cases import stored_cases
from thumbwheel.rewards.classifier import Array, Classifier, design
from thumbwheel.rewards.features import Features
from thumbwheel.rewards.person_labels import person_labels
from thumbwheel.stats.agreement import kappa
from thumbwheel.stats.rates import wilson

POOL = 20
"""The queue is chosen from so many times its length of the most uncertain traces."""
MOST = 20_000
"""Unlabelled traces that are looked at; of more, a part that stays the same."""
REVIEWED = ("confirmed", "corrected")
BANDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Question:
    """A suggestion to be reviewed, with what it is about."""

    id: str
    trace_id: str
    good: bool
    confidence: float
    prompt: Sequence[Any]
    text: str


def suggest(ws: Workspace, agent: str, limit: int, config: LearnConfig) -> Suggested:
    """Fit a classifier on the labels in force, and store at most `limit` open suggestions of it;
    earlier open ones are replaced.

    Raises DataError if there are too few labels.
    """
    learner = require_agent(ws, agent)
    embedder = embedder_of(config)
    name, classifier = learn_with(ws, agent, config, embedder)
    with ws.db.read() as connection:
        suggestions = suggestion_store.suggested(connection, learner.id)
        decided = {
            suggestion["trace_id"]
            for suggestion in suggestions
            if suggestion["state"] not in ("open", "replaced") or suggestion["classifier"] == name
        }
        labels = person_labels(connection, learner)
        traces, rows, without_label = unlabelled(
            connection, learner, labels, decided, MOST, embedder
        )
    of_classifier = [suggestion for suggestion in suggestions if suggestion["classifier"] == name]
    free = max(0, limit - sum(suggestion["state"] == "open" for suggestion in of_classifier))
    chances = classifier.chances(rows)
    start = max((suggestion["rank"] for suggestion in of_classifier), default=-1) + 1
    fresh = [
        _row(learner.id, name, traces[index], float(chances[index]), start + rank)
        for rank, index in enumerate(order(classifier, rows, chances, free))
    ]
    ws.db.write(
        lambda connection: suggestion_store.suggest(connection, learner.id, name, fresh),
        of_agent(learner.id),
    )
    fit: ClassifierReport = classifier.about["report"]
    return Suggested(name, fit, len(fresh), without_label, len(traces))


def _row(agent_id: str, classifier: str, trace_id: str, chance: float, rank: int) -> dict[str, Any]:
    values = {
        "value": chance >= 0.5,
        "confidence": max(chance, 1 - chance),
        "rank": rank,
        "state": "open",
    }
    named = {
        "id": ids.derived("sug", agent_id, classifier, trace_id),
        "agent_id": agent_id,
        "trace_id": trace_id,
    }
    return {**named, **values, "classifier": classifier, "recorded_at": datetime.now(UTC)}


def order(
    classifier: Classifier, rows: Sequence[Features], chances: Array, limit: int
) -> list[int]:
    """Return the positions of at most `limit` rows, by how informative a label of each would be."""
    doubt = 1 - np.abs(2 * chances - 1)
    pool = np.argsort(-doubt, kind="stable")[: POOL * limit]
    if not len(pool):
        return []
    regression = classifier.regression
    matrix = design([rows[row] for row in pool], regression.mean, regression.scale)
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
    matrix = matrix.multiply(1 / np.where(lengths > 0, lengths, 1.0)[:, None]).tocsr()
    nearest, chosen = np.full(len(pool), 2.0), list[int]()
    while len(chosen) < min(limit, len(pool)):
        worth = (doubt[pool] + 1e-9) * (nearest + 1e-9)
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        likeness = np.asarray((matrix @ matrix[[chosen[-1]]].T).todense()).ravel()
        nearest = np.minimum(nearest, np.sqrt(np.maximum(0.0, 2 - 2 * likeness)))
    return [int(pool[row]) for row in chosen]


def questions(ws: Workspace, agent: str) -> Iterator[Question]:
    """Yield the open suggestions in order, without those whose trace a person has judged by now."""
    learner = require_agent(ws, agent)
    for suggestion in _waiting(ws, learner):
        yield _question(ws, learner, suggestion)


def open_question(ws: Workspace, agent: str, name: str) -> Question:
    """Return the open suggestion whose id is or begins with `name`. Raises NotFound."""
    learner = require_agent(ws, agent)
    waiting = {suggestion["id"]: suggestion for suggestion in _waiting(ws, learner)}
    matches = [suggestion_id for suggestion_id in waiting if ids.stands_for(name, suggestion_id)]
    ids.require_single(name, matches)
    if not matches:
        raise NotFound(
            f"question {name[:100]!r}",
            "no suggestion of that id is open",
            f"See which are: thumbwheel label questions --agent {agent}",
        )
    return _question(ws, learner, waiting[matches[0]])


def _waiting(ws: Workspace, learner: Agent) -> list[dict[str, Any]]:
    """Return the open suggestions whose trace nobody has judged."""
    with ws.db.read() as connection:
        judged = person_labels(connection, learner)
        return [
            dict(suggestion)
            for suggestion in suggestion_store.suggested(connection, learner.id)
            if suggestion["state"] == "open" and suggestion["trace_id"] not in judged
        ]


def _question(ws: Workspace, learner: Agent, suggestion: Mapping[str, Any]) -> Question:
    trace_id = suggestion["trace_id"]
    with ws.db.read() as connection:
        batches = stored_cases(connection, learner, {"text", "prompt"}, trace_id=trace_id)
        case = next(batch[0].case for batch in batches)
    return Question(
        suggestion["id"],
        trace_id,
        suggestion["value"],
        suggestion["confidence"],
        case.prompt,
        case.text,
    )


def decide(
    ws: Workspace,
    agent: str,
    question: Question,
    good: bool | None,
    rater: str,
    how: str = "review",
) -> str:
    """Store a rater's verdict (None: skipped) and return the new state of the suggestion. `how` is
    review, shown or unseen."""
    if good is None:
        return _note(ws, question.id, "skipped", None)
    metadata = {"suggestion": question.id, "how": how}
    feedback_id = add_feedback(
        ws, agent, question.trace_id, "thumb", good, rater=rater, metadata=metadata
    )
    state = "confirmed" if good == question.good else "corrected"
    if how == "unseen":
        state = "accepted"
    return _note(ws, question.id, state, feedback_id)


def _note(ws: Workspace, suggestion_id: str, state: str, feedback_id: str | None) -> str:
    ws.db.write(
        lambda connection: suggestion_store.decide(
            connection, suggestion_id, state, feedback_id, datetime.now(UTC)
        ),
        ROWS,
    )
    return state


def accept(
    ws: Workspace, agent: str, rater: str, names: Collection[str], least: float | None
) -> list[str]:
    """Accept suggestions unchanged, in the name of `rater`: those of `names` (suggestions or
    traces), and all with a confidence of at least `least`; return their ids.

    Raises InputError if neither is given, NotFound for a name without an open suggestion.
    """
    if not names and least is None:
        raise InputError(
            "accept", "nothing says which suggestions", "Name some, or give --min-confidence 0.95"
        )
    waiting = list(questions(ws, agent))
    named: set[str] = set()
    for name in names:
        named.update(_suggestion_ids(agent, waiting, name))
    accepted: list[str] = []
    for question in waiting:
        confident = least is not None and question.confidence >= least
        if confident or question.id in named:
            decide(ws, agent, question, question.good, rater, "unseen")
            accepted.append(question.id)
    return accepted


def _suggestion_ids(agent: str, waiting: Sequence[Question], name: str) -> list[str]:
    """Return the ids of the open suggestions with this id, or about the trace with this id. Raises
    NotFound."""
    matches = [
        suggestion
        for suggestion in waiting
        if ids.stands_for(name, suggestion.id) or ids.stands_for(name, suggestion.trace_id)
    ]
    if not matches:
        fix = f"See: thumbwheel label review --agent {agent}"
        raise NotFound(f"suggestion {name!r}", "it is not open", fix)
    ids.require_single(name, sorted({suggestion.trace_id for suggestion in matches}))
    return [suggestion.id for suggestion in matches]


def status(ws: Workspace, agent: str) -> LabelStatus:
    """Return the number of suggestions in each state, and how often reviewers agreed with them, in
    total and by confidence."""
    learner = require_agent(ws, agent)
    with ws.db.read() as connection:
        suggestions = suggestion_store.suggested(connection, learner.id)
        labels = person_labels(connection, learner)
    states = {
        state: sum(suggestion["state"] == state for suggestion in suggestions)
        for state in ("open", *REVIEWED, "accepted", "skipped", "replaced")
    }
    reviewed = [suggestion for suggestion in suggestions if suggestion["state"] in REVIEWED]
    verdicts = [
        suggestion["value"] == (suggestion["state"] == "confirmed") for suggestion in reviewed
    ]
    overall = kappa([bool(suggestion["value"]) for suggestion in reviewed], verdicts)
    bands = [_band(low, high, reviewed) for low, high in pairwise(BANDS)]
    counts = {"good": sum(labels.values()), "bad": len(labels) - sum(labels.values())}
    return {
        "labels": {"good": counts["good"], "bad": counts["bad"]},
        "suggestions": states,
        "kappa": cast(AgreementFigure, overall.as_dict()),
        "bands": [band for band in bands if band["reviewed"]],
    }


def _band(low: float, high: float, reviewed: Sequence[sa.RowMapping]) -> ConfidenceBand:
    inside = [
        suggestion
        for suggestion in reviewed
        if low <= suggestion["confidence"] < high or (high == 1 == suggestion["confidence"])
    ]
    agreed = sum(suggestion["state"] == "confirmed" for suggestion in inside)
    interval = wilson(agreed, len(inside))
    share = agreed / len(inside) if inside else None
    return {
        "from": low,
        "to": high,
        "reviewed": len(inside),
        "agreed": agreed,
        "share": share,
        "low": interval.low,
        "high": interval.high,
    }
