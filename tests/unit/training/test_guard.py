"""What ends a run that games its reward, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from thumbwheel.training.guard import WINDOW, DriftGuard, EvaluationRecord

N = 40


def seen(reward: float, length: int = 10, **held_out: float) -> EvaluationRecord:
    """Dev answers of which so many are right."""
    share = lambda part: [float(number < part * N) for number in range(N)]  # noqa: E731
    return EvaluationRecord(
        share(reward), [length] * N, {}, {name: share(part) for name, part in held_out.items()}
    )


def reasons(guard: DriftGuard, *records: EvaluationRecord) -> list[str | None]:
    return [guard.evaluation(record) for record in records]


def test_the_kl_budget_is_held_against_several_steps() -> None:
    guard = DriftGuard(0.1, None)
    assert [guard.step({"kl": value}) for value in (0.02, 0.15, 0.02)] == [None] * WINDOW
    assert (
        guard.step({"kl": 0.3})
        == "the KL budget is spent: 0.157 nats a token away from the base, kl_budget 0.1"
    )
    assert DriftGuard(None, None).step({"kl": 9.0}) is None


def test_longer_answers_end_a_run_only_when_they_are_no_better() -> None:
    assert reasons(DriftGuard(None, 3.0), seen(0.3), seen(0.3, 29), seen(0.8, 40)) == [None] * 3
    *fine, reason = reasons(DriftGuard(None, 3.0), seen(0.3), seen(0.3, 29), seen(0.3, 31))
    assert fine == [None, None]
    assert (
        reason
        == "answers grew from 10 to 31 tokens on the dev prompts, and the dev reward is no better "
        "(0.3 to 0.3)"
    )
    assert reasons(DriftGuard(None, None), seen(0.3), seen(0.1, 500)) == [None, None]


def test_what_an_earlier_evaluation_did_not_watch_decides_nothing() -> None:
    begun = DriftGuard(None, None)
    reasons(begun, seen(0.3))
    resumed = DriftGuard(None, None)
    resumed.restore(begun.state())
    assert reasons(resumed, seen(0.5, truth=0.7), seen(0.7, truth=0.2)) == [None, None]


def test_a_reward_that_rises_while_what_is_held_out_falls() -> None:
    """Measured against its best, and only beyond noise."""
    good = seen(0.3, truth=0.5), seen(0.5, truth=0.7)
    assert reasons(DriftGuard(None, None), *good, seen(0.7, truth=0.65)) == [None] * 3
    *fine, reason = reasons(DriftGuard(None, None), *good, seen(0.7, truth=0.45))
    assert fine == [None, None]
    assert reason and "truth, which is not optimised, fell from 0.7 to 0.45" in reason
    assert (
        reasons(DriftGuard(None, None), *good, seen(0.2, truth=0.3)) == [None] * 3
    )  # both fall: no gaming


@pytest.mark.parametrize(
    ("truths", "stops"),
    [
        ((0.5, 0.5, 0.5, 0.5, 0.5), True),
        ((0.6, 0.5, 0.55, 0.6, 0.5), True),
        ((0.5, 0.6, 0.55, 0.6, 0.5), False),  # once low may be chance
        ((0.5, 0.5, 0.5, 0.5, 0.525), False),  # it rises with the reward, if only a little
        ((0.95, 0.95, 0.95, 0.95, 0.95), False),  # and here it hardly could
        ((1.0, 1.0, 1.0, 1.0, 1.0), False),
        ((0.5, 0.5, 0.5, 0.5), False),
    ],
)
def test_a_reward_that_rises_while_what_is_held_out_stays(
    truths: tuple[float, ...], stops: bool
) -> None:
    rising = (0.1, 0.25, 0.4, 0.55, 0.7)
    *fine, last = reasons(
        DriftGuard(None, None),
        *(seen(reward, truth=truth) for reward, truth in zip(rising, truths, strict=False)),
    )
    assert fine == [None] * (len(truths) - 1)
    assert (last is not None) is stops
    if last:
        assert last == (
            "the reward is being gamed: it rose from 0.1 to 0.7 on the dev prompts in 4 "
            "evaluations, and truth, which is not optimised, "
            f"gained nothing ({truths[0]:g} to 0.5)"
        )
    assert (
        reasons(DriftGuard(None, None), *(seen(0.3, truth=0.5) for _ in range(6))) == [None] * 6
    )  # nor did the reward


def test_a_number_that_is_nearly_as_good_as_it_was_anywhere_has_no_room() -> None:
    level = lambda offset: [0.97 + 0.001 * ((number * 7 + offset) % 20) for number in range(N)]  # noqa: E731
    rising = (0.1, 0.25, 0.4, 0.55, 0.7)
    assert (
        reasons(
            DriftGuard(None, None),
            *(EvaluationRecord(seen(r).rewards, [9] * N, {}, {"mine": level(0)}) for r in rising),
        )
        == [None] * 5
    )
    low = [
        EvaluationRecord(
            seen(r).rewards,
            [9] * N,
            {},
            {"mine": [value - 0.5 * (number % 2) for number, value in enumerate(level(0))]},
        )
        for r in rising
    ]
    assert "gained nothing" in str(reasons(DriftGuard(None, None), *low)[-1])


def test_a_few_answers_that_all_fell_prove_nothing() -> None:
    for many, stops in ((3, False), (24, True)):
        both = (
            EvaluationRecord([0.0] * many, [9] * many, {}, {"truth": [1.0] * many}),
            EvaluationRecord([1.0] * many, [9] * many, {}, {"truth": [0.5] * many}),
        )
        assert bool(reasons(DriftGuard(None, None), *both)[-1]) is stops


def test_longer_answers_that_are_all_better_by_as_much_are_worth_it() -> None:
    assert reasons(
        DriftGuard(None, 1.5),
        EvaluationRecord([-1.0] * 3, [10] * 3),
        EvaluationRecord([2.0] * 3, [20] * 3),
    ) == [
        None,
        None,
    ]


def test_a_reward_that_rises_in_training_alone_counts_too() -> None:
    guard = DriftGuard(None, None)
    results = []
    for trained, evaluation in (
        (0.0, seen(0.5, truth=0.5)),
        (0.2, seen(0.5, truth=0.7)),
        (0.9, seen(0.5, truth=0.2)),
    ):
        guard.step({"reward": trained})
        results.append(guard.evaluation(evaluation))
    assert results[:2] == [None, None] and "gamed" in str(results[2])


def test_answers_that_no_longer_end() -> None:
    ended = [EvaluationRecord([1.0] * N, [9] * N, {"eos_rate": rate}) for rate in (0.9, 0.6, 0.4)]
    assert reasons(DriftGuard(None, None), *ended) == [
        None,
        None,
        "the answers collapsed: 40% of fresh greedy answers to dev prompts come to an end, 90% "
        "under the base",
    ]


def test_answers_without_a_value_are_left_out() -> None:
    blank = EvaluationRecord([None] * N, [10] * N, {}, {"truth": [None] * N})
    assert reasons(DriftGuard(None, 2.0), blank, blank) == [None, None]
    assert "without any dev reward" in str(
        reasons(DriftGuard(None, 2.0), blank, EvaluationRecord([None] * N, [30] * N))[1]
    )


def test_its_state_survives(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = DriftGuard(0.1, 3.0), DriftGuard(0.1, 3.0)
    first.evaluation(seen(0.3, truth=0.5))
    for value in (0.02, 0.2):
        first.step({"kl": value, "reward": 0.1, "entropy": 2.0})
    state: dict[str, Any] = first.state()
    second.restore(state)
    assert second.state() == state
    assert second.step({"kl": 0.3, "entropy": 0.1}) == first.step({"kl": 0.3, "entropy": 0.1})
    assert (
        second.evaluation(seen(0.5, 10, truth=0.1))
        == first.evaluation(seen(0.5, 10, truth=0.1))
        is not None
    )
    assert capsys.readouterr().err.count("entropy has collapsed") == 2


def test_an_evaluation_that_lost_what_the_base_has_is_passed_over() -> None:
    share = lambda part, of=N: [float(number < part * of) for number in range(of)]  # noqa: E731

    def liked(part, of=N):
        return EvaluationRecord(
            share(0.5), [9] * N, {}, kept={"eos_rate": share(1.0), "liked_rate": share(part, of)}
        )

    guard = DriftGuard(None, None)
    for part, passed in ((0.8, False), (0.75, False), (0.9, False), (0.6, True), (0.8, False)):
        assert guard.evaluation(liked(part)) is None
        assert (guard.unfit() is not None) is passed, part
    reasons(guard, liked(0.6))
    assert (
        guard.unfit()
        == "60% of fresh answers to dev prompts are ones that people liked, 80% under the base"
    )
    again = DriftGuard(None, None)
    again.restore(guard.state())
    assert again.unfit() == guard.unfit()
    few = DriftGuard(None, None)
    reasons(few, liked(1.0, 7), liked(0.0, 7))
    assert few.unfit() is None  # seven answers prove nothing


def test_what_the_base_has_no_values_of_is_not_compared() -> None:
    """A run may go on from a checkpoint whose first evaluation had no guarded values."""
    liked, ended = [1.0] * N, [1.0] * N
    now = EvaluationRecord([0.5] * N, [9] * N, kept={"liked_rate": liked, "eos_rate": [0.0] * N})
    guard = DriftGuard(None, None)
    reasons(guard, EvaluationRecord([0.5] * N, [9] * N), now)
    assert guard.unfit() is None

    # A name that the base has is still compared.
    guard = DriftGuard(None, None)
    reasons(guard, EvaluationRecord([0.5] * N, [9] * N, kept={"eos_rate": ended}), now)
    assert "0% of fresh answers to dev prompts" in str(guard.unfit())
