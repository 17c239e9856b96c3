"""The data plan: figures, readiness, recommendation, words; and the plan of a file, which leaves
nothing behind."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest

from tests.public_data import public_data
from tests.worlds.feedback_world import AGENT, START, FeedbackWorld
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.datasets.build import build
from thumbwheel.datasets.dataplan import DataPlan
from thumbwheel.datasets.shapes.labels import class_weights
from thumbwheel.datasets.types import DatasetConfig, PlanConfig
from thumbwheel.training.data_plan import data_plan, plan_file


def thumbs(count: int, up: int = 10, world: FeedbackWorld | None = None) -> FeedbackWorld:
    """`count` thumbs on as many prompts, `up` of 10 of them good."""
    world = world or FeedbackWorld()
    for number in range(count):
        world.say(
            "thumb",
            number % 10 < up,
            world.trace(f"t{number}", f"q{number}", f"answer {number}"),
            rater=f"r{number % 4}",
        )
    return world


def plan_of(world: FeedbackWorld, home: Path, config: DatasetConfig | None = None) -> DataPlan:
    with world.into(home) as ws:
        return data_plan(ws, AGENT, config)


def test_thumbs_make_sft_ready(tmp_path: Path) -> None:
    plan = plan_of(thumbs(300, up=7), tmp_path)
    assert (plan.recommended, plan.ready, plan.eligible) == ("sft", True, ["sft", "kto"])
    assert plan.labels == {"desirable": 210, "undesirable": 90}
    kto = plan.shapes["labels"]
    assert sum(kto.counts.values()) == 300
    assert kto.counts["train"] > 200
    assert plan.class_weights["desirable"] == 1.0
    assert 1.8 <= plan.class_weights["undesirable"] <= 2.8
    text = "\n".join(plan.to_words())
    assert "300 thumbs 70/30 good/bad by 4 raters" in text
    assert "KTO ready: 300 labels" in text
    assert f"weights 1.0/{plan.class_weights['undesirable']:.1f}" in text
    assert "No gold cases" in text
    assert "canary only" in text
    assert "Recommended: SFT" in text


def test_free_text_without_references_is_told_its_three_roads(tmp_path: Path) -> None:
    text = "\n".join(plan_of(thumbs(300, up=7), tmp_path).to_words())
    assert f"thumbwheel queue create duel --agent {AGENT} --of comparisons" in text
    assert f"thumbwheel label trust --agent {AGENT}" in text
    assert f"thumbwheel queue approve-liked review --agent {AGENT}" in text
    assert "thumbwheel case add" not in text


def test_a_file_of_free_text_is_told_the_same_of_no_agent(tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    rows = [f"how do i reset lamp {number}?,hold it,1" for number in range(20)]
    file.write_text("\n".join(["prompt,response,thumb", *rows]) + "\n")
    text = "\n".join(plan_file(file).to_words())
    assert "thumbwheel queue create duel --agent AGENT --of comparisons" in text


def test_fifty_thumbs_are_not_enough_and_it_says_how_many(tmp_path: Path) -> None:
    plan = plan_of(thumbs(50, up=7), tmp_path)
    assert (plan.ready, plan.recommended, plan.eligible) == (False, None, [])
    assert plan.missing == {
        "kto": {"labels": 50, "undesirable labels": 15},
        "dpo": {"pairs": 50},
        "sft": {"good answers": 15},
    }
    assert plan.to_words()[-1] == (
        "Do not train yet. Missing, any one of: 15 more good answers for SFT; 50 more labels and "
        "15 more undesirable labels for KTO; "
        "50 more pairs for DPO."
    )


def test_one_class_only_cannot_be_kto(tmp_path: Path) -> None:
    plan = plan_of(thumbs(250), tmp_path)
    assert (plan.recommended, plan.eligible) == ("sft", ["sft"])
    assert plan.missing["kto"] == {"undesirable labels": 30}


def test_corrections_recommend_dpo(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        world.say(
            "correction",
            f"better {number}",
            world.trace(f"t{number}", f"q{number}", f"worse {number}"),
        )
    plan = plan_of(world, tmp_path)
    assert plan.recommended == "dpo"
    assert plan.methods["dpo"].readiness == "usable"
    assert plan.shapes["pairs"].origins == {"correction": 60}
    few = plan_of(world, tmp_path / "strict", DatasetConfig(plan=PlanConfig(dpo_min=100)))
    assert "DPO weak: 60 pairs (60 from correction)" in "\n".join(few.to_words())
    assert few.missing["dpo"] == {"pairs": 40}
    nearly = plan_of(world, tmp_path / "nearly", DatasetConfig(plan=PlanConfig(dpo_min=61)))
    assert "; 1 more pair needed." in "\n".join(nearly.to_words())


def test_contradictions_duplicates_and_awaited_targets_are_told(tmp_path: Path) -> None:
    world = thumbs(3)
    torn = world.trace("torn", "torn?", "x")
    world.say("thumb", True, torn, rater="r1")
    world.say("thumb", False, torn, rater="r2")
    world.say("thumb", True, "missing-9")
    world.say("thumb", True, world.trace("twin", "q0", "answer 0"))
    world.say("rating", 4, targets=[("session", torn)])
    plan = plan_of(world, tmp_path)
    assert plan.notes == {
        "answers with disagreeing raters": 1,
        "answers whose raters disagree evenly": 1,
    }
    assert plan.drops == {"the same answer to the same prompt: counted once": 1}
    text = "\n".join(plan.to_words())
    assert "the side with the most weight decides (a plurality)" in text
    assert "1 answer whose raters disagree evenly, 1 answer with disagreeing raters" in text
    assert "1 target of feedback did not arrive yet" in text
    assert "Feedback about 1 session is kept" in text


def test_gold_cases_set_the_basis_and_the_power(tmp_path: Path) -> None:
    world = thumbs(20)
    for number in range(600):
        world.case(f"g{number}", f"gold {number}")
    plan = plan_of(world, tmp_path)
    assert (plan.gold, plan.power["gold"].n) == (600, 600)
    assert plan.power["gold"].detectable == pytest.approx(0.063, abs=0.002)
    assert "600 gold cases: gains from about 6 points" in "\n".join(plan.to_words())
    assert plan.power["feedback cases in gate"].detectable is None


def test_the_plan_is_what_build_would_freeze(tmp_path: Path) -> None:
    from thumbwheel.datasets.build import build

    world = thumbs(80, up=6)
    with world.into(tmp_path) as ws:
        plan = data_plan(ws, AGENT)
        for shape in ("labels", "chats"):
            dataset = build(ws, AGENT, shape)
            assert plan.shapes[shape].counts == dataset.counts
            assert plan.shapes[shape].warnings == dataset.manifest["warnings"]
        assert build(ws, AGENT, "labels").manifest["fitted"]["class_weights"] == plan.class_weights


def test_json_is_plain_and_without_nan(tmp_path: Path) -> None:
    plan = plan_of(thumbs(5), tmp_path)
    parsed = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert parsed["ready"] is False
    assert parsed["words"] == plan.to_words()
    assert parsed["signals"][0] == {
        "kind": "thumb",
        "count": 5,
        "good": 5,
        "bad": 0,
        "raters": 4,
        "neither": 0,
    }


def test_warnings_about_the_rows(tmp_path: Path) -> None:
    world = FeedbackWorld()
    for number in range(60):
        trace = world.trace(
            f"t{number}", f"q{number}", "short", session="one" if number < 40 else f"s{number}"
        )
        world.say("correction", f"a much longer and very polite answer {number}", trace)
    warnings = plan_of(world, tmp_path, DatasetConfig(dev=0, gate=0)).shapes["pairs"].warnings
    assert any("one group" in text and "67%" in text for text in warnings)
    assert any("longer one in 100%" in text for text in warnings)
    assert any("no row fell into dev" in text for text in warnings)


@pytest.mark.parametrize(
    "counts", [(222, 90), (90, 222), (7, 1), (1, 7), (133, 100), (134, 100), (99, 100)]
)
def test_class_weights_balance_within_the_bounds_of_the_paper(counts: tuple[int, int]) -> None:
    desirable, undesirable = class_weights(*counts)
    assert min(desirable, undesirable) == 1.0
    assert 1.0 - 1e-9 <= desirable * counts[0] / (undesirable * counts[1]) <= 4 / 3


def test_an_unknown_agent(tmp_path: Path) -> None:
    with thumbs(1).into(tmp_path) as ws, pytest.raises(NotFound, match="Did you mean 'helper'"):
        data_plan(ws, "helpr")


RATINGS = [
    {"type": "trace", "id": "t1", "input": "Capital of France?", "output": "Lyon."},
    {
        "type": "feedback",
        "id": "f1",
        "kind": "correction",
        "value": "Paris.",
        "targets": [{"trace": "t1"}],
    },
]


@pytest.mark.slow
def test_plan_of_a_file_opens_no_home_and_needs_no_torch(tmp_path: Path) -> None:
    file = tmp_path / "ratings.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in RATINGS))
    code = (
        "import sys; sys.argv = ['thumbwheel', 'plan', sys.argv[1], '--json']\nfrom "
        "thumbwheel.cli.main import main\n"
        "try: main()\nfinally: assert 'torch' not in sys.modules"
    )
    home = tmp_path / "home"
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path),
        "THUMBWHEEL_HOME": str(home),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["shapes"]["pairs"]["origins"] == {"correction": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ratings.jsonl"]


@pytest.mark.parametrize(
    ("content", "why"),
    [("", "empty"), ("not json\n", "JSON"), ('{"colour": "red"}\n', "known to contain the prompt")],
)
def test_files_that_no_source_reads(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "file.jsonl").write_text(content)
    with pytest.raises(InputError, match=why):
        plan_file(tmp_path / "file.jsonl")
    with pytest.raises(InputError, match="No such file"):
        plan_file(tmp_path / "missing.jsonl")


def test_real_preferences_hh() -> None:
    plan = plan_file(public_data("preferences/hh-rlhf-harmless-base-test.jsonl"))
    silent = plan.drops["one of the compared answers was left out"]
    assert (plan.shapes["pairs"].rows, silent) == (1153, 3)
    assert plan.recommended == "dpo"
    assert plan.eligible == ["dpo"]


def test_real_preferences_with_disagreeing_annotators() -> None:
    plan = plan_file(public_data("preferences/pandalm-testset-v1-3annotators.jsonl"))
    assert plan.shapes["pairs"].rows == 335
    assert (
        plan.drops["the compared answers are tied"] + plan.drops["no plurality for either answer"]
        == 24
    )
    assert plan.drops["one of the compared answers was left out"] == 5
    assert plan.notes["comparisons with disagreeing raters"] > 30


@pytest.mark.slow
def test_real_graded_solutions() -> None:
    plan = plan_file(public_data("math/gsm8k-model-solutions-graded.jsonl"))
    assert "only checkers or models judged it: not for the gate" not in plan.drops
    assert sum(plan.labels.values()) == 2604
    assert plan.labels["desirable"] == plan.shapes["chats"].rows
    assert (plan.recommended, plan.eligible) == ("sft", ["sft", "kto", "dpo"])
    assert plan.power["feedback cases in gate"].n > 40


def one_sided(loud: int, others: int) -> FeedbackWorld:
    """`loud` thumbs of one rater and one each of `others`; two answers are torn."""
    world = FeedbackWorld()
    for number in range(loud + others):
        trace = world.trace(
            f"t{number}",
            f"q{number}",
            f"a{number}",
            metadata={"is_training_data": False} if number == 0 else None,
        )
        world.say("thumb", number % 2 == 0, trace, rater="ann" if number < loud else f"r{number}")
        world.say("score", number % 5 / 4, trace, rater="machine")
    for number in (1, 2):
        world.say(
            "thumb",
            number % 2 == 1,
            world.trace(f"t{number}", f"q{number}", f"a{number}"),
            rater="zoe",
        )
    for table, values in world.rows:
        if table.name == "raters" and values["external_id"] == "machine":
            values["kind"] = "checker"
    return world


def test_one_rater_who_gave_more_than_half_is_said_by_plan_and_build(tmp_path: Path) -> None:
    config = DatasetConfig(dev=0, gate=0)
    with one_sided(60, 30).into(tmp_path / "loud") as ws:
        plan, manifest = data_plan(ws, AGENT, config), build(ws, AGENT, "labels", config).manifest
        capped = config.model_copy(update={"per_rater": 20})
        assert (
            data_plan(ws, AGENT, capped).loudest is None
            and "loudest" not in build(ws, AGENT, "labels", capped).manifest
        )
    assert plan.loudest is not None and manifest["loudest"] == {"count": 60, "total": 92}
    (line,) = [line for line in plan.to_words() if "one rater" in line]
    assert "60 of the 92" in line and "--per-rater" in line
    with one_sided(30, 60).into(tmp_path / "fair") as ws:
        assert data_plan(ws, AGENT, config).loudest is None


def test_plan_and_build_count_contradictions_alike_whatever_is_heard(tmp_path: Path) -> None:
    with one_sided(40, 30).into(tmp_path) as ws:
        for config in (
            DatasetConfig(dev=0, gate=0),
            DatasetConfig(dev=0, gate=0, since=START + timedelta(hours=2)),
        ):
            plan, manifest = (
                data_plan(ws, AGENT, config),
                build(ws, AGENT, "labels", config).manifest,
            )
            assert dict(sorted(plan.notes.items())) == manifest["notes"]
            assert plan.shapes["labels"].counts == manifest["counts"]
        assert (
            plan.notes.get("answers with disagreeing raters", 0)
            < data_plan(ws, AGENT).notes["answers with disagreeing raters"]
        )


def test_scores_and_marks_are_summed_up(tmp_path: Path) -> None:
    config = DatasetConfig(dev=0, gate=0)
    with one_sided(10, 31).into(tmp_path) as ws:
        plan, manifest = data_plan(ws, AGENT, config), build(ws, AGENT, "scored", config).manifest
        prompts = build(ws, AGENT, "prompts", config).manifest
    judged = [
        (number % 5 / 4, number % 2 == 0) for number in range(3, 41)
    ]  # two people disagree about 1 and 2
    values = [score if (score > 0.5) == up and score != 0.5 else float(up) for score, up in judged]
    scores = {
        "count": 38,
        "mean": statistics.fmean(values),
        "deviation": statistics.pstdev(values),
        "least": 0,
        "most": 1,
    }
    for figures in (manifest["scores"], asdict(plan.shapes["scored"].scores)):
        assert figures.pop("scale") == [0, 1]
        assert figures == pytest.approx(scores)
    assert prompts["scores"]["count"] == 38 and prompts["scores"]["mean"] == pytest.approx(
        statistics.fmean(values)
    )
    assert manifest["characters"] == {"prompt": 2.8, "answer": 2.8}
    assert plan.marks == {"training": 40, "validation": 0, "neither": 1}
    words = " ".join(plan.to_words())
    assert "Scores of answers: 38 numbers, mean 0.49" in words
    assert (
        "Reward model: 38 scored answers" in words
        and "PPO and GRPO then learn from it on 40 prompts" in words
    )
