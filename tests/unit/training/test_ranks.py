"""Several ranks of one run: the same numbers as one process, and one clear end for all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.held_runs import hold_after, is_held
from tests.models.tiny_models import tiny_base
from tests.rank_runs import SHAPES, STOPPED_AT, run
from tests.training_rows import QUICK, frozen
from tests.waiting import until
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, TrainingError
from thumbwheel.core.hardware import Gpu, machine
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.ranks import LOST, Ranks
from thumbwheel.engine.replicas import even_token_share
from thumbwheel.engine.tree import Branch, Example, Layout, plan
from thumbwheel.models.types import Agent
from thumbwheel.training import children as of_run
from thumbwheel.training import placement
from thumbwheel.training.children import Children, environment
from thumbwheel.training.online import RolloutPrompt
from thumbwheel.training.online_step import task_owners
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, resume, runs, train
from thumbwheel.training.types import RunState

METHODS = tuple(SHAPES)


def members(count: int, *command: str) -> list[subprocess.Popen[str]]:
    """Start a process for each rank."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with placement.free_listener() as listener:
        return [
            subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment | variables,
                pass_fds=() if rank else (listener.fileno(),),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, variables in enumerate(
                placement.rank_variables(count, "cpu", listener, environment)
            )
        ]


@dataclass(frozen=True)
class Curves:
    """What ranks left below their folder."""

    folder: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the metrics of a run, without how long things took."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [
            {key: value for key, value in json.loads(line).items() if key != "step_seconds"}
            for line in lines
        ]

    def facts(self, name: str) -> list[dict[str, Any]]:
        """Return what each rank says of a run."""
        return [
            json.loads(path.read_text())
            for path in sorted((self.folder / name).glob("facts-*.json"))
        ]

    def weights(self, name: str) -> dict[str, Any]:
        """Return the adapter at the end of a run."""
        from safetensors.torch import load_file

        return load_file(self.folder / name / "weights.safetensors")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Curves]:
    """The same runs on one, two and three ranks. Two stop one that three go on with."""
    folder = tmp_path_factory.mktemp("ranks")
    base = tiny_base(folder / "base", initializer_range=0.1)
    for method in METHODS:
        run(Ranks(), folder / "1", base, method)
    phases = {2: [*METHODS, "shortage kto", "stop dpo"], 3: [*METHODS, "resume dpo"]}
    for count, of_count in phases.items():
        out = folder / str(count)
        if count == 3:
            (folder / "2" / "parts-dpo").rename(out.with_name("parts"))
            out.mkdir()
            out.with_name("parts").rename(out / "parts-dpo")
        arguments = ("tests.rank_runs", str(out), str(base), ",".join(of_count))
        for member in members(count, *arguments):
            output, _ = member.communicate(timeout=600)
            assert member.returncode == 0, output
    return {count: Curves(folder / str(count)) for count in (1, 2, 3)}


def assert_same(
    curves: Curves, name: str, expected: Curves, expected_name: str, *, besides: str = ""
) -> None:
    """The curves, `besides` one figure, and the weights differ by rounding alone."""
    import torch

    lines, expected_lines = curves.lines(name), expected.lines(expected_name)
    assert [line["step"] for line in lines] == [line["step"] for line in expected_lines]
    for line, expected_line in zip(lines, expected_lines, strict=True):
        line.pop(besides, None)
        expected_line.pop(besides, None)
        assert line == pytest.approx(expected_line, rel=1e-5, abs=1e-5)
    weights, expected_weights = curves.weights(name), expected.weights(expected_name)
    assert weights.keys() == expected_weights.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(weight, expected_weights[key], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_compute_what_one_process_computes(
    world: dict[int, Curves], count: int, method: str
) -> None:
    assert_same(world[count], method, world[1], method)
    facts = world[count].facts(method)
    assert [fact["rank"] for fact in facts] == list(range(count))
    assert len({fact["weights"] for fact in facts}) == 1
    # All take part, and none computes nearly everything.
    computed = [fact["computed"] for fact in facts]
    (alone,) = world[1].facts(method)
    assert max(computed) < 0.8 * alone["computed"] and min(computed) > 0


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_a_run(world: dict[int, Curves]) -> None:
    assert_same(world[3], "parts-dpo", world[1], "dpo")
    facts = world[3].facts("parts-dpo")
    assert [fact["step"] for fact in facts] == [STOPPED_AT + 1] * 3


@pytest.mark.slow
def test_a_rank_without_memory_lowers_the_budget_of_all(world: dict[int, Curves]) -> None:
    # Smaller batches share fewer prompts.
    assert_same(world[2], "shortage-kto", world[1], "kto", besides="num_tokens")
    assert [fact["budget"] for fact in world[2].facts("shortage-kto")] == [64, 64]
    assert [fact["budget"] for fact in world[2].facts("kto")] == [128, 128]


@pytest.mark.slow
def test_ranks_talk_in_tensors_and_a_silent_one_is_lost() -> None:
    first, second = members(2, "tests.rank_talk")
    output, _ = first.communicate(timeout=120)
    second.send_signal(signal.SIGCONT)
    second.communicate(timeout=120)
    assert first.returncode == LOST, output
    assert "rank 1 gave no sign of life for 3 seconds" in output


def test_work_is_shared_out_by_its_cost() -> None:
    ranks = Ranks(0, 3)
    assert ranks.owners([5, 1, 9, 4, 4]) == [1, 1, 0, 2, 2]
    assert Ranks().owners([5, 1]) == [0, 0]
    assert Ranks().exchange("alone", "a value") == ["alone"]


@pytest.mark.parametrize("count", [2, 3])
def test_micro_batches_are_cut_so_that_all_ranks_compute_alike(count: int) -> None:
    """Eight rows fill one budget and half of another: a rank would get two thirds of them."""
    examples = []
    for number in range(8):
        prompt = tuple(range(1000 * number, 1000 * number + 200))
        examples.append(Example(prompt, (Branch((7,) * 75),), ""))
    rows = [example.rows("tree") for example in examples]

    def busiest(ranks: int) -> float:
        tokens = even_token_share(rows, 1536, 1, ranks)
        cells = [batch.cells for batch in plan(examples, tokens, Layout())]
        owners = Ranks(0, count).owners(cells)
        loads = [0] * count
        for owner, cost in zip(owners, cells, strict=True):
            loads[owner] += cost
        return max(loads) / sum(cells)

    assert busiest(1) > 0.62
    assert busiest(count) < 1 / count + 0.05
    assert even_token_share(rows, 1536, 1, 1) == 1536


def test_equal_prompts_are_answered_by_one_rank() -> None:
    prompts = [(1, 2), (3,), (1, 2), (4, 5), (3,), (6,)]
    tasks = [RolloutPrompt(prompt, {}, "", 0) for prompt in prompts]
    owners = task_owners(Ranks(1, 2), tasks)
    assert owners[0] == owners[2] and owners[1] == owners[4]
    assert sorted({*owners}) == [0, 1]


def scripted(*scripts: str) -> Children:
    """A run whose ranks do what the scripts say."""
    return Children([subprocess.Popen([sys.executable, "-c", script]) for script in scripts])


WAITS = "import time; time.sleep(600)"


def ended(children: Children) -> int | None:
    until(lambda: children.poll() is not None)
    return children.poll()


def test_a_rank_that_fails_ends_all_and_is_named() -> None:
    children = scripted(WAITS, "import os; os.kill(os.getpid(), 9)", WAITS)
    assert ended(children) == -signal.SIGKILL and children.last_rank == 1
    follows = scripted(f"raise SystemExit({LOST})", WAITS, "raise SystemExit(3)")
    assert ended(follows) == 3 and follows.last_rank == 2


def test_the_first_rank_says_how_the_run_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_run, "GRACE", 0.1)
    children = scripted("raise SystemExit(130)", WAITS)
    assert ended(children) == 130 and children.last_rank == 0
    stays = scripted(f"import sys; sys.exit({LOST})", WAITS)
    assert ended(stays) == LOST and stays.last_rank == 0


def test_the_first_rank_alone_is_asked_to_stop() -> None:
    listens = "import sys, time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: sys.exit(130)"
    children = scripted(listens, WAITS)
    until(lambda: all(_is_waiting(member.pid) for member in children._members))
    children.interrupt()
    until(lambda: children._members[0].poll() is not None)
    assert children._members[0].returncode == 130 and children._members[1].poll() is None
    assert children.end() == 130


def _is_waiting(pid: int) -> bool:
    """Whether a process is in the sleep of its script."""
    return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


def test_a_machine_places_as_many_ranks_as_it_has_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from dataclasses import replace

    two = replace(machine(), threads=2, gpus=(Gpu("cuda", "A", 80.0), Gpu("cuda", "B", 80.0)))
    monkeypatch.setattr(placement, "machine", lambda: two)
    placement.require_ranks(2, "cuda")
    with pytest.raises(ConfigError, match="has 2 GPUs, and every rank needs one") as refused:
        placement.require_ranks(3, "cuda")
    assert "Set ranks to 2" in refused.value.fix
    with pytest.raises(ConfigError, match="every rank needs one"):
        placement.require_ranks(2, "mps")
    placement.require_ranks(4, "cpu")
    assert "this machine has 2 processors" in capsys.readouterr().err
    with placement.free_listener() as listener:
        of_gpus = placement.rank_variables(2, "cuda", listener, {"CUDA_VISIBLE_DEVICES": "3,5"})
        of_cores = placement.rank_variables(2, "cpu", listener, {})
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in of_gpus] == ["3", "5"]
    assert [variables["OMP_NUM_THREADS"] for variables in of_cores] == ["1", "1"]
    assert [variables["RANK"] for variables in of_cores] == ["0", "1"]
    assert (
        environment({"RANK": "7", "WORLD_SIZE": "9", "HOME": "/h"})
        .keys()
        .isdisjoint(placement.RANK_VARIABLES)
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_rank_ends_the_run_which_other_numbers_of_ranks_go_on_with(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    holds = tmp_path / "holds"
    monkeypatch.setenv("HOLDS", str(holds))
    hold_after(holds, 2)
    options = QUICK | {
        "ranks": 2,
        "max_steps": 4,
        "save_steps": 1,
        "eval_steps": 4,
        "require_gain": False,
        "callbacks": ["training_callbacks:Held", "training_callbacks:Interrupt"],
    }
    agent = Agent.named("a")
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "pairs", 16, 4)
        base = find_base(str(tiny_model), ws.home.cache)

        def kill_the_second() -> None:
            until(lambda: is_held(holds, 2), 1200)
            os.kill(_rank_of(tmp_path / "home", 1), signal.SIGKILL)

        killer = threading.Thread(target=kill_the_second)
        killer.start()
        with pytest.raises(TrainingError, match=r"rank 1: .*killed by signal 9") as lost:
            train(ws, agent, "dpo", base, dataset=dataset, options=options)
        killer.join()
        (failed,) = runs(ws, agent)
        folder = RunDir(ws.home.runs / failed.id)
        assert failed.state is RunState.FAILED and "log-1.txt" in lost.value.why
        assert f"--resume {failed.id}" in lost.value.fix
        assert [line["step"] for line in folder.read_metrics()] == [0, 1, 2]

        # The same number is interrupted after the third step, one process makes the fourth.
        stopped = resume(ws, failed)
        assert (stopped.state, stopped.reason) == (RunState.STOPPED, "interrupted")
        assert stopped.metrics["steps"] == 3
        finished = resume(ws, find_run(ws, failed.id), {"ranks": 1})
        assert (finished.state, finished.version) == (RunState.FINISHED, "v1")
        steps = [line["step"] for line in folder.read_metrics() if "loss" in line]
        assert steps == [1, 2, 3, 4]


def _rank_of(home: Path, rank: int) -> int:
    """Return the process of a rank that trains in this home."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            variables = (folder / "environ").read_text().split("\0")
        except OSError:
            continue
        is_child = str(home) in command and "thumbwheel.training.process" in command
        if is_child and f"RANK={rank}" in variables:
            return int(folder.name)
    raise AssertionError("no such process")
