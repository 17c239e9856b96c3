"""Datasets from small worlds: what becomes a row, what is left out and why, freezing, reading."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from tests.worlds.feedback_world import AGENT, START, FeedbackWorld
from thumbwheel.core.errors import DataError, InputError, NotFound, StorageError
from thumbwheel.datasets.build import build, datasets, find, load_rows
from thumbwheel.datasets.selection import Selection
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig
from thumbwheel.db.workspace import Workspace

ALL_TRAIN = DatasetConfig(dev=0, gate=0)


def built(
    world: FeedbackWorld, home: Path, shape: str, config: DatasetConfig = ALL_TRAIN
) -> tuple[Dataset, list[Any]]:
    with world.into(Path(tempfile.mkdtemp(dir=home))) as ws:
        dataset = build(ws, AGENT, shape, config)
        return dataset, everything(ws, dataset)


def everything(ws: Workspace, dataset: Dataset) -> list[Any]:
    return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


def test_a_correction_is_a_pair_a_chat_and_two_labels(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "Capital of France?", "Lyon.", subject="u7", session="s1")
    feedback_id = world.say("correction", "Paris.", trace)
    _, (pair,) = built(world, tmp_path, "pairs")
    assert (pair.chosen, pair.rejected, pair.origin, pair.weight) == (
        "Paris.",
        "Lyon.",
        "correction",
        1.0,
    )
    assert pair.prompt == [{"role": "user", "content": "Capital of France?"}]
    assert (pair.feedback_ids, pair.trace_ids, len(pair.subject_ids)) == ([feedback_id], [trace], 1)
    _, (chat,) = built(world, tmp_path, "chats")
    assert (chat.completion, chat.origin, chat.token_ids, chat.feedback_ids) == (
        "Paris.",
        "correction",
        None,
        [feedback_id],
    )
    _, labels = built(world, tmp_path, "labels")
    assert {(row.completion, row.label, row.origin) for row in labels} == {
        ("Paris.", True, "correction"),
        ("Lyon.", False, "correction"),
    }


def test_corrections_need_not_be_labels(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("correction", "Paris.", world.trace("a", "q1", "Lyon."))
    world.say("thumb", True, world.trace("b", "q2", "yes"))
    world.say("thumb", False, world.trace("c", "q3", "no"))
    _, rows = built(
        world, tmp_path, "labels", DatasetConfig(dev=0, gate=0, labels_from_corrections=False)
    )
    assert {row.completion for row in rows} == {"yes", "no"}


def test_an_upvoted_and_edited_answer_is_no_label_and_its_edit_is_the_chat(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "fine")
    world.say("thumb", True, trace, rater="r1")
    world.say("correction", "finer", trace, rater="r2")
    world.say("thumb", False, world.trace("b", "q2", "bad"))
    dataset, rows = built(world, tmp_path, "labels")
    assert {(row.completion, row.label) for row in rows} == {("finer", True), ("bad", False)}
    assert dataset.manifest["drops"]["judged good and yet edited"] == 1
    dataset, (chat,) = built(world, tmp_path, "chats")
    assert chat.completion == "finer"
    assert dataset.manifest["drops"]["good answer that was edited: its edit stands for it"] == 1


def test_good_answers_carry_their_strength_and_captured_tokens(tmp_path: Path) -> None:
    world = FeedbackWorld()
    trace = world.trace("a", "q", "good", token_ids=[5, 6, 7])
    for rater, up in (("r1", True), ("r2", True), ("r3", False)):
        world.say("thumb", up, trace, rater=rater)
    world.say("rating", 2, world.trace("b", "q", "bad"))
    dataset, (row,) = built(world, tmp_path, "chats")
    assert (row.completion, row.origin, row.token_ids, row.finish_reason) == (
        "good",
        "upvote",
        [5, 6, 7],
        "stop",
    )
    assert row.weight == pytest.approx(1 / 3)
    assert dataset.manifest["notes"] == {"answers with disagreeing raters": 1}
    assert dataset.manifest["drops"] == {"the answer was judged bad": 1}


def test_preferences_are_chats_only_on_request(tmp_path: Path) -> None:
    world = FeedbackWorld()
    a, b = world.trace("a", "q", "better"), world.trace("b", "q", "worse")
    world.say("preference", {"ranking": [[1], [0]]}, b, a)
    with world.into(tmp_path) as ws:
        with pytest.raises(DataError, match=r"no chats.*no judgement that calls the answer good"):
            build(ws, AGENT, "chats", ALL_TRAIN)
        dataset = build(
            ws, AGENT, "chats", DatasetConfig(dev=0, gate=0, chats_from_preferences=True)
        )
        assert [(row.completion, row.origin) for row in everything(ws, dataset)] == [
            ("better", "preference")
        ]


def test_siblings_are_bounded_and_use_every_good_answer_once_a_round(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(3):
        world.say("thumb", True, world.trace(f"g{number}", "q", f"good {number}"))
        world.say("thumb", False, world.trace(f"b{number}", "q", f"bad {number}"))
    dataset, rows = built(world, tmp_path, "pairs", DatasetConfig(dev=0, gate=0, siblings=3))
    assert {row.chosen for row in rows} == {"good 0", "good 1", "good 2"}
    assert {row.rejected for row in rows} == {"bad 0", "bad 1", "bad 2"}
    assert all(row.origin == "siblings" and len(row.feedback_ids) == 2 for row in rows)
    assert dataset.manifest["drops"]["more siblings than are taken from one prompt"] == 6
    _, every = built(world, tmp_path, "pairs", DatasetConfig(dev=0, gate=0, siblings=99))
    assert len({(row.chosen, row.rejected) for row in every}) == 9


def test_what_was_compared_is_no_sibling_again(tmp_path: Path) -> None:
    world = FeedbackWorld()
    a, b = world.trace("a", "q", "x"), world.trace("b", "q", "y")
    world.say("thumb", True, a)
    world.say("thumb", False, b)
    world.say("preference", {"ranking": [[0], [1]]}, b, a, rater="r2")
    _, (row,) = built(world, tmp_path, "pairs")
    assert (row.chosen, row.origin) == ("y", "preference")


def test_what_is_left_out_is_counted_with_its_reason(tmp_path: Path) -> None:
    world = FeedbackWorld()
    good = world.trace("good", "q", "ok")
    world.say("thumb", True, good)
    world.say("thumb", True, world.trace("again", "q", " ok "))
    world.say("thumb", True, world.trace("silent", "q", None))
    world.say("thumb", True, world.trace("left", "q", "half an ans", complete=False))
    world.say("thumb", True, world.trace("agentic", "q", "after tools", steps=3))
    world.say("correction", "ok", good, rater="r9")
    other = world.trace("other", "another question", "z")
    world.say("preference", {"ranking": [[0], [1]]}, good, other)
    world.say("preference", {"ranking": [[0, 1]]}, good, world.trace("tied", "q", "fine too"))
    dataset, (row,) = built(world, tmp_path, "chats")
    assert row.completion.strip() == "ok"
    assert len(row.trace_ids) == len(row.feedback_ids) == 2
    reasons = dict(dataset.manifest["drops"])
    assert reasons.pop("no judgement that calls the answer good") == 2
    assert reasons == {
        "the same answer to the same prompt: counted once": 1,
        "the trace has no output": 1,
        "the answer is not whole: the client left, the server failed, or it was too long": 1,
        "the answer took several model or tool steps, which do not tell what the last one was "
        "shown": 1,
        "the correction changes nothing": 1,
        "the compared answers have different prompts": 1,
        "the compared answers are tied": 1,
    }


def test_a_comparison_of_answers_to_a_gold_question_says_why_it_is_left_out(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    world.case("gold", world.prompt("What is 2+2?"))
    first, second = (world.trace(name, "What is 2+2?", name) for name in ("4", "5"))
    world.say("preference", {"ranking": [[0], [1]]}, first, second)
    good, bad = (world.trace(name, "q", name) for name in ("good", "bad"))
    world.say("preference", {"ranking": [[0], [1]]}, good, bad)
    dataset, (row,) = built(world, tmp_path, "pairs")
    assert (row.chosen, row.rejected) == ("good", "bad")
    assert dataset.manifest["drops"] == {
        "a gold case asks the same": 2,
        "the compared answers were left out with their prompt": 1,
    }


def test_a_correction_of_half_an_answer_teaches_the_edit_only(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("correction", "A whole answer.", world.trace("a", "q", "A who", complete=False))
    _, (row,) = built(world, tmp_path, "chats")
    assert row.completion == "A whole answer."
    with world.into(tmp_path / "other") as ws, pytest.raises(DataError):
        build(ws, AGENT, "pairs", ALL_TRAIN)


def test_a_correction_of_silence_teaches_the_edit_only(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("correction", "Here it is.", world.trace("a", "q", ""))
    _, (row,) = built(world, tmp_path, "chats")
    assert row.completion == "Here it is."
    with world.into(tmp_path / "other") as ws, pytest.raises(DataError):
        build(ws, AGENT, "pairs", ALL_TRAIN)


def test_the_same_text_judged_in_several_traces_follows_the_rule(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number, up in enumerate((True, True, False)):
        world.say("thumb", up, world.trace(f"t{number}", "q", "same"), rater=f"r{number}")
    for number, up in enumerate((True, False)):
        world.say("thumb", up, world.trace(f"u{number}", "q2", "torn"), rater=f"r{number}")
    world.say("thumb", False, world.trace("bad", "q3", "bad"))
    dataset, rows = built(world, tmp_path, "labels")
    assert {(row.completion, row.label) for row in rows} == {("same", True), ("bad", False)}
    assert dataset.manifest["drops"]["raters contradict each other evenly"] == 1


def test_gold_prompts_never_appear_whatever_their_system_prompt(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.case("gold", world.prompt("What is  2+2?", system="v1"))
    world.say(
        "thumb", True, world.trace("a", world.prompt("What is 2+2?", system="v2, Monday"), "4")
    )
    world.say("thumb", True, world.trace("b", "What is 3+3?", "6"))
    dataset, (row,) = built(world, tmp_path, "chats")
    assert row.completion == "6"
    assert dataset.manifest["drops"]["a gold case asks the same"] == 1


def test_class_weights_are_fitted_on_train_only_and_multiplied_in(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        world.say(
            "thumb", number % 5 != 0, world.trace(f"t{number}", f"q{number}", f"answer {number}")
        )
    dataset, rows = built(world, tmp_path, "labels", DatasetConfig(dev=0.2, gate=0.2))
    train = [row.label for row in rows if row.split == "train"]
    weights = dataset.manifest["fitted"]["class_weights"]
    assert weights["desirable"] == 1.0
    assert 1.0 <= train.count(True) / (weights["undesirable"] * train.count(False)) <= 4 / 3
    assert {(row.label, row.weight) for row in rows} == {
        (True, 1.0),
        (False, weights["undesirable"]),
    }
    fixed, rows = built(
        world, tmp_path, "labels", DatasetConfig(desirable_weight=0.5, undesirable_weight=2.0)
    )
    assert {(row.label, row.weight) for row in rows} == {(True, 0.5), (False, 2.0)}
    assert fixed.id != dataset.id


def test_one_class_only_says_which_is_missing(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(5):
        world.say("thumb", True, world.trace(f"t{number}", f"q{number}", "a"))
    with (
        world.into(tmp_path) as ws,
        pytest.raises(
            DataError,
            match="all labels in train are desirable; training needs undesirable ones too",
        ),
    ):
        build(ws, AGENT, "labels", ALL_TRAIN)


def test_nothing_to_build_from(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.trace("a", "q", "unjudged")
    with world.into(tmp_path) as ws:
        for shape in ("chats", "pairs", "labels"):
            with pytest.raises(DataError, match="dataset plan --agent helper"):
                build(ws, AGENT, shape)
        assert datasets(ws, AGENT) == []
        with pytest.raises(NotFound, match="Did you mean 'pairs'"):
            build(ws, AGENT, "pair")
        with pytest.raises(NotFound, match="no such agent"):
            build(ws, "nobody", "pairs")


def test_same_evidence_same_dataset_and_new_evidence_a_new_one(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("a", "q", "x"))
    with world.into(tmp_path) as ws:
        first = build(ws, AGENT, "chats", ALL_TRAIN)
        again = build(ws, AGENT, "chats", ALL_TRAIN)
        assert (again.id, again.fingerprint, again.recorded_at) == (
            first.id,
            first.fingerprint,
            first.recorded_at,
        )
        assert [dataset.id for dataset in datasets(ws, AGENT)] == [first.id]
    more = FeedbackWorld(clock=10)
    more.say("thumb", True, more.trace("b", "q2", "y"), recorded=START + timedelta(days=1))
    with more.into(tmp_path / "second") as ws:
        assert build(ws, AGENT, "chats", ALL_TRAIN).id != first.id


def test_as_of_builds_the_past(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("a", "q", "x"))
    world.say("thumb", True, world.trace("b", "q2", "y"), recorded=START + timedelta(days=2))
    with world.into(tmp_path) as ws:
        past = build(ws, AGENT, "chats", ALL_TRAIN, as_of=START + timedelta(days=1))
        assert past.counts == {"train": 1, "dev": 0, "gate": 0}
        assert past.manifest["watermark"]["feedback"] == 1
        assert build(ws, AGENT, "chats", ALL_TRAIN).counts["train"] == 2


def test_find_by_id_shape_and_latest(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("correction", "y", world.trace("a", "q", "x"))
    with world.into(tmp_path) as ws:
        chats, pairs = build(ws, AGENT, "chats", ALL_TRAIN), build(ws, AGENT, "pairs", ALL_TRAIN)
        assert [find(ws, AGENT, name).id for name in ("latest", "chats", pairs.id)] == [
            pairs.id,
            chats.id,
            pairs.id,
        ]
        with pytest.raises(NotFound, match="Known"):
            find(ws, AGENT, "dst_nothing")
        with pytest.raises(InputError, match="train, dev, gate"):
            load_rows(ws, pairs.id, "test")


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.say("thumb", True, world.trace("a", "q", "x"))
    with world.into(tmp_path) as ws:
        dataset = build(ws, AGENT, "chats", ALL_TRAIN)
        sha256 = dataset.manifest["files"]["train"]
        path = ws.home.blobs / "sha256" / sha256[:2] / sha256
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StorageError, match="damaged or changed"):
            list(load_rows(ws, dataset.id, "train"))


def test_odd_text_survives(tmp_path: Path) -> None:
    world = FeedbackWorld()
    odd = 'Zeile\r\n\t"quoted" \\ \u2028 🎡 \ud7ff' + " ünï"
    world.say("correction", odd, world.trace("a", odd, "x"))
    _, (row,) = built(world, tmp_path, "pairs")
    assert (row.chosen, row.prompt[0]["content"]) == (odd, odd)


def test_what_fails_while_files_are_written_does_not_wait_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits_read = []

    def slowly(self: Selection, split: str, names: list[str] | None = None) -> Iterator[Any]:
        for table in tables(self, split, names):
            for index in range(table.num_rows) if names is None else ():
                splits_read.append(split)
                sleep(0.02)
                yield table.slice(index, 1)
            if names is not None:
                yield table

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    world, tables = FeedbackWorld(), Selection.tables
    for number in range(200):
        world.say("thumb", number % 2 == 0, world.trace(f"t{number}", f"q{number}", f"a{number}"))
    with world.into(tmp_path / "home") as ws:
        monkeypatch.setattr("thumbwheel.datasets.build._check", fail)
        monkeypatch.setattr(Selection, "tables", slowly)
        with pytest.raises(KeyboardInterrupt):
            build(ws, AGENT, "labels")
        assert len(splits_read) < 100 and not list(ws.home.path.glob("building-*"))
