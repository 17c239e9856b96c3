"""Notes and tags of runs, what deleting a run takes away, and where a running run is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

import thumbwheel
from tests.opened_home import invoked
from tests.worlds.api_world import commands_client
from tests.worlds.gateway_world import AGENT, opened_home, running
from tests.worlds.operations_world import STEPS, operations, write_curves
from tests.worlds.pages_world import fill, small_home
from thumbwheel.app.python_api import OpenAgent
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.training.curves import StepRange, curves
from thumbwheel.training.live import STARTING, progress_of
from thumbwheel.training.run_commands import run as group
from thumbwheel.training.run_notes import delete_run, note_of, write_note
from thumbwheel.training.train import run_dir, run_of, runs
from thumbwheel.training.types import RunNote
from thumbwheel.training.usage import FILE, UsageFile, usage_of

SUPPORT = Agent.named(AGENT)
API = f"/api/agents/{AGENT}/runs"


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A home with three runs: run_sft gave a version, run_dpo gave none, run_kto trains."""
    folder = tmp_path_factory.mktemp("runs")
    with opened_home(folder / "home") as ws:
        fill(ws, folder, small_home())
        with operations(ws, folder):
            yield ws


def test_a_note_is_written_replaced_and_listed(ws: Workspace) -> None:
    run = run_of(ws, SUPPORT, "run_sft")
    write_note(ws, run, " too short ", ["baseline", "baseline", " "])
    assert note_of(ws, run) == RunNote("too short", ("baseline",))
    with commands_client(ws) as client:
        body = {"text": "long enough", "tag": ["kept", "best"]}
        assert client.put(f"{API}/run_sft/note", json=body).json()["tags"] == ["kept", "best"]
        listed = {row["id"]: row for row in client.get(API).json()}
        assert listed["run_sft"]["note"] == "long enough"
        assert listed["run_dpo"]["tags"] == []
        assert client.put(f"{API}/run_sft/note", json={"tag": ["a,b"]}).status_code == 422
    with pytest.raises(InputError, match="comma"):
        write_note(ws, run, "", ["a,b"])


def test_runs_are_compared_and_a_server_answers_as_the_home(ws: Workspace) -> None:
    local = OpenAgent(ws, SUPPORT)
    comparison = local.compare_runs("run_dpo", "run_sft")
    assert [run.id for run in comparison.runs] == ["run_dpo", "run_sft"]
    assert [(line.name, list(line.values)) for line in comparison.settings] == [
        ("method", ["dpo", "sft"])
    ]
    assert "learning_rate" in [line.name for line in comparison.same]
    results = {line.name: line.values for line in comparison.results}
    assert results["version"] == [None, "v3"]
    assert results["dev loss of the base"][0] == results["dev loss of the base"][1]
    assert len(set(results["dev loss of the best step"])) == 2

    command = ("compare", "run_dpo", "run_sft", "--agent", AGENT)
    shown = invoked(ws, group, *command, columns=200).stdout
    assert "10 min 40 s" in shown and "dpo" in shown
    assert json.loads(invoked(ws, group, *command, "--json").stdout)["settings"] == [
        {"name": "method", "values": ["dpo", "sft"]}
    ]
    for names, error in ((["run_sft"], InputError), (["run_sft", "run_9"], NotFound)):
        with pytest.raises(error):
            local.compare_runs(*names)

    lines = local.metrics("run_sft")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [run.state for run in local.runs] == ["finished", "finished", "running"]
    with running(ws) as server:
        key = ws.home.access_token.read_text().strip()
        served = thumbwheel.connect(server.url, key=key).agent(AGENT)
        assert served.runs == local.runs
        assert served.compare_runs("run_dpo", "run_sft") == comparison
        assert served.metrics("run_sft") == lines
        with pytest.raises(InputError, match="2 to 8 can be compared"):
            served.compare_runs("run_sft")


def test_a_run_that_a_version_needs_or_that_trains_is_kept(ws: Workspace) -> None:
    with pytest.raises(Conflict, match="v3 came from it"):
        delete_run(ws, SUPPORT, "run_sft")
    with pytest.raises(Conflict, match="it trains now"):
        delete_run(ws, SUPPORT, "run_kto")
    assert run_dir(ws, run_of(ws, SUPPORT, "run_sft")).metrics.exists()


def test_a_deleted_run_is_gone_with_its_files(ws: Workspace) -> None:
    run = run_of(ws, SUPPORT, "run_dpo")
    write_note(ws, run, "wrong data", ["old"])
    folder = run_dir(ws, run)
    (folder.checkpoints / "checkpoint-5").mkdir(parents=True)
    (folder.checkpoints / "checkpoint-5" / "adapter.safetensors").write_bytes(b"x" * 5000)
    with commands_client(ws) as client:
        answer = client.delete(f"{API}/run_dpo")
        assert answer.status_code == 200, answer.text
        assert answer.json()["checkpoints"] == 1 and answer.json()["size"] > 5000
        assert client.delete(f"{API}/run_dpo").status_code == 404
    assert not folder.path.exists()
    assert [run.id for run in runs(ws, SUPPORT)] == ["run_sft", "run_kto"]


def test_curves_of_a_range_of_steps_show_every_step_of_it(ws: Workspace) -> None:
    write_curves(ws, "run_kto", 3000, 2)
    run = run_of(ws, SUPPORT, "run_kto")
    whole = {curve.metric: curve for curve in curves(ws, run, 50, ["loss"]).curves}
    assert len(whole["loss"].steps) <= 50
    part = curves(ws, run, 50, ["loss"], StepRange(1001, 1040)).curves
    (training,) = [curve for curve in part if curve.split == "train"]
    assert training.steps == tuple(range(1001, 1041))
    with commands_client(ws) as client:
        query = "curves?run=run_kto&metric=loss&points=50&first=2990"
        (answer,) = client.get(f"/api/agents/{AGENT}/{query}").json()
        assert min(answer["curves"][0]["steps"]) == 2990


def test_a_running_run_says_where_it_is_and_what_it_uses(ws: Workspace) -> None:
    run = run_of(ws, SUPPORT, "run_kto")
    folder = run_dir(ws, run)
    folder.metrics.unlink()
    assert progress_of(ws, run).activity == STARTING
    lines = [
        {"step": step, "loss": 1.0, "num_tokens": 500.0 * step, "step_seconds": 2.0}
        for step in range(1, 41)
    ]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with UsageFile(folder, every=0.05):
        for _ in range(400):
            sum(range(20_000))  # the processor has something to do
            if usage_of(folder) is not None:
                break
            time.sleep(0.05)
    progress = progress_of(ws, run)
    assert (progress.step, progress.steps) == (40, 400)
    assert progress.tokens_per_second == 250.0
    assert progress.seconds_left == 720.0
    assert progress.usage is not None
    assert progress.usage.memory_gb is not None and progress.usage.memory_gb > 0.02
    assert 0 <= progress.usage.busy_cores <= progress.usage.cores + 1
    with commands_client(ws) as client:
        answer = client.get(f"{API}/run_kto/progress").json()
        assert client.get(f"{API}/none/progress").status_code == 404
        assert answer["usage"]["gpu"] is None and answer["tokens_per_second"] == 250.0
    long_ago = time.time() - 3600
    os.utime(folder.path / FILE, (long_ago, long_ago))
    assert progress_of(ws, run).usage is None
