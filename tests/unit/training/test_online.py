"""Learning from fresh answers: what enters the loss, and how a run ends whose reward can be gamed.
The rewards here really can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.reversal import reversal_rows, terse_base
from tests.training_rows import assembled, judge_of, loop_of
from thumbwheel.core.errors import ConfigError, DataError
from thumbwheel.engine.rollout import Rollout
from thumbwheel.training.algorithms.grpo import Grpo, GrpoConfig
from thumbwheel.training.assemble import settings
from thumbwheel.training.judge import Reward
from thumbwheel.training.online import AnswerBatch, RolloutPrompt
from thumbwheel.training.online_step import weighted

TRUTH = {"checker": "regex", "checker_config": {"pattern": "ab", "full": True}}
LONGER = {"checker": "regex", "checker_config": {"pattern": ".{4,}"}}
RUN: dict[str, Any] = {
    "batch_size": 8,
    "num_generations": 8,
    "max_completion_length": 12,
    "max_length": 40,
    "max_steps": 40,
    "eval_steps": 2,
    "save_steps": 1,
    "learning_rate": 5e-3,
    "reward_workers": 1,
    "early_stopping_patience": None,
    "save_total_limit": 50,
}


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its greedy answer to everything is `ab`."""
    return terse_base(tmp_path_factory.mktemp("terse"))


def trained(
    terse: Path, folder: Path, rows: list[dict[str, Any]], **changes: Any
) -> tuple[Any, Any]:
    assembly = assembled("grpo", terse, folder, rows, **RUN | changes)
    loop = loop_of(assembly, folder)
    try:
        return loop.run(), loop
    finally:
        assembly.runner.close()


def dev_metric(loop: Any, step: int | None, name: str) -> float:
    """A dev metric of the evaluation of `step`."""
    return next(
        line[f"eval_{name}"]
        for line in loop.state.log_history
        if line["step"] == step and f"eval_{name}" in line
    )


@pytest.mark.slow
def test_a_gamed_reward_ends_the_run_with_the_adapter_from_before(
    terse: Path, tmp_path: Path
) -> None:
    rows = reversal_rows(64, 24, **TRUTH)
    ending, loop = trained(
        terse,
        tmp_path,
        rows,
        reward_functions=("reward_functions:length",),
        held_out=("checker",),
        length_creep=None,
    )
    assert (
        "the reward is being gamed: checker, which is not optimised, fell" in ending.reason
        and ending.step < 40
    )
    assert (
        dev_metric(loop, 0, "held_out/checker") == 1
        and dev_metric(loop, ending.step, "held_out/checker") < 0.8
    )
    assert ending.best < ending.step and dev_metric(loop, ending.best, "held_out/checker") > 0.8


def test_a_judge_reads_an_answer_without_the_text_that_ended_it(
    terse: Path, tmp_path: Path
) -> None:
    rows = reversal_rows(8, 8, checker="regex", checker_config={"pattern": "a", "full": True})
    for stop, right in ((("b",), 1.0), ((), 0.0)):
        _, loop = trained(terse, tmp_path / str(right), rows, stop=stop, max_steps=1)
        assert dev_metric(loop, 0, "reward") == right


def test_longer_answers_for_nothing_end_it(terse: Path, tmp_path: Path) -> None:
    """The training prompts pay for length, the dev prompts do not."""
    rows = [
        *reversal_rows(64, 0, **LONGER),
        *reversal_rows(0, 24, seed=2, **TRUTH | {"checker_config": {"pattern": "a"}}),
    ]
    ending, loop = trained(terse, tmp_path, rows, length_creep=1.5)
    assert "and the dev reward is no better" in ending.reason and ending.best < ending.step
    assert dev_metric(loop, ending.step, "completions/mean_length") > 1.5 * dev_metric(
        loop, 0, "completions/mean_length"
    )


def test_a_spent_kl_budget_ends_it(terse: Path, tmp_path: Path) -> None:
    ending, loop = trained(
        terse, tmp_path, reversal_rows(64, 8, **LONGER), kl_budget=0.1, length_creep=None
    )
    assert "the KL budget is spent" in ending.reason and ending.best < ending.step
    history = [line["kl"] for line in loop.state.log_history if "kl" in line]
    assert sum(history[-3:]) / 3 > 0.1 and all(
        sum(history[start : start + 3]) / 3 <= 0.1 for start in range(len(history) - 3)
    )


def test_answers_that_no_longer_end_are_a_collapse(terse: Path, tmp_path: Path) -> None:
    rows = reversal_rows(64, 8, **LONGER | {"checker_config": {"pattern": ".{12}"}})
    ending, _ = trained(
        terse, tmp_path, rows, length_creep=None, reward_functions=("reward_functions:length",)
    )
    assert "come to an end" in str(ending.reason or ending.wrong) and ending.best != ending.step


@pytest.mark.slow
def test_what_people_liked_ends_a_run_that_unlearns_it(terse: Path, tmp_path: Path) -> None:
    """The reward model loves `a`, people liked the base's `ab`; where the first look is too late,
    nothing is kept."""
    rows = reversal_rows(64, 24, liked="ab", checker=None, reference=None)
    pairs = [
        row | {"chosen": "a", "rejected": "ab", "chosen_finish": "stop", "rejected_finish": "stop"}
        for row in rows
    ]
    judge = judge_of(terse, tmp_path, pairs, 20)
    settings: dict[str, Any] = {
        "judge": judge,
        "reward_model": "rm1",
        "reward_functions": (),
        "beta": 0.0,
        "length_creep": None,
    }
    ending, loop = trained(terse, tmp_path / "often", rows, **settings)
    assert (
        "are ones that people liked, 100% under the base" in ending.reason
        and ending.best < ending.step < 40
    )
    assert dev_metric(loop, 0, "liked_rate") == 1 and dev_metric(
        loop, ending.best, "liked_rate"
    ) > 0.8 > dev_metric(loop, ending.step, "liked_rate")
    ending, _ = trained(terse, tmp_path / "late", rows, **settings | {"eval_steps": ending.step})
    assert ending.best is None and "are ones that people liked" in ending.wrong


def test_the_form_is_seen_where_people_liked_it_and_only_a_learned_judge_is_doubted(
    terse: Path, tmp_path: Path
) -> None:
    """No function here looks at the form; what people liked is JSON, which this base does not
    speak."""
    rows = reversal_rows(8, 8, liked='{"a": 1}', **LONGER)
    pairs = [
        row | {"chosen": "a", "rejected": "ab", "chosen_finish": None, "rejected_finish": None}
        for row in rows
    ]
    judge = judge_of(terse, tmp_path, pairs, 1)
    _, loop = trained(
        terse, tmp_path / "judged", rows, max_steps=1, judge=judge, reward_model="rm1"
    )
    assert (dev_metric(loop, 0, "format_rate"), dev_metric(loop, 0, "liked_rate")) == (0, 0)
    _, loop = trained(terse, tmp_path / "checked", rows, max_steps=1)
    assert not any("eval_liked_rate" in line for line in loop.state.log_history)


@pytest.mark.parametrize(
    ("method", "near"),
    [("grpo", {"beta": 0.4, "scale_rewards": "batch"}), ("ppo", {"init_kl_coef": 0.4})],
)
def test_a_reward_model_keeps_a_run_near_its_base_unless_told_otherwise(
    method: str, near: dict[str, Any]
) -> None:
    plain, judged = settings(method, {}), settings(method, {"reward_model": "rm1"})
    name = next(iter(near))
    assert all(getattr(judged, key) == value != getattr(plain, key) for key, value in near.items())
    assert getattr(settings(method, {"reward_model": "rm1", name: 0.1}), name) == 0.1
    assert settings(method, judged.model_dump()) == judged


def collected(*groups: list[tuple[int, float | None, str]]) -> AnswerBatch:
    """Answers as (tokens, reward, finish)."""
    tasks = [RolloutPrompt((5, 6), {}, f"g{number}", number) for number in range(len(groups))]
    rollouts = [
        [Rollout(tuple(range(10, 10 + size)), None, finish, "") for size, _, finish in group]
        for group in groups
    ]  # type: ignore[arg-type]
    return AnswerBatch(
        tasks,
        rollouts,
        [[Reward(value, {}, {}, None) for _, value, _ in group] for group in groups],
    )


def test_what_enters_the_loss_and_what_only_its_denominator() -> None:
    batch = collected(
        [(2, 1.0, "stop"), (3, 0.0, "length"), (4, None, "stop"), (0, 1.0, "length")],
        [(5, 1.0, "stop"), (6, 1.0, "stop")],
        [(7, None, "stop"), (8, None, "stop")],
    )
    method = Grpo(GrpoConfig(scale_rewards="none", loss_type="grpo"))
    experience = method.experience(batch, score=None)  # type: ignore[arg-type]  # neither old nor reference log-probs are needed
    (example,) = experience.examples  # alike, unjudged and empty answers are not computed
    assert [len(branch.ids) for branch in example.branches] == [2, 3]
    assert experience.tokens["advantage"][0].tolist() == pytest.approx([1 / 3] * 2 + [-2 / 3] * 3)
    assert experience.tokens["weight"][0].tolist() == pytest.approx(
        [1 / 4 / 2] * 2 + [1 / 4 / 3] * 3
    )  # the group of equals counts
    assert experience.metrics["frac_reward_zero_std"] == pytest.approx(2 / 3)
    masked = Grpo(GrpoConfig(scale_rewards="none", mask_truncated_completions=True)).experience(
        batch, score=None
    )  # type: ignore[arg-type]
    assert [len(branch.ids) for branch in masked.examples[0].branches] == [2]
    assert masked.tokens["weight"][0].tolist() == pytest.approx([1 / 13] * 2)


def test_prompts_that_teach_nothing_are_answered_anew_as_often_as_asked() -> None:
    batch = collected([(2, 1.0, "stop"), (2, 0.0, "stop")], [(2, 1.0, "stop"), (2, 1.0, "stop")])
    method = Grpo(GrpoConfig(resample_zero_variance=2))
    assert [method.tasks_to_resample(batch, turn) for turn in (1, 2, 3)] == [[1], [1], []]
    assert Grpo(GrpoConfig()).tasks_to_resample(batch, 1) == []
    assert method.tasks_to_resample(
        collected([(2, None, "stop"), (3, None, "stop")], [(2, 1.0, "stop"), (2, None, "stop")]), 1
    ) == [1]
    better = batch.replaced([1], collected([(3, 0.0, "stop"), (4, 1.0, "stop")]))
    assert better.values == [[1.0, 0.0], [0.0, 1.0]] and len(better.rollouts[1][1].ids) == 4


def test_prompts_that_nothing_can_judge_are_left_out(terse: Path, tmp_path: Path) -> None:
    rows = [*reversal_rows(3, 1), reversal_rows(1, 0, seed=5, checker=None, reference=None)[0]]
    assembly = assembled("grpo", terse, tmp_path, rows, **RUN)
    assembly.runner.close()
    assert (
        dict(assembly.train.dropped)
        == {"neither a checker nor a reference, and nothing else judges": 1}
        and len(assembly.train.items) == 3
    )
    with_function = Grpo(GrpoConfig(reward_functions=("checker", "reward_functions:length")))
    assert len(with_function.prepare(rows, assembly.builder).items) == 5


def test_a_prompt_that_the_template_refuses_is_left_out_and_counted(
    terse: Path, tmp_path: Path
) -> None:
    assembly = assembled("grpo", terse, tmp_path, reversal_rows(3, 1), **RUN)
    assembly.runner.close()
    assembly.builder.tokenizer.chat_template = (
        "{{ raise_exception('no system') if messages[0].role == 'system' }}ab"
    )
    rows = [
        *reversal_rows(2, 0),
        reversal_rows(1, 0, prompt=[{"role": "system", "content": "be brief"}])[0],
    ]
    prepared = Grpo(GrpoConfig()).prepare(rows, assembly.builder)
    assert len(prepared.items) == 2
    ((reason, count),) = prepared.dropped.items()
    assert count == 1 and "no system" in reason


@pytest.mark.parametrize("more", [{}, {"num_iterations": 2}, {"kl_budget": 1.0}])
def test_nothing_to_compare_is_no_update(
    terse: Path, tmp_path: Path, more: dict[str, object]
) -> None:
    import torch

    rows = reversal_rows(8, 2, **LONGER | {"checker_config": {"pattern": ""}})
    assembly = assembled(
        "grpo", terse, tmp_path, rows, **RUN | {"max_steps": 1, "resample_zero_variance": 1} | more
    )
    asked: list[int] = []
    sample = assembly.runner.source.sample
    assembly.runner.source.sample = lambda prompts, n, sampling, ended: (
        asked.append(sampling.seed) or sample(prompts, n, sampling)
    )
    before = [
        parameter.clone() for parameter in assembly.model.parameters() if parameter.requires_grad
    ]
    loop = loop_of(assembly, tmp_path)
    loop.run()
    assembly.runner.close()
    line = next(line for line in loop.state.log_history if "reward" in line)
    assert (line["updates"], line["frac_reward_zero_std"], line["loss"]) == (0, 1, 0)
    assert (
        len(asked) == 4 and asked[1] != asked[2]
    )  # evaluation, the step, its second try, evaluation
    assert all(
        torch.equal(old, new)
        for old, new in zip(
            before,
            (parameter for parameter in assembly.model.parameters() if parameter.requires_grad),
            strict=True,
        )
    )


def test_a_judge_that_always_fails_and_one_that_is_none(terse: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of them has a reward \(reward_functions:crash: "):
        trained(terse, tmp_path, reversal_rows(8, 2), reward_functions=("reward_functions:crash",))
    with pytest.raises(ConfigError, match="no judge is left"):
        assembled("grpo", terse, tmp_path, reversal_rows(8, 2), **RUN | {"reward_functions": ()})
    for weight in ("checker=0", "checker=much"):
        with pytest.raises(ConfigError, match="is not a weight"):
            weighted(weight)
