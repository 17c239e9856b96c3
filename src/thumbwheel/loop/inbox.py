"""The inbox of a loop: steps of a turn that wait for a person.

A turn asks once for each version and step. What an approval does is in `approval.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from thumbwheel.core import ids
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.files import unwritable
from thumbwheel.core.locks import try_lock
from thumbwheel.core.plugins import nearest
from thumbwheel.db import session_lock
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.loop import turn_store
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.trigger_types import Pending, TurnState, Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, ModelVersion

if TYPE_CHECKING:
    import sqlalchemy as sa

KEPT_SETTINGS = (
    "export",
    "export_to",
    "quant",
    "deploy",
    "auto_promote",
    "experiment",
    "experiment_days",
)
"""Settings of the turn that a later answer needs."""

ANSWERING = "answering"
"""Folder beside the turns of an agent with a file for each decision; whoever answers locks it."""

EVIDENCE = {
    Basis.GOLD: "approved on cases that you reviewed",
    Basis.TRAFFIC: "won an experiment, and was approved on no gold cases",
    Basis.FEEDBACK: "approved on held-out feedback alone",
}
"""Basis -> what speaks for a version that a person is asked about."""


def ask(
    ws: Workspace,
    version: ModelVersion,
    wish: Wish,
    config: CycleConfig,
    cycle: CycleReport,
    clock: Clock = utc_now,
) -> str:
    """Store a question for a person, once per version and kind; return the question."""
    agent = Agent.named(version.agent)
    version = versions.by_id(ws, version.id)  # the gate may have decided since it was looked up
    settings = config.model_dump(mode="json", include=set(KEPT_SETTINGS))
    evidence: dict[str, Any] = {
        "settings": settings,
        "verdict": cycle.verdict,
        "reasons": [*cycle.reasons[:1], *cycle.changed_answers],
    }
    if cycle.evaluation is not None:
        evidence["evaluation"] = cycle.evaluation.id
        evidence["gain"] = cycle.evaluation.primary.model_dump(mode="json")
    pending_id = ids.derived("dec", version.id, wish)
    now = clock()

    def record(connection: sa.Connection) -> str:
        for earlier in turn_store.pendings(connection, agent.id, name=pending_id):
            return earlier.question
        cycle_id = None
        for turn in turn_store.turns(connection, agent.id, 1):
            if turn.state is TurnState.RUNNING:
                cycle_id = turn.id
        pending = Pending(
            pending_id,
            cycle_id,
            wish,
            version.id,
            version.name,
            question_of(version, wish, config, len(cycle.changed_answers)),
            evidence,
            WishState.WAITING,
            None,
            None,
            now,
            None,
        )
        turn_store.add_pending(connection, agent.id, pending)
        return pending.question

    return ws.db.write(record, of_agent(agent.id))


def question_of(
    version: ModelVersion, wish: Wish, config: CycleConfig, changed_answers: int = 0
) -> str:
    """Return the question to a person. `changed_answers`: number of canary prompts that the version
    answers differently."""
    if wish is Wish.EXPORT:
        return f"export {version.name} as {', '.join(config.export)}?"
    if wish is Wish.DEPLOY and changed_answers:
        return (
            f"deploy {version.name} on {config.deploy}, though it answers {changed_answers} of "
            f"{len(config.canary_prompts)} canary prompts otherwise?"
        )
    if wish is Wish.DEPLOY:
        return f"deploy {version.name} on {config.deploy}?"
    approved = f" (basis {version.basis}: {EVIDENCE[version.basis]})" if version.basis else ""
    return f"make {version.name} live{approved}?"


def decisions(ws: Workspace, agent: Agent, every: bool = False) -> list[Pending]:
    """Return the decisions that wait for a person, oldest first; with `every` also the answered
    ones."""
    with ws.db.read() as connection:
        state = None if every else WishState.WAITING
        return turn_store.pendings(connection, agent.id, state=state)


def refuse(
    ws: Workspace,
    agent: Agent,
    name: str,
    by: str,
    reason: str | None = None,
    clock: Clock = utc_now,
) -> Pending:
    """Refuse a decision, and return it. Raises NotFound, and Conflict for a decision that was
    answered already."""
    with held_decision(ws, agent, name) as pending:
        answer(ws, pending, WishState.REFUSED, by, reason, clock)
    return replace(pending, state=WishState.REFUSED, answered_by=by, reason=reason)


@contextmanager
def held_decision(ws: Workspace, agent: Agent, name: str) -> Iterator[Pending]:
    """Yield the waiting decision and let nobody else answer it meanwhile, because the step of an
    approval takes minutes. Raises as `waiting_decision`, and Conflict if somebody answers it
    now."""
    pending = waiting_decision(ws, agent, name)
    with _answering(ws, agent, pending) as is_held:
        if not is_held:
            raise Conflict(
                f"decision {pending.id!r}",
                "somebody else answers it at this moment",
                f"Wait for that answer: thumbwheel loop decisions --agent {agent.slug} --all",
            )
        yield waiting_decision(ws, agent, pending.id)


@contextmanager
def _answering(ws: Workspace, agent: Agent, pending: Pending) -> Iterator[bool]:
    """Lock a decision; yield False if another process has it."""
    if session_lock.is_of_many_hosts(ws):
        with session_lock.held(ws, f"decision {pending.id}", wait=False) as held:
            yield held is not None
        return
    folder = ws.home.cycles / agent.slug / ANSWERING
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = try_lock(folder / pending.id)
    except OSError as error:
        raise unwritable(f"folder {str(folder)!r}", error) from error
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def waiting_decision(ws: Workspace, agent: Agent, name: str) -> Pending:
    """Return the waiting decision whose id is, or begins with, `name`. Raises NotFound, InputError
    if several match, and Conflict if it was answered."""
    with ws.db.read() as connection:
        matches = turn_store.pendings(connection, agent.id, name=name)
        waiting = turn_store.pendings(connection, agent.id, state=WishState.WAITING)
    if not matches:
        names = [pending.id for pending in waiting]
        fix = f"Waiting: {', '.join(names) or 'none'}.{nearest(name, names)}"
        raise NotFound(f"decision {name!r} of agent {agent.slug!r}", "there is none", fix)
    if len(matches) > 1:
        raise InputError(
            f"decision {name!r}", "it matches several", "Give more characters of the id"
        )
    (pending,) = matches
    if pending.state is not WishState.WAITING:
        raise Conflict(
            f"decision {pending.id!r}",
            f"it is {pending.state}"
            + (f" by {pending.answered_by}" if pending.answered_by else ""),
            f"See: thumbwheel loop decisions --agent {agent.slug} --all",
        )
    return pending


def answer(
    ws: Workspace,
    pending: Pending,
    state: WishState,
    by: str | None,
    reason: str | None,
    clock: Clock,
) -> None:
    """Store the answer to a decision. Raises Conflict if it does not wait any more."""
    now = clock()
    count = ws.db.write(
        lambda connection: turn_store.answer_pending(
            connection, [pending.id], state, by, reason, now
        )
    )
    if count == 0:
        raise Conflict(
            f"decision {pending.id!r}",
            "somebody else answered it in the same moment",
            "See who did, and how: thumbwheel loop decisions --all",
        )
