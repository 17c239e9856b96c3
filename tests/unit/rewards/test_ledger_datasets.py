"""Datasets whose values are the combined rewards of the ledger: every shape, the margin of pairs,
and that reweighting makes them stale."""

from __future__ import annotations

import json

import pytest

from thumbwheel.app.open import opener
from thumbwheel.models import documents

ASKED = 40


@pytest.fixture
def wrongly_thumbed_home(command_line, tmp_path):
    """Forty questions with two answers each: the first is right and thumbed down, the second wrong
    and thumbed up."""
    lines = []
    for number in range(ASKED):
        question = f"What is {number} and {number + 7} together?"
        lines.append(
            {
                "type": "case",
                "id": f"c{number}",
                "input": question,
                "reference": f"{2 * number + 7}",
            }
        )
        for side, text in (("right", f"{2 * number + 7}"), ("wrong", f"maybe {number}")):
            lines.append(
                {
                    "type": "trace",
                    "id": f"{side}{number}",
                    "input": question,
                    "output": text,
                    "case": f"c{number}",
                }
            )
            thumb = {"type": "feedback", "kind": "thumb", "value": side == "wrong", "rater": "r"}
            lines.append(thumb | {"target": {"trace": f"{side}{number}"}})
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*arguments, code=0):
        exit_code, out, err = command_line(*arguments, "--agent", "adder")
        assert exit_code == code, (out, err)
        return (json.loads(out) if "--json" in arguments else out) if not code else err

    run("import", "jsonl", "lines.jsonl")
    return run


def build(home, shape, *more, code=0):
    return home(
        "dataset",
        "build",
        "--shape",
        shape,
        "--reward",
        "ledger",
        "--json",
        "--checked",
        "0",
        *more,
        code=code,
    )


def rows(home, shape):
    return home("dataset", "show", shape, "--rows", "3", "--json")["rows"]


def test_without_a_ledger_there_is_nothing_to_build_from(wrongly_thumbed_home):
    assert "thumbwheel reward run --agent adder" in build(wrongly_thumbed_home, "scored", code=4)


def test_a_persons_verdict_wins_over_the_ledger_in_every_shape(wrongly_thumbed_home):
    """The checker calls an answer right, people call it bad, and the other way round: their word
    stands."""
    wrongly_thumbed_home("reward", "run")
    dataset = build(wrongly_thumbed_home, "labels")
    assert (
        sum(dataset["manifest"]["counts"].values()) == 2 * ASKED and dataset["manifest"]["reward"]
    )
    assert all(
        row["label"] is row["completion"].startswith("maybe")
        for row in rows(wrongly_thumbed_home, "labels")
    )
    assert {row["origin"] for row in rows(wrongly_thumbed_home, "labels")} == {"upvote", "downvote"}
    build(wrongly_thumbed_home, "scored")
    assert {
        (row["completion"].startswith("maybe"), row["value"])
        for row in rows(wrongly_thumbed_home, "scored")
    } == {(True, 1.0), (False, 0.0)}
    build(wrongly_thumbed_home, "groups")
    for row in rows(wrongly_thumbed_home, "groups"):
        assert dict(
            zip(
                [text.startswith("maybe") for text in row["completions"]],
                row["values"],
                strict=True,
            )
        ) == {True: 1, False: 0}
    build(wrongly_thumbed_home, "pairs")
    assert all(
        row["chosen"].startswith("maybe") and row["origin"] == "siblings"
        for row in rows(wrongly_thumbed_home, "pairs")
    )
    assert all(row["feedback_ids"] for row in rows(wrongly_thumbed_home, "pairs")), (
        "what people said about them stays named, so that it can be erased"
    )
    build(wrongly_thumbed_home, "prompts", "--allow", "leakage")
    assert all(
        row["success"] == 0.5 and row["liked"].startswith("maybe")
        for row in rows(wrongly_thumbed_home, "prompts")
    )


def test_computed_rewards_fill_what_nobody_judged(wrongly_thumbed_home, tmp_path):
    lines = []
    for number in range(ASKED):
        for side, text in (("right", str(number)), ("wrong", f"about {number + 1}")):
            lines.append(
                {
                    "type": "case",
                    "id": f"n{number}",
                    "input": f"Say {number}.",
                    "reference": str(number),
                }
            )
            lines.append(
                {
                    "type": "trace",
                    "id": f"n{side}{number}",
                    "input": f"Say {number}.",
                    "output": text,
                    "case": f"n{number}",
                }
            )
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrongly_thumbed_home("import", "jsonl", "more.jsonl")
    wrongly_thumbed_home("reward", "run")
    for shape in ("labels", "scored", "groups", "pairs"):
        build(wrongly_thumbed_home, shape, "--gate", "0")
        rows = wrongly_thumbed_home("dataset", "show", shape, "--rows", "200", "--json")["rows"]
        for row in (row for row in rows if row["prompt"][0]["content"].startswith("Say")):
            if shape == "labels":
                assert (row["label"], row["origin"]) == (
                    not row["completion"].startswith("about"),
                    "reward",
                )
            elif shape == "scored":
                assert row["value"] == float(not row["completion"].startswith("about"))
            elif shape == "groups":
                assert row["values"] == [
                    float(not text.startswith("about")) for text in row["completions"]
                ]
            else:
                assert row["rejected"].startswith("about") and row["origin"] == "rewards"
        assert sum(row["prompt"][0]["content"].startswith("Say") for row in rows) >= 10


def test_a_reward_on_the_side_of_the_person_stays_the_number(wrongly_thumbed_home, tmp_path):
    line = {"type": "trace", "id": "x", "input": "How far?", "output": "far"}
    other = {"type": "trace", "id": "y", "input": "How far?", "output": "near"}
    thumbs = [
        {
            "type": "feedback",
            "kind": "thumb",
            "value": name == "x",
            "target": {"trace": name},
            "rater": "ann",
        }
        for name in "xy"
    ]
    (tmp_path / "far.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in (line, other, *thumbs))
    )
    wrongly_thumbed_home("import", "jsonl", "far.jsonl")
    config = (
        "rewards: {components: {thumb: {weight: 3}, length: {weight: 1, settings: {least: 4, most: "
        "9}}}}\n"
    )
    (tmp_path / "thumbwheel.yaml").write_text(config)
    wrongly_thumbed_home("reward", "run")
    build(wrongly_thumbed_home, "groups", "--dev", "0", "--gate", "0")
    rows = wrongly_thumbed_home("dataset", "show", "groups", "--rows", "200", "--json")["rows"]
    (row,) = [row for row in rows if row["prompt"][0]["content"] == "How far?"]
    values = dict(zip(row["completions"], row["values"], strict=True))
    assert 0.5 < values["far"] < 1.0, "good by the person, and not quite by the length"
    assert 0.0 < values["near"] < 0.5


def test_reweighting_makes_a_dataset_of_rewards_stale_when_it_is_read(
    wrongly_thumbed_home, tmp_path
):
    wrongly_thumbed_home("reward", "run")
    first = build(wrongly_thumbed_home, "scored")
    wrongly_thumbed_home("dataset", "build", "--shape", "labels", "--json", "--checked", "0")
    assert wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 0
    text = wrongly_thumbed_home("reward", "reweight", "--weight", "thumb=4")
    (tmp_path / "thumbwheel.yaml").write_text(text[text.index("rewards:") :])
    assert wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 2 * ASKED
    assert f"stale: {2 * ASKED} of {2 * ASKED} rows' rewards changed" in wrongly_thumbed_home(
        "dataset", "show", "scored"
    )
    assert wrongly_thumbed_home("dataset", "show", "labels", "--json")["stale"] == 0, (
        "what people said has not changed"
    )
    again = build(wrongly_thumbed_home, "scored")
    assert (
        again["id"] != first["id"]
        and wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 0
    )


def test_a_retraction_that_brings_an_older_reward_back_makes_a_dataset_stale(
    wrongly_thumbed_home, tmp_path
):
    def hear(line):
        (tmp_path / "said.jsonl").write_text(json.dumps({"type": "feedback"} | line) + "\n")
        wrongly_thumbed_home("import", "jsonl", "said.jsonl")
        wrongly_thumbed_home("reward", "run")

    unjudged = {
        "type": "trace",
        "id": "alone",
        "input": "What is 0 and 7 together?",
        "output": "seven",
        "case": "c0",
    }
    (tmp_path / "unjudged.jsonl").write_text(json.dumps(unjudged) + "\n")
    wrongly_thumbed_home("import", "jsonl", "unjudged.jsonl")
    wrongly_thumbed_home("reward", "run")
    hear({"id": "f1", "kind": "thumb", "value": True, "target": {"trace": "alone"}, "rater": "s"})
    build(wrongly_thumbed_home, "scored")
    assert wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 0
    hear({"id": "r1", "retracts": "f1", "rater": "s"})
    assert wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 1, (
        "the row of before f1 is older than the dataset, and stands again"
    )
    assert f"stale: 1 of {2 * ASKED + 1} rows' rewards changed" in wrongly_thumbed_home(
        "dataset", "show", "scored"
    )
    build(wrongly_thumbed_home, "scored")
    assert wrongly_thumbed_home("dataset", "show", "scored", "--json")["stale"] == 0


def test_a_dataset_of_what_people_said_is_stale_by_what_they_say_and_by_no_setting(
    wrongly_thumbed_home, tmp_path
):
    def shown():
        return wrongly_thumbed_home("dataset", "show", "labels", "--json")["stale"]

    def hear(line):
        (tmp_path / "said.jsonl").write_text(json.dumps({"type": "feedback"} | line) + "\n")
        wrongly_thumbed_home("import", "jsonl", "said.jsonl")

    def build():
        return wrongly_thumbed_home(
            "dataset", "build", "--shape", "labels", "--json", "--checked", "0"
        )["id"]

    wrongly_thumbed_home("reward", "run")
    first = build()
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {components: {thumb: {weight: 2}, length: {weight: 0, settings: {most: 9}}}}"
    )
    wrongly_thumbed_home("reward", "run")
    assert shown() == 0, "nothing was said"
    hear({"id": "f9", "kind": "thumb", "value": False, "target": {"trace": "right0"}, "rater": "s"})
    assert shown() == 1
    second = build()
    assert second != first and shown() == 0
    hear({"id": "r9", "retracts": "f9", "rater": "s"})
    assert shown() == 1, "what was taken back is a change too"
    assert build() == first
    assert wrongly_thumbed_home("dataset", "show", first, "--json")["stale"] == 0, (
        "it came out again, so it is what there is"
    )


def test_what_only_a_checker_judged_is_a_row_and_never_in_the_gate(
    wrongly_thumbed_home, command_line, tmp_path
):
    lines = []
    for number in range(60):
        lines.append(
            {
                "type": "case",
                "id": f"s{number}",
                "input": f"Say {number}.",
                "reference": str(number),
            }
        )
        lines.append(
            {
                "type": "trace",
                "id": f"s{number}",
                "input": f"Say {number}.",
                "output": str(number),
                "case": f"s{number}",
            }
        )
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrongly_thumbed_home("import", "jsonl", "more.jsonl")
    wrongly_thumbed_home("reward", "run")
    dataset = build(wrongly_thumbed_home, "scored", "--gate", "0.3")
    dropped = dataset["manifest"]["drops"]["only checkers or models judged it: not for the gate"]
    assert 0 < dropped < 60
    assert sum(dataset["manifest"]["counts"].values()) == 2 * ASKED + 60 - dropped


def test_a_reward_counts_as_one_of_people_only_where_what_they_said_is_a_part_of_it(
    wrongly_thumbed_home, tmp_path
):
    lines = []
    for number in range(60):
        lines.append(
            {
                "type": "trace",
                "id": f"e{number}",
                "input": f"Describe item {number}.",
                "output": f"Item {number} is red.",
            }
        )
        correction = {
            "type": "feedback",
            "kind": "correction",
            "value": f"Item {number} is blue.",
            "rater": "r",
        }
        lines.append(correction | {"target": {"trace": f"e{number}"}})
    (tmp_path / "edited.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wrongly_thumbed_home("import", "jsonl", "edited.jsonl")

    def kept_out():
        wrongly_thumbed_home("reward", "run")
        drops = build(wrongly_thumbed_home, "scored", "--gate", "0.3")["manifest"]["drops"]
        return drops.get("only checkers or models judged it: not for the gate", 0)

    assert kept_out() == 0, "how much of the answer the edit kept is a person's word"
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {components: {edit_distance: {weight: 0}, length: {settings: {least: 9, most: "
        "90}}}}\n"
    )
    assert kept_out() > 0, "only the length's word is in it"


def test_pairs_of_rewards_need_a_margin(wrongly_thumbed_home, tmp_path):
    (tmp_path / "thumbwheel.yaml").write_text("dataset: {reward: ledger, margin: null}\n")
    assert "need a margin" in wrongly_thumbed_home("dataset", "build", "--shape", "pairs", code=2)


@pytest.fixture
def filer(command_line, tmp_path):
    """Twenty decisions that a person confirmed or overrode; returns (command, set the preset)."""
    lines = []
    for number in range(20):
        decision = {"agent_type": "FILER", "confidence": 0.9}
        trace = {
            "type": "trace",
            "id": f"d{number}",
            "input": f"item {number}",
            "output": "{}",
            "metadata": {"decision": decision},
        }
        word = "CONFIRMED" if number % 2 else "OVERRIDDEN"
        label = {
            "type": "feedback",
            "kind": "label",
            "name": "user_feedback",
            "value": word,
            "target": {"trace": f"d{number}"},
        }
        lines += [trace, label]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*arguments, json_answer=True):
        more = ("--json",) if json_answer else ()
        code, out, err = command_line(*arguments, "--agent", "filer", *more)
        assert code == 0, (out, err)
        return json.loads(out) if json_answer else out + err

    def preset(name):
        (tmp_path / "thumbwheel.yaml").write_text(f"rewards: {{preset: {name}}}\n")

    assert command_line("import", "jsonl", "lines.jsonl", "--agent", "filer")[0] == 0
    return run, preset


def rewards_by_command(run):
    """trace -> reward, or the mean of all, as each of the four commands has it."""
    listed = run("reward", "list", "--lowest", "20")
    by_list = sorted(row["reward"] for row in listed["lowest"])
    by_explain = sorted(run("reward", "explain", f"d{number}")["reward"] for number in range(20))
    by_reweight = run("reward", "reweight")["before"]["mean"]
    run(
        "dataset",
        "build",
        "--shape",
        "scored",
        "--reward",
        "ledger",
        "--checked",
        "0",
        "--dev",
        "0",
        "--gate",
        "0",
    )
    by_build = sorted(
        row["value"] for row in run("dataset", "show", "scored", "--rows", "20")["rows"]
    )
    assert by_reweight == pytest.approx(sum(by_list) / 20)
    return by_list, by_explain, by_build


@pytest.mark.slow
def test_after_a_change_of_preset_and_back_every_command_reads_the_same_rows(filer):
    run, preset = filer
    preset("default")
    run("reward", "run")
    first = rewards_by_command(run)
    assert first[0] == first[1] == pytest.approx(first[2])
    dataset = run("dataset", "show", "scored")["id"]
    assert run("reward", "reweight", "--preset", "ocd")["not_run_yet"] == ["decision"]

    preset("ocd")
    assert run("reward", "list")["reward"]["n"] == 0
    run("reward", "run")
    other = rewards_by_command(run)
    assert other[0] == other[1] == pytest.approx(other[2])
    assert other[0] != first[0]
    back = run("reward", "reweight", "--preset", "default")
    assert back["not_run_yet"] == [] and back["after"]["mean"] == pytest.approx(
        sum(first[0]) / 20
    ), "both were run, so both are known"

    preset("default")
    assert run("dataset", "show", dataset)["stale"] == 0, (
        "the rewards in force are those that it was built from"
    )
    again = rewards_by_command(run)
    assert again == first, "no run was needed"
    assert run("reward", "run")["components"]["decision"]["judged"] == 0


def test_a_component_that_never_ran_with_its_present_settings_is_named_in_a_warning(
    filer, tmp_path
):
    run, preset = filer
    preset("default")
    run("reward", "run")
    assert run("reward", "list")["not_run"] == []
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {components: {decision: {settings: {bound: 2}}, length: {settings: {most: 9}}}}\n"
    )
    unheard = ["decision", "length"]
    assert run("reward", "list")["not_run"] == run("reward", "explain", "d1")["not_run"] == unheard
    assert (
        run("reward", "reweight")["not_run"] == run("reward", "reweight")["not_run_yet"] == unheard
    )
    warning = (
        "without a part in the reward: decision, length. Judge them: thumbwheel reward run --agent "
        "filer"
    )
    for verb in (("list",), ("explain", "d1"), ("reweight",)):
        assert warning in run("reward", *verb, json_answer=False)
    run("reward", "run", "--component", "length")
    build = ("dataset", "build", "--shape", "scored", "--reward", "ledger", "--checked", "0")
    assert warning.replace(", length", "") in run(*build, json_answer=False)
    plan = ("dataset", "plan", "--reward", "ledger")
    assert warning.replace(", length", "") in run(*plan, json_answer=False)
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {components: {decision: {weight: 0, settings: {bound: 2}}}}\n"
    )
    assert run("reward", "list")["not_run"] == [], "what has no weight has no part anyway"


def test_rewards_that_leave_0_to_1_name_the_preset_that_does_it(filer, command_line, tmp_path):
    run, preset = filer
    preset("ocd")
    row = {
        "id": "worst",
        "agentType": "FILER",
        "state": {},
        "action": {"swimlane": "HOME"},
        "reward": -3.5,
    }
    (tmp_path / "worst.json").write_text(json.dumps([row]))
    run("import", "decisions", "worst.json")
    run("reward", "run")
    code, _, error = command_line(
        "dataset", "build", "--agent", "filer", "--shape", "scored", "--reward", "ledger"
    )
    assert code == 4 and "rewards: {preset: default}" in error


def test_a_dataset_is_stale_as_a_whole_once_a_classifier_of_its_reward_is_gone(filer, tmp_path):
    run, _ = filer
    with opener(tmp_path / "home", None, "warning")() as ws:
        sha256 = documents.save(ws, "classifier", {"agent": "filer"})
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {components: {learned: {settings: {classifier: latest}}}}\n"
    )
    run("reward", "run")
    run("dataset", "build", "--shape", "scored", "--reward", "ledger", "--checked", "0")
    assert run("dataset", "show", "scored")["stale"] == 0
    with opener(tmp_path / "home", None, "warning")() as ws:
        documents.delete(ws, [sha256])
    assert run("dataset", "show", "scored")["stale"] == 20
