from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.demo.base import BaseConfig
from thumbwheel.demo.emit import EmitOptions, Emitted, emit
from thumbwheel.demo.world import FOLDERS, PRIORITIES

SMALL = {"ratings": 60, "gold": 40}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Write(Protocol):
    def __call__(self, directory: Path, **options: Any) -> Emitted: ...


@pytest.fixture(scope="session")
def write(tiny: BaseConfig, tiny_cache: Path) -> Write:
    return lambda directory, **options: emit(
        directory, EmitOptions(**(SMALL | options)), tiny_cache, tiny
    )


@pytest.fixture(scope="module")
def world(write: Write, tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return write(tmp_path_factory.mktemp("world"))


def test_traces_are_whole(world: Emitted) -> None:
    traces = lines(world.traces)
    assert len(traces) == 120 and len({one["id"] for one in traces}) == 120
    for one in traces:
        assert one["type"] == "trace" and [m["role"] for m in one["input"]] == ["system", "user"]
        assert one["finish_reason"] in ("stop", "length") and one["tokens"]["completion"] >= 1
        assert {"session", "subject", "model", "served_model", "sampling", "occurred_at"} <= set(
            one
        ) and "wanted" not in one
    times = [datetime.fromisoformat(one["occurred_at"]) for one in traces]
    assert times == sorted(times)
    assert 10 <= len({one["session"] for one in traces}) <= 30


def test_feedback_names_traces_and_comes_later(world: Emitted) -> None:
    at = {one["id"]: one["occurred_at"] for one in lines(world.traces)}
    feedback = lines(world.feedback)
    for one in feedback:
        assert one["occurred_at"] > at[one["target"]["trace"]]
        assert isinstance(
            one["value"], {"thumb": bool, "correction": str, "outcome": float}[one["kind"]]
        )
        assert (one.get("name") == "filed_right") == (one["kind"] == "outcome")
    assert Counter(one["kind"] for one in feedback) == {"thumb": 60, "correction": 8, "outcome": 10}
    assert len({one["id"] for one in feedback}) == len(feedback)
    assert {one["rater"]["id"] for one in feedback} == {"owner", "partner"}


def test_gold_cases_are_fresh_and_nobody_but_world_json_knows_the_truth(world: Emitted) -> None:
    gold, seen = lines(world.gold), {one["input"][1]["content"] for one in lines(world.traces)}
    assert len(gold) == 40 and not seen & {one["input"][1]["content"] for one in gold}
    for one in gold:
        assert (
            one["checker"] == "json_fields"
            and one["reference"]["folder"] in FOLDERS
            and one["reference"]["priority"] in PRIORITIES
        )
        assert set(one) == {"type", "id", "input", "reference", "checker", "group", "slices"}
    truth = json.loads(world.world.read_text())
    assert set(truth) == {"options", "habits", "sampled_accuracy", "gold_habit"}
    assert sum(habit is not None for habit in truth["gold_habit"].values()) == 16


@pytest.mark.slow
def test_equal_options_give_equal_files(world: Emitted, write: Write, tmp_path: Path) -> None:
    again, other = write(tmp_path / "a"), write(tmp_path / "b", seed=2)
    for name in ("traces", "feedback", "gold", "world"):
        assert getattr(again, name).read_bytes() == getattr(world, name).read_bytes()
        assert getattr(other, name).read_bytes() != getattr(world, name).read_bytes()


@pytest.mark.slow
def test_flip_inverts_every_signal_and_leaves_traces_and_gold(
    world: Emitted, write: Write, tmp_path: Path
) -> None:
    plain, flipped = (write(tmp_path / str(flip), noise=0.0, flip=flip) for flip in (False, True))
    assert (
        flipped.traces.read_bytes() == world.traces.read_bytes()
        and flipped.gold.read_bytes() == world.gold.read_bytes()
    )
    thumbs = [
        {
            one["target"]["trace"]: one["value"]
            for one in lines(w.feedback)
            if one["kind"] == "thumb"
        }
        for w in (plain, flipped)
    ]
    assert thumbs[0].keys() == thumbs[1].keys() and all(
        thumbs[0][key] != thumbs[1][key] for key in thumbs[0]
    )
    output = {one["id"]: one["output"] for one in lines(plain.traces)}
    corrected = [one for one in lines(flipped.feedback) if one["kind"] == "correction"]
    assert all(one["value"] != output[one["target"]["trace"]] for one in corrected)


def test_shuffle_keeps_the_values_and_loses_whose_they_are(
    world: Emitted, write: Write, tmp_path: Path
) -> None:
    shuffled = lines(write(tmp_path, shuffle=True).feedback)
    plain = lines(world.feedback)
    assert Counter((one["kind"], one["value"]) for one in shuffled) == Counter(
        (one["kind"], one["value"]) for one in plain
    )
    key = {(one["kind"], one["target"]["trace"]): one["value"] for one in plain}
    assert any(key[one["kind"], one["target"]["trace"]] != one["value"] for one in shuffled)


@pytest.mark.parametrize(
    ("option", "value"),
    [("ratings", 0), ("ratings", 2_001), ("noise", 1.5), ("noise", float("nan"))],
)
def test_impossible_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(InputError, match=option):
        EmitOptions(**{option: value})  # type: ignore[arg-type]
