"""The worlds in which learning is measured: proving seeds meet nothing that a tuning seed has seen, and people err as often as said."""

from __future__ import annotations

import importlib
import random
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from public_data import public_data

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    public_data("intents/banking77-train.jsonl")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("worlds")


@pytest.fixture
def written(worlds: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`written(name, seed, ratings)`: the files of a world whose app is right about every third message."""
    intents = importlib.import_module("worlds.intents")
    world_module = importlib.import_module("worlds.world")

    def exchanges(base: Path, examples: list[Any], seed: int, max_new_tokens: int) -> list[Any]:
        answers = [example.answer if number % 3 == 0 else examples[number - 1].answer for number, example in enumerate(examples)]
        at = datetime(2026, 1, 1, tzinfo=UTC)
        return [
            world_module.Exchange(f"t-{number}", "s-1", "u-1", at, example, text, "stop")
            for number, (example, text) in enumerate(zip(examples, answers, strict=True))
        ]

    monkeypatch.setattr(intents, "sampled_exchanges", exchanges)
    return lambda name, seed, ratings: worlds.WORLDS[name].write(tmp_path / f"{name}-{seed}-{ratings}", seed, ratings, Path("base"))


def test_seeds_that_prove_are_no_seeds_that_tune(worlds: ModuleType) -> None:
    for world in worlds.WORLDS.values():
        assert not set(world.tune) & set(world.prove), world.name
        assert world.prove, world.name


def test_proving_seeds_draw_from_messages_that_no_tuning_seed_meets(written: Any) -> None:
    def texts(seed: int, ratings: int) -> tuple[set[str], set[str]]:
        files = written("desk", seed, ratings)
        return {example.group for example in files.taught}, {example.group for example in files.gold_examples}

    tuned, tuned_gold = texts(1, 1500)
    proved, proved_gold = texts(4, 2500)
    assert (len(tuned), len(proved)) == (1500, 2500)
    assert not (tuned | tuned_gold) & (proved | proved_gold)
    assert not tuned & tuned_gold
    assert not proved & proved_gold
    assert len(proved_gold) > 1000


def test_fewer_ratings_are_the_first_ones_and_the_gold_stays(written: Any) -> None:
    few, many = written("desk", 4, 50), written("desk", 4, 250)
    assert few.taught == many.taught[:50]
    assert few.gold_examples == many.gold_examples


def test_clerks_err_about_as_often_as_said_and_correct_only_what_is_wrong(worlds: ModuleType, written: Any) -> None:
    read_lines = importlib.import_module("worlds.world").read_lines
    files = written("desk", 4, 2500)
    answers = {line["id"]: line["output"] for line in read_lines(files.traces)}
    truth = dict(zip(answers, [example.answer for example in files.taught], strict=True))
    feedback = read_lines(files.feedback)
    thumbs = [line for line in feedback if line["kind"] == "thumb"]
    wrong_thumbs = sum(line["value"] != (answers[line["target"]["trace"]] == truth[line["target"]["trace"]]) for line in thumbs)
    corrections = [line for line in feedback if line["kind"] == "correction"]
    assert 0.08 < wrong_thumbs / len(thumbs) < 0.12
    assert len(corrections) == round(0.093 * 2500)
    assert all(line["value"] == truth[line["target"]["trace"]] != answers[line["target"]["trace"]] for line in corrections)


def test_stars_follow_how_near_an_answer_is_and_what_no_intent_covers_is_declined(worlds: ModuleType) -> None:
    assistant = importlib.import_module("worlds.assistant")
    data = importlib.import_module("worlds.data")
    exchange_of = importlib.import_module("worlds.world").Exchange
    world = worlds.WORLDS["assistant"]
    asked = world.example_of(data.Message("what is my balance", "balance"))
    near = '{"domain":"banking","intent":"transfer"}'
    verdicts = [
        assistant.verdict(exchange_of("t", "s", "u", datetime(2026, 1, 1, tzinfo=UTC), asked, text, "stop"))
        for text in (asked.answer, near, assistant.DECLINED, "no json")
    ]
    assert verdicts == ["right", "near", "wrong", "wrong"]
    assert world.answer_of(data.Message("who made you, really", "oos")) == assistant.DECLINED
    assert random.Random(1).choice(assistant.STARS["right"]) >= 4
