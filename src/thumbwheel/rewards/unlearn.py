"""Finding and deleting what was fitted on people's labels besides model versions: classifiers,
statements of how far judges agree with people, and what users' next messages are worth.

They cannot be corrected in part. When labels are erased, whole documents are deleted together with
the scores of the classifiers, and made anew from the remaining labels. `loop` decides when. To add
a kind of document, add it to KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from thumbwheel.db.workspace import Workspace
from thumbwheel.models.documents import documents
from thumbwheel.rewards import agreement, learn, next_turn, store

KINDS: Mapping[str, str] = {
    "classifiers": learn.KIND,
    "judge_agreements": agreement.KIND,
    "calibrations": next_turn.KIND,
}
"""What they are called -> kind of document."""


def fitted_documents(ws: Workspace, agent: str) -> dict[str, set[str]]:
    """Return name of KINDS -> hashes of the agent's documents. Raises StorageError for a damaged
    one."""
    hashes: dict[str, set[str]] = {}
    for name, kind in KINDS.items():
        hashes[name] = {document.sha256 for document in documents(ws, kind, agent)}
    return hashes


def count_classifier_output(connection: sa.Connection, agent_id: str) -> int:
    """Count the ledger rows and undecided suggestions of the agent that come from a classifier,
    stored here or in a file elsewhere."""
    return store.learned(connection, agent_id)


def classifier_has_part(connection: sa.Connection, agent_id: str) -> bool:
    """Return whether any reward of the agent comes from a classifier."""
    return store.judged_by_classifier(connection, agent_id)


def reward_model_has_part(connection: sa.Connection, agent_id: str) -> bool:
    """Return whether any reward of the agent comes from a reward model."""
    return store.judged_by_model(connection, agent_id)


def delete_reward_model_scores(connection: sa.Connection, agent_id: str) -> None:
    """Delete the scores that reward models gave; the ledger's next run asks again."""
    store.forget_modelled(connection, agent_id)


def delete_classifier_output(connection: sa.Connection, agent_id: str) -> None:
    """Delete everything that `count_classifier_output` counts."""
    store.forget_learned(connection, agent_id)
