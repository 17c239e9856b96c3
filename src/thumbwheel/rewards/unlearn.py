"""Counting and deleting the scores that classifiers and reward models gave.

They cannot be corrected in part: when labels are erased, all of them go, and are made anew from
the remaining labels.
"""

from __future__ import annotations

import sqlalchemy as sa

from thumbwheel.rewards import store


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
