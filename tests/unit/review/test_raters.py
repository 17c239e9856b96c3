"""Who agrees with whom: raters with the crowd of the others, judges with the people, and what a
judge states about itself."""

import json
import random

import pytest

from tests.judges import prefers_longer
from tests.public_data import public_data
from tests.worlds.label_world import AGENT, home
from thumbwheel.core.errors import DataError
from thumbwheel.llm.fake import FakeServer, Reply
from thumbwheel.models.documents import documents
from thumbwheel.review.agreement import KIND, agreement, panel, trust
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.judge import Judge


def table(**raters):
    """Verdicts from a string of them for each rater; a dot is none."""
    return [
        (f"thing{index}", name, mark)
        for name, marks in raters.items()
        for index, mark in enumerate(marks)
        if mark != "."
    ]


def test_each_rater_is_held_against_the_crowd_of_the_others():
    result = panel("x", table(a="ggbbgb", b="ggbbgb", c="ggbbbb", d="bbggbg"))
    kappas = {rater.rater: rater.agreement.value for rater in result.raters}
    assert kappas["d"] < 0 < kappas["c"] < 1
    assert kappas["a"] == kappas["b"] > 0
    assert all(rater.verdicts == 6 for rater in result.raters)


def test_a_crowd_without_plurality_is_left_out_and_counted_and_a_tie_is_a_verdict():
    result = panel("x", table(a="gtb", b="gtg", c="gtb"))
    raters = {rater.rater: rater for rater in result.raters}
    assert (raters["a"].torn, raters["a"].agreement.units) == (1, 2)
    assert (raters["b"].torn, raters["b"].agreement.units) == (0, 3)
    assert raters["a"].agreement.share == 1


def test_what_nobody_else_judged_is_counted():
    result = panel("x", table(a="ggb.", b="gg.b"))
    assert [(rater.alone, rater.agreement.units) for rater in result.raters] == [(1, 2), (1, 2)]
    assert result.people["nominal"].units == 2


def test_a_judge_is_no_part_of_the_crowd():
    result = panel("x", table(a="gbgb", b="gbgb", j="bbbb"), judges={"j"})
    assert result.people["nominal"].value == 1
    assert [rater.rater for rater in result.raters] == ["a", "b"]
    (judge,) = result.judges
    assert (judge.rater, judge.agreement.units, judge.agreement.share) == ("j", 4, 0.5)
    assert json.loads(json.dumps(result.as_dict()))["judges"][0]["agreement"]["units"] == 4


def test_lone_verdicts_count_singly_and_have_no_row():
    result = panel("x", [("t", "a", "b"), ("t", None, "g"), ("t", None, "g"), ("t", None, "b")])
    (anna,) = result.raters
    assert (anna.agreement.units, anna.agreement.share) == (1, 0)
    assert result.people["nominal"].share == pytest.approx(2 / 6)  # of the pairs of four verdicts


def test_the_order_of_the_verdicts_changes_nothing():
    for seed in range(3):
        draw = random.Random(seed)
        verdicts = []
        for thing in range(8):
            raters = draw.sample(["a", "b", "c", "judge"], draw.randint(1, 4))
            raters += [None] * 3
            verdicts += [(f"thing{thing}", rater, draw.choice([0, 1, 2])) for rater in raters]
        shuffled = draw.sample(verdicts, len(verdicts))
        assert panel("x", shuffled, {"judge"}) == panel("x", verdicts, {"judge"})


def feedback(kind, value, rater, *traces):
    return {
        "type": "feedback",
        "targets": [{"trace": trace} for trace in traces],
        "kind": kind,
        "value": value,
        "rater": rater,
    }


def compared(pairs=60):
    """Two answers to each question; people prefer the longer one, ben not always; a model prefers
    the first."""
    rows = []
    for number in range(pairs):
        short, long = f"s{number}", f"l{number}"
        rows.append(
            {
                "type": "trace",
                "id": short,
                "input": f"Question {number}?",
                "output": f"short {number}",
            }
        )
        rows.append(
            {
                "type": "trace",
                "id": long,
                "input": f"Question {number}?",
                "output": f"a much longer answer {number}",
            }
        )
        better = number % 2
        order = (short, long) if better else (long, short)
        rows.append(feedback("preference", better, "anna", *order))
        rows.append(feedback("preference", better if number % 10 else None, "ben", *order))
        rows.append(feedback("preference", 0, {"id": "gpt", "kind": "model"}, *order))
        rows += [
            feedback("rating", 4 if number % 3 else 2, "anna", long),
            feedback("rating", 5 if number % 3 else 1, "ben", long),
        ]
    return rows


@pytest.fixture
def compared_answers(tmp_path):
    with home(tmp_path, compared()) as ws:
        yield ws


def test_an_agents_feedback_gives_a_panel_for_each_kind_of_verdict(compared_answers):
    panels = {voices.kind: voices for voices in agreement(compared_answers, AGENT)}
    assert set(panels) == {"good or bad", "ratings", "comparisons"}
    assert panels["good or bad"].people["nominal"].value == 1
    assert (
        panels["ratings"].people["interval"].value > panels["ratings"].people["ordinal"].value > 0.3
    )
    assert panels["ratings"].people["ordinal"].share == 0
    sides = panels["comparisons"]
    assert [voices.rater for voices in sides.raters] == ["anna", "ben"]
    assert sides.raters[0].agreement.share == pytest.approx(0.9)
    assert sides.raters[0].agreement.interval.low < sides.raters[0].agreement.value < 1
    (judge,) = sides.judges
    assert judge.rater == "gpt (model)"
    assert judge.agreement.value < 0.2
    assert judge.torn == 6


@pytest.mark.parametrize("reverse", [False, True])
def test_who_prefers_both_at_the_same_time_has_preferred_neither(tmp_path, reverse):
    both = [
        feedback("preference", side, "anna", "s0", "l0") | {"occurred_at": "2026-05-01T10:00:00Z"}
        for side in (0, 1)
    ]
    rows = compared(2)
    anna = [row for row in rows if row.get("rater") == "anna" and row["kind"] == "preference"]
    rows.remove(anna[0])
    with home(tmp_path, rows + (both[::-1] if reverse else both)) as world:
        (sides,) = [panel for panel in agreement(world, AGENT) if panel.kind == "comparisons"]
    verdicts = {rater.rater: rater.verdicts for rater in sides.raters}
    assert verdicts == {"anna": 1, "ben": 2}


@pytest.mark.parametrize("reverse", [False, True])
def test_votes_without_rater_and_time_count_singly(tmp_path, reverse):
    lone = [
        feedback("preference", side, "nobody", "s0", "l0") | {"id": f"p{number}"}
        for number, side in enumerate((0, 0, 1))
    ]
    lone += [
        feedback("thumb", good, "nobody", "l0") | {"id": f"t{number}"}
        for number, good in enumerate((True, True, False))
    ]
    for line in lone:
        del line["rater"]
    rows = [row for row in compared(1) if row["type"] == "trace"]
    rows += lone[::-1] if reverse else lone
    rows += [feedback("preference", 1, "anna", "s0", "l0"), feedback("thumb", True, "anna", "l0")]
    with home(tmp_path, rows) as world:
        panels = {voices.kind: voices for voices in agreement(world, AGENT)}
        with pytest.raises(DataError, match="compared no answers"):
            # Two against two: the people have no plurality to measure a judge by.
            trust(world, AGENT, Judge.create({"url": "http://127.0.0.1:9/v1", "model": "m"}), 9)
    for kind, share in (("comparisons", 0), ("good or bad", 1)):
        (anna,) = panels[kind].raters
        assert (anna.rater, anna.agreement.units, anna.agreement.share) == ("anna", 1, share)


def test_a_judge_states_its_agreement_and_then_may_gate(compared_answers, tmp_path):
    with FakeServer(prefers_longer) as server:
        judge = Judge.create({"url": server.url, "model": "m"})
        stated = trust(compared_answers, AGENT, judge, 300)
        assert (stated["pairs"], stated["without_verdict"]) == (
            54,
            0,
        )  # six without a plurality of people; the model's word counts nothing
        assert (stated["kappa"], stated["judge"]) == (1, judge.fingerprint())
        assert [document.sha256 for document in documents(compared_answers, KIND, AGENT)] == [
            stated["sha256"]
        ]
        path = tmp_path / "agreement.json"
        path.write_text(json.dumps(stated))
        case = Case("a long and right answer", "short")
        gate = Judge.create(
            {
                "url": server.url,
                "model": "m",
                "agreement": str(path),
                "home": str(compared_answers.home.path),
            }
        )
        assert gate.score([case])[0].value == 1
        few = trust(compared_answers, AGENT, judge, 10)
        path.write_text(json.dumps(few))
        assert gate.score([case])[0].status is JudgementStatus.BLOCKED


def test_pairs_without_a_verdict_are_counted_and_are_no_agreement(compared_answers):
    with FakeServer(lambda request: Reply("no", 400)) as server:
        stated = trust(compared_answers, AGENT, Judge.create({"url": server.url, "model": "m"}), 20)
    assert (stated["pairs"], stated["without_verdict"], stated["kappa"]) == (0, 20, None)
    assert "HTTP 400" in stated["reasons"][0][0]


def test_without_comparisons_nothing_can_be_stated(tmp_path):
    with (
        home(tmp_path, compared()[:2]) as ws,
        pytest.raises(DataError, match="compared no answers"),
    ):
        trust(ws, AGENT, Judge.create({"url": "http://127.0.0.1:9/v1", "model": "m"}), 20)


def test_the_commands_show_it(command_line, tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in compared()))
    assert command_line("import", "jsonl", str(path), "--agent", AGENT)[0] == 0
    with FakeServer(prefers_longer) as server:
        code, out, _ = command_line(
            "label",
            "trust",
            "--agent",
            AGENT,
            "--url",
            server.url,
            "--model",
            "m",
            "--out",
            "a.json",
        )
    assert code == 0
    assert json.loads((tmp_path / "a.json").read_text())["kappa"] == 1
    code, out, _ = command_line("label", "agreement", "--agent", AGENT)
    assert code == 0
    assert "judge gpt (model), kappa" in out
    assert "stated agreement of judges" in out


def test_pandalm_as_docs_have_it():
    with public_data("preferences/pandalm-testset-v1-3annotators.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    verdicts = [
        (str(row["idx"]), str(number), row[f"annotator{number}"])
        for row in rows
        for number in (1, 2, 3)
    ]
    with public_data("preferences/pandalm-gpt35-judge.jsonl").open() as lines:
        answers = [(str(row["idx"]), row["gpt_result"]) for row in map(json.loads, lines)]
    verdicts += [
        (pair, "gpt-3.5", 0 if word == "Tie" else int(word))
        for pair, word in answers
        if word != "garbage"
    ]
    result = panel("pandalm", verdicts, {"gpt-3.5"})
    assert result.people["nominal"].value == pytest.approx(0.850, abs=5e-4)
    assert [round(rater.agreement.value, 3) for rater in result.raters] == [0.924, 0.888, 0.938]
    assert [rater.torn for rater in result.raters] == [37, 29, 40]
    assert (round(result.judges[0].agreement.value, 3), result.judges[0].agreement.units) == (
        0.465,
        393,
    )
