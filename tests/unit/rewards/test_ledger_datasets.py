"""Datasets whose values are the combined rewards of the ledger: every shape, the margin of pairs, and that reweighting makes them stale."""

from __future__ import annotations

import json

import pytest

ASKED = 40


@pytest.fixture
def home(command_line, tmp_path):
    """Forty questions with two answers each: the first is right and thumbed down, the second wrong and thumbed up."""
    lines = []
    for place in range(ASKED):
        question = f"What is {place} and {place + 7} together?"
        lines.append({"type": "case", "id": f"c{place}", "input": question, "reference": f"{2 * place + 7}"})
        for side, text in (("right", f"{2 * place + 7}"), ("wrong", f"maybe {place}")):
            lines.append({"type": "trace", "id": f"{side}{place}", "input": question, "output": text, "case": f"c{place}"})
            thumb = {"type": "feedback", "kind": "thumb", "value": side == "wrong", "rater": "r"}
            lines.append(thumb | {"target": {"trace": f"{side}{place}"}})
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*arguments, code=0):
        found, out, err = command_line(*arguments, "--agent", "adder")
        assert found == code, (out, err)
        return (json.loads(out) if "--json" in arguments else out) if not code else err

    run("import", "jsonl", "lines.jsonl")
    return run


def build(home, shape, *more, code=0):
    return home("dataset", "build", "--shape", shape, "--reward", "ledger", "--json", "--checked", "0", *more, code=code)


def rows(home, shape):
    return home("dataset", "show", shape, "--rows", "3", "--json")["rows"]


def test_without_a_ledger_there_is_nothing_to_build_from(home):
    assert "thumbwheel reward run --agent adder" in build(home, "scored", code=4)


def test_every_shape_takes_its_values_from_the_ledger(home):
    home("reward", "run")
    made = build(home, "scored")
    assert sum(made["manifest"]["counts"].values()) == 2 * ASKED and made["manifest"]["reward"]
    assert {row["value"] for row in rows(home, "scored")} <= {2 / 3, 1 / 3}  # checker 2, thumb 1
    assert {row["origin"] for row in rows(home, "scored")} == {"reward"}
    build(home, "groups")
    assert all(sorted(row["values"]) == [1 / 3, 2 / 3] for row in rows(home, "groups"))
    build(home, "labels")
    assert all(row["label"] is (not row["completion"].startswith("maybe")) for row in rows(home, "labels"))
    made = build(home, "pairs", "--margin", "0.3")
    assert made["manifest"]["config"]["margin"] == 0.3
    assert all(row["rejected"].startswith("maybe") and row["origin"] == "rewards" for row in rows(home, "pairs"))
    assert all(row["feedback_ids"] for row in rows(home, "pairs")), "what people said about them stays named, so that it can be erased"
    assert "no pairs in train" in build(home, "pairs", "--margin", "0.34", code=4)


def test_by_feedback_the_same_pairs_stand_the_other_way_round(home):
    home("reward", "run")
    home("dataset", "build", "--shape", "pairs", "--json", "--checked", "0")
    assert all(row["chosen"].startswith("maybe") for row in rows(home, "pairs"))


def test_reweighting_makes_a_dataset_of_rewards_stale_when_it_is_read(home, tmp_path):
    home("reward", "run")
    first = build(home, "scored")
    home("dataset", "build", "--shape", "labels", "--json", "--checked", "0")
    assert home("dataset", "show", "scored", "--json")["stale"] == 0
    text = home("reward", "reweight", "--weight", "thumb=4")
    (tmp_path / "thumbwheel.yaml").write_text(text[text.index("rewards:") :])
    assert home("dataset", "show", "scored", "--json")["stale"] == 2 * ASKED
    assert f"stale: {2 * ASKED} of {2 * ASKED} rows' rewards changed" in home("dataset", "show", "scored")
    assert home("dataset", "show", "labels", "--json")["stale"] == 0, "what people said has not changed"
    again = build(home, "scored")
    assert again["id"] != first["id"] and home("dataset", "show", "scored", "--json")["stale"] == 0


def test_a_retraction_that_brings_an_older_reward_back_makes_a_dataset_stale(home, tmp_path):
    def hear(line):
        (tmp_path / "said.jsonl").write_text(json.dumps({"type": "feedback"} | line) + "\n")
        home("import", "jsonl", "said.jsonl")
        home("reward", "run")

    home("reward", "run")
    hear({"id": "f1", "kind": "thumb", "value": True, "target": {"trace": "right0"}, "rater": "s"})
    build(home, "scored")
    assert home("dataset", "show", "scored", "--json")["stale"] == 0
    hear({"id": "r1", "retracts": "f1"})
    assert home("dataset", "show", "scored", "--json")["stale"] == 1, "the row of before f1 is older than the dataset, and stands again"
    assert f"stale: 1 of {2 * ASKED} rows' rewards changed" in home("dataset", "show", "scored")
    build(home, "scored")
    assert home("dataset", "show", "scored", "--json")["stale"] == 0


def test_a_dataset_of_what_people_said_is_stale_by_what_they_say_and_by_no_setting(home, tmp_path):
    def shown():
        return home("dataset", "show", "labels", "--json")["stale"]

    def hear(line):
        (tmp_path / "said.jsonl").write_text(json.dumps({"type": "feedback"} | line) + "\n")
        home("import", "jsonl", "said.jsonl")

    def made():
        return home("dataset", "build", "--shape", "labels", "--json", "--checked", "0")["id"]

    home("reward", "run")
    first = made()
    (tmp_path / "thumbwheel.yaml").write_text("rewards: {components: {thumb: {weight: 2}, length: {weight: 0, settings: {most: 9}}}}")
    home("reward", "run")
    assert shown() == 0, "nothing was said"
    hear({"id": "f9", "kind": "thumb", "value": False, "target": {"trace": "right0"}, "rater": "s"})
    assert shown() == 1
    second = made()
    assert second != first and shown() == 0
    hear({"id": "r9", "retracts": "f9"})
    assert shown() == 1, "what was taken back is a change too"
    assert made() == first
    assert home("dataset", "show", first, "--json")["stale"] == 0, "it came out again, so it is what there is"


def test_what_only_a_checker_judged_is_a_row_and_never_in_the_gate(home, command_line, tmp_path):
    lines = []
    for place in range(60):
        lines.append({"type": "case", "id": f"s{place}", "input": f"Say {place}.", "reference": str(place)})
        lines.append({"type": "trace", "id": f"s{place}", "input": f"Say {place}.", "output": str(place), "case": f"s{place}"})
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    home("import", "jsonl", "more.jsonl")
    home("reward", "run")
    made = build(home, "scored", "--gate", "0.3")
    dropped = made["manifest"]["drops"]["only checkers or models judged it: not for the gate"]
    assert 0 < dropped < 60
    assert sum(made["manifest"]["counts"].values()) == 2 * ASKED + 60 - dropped


def test_a_reward_counts_as_one_of_people_only_where_what_they_said_is_a_part_of_it(home, tmp_path):
    home("reward", "run")
    held = build(home, "scored", "--gate", "0.3")["manifest"]["counts"]["gate"]
    assert held > 0
    (tmp_path / "thumbwheel.yaml").write_text("rewards: {components: {thumb: {weight: 0}}}\n")
    made = build(home, "scored", "--gate", "0.3")
    assert made["manifest"]["counts"]["gate"] == 0, "only the checker's word is in it"
    assert made["manifest"]["drops"]["only checkers or models judged it: not for the gate"] == held


def test_pairs_of_rewards_need_a_margin(home, tmp_path):
    (tmp_path / "thumbwheel.yaml").write_text("dataset: {reward: ledger, margin: null}\n")
    assert "need a margin" in home("dataset", "build", "--shape", "pairs", code=2)
