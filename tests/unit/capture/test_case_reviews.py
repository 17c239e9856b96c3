"""Cases that are edited, vouched for, and not any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.worlds.gateway_world import opened_home
from thumbwheel.capture.cases import (
    add_case,
    draw_drafts,
    edit_case,
    find_case,
    list_cases,
    store_drafts,
    vouch_for,
    withdraw_reviews,
)
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.errors import DataError, InputError, NotFound
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


def rated(
    ws: Workspace, name: str, question: str, answer: str, *feedback: tuple[str, object]
) -> None:
    rows: list[dict[str, object]] = [
        {"type": "trace", "id": name, "input": question, "output": answer}
    ]
    for kind, value in feedback:
        target = {"target": {"trace": name}, "rater": kind}
        rows.append({"type": "feedback", "kind": kind, "value": value, **target})
    file = ws.home.path / "rated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = ingest(ws, AGENT.slug, "jsonl", file)
    assert report.refused == 0


def drawn(ws: Workspace, count: int) -> dict[str, str]:
    """Question -> right answer of the drafts."""
    drafts = draw_drafts(ws, AGENT, count)
    assert len(drafts) == count
    return {draft.input[-1]["content"]: draft.reference for draft in drafts}


def test_cases_are_drawn_of_liked_and_corrected_answers_only(ws: Workspace) -> None:
    rated(ws, "t1", "Liked?", "yes", ("thumb", True))
    rated(ws, "t2", "Corrected?", "yes", ("thumb", False), ("correction", "no"))
    rated(ws, "t3", "Disliked?", "yes", ("thumb", False))
    rated(ws, "t4", "Disputed?", "yes", ("thumb", True), ("rating", 1))
    rated(ws, "t5", "Unrated?", "yes")
    # Asked twice, and the correction is the better word about it.
    rated(ws, "t6", "Twice?", "yes", ("thumb", True))
    rated(ws, "t7", "Twice?", "yes", ("correction", "no"))
    assert drawn(ws, 3) == {"Liked?": "yes", "Corrected?": "no", "Twice?": "no"}
    assert draw_drafts(ws, AGENT, 2) == draw_drafts(ws, AGENT, 3)[:2]
    with pytest.raises(DataError, match="only 3 more questions"):
        draw_drafts(ws, AGENT, 4)


def test_what_is_gold_is_not_drawn_again(ws: Workspace) -> None:
    for number in range(5):
        rated(ws, f"t{number}", f"Is {number} even?", "yes", ("thumb", True))
    first = draw_drafts(ws, AGENT, 3)
    case_ids = store_drafts(ws, AGENT, first, "ann")
    assert {find_case(ws, AGENT, case_id).reviewer for case_id in case_ids} == {"ann"}
    second = draw_drafts(ws, AGENT, 2)
    assert not {draft.trace for draft in first} & {draft.trace for draft in second}
    with pytest.raises(DataError, match="only 2 more questions"):
        draw_drafts(ws, AGENT, 3)
    withdraw_reviews(ws, AGENT, case_ids)
    assert len(draw_drafts(ws, AGENT, 5)) == 5


def test_traces_are_named_or_drawn(command_line: Run, tmp_path: Path) -> None:
    lines = [
        f'{{"type": "trace", "id": "t{number}", "input": "Is {number} even?", "output": "yes"}}\n'
        f'{{"type": "feedback", "target": {{"trace": "t{number}"}}, "kind": "thumb", '
        f'"value": true}}\n'
        for number in range(3)
    ]
    (tmp_path / "rated.jsonl").write_text("".join(lines))
    assert command_line("import", "jsonl", "rated.jsonl", "--agent", "desk")[0] == 0
    cases = ("case", "from-traces", "--agent", "desk")
    assert "no trace is named" in command_line(*cases)[2]
    assert "traces are named and --count" in command_line(*cases, "t1", "--count", "1")[2]
    out = command_line(*cases, "--count", "2", "--dry-run")[1]
    assert out.count("even?") == 2 and "nothing stored" in out
    assert "2 gold cases stored; you vouch" in command_line(*cases, "--count", "2")[2]
    assert "gold" not in command_line("case", "list", "--agent", "desk", "--basis", "feedback")[1]
    assert "only 1 more" in command_line(*cases, "--count", "2")[2]
