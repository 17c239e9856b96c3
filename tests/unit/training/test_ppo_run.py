"""PPO against a reward model: one base for all roles, a critic that knows what the reward model
knows, a run that resumes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.encoders import tiny_encoder
from tests.training_rows import QUICK, assembled, frozen, judge_of, loop_of, plain_rows
from tests.worlds.ppo_world import answers, config_of, parts_of, world
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import base_fingerprint
from thumbwheel.engine.reward_model import RewardInput, RewardModel, RewardModelCard
from thumbwheel.engine.score import Role
from thumbwheel.models.types import Agent
from thumbwheel.training.algorithms.grpo import Grpo
from thumbwheel.training.algorithms.ppo import Ppo
from thumbwheel.training.judge import JudgeRequest
from thumbwheel.training.online import AnswerBatch
from thumbwheel.training.online_step import OnlineRunner
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, resume, train
from thumbwheel.training.types import RunState


@pytest.fixture
def judge(tiny_model: Path, tmp_path: Path) -> Path:
    """A reward model over the base that learned a little."""
    return judge_of(tiny_model, tmp_path, plain_rows("pairs", 16, 4), 3)


def test_policy_critic_and_reward_model_are_on_one_base(judge: Path, tiny_model: Path) -> None:
    config = config_of(reward_functions=())
    steps = OnlineRunner(Ppo(config), parts_of(tiny_model, config, reward_model=judge))
    engine = steps.engine
    assert list(engine.model.peft_config) == ["default", "critic", "reward"]
    trained = {id(parameter) for group in steps.groups() for parameter in group["params"]}
    assert {
        id(parameter) for parameter in engine.model.parameters() if parameter.requires_grad
    } <= trained
    assert not any(parameter.requires_grad for parameter in engine.parameters_of(Role.REWARD))

    asks = [
        JudgeRequest({}, text, "stop", [{"role": "user", "content": "the fox"}])
        for text in ("jumps over", "return def add")
    ]
    alone = RewardModel.load(judge, device="cpu").score(
        [RewardInput(ask.prompt, ask.text, ask.finish) for ask in asks]
    )
    assert [parameter.value for parameter in steps._judge.judge(asks)] == pytest.approx(
        alone, abs=1e-5
    )
    steps.close()


def test_10_the_critic_starts_as_the_reward_model_in_units_of_the_normalised_reward(
    judge: Path, tiny_model: Path
) -> None:
    config = config_of(reward_functions=())
    steps = OnlineRunner(Ppo(config), parts_of(tiny_model, config, reward_model=judge))
    collected = answers(world(tiny_model))
    collected = AnswerBatch(collected.tasks[:1], collected.rollouts[:1], collected.rewards[:1])
    experience = steps.method.experience(collected, steps._sweep)
    ends = {
        role: steps._sweep.several(experience.examples, role, "last")["last"][0]
        for role in (Role.CRITIC, Role.REWARD)
    }
    scores = ends[Role.REWARD]
    expected = (scores - scores.mean()) / scores.std(correction=0)
    torch.testing.assert_close(ends[Role.CRITIC], expected, atol=1e-5, rtol=1e-5)
    assert ends[Role.REWARD].abs().max() > 1e-3
    before = ends[Role.CRITIC]
    steps.method.experience(collected, steps._sweep)  # once is enough
    assert torch.equal(
        steps._sweep.several(experience.examples, Role.CRITIC, "last")["last"][0], before
    )
    steps.close()


def test_10_a_critic_from_a_model_of_classes_starts_in_units_of_the_chances_that_are_paid(
    judge: Path, tiny_model: Path
) -> None:
    card = json.loads((judge / "reward.json").read_text())
    (judge / "reward.json").write_text(json.dumps(card | {"loss_type": "classification"}))
    for normalised in (True, False):
        config = config_of(reward_functions=(), normalize_reward=normalised)
        steps = OnlineRunner(Ppo(config), parts_of(tiny_model, config, reward_model=judge))
        plain = answers(world(tiny_model))
        asks = [
            JudgeRequest({}, rollout.text, rollout.finish, plain.tasks[0].row["prompt"])
            for rollout in plain.rollouts[0]
        ]
        collected = AnswerBatch(plain.tasks[:1], plain.rollouts[:1], [steps._judge.judge(asks)])
        paid = torch.tensor([reward.value for reward in collected.rewards[0]])
        assert float(paid.min()) > 0 and float(paid.max()) < 1
        experience = steps.method.experience(collected, steps._sweep)
        ends = steps._sweep.several(experience.examples, Role.CRITIC, "last")["last"][0]
        mean, deviation = (
            (0.0, 1.0) if normalised else (float(paid.mean()), float(paid.std(correction=0)))
        )
        assert float(ends.mean()) == pytest.approx(mean, abs=1e-4)
        assert float(ends.std(correction=0)) == pytest.approx(deviation, rel=1e-3)
        steps.close()


def test_another_base_has_a_critic_of_its_own_and_says_so(
    judge: Path, tiny_model: Path, tmp_path: Path, capsys: Any
) -> None:
    card = json.loads((judge / "reward.json").read_text())
    other = Path(shutil.copytree(judge, tmp_path / "other"))
    (other / "reward.json").write_text(json.dumps(card | {"base_fingerprint": "of another base"}))
    config = config_of()
    parts = parts_of(tiny_model, config, reward_model=other)
    Ppo(config).begin(parts)
    assert not parts.engine.role_model(Role.CRITIC).head.weight.any()
    assert "the critic starts from the base" in capsys.readouterr().err


@pytest.mark.slow
def test_grpo_is_rewarded_by_a_reward_model_over_its_own_base_and_over_another(
    judge: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """An encoder cannot be one voice of the policy's engine; it judges by itself."""
    encoder = tmp_path / "encoder"
    encoder_base = tiny_encoder(tmp_path / "encoder-base")
    assembly = assembled(
        "reward", encoder_base, tmp_path / "b", plain_rows("pairs", 16, 4), max_steps=2
    )
    (tmp_path / "b").mkdir(exist_ok=True)
    loop_of(assembly, tmp_path / "b").run()
    shutil.copytree(tmp_path / "b" / "checkpoints" / "checkpoint-2", encoder)
    assembly.builder.tokenizer.save_pretrained(encoder)
    RewardModelCard("bradley_terry", str(encoder_base), base_fingerprint(encoder_base), 128).write(
        encoder
    )
    config = Grpo.Config(
        reward_functions=(), num_generations=3, max_completion_length=6, batch_size=2
    )
    prompts = plain_rows("prompts", 2)
    for folder in (judge, encoder):
        steps = OnlineRunner(Grpo(config), parts_of(tiny_model, config, reward_model=folder))
        items = steps.method.prepare(prompts, steps._builder).items
        collected = steps.collect(items, 3, steps._sampling(0))
        read = [
            RewardInput(task.row["prompt"], reward.text, reward.finish)
            for task, group in zip(items, collected.rollouts, strict=True)
            for reward in group
        ]
        alone = RewardModel.load(folder, device="cpu").score(read)
        assert [value for several in collected.values for value in several] == pytest.approx(
            alone, abs=1e-5
        )
        taught = steps.train(items, 0, lambda loss: 0.0)
        assert taught.metrics["reward_std"] > 0 and taught.metrics["updates"] == 1
        steps.close()


@pytest.mark.slow
def test_a_run_against_rm1_is_interrupted_resumed_and_the_same(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    options = QUICK | {
        "reward_model": "rm1",
        "max_completion_length": 8,
        "num_generations": 2,
        "max_steps": 6,
        "save_steps": 2,
    }
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws:
        judged = train(
            ws,
            Agent.named("a"),
            "reward",
            find_base(str(tiny_model), ws.home.cache),
            dataset=frozen(ws, "a", "pairs", 16, 4),
            options=QUICK,
        )
        assert judged.reward_model == "rm1"
        prompts = frozen(ws, "a", "prompts", 24, 4, checker=None)
        whole = train(
            ws,
            Agent.named("a"),
            "ppo",
            find_base(str(tiny_model), ws.home.cache),
            dataset=prompts,
            options=options,
        )
        broken = train(
            ws,
            Agent.named("a"),
            "ppo",
            find_base(str(tiny_model), ws.home.cache),
            dataset=prompts,
            options=options | {"callbacks": ["training_callbacks:Interrupt"]},
        )
        assert (whole.state, broken.state) == (RunState.FINISHED, RunState.STOPPED)
        resumed = resume(ws, find_run(ws, broken.run_id))
        assert (whole.version, resumed.version) == ("v1", "v2")
        curves = [
            [
                line | {"step_seconds": 0}
                for line in RunDir(ws.home.runs / run.run_id).read_metrics()
            ]
            for run in (whole, resumed)
        ]
    assert curves[0] == curves[1]
    assert {"kl", "kl_coef", "val/explained_variance", "rewards/reward_model/mean"} <= set(
        curves[0][-2]
    )
