"""An error of a script whose home lies beside its output folder names commands for that home, and
they run as they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import Run
from thumbwheel.compat import command_center, isaa, rlhf_plan
from thumbwheel.compat.script_home import errors_of
from thumbwheel.core.errors import DataError, ThumbwheelError

NAMED = re.compile(r"thumbwheel (--home \S+ \w[^;,.()]*)")
PAIR = {"prompt": "Open?", "chosen": "Yes.", "rejected": "No."}


@pytest.fixture
def base(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(tiny_model)


def reward_model_of_undecided_ratings(base: str) -> None:
    collector = rlhf_plan.FeedbackCollector("data/feedback.jsonl")
    collector.collect("Open?", "Yes.", "rating", rating=3)
    rlhf_plan.RewardModelTrainer(rlhf_plan.RewardModel(base), collector).train("rm", num_epochs=1)


def assistant_of_single_answers(base: str) -> None:
    config = isaa.TrainingConfig(base, "rl_output", "grpo", lora_target_modules=[])
    isaa.RLTrainer(config).train([isaa.GRPOExample("User: Open?", ["Yes."], [1.0])])


@pytest.mark.parametrize(
    "script",
    [reward_model_of_undecided_ratings, assistant_of_single_answers],
    ids=lambda script: script.__name__,
)
def test_a_command_of_an_error_runs_in_the_home_of_the_script(
    script: Callable[[str], None], base: str, command_line: Run
) -> None:
    with pytest.raises(ThumbwheelError) as raised:
        script(base)
    commands = NAMED.findall(str(raised.value))
    assert commands, raised.value
    code, out, err = command_line(*shlex.split(commands[0]))
    assert code == 0, (commands[0], out, err)


def test_a_script_is_advised_its_own_settings(base: str) -> None:
    """It has no options of a command."""
    settings = {"base_model": base, "min_rows": 10}
    trainer = command_center.CommandCenterDPOTrainer(settings)
    result = trainer.train([PAIR], output_dir="rl_checkpoints")
    assert "train anyway: min_rows=1" in str(result.error_message)


@pytest.mark.slow
def test_a_script_trains_on_the_few_examples_that_it_has(base: str) -> None:
    settings = {"base_model": base, "max_steps": 1, "max_length": 512}
    trainer = command_center.CommandCenterDPOTrainer(settings)
    result = trainer.train([PAIR, PAIR | {"prompt": "Sunday?"}], output_dir="rl_checkpoints")
    assert result.success, result.error_message

    config = isaa.TrainingConfig(
        base, "rl_output", "kto", num_epochs=1, max_seq_length=128, lora_target_modules=[]
    )
    examples = [
        isaa.KTOExample("User: Open?", "Yes.", True),
        isaa.KTOExample("User: Open?", "No.", False),
    ]
    run = isaa.RLTrainer(config).train(examples)
    assert run.metrics["train_rows"] == 2

    collector = rlhf_plan.FeedbackCollector("data/feedback.jsonl")
    collector.collect("Open?", "Yes.", "thumbs_up")
    collector.collect("Open?", "No.", "thumbs_down")
    model = rlhf_plan.RewardModel(base)
    options = {"max_steps": 1, "require_gain": False}
    rlhf_plan.RewardModelTrainer(model, collector, options).train("rm", num_epochs=1)
    assert 0 <= model.predict_reward("Open?", "Yes.") <= 1


def test_the_default_home_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    for home, expected in (
        (None, "Run: thumbwheel run list"),
        (tmp_path / "home", "Run: thumbwheel run list"),
        (tmp_path / "my home", f"Run: thumbwheel --home '{tmp_path}/my home' run list"),
    ):
        with pytest.raises(DataError) as raised, errors_of(home):
            raise DataError("0 rows", "there is nothing", "Run: thumbwheel run list")
        assert raised.value.fix == expected
        assert str(raised.value).endswith(expected)
