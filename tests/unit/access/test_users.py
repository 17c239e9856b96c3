"""Users: Argon2id, roles, and nothing that is left of somebody who was removed."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher

from thumbwheel.access import audit, keys, users
from thumbwheel.access.audit import Act
from thumbwheel.access.types import VERBS, Principal, grants_of
from thumbwheel.core.errors import Conflict, InputError, NotFound, Unauthenticated
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace

PASSWORD = "correct horse battery"


def stored_password(ws: Workspace) -> str:
    with ws.db.read() as connection:
        return str(connection.execute(sa.select(schema.users.c.password)).scalar_one())


def test_a_password_is_stored_as_argon2id_and_renewed(empty_ws: Workspace) -> None:
    users.add(empty_ws, "ann", password=PASSWORD)
    assert stored_password(empty_ws).startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert users.authenticate(empty_ws, "ann", PASSWORD).name == "ann"
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    change = sa.update(schema.users).values(password=weak)
    empty_ws.db.write(lambda connection: connection.execute(change))
    users.authenticate(empty_ws, "ann", PASSWORD)
    for path in empty_ws.home.path.rglob("*"):
        assert path.is_dir() or PASSWORD.encode() not in path.read_bytes(), path
    assert stored_password(empty_ws).startswith("$argon2id$v=19$m=65536,t=3,p=4$")


@pytest.mark.parametrize(
    ("name", "password"),
    [("ann", "wrong password"), ("bob", PASSWORD), ("ann", ""), ("provided", PASSWORD)],
)
def test_a_login_that_fails_does_not_say_why(empty_ws: Workspace, name: str, password: str) -> None:
    users.add(empty_ws, "ann", password=PASSWORD)
    users.add(empty_ws, "provided", password=None)
    with pytest.raises(Unauthenticated, match="the name or the password is wrong"):
        users.authenticate(empty_ws, name, password)


def test_roles_are_by_agent(empty_ws: Workspace) -> None:
    users.add(empty_ws, "ann", password=None, role="rater", agent="Support Desk")
    user = users.set_role(empty_ws, "ann", "editor", agent="sales")
    assert user.roles == {"support-desk": "rater", "sales": "editor"}
    assert users.set_role(empty_ws, "ann", "none", agent="sales").roles == {"support-desk": "rater"}


def test_a_role_for_one_agent_opens_no_other() -> None:
    ann = Principal("usr_1", "ann", "user", grants_of({"support": ["read", "rate"]}))
    for agent, verb, allowed in (
        ("support", "rate", True),
        ("support", "edit", False),
        ("sales", "rate", False),
        (None, "rate", False),
    ):
        assert ann.may(verb, agent) is allowed, (agent, verb)
    everywhere = Principal("usr_2", "bo", "user", grants_of({"*": ["read"]}))
    assert everywhere.may("read", "sales") and everywhere.may("read", None)


def test_an_approver_decides_and_cannot_change_on_what(empty_ws: Workspace) -> None:
    lea = users.add(empty_ws, "lea", password=None, role="approver", agent="support")
    principal = Principal(lea.id, lea.name, "user", lea.grants)
    may = {verb for verb in VERBS if principal.may(verb, "support")}
    assert may == {"read", "rate", "decide"}
    assert not principal.may("decide", "sales")


def test_whoever_may_deploy_may_also_decide(empty_ws: Workspace) -> None:
    key = keys.add(empty_ws, "releases", agents=["support"], verbs=["deploy"]).key
    assert key.grants == {"support": frozenset({"deploy", "decide"})}
    assert keys.listed(empty_ws)[0].grants == key.grants


def test_what_cannot_be_asked_for(empty_ws: Workspace) -> None:
    for name in ("", " ann", "a\nb", "x" * 121):
        with pytest.raises(InputError, match="1 to 120 printable"):
            users.add(empty_ws, name, password=None)
    with pytest.raises(InputError, match="12 to 1024"):
        users.add(empty_ws, "ann", password="short")
    with pytest.raises(InputError, match="Did you mean 'rater'"):
        users.add(empty_ws, "ann", password=None, role="ratr")
    with pytest.raises(NotFound, match="no such user"):
        users.set_password(empty_ws, "ann", PASSWORD)
    users.add(empty_ws, "ann", password=None)
    with pytest.raises(Conflict, match="a user with that name exists"):
        users.add(empty_ws, "ann", password=None)


def test_nothing_names_somebody_who_was_removed(empty_ws: Workspace) -> None:
    name = "Annegret Planted"
    user = users.add(empty_ws, name, password=PASSWORD)
    audit.record(empty_ws, Act(user.id, "case.add", "support"))
    users.remove(empty_ws, name)
    with empty_ws.db.read() as connection:
        for table in schema.metadata.sorted_tables:
            for row in connection.execute(sa.select(table)):
                assert name not in str(row), table.name
    assert [entry.actor for entry in audit.entries(empty_ws)] == ["local", user.id, "local"]
    assert audit.verify(empty_ws).problem is None
