"""Where fresh answers come from: the policy through a copy that follows it, or a server whose
answers are weighed or refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.servers.rollout_server import Uniform
from tests.training_rows import assembled, plain_rows, shake
from tests.worlds.ppo_world import answers, flat, world
from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.rollout import Rollout
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.llm.fake import FakeServer
from thumbwheel.training import sampling
from thumbwheel.training.algorithms.grpo import Grpo, GrpoConfig
from thumbwheel.training.assemble import Assembly
from thumbwheel.training.judge import Reward
from thumbwheel.training.online import AnswerBatch, RolloutPrompt, importance


def grpo(base: Path, folder: Path, **changes: Any) -> Assembly:
    options = {
        "batch_size": 2,
        "num_generations": 3,
        "max_completion_length": 6,
        "max_steps": 2,
        "reward_workers": 1,
    }
    return assembled("grpo", base, folder, plain_rows("prompts", 8, 2), **options | changes)


def drawn(assembly: Assembly) -> AnswerBatch:
    assembly.runner.source.sync(0)
    return assembly.runner.collect(assembly.train.items[:3], 4, assembly.runner._sampling(7))


def test_the_policy_answers_through_a_copy_that_is_brought_up_to_date_before_every_batch(
    tiny_model: Path, tmp_path: Path
) -> None:
    assembly = grpo(tiny_model, tmp_path)
    steps = assembly.runner
    assert (
        not steps._policy_sampler.exact
        and steps.source is steps._policy_sampler
        and not steps.source.off_policy
    )
    plain = GroupSampler(assembly.model, assembly.builder.tokenizer)

    def apply(loss: float) -> float:
        shake(assembly.model, scale=0.3)  # an update that changes every answer
        return 0.0

    seen: list[Any] = []
    collect = steps.collect
    steps.collect = lambda *arguments: seen.append(collect(*arguments)) or seen[-1]
    for step in range(2):
        prompts = [task.prompt for task in assembly.train.items[:3]]
        expected = plain.sample(prompts, 3, steps._sampling(step))
        steps.train(assembly.train.items[:3], step, apply)
        assert [[rollout.ids for rollout in group] for group in seen[-1].rollouts] == [
            [rollout.ids for rollout in group] for group in expected
        ]
    expected = plain.sample(
        [task.prompt for task in assembly.dev.items], 1, steps._sampling(0, greedy=True)
    )
    steps.evaluate(assembly.dev.items)
    assert [rollout.ids for (rollout,) in seen[-1].rollouts] == [
        rollout.ids for (rollout,) in expected
    ]
    steps.close()


def test_answers_are_judged_while_others_are_still_being_written(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = grpo(tiny_model, tmp_path)
    steps = assembly.runner
    monkeypatch.setattr(steps._policy_sampler, "_most_rows", 4)  # one prompt's answers at a time
    events: list[str] = []
    start, decode = steps._judge.start, steps._policy_sampler._decode
    monkeypatch.setattr(steps._judge, "start", lambda ask: events.append("judge") or start(ask))
    monkeypatch.setattr(
        steps._policy_sampler,
        "_decode",
        lambda *arguments: events.append("decode") or decode(*arguments),
    )
    collected_batch = drawn(assembly)
    assert events.count("judge") == sum(map(len, collected_batch.rollouts)) == 12
    assert events.count("decode") == 3
    assert events.index("judge") < max(
        index for index, event in enumerate(events) if event == "decode"
    )
    again = steps._rewards(steps._judge, collected_batch.tasks, collected_batch.rollouts, {})
    assert [[rollout.value for rollout in group] for group in again] == [
        [rollout.value for rollout in group] for group in collected_batch.rewards
    ]
    steps.close()


def test_without_memory_for_the_copy_the_policy_samples_itself_and_a_resumed_run_does_as_before(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    roomy = grpo(tiny_model, tmp_path)
    monkeypatch.setattr(sampling, "free_gb", lambda device, limit, ranks: 0.0)
    tight = grpo(tiny_model, tmp_path)
    assert capsys.readouterr().err.count("Sampling without a merged copy of the weights") == 1
    assert (roomy.runner._policy_sampler.exact, tight.runner._policy_sampler.exact) == (False, True)
    before = drawn(roomy)
    tight.runner.restore(roomy.runner.state())
    assert (
        not tight.runner._policy_sampler.exact
        and tight.runner.source is tight.runner._policy_sampler
    )
    assert drawn(tight).rollouts == before.rollouts
    for assembly in (roomy, tight):
        assembly.runner.close()


def test_a_copy_beside_activations_that_are_computed_twice(
    tiny_model: Path, tmp_path: Path
) -> None:
    plain, twice = (
        grpo(tiny_model, tmp_path),
        grpo(tiny_model, tmp_path, gradient_checkpointing=True),
    )
    assert drawn(plain).rollouts == drawn(twice).rollouts
    for assembly in (plain, twice):
        assembly.runner.close()


def test_a_cut_of_the_distribution_is_said(tiny_model: Path, tmp_path: Path, capsys: Any) -> None:
    grpo(tiny_model, tmp_path, top_k=5).runner.close()
    assert "top_k and top_p cut the distribution" in capsys.readouterr().err


def test_importance_by_hand() -> None:
    rollouts = [
        Rollout((4, 5), (math.log(0.25), math.log(0.4)), "stop", ""),
        Rollout((6,), (math.log(0.1),), "stop", ""),
    ]
    weights, metrics = importance(torch.tensor([0.5, 0.2, 0.9]).log(), rollouts, 3.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 0.5, 3.0]))
    name = "sampling/importance_sampling_ratio"
    assert metrics == pytest.approx(
        {f"{name}/min": 0.5, f"{name}/mean": 5.5 / 3, f"{name}/max": 3.0}
    )


def collected(off_policy: bool) -> AnswerBatch:
    """Two answers to one prompt and two of equal worth to another, which teach nothing; sampled at
    these probabilities."""
    tasks = [RolloutPrompt((1, 2), {}, name, number) for number, name in enumerate("ab")]
    assembly = [
        Rollout((4, 5), (math.log(0.25), math.log(0.4)), "stop", ""),
        Rollout((6,), (math.log(0.1),), "stop", ""),
    ]
    rewards = [
        [Reward(value, {}, {}, None) for value in values] for values in ((1.0, 0.0), (1.0, 1.0))
    ]
    return AnswerBatch(tasks, [assembly, assembly], rewards, off_policy)


def test_grpo_weighs_answers_from_elsewhere_and_only_those() -> None:
    asked: list[int] = []

    def score(examples: Sequence[Any], role: Any) -> list[torch.Tensor]:
        asked.append(len(examples))
        return [torch.tensor([0.5, 0.2, 0.9]).log() for _ in examples]

    method = Grpo(GrpoConfig(scale_rewards="none", num_generations=2))
    here = method.experience(collected(off_policy=False), score)  # type: ignore[arg-type]
    assert asked == [] and set(here.tokens) == {
        "advantage",
        "weight",
    }  # the log-probs of the update itself are the old ones
    there = method.experience(collected(off_policy=True), score)  # type: ignore[arg-type]
    assert asked == [1]
    (plain,), (weighed,) = here.tokens["advantage"], there.tokens["advantage"]
    torch.testing.assert_close(plain, torch.tensor([0.5, 0.5, -0.5], dtype=torch.float64))
    torch.testing.assert_close(weighed, torch.tensor([1.0, 0.25, -1.5], dtype=torch.float64))
    torch.testing.assert_close(there.tokens["weight"][0], here.tokens["weight"][0])
    assert there.metrics["sampling/importance_sampling_ratio/max"] == pytest.approx(3.0)


def test_ppo_weighs_them_too(tiny_model: Path) -> None:
    from dataclasses import replace

    here, there = world(tiny_model), world(tiny_model)
    collected_here = answers(here)
    with_logps = [
        [replace(rollout, logps=(-5.0,) * len(rollout.ids)) for rollout in group]
        for group in collected_here.rollouts
    ]
    plain = here.experience(collected_here)
    weighed = there.experience(
        AnswerBatch(collected_here.tasks, with_logps, collected_here.rewards, off_policy=True)
    )
    weights = (flat(plain, "old") + 5.0).exp().clamp(max=3.0)
    torch.testing.assert_close(flat(weighed, "advantages"), flat(plain, "advantages") * weights)
    assert len(weights.unique()) > 3
    for name in ("old", "values", "returns"):
        assert torch.equal(flat(weighed, name), flat(plain, name))


def test_a_server_is_named_or_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="endpoint_url is not set"):
        grpo(tiny_model, tmp_path, rollouts="endpoint")
    with pytest.raises(ConfigError, match="endpoint_model is not set"):
        grpo(tiny_model, tmp_path, rollouts="endpoint", endpoint_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match="known are local, endpoint"):
        grpo(tiny_model, tmp_path, rollouts="elsewhere")
    with pytest.raises(ConfigError, match="set rollouts to endpoint"):
        grpo(tiny_model, tmp_path, endpoint_url="http://127.0.0.1:9/v1")


@pytest.mark.slow
def test_a_server_that_cannot_be_learned_from_ends_the_run_with_its_name(
    tiny_model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("thumbwheel.llm.client.FIRST_WAIT", 0.01)
    server = Uniform()
    options = {"rollouts": "endpoint", "endpoint_model": "theirs"}
    with FakeServer(server) as fake:
        server.silent = True
        assembly = grpo(tiny_model, tmp_path, endpoint_url=fake.url, **options)
        with pytest.raises(
            ModelError, match="no log-probability for every sampled token"
        ) as refused:
            drawn(assembly)
        assert fake.url in str(refused.value)
        assembly.runner.close()
        without_logprobs = grpo(
            tiny_model, tmp_path, endpoint_url=fake.url, endpoint_logprobs="none", **options
        )
        assert not drawn(without_logprobs).off_policy
        without_logprobs.runner.close()
        warm = grpo(tiny_model, tmp_path, endpoint_url=fake.url, temperature=0.7, **options)
        with pytest.raises(ConfigError, match=r"temperature 0\.7.*endpoint_logprobs: processed"):
            drawn(warm)
        warm.runner.close()
    gone = grpo(tiny_model, tmp_path, endpoint_url=fake.url, **options)
    with pytest.raises(ModelError, match="4 attempts failed") as down:
        drawn(gone)
    assert fake.url in str(down.value) and "Check that the server runs" in down.value.fix
    gone.runner.close()
