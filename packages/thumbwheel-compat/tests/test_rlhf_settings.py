"""The plan's YAML as our settings: every documented key is read, is a word of a command, or is left
out with its reason."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from tests.command_line import Run
from thumbwheel.app.open import opener
from thumbwheel.app.settings import sections
from thumbwheel.compat.rlhf_plan.settings import (
    COMMANDS,
    KNOWN,
    LEFT_OUT,
    SETTINGS,
    convert_settings,
)
from thumbwheel.core.config import Sources
from thumbwheel.core.errors import ConfigError, Conflict
from thumbwheel.models.base import Base
from thumbwheel.models.types import Agent
from thumbwheel.training.train import resume, train
from thumbwheel.training.types import Run as TrainingRun
from thumbwheel.training.types import RunState

PLAN = {
    "rlhf": {
        "enabled": True,
        "feedback": {"collection_rate": 0.3, "storage": "data/feedback.jsonl"},
        "reward_model": {
            "base_model": "microsoft/deberta-v3-base",
            "training": {"epochs": 3, "batch_size": 8, "learning_rate": 2e-5},
        },
        "ppo": {
            "base_model": "microsoft/phi-2",
            "training": {"epochs": 100, "batch_size": 8, "learning_rate": 1e-5, "kl_coef": 0.2},
        },
        "continuous_learning": {"enabled": True, "buffer_size": 1000, "train_threshold": 100},
        "ab_testing": {"enabled": True, "variants": ["control", "variant_a"]},
    }
}


def write(tmp_path: Path, plan: object) -> Path:
    path = tmp_path / "rlhf.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def leaves(settings: dict[str, object], above: str = "") -> set[str]:
    keys = set()
    for name, value in settings.items():
        keys |= leaves(value, f"{above}{name}.") if isinstance(value, dict) else {above + name}
    return keys


def test_every_documented_key_becomes_something(tmp_path: Path, command_line: Run) -> None:
    assert set(KNOWN) == leaves(PLAN["rlhf"])
    converted = convert_settings(write(tmp_path, PLAN))
    assert leaves(dict(converted.settings)) == {
        setting.format(agent="assistant") for setting in SETTINGS.values()
    }
    assert converted.left_out == LEFT_OUT
    assert converted.commands[len(COMMANDS) :] == [
        "thumbwheel loop enable --agent assistant --least 100 --base microsoft/phi-2",
        "thumbwheel experiment start --agent assistant --arm v0 --arm v1",
    ]
    code, out, err = command_line("settings", "convert", "rlhf.yaml", "--out", "ours.yaml")
    assert (code, out) == (0, ""), err
    assert (
        "run: thumbwheel import feedback_jsonl data/feedback.jsonl" in err
        and "run: thumbwheel loop enable --agent assistant --least 100" in err
    )
    ours = Sources.read(tmp_path / "ours.yaml", {})
    reward, ppo = (ours.load(sections()[name], name) for name in ("train.reward", "train.ppo"))
    assert (reward.num_train_epochs, reward.batch_size, reward.learning_rate) == (3, 8, 2e-5)  # type: ignore[attr-defined]
    assert (ppo.max_steps, ppo.batch_size, ppo.learning_rate, ppo.init_kl_coef) == (
        100,
        8,
        1e-5,
        0.2,
    )  # type: ignore[attr-defined]
    code, out, err = command_line("settings", "convert", "rlhf.yaml", "--json")
    assert code == 0 and json.loads(out)["settings"]["training"] == {"enabled": True}
    code, _, err = command_line("settings", "convert", "rlhf.yaml", "--out", "ours.yaml")
    assert code == 2 and "already" in err


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"rlhf": {"feedback": {"colection_rate": 0.3}}}, "collection_rate"),
        ({"rlhf": {"ppo": 3}}, "contains other settings"),
        ({"rlhf": {"enabled": "maybe"}}, "training"),
        ({"rlhf": {"ppo": {"training": {"batch_size": 0}}}}, "batch_size"),
        ({"rlhf": {"feedback": {"collection_rate": 30}}}, "record"),
        (
            {"rlhf": {"continuous_learning": {"enabled": "sometimes"}}},
            "continuous_learning.enabled",
        ),
        ({"rlhf": {"continuous_learning": {"train_threshold": 0}}}, "train_threshold"),
        ({"rlhf": {"ab_testing": {"variants": ["control"]}}}, "variants"),
        ({"dataset": {}}, "no section 'rlhf'"),
        ({"rlhf": {"enabled": {"deep": 1}}}, "enabled"),
    ],
)
def test_what_cannot_be_taken_is_an_error_with_its_key(
    tmp_path: Path, plan: object, why: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        convert_settings(write(tmp_path, plan))
    assert why in str(raised.value)


def test_the_master_switch_stops_training_and_nothing_else(
    tmp_path: Path, command_line: Run
) -> None:
    pytest.importorskip("torch")
    converted = convert_settings(write(tmp_path, {"rlhf": {"enabled": False}}))
    (tmp_path / "thumbwheel.yaml").write_text(converted.as_yaml())
    with opener(tmp_path / "home", tmp_path / "thumbwheel.yaml", "warning")() as ws:
        stopped = TrainingRun(
            "run_1", "desk", "kto", "d", "base", None, {}, RunState.STOPPED, None, None
        )
        with pytest.raises(Conflict, match="switched off"):
            train(ws, Agent.named("desk"), "kto", Base("base", tmp_path, "f"))
        with pytest.raises(Conflict, match="switched off"):
            resume(ws, stopped)
    (tmp_path / "rows.jsonl").write_text(
        '{"type": "trace", "id": "t1", "input": "q", "output": "a"}'
    )
    assert command_line("import", "jsonl", "rows.jsonl", "--agent", "desk")[0] == 0


def test_a_path_with_a_space_is_one_word_of_its_command(tmp_path: Path) -> None:
    path = tmp_path / "rlhf.yaml"
    path.write_text("rlhf:\n  feedback:\n    storage: my data/feedback.jsonl\n")
    (command,) = convert_settings(path).commands
    assert command == "thumbwheel import feedback_jsonl 'my data/feedback.jsonl' --agent assistant"


def test_what_the_plan_switches_off_is_no_command(tmp_path: Path) -> None:
    plan = {
        "rlhf": {
            "continuous_learning": {"enabled": False, "train_threshold": 20},
            "ab_testing": {"enabled": False, "variants": ["control", "a", "b"]},
        }
    }
    converted = convert_settings(write(tmp_path, plan), "desk")
    assert converted.commands == []
    reasons = converted.left_out
    assert (
        "thumbwheel loop enable --agent desk --least 20 switches"
        in reasons["continuous_learning.enabled"]
    )
    assert "--arm v0 --arm v1 --arm v2 switches" in reasons["ab_testing.enabled"]


def test_the_printed_commands_exist_with_their_options(tmp_path: Path, command_line: Run) -> None:
    """Each is understood as far as the home: nothing is there that it could work on."""
    for command in convert_settings(write(tmp_path, PLAN)).commands:
        _, *words = shlex.split(command)
        code, _, err = command_line(*words)
        assert code != 0 and "No such option" not in err and "Usage" not in err, (command, err)


def test_the_share_of_sessions_is_what_the_gateway_records(tmp_path: Path) -> None:
    converted = convert_settings(write(tmp_path, PLAN), "desk")
    ours = Sources(dict(converted.settings), "ours.yaml", {})
    gateway = ours.load(sections()["gateway"], "gateway")
    assert gateway.agents["desk"].record == 0.3  # type: ignore[attr-defined]
