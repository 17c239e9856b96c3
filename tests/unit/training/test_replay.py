"""Replay: the policy is held to the base on the base's own answers to general questions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training_rows import assembled, loop_of, plain_rows
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.evaluation.suite import SuiteContext
from thumbwheel.evaluation.suites.regression import RegressionSuite
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.training.assemble import Assembly
from thumbwheel.training.replay import LONGEST_ANSWER, ROWS, Replay, questions


def replay_of(assembly: Assembly, folder: Path, weight: float = 1.0) -> Replay:
    return Replay.of(assembly.engine, assembly.builder, weight, folder)


def test_no_question_is_an_anchor_of_the_gate() -> None:
    anchors = RegressionSuite(SuiteContext([], [], EvaluationConfig())).anchors
    asked = {task.prompt.casefold() for task in anchors.tasks}
    assert len(set(questions())) == len(questions())
    for question in questions():
        assert question.casefold() not in asked
        assert "answer with" not in question.casefold()


def test_the_answers_are_the_greedy_ones_of_the_base(tiny_model: Path, tmp_path: Path) -> None:
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4))
    replay = replay_of(assembly, tmp_path)
    prompts = [example.prompt for example in replay.examples]
    sampling = Sampling(
        max_new_tokens=LONGEST_ANSWER,
        temperature=0.0,
        stop_ids=tuple(assembly.builder.stop_ids),
    )
    groups = GroupSampler(assembly.model, assembly.builder.tokenizer).sample(prompts, 1, sampling)
    answers = [example.branches[0].ids for example in replay.examples]
    assert answers == [rollout.ids for (rollout,) in groups]
    assembly.runner.close()


def test_the_base_answers_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4))
    first = replay_of(assembly, tmp_path)
    monkeypatch.setattr(GroupSampler, "sample", lambda *_: pytest.fail("it answered again"))
    assert replay_of(assembly, tmp_path) == first
    assembly.runner.close()


def test_a_trial_asks_the_base_nothing(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are as long as real ones, so that a step costs as much."""
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4))
    monkeypatch.setattr(GroupSampler, "sample", lambda *_: pytest.fail("it asked the base"))
    replay = Replay.of(assembly.engine, assembly.builder, 1.0, tmp_path / "none", is_trial=True)
    assert len(replay.examples) == ROWS
    assert {len(each.branches[0].ids) for each in replay.examples} <= {
        *range(6, LONGEST_ANSWER + 1)
    }
    assert replay.backward(assembly.engine, 0, 512) == pytest.approx(0.0, abs=1e-5)
    assembly.runner.close()


def test_every_question_has_its_turn_before_one_comes_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4))
    replay = replay_of(assembly, tmp_path)
    steps = len(replay.examples) // ROWS
    groups = [example.group for step in range(steps) for example in replay.rows(step)]
    assert len(groups) == len(set(groups)) == steps * ROWS
    assembly.runner.close()


def test_its_gradient_is_that_of_the_mean_divergence_over_tokens(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Against plain transformers on the same adapter, row by row."""
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4), dtype="float32")
    replay = replay_of(assembly, tmp_path, weight=0.5)
    trainable = [weight for weight in assembly.model.parameters() if weight.requires_grad]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in trainable:
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    nats = replay.backward(assembly.engine, 0, 4096)
    gradients = [weight.grad.clone() for weight in trainable if weight.grad is not None]
    assembly.engine.zero_grad()

    total, tokens = torch.zeros(()), 0
    for example in replay.rows(0):
        answer = example.branches[0].ids
        ids = torch.tensor([[*example.prompt, *answer]])
        predicting = slice(len(example.prompt) - 1, -1)
        with torch.no_grad(), assembly.model.disable_adapter():
            base = assembly.model(input_ids=ids).logits[0, predicting].log_softmax(-1)
        policy = assembly.model(input_ids=ids).logits[0, predicting].log_softmax(-1)
        total = total + torch.nn.functional.kl_div(policy, base, reduction="sum", log_target=True)
        tokens += len(answer)
    (0.5 * total / tokens).backward()  # type: ignore[no-untyped-call]

    assert nats == pytest.approx(float(total.detach()) / tokens, rel=1e-4)
    assert nats > 0.01
    expected = [weight.grad for weight in trainable if weight.grad is not None]
    assert len(gradients) == len(expected) > 0
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)
    assembly.runner.close()


def test_the_base_does_not_differ_from_itself(tiny_model: Path, tmp_path: Path) -> None:
    assembly = assembled("sft", tiny_model, tmp_path, plain_rows("chats", 4), dtype="float32")
    replay = replay_of(assembly, tmp_path)
    assert replay.backward(assembly.engine, 0, 4096) == pytest.approx(0.0, abs=1e-6)
    gradients = [weight.grad for weight in assembly.model.parameters() if weight.grad is not None]
    assert all(float(gradient.abs().max()) < 1e-6 for gradient in gradients)
    assembly.runner.close()


def test_the_policy_stays_near_the_base(tiny_model: Path, tmp_path: Path) -> None:
    """The same rows at the same rate, with replay and without."""
    after = {}
    for weight in (0.0, 10.0):
        folder = tmp_path / str(weight)
        folder.mkdir()
        assembly = assembled(
            "sft",
            tiny_model,
            folder,
            plain_rows("chats", 16),
            learning_rate=2e-2,
            max_steps=12,
            replay_weight=weight,
        )
        replay = replay_of(assembly, folder, weight=1.0)
        loop_of(assembly, folder).run()
        after[weight] = replay.backward(assembly.engine, 0, 4096)
        assembly.runner.close()
    assert after[10.0] < after[0.0] / 2
