"""Checks of rows before training: each finds what it is for, names the rows, and stops the build
where it must."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training_rows import row as training_row
from tests.worlds.feedback_world import AGENT, FeedbackWorld
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.datasets import minhash
from thumbwheel.datasets.build import build, health
from thumbwheel.datasets.health import (
    CHECKS,
    CheckedRow,
    CheckedRows,
    Finding,
    _auc,
    check,
    require_healthy,
)
from thumbwheel.datasets.minhash import near_pairs
from thumbwheel.datasets.types import DatasetConfig

WORDS = [
    f"{first}{second}"
    for first in ("ka", "lo", "mi", "nu", "pe")
    for second in ("r", "s", "t", "v", "b", "d")
]


def words(seed: int, count: int = 30) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def row(
    number: int,
    prompt: str,
    *answers: str,
    split: str = "train",
    label: bool | None = None,
    strength: float = 1.0,
) -> CheckedRow:
    return CheckedRow(f"row_{number}", split, prompt, answers, label, len(answers) == 2, strength)


def finding(name: str, *rows: CheckedRow, **more: object) -> Finding:
    return CHECKS[name](CheckedRows(len(rows), list(rows), **more))  # type: ignore[arg-type]


def test_near_copies_are_found_and_others_are_not() -> None:
    text = words(1, 60)
    changed = text.replace(text.split()[30], "otherwise", 1)
    texts = [
        text,
        words(2, 60),
        changed,
        text.upper() + "  ",
        "short one",
        "Short  one",
        words(3, 60),
    ]
    assert {
        (first, second): round(overlap, 1) for first, second, overlap in near_pairs(texts)
    }.keys() == {
        (0, 3),
        (4, 5),
        (0, 2),
    }
    assert (
        next(overlap for first, second, overlap in near_pairs(texts) if (first, second) == (0, 3))
        == 1.0
    )


def test_the_estimate_is_near_the_true_overlap() -> None:
    base = words(5, 200).split()
    other = base[:190] + words(6, 10).split()

    def triples(tokens: list[str]) -> set[str]:
        return {" ".join(tokens[start : start + 3]) for start in range(len(tokens) - 2)}

    overlap = len(triples(base) & triples(other)) / len(triples(base) | triples(other))
    ((_, _, estimate),) = near_pairs([" ".join(base), " ".join(other)], near=0.3)
    assert estimate == pytest.approx(overlap, abs=0.2)


def test_leakage_is_an_error_where_much_of_what_is_held_out_stands_in_train() -> None:
    train = [row(number, words(number), "a") for number in range(60)]
    fresh = [row(100 + number, words(1000 + number), "b", split="gate") for number in range(60)]
    assert finding("leakage", *train, *fresh).verdict == "ok"
    copied = [
        row(200 + number, f"{words(number)} please", "b", split="gate") for number in range(30)
    ]
    leakage = finding("leakage", *train, *fresh[:30], *copied)
    assert (leakage.verdict, leakage.count) == ("error", 30)
    assert set(leakage.rows) <= {checked_row.row_id for checked_row in copied}
    assert finding("leakage", *train, *fresh, copied[0]).verdict == "warning"
    assert finding("leakage", *train).verdict == "not applicable"


def test_length_bias_of_pairs_and_of_labels() -> None:
    pairs = [
        row(number, words(number), words(number, 20), words(number, 5)) for number in range(30)
    ]
    assert finding("length", *pairs).verdict == "warning"
    fair = [
        row(number, words(number), words(number, 5 + number % 2), words(number, 6 - number % 2))
        for number in range(30)
    ]
    assert finding("length", *fair).verdict == "ok"
    labels = [
        row(number, words(number), words(number, 5 + 10 * (number % 2)), label=bool(number % 2))
        for number in range(40)
    ]
    assert finding("length", *labels).verdict == "warning"
    assert finding("length", row(1, "q", "a")).verdict == "not applicable"


def test_noise_is_estimated_from_equal_answers_with_different_labels() -> None:
    rows = [
        row(2 * number + side, words(number), "same answer", label=side == 0 or number % 4 > 0)
        for number in range(60)
        for side in (0, 1)
    ]
    noise = finding("noise", *rows)
    assert noise.verdict == "warning"
    assert "15% of the labels are wrong: 25% of 60 pairs" in noise.text
    assert noise.count == 30
    assert finding("noise", *rows[:10]).verdict == "not applicable"


def test_an_answer_and_its_correction_are_no_contradiction() -> None:
    rows = []
    for number in range(60):
        bad = row(2 * number, words(number), "the same answer", label=False)
        edited = row(2 * number + 1, words(number), "the same answer", label=True)
        rows += [bad, replace(edited, is_correction=True)]
    noise = finding("noise", *rows)
    assert noise.verdict != "warning"


def test_balance_conflict_and_copies() -> None:
    rows = [
        row(number, words(number), "a", label=number > 2, strength=0.5 if number < 20 else 1.0)
        for number in range(60)
    ]
    assert (finding("balance", *rows).verdict, finding("balance", *rows).count) == ("warning", 3)
    assert (finding("conflict", *rows).verdict, finding("conflict", *rows).count) == ("warning", 20)
    copies = finding(
        "duplicates", *rows, *(row(100 + number, words(number), "a") for number in range(10))
    )
    assert (copies.verdict, copies.count) == ("warning", 20)
    assert "10 exact" in copies.text


def test_truncation_says_how_it_counted() -> None:
    rows = [row(1, "a" * 400, "b" * 400), row(2, "a", "b")]
    assert finding("truncation", *rows).verdict == "not applicable"
    guessed = finding("truncation", *rows, length=100)
    assert (guessed.verdict, guessed.rows) == ("warning", ("row_1",))
    assert "estimated at 4 characters" in guessed.text
    assert (
        "by the tokenizer" in finding("truncation", *rows, length=100, tokens=lambda text: 1).text
    )


def test_an_error_stops_the_build_unless_it_is_named(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(30):
        key = " my key is ghp_" + "a1B2" * 10 if number == 3 else ""
        world.say(
            "thumb",
            number % 2 == 0,
            world.trace(f"t{number}", f"{words(number)}{key}", words(100 + number)),
        )
    config = {"dev": 0.1, "gate": 0.1}
    with world.into(tmp_path) as ws:
        with pytest.raises(DataError, match=r"pii: api key in 1 rows \(such as row_.*--allow pii"):
            build(ws, AGENT, "labels", DatasetConfig(**config))
        with pytest.raises(InputError, match="Did you mean 'pii'"):
            build(ws, AGENT, "labels", DatasetConfig(**config, allow=("pi",)))
        dataset = build(ws, AGENT, "labels", DatasetConfig(**config, allow=("pii",)))
        stored = {
            result["check"]: result["verdict"] for result in dataset.manifest["health"]["findings"]
        }
        assert stored == {result.check: result.verdict for result in health(ws, dataset.id)}
        assert list(stored) == list(CHECKS)
        assert stored["pii"] == "error"


def test_no_rows_give_findings_too() -> None:
    require_healthy(check(CheckedRows()), (), "nothing")


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1))
def test_the_share_of_longer_desirable_answers_counts_ties_half(
    judged: list[tuple[int, bool]],
) -> None:
    """As the sum over all pairs of a good and a bad answer has it."""
    good, bad = ([length for length, label in judged if label is side] for side in (True, False))
    each = [
        1.0 if first > other else 0.5 if first == other else 0.0 for first in good for other in bad
    ]
    assert _auc([length for length, _ in judged], [good for _, good in judged]) == pytest.approx(
        sum(each) / len(each) if each else 0.5
    )


def test_near_copies_are_found_across_the_parts_in_which_texts_are_split_into_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [words(seed) for seed in range(7)]
    texts += [f"{texts[0]} more", f"{texts[6]} more"]
    whole = list(near_pairs(texts))
    monkeypatch.setattr(minhash, "SPLIT", 2)
    assert {pair[:2] for pair in whole} == {(0, 7), (6, 8)} and list(near_pairs(texts)) == whole


def test_a_dialogue_that_is_cut_apart_is_found() -> None:
    """The next turn of a training prompt, in the gate, is no near copy of it."""
    texts = CheckedRows()
    for number in range(30):
        opening = [{"role": "user", "content": f"Where is parcel {number}?"}]
        later = [
            *opening,
            {"role": "assistant", "content": f"On shelf {number}."},
            {"role": "user", "content": "And when does it leave?"},
        ]
        for split, prompt, answer in (
            ("train", opening, f"On shelf {number}."),
            ("gate", later, "Today."),
        ):
            texts.take(
                [replace(training_row("labels", number, split), prompt=prompt, completion=answer)]
            )
    leakage = CHECKS["leakage"](texts)
    assert (leakage.verdict, leakage.count) == ("error", 30)
    assert "30 are of one dialogue" in leakage.text
