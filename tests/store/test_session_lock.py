"""One process of all hosts of a home switches an alias, or answers a decision, for minutes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres_server import Databases
from tests.store.test_cluster import opened, variables
from tests.waiting import until
from thumbwheel.core.config import Home
from thumbwheel.core.errors import Conflict
from thumbwheel.db import cluster, session_lock
from thumbwheel.db.leadership import holder_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS, lock_number
from thumbwheel.deploy.switch import promote, switch_lock
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import ask, decisions, held_decision, refuse
from thumbwheel.loop.trigger_types import Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent

pytestmark = pytest.mark.postgresql
AGENT = Agent.named("support")
NAME = "switch of 'support'"


@pytest.fixture
def hosts(tmp_path: Path, databases: Databases) -> Iterator[tuple[Workspace, Workspace]]:
    """Two hosts of one home."""
    url = databases.migrated()
    opened(tmp_path / "first", url, None).__exit__(None, None, None)
    cluster.initialise(Home.at(tmp_path / "first"), variables(url))
    cluster.join(Home.at(tmp_path / "second"), variables(url))
    with opened(tmp_path / "first", url) as first, opened(tmp_path / "second", url) as second:
        yield first, second
    databases.drop(url)


def is_free(ws: Workspace, name: str = NAME) -> bool:
    with session_lock.held(ws, name, wait=False) as held:
        return held is not None


def test_one_host_at_a_time_switches_the_aliases_of_an_agent(
    hosts: tuple[Workspace, Workspace],
) -> None:
    first, second = hosts
    entered: list[str] = []

    def enter() -> None:
        with switch_lock(second, AGENT):
            entered.append("second")

    with switch_lock(first, AGENT):
        assert not is_free(second)
        assert is_free(second, "switch of 'other'")
        thread = threading.Thread(target=enter)
        thread.start()
        entered.append("first")
    thread.join(60)
    assert entered == ["first", "second"] and is_free(first)


def test_a_promotion_waits_for_the_switch_of_another_host(
    hosts: tuple[Workspace, Workspace],
) -> None:
    first, second = hosts
    base = versions.ensure_base(first, AGENT.slug, "some/base", "0" * 64)
    refusals: list[Conflict] = []

    def try_to_promote() -> None:
        with pytest.raises(Conflict, match="it is not deployed") as refusal:
            promote(second, base)
        refusals.append(refusal.value)

    thread = threading.Thread(target=try_to_promote)
    with switch_lock(first, AGENT):
        thread.start()
        until(lambda: waits_for_lock(first))
        assert not refusals
    thread.join(60)
    assert refusals


def waits_for_lock(ws: Workspace) -> bool:
    """Whether a session asks for the lock that another one has."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        f"AND query LIKE 'SELECT pg_try_advisory_lock({lock_number(NAME)})%%' AND pid <> "
    )
    with ws.db.read() as connection:
        query += str(holder_of(connection, lock_number(NAME)))
        return bool(connection.exec_driver_sql(query).scalar_one())


def test_a_host_whose_session_was_lost_writes_nothing_more(
    hosts: tuple[Workspace, Workspace],
) -> None:
    first, second = hosts
    with switch_lock(first, AGENT) as held:
        held.db.write(lambda connection: None, ROWS)
        with second.db.read() as connection:
            pid = holder_of(connection, lock_number(NAME))
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
        until(lambda: is_free(second))
        with pytest.raises(Conflict, match="was cut off from the database"):
            held.db.write(lambda connection: None, ROWS)
    assert is_free(first)


def test_one_host_at_a_time_answers_a_decision(hosts: tuple[Workspace, Workspace]) -> None:
    first, second = hosts
    base = versions.ensure_base(first, AGENT.slug, "some/base", "0" * 64)
    cycle = CycleReport(AGENT.slug, version=base.name, verdict=GateVerdict.APPROVED)
    ask(first, base, Wish.EXPORT, CycleConfig(export=("merged",)), cycle)
    (pending,) = decisions(second, AGENT)
    with (
        held_decision(first, AGENT, pending.id),
        pytest.raises(Conflict, match="answers it at this moment"),
    ):
        refuse(second, AGENT, pending.id, "ben")
    assert refuse(second, AGENT, pending.id, "ben").state is WishState.REFUSED
