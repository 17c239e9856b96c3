"""The sdk: a call returns when its line is on disk, and no line spoils another."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thumbwheel
from thumbwheel import sdk
from thumbwheel.importers.source import Line, row_of
from thumbwheel.importers.sources.jsonl import SOURCE as JSONL
from thumbwheel.sdk.judgement import check_feedback


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path))
    return tmp_path / "inbox"


def spooled(inbox: Path) -> str:
    """What all processes wrote into the inbox."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(inbox.glob("spool-*")))


def lines(inbox: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in spooled(inbox).splitlines()]


def test_a_trace_and_what_was_thought_of_it(inbox: Path) -> None:
    answer = thumbwheel.trace(
        "support", input="hi", output="ho", session="s", model="m", metadata={"k": 1}
    )
    feedback_id = thumbwheel.feedback("support", answer, thumb=False, rater="ann", comment="meh")
    first, second = lines(inbox)
    assert first.pop("occurred_at").endswith("+00:00")
    assert first == {
        "agent": "support",
        "type": "trace",
        "id": answer,
        "session": "s",
        "input": [{"role": "user", "content": "hi"}],
        "output": "ho",
        "model": "m",
        "metadata": {"k": 1},
    }
    assert second.pop("occurred_at")
    assert second == {
        "agent": "support",
        "type": "feedback",
        "id": feedback_id,
        "kind": "thumb",
        "value": False,
        "targets": [{"trace": answer}],
        "rater": "ann",
        "comment": "meh",
    }


@pytest.mark.parametrize(
    "signal",
    [
        {"rating": 4},
        {"score": 0.5},
        {"correction": "x"},
        {"label": "spam"},
        {"outcome": 1.0},
        {"comment": "x"},
    ],
)
def test_every_signal(inbox: Path, signal: dict[str, Any]) -> None:
    thumbwheel.feedback("a", "t", **signal)
    ((kind, value),) = signal.items()
    assert (lines(inbox)[0]["kind"], lines(inbox)[0]["value"]) == (kind, value)


def test_a_tie_is_a_value(inbox: Path) -> None:
    thumbwheel.feedback("a", ["t1", "t2"], preference=None)
    assert lines(inbox)[0]["value"] is None
    assert lines(inbox)[0]["targets"] == [{"trace": "t1"}, {"trace": "t2"}]


def test_none_or_two_signals_are_a_type_error(inbox: Path) -> None:
    for signal in ({}, {"thumb": True, "rating": 3}, {"thumb": True, "rating": 3, "comment": "x"}):
        with pytest.raises(TypeError, match="exactly one"):
            thumbwheel.feedback("a", "t", **signal)
    assert not inbox.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "\ud800"])
def test_what_is_no_json_raises_here_and_writes_nothing(inbox: Path, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        thumbwheel.trace("a", input="x", output="y", metadata={"v": value})
    assert not inbox.exists()


@pytest.mark.parametrize("text", ["half \ud83d", "nul \0"])
def test_what_a_model_said_costs_the_app_nothing_and_is_stored(inbox: Path, text: str) -> None:
    thumbwheel.trace("a", input=[{"role": "user", "content": text}], output=text)
    with thumbwheel.trace("a", input=text) as run:
        run.output = text
    for number, line in enumerate(spooled(inbox).splitlines()):
        row = row_of(line.encode())
        row.pop("agent")
        assert isinstance(JSONL.item(number, row, line), Line)


def test_threads_and_processes_write_whole_lines(inbox: Path) -> None:
    code = (
        "import thumbwheel, sys\nfor i in range(40): thumbwheel.trace('a', input='x' * 9000, "
        "output='y', id=f'{sys.argv[1]}-{i}')"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(3)]
    threads = [
        threading.Thread(
            target=lambda n=n: [
                thumbwheel.trace("a", input="z", output="y", id=f"t{n}-{i}") for i in range(40)
            ]
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len({line["id"] for line in lines(inbox)}) == 240


def test_the_home_is_the_named_one_or_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "x"))
    assert sdk.home() == tmp_path / "x"
    monkeypatch.delenv("THUMBWHEEL_HOME")
    assert sdk.home().name == "thumbwheel"


@pytest.mark.parametrize(
    ("signal", "error", "words"),
    [
        ({"rating": 9}, ValueError, "rating 9 is outside its scale, 1 to 5"),
        ({"rating": 0}, ValueError, "outside"),
        ({"rating": "5"}, TypeError, "no number"),
        ({"rating": True}, TypeError, "no number"),
        ({"rating": float("nan")}, TypeError, "no number"),
        ({"rating": 11, "scale": {"min": 1, "max": 10}}, ValueError, "1 to 10"),
        ({"rating": 3, "scale": {"min": 5, "max": 1}}, ValueError, "looks like"),
        ({"score": 1.5}, ValueError, "0 to 1"),
        ({"outcome": 7}, ValueError, "0 to 1"),
        ({"thumb": 1}, TypeError, "True .up. nor False"),
        ({"thumb": "up"}, TypeError, "True .up. nor False"),
        ({"correction": " "}, ValueError, "empty"),
        ({"correction": None}, TypeError, "no text"),
        ({"label": True}, ValueError, "no name"),
        ({"label": 5}, TypeError, "neither a text"),
        ({"comment": 5}, TypeError, "no text"),
        ({"thumb": True, "comment": 5}, TypeError, "no text"),
        ({"preference": 0}, ValueError, "two or more"),
        ({"thumb": True, "raiting": 5}, TypeError, "no keyword 'raiting'"),
        ({"thumb": True, "rater": " "}, ValueError, "rater"),
        ({"thumb": True, "rater": 1.5}, TypeError, "rater"),
        ({"thumb": True, "metadata": {"a": object()}}, TypeError, "JSON"),
        ({"thumb": True, "metadata": [1]}, TypeError, "not a mapping"),
        ({"comment": "a\x00b"}, ValueError, "NUL"),
        ({"comment": "\ud800"}, ValueError, "whole characters"),
        ({"thumb": True, "supersedes": "f1", "retracts": "f2"}, ValueError, "one of them"),
        ({"thumb": True, "occurred_at": "yesterday"}, ValueError, "yesterday"),
    ],
)
def test_impossible_feedback_is_refused_at_the_call(
    inbox: Path, signal: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        thumbwheel.feedback("support", "t1", **signal)
    assert not inbox.exists()


def test_impossible_targets_and_agents_are_refused_at_the_call(inbox: Path) -> None:
    for targets, signal in (
        (["t1", "t2"], {"thumb": True}),
        (["t1", "t1"], {"preference": 0}),
        (["t1", "t2"], {"preference": 2}),
    ):
        with pytest.raises(ValueError, match=r"t1|two|2"):
            thumbwheel.feedback("support", targets, **signal)
    with pytest.raises(ValueError, match="neither a letter nor a digit"):
        thumbwheel.feedback("?!", "t1", thumb=True)
    with pytest.raises(TypeError, match="no text"):
        thumbwheel.trace(None, input="x", output="y")  # type: ignore[arg-type]
    assert not inbox.exists()


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.floats(-1, 6),
    st.floats(),
    st.sampled_from(["", " ", "x", "a\x00", "\ud800"]),
    st.just([]),
)
signals = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(sdk.SIGNALS, values),
        "scale": st.sampled_from(
            [None, {"min": 0, "max": 10}, {"min": 1, "max": 1}, {"min": 0}, 5]
        ),
        "name": st.sampled_from([None, "spam", "", 5]),
        "comment": st.sampled_from([None, "so", 5]),
        "metadata": st.sampled_from([None, {"a": 1}, []]),
        "occurred_at": st.sampled_from([None, "2026-01-05T08:30:00Z", "soon"]),
    },
).filter(lambda signal: len(set(signal) & set(sdk.SIGNALS) - {"comment"}) <= 1)


@pytest.mark.slow
@given(
    signal=signals,
    targets=st.sampled_from([["t1"], ["t1", "t2"], []]),
    rater=st.sampled_from([None, "ann", "", 7]),
)
@settings(max_examples=400, deadline=None)
def test_what_is_taken_here_is_taken_by_the_import(
    signal: dict[str, Any], targets: list[str], rater: Any
) -> None:
    """The rules stand twice, because the sdk imports nothing; here they are held to be the same."""
    try:
        kind = check_feedback(targets, rater, signal)
    except (TypeError, ValueError):
        return
    rest = {key: value for key, value in signal.items() if key != kind}
    line = {
        "type": "feedback",
        "kind": kind,
        "value": signal[kind],
        "targets": [{"trace": name} for name in targets],
        "rater": rater,
        **rest,
    }
    row = {key: value for key, value in line.items() if value is not None or key == "value"}
    item = JSONL.item(1, row, "")
    assert isinstance(item, Line), item


def test_a_full_disk_costs_the_trace_and_not_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", "/dev/full/home")  # no folder can be made there
    with pytest.warns(RuntimeWarning, match="not recorded"):
        name = thumbwheel.trace("support", input="hi", output="ho", id="t1")
    assert name == "t1"
    assert "not recorded" in caplog.text
