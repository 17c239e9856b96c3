"""From a file that people have to rewards and datasets: real public files, and the counts that they
themselves give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from tests.public_data import public_data
from tests.required import missing
from thumbwheel.core.config import Home
from thumbwheel.core.written_calls import write_answer
from thumbwheel.datasets.build import load_rows
from thumbwheel.datasets.types import SPLITS
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources import SOURCES

TAU = "agent-trajectories/tau-bench-gpt4o-airline.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first_lines(name: str, count: int, folder: Path) -> Path:
    """The first lines of a public file."""
    copy = folder / Path(name).name
    copy.write_text("".join(public_data(name).read_text().splitlines(keepends=True)[:count]))
    return copy


def run_json(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def rows_of(home: Path, dataset: str) -> list[Any]:
    with Workspace.open(Home.at(home)) as ws:
        return [row for split in SPLITS for row in load_rows(ws, dataset, split)]


def is_cut_off(run: dict[str, Any]) -> bool:
    """Whether the run ends in a call that does not end a conversation."""
    replies = [message for message in run["traj"] if message["role"] == "assistant"]
    names = [call["function"]["name"] for call in replies[-1].get("tool_calls") or []]
    return bool(names) and names != ["transfer_to_human_agents"]


def test_tau_runs_become_rewards_and_groups_by_task(command_line: Run, tmp_path: Path) -> None:
    path = public_data(TAU)
    runs = lines(path)
    run_json(command_line, "import", "tau", str(path), "--agent", "tau")
    scored = run_json(command_line, "reward", "run", "--agent", "tau", "--component", "outcome")
    assert scored["components"]["outcome"]["judged"] == len(runs)
    listed = run_json(command_line, "reward", "list", "--agent", "tau")
    assert listed["components"]["outcome"]["statuses"] == {"ok": len(runs)}
    assert listed["components"]["outcome"]["mean"] == pytest.approx(
        sum(run["reward"] for run in runs) / len(runs)
    )

    plan = run_json(command_line, "dataset", "plan", "--agent", "tau")
    answered = [run for run in runs if not is_cut_off(run)]
    assert (
        plan["drops"]["the answer of the run is not that of its last step"]
        == len(runs) - len(answered)
        == 2
    )
    assert [
        count for what, count in plan["notes"].items() if what.startswith("runs of several steps")
    ] == [len(answered)]
    assert "none with a reference or a checker for fresh answers" in " ".join(
        plan["words"]
    )  # only the benchmark's database can judge one

    built = run_json(
        command_line,
        "dataset",
        "build",
        "--agent",
        "tau",
        "--shape",
        "groups",
        "--gate",
        "0",
        "--dev",
        "0.2",
    )
    groups = rows_of(tmp_path / "home", built["id"])
    trials = Counter(run["task_id"] for run in answered)
    alone = sum(count == 1 for count in trials.values())
    assert sorted(len(row.values) for row in groups) == sorted(
        count for count in trials.values() if count > 1
    )
    assert built["manifest"]["drops"].get("the only valued answer to its prompt", 0) == alone
    assert sum(map(sum, (row.values for row in groups))) == sum(
        run["reward"] for run in answered if trials[run["task_id"]] > 1
    )
    texts = {json.dumps([last_answer(run)[1], run["reward"]]): run for run in answered}
    for row in groups:
        group_runs = [
            texts[json.dumps([text, value])]
            for text, value in zip(row.completions, row.values, strict=True)
        ]
        assert row.prompts is not None and [len(prompt) for prompt in row.prompts] == [
            last_answer(run)[0] for run in group_runs
        ]
        assert len({run["task_id"] for run in group_runs}) == 1


def last_answer(run: dict[str, Any]) -> tuple[int, str]:
    """The position of the last answer, and its text; that of a call is its written form."""
    index = max(
        number for number, message in enumerate(run["traj"]) if message["role"] == "assistant"
    )
    message = run["traj"][index]
    if message.get("tool_calls"):
        return index, write_answer(message["content"], message["tool_calls"])
    return index, message["content"]


def test_tau_rows_have_the_whole_history_and_the_last_answer_alone(
    command_line: Run, tmp_path: Path
) -> None:
    path = public_data(TAU)
    run_json(command_line, "import", "tau", str(path), "--agent", "tau")
    built = run_json(
        command_line, "dataset", "build", "--agent", "tau", "--shape", "labels", "--gate", "0"
    )
    rows = rows_of(tmp_path / "home", built["id"])
    answered = [run for run in lines(path) if not is_cut_off(run)]
    assert Counter(row.label for row in rows) == Counter(run["reward"] == 1 for run in answered)
    histories = {
        (turn, text): run["traj"][:turn] for run in answered for turn, text in [last_answer(run)]
    }
    for row in rows:
        history = histories[len(row.prompt), row.completion]
        assert [(message["role"], message.get("content")) for message in row.prompt] == [
            (message["role"], message.get("content")) for message in history
        ]
        assert [bool(message.get("tool_calls")) for message in row.prompt] == [
            bool(message.get("tool_calls")) for message in history
        ]
    places: dict[str, set[str]] = {}
    for row in rows:
        places.setdefault(row.group, set()).add(row.split)
    assert all(
        len(splits) == 1 for splits in places.values()
    )  # a task is in one split, however its users began
    assert len(places) == len({run["task_id"] for run in answered})
    health = run_json(command_line, "dataset", "health", built["id"])
    assert health["findings"] and all(finding["verdict"] for finding in health["findings"])


def import_spoiled(
    run: Run,
    source: str,
    path: Path,
    folder: Path,
    agent: str,
    change: Callable[[dict[str, Any]], object],
) -> None:
    """Import the file's cases once more as our own lines, each with an answer that was changed for
    the worse."""
    rows = []
    for line in SOURCES.get(source).read(path, lambda position: None):
        assert isinstance(line, Line)
        case, trace = (
            record.model_dump(mode="json", exclude_none=True) for record in line.records[:2]
        )
        case |= {"type": "case", "id": f"own-{case['id']}"}
        trace |= {"type": "trace", "id": f"spoiled-{case['id']}", "case": case["id"]}
        change(trace)
        rows += [case, trace]
    (folder / "spoiled.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rows))
    run_json(run, "import", "jsonl", str(folder / "spoiled.jsonl"), "--agent", agent)


def spoil_call(steps: list[dict[str, Any]]) -> None:
    """Another function is called in the end."""
    steps[-1]["name"] += "_of_another"


def rewards(home: Path) -> list[tuple[str, float | None]]:
    """(name of the trace in its source, what the ledger has) of every judgement."""
    query = sa.select(schema.traces.c.external_id, schema.rewards.c.value).join(
        schema.rewards, schema.rewards.c.target_id == schema.traces.c.id
    )
    with Workspace.open(Home.at(home)) as ws, ws.db.read() as connection:
        return [(name, value) for name, value in connection.execute(query)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "name", "count"),
    [("mbpp", "code-tasks/mbpp.jsonl", 40), ("humaneval", "code-tasks/humaneval.jsonl", 70)],
)
def test_canonical_solutions_score_1_through_the_ledger(
    command_line: Run, tmp_path: Path, source: str, name: str, count: int
) -> None:
    from thumbwheel.sandbox import canaries

    if not (report := canaries.examine()).allowed:
        text = f"code may not run on this machine: {report.reason}. {report.fix}"
        missing("sandbox", text)
    path = first_lines(name, count, tmp_path)
    run_json(command_line, "import", source, str(path), "--agent", "coder")
    cheat = "```python\nimport os\nprint('passed')\nos._exit(0)\n```"
    import_spoiled(
        command_line, source, path, tmp_path, "coder", lambda trace: trace.update(output=cheat)
    )
    run_json(command_line, "reward", "run", "--agent", "coder", "--component", "checker")
    values = rewards(tmp_path / "home")
    assert len(values) == 2 * len(lines(path))
    assert {value for trace, value in values if not trace.startswith("spoiled")} == {1.0}
    assert {value for trace, value in values if trace.startswith("spoiled")} == {0.0}


@pytest.mark.parametrize("name", ["simple_python", "multiple", "parallel", "parallel_multiple"])
def test_bfcl_expected_calls_score_1_and_mutated_ones_less(
    command_line: Run, tmp_path: Path, name: str
) -> None:
    path = public_data(f"tool-calls/bfcl-v4-{name}.jsonl")
    run_json(command_line, "import", "bfcl", str(path), "--agent", "caller")
    import_spoiled(
        command_line, "bfcl", path, tmp_path, "caller", lambda trace: spoil_call(trace["steps"])
    )
    run_json(command_line, "reward", "run", "--agent", "caller", "--component", "checker")
    values = rewards(tmp_path / "home")
    assert len(values) == 2 * len(lines(path))
    assert {value for trace, value in values if not trace.startswith("spoiled")} == {1.0}
    assert all(
        value is not None and value < 1 for trace, value in values if trace.startswith("spoiled")
    )


PLANNED = [
    "preferences/pandalm-testset-v1-3annotators.jsonl",
    "preferences/hh-rlhf-harmless-base-test.jsonl",
    "preferences/llmfao-crowd-comparisons.csv",
    "math/gsm8k-model-solutions-graded.jsonl",
    "otel-traces/langfuse-export/pydantic-ai-tools-2025-12-04.json",
    "code-tasks/mbpp.jsonl",
    TAU,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_takes_less_than_a_minute_of_a_processor_and_no_torch(
    name: str, tmp_path: Path
) -> None:
    script = (
        "import sys, resource\nsys.argv = ['thumbwheel', 'plan', sys.argv[1]]\nfrom "
        "thumbwheel.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n{script}"
    environment = os.environ | {"THUMBWHEEL_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", limited, str(public_data(name))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout + done.stderr
    assert not list((tmp_path / "home").glob("*.db"))


def test_pandalm_comparisons_become_pairs(command_line: Run, tmp_path: Path) -> None:
    path = public_data("preferences/pandalm-testset-v1-3annotators.jsonl")
    raw = lines(path)
    run_json(command_line, "import", "preference", str(path), "--agent", "judge")
    counts = run_json(command_line, "dataset", "plan", "--agent", "judge")
    (signal,) = counts["signals"]
    assert (signal["kind"], signal["count"], signal["raters"]) == ("preference", 3 * len(raw), 3)
    built = run_json(command_line, "dataset", "build", "--agent", "judge", "--shape", "pairs")
    asked = {(row["instruction"], str(row["input"])) for row in raw}
    assert counts["shapes"]["prompts"]["counts"] and sum(
        counts["shapes"]["prompts"]["counts"].values()
    ) == len(asked)
    compared = {
        (
            row["instruction"],
            str(row["input"]),
            frozenset(str(row[f"response{side}"]).strip() for side in (1, 2)),
        )
        for row in raw
    }
    out = (
        "the compared answers are tied",
        "no plurality for either answer",
        "one of the compared answers was left out",
    )
    left = sum(built["manifest"]["drops"].get(reason, 0) for reason in out)
    assert sum(built["manifest"]["counts"].values()) + left == len(
        compared
    )  # the file asks about some pairs more than once


def test_hh_rlhf_pairs_are_counted(command_line: Run) -> None:
    path = public_data("preferences/hh-rlhf-harmless-base-test.jsonl")
    run_json(command_line, "import", "preference", str(path), "--agent", "hh")
    plan = run_json(command_line, "dataset", "plan", "--agent", "hh")
    rows = sum(plan["shapes"]["pairs"]["counts"].values())
    assert (
        rows + plan["drops"]["one of the compared answers was left out"] == len(lines(path)) == 1156
    )
    assert plan["drops"]["the trace has no output"] == 3


def test_gsm8k_grades_become_labels(command_line: Run, tmp_path: Path) -> None:
    path = first_lines("math/gsm8k-model-solutions-graded.jsonl", 120, tmp_path)
    grades = Counter(
        value["is_correct"]
        for row in lines(path)
        for value in row.values()
        if isinstance(value, dict)
    )
    run_json(command_line, "import", "graded", str(path), "--agent", "math")
    plan = run_json(command_line, "dataset", "plan", "--agent", "math")
    (signal,) = plan["signals"]
    assert (signal["good"], signal["bad"]) == (grades[True], grades[False])
    built = run_json(command_line, "dataset", "build", "--agent", "math", "--shape", "groups")
    assert sum(built["manifest"]["counts"].values()) > 0


@pytest.mark.slow
def test_llmfao_judgements_are_all_there(command_line: Run) -> None:
    path = public_data("preferences/llmfao-crowd-comparisons.csv")
    run_json(command_line, "import", "llmfao", str(path), "--agent", "crowd")
    (signal,) = [
        signal
        for signal in run_json(command_line, "dataset", "plan", "--agent", "crowd")["signals"]
        if signal["kind"] == "preference"
    ]
    assert signal["count"] == len(path.read_text().splitlines()) - 1


@pytest.mark.parametrize(
    "name", ["pydantic-ai-tools-2025-12-04", "vercel-aisdk-2025-11-17", "crewai-2025-07-11"]
)
def test_langfuse_traces_and_scores_are_all_there(command_line: Run, name: str) -> None:
    path = public_data(f"otel-traces/langfuse-export/{name}.json")
    exported = json.loads(path.read_text())
    run_json(command_line, "import", "langfuse", str(path), "--agent", "app")
    plan = run_json(command_line, "dataset", "plan", "--agent", "app")
    assert plan["traces"] == 1
    assert sum(signal["count"] for signal in plan["signals"]) == len(
        exported["trace"].get("scores") or []
    ) + len(exported["trace"].get("corrections") or [])
