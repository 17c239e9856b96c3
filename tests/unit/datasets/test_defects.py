"""What other systems got wrong with training data, one test a defect; the names are those of our
list of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.feedback_world import AGENT, START, FeedbackWorld
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.datasets import collect
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.split import prompt_key
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.training.data_plan import choose, data_plan

TRAIN = DatasetConfig(dev=0, gate=0)


def everything(ws: Workspace, dataset: Dataset) -> list[Any]:
    return [row for split in SPLITS for row in load_rows(ws, dataset.id, split)]


def built(
    world: FeedbackWorld, home: Path, shape: str, config: DatasetConfig = TRAIN
) -> tuple[Dataset, list[Any]]:
    with world.into(home) as ws:
        dataset = build(ws, AGENT, shape, config)
        return dataset, everything(ws, dataset)


def rated(world: FeedbackWorld, name: str, prompt: str, answer: str, value: float) -> str:
    trace = world.trace(name, prompt, answer)
    world.say("score", value, trace)
    return trace


def test_defect_0c13_recorded_rewards_belong_to_the_recorded_answers(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number, value in enumerate((0.0, 0.5, 1.0)):
        rated(world, f"t{number}", "q", f"answer {number}", value)
    _, (row,) = built(world, tmp_path, "groups")
    assert dict(zip(row.completions, row.values, strict=True)) == {
        "answer 0": 0.0,
        "answer 1": 0.5,
        "answer 2": 1.0,
    }
    assert row.success == pytest.approx(0.5)


def test_defect_0c14_groups_form_by_the_normalised_prompt_and_train_on_the_original(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    original = "What IS the  Größe of " + "x" * 300 + "?"
    rated(world, "a", original, "one", 1.0)
    rated(world, "b", original, "two", 0.0)
    rated(world, "c", original.lower().replace("  ", " "), "three", 0.5)
    rated(world, "d", original.replace("ö", "o\u0308"), "one", 0.0)
    rated(world, "e", "x" * 250, "four", 1.0)
    dataset, (row,) = built(world, tmp_path, "groups")
    assert row.prompt == [{"role": "user", "content": original}]
    assert sorted(row.completions) == ["one", "three", "two"]
    assert dataset.manifest["drops"]["the same answer to nearly the same prompt: counted once"] == 1
    assert dataset.manifest["drops"]["the only valued answer to its prompt"] == 1


def test_other_instructions_are_another_group(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for name, system in (("a", "be kind"), ("b", "be brief")):
        rated(world, name, world.prompt("q", system=system), name, 1.0)
    with world.into(tmp_path) as ws, pytest.raises(DataError, match="the only valued answer"):
        build(ws, AGENT, "groups", TRAIN)


def test_defect_0b_balance_is_by_weights_and_rows_go_only_where_asked(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(30):
        world.say("thumb", number % 5 > 0, world.trace(f"t{number}", f"q{number}", f"a{number}"))
    weighted, rows = built(world, tmp_path / "w", "labels")
    assert len(rows) == 30 and weighted.manifest["fitted"]["class_weights"]["undesirable"] > 1
    fewer, rows = built(
        world, tmp_path / "d", "labels", DatasetConfig(dev=0, gate=0, balance="downsample")
    )
    assert sorted(row.label for row in rows) == [False] * 6 + [True] * 6
    assert fewer.manifest["drops"] == {
        "more desirable labels in train than others (balance: downsample)": 18
    }
    assert fewer.manifest["fitted"]["class_weights"] == {"desirable": 1.0, "undesirable": 1.0}
    assert fewer.counts["train"] == 12


def test_golden_1b_scores_are_normalised_as_the_n3_server_does(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number, value in enumerate((0.5, 0.6, 0.7, 0.8, 0.9)):
        rated(world, f"t{number}", f"q{number}", f"a{number}", value)
    dataset, rows = built(
        world, tmp_path, "scored", DatasetConfig(dev=0, gate=0, normalise="range")
    )
    assert sorted(row.value for row in rows) == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert all(row.scale == [-1, 1] for row in rows)
    assert dataset.manifest["fitted"] == {
        "scale": [0, 1],
        "normalised": {"from": [0.5, 0.9], "to": [-1, 1]},
    }


def test_defect_1c6_the_scale_is_fitted_on_train_and_used_for_the_others(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        rated(world, f"t{number}", f"q{number}", f"a{number}", (number % 10) / 10)
    dataset, rows = built(
        world, tmp_path, "scored", DatasetConfig(dev=0.3, gate=0.3, normalise="range")
    )
    low, high = dataset.manifest["fitted"]["normalised"]["from"]
    _, raw = built(world, tmp_path / "raw", "scored", DatasetConfig(dev=0.3, gate=0.3))
    values = {row.completion: row for row in raw}
    assert (low, high) == (
        min(row.value for row in raw if row.split == "train"),
        max(row.value for row in raw if row.split == "train"),
    )
    for row in rows:
        cut = min(max(values[row.completion].value, low), high)
        assert row.value == pytest.approx(2 * (cut - low) / (high - low) - 1)


def test_defect_2c8_the_worst_are_not_left_out_by_default(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number, value in enumerate((0.0, 0.2, 0.9)):
        rated(world, f"t{number}", f"q{number}", f"a{number}", value)
    _, rows = built(world, tmp_path / "all", "scored")
    assert min(row.value for row in rows) == 0
    dataset, rows = built(
        world, tmp_path / "some", "scored", DatasetConfig(dev=0, gate=0, min_reward=0.2)
    )
    assert sorted(row.value for row in rows) == [0.2, 0.9]
    assert dataset.manifest["drops"]["the number of the answer is below min_reward (0.2)"] == 1


def test_defect_2c10_min_reward_leaves_out_corrected_answers_with_their_corrections(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    for number, value in enumerate((0.1, 0.9)):
        for question in range(2):
            trace = rated(
                world, f"t{number}-{question}", f"q{number}-{question}", f"answer {number}", value
            )
            world.say("correction", f"edit {number}", trace, rater="r2")
        world.say(
            "thumb", number == 0, world.trace(f"other{number}", f"o{number}", f"other {number}")
        )
    floor = DatasetConfig(dev=0, gate=0, min_reward=0.5)
    reason = "the number of the answer is below min_reward (0.5)"
    for shape, texts in (
        ("pairs", {"edit 1"}),
        ("chats", {"edit 1", "other 0"}),
        ("labels", {"edit 1", "other 0", "other 1"}),
    ):
        dataset, rows = built(world, tmp_path / shape, shape, floor)
        assert {getattr(row, "chosen", None) or row.completion for row in rows} == texts
        assert dataset.manifest["drops"][reason] == 2
        assert "edit 0" not in json.dumps(
            [asdict(row) for row in rows]
        ) and "answer 0" not in json.dumps([asdict(row) for row in rows])


def test_defect_2c8_min_reward_reads_numbers_and_no_thumb(tmp_path: Path) -> None:
    """A decision with the stored reward 0.5 and a thumb down stood at -5, the end of the scale, and
    was left out with the worst ones."""
    world = FeedbackWorld()
    for number, (reward, thumb) in enumerate(
        ((0.5, False), (-3.2, False), (-3.0, True), (1.6, True), (None, False))
    ):
        trace = world.trace(f"t{number}", f"q{number}", f"answer {number}")
        world.say("thumb", thumb, trace, rater="ann")
        if reward is not None:
            world.say("score", reward, trace, rater="machine", scale={"min": -5.0, "max": 5.0})
    machine(world, "machine")
    dataset, rows = built(world, tmp_path, "labels", DatasetConfig(dev=0, gate=0, min_reward=-2.0))
    assert {row.completion: row.label for row in rows} == {
        "answer 0": False,
        "answer 2": True,
        "answer 3": True,
        "answer 4": False,
    }
    assert dataset.manifest["drops"]["the number of the answer is below min_reward (-2)"] == 1


def machine(world: FeedbackWorld, name: str) -> None:
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == name:
            values["kind"] = "checker"


def test_defect_2c11_a_stored_reward_is_no_feedback(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(6):
        trace = world.trace(f"t{number}", f"q{number}", f"a{number}")
        world.say("score", number / 5, trace, rater="machine")
        if number < 3:
            world.say("label", "IGNORED", trace, name="user_feedback", rater="ann")
        if number < 2:
            world.say("thumb", number == 0, trace, rater="ann")
    world.case("c", "q4", "feedback")
    machine(world, "machine")
    heard = DatasetConfig(dev=0, gate=0, require_feedback=True)
    for shape, numbers in (("scored", {0, 1, 2}), ("prompts", {0, 1, 2})):
        dataset, rows = built(world, tmp_path / shape, shape, heard)
        assert {int(row.prompt[0]["content"][1:]) for row in rows} == numbers
        assert dataset.manifest["drops"]["no person said anything about it (require_feedback)"] == 3


def test_what_is_a_row_is_not_reported_as_left_out_of_the_gate(tmp_path: Path) -> None:
    """A reward that a program stored beside a person's thumb is no reason to count the thumb's row
    as left out."""
    world = FeedbackWorld()
    for number in range(40):
        trace = world.trace(f"t{number}", f"q{number}", f"a{number}")
        world.say("thumb", number % 2 == 0, trace, rater="ann")
        world.say("score", 1 - number % 2, trace, rater="machine")
    machine(world, "machine")
    reason = "only checkers or models judged it: not for the gate"
    labels, rows = built(world, tmp_path / "labels", "labels", DatasetConfig(dev=0, gate=0.4))
    assert len(rows) == 40 and labels.counts["gate"] and reason not in labels.manifest["drops"]
    scored, rows = built(world, tmp_path / "scored", "scored", DatasetConfig(dev=0, gate=0.4))
    assert (
        scored.manifest["drops"] == {reason: 40 - len(rows)} and len(rows) == labels.counts["train"]
    )


def test_defect_2c9_require_feedback_needs_no_reward(tmp_path: Path) -> None:
    world = FeedbackWorld()
    world.trace("silent", "q1", "a")
    world.say("thumb", True, world.trace("judged", "q2", "b"))
    _, rows = built(world, tmp_path / "all", "prompts")
    assert {(row.prompt[0]["content"], row.success) for row in rows} == {("q1", None), ("q2", 1.0)}
    _, rows = built(
        world, tmp_path / "some", "prompts", DatasetConfig(dev=0, gate=0, require_feedback=True)
    )
    assert [row.prompt[0]["content"] for row in rows] == ["q2"]


def test_defect_2c16_a_corrected_decision_is_a_pair_and_the_split_is_ours(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(40):
        trace = world.trace(f"d{number}", f"file item {number}", '{"action": "AREA"}')
        world.say("correction", '{"action": "PROJECT"}', trace)
    dataset, rows = built(world, tmp_path, "pairs", DatasetConfig(dev=0.2, gate=0.2))
    assert {(row.chosen, row.rejected) for row in rows} == {
        ('{"action": "PROJECT"}', '{"action": "AREA"}')
    }
    assert all(dataset.counts.values())


def test_defect_4c3_chosen_is_never_rejected_and_both_answer_the_same_prompt(
    tmp_path: Path,
) -> None:
    world = FeedbackWorld()
    for number, (text, up) in enumerate(
        (("kpi", True), ("kpi ", False), ("trend", False), ("gauge", True), ("map", False))
    ):
        world.say("thumb", up, world.trace(f"t{number}", "which widget?", text), rater=f"r{number}")
    world.say("thumb", False, world.trace("elsewhere", "which fixture?", "bar"))
    _, rows = built(world, tmp_path, "pairs")
    assert {(row.chosen, row.rejected) for row in rows} == {("gauge", "trend"), ("gauge", "map")}


def test_defect_4c7_pairs_are_split_by_question(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        for side in (0, 1, 2):
            world.say(
                "thumb",
                side == 0,
                world.trace(
                    f"t{number}-{side}",
                    f"question {number // 2 * 2}{' ' * (number % 2)}",
                    f"a{side}-{number}",
                ),
            )
    dataset, rows = built(world, tmp_path, "pairs", DatasetConfig(dev=0.3, gate=0.3))
    assert all(dataset.counts.values())
    splits: dict[bytes, set[str]] = {}
    for row in rows:
        splits.setdefault(prompt_key(row.prompt), set()).add(row.split)
    assert all(len(splits_of_question) == 1 for splits_of_question in splits.values())


def test_defect_4c12_the_cap_of_a_question_binds(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(4):
        for up in (True, False):
            world.say("thumb", up, world.trace(f"t{number}{up}", "q", f"{up} {number}"))
    dataset, rows = built(world, tmp_path / "five", "pairs")
    assert len(rows) == 5
    assert dataset.manifest["drops"]["more siblings than are taken from one prompt"] == 11
    capped, rows = built(
        world, tmp_path / "two", "pairs", DatasetConfig(dev=0, gate=0, per_prompt=2)
    )
    assert len(rows) == 2
    assert capped.manifest["drops"]["more than 2 rows of one prompt"] == 3


def test_numbers_that_lie_apart_make_a_pair(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for name, value in (("best", 1.0), ("good", 0.8), ("fair", 0.6)):
        rated(world, name, "q", name, value)
    _, rows = built(world, tmp_path, "pairs")
    assert [(row.chosen, row.rejected, row.origin) for row in rows] == [("best", "fair", "rewards")]
    assert rows[0].weight == pytest.approx(0.4)
    with world.into(tmp_path / "none") as ws, pytest.raises(DataError, match="no pairs"):
        build(ws, AGENT, "pairs", DatasetConfig(dev=0, gate=0, margin=None))


def test_filters_say_what_they_left_out_and_choose_without_regard_to_order(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(40):
        trace = world.trace(f"t{number}", f"q{number}", f"a{number}", subject=f"u{number % 2}")
        world.say("thumb", number % 4 > 0, trace, rater=f"r{number % 2}", minute=number * 60)
    limits = {"dev": 0, "gate": 0}
    for config, reason, left in (
        (DatasetConfig(**limits, limit=10), "more than 10 training rows", 10),
        (DatasetConfig(**limits, per_subject=5), "more than 5 rows of one subject", 10),
        (
            DatasetConfig(**limits, per_rater=8),
            "no judgement that calls the answer good or bad",
            16,
        ),
        (
            DatasetConfig(**limits, since=START + timedelta(hours=30)),
            "no judgement that calls the answer good or bad",
            10,
        ),
        (
            DatasetConfig(**limits, until=START + timedelta(hours=30)),
            "no judgement that calls the answer good or bad",
            30,
        ),
    ):
        dataset, rows = built(
            world, tmp_path / reason.replace(" ", "") / str(left), "labels", config
        )
        assert len(rows) == left == dataset.counts["train"]
        assert dataset.manifest["drops"] == {reason: 40 - left}
    half, rows = built(world, tmp_path / "half", "labels", DatasetConfig(**limits, sample=0.5))
    assert 8 < len(rows) < 32
    assert half.manifest["drops"] == {"not in the sample of 0.5 of the prompts": 40 - len(rows)}


def test_the_last_days_are_heard_from_midnight_on_whenever_they_are_built(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for day in range(6):
        trace = world.trace(f"t{day}", f"q{day}", f"a{day}")
        world.say("thumb", day % 2 > 0, trace, minute=day * 24 * 60)
    config = DatasetConfig(dev=0, gate=0, recent_days=2.5)
    noon = START.replace(hour=12) + timedelta(days=5)
    with world.into(tmp_path) as ws:
        dataset = build(ws, AGENT, "labels", config, as_of=noon)
        again = build(ws, AGENT, "labels", config, as_of=noon + timedelta(hours=11))
        bounded = DatasetConfig(dev=0, gate=0, since=START.replace(hour=0) + timedelta(days=3))
        assert again.id == dataset.id == build(ws, AGENT, "labels", bounded).id
        assert dataset.counts["train"] == 3 and "recent_days" not in dataset.manifest["config"]
        long_ago = data_plan(ws, AGENT, config)
        assert not long_ago.shapes["labels"].counts.get("train"), "nobody spoke these days"


def test_automatic_raters_alone_do_not_fill_the_gate(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        trace = world.trace(f"t{number}", f"q{number}", f"a{number}")
        world.say("thumb", number % 2 == 0, trace, rater="machine")
        if number % 3 == 0:
            world.say("thumb", number % 2 == 0, trace, rater="person")
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == "machine":
            values["kind"] = "checker"
    config = DatasetConfig(dev=0.2, gate=0.4)
    dataset, rows = built(world, tmp_path, "labels", config)
    held = [row for row in rows if row.split == "gate"]
    assert held and all(int(row.completion[1:]) % 3 == 0 for row in held)
    assert any(int(row.completion[1:]) % 3 for row in rows if row.split == "train")
    assert dataset.manifest["drops"]["only checkers or models judged it: not for the gate"] > 0


def test_a_person_who_says_neither_does_not_let_machines_fill_the_gate(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(40):
        trace = world.trace(f"t{number}", f"q{number}", f"a{number}")
        world.say("score", float(number % 2), trace, rater="machine")
        world.say("label", "billing", trace, name="topic", rater="person")
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == "machine":
            values["kind"] = "checker"
    config = DatasetConfig(dev=0, gate=0.4)
    _, rows = built(world, tmp_path / "labels", "labels", config)
    assert {row.split for row in rows} == {"train"}
    _, rows = built(world, tmp_path / "scored", "scored", config)
    assert {row.split for row in rows} == {"train"}
    for number in range(40):
        world.say(
            "rating", 3, world.trace(f"t{number}", f"q{number}", f"a{number}"), rater="person"
        )
    _, rows = built(world, tmp_path / "rated", "scored", config)
    assert {(row.split, row.value) for row in rows} == {("train", 3.0), ("gate", 3.0)}, (
        "the person's number is the value"
    )


@pytest.mark.slow
def test_several_processes_build_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FeedbackWorld()
    world.case("gold", world.prompt("q7"))
    for number in range(60):
        trace = world.trace(
            f"t{number}",
            f"q{number // 3 * 3 + number % 2}" + " " * (number % 3),
            f"a{number}",
            session=f"s{number // 4}",
        )
        world.say(("thumb", "score")[number % 2], (number % 4 == 0, number / 60)[number % 2], trace)
        if number % 5 == 0:
            world.say("correction", f"edit {number}", trace, rater="r2")
        if number % 3:
            world.say("preference", {"ranking": [[0], [1]]}, trace, last, rater="r3")  # noqa: F821 - there is one by then
        last = trace  # noqa: F841
    config = DatasetConfig(dev=0.2, gate=0.2)
    for shape in ("labels", "pairs", "prompts", "scored"):
        alone, _ = built(world, tmp_path / f"{shape}-alone", shape, config)
        with monkeypatch.context() as patch:
            patch.setattr(collect, "TRACES_A_WORKER", 10)
            shared, rows = built(world, tmp_path / f"{shape}-shared", shape, config)
        assert rows
        assert (shared.id, shared.manifest["files"]) == (alone.id, alone.manifest["files"])
        assert {
            name: shared.manifest[name] for name in ("drops", "notes", "prompts", "origins")
        } == {name: alone.manifest[name] for name in ("drops", "notes", "prompts", "origins")}


@pytest.mark.slow
def test_processes_agree_where_prompts_that_nobody_judged_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FeedbackWorld()
    for number in range(60):
        for system in "abc":
            prompt = world.prompt(
                f"What is the plan number {number}?", system=f"It is day {system}"
            )
            world.trace(f"{system}{number}", prompt, "x", session=f"{system}{number}")
    for number in range(10):
        world.say(
            "thumb", True, world.trace(f"j{number}", f"What is the plan number {number}?", "y")
        )
    results = []
    for shared in (10**9, 20):
        monkeypatch.setattr(collect, "TRACES_A_WORKER", shared)
        dataset, rows = built(
            world, tmp_path / str(shared), "prompts", DatasetConfig(dev=0, gate=0.5)
        )
        splits: dict[bytes, set[str]] = {}
        for row in rows:
            splits.setdefault(prompt_key(row.prompt), set()).add(row.split)
        assert len(splits) == 60 and all(
            len(splits_of_prompt) == 1 for splits_of_prompt in splits.values()
        )
        results.append((dataset.id, dataset.manifest["drops"]))
    assert results[0] == results[1]


def runs(folder: Path, *, gold: bool) -> Workspace:
    """Twelve runs of two answers; what the second one was shown is also a gold case, or the prompt
    of a trace of another session."""
    lines: list[dict[str, Any]] = []
    for number in range(12):
        first, between = (
            {"role": "user", "content": f"Cancel order {number}."},
            {"role": "assistant", "content": "Which one?"},
        )
        second = {"role": "user", "content": f"The one of day {number}."}
        steps = [
            {"kind": "llm", "output": "Which one?"},
            {"kind": "llm", "input": {"messages": [second]}, "output": "Done."},
        ]
        lines.append(
            {
                "type": "trace",
                "id": f"run{number}",
                "session": f"a{number}",
                "input": [first],
                "output": "Done.",
                "steps": steps,
            }
        )
        shown = [first, between, second]
        if gold:
            lines.append({"type": "case", "id": f"c{number}", "input": shown, "reference": "Done."})
        else:
            lines.append(
                {
                    "type": "trace",
                    "id": f"one{number}",
                    "session": f"b{number}",
                    "input": shown,
                    "output": "It is done.",
                }
            )
    for number in range(12):
        for name in ("run",) if gold else ("run", "one"):
            statement = {
                "type": "feedback",
                "kind": "thumb",
                "value": number % 2 == 0,
                "target": {"trace": f"{name}{number}"},
                "rater": "p",
            }
            lines.append(statement)
    for number in range(4):
        lines.append({"type": "trace", "id": f"o{number}", "input": f"q{number}", "output": "x"})
        lines.append(
            {
                "type": "feedback",
                "kind": "thumb",
                "value": number % 2 == 0,
                "target": {"trace": f"o{number}"},
                "rater": "p",
            }
        )
    folder.mkdir()
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ws = Workspace.open(Home.at(folder / "home"), Sources({}, "test.yaml", {}))
    assert (
        ingest(
            ws, AGENT, "jsonl", folder / "lines.jsonl", reviewer="owner" if gold else None
        ).refused
        == 0
    )
    return ws


@pytest.mark.slow
def test_the_history_of_a_run_is_a_prompt_that_stands_in_one_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws = runs(tmp_path / "split", gold=False)
    ids = []
    for shared in (10**9, 6):
        monkeypatch.setattr(collect, "TRACES_A_WORKER", shared)
        dataset = build(ws, AGENT, "labels", DatasetConfig(dev=0, gate=0.5))
        splits: dict[str, set[str]] = {}
        for row in everything(ws, dataset):
            splits.setdefault(json.dumps(row.prompt), set()).add(row.split)
        assert {len(prompt) > 80 for prompt in splits} == {True, False} and all(
            len(splits_of_prompt) == 1 for splits_of_prompt in splits.values()
        )
        assert "the prompt also stands in gate" not in dataset.manifest["drops"]
        ids.append(dataset.id)
    assert ids[0] == ids[1]
    ws.db.close()
    ws = runs(tmp_path / "gold", gold=True)
    dataset = build(ws, AGENT, "labels", TRAIN)
    assert dataset.manifest["drops"] == {"a gold case asks the same": 12}
    assert sum(dataset.counts.values()) == 4
    ws.db.close()


def test_the_same_history_of_two_tasks_is_two_rows(tmp_path: Path) -> None:
    """Their row ids were one, and whichever came last won."""
    steps = [
        {"kind": "llm", "output": "Which one?"},
        {
            "kind": "llm",
            "input": {"messages": [{"role": "user", "content": "R1."}]},
            "output": "Done.",
        },
    ]
    lines: list[dict[str, Any]] = [
        {"type": "trace", "id": f"o{number}", "input": f"q{number}", "output": "x"}
        for number in range(2)
    ]
    for number, task in enumerate(("a", "a", "b")):
        lines.append({"type": "case", "id": task, "input": f"Task {task}", "reference": "Done."})
        lines.append(
            {
                "type": "trace",
                "id": f"run{number}",
                "case": task,
                "input": "Cancel it.",
                "output": "Done.",
                "steps": steps,
            }
        )
    verdicts = {"run0": True, "run1": True, "run2": False, "o0": True, "o1": False}
    lines += [
        {
            "type": "feedback",
            "kind": "thumb",
            "value": value,
            "target": {"trace": name},
            "rater": "p",
        }
        for name, value in verdicts.items()
    ]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "test.yaml", {})) as ws:
        ingest(ws, AGENT, "jsonl", tmp_path / "lines.jsonl")
        rows = [
            row
            for row in everything(ws, build(ws, AGENT, "labels", TRAIN))
            if row.completion == "Done."
        ]
    assert sorted(row.label for row in rows) == [False, True]
    assert len({row.row_id for row in rows}) == 2


def test_a_method_picks_its_shape_and_says_why(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(8):
        world.say("thumb", number % 2 == 0, world.trace(f"t{number}", f"q{number}", f"a{number}"))
    with world.into(tmp_path) as ws:
        choice = choose(ws, AGENT, "kto", TRAIN)
        assert (choice.method, choice.shape) == ("kto", "labels")
        assert "8 labels" not in choice.why[0] and "4 from" in choice.why[0]
        assert "more are needed" in choice.why[-1]
        with pytest.raises(
            DataError, match=r"there are no pairs.*Methods with data: sft, kto, grpo, ppo"
        ):
            choose(ws, AGENT, "dpo", TRAIN)
        with pytest.raises(DataError, match="Do not train yet"):
            choose(ws, AGENT, "auto", TRAIN)
        with pytest.raises(InputError, match="Did you mean 'kto'"):
            choose(ws, AGENT, "kt0", TRAIN)
