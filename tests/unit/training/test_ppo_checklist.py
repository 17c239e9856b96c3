"""What PPO for language models gets wrong in silence, one test an item (the N implementation
details; PPO-max; VC-PPO; KL notes)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training_rows import shake
from tests.worlds.ppo_world import BATCH, PpoWorld, answers, config_of, flat, parts_of, world
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.score import Role
from thumbwheel.engine.tree import Layout, plan
from thumbwheel.training.algorithms.ppo import Ppo, PpoConfig
from thumbwheel.training.online_step import OnlineRunner
from thumbwheel.training.optimizer import prepare
from thumbwheel.training.returns import whiten


def plain(experience: PpoWorld, collected: Any, adapter: str | None, temperature: float) -> Any:
    """Log-probs of all answers, each by a forward of its own."""
    model, logps = experience.engine.model, []
    for task, rollouts in zip(collected.tasks, collected.rollouts, strict=True):
        for rollout in rollouts:
            ids = torch.tensor([[*task.prompt, *rollout.ids]])
            with torch.no_grad():
                if adapter is None:
                    with model.disable_adapter():
                        logits = model(ids).logits[0]
                else:
                    logits = model(ids).logits[0]
            positions = torch.arange(len(rollout.ids)) + len(task.prompt) - 1
            logps.append(
                (logits[positions] / temperature)
                .log_softmax(-1)
                .gather(1, torch.tensor(rollout.ids)[:, None])[:, 0]
            )
    return torch.cat(logps)


def test_01_log_probs_of_policy_reference_and_old_are_at_the_sampling_temperature(
    tiny_model: Path,
) -> None:
    ppo = world(tiny_model, temperature=0.6)
    collected = answers(ppo)
    experience = ppo.experience(collected)
    policy, reference = (plain(ppo, collected, adapter, 0.6) for adapter in ("default", None))
    torch.testing.assert_close(flat(experience, "old"), policy, atol=1e-5, rtol=0)
    assert experience.metrics["kl"] == pytest.approx(float((policy - reference).mean()), abs=1e-5)
    assert ppo.loss(experience)[1]["policy/approxkl_avg"] == 0
    assert (policy - plain(ppo, collected, "default", 1.0)).abs().max() > 0.1


def test_01_log_probs_of_a_cut_distribution_are_those_of_the_whole_one(tiny_model: Path) -> None:
    ppo = world(tiny_model, top_k=3)
    collected = answers(ppo)
    whole = plain(ppo, collected, "default", 1.0)
    torch.testing.assert_close(flat(ppo.experience(collected), "old"), whole, atol=1e-5, rtol=0)


def test_02_positions_follow_each_answer_and_no_padding_takes_part(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    collected = answers(ppo)
    experience = ppo.experience(collected)
    (batch,) = plan(experience.examples, 10_000, ppo.engine.layout)
    assert batch.kind == "tree"
    assert ppo.builder.tokenizer.pad_token_id not in batch.input_ids
    ends = [
        len(example.prompt) + len(branch.ids) - 1
        for example in batch.examples
        for branch in example.branches
    ]
    assert batch.position_ids[batch.last_index].tolist() == ends
    alone = [world(tiny_model).experience(answers(ppo, [group], seed=0)) for group in BATCH[:1]]
    torch.testing.assert_close(
        experience.tokens["old"][0], alone[0].tokens["old"][0], atol=1e-5, rtol=0
    )


def test_03_loss_values_and_kl_go_up_to_and_including_the_end_and_no_further(
    tiny_model: Path,
) -> None:
    ppo = world(tiny_model)
    collected = answers(ppo)
    experience = ppo.experience(collected)
    lengths = [len(item.ids) for several in collected.rollouts for item in several]
    assert [len(flat(experience, name)) for name in ("old", "values", "returns", "advantages")] == [
        sum(lengths)
    ] * 4
    eos = ppo.builder.tokenizer.eos_token_id
    (batch,) = plan(experience.examples, 10_000, ppo.engine.layout)
    assert (
        batch.target_ids == eos
    ).sum() == 4  # the end of each answer that stopped is a target like the others
    _, metrics = ppo.loss(experience)
    assert set(metrics) >= {"loss/policy_avg", "loss/value_avg"}


def test_03_a_stop_token_and_a_stop_text_end_an_episode_like_eos(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    stop = 40
    sampling = Sampling(max_new_tokens=30, stop_ids=(stop,), stop=(".", "o"), seed=3)
    prompt = ppo.builder.prompt([{"role": "user", "content": "Hi"}])
    (rollouts,) = GroupSampler(ppo.engine.model, ppo.builder.tokenizer).sample(
        [prompt], 24, sampling
    )
    ends = {rollout.ids[-1] == stop for rollout in rollouts if rollout.finish == "stop"}
    assert ends == {True, False}
    for rollout in rollouts:
        if rollout.finish == "stop":
            assert ppo.method._final_reward(rollout, 1.5) == ppo.method._normalised(1.5)


@pytest.mark.parametrize(("truncated", "score"), [("score", 0.2), ("bootstrap", 0.0)])
def test_03_an_answer_without_an_end_pays_the_penalty(
    truncated: str, score: float, tiny_model: Path
) -> None:
    ppo = world(tiny_model, missing_eos_penalty=1.25, normalize_reward=False, truncated=truncated)
    ((ended, cut, _), *_) = answers(ppo).rollouts
    assert ppo.method._final_reward(ended, 1.0) == 1.0
    assert ppo.method._final_reward(cut, 0.2) == pytest.approx(score - 1.25)


def test_04_the_score_is_earned_by_the_last_real_token_and_every_token_pays_its_kl(
    tiny_model: Path,
) -> None:
    changes = {
        "gamma": 1.0,
        "lam": 0.0,
        "normalize_reward": False,
        "init_kl_coef": 0.3,
        "kl_estimator": "k1",
        "truncated": "score",
    }
    ppo = world(tiny_model, missing_eos_penalty=0.0, **changes)
    collected = answers(ppo)
    experience = ppo.experience(collected)
    kl = plain(ppo, collected, "default", 1.0) - plain(ppo, collected, None, 1.0)
    values, returns, start = flat(experience, "values"), flat(experience, "returns"), 0
    for several, rewards in zip(collected.rollouts, collected.rewards, strict=True):
        for item, reward in zip(several, rewards, strict=True):
            end = start + len(item.ids)
            following = torch.cat([values[start + 1 : end], torch.zeros(1)])
            earned = returns[start:end] - following  # lambda 0: r + V(next)
            expected = -0.3 * kl[start:end]
            expected[-1] += reward.value
            torch.testing.assert_close(earned, expected, atol=2e-5, rtol=0)
            start = end


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_04_the_kl_estimator_goes_by_its_name(estimator: str, tiny_model: Path) -> None:
    ppo = world(
        tiny_model, kl_estimator=estimator, lam=0.0, init_kl_coef=1.0, normalize_reward=False
    )
    collected = answers(ppo, [[(3, "stop", 0.0)]])
    experience = ppo.experience(collected)
    gap = plain(ppo, collected, "default", 1.0) - plain(ppo, collected, None, 1.0)
    expected = {"k1": gap, "k2": gap**2 / 2, "k3": torch.exp(-gap) - 1 + gap}[estimator]
    following = torch.cat([flat(experience, "values")[1:], torch.zeros(1)])
    torch.testing.assert_close(following - flat(experience, "returns"), expected, atol=1e-5, rtol=0)


def test_05_scores_are_normalised_by_running_moments_and_clipped_at_10(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    scores = [item.value for several in answers(ppo).rewards for item in several]
    ppo.experience(answers(ppo))
    mean, deviation = (
        sum(scores) / 6,
        math.sqrt(sum((x - sum(scores) / 6) ** 2 for x in scores) / 6),
    )
    assert ppo.method._normalised(2.0) == pytest.approx((2.0 - mean) / deviation)
    assert (ppo.method._normalised(1e9), ppo.method._normalised(-1e9)) == (10, -10)
    second = [[(2, "stop", 100.0)]]
    experience = ppo.experience(answers(ppo, second))
    every = torch.tensor([*scores, 100.0], dtype=torch.float64)
    assert experience.metrics["objective/scores"] == pytest.approx(
        float((100 - every.mean()) / every.std(correction=0))
    )


def test_06_gae_ends_with_0_behind_an_end_and_with_the_critics_opinion_behind_a_cut(
    tiny_model: Path,
) -> None:
    ppo = world(
        tiny_model, lam=0.0, init_kl_coef=0.0, missing_eos_penalty=0.0, normalize_reward=False
    )
    collected = answers(ppo, [[(3, "length", 5.0), (3, "stop", 5.0)]])
    experience = ppo.experience(collected)
    cut, ended = flat(experience, "returns").split(3)
    behind = ppo.sweep.several(experience.examples, Role.CRITIC, "last")["last"][0]
    assert float(cut[-1]) == pytest.approx(
        float(behind[0])
    )  # what the judge says of half a text is not counted
    assert float(ended[-1]) == pytest.approx(5.0)
    defaults = PpoConfig()
    assert (defaults.gamma, defaults.lam) == (1.0, 0.95)


def test_06_returns_are_unwhitened_advantages_plus_values_and_may_have_a_lambda_of_their_own(
    tiny_model: Path,
) -> None:
    ppo, apart = world(tiny_model), world(tiny_model, lambda_critic=1.0)
    experience, other = ppo.experience(answers(ppo)), apart.experience(answers(apart))
    raw = flat(experience, "returns") - flat(experience, "values")
    torch.testing.assert_close(flat(experience, "advantages"), whiten(raw))
    torch.testing.assert_close(flat(other, "advantages"), flat(experience, "advantages"))
    ((ended, *_), *_) = answers(ppo).rollouts
    size = len(ended.ids)
    assert not torch.allclose(
        flat(other, "returns")[:size], flat(experience, "returns")[:size], atol=1e-4
    )
    assert float(flat(other, "returns")[size - 1]) == pytest.approx(
        float(flat(experience, "returns")[size - 1]), abs=1e-5
    )


def test_07_advantages_are_white_over_the_tokens_of_the_batch_with_the_biased_variance(
    tiny_model: Path,
) -> None:
    ppo = world(tiny_model)
    advantages = flat(ppo.experience(answers(ppo)), "advantages")
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float((advantages**2).mean()) == pytest.approx(1, abs=1e-5)


def test_07_rewards_are_divided_by_their_deviation_without_a_shift_where_asked(
    tiny_model: Path,
) -> None:
    ppo, white = (
        world(tiny_model, lam=0.0, whiten_rewards=flag, truncated="score") for flag in (False, True)
    )

    def rewards(variant: PpoWorld) -> Any:
        collected = answers(variant)
        experience = variant.experience(collected)
        values, ends = (
            flat(experience, "values"),
            torch.cumsum(torch.tensor([len(r.ids) for s in collected.rollouts for r in s]), 0),
        )
        following = torch.cat([values[1:], torch.zeros(1)])
        following[ends - 1] = 0
        return flat(experience, "returns") - following

    before, after = rewards(ppo), rewards(white)
    torch.testing.assert_close(after, before / before.std(correction=0), atol=1e-5, rtol=0)


def test_08_policy_and_values_are_clipped_and_weighted_as_published(tiny_model: Path) -> None:
    defaults = PpoConfig()
    assert (
        defaults.cliprange,
        defaults.cliprange_value,
        defaults.vf_coef,
        defaults.max_grad_norm,
    ) == (0.2, 0.2, 0.1, 1.0)
    ppo = world(tiny_model)
    old = {"old": torch.zeros(4), "advantages": torch.tensor([1.0, 1.0, -1.0, -1.0])}
    logp = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    loss, metrics = ppo.method._policy_loss(logp, old, 4)
    assert loss.item() == pytest.approx((-1.2 - 0.5 + 1.5 + 0.8) / 4)
    (slope,) = torch.autograd.grad(loss, logp)
    assert [bool(component) for component in slope] == [
        False,
        True,
        True,
        False,
    ]  # beyond the clip there is nothing more to gain
    assert float(metrics["policy/clipfrac_avg"][0]) == 4

    value = torch.tensor([0.5, 0.1]).requires_grad_()
    loss, _ = ppo.method._value_loss(value, {"values": torch.zeros(2), "returns": torch.ones(2)}, 2)
    assert loss.item() == pytest.approx(
        0.1 * (0.5 * 0.8**2 + 0.5 * 0.9**2) / 2
    )  # 0.5 is past 0.2: the worse of the two counts
    (slope,) = torch.autograd.grad(loss, value)
    assert [bool(component) for component in slope] == [False, True]


def test_09_the_kl_coefficient_adapts_to_a_target_in_nats_a_token_over_a_horizon_in_answers(
    tiny_model: Path,
) -> None:
    defaults = PpoConfig()
    assert (defaults.init_kl_coef, defaults.kl_target_per_token, defaults.kl_horizon) == (
        0.2,
        0.1,
        1000,
    )
    ppo = world(tiny_model, kl_horizon=60.0, kl_target_per_token=1e-6)
    first = ppo.experience(answers(ppo))
    second = ppo.experience(answers(ppo))
    assert first.metrics["kl_coef"] == 0.2
    assert second.metrics["kl_coef"] == pytest.approx(
        0.2 * (1 + math.copysign(0.2, first.metrics["kl"]) * 6 / 60)
    )


def test_09_a_batch_is_left_at_one_and_a_half_times_early_stop_kl(tiny_model: Path) -> None:
    method = world(tiny_model, early_stop_kl=0.02).method
    verdicts = [
        method.verdict({"policy/approxkl_avg": kl, "val/ratio": 1.0})
        for kl in (0.0, 0.0299, 0.0301)
    ]
    assert verdicts == ["update", "update", "leave"]
    assert (
        world(tiny_model, early_stop_kl=None).method.verdict({"policy/approxkl_avg": 5.0})
        == "update"
    )


def test_10_the_critic_starts_at_0_and_warms_up_alone(tiny_model: Path) -> None:
    ppo = world(tiny_model, shaken=0, critic_warmup_steps=1)
    first = ppo.experience(answers(ppo))
    assert not flat(first, "values").any()
    _, metrics = ppo.loss(first, backward=True)
    assert "loss/policy_avg" not in metrics
    assert all(parameter.grad is None for parameter in ppo.engine.parameters_of(Role.POLICY))
    assert ppo.engine.role_model(Role.CRITIC).head.bias.grad is not None
    second = ppo.experience(answers(ppo))
    _, metrics = ppo.loss(second, backward=True)
    assert "loss/policy_avg" in metrics
    assert any(
        parameter.grad is not None and parameter.grad.any()
        for parameter in ppo.engine.parameters_of(Role.POLICY)
    )


def test_10_a_shared_trunk_stays_as_it_is_while_its_head_warms_up(tiny_model: Path) -> None:
    ppo = world(tiny_model, critic="shared", critic_warmup_steps=1, shaken=0.1)
    ppo.loss(ppo.experience(answers(ppo)), backward=True)
    assert all(parameter.grad is None for parameter in ppo.engine.parameters_of(Role.POLICY))
    assert ppo.engine.role_model(Role.CRITIC).head.weight.grad.any()
    ppo.loss(ppo.experience(answers(ppo)), backward=True)
    assert any(parameter.grad is not None for parameter in ppo.engine.parameters_of(Role.POLICY))


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_11_the_ratio_is_exactly_1_under_the_same_plan_and_nearly_under_another(
    critic: str, tiny_model: Path
) -> None:
    ppo = world(tiny_model, critic=critic, token_budget=64, temperature=0.8)
    experience = ppo.experience(answers(ppo))
    _, metrics = ppo.loss(experience, backward=True)
    assert (
        metrics["val/ratio"],
        metrics["policy/approxkl_avg"],
        metrics["policy/clipfrac_avg"],
    ) == (1.0, 0.0, 0.0)
    whole = {name: torch.cat(values) for name, values in experience.tokens.items()}
    for layout, budget in (
        (ppo.engine.layout, 64),
        (ppo.engine.layout, 10_000),
        (Layout("padded", "a test"), 500),
    ):
        ppo.engine.layout, worst = layout, 0.0
        for batch in plan(experience.examples, budget, layout):
            values = experience.for_batch(batch)
            logp = ppo.engine.score(batch, Role.POLICY, grad=True).logp
            worst = max(worst, float(((logp.detach() - values["old"]).exp() - 1).abs().max()))
        assert worst == 0 if (layout.kind, budget) == ("tree", 64) else worst < 1e-5
    assert len(whole["old"]) == 21


def test_11_nothing_drops_out(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    rates = [
        module.p for module in ppo.engine.model.modules() if isinstance(module, torch.nn.Dropout)
    ]
    assert not any(rates)
    assert torch.equal(*(flat(world(tiny_model).experience(answers(ppo)), "old") for _ in range(2)))


def test_12_minibatches_are_shuffled_anew_in_every_pass_and_absurd_ratios_are_skipped(
    tiny_model: Path,
) -> None:
    method = world(tiny_model, num_mini_batches=4).method
    assert (
        PpoConfig().num_ppo_epochs,
        method.passes(0),
        method.minibatch(16),
        method.minibatch(6),
    ) == (4, 4, 4, 2)
    assert PpoConfig().ratio_threshold == 10
    assert method.verdict({"val/ratio": 10.1, "policy/approxkl_avg": 99.0}) == "skip"


@pytest.fixture
def steps(tiny_model: Path) -> Iterator[OnlineRunner]:
    config = config_of(num_mini_batches=3, num_ppo_epochs=2, early_stop_kl=1e-4, token_budget=64)
    ppo = OnlineRunner(Ppo(config), parts_of(tiny_model, config))
    shake(ppo.engine.model)
    yield ppo
    ppo.close()


def test_12_the_steps_shuffle_skip_and_leave(steps: OnlineRunner, tiny_model: Path) -> None:
    seen = [list(steps._minibatches(12, step)) for step in (0, 0, 1)]
    assert seen[0] == seen[1] != seen[2]
    first, second = seen[0][:3], seen[0][3:]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(12))

    trained = prepare(steps.engine.model, steps.config, 10, steps.groups())
    applied: list[float] = []

    def apply(loss: float) -> float:
        applied.append(loss)
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        return 0.0

    collected = answers(world(tiny_model))
    experience = steps.method.experience(collected, steps._sweep)
    absurd = replace(
        experience,
        tokens=experience.tokens | {"old": [old - 3 for old in experience.tokens["old"]]},
    )
    _, metrics, _ = steps._updates(absurd, 0, apply)
    assert metrics["val/ratio"] == pytest.approx(math.exp(3), rel=1e-3)
    assert (metrics["updates"], applied) == (0, [])
    assert all(parameter.grad is None for group in steps.groups() for parameter in group["params"])

    _, metrics, _ = steps._updates(experience, 0, apply)
    assert (
        metrics["updates"] == len(applied) < 6
    )  # the first update is made; then the policy has left the one that sampled


def test_13_adams_epsilon_a_linear_fall_and_a_rate_for_the_critic(tiny_model: Path) -> None:
    ppo = world(
        tiny_model,
        learning_rate=1e-3,
        critic_learning_rate=5e-3,
        adam_epsilon=3e-5,
        warmup_ratio=0.0,
    )
    trained = prepare(ppo.engine.model, ppo.config, 10, ppo.method.groups(ppo.engine))
    assert [group["lr"] for group in trained.optimizer.param_groups] == [1e-3, 5e-3]
    assert {group["eps"] for group in trained.optimizer.param_groups} == {3e-5}
    for _ in range(5):
        trained.optimizer.step()
        trained.scheduler.step()
    assert [group["lr"] for group in trained.optimizer.param_groups] == pytest.approx(
        [5e-4, 2.5e-3]
    )
    assert (PpoConfig().adam_epsilon, PpoConfig().lr_scheduler_type) == (1e-5, "linear")


def test_13_policy_and_critic_share_no_parameter_and_the_base_has_none(tiny_model: Path) -> None:
    for critic in ("separate", "shared"):
        ppo = world(tiny_model, critic=critic)
        policy, critic_parameters = (group["params"] for group in ppo.method.groups(ppo.engine))
        ids = [id(parameter) for parameter in (*policy, *critic_parameters)]
        assert len(ids) == len(set(ids))
        trained = {
            id(parameter) for parameter in ppo.engine.model.parameters() if parameter.requires_grad
        }
        assert trained <= set(ids)
        assert len(critic_parameters) == (2 if critic == "shared" else len(policy) + 2)


def test_14_what_has_to_be_watched_is_logged(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    experience = ppo.experience(answers(ppo))
    _, metrics = ppo.loss(experience)
    seen = experience.metrics | metrics
    names = {
        "kl",
        "kl_coef",
        "entropy",
        "val/explained_variance",
        "objective/scores",
        "policy/clipfrac_avg",
        "policy/approxkl_avg",
    }
    names |= {
        "loss/value_avg",
        "loss/policy_avg",
        "val/clipfrac_avg",
        "val/ratio",
        "objective/non_score_reward",
    }
    assert names <= set(seen)
    assert all(math.isfinite(value) for value in seen.values())
    assert 0 < seen["entropy"] <= math.log(len(ppo.builder.tokenizer))


def test_15_adapters_are_on_all_linear_layers_and_take_larger_steps(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    linear = [
        name
        for name, module in ppo.engine.language_model.named_modules()
        if hasattr(module, "lora_A")
    ]
    assert len(linear) == 2 * 7
    assert all(
        {"default", "critic"} <= set(ppo.engine.language_model.get_submodule(name).lora_A)
        for name in linear
    )
    assert type(ppo.method).rate >= 1e-5 * 10


def test_state_brings_critic_moments_and_coefficient_back(tiny_model: Path) -> None:
    ppo, other = world(tiny_model, kl_horizon=50.0), world(tiny_model, shaken=0.3, kl_horizon=50.0)
    ppo.experience(answers(ppo))
    other.method.restore(ppo.method.state())
    for name in ("moments", "kl_coef", "batches"):
        assert other.method.state()[name] == ppo.method.state()[name]
    for left, right in zip(
        ppo.method.state()["critic"], other.method.state()["critic"], strict=True
    ):
        assert torch.equal(left, right)


def test_answers_without_a_reward_are_not_learned_from(tiny_model: Path) -> None:
    ppo = world(tiny_model)
    experience = ppo.experience(
        answers(ppo, [[(3, "stop", None), (4, "stop", 1.0)], [(2, "stop", None)]])
    )
    assert [len(example.branches) for example in experience.examples] == [1]
    assert len(flat(experience, "old")) == 4
