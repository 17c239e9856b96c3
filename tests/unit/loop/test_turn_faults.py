"""Turns of the wheel that meet a fault: they say it, lose nothing, and go on where they were. The
models are tables of answers; all else is the shipped code."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.worlds.recorded_wheel import FILE, TARGET, Wheel, recorded_wheel
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, ModelError, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.db.schema import cases
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.experiments import controller
from thumbwheel.jobs import schedules
from thumbwheel.loop import cycle, loops
from thumbwheel.loop.approval import approve
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.experiment import turn_all
from thumbwheel.loop.inbox import decisions
from thumbwheel.loop.loops import enable, status
from thumbwheel.loop.trigger_types import Rule, TurnState
from thumbwheel.loop.triggers import check
from thumbwheel.loop.turn import run_turn, turns
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, Basis, VersionState

NAME = "zoo"
AGENT = Agent.named(NAME)
RIGHT = {"fox": "in the den", "dog": "in the yard", "owl": "in the tree", "cow": "in the barn"}
NOISE = "on the roof"
SETTINGS: dict[str, Any] = {
    "dataset": {"dev": 0.2, "gate": 0.3},
    "evaluation": {"few_shot": 0},
    "gate": {"margin_nll": 9, "max_growth": 99},
}


@dataclass
class Zoo:
    """A base that answers everything alike, and people who say what is right."""

    ws: Workspace
    wheel: Wheel
    base: Path
    folder: Path

    def config(self, **more: Any) -> CycleConfig:
        return CycleConfig(base=str(self.base), methods=("kto",), deploy=TARGET, **more)

    def turn(self, **more: Any) -> CycleReport:
        return run_turn(self.ws, AGENT, self.config(**more))

    def add(self, *lines: dict[str, Any], gold: bool = False) -> None:
        path = self.folder / f"{len(list(self.folder.glob('*.jsonl')))}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = ingest(self.ws, NAME, "jsonl", path, reviewer="owner" if gold else None)
        assert report.refused == 0, report.refusals


def rated(count: int) -> Iterator[dict[str, Any]]:
    """Each topic asked `count` times: the noise is bad, and what is right is good."""
    for number in range(count):
        for topic, location in RIGHT.items():
            for good, output in ((False, NOISE), (True, location)):
                name = f"{topic}{number}-{good}"
                yield {"type": "trace", "id": name, "input": f"{topic} {number}", "output": output}
                target = {"trace": name}
                yield {"type": "feedback", "kind": "thumb", "value": good, "target": target}


def reviewed(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        for topic, location in RIGHT.items():
            asked = f"{topic} {1000 + number}"
            yield {"type": "case", "id": asked, "input": asked, "reference": location}


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[Zoo]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"weight": np.zeros(1, dtype=np.float32)}, base / "model.safetensors")
    (base / FILE).write_text(json.dumps(dict.fromkeys(RIGHT, NOISE)))
    home = Home.at(tmp_path / "home")
    with (
        recorded_wheel() as wheel,
        Workspace.open(home, Sources(SETTINGS, "test.yaml", {})) as ws,
    ):
        world = Zoo(ws, wheel, base, tmp_path)
        world.add(*rated(45))
        yield world


def live(ws: Workspace) -> str | None:
    version_id = versions.aliases_of(ws, AGENT).get(LIVE)
    return versions.by_id(ws, version_id).name if version_id else None


def test_a_turn_whose_base_vanished_fails_and_loses_nothing(zoo: Zoo) -> None:
    enable(zoo.ws, AGENT, {"base": str(zoo.base), "methods": ["kto"]})
    informative = status(zoo.ws, AGENT).new.informative
    away = zoo.base.rename(zoo.folder / "away")
    with pytest.raises(ModelError, match="there is no such folder"):
        zoo.turn()
    (turn,) = turns(zoo.ws, AGENT)
    assert (turn.state, "no such folder" in str(turn.reason)) == (TurnState.FAILED, True)
    assert status(zoo.ws, AGENT).new.informative == informative > 0
    assert check(zoo.ws, AGENT).rule is Rule.BACK_OFF
    away.rename(zoo.base)
    assert zoo.turn().version == "v1"
    assert status(zoo.ws, AGENT).new.informative == 0


def test_a_base_that_vanishes_between_training_and_gate_costs_no_training(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: object) -> None:
        raise ModelError("base", "there is no such folder", "Restore it")

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "evaluate", vanish)
        with pytest.raises(ModelError):
            zoo.turn()
    finished = zoo.turn()
    assert finished.version == "v1"
    assert [turn.state for turn in turns(zoo.ws, AGENT)] == [TurnState.FINISHED]
    assert len(versions.versions(zoo.ws, AGENT)) == 2, "the candidate is the one of the first try"


def test_a_full_disk_in_an_export_leaves_the_alias_where_it_was(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo.add(*reviewed(30), gold=True)

    def full(*_: object) -> None:
        error = OSError(errno.ENOSPC, "No space left on device")
        raise unwritable("export to 'x'", error, "Free some space")

    with monkeypatch.context() as patch:
        patch.setattr(cycle, "export", full)
        with pytest.raises(StorageError, match="No space left"):
            zoo.turn(export=("merged",))
    (turn,) = turns(zoo.ws, AGENT)
    assert (turn.state, "No space left" in str(turn.reason)) == (TurnState.FAILED, True)
    assert live(zoo.ws) is None
    # with room again it goes on: nothing is trained or judged a second time
    finished = zoo.turn()
    assert (finished.version, finished.verdict, live(zoo.ws)) == ("v1", GateVerdict.APPROVED, "v1")
    assert finished.evaluation is not None and finished.evaluation.reads == 1


def test_gold_that_is_withdrawn_allows_a_canary_at_most(zoo: Zoo) -> None:
    zoo.add(*reviewed(30), gold=True)
    first = zoo.turn(auto_deploy="off")
    assert (first.verdict, first.evaluation and first.evaluation.basis) == (
        GateVerdict.APPROVED,
        Basis.GOLD,
    )
    zoo.ws.db.write(lambda connection: connection.execute(cases.delete()))
    assert "no case is reviewed" in str(status(zoo.ws, AGENT).gold)
    zoo.add(*({**line, "id": f"more-{line['id']}"} for line in more_feedback()))
    second = zoo.turn()
    assert second.evaluation is not None
    assert (second.evaluation.basis, second.verdict) == (Basis.FEEDBACK, GateVerdict.CANARY)
    assert live(zoo.ws) is None
    # what was approved on the cases before stays approved
    version = versions.version(zoo.ws, NAME, "v1")
    assert (version.state, version.basis) == (VersionState.APPROVED, Basis.GOLD)


def more_feedback() -> Iterator[dict[str, Any]]:
    for line in rated(4):
        if line["type"] == "trace":
            yield {**line, "input": f"{line['input']}0000"}


def test_an_answer_to_a_canary_prompt_that_changed_waits_for_a_person(zoo: Zoo) -> None:
    zoo.add(*reviewed(30), gold=True)
    held = zoo.turn(canary_prompts=("fox of our house", "a question of another kind"))
    assert (held.verdict, held.deployment) == (GateVerdict.APPROVED, None)
    assert held.changed_answers == ["'fox of our house': 'in the den' instead of 'on the roof'"]
    (pending,) = decisions(zoo.ws, AGENT)
    assert "it answers 1 of 2 canary prompts otherwise" in pending.question
    assert held.changed_answers[0] in pending.evidence["reasons"]
    assert live(zoo.ws) is None
    approve(zoo.ws, AGENT, pending.id, "anna")
    assert live(zoo.ws) == "v1"


def test_answers_to_canary_prompts_that_stay_hold_nothing(zoo: Zoo) -> None:
    zoo.add(*reviewed(30), gold=True)
    turn = zoo.turn(canary_prompts=("a question of another kind",))
    assert (turn.changed_answers, turn.waiting, live(zoo.ws)) == ([], [], "v1")


def test_two_servers_that_enable_one_loop_leave_one_schedule(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have removed the schedule, and both add it."""
    add, entered = schedules.add, []

    def add_behind_another_server(ws: Workspace, *arguments: Any, **more: Any) -> Any:
        if not entered:
            entered.append(True)
            enable(ws, AGENT, {"least": 7})
        return add(ws, *arguments, **more)

    monkeypatch.setattr(loops.schedules, "add", add_behind_another_server)
    assert enable(zoo.ws, AGENT, {"least": 9}).enabled
    (schedule,) = schedules.schedules(zoo.ws)
    assert schedule.kind == "loop check"

    remove = schedules.remove

    def remove_after_another_server(ws: Workspace, name: str) -> Any:
        remove(ws, name)
        return remove(ws, name)

    monkeypatch.setattr(loops.schedules, "remove", remove_after_another_server)
    enable(zoo.ws, AGENT, {"least": 11})
    assert len(schedules.schedules(zoo.ws)) == 1


def test_a_turn_that_two_servers_ask_for_runs_once(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cycle.data_plan

    def plan(*arguments: Any) -> Any:
        with pytest.raises(Conflict, match="another process is running it"):
            run_turn(zoo.ws, AGENT, zoo.config())
        return original(*arguments)

    monkeypatch.setattr(cycle, "data_plan", plan)
    assert zoo.turn().version == "v1"
    assert len(turns(zoo.ws, AGENT)) == 1


def test_an_experiment_of_the_loop_ends_so_that_the_next_version_has_its_turn(zoo: Zoo) -> None:
    zoo.turn(auto_deploy="off")
    v0 = versions.version(zoo.ws, NAME, "v0")
    zoo.wheel.deploy(zoo.ws, v0, TARGET, LIVE)
    zoo.add(*({**line, "id": f"more-{line['id']}"} for line in more_feedback()))
    turn = zoo.turn(experiment="thumb", experiment_days=3.0)
    assert turn.experiment is not None, turn.reasons
    experiment = controller.find(zoo.ws, turn.experiment)
    assert experiment.plan.config.max_hours == 72
    assert turn_all(zoo.ws)[experiment.id].verdict == "undecided"
    (decision,) = turn_all(zoo.ws, datetime.now(UTC) + timedelta(days=4)).values()
    assert decision.verdict == "stopped"
    assert live(zoo.ws) == "v0"


def test_an_experiment_that_would_end_before_any_arm_may_win_is_refused_by_name(zoo: Zoo) -> None:
    zoo.turn(auto_deploy="off")
    v0 = versions.version(zoo.ws, NAME, "v0")
    zoo.wheel.deploy(zoo.ws, v0, TARGET, LIVE)
    zoo.add(*({**line, "id": f"more-{line['id']}"} for line in more_feedback()))
    turn = zoo.turn(experiment="thumb", experiment_days=0.5)
    assert turn.experiment is None
    assert any("max_hours 12" in reason and "min_hours 24" in reason for reason in turn.reasons)
    assert live(zoo.ws) == "v0"
