"""Cases that are edited, vouched for, and not any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.gateway_world import opened_home
from thumbwheel.capture.cases import (
    add_case,
    edit_case,
    find_case,
    list_cases,
    vouch_for,
    withdraw_reviews,
)
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent

AGENT = Agent.named("desk")


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with opened_home(tmp_path / "home") as ws:
        ensure_agent(ws, AGENT.slug)
        ensure_agent(ws, "other")
        yield ws


def added(ws: Workspace, question: str, reference: object = "4") -> str:
    fields = {"input": question, "reference": reference, "checker": "exact_answer", "group": "sums"}
    return add_case(ws, AGENT.slug, "ann", **fields)


def test_an_edit_keeps_what_it_does_not_name(ws: Workspace) -> None:
    case_id = added(ws, "2 + 3?")
    edit_case(ws, AGENT, case_id, "ben", reference="5")
    case = find_case(ws, AGENT, case_id)
    assert (case.reference, case.checker, case.group) == ("5", "exact_answer", "sums")
    assert (case.basis, case.reviewer) == ("gold", "ben")
    assert case.input == [{"role": "user", "content": "2 + 3?"}]
    assert list_cases(ws, AGENT.slug)[0] == {"gold": 1}
    # The case of before is another one: it contradicts the row of the same name.
    with pytest.raises(InputError):
        added(ws, "2 + 3?")


def test_a_reference_that_was_json_stays_json(ws: Workspace) -> None:
    case_id = added(ws, "Where is it?", {"city": "Ulm"})
    edit_case(ws, AGENT, case_id, "ann", reference='{"city": "Bonn"}')
    assert find_case(ws, AGENT, case_id).reference == {"city": "Bonn"}
    with pytest.raises(InputError) as refusal:
        edit_case(ws, AGENT, case_id, "ann", reference="Bonn")
    assert refusal.value.field == "reference"
    assert find_case(ws, AGENT, case_id).reference == {"city": "Bonn"}


def test_many_are_vouched_for_or_none(ws: Workspace) -> None:
    case_ids = [added(ws, f"{number} + 1?") for number in range(3)]
    withdraw_reviews(ws, AGENT, case_ids)
    assert list_cases(ws, AGENT.slug)[0] == {"feedback": 3}
    with pytest.raises(NotFound):
        vouch_for(ws, AGENT, [*case_ids, "cas_nothing"], "ben")
    assert list_cases(ws, AGENT.slug)[0] == {"feedback": 3}
    vouch_for(ws, AGENT, case_ids, "ben")
    assert {find_case(ws, AGENT, case_id).reviewer for case_id in case_ids} == {"ben"}


def test_nobody_edits_the_case_of_another_agent(ws: Workspace) -> None:
    case_id = added(ws, "2 + 3?")
    with pytest.raises(NotFound):
        edit_case(ws, Agent.named("other"), case_id, "eve", reference="6")
    assert find_case(ws, AGENT, case_id).reference == "4"
