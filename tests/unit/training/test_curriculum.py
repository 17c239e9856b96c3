"""Easy to hard by measured success; the same prompts after a resume."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from thumbwheel.training.curriculum import Curriculum
from thumbwheel.training.online import RolloutPrompt
from thumbwheel.training.online_step import OnlineRunner


def curriculum_of(measured: list[int], rows: int = 40, steps: int = 20) -> Curriculum:
    def measure() -> dict[int, float]:
        measured.append(1)
        return {row: 1 - row / rows for row in range(rows - 1)}  # the last one could not be judged

    return Curriculum(rows, 4, steps, 7, measure)


def test_it_opens_from_the_easiest_to_all_and_draws_evenly() -> None:
    measured: list[int] = []
    batches = list(curriculum_of(measured).batches())
    assert measured == [1] and len(batches) == 20
    assert all(len(set(batch)) == 4 for batch in batches)
    assert max(batches[0]) < 10 and max(row for batch in batches[:5] for row in batch) < 25
    assert max(row for batch in batches for row in batch) == 39
    counts = Counter(row for batch in batches for row in batch)
    assert set(counts) == set(range(40)) and max(counts.values()) <= 4


def test_a_prompt_that_was_learned_opens_earlier() -> None:
    order = curriculum_of([])
    batches = order.batches()
    next(batches)
    assert 30 not in order.pool(1)
    for _ in range(6):
        order.record(30, 1.0)
    assert 30 in order.pool(1)


@pytest.mark.parametrize(("logged", "asked"), [([0.2, 0.9, 0.0], 0), ([0.2, None, 0.0], 3)])
def test_recorded_answers_say_how_hard_prompts_are_where_every_prompt_has_some(
    logged, asked, monkeypatch
) -> None:
    steps, met = object.__new__(OnlineRunner), []
    steps.config = SimpleNamespace(batch_size=1, num_generations=8, seed=1)
    items = [
        RolloutPrompt((1,), {"success": rate}, str(number), number)
        for number, rate in enumerate(logged)
    ]
    monkeypatch.setattr(OnlineRunner, "_sampling", lambda self, step: None)
    monkeypatch.setattr(
        OnlineRunner, "collect", lambda self, tasks, n, sampling: met.extend(tasks) or tasks
    )
    monkeypatch.setattr(
        "thumbwheel.training.online_step.success",
        lambda tasks: [(task.number, 0.5) for task in tasks],
    )
    assert steps._success_rates(items) == (
        dict(enumerate([0.5] * 3)) if asked else dict(enumerate(logged))
    )
    assert len(met) == asked


def test_a_resumed_run_draws_the_same_prompts_and_measures_nothing() -> None:
    whole, first, measured = curriculum_of([]), curriculum_of([]), []
    learned = lambda order, batch: [order.record(row, (row % 3) / 2) for row in batch]  # noqa: E731
    expected = [batch for batch in whole.batches() if learned(whole, batch)]
    drawn = []
    for batch in first.batches():
        learned(first, batch)
        drawn.append(batch)
        if len(drawn) == 7:
            break
    second = curriculum_of(measured)
    second.restore(first.state())
    drawn += [batch for batch in second.batches(7) if learned(second, batch)]
    assert drawn == expected and measured == []
