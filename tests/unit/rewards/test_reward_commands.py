"""`thumbwheel reward` as it is typed."""

from __future__ import annotations

import json

import pytest

LINES = [
    {"type": "case", "id": "c1", "input": "3 + 4?", "reference": "7"},
    {"type": "trace", "id": "t1", "input": "3 + 4?", "output": "A: 7", "case": "c1"},
    {"type": "trace", "id": "t2", "input": "3 + 4?", "output": "A: 8", "case": "c1"},
    {
        "type": "trace",
        "id": "d1",
        "input": "{}",
        "output": "{}",
        "metadata": {"decision": {"agent_type": "FILER", "confidence": 0.9}},
    },
    {"type": "feedback", "kind": "thumb", "value": True, "target": {"trace": "t2"}, "rater": "r1"},
]


@pytest.fixture
def reward(command_line, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (tmp_path / "thumbwheel.yaml").write_text(
        "rewards: {agents: {support: {components: {length: {weight: 0.5, settings: {most: "
        "50}}}}}}\n"
    )
    assert command_line("import", "jsonl", "lines.jsonl", "--agent", "support")[0] == 0

    def run(verb, *arguments, code=0):
        exit_code, out, err = command_line("reward", verb, *arguments, "--agent", "support")
        assert exit_code == code, (out, err)
        return (json.loads(out) if "--json" in arguments else out) if not code else err

    return run


def test_from_a_dry_run_to_an_explanation(reward):
    dry = reward("run", "--dry-run", "--json")
    assert (dry["traces"], dry["components"]["checker"]["judged"], dry["dry_run"]) == (3, 3, True)
    assert reward("list", "--json")["reward"]["n"] == 0
    done = reward("run", "--json")
    assert done["components"]["checker"] == {
        "judged": 3,
        "stood": 0,
        "statuses": {"ok": 2, "not_applicable": 1},
    }
    assert done["components"]["decision"]["statuses"] == {"not_applicable": 2, "pending": 1}
    again = reward("run", "--json")
    assert {part["judged"] for part in again["components"].values()} == {0}
    summary = reward("list", "--json", "--lowest", "1")
    assert summary["components"]["length"]["weight"] == 0.5
    assert (summary["reward"]["n"], summary["lowest"][0]["reward"]) == (3, pytest.approx(1.5 / 3.5))
    table = reward("list")
    assert "n/a" in table and "checker" in table and "3 traces, mean" in table
    words = reward("explain", "t2")
    assert (
        "reward 0.4286" in words
        and "= (2 x 0 + 1 x 1 + 0.5 x 1) / 3.5" in words
        and "nobody gave a rating" in words
    )
    explained = reward("explain", "t2", "--json")
    assert (explained["components"]["thumb"]["value"], explained["arithmetic"]) == (
        1.0,
        "applicable",
    )


def test_one_persons_click_on_a_decision_counts_once_and_the_explanation_says_so(
    reward, command_line, tmp_path
):
    row = {
        "id": "d9",
        "agentType": "FILER",
        "state": {"item": {"title": "Bank"}},
        "action": {"swimlane": "HOME"},
        "userId": "ann",
    }
    row |= {"userFeedback": "CONFIRMED", "outcomeMetrics": {"completedSuccessfully": True}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert command_line("import", "decisions", "rows.jsonl", "--agent", "support")[0] == 0
    reward("run")
    explanation = reward("explain", "d9", "--json")
    parts = explanation["components"]
    assert (parts["thumb"]["value"], parts["outcome"]["value"]) == (1.0, 1.0)
    assert {name for name, part in parts.items() if part["in_decision"]} >= {"thumb", "outcome"}
    assert {name for name, part in parts.items() if part["counts_as"] is not None} == {
        "decision",
        "length",
    }
    assert explanation["reward"] == pytest.approx(
        (parts["decision"]["value"] + 0.5 * parts["length"]["value"]) / 1.5
    )
    assert "thumb (weight 1): 1.0000, not in the mean: decision counts what it heard" in reward(
        "explain", "d9"
    )


def test_a_corrected_decision_is_worth_less_than_a_confirmed_one(reward, command_line, tmp_path):
    """How little the correction changed was averaged with what the decision says of it, which made
    0.70 of 0.44."""
    row = {"agentType": "FILER", "state": {"item": {"title": "Bank"}}, "confidence": 0.9}
    action = {
        "swimlane": "HOME",
        "labels": ["a long list of labels that stays as it was", "and another one"],
    }
    confirmed = row | {"id": "good", "action": action, "userFeedback": "CONFIRMED"}
    corrected = row | {
        "id": "bad",
        "action": action,
        "userFeedback": "CORRECTED",
        "userCorrection": {"swimlane": "HABIT"},
    }
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in (confirmed, corrected))
    )
    assert command_line("import", "decisions", "rows.jsonl", "--agent", "support")[0] == 0
    reward("run")
    good, bad = (reward("explain", name, "--json") for name in ("good", "bad"))
    assert (
        bad["components"]["edit_distance"]["value"] > 0.8
        and bad["components"]["edit_distance"]["in_decision"]
    )
    assert bad["components"]["decision"]["value"] < 0.5 < good["components"]["decision"]["value"]
    assert bad["reward"] < good["reward"]


def test_the_list_names_traces_as_their_source_does_and_explain_takes_every_name(
    reward, command_line, tmp_path
):
    unnamed = {
        "query": "Where?",
        "response": "Nowhere at all.",
        "feedback_type": "thumbs_down",
        "rating": None,
        "correction": None,
        "timestamp": "2026-01-05 09:12:44.120000",
        "metadata": {},
    }
    (tmp_path / "collector.jsonl").write_text(json.dumps(unnamed) + "\n")
    assert command_line("import", "feedback_jsonl", "collector.jsonl", "--agent", "support")[0] == 0
    reward("run")
    lowest = reward("list", "--json", "--lowest", "9")["lowest"]
    assert {row["external_id"] for row in lowest} == {"t1", "t2", "d1", None}
    (internal,) = [row["trace"] for row in lowest if row["external_id"] is None]
    table = reward("list", "--lowest", "9")
    shown = [
        line.split()[1]
        for line in table[table.index("Lowest rewards") :].splitlines()
        if "0." in line or "1." in line
    ]
    assert sorted(shown) == sorted(["t1", "t2", "d1", internal[:12]])
    for name in shown:
        assert reward("explain", name, "--json")["reward"] is not None


def test_one_component_alone(reward):
    done = reward("run", "--component", "thumb", "--json")
    assert list(done["components"]) == ["thumb"]
    assert "Did you mean 'thumb'" in reward("run", "--component", "thunb", code=2)


def test_defect_2c10_pending_never_writes_zero_and_looks_again(reward, command_line, tmp_path):
    first = reward("pending", "--json")
    assert (first["rewarded"], [(row["component"], row["count"]) for row in first["waiting"]]) == (
        3,
        [("decision", 1)],
    )
    late = {
        "type": "feedback",
        "kind": "label",
        "name": "user_feedback",
        "value": "OVERRIDDEN",
        "target": {"trace": "d1"},
    }
    (tmp_path / "late.jsonl").write_text(json.dumps(late) + "\n")
    assert command_line("import", "jsonl", "late.jsonl", "--agent", "support")[0] == 0
    second = reward("pending", "--json")
    assert second["components"]["decision"] == {"judged": 1, "stood": 2, "statuses": {"ok": 1}}
    assert second["waiting"] == []
    assert reward("explain", "d1", "--json")["components"]["decision"]["value"] == pytest.approx(
        (-0.8 - 0.09 + 5) / 10
    )
    assert "judged now" in reward("pending")


def test_reweight_prints_the_settings_that_keep_it(reward):
    reward("run")
    comparison = reward("reweight", "--weight", "checker=0", "--json")
    assert (comparison["changed"], comparison["now_good"], comparison["not_run_yet"]) == (1, 1, [])
    text = reward("reweight", "--weight", "checker=0")
    assert "checker:\n          weight: 0.0" in text
    other = reward("reweight", "--preset", "ocd", "--json")
    assert (other["after"]["n"], other["not_run_yet"]) == (
        3,
        ["decision"],
    )  # length is the agent's own, the other arithmetic was never run
    assert reward("reweight", "--preset", "none", "--json")["changed"] == 1
    assert "thumb=2" in reward("reweight", "--weight", "thumb", code=2)
    assert "from 0 on" in reward("reweight", "--weight", "thumb=-1", code=2)


@pytest.mark.parametrize(
    "arguments",
    [("run", "--as-of", "yesterday"), ("list", "--as-of", "2026-13-01"), ("explain", "no-such")],
)
def test_what_cannot_be_is_refused_with_a_reason(reward, arguments):
    assert "error: " in reward(*arguments, code=2)


def test_as_of_before_everything_there_is_nothing(reward):
    assert reward("run", "--as-of", "2020-01-01", "--json")["traces"] == 0


def test_a_dataset_says_how_many_of_its_rows_have_other_rewards_by_now(
    reward, command_line, tmp_path
):
    reward("run")
    ratings = [
        {"type": "trace", "id": f"r{number}", "input": f"q{number}", "output": "a"}
        for number in range(20)
    ]
    ratings += [
        {
            "type": "feedback",
            "kind": "rating",
            "value": 1 + number % 5,
            "target": {"trace": f"r{number}"},
        }
        for number in range(20)
    ]

    def add(lines):
        (tmp_path / "more.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert command_line("import", "jsonl", "more.jsonl", "--agent", "support")[0] == 0
        return reward("run", "--json")

    def dataset(verb, *arguments):
        code, out, err = command_line("dataset", verb, *arguments, "--agent", "support")
        assert code == 0, (out, err)
        return out

    add(ratings)
    dataset("build", "--shape", "scored", "--dev", "0.1")
    assert json.loads(dataset("list", "--json"))[0]["stale"] == 0
    add([{"type": "trace", "id": "fresh", "input": "q", "output": "a"}])
    assert "stale" not in dataset("show", "scored")
    late = [
        {
            "type": "feedback",
            "kind": "thumb",
            "value": True,
            "target": {"trace": name},
            "rater": "late",
        }
        for name in ("r1", "r2", "t1")
    ]
    assert add(late)["components"]["thumb"]["judged"] == 3
    assert "stale: 2 of 20 rows' rewards changed since it was built" in dataset("show", "scored")
    assert "stale: 2 of 20" in dataset("list")
    assert json.loads(dataset("show", "scored", "--json"))["stale"] == 2
