"""What the main task of each of the five systems takes, there and here: the table of
docs/40-migrating.md is counted from the snippets, and ours are run as they are typed."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from system_tasks import TASKS, SystemTask
from test_migrating import require_command, table
from tests.command_line import Run
from tests.models.tiny_models import tiny_base
from tests.servers.llama_tools import needs
from tests.servers.thumbwheel_server import running
from thumbwheel.core.config import Home


def test_the_table_is_counted_from_the_snippets() -> None:
    rows = [line.cells for line in table("What it takes") if line.cells[0] != "system"]
    expected = []
    for task in TASKS:
        commands = [len(typed.command_lines()) for typed in (task.original, task.here)]
        lines = [typed.script_lines() for typed in (task.original, task.here)]
        expected.append((str(task.system), task.task, *map(str, commands + lines)))
    assert rows == expected


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"system-{task.system}")
def test_no_task_takes_more_than_it_took(task: SystemTask) -> None:
    assert len(task.here.command_lines()) <= len(task.original.command_lines())
    assert task.here.script_lines() <= task.original.script_lines()
    for command in task.here.command_lines():
        require_command(shlex.split(command)[1:])


class FlowAgent:
    """Asked twenty-four questions twice; every second answer breaks the form."""

    def __init__(self) -> None:
        self.runs = 0

    async def a_run(self, query: str, session_id: str = "default") -> str:
        self.runs += 1
        await self.arun_function("search", query)
        return f"It is {len(query)}." if self.runs % 2 else f"It is <b>{len(query)}</b>."

    async def arun_function(self, function_name: str, *args: Any) -> str:
        return "nothing" if self.runs % 2 else "found"

    def ask_all(self) -> None:
        for number in range(24):
            for _ in range(2):
                asyncio.run(self.a_run(f"Where is {'abcdefgh'[number % 8] * (number + 1)}?"))


def write_decisions(folder: Path) -> None:
    """Write decisions that a person corrected, to learn from and to test with."""
    action = {"swimlane": "HOME", "priority": "LOW", "labels": [], "confidence": 0.8}
    for name, numbers in (("filer", range(60)), ("test", range(60, 66))):
        rows = []
        for number in numbers:
            row = {
                "id": f"d{number}",
                "agentType": "FILER",
                "state": {"item": {"id": f"i{number}", "title": f"Mail {number}"}},
                "action": action,
                "userId": "ann",
                "userFeedback": "CORRECTED",
                "userCorrection": {"swimlane": "PROJECT"},
            }
            rows.append(json.dumps(row))
        (folder / f"{name}.jsonl").write_text("\n".join(rows))


def write_widgets(folder: Path) -> None:
    """Write forty questions with a liked and a disliked widget each."""
    entries = []
    ratings = {}
    for number in range(40):
        for scenario, rating in (("kpi", "up"), ("trend", "down")):
            entry = {
                "entry_id": f"{scenario}{number}",
                "question_id": f"q{number}",
                "question": f"How is pump {number}?",
                "scenario": scenario,
                "fixture": "dial",
                "size": "normal",
                "natural": True,
            }
            entries.append(entry)
            ratings[f"{scenario}{number}"] = {"rating": rating}
    data = {"run_id": "r1", "entries": entries}
    (folder / "exhaustive_data.json").write_text(json.dumps(data))
    (folder / "ratings.json").write_text(json.dumps({"ratings": ratings}))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Where the snippets have their base and data, in a fresh folder with a fresh home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    return {"base": tiny_base(tmp_path / "base"), "folder": "data", "url": ""}


def run_script(task: SystemTask, places: dict[str, Any], **names: Any) -> dict[str, Any]:
    exec(task.here.script.format(**places), names)
    return names


def run_commands(
    task: SystemTask, places: dict[str, Any], command_line: Run, rejected: Callable[[str], bool]
) -> None:
    """Run the commands; the gate may reject what `rejected` is true of."""
    for command in task.here.command_lines():
        code, out, err = command_line(*shlex.split(command.format(**places))[1:])
        assert code == 0 or (code == 1 and rejected(command)), (command, out, err)


@pytest.mark.slow
def test_system_0(places: dict[str, Any]) -> None:
    agent = FlowAgent()
    record, train = TASKS[0].here.script.split("from thumbwheel.compat.isaa import TrainingP")
    names: dict[str, Any] = {"agent": agent}
    exec(record, names)
    agent.ask_all()
    exec(f"from thumbwheel.compat.isaa import TrainingP{train}".format(**places), names)
    results = names["results"]
    assert results["success"], results.get("error")
    assert Path(results["model_path"], "model.safetensors").is_file()


@pytest.mark.slow
def test_system_1(places: dict[str, Any], tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    environment = {
        "THUMBWHEEL_SERVER__DIALECTS": "[n3]",
        "THUMBWHEEL_LOOP__BASE": str(places["base"]),
    }
    with running(home.path, environment, workers=1) as server:
        assert server.health()["status"]
        key = {"authorization": f"Bearer {home.access_token.read_text().strip()}"}
        with httpx2.Client(headers=key, timeout=1500) as requests:
            names = run_script(TASKS[1], places | {"url": server.url}, requests=requests)
    assert names["estimate"]["feedbackCount"] == 15
    assert names["result"]["status"] == "trained", names["result"]
    assert [policy["version"] for policy in names["policies"]] == ["v1"]


@pytest.mark.slow
def test_system_2(places: dict[str, Any], tmp_path: Path, command_line: Run) -> None:
    write_decisions(tmp_path / "data")
    run_commands(TASKS[2], places, command_line, lambda command: " evaluate " in command)
    assert json.loads((tmp_path / "evaluation-results.json").read_text())
    assert (tmp_path / "models/exported/model.safetensors").is_file()


@pytest.mark.slow
def test_system_3(places: dict[str, Any], tmp_path: Path) -> None:
    names = run_script(TASKS[3], places, asyncio=asyncio)
    assert (tmp_path / "models/reward_model/reward.json").is_file()
    assert names["ppo"].version is not None or names["ppo"].model_path is None
    assert names["results"]["rating"]["control"]["n"] in (0, 1)


@pytest.mark.slow
def test_system_4(places: dict[str, Any], tmp_path: Path, command_line: Run) -> None:
    needs("converter", "library", "bindings")
    write_widgets(tmp_path / "data")
    run_commands(TASKS[4], places, command_line, lambda command: " train " in command)
    assert json.loads((tmp_path / "results.json").read_text())
