from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.demo.app import REAL, real_app, tiny_app
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
        directory, EmitOptions(**(SMALL | options)), tiny_app(tiny_cache, tiny)
    )


@pytest.fixture(scope="module")
def demo_world(write: Write, tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return write(tmp_path_factory.mktemp("world"))


def test_traces_are_whole(demo_world: Emitted) -> None:
    traces = lines(demo_world.traces)
    assert len(traces) == 120 and len({trace["id"] for trace in traces}) == 120
    for trace in traces:
        assert trace["type"] == "trace" and [m["role"] for m in trace["input"]] == [
            "system",
            "user",
        ]
        assert trace["finish_reason"] in ("stop", "length") and trace["tokens"]["completion"] >= 1
        assert {"session", "subject", "model", "served_model", "sampling", "occurred_at"} <= set(
            trace
        ) and "wanted" not in trace
    times = [datetime.fromisoformat(trace["occurred_at"]) for trace in traces]
    assert times == sorted(times)
    assert 10 <= len({trace["session"] for trace in traces}) <= 30


def test_feedback_names_traces_and_comes_later(demo_world: Emitted) -> None:
    answered_at = {line["id"]: line["occurred_at"] for line in lines(demo_world.traces)}
    feedback = lines(demo_world.feedback)
    for line in feedback:
        assert line["occurred_at"] > answered_at[line["target"]["trace"]]
        assert isinstance(
            line["value"], {"thumb": bool, "correction": str, "outcome": float}[line["kind"]]
        )
        assert (line.get("name") == "filed_right") == (line["kind"] == "outcome")
    assert Counter(line["kind"] for line in feedback) == {
        "thumb": 60,
        "correction": 8,
        "outcome": 10,
    }
    assert len({line["id"] for line in feedback}) == len(feedback)
    assert {line["rater"]["id"] for line in feedback} == {"owner", "partner"}


def test_gold_cases_are_fresh_and_nobody_but_world_json_knows_the_truth(
    demo_world: Emitted,
) -> None:
    gold, seen = (
        lines(demo_world.gold),
        {line["input"][1]["content"] for line in lines(demo_world.traces)},
    )
    assert len(gold) == 40 and not seen & {line["input"][1]["content"] for line in gold}
    for line in gold:
        assert (
            line["checker"] == "json_fields"
            and line["reference"]["folder"] in FOLDERS
            and line["reference"]["priority"] in PRIORITIES
        )
        assert set(line) == {"type", "id", "input", "reference", "checker", "group", "slices"}
    truth = json.loads(demo_world.world.read_text())
    assert set(truth) == {"options", "habits", "sampled_accuracy", "gold_habit"}
    assert sum(habit is not None for habit in truth["gold_habit"].values()) == 16


@pytest.mark.slow
def test_equal_options_give_equal_files(demo_world: Emitted, write: Write, tmp_path: Path) -> None:
    again, other = write(tmp_path / "a"), write(tmp_path / "b", seed=2)
    for name in ("traces", "feedback", "gold", "world"):
        assert getattr(again, name).read_bytes() == getattr(demo_world, name).read_bytes()
        assert getattr(other, name).read_bytes() != getattr(demo_world, name).read_bytes()


@pytest.mark.slow
def test_flip_inverts_every_signal_and_leaves_traces_and_gold(
    demo_world: Emitted, write: Write, tmp_path: Path
) -> None:
    plain, flipped = (write(tmp_path / str(flip), noise=0.0, flip=flip) for flip in (False, True))
    assert (
        flipped.traces.read_bytes() == demo_world.traces.read_bytes()
        and flipped.gold.read_bytes() == demo_world.gold.read_bytes()
    )
    thumbs = [
        {
            line["target"]["trace"]: line["value"]
            for line in lines(w.feedback)
            if line["kind"] == "thumb"
        }
        for w in (plain, flipped)
    ]
    assert thumbs[0].keys() == thumbs[1].keys() and all(
        thumbs[0][key] != thumbs[1][key] for key in thumbs[0]
    )
    output = {line["id"]: line["output"] for line in lines(plain.traces)}
    corrected = [line for line in lines(flipped.feedback) if line["kind"] == "correction"]
    assert all(line["value"] != output[line["target"]["trace"]] for line in corrected)


def test_shuffle_keeps_the_values_and_loses_whose_they_are(
    demo_world: Emitted, write: Write, tmp_path: Path
) -> None:
    shuffled = lines(write(tmp_path, shuffle=True).feedback)
    plain = lines(demo_world.feedback)
    assert Counter((line["kind"], line["value"]) for line in shuffled) == Counter(
        (line["kind"], line["value"]) for line in plain
    )
    key = {(line["kind"], line["target"]["trace"]): line["value"] for line in plain}
    assert any(key[line["kind"], line["target"]["trace"]] != line["value"] for line in shuffled)


@pytest.mark.parametrize(
    ("option", "value"),
    [("ratings", 0), ("ratings", 2_001), ("noise", 1.5), ("noise", float("nan"))],
)
def test_impossible_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(InputError, match=option):
        EmitOptions(**{option: value})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_pretrained_model_is_told_what_to_do_and_corrected(tmp_path: Path) -> None:
    options = EmitOptions(ratings=8, gold=2, corrections=0.8, mails=1.0)
    files = emit(tmp_path, options, real_app())
    assert files.app.base == REAL
    traces = lines(files.traces)
    assert len(traces) == 8 and {trace["model"] for trace in traces} == {REAL}
    for row in (*traces, *lines(files.gold)):
        assert all(name in row["input"][0]["content"] for name in (*FOLDERS, *PRIORITIES))
    corrected = [line for line in lines(files.feedback) if line["kind"] == "correction"]
    assert 4 <= len(corrected) <= 6
    assert all(json.loads(line["value"]).keys() == {"folder", "priority"} for line in corrected)
