"""From what people said to a classifier, from it to suggestions, and from a review back to
feedback; nothing is learned from a guess."""

import io
import json
import sys

import numpy as np
import pytest

from tests.worlds.label_world import AGENT, home, is_good, lines
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.core.errors import DataError, InputError, NotFound
from thumbwheel.models.documents import as_bytes, documents
from thumbwheel.models.types import Agent
from thumbwheel.review.label_config import LearnConfig
from thumbwheel.review.learn import Labelled, fitted, folds, labelled, learn
from thumbwheel.review.suggest import accept, decide, order, questions, status, suggest
from thumbwheel.rewards import ledger
from thumbwheel.rewards.classifier import Classifier, calibrate, calibrated, fit
from thumbwheel.rewards.combine import RewardConfig
from thumbwheel.rewards.component import components
from thumbwheel.rewards.features import NUMBERS, features
from thumbwheel.rewards.function import Case, JudgementStatus, Step
from thumbwheel.rewards.functions.learned import Learned
from thumbwheel.rewards.person_labels import group_of, person_labels
from thumbwheel.rewards.presets import ComponentConfig

CONFIG = LearnConfig()


@pytest.fixture
def labelled_ws(tmp_path):
    with home(tmp_path, lines()) as ws:
        yield ws


def test_features_are_of_the_case_alone_and_the_same_everywhere():
    run = (
        Step("llm", prompt_tokens=3, completion_tokens=4, seconds=1.0),
        Step("tool", "search", status="error"),
        Step("reasoning"),
    )
    case = Case(
        "Yes, 42!", prompt=[{"role": "user", "content": "Is it 42?"}], steps=run, finish="length"
    )
    numbers = dict(zip(NUMBERS, features(case).numbers, strict=True))
    assert numbers["failed tool calls"] == numbers["tokens known"] == numbers["cut off"] == 1
    assert numbers["log tokens"] == pytest.approx(np.log(8))
    assert numbers["echo of the question"] == pytest.approx(1 / 3)
    assert not {"feedback", "reference", "metadata"} & Learned.reads
    assert {
        column: round(value, 4) for column, value in features(Case("the answer")).words.items()
    } == {2597: 0.7071, 3558: -0.7071}
    assert sum(value**2 for value in features(case).words.values()) == pytest.approx(1)


def test_the_classifier_finds_what_differs_and_says_how_well(labelled_ws):
    name, classifier = learn(labelled_ws, AGENT, CONFIG)
    report = classifier.about["report"]
    assert report["labels"] == 59  # on one of the sixty the two raters differ
    assert report["accuracy"]["low"] > report["majority"]
    assert report["gain"]["low"] > 0
    assert report["auc"]["value"] > 0.9
    assert report["brier"]["value"] < report["brier_majority"]
    assert [document.sha256 for document in documents(labelled_ws, "classifier", AGENT)] == [name]
    assert documents(labelled_ws, "classifier", "other") == []


def test_it_is_deterministic_and_comes_back_from_its_document(labelled_ws):
    name, classifier = learn(labelled_ws, AGENT, CONFIG)
    again, _ = learn(labelled_ws, AGENT, CONFIG)
    assert name == again
    back = Classifier.of(json.loads(as_bytes(classifier.document())))
    rows = [
        features(Case(text))
        for text in ("Open the settings and press reset.", "I do not know.", "")
    ]
    assert back.chances(rows) == pytest.approx(classifier.chances(rows), abs=1e-9)
    assert back.document() == classifier.document()
    with pytest.raises(InputError, match="cannot be parsed"):
        Classifier.of({"kind": "x"})


def test_labels_that_mean_nothing_give_no_figure_above_the_majority():
    draw = np.random.default_rng(3)
    rows = [features(Case(" ".join(draw.choice(list("abcdefgh"), 12)))) for _ in range(80)]
    labels = Labelled(
        [str(n) for n in range(80)],
        rows,
        draw.integers(0, 2, 80).astype(float),
        [str(n) for n in range(80)],
    )
    report = fitted(labels, CONFIG, {}).about["report"]
    assert report["gain"]["low"] < 0
    assert report["auc"]["low"] < 0.5 < report["auc"]["high"]


def test_folds_never_part_a_group_and_no_figure_comes_from_having_seen_the_question():
    groups = [f"g{number // 4}" for number in range(40)]
    parts = folds(groups, 5)
    assert all(
        len({part for part, name in zip(parts, groups, strict=True) if name == group}) == 1
        for group in groups
    )
    assert sorted(np.bincount(parts)) == [8] * 5
    # what is good depends on the question alone, and each question has words of its own: nothing
    # carries over to other questions
    rows = [features(Case(f"{name} {name}x {name}y")) for name in groups]
    good = np.array([float(int(name[1:]) % 2) for name in groups])
    assert (
        fitted(Labelled(groups, rows, good, groups), CONFIG, {}).about["report"]["accuracy"][
            "value"
        ]
        <= 0.7
    )
    alone = [str(number) for number in range(40)]
    assert (
        fitted(Labelled(alone, rows, good, alone), CONFIG, {}).about["report"]["accuracy"]["value"]
        > 0.9
    )


def test_traces_of_one_session_or_one_prompt_are_one_group():
    rows = [("t1", "p1", "s1"), ("t2", "p2", "s1"), ("t3", "p2", None), ("t4", "p3", "s2")]
    groups = group_of(rows)
    assert groups["t1"] == groups["t2"] == groups["t3"] != groups["t4"]


def test_calibration_turns_margins_into_chances_and_never_turns_them_round():
    draw = np.random.default_rng(1)
    margins = draw.normal(0, 3, 4000)
    good = (draw.random(4000) < 1 / (1 + np.exp(-0.5 * margins - 0.3))).astype(float)
    slope, intercept = calibrate(margins, good)
    assert (slope, intercept) == (pytest.approx(0.5, abs=0.05), pytest.approx(0.3, abs=0.1))
    assert calibrate(margins, 1 - good)[0] == pytest.approx(0, abs=1e-6)
    assert np.all(np.diff(calibrated(np.sort(margins), (slope, intercept))) >= 0)


def test_the_regression_is_at_its_minimum():
    draw = np.random.default_rng(2)
    rows = [features(Case("a" * size)) for size in draw.integers(1, 50, 60)]
    good = (draw.random(60) < 0.5).astype(float)
    regression = fit(rows, good, 1.0)
    chances = 1 / (1 + np.exp(-regression.margins(rows)))
    assert (good - chances).sum() == pytest.approx(
        0, abs=1e-2
    )  # the free intercept makes the chances add up


@pytest.mark.parametrize(
    ("judged", "missing"),
    [
        (0, "10 more traces that people called good"),
        (6, "more traces that people called bad"),
        (3, "more prompts"),
    ],
)
def test_too_few_labels_are_refused_with_what_is_missing(tmp_path, judged, missing):
    with home(tmp_path, lines(judged=judged)) as ws, pytest.raises(DataError, match=missing):
        learn(ws, AGENT, CONFIG)


def test_machines_opinions_are_no_labels(tmp_path):
    rows = lines(judged=40)
    for number in range(40, 100):
        rater = {"id": "gpt", "kind": "model"}
        rows.append(
            {
                "type": "feedback",
                "target": {"trace": f"t{number}"},
                "kind": "thumb",
                "value": True,
                "rater": rater,
            }
        )
    with home(tmp_path, rows) as ws, ws.db.read() as connection:
        assert (
            len(labelled(connection, Agent.named(AGENT)).traces)
            == 39
            == len(person_labels(connection, Agent.named(AGENT)))
        )  # one is torn


def test_learned_scores_like_its_classifier_and_is_blocked_without_one(labelled_ws, tmp_path):
    _, classifier = learn(labelled_ws, AGENT, CONFIG)
    path = tmp_path / "classifier.json"
    path.write_bytes(as_bytes(classifier.document()))
    function = Learned.create({"classifier": str(path)})
    cases = [Case("Open the settings and press reset. please"), Case("I do not know. please")]
    good, bad = function.score(cases)
    assert good.value > 0.6 > 0.4 > bad.value
    assert good.evidence["labels"] == 59
    assert function.score(cases[:1]) == [good]
    name = function.identity()
    path.write_text("{}")
    assert (
        Learned.create({"classifier": str(path)}).score(cases)[0].status is JudgementStatus.BLOCKED
    )
    assert Learned.create({"classifier": str(path)}).identity() != name


def test_suggestions_are_no_labels_until_a_person_decides(labelled_ws):
    first = suggest(labelled_ws, AGENT, 10, CONFIG)
    # of 120 traces 60 are rated, and of one of these the raters disagree
    assert (first.new, first.unlabelled) == (10, 61)
    again = suggest(labelled_ws, AGENT, 10, CONFIG)
    assert (again.classifier, again.new) == (
        first.classifier,
        0,
    )  # the same labels, the same classifier: its own guesses taught it nothing
    before = len(list_feedback(labelled_ws, AGENT, limit=1000))
    queue = list(questions(labelled_ws, AGENT))
    assert len(queue) == 10
    assert len(list_feedback(labelled_ws, AGENT, limit=1000)) == before
    confirmed, corrected, skipped, *_ = queue
    assert decide(labelled_ws, AGENT, confirmed, confirmed.good, "dora") == "confirmed"
    assert decide(labelled_ws, AGENT, corrected, not corrected.good, "dora") == "corrected"
    assert decide(labelled_ws, AGENT, skipped, None, "dora") == "skipped"
    newest = list_feedback(labelled_ws, AGENT, limit=2)
    assert [row["metadata"] for row in newest] == [
        {"suggestion": corrected.id, "how": "review"},
        {"suggestion": confirmed.id, "how": "review"},
    ]
    assert {row["kind"] for row in newest} == {"thumb"}
    assert [question.id for question in questions(labelled_ws, AGENT)] == [
        question.id for question in queue[3:]
    ]
    later = suggest(labelled_ws, AGENT, 10, CONFIG)
    assert later.classifier != first.classifier
    assert later.report["labels"] == 61
    counts = status(labelled_ws, AGENT)["suggestions"]
    assert counts == {
        "open": 10,
        "confirmed": 1,
        "corrected": 1,
        "accepted": 0,
        "skipped": 1,
        "replaced": 7,
    }


def test_the_queue_is_uncertain_and_diverse():
    texts = ["same words here"] * 20 + ["quite other ones", "and again new terms"]
    rows = [features(Case(text)) for text in texts]
    classifier = fitted(*_tiny())
    chances = np.array([0.5] * 20 + [0.45, 0.6])
    assert set(order(classifier, rows, chances, 3)) == {0, 20, 21}
    assert order(classifier, rows, np.linspace(0.5, 1, 22), 1) == [0]
    assert order(classifier, [], np.zeros(0), 3) == []


def _tiny():
    rows = [features(Case(f"{'yes' if number % 2 else 'no'} {number}")) for number in range(20)]
    names = [str(number) for number in range(20)]
    return (
        Labelled(names, rows, np.array([float(number % 2) for number in range(20)]), names),
        CONFIG,
        {},
    )


def test_what_a_person_judged_meanwhile_is_not_asked(labelled_ws):
    suggest(labelled_ws, AGENT, 5, CONFIG)
    queue = list(questions(labelled_ws, AGENT))
    decide(labelled_ws, AGENT, queue[0], True, "dora")
    assert queue[0].trace_id not in {
        question.trace_id for question in questions(labelled_ws, AGENT)
    }


def test_accepting_unseen_is_marked_and_counts_nothing_for_agreement(labelled_ws):
    suggest(labelled_ws, AGENT, 60, CONFIG)
    sure = [question for question in questions(labelled_ws, AGENT) if question.confidence >= 0.9]
    assert {question.good == is_good(question.text) for question in sure} == {True}
    assert len(accept(labelled_ws, AGENT, "dora", [], 0.9)) == len(sure) > 0
    rest = next(questions(labelled_ws, AGENT))
    assert accept(labelled_ws, AGENT, "dora", [rest.trace_id], None) == [rest.id]
    counts = status(labelled_ws, AGENT)
    assert counts["suggestions"]["accepted"] == len(sure) + 1
    assert counts["bands"] == []
    assert list_feedback(labelled_ws, AGENT, limit=1)[0]["metadata"]["how"] == "unseen"
    with pytest.raises(InputError, match="which suggestions"):
        accept(labelled_ws, AGENT, "dora", [], None)
    with pytest.raises(NotFound, match="it is not open"):
        accept(labelled_ws, AGENT, "dora", ["t1"], None)


def test_agreement_of_reviews_by_band_of_confidence(labelled_ws):
    suggest(labelled_ws, AGENT, 60, CONFIG)
    for question in questions(labelled_ws, AGENT):
        decide(labelled_ws, AGENT, question, is_good(question.text), "dora")
    counts = status(labelled_ws, AGENT)
    assert sum(band["reviewed"] for band in counts["bands"]) == 60
    assert counts["bands"][-1]["share"] > 0.9
    assert counts["kappa"]["value"] > 0.7
    assert all(band["low"] <= band["share"] <= band["high"] for band in counts["bands"])


def test_a_review_in_the_terminal_can_be_left_and_taken_up(command_line, tmp_path, monkeypatch):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lines()))
    assert command_line("import", "jsonl", str(path), "--agent", AGENT)[0] == 0
    code, out, _ = command_line("label", "suggest", "--agent", AGENT, "--limit", "4")
    assert (code, "cross-validated" in out) == (0, True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("what?\ny\nq\n"))
    code, out, err = command_line("label", "review", "--agent", AGENT, "--rater", "dora")
    assert code == 0
    assert out.count("[y/n/s/q]") == 3
    assert "1 confirmed" in err or "1 corrected" in err
    assert "suggested" not in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\ns\n"))
    code, out, _ = command_line(
        "label", "review", "--agent", AGENT, "--rater", "dora", "--json", "--show"
    )
    *asked, done = [json.loads(line) for line in out.splitlines()]
    assert len(asked) == 3
    assert asked[0].keys() == {"id", "trace", "prompt", "answer", "good", "confidence"}
    assert sum(done["done"].values()) == 2
    _, out, _ = command_line("label", "status", "--agent", AGENT, "--json")
    assert json.loads(out)["suggestions"]["open"] == 1
    _, out, _ = command_line("label", "agreement", "--agent", AGENT, "--json")
    assert json.loads(out)["panels"][0]["kind"] == "good or bad"
    code, out, _ = command_line(
        "label", "learn", "--agent", AGENT, "--out", "c.json", "--strength", "0.5"
    )
    assert code == 0
    assert (
        Classifier.of(json.loads((tmp_path / "c.json").read_text())).about["settings"]["strength"]
        == 0.5
    )


@pytest.mark.parametrize("shown", ["latest", "hash"])
def test_the_ledger_knows_a_kept_classifier_by_name(labelled_ws, shown):
    name, _ = learn(labelled_ws, AGENT, CONFIG)
    settings = {"classifier": "latest" if shown == "latest" else name[:12]}
    config = RewardConfig(preset="none", components={"learned": ComponentConfig(settings=settings)})
    report = ledger.run(labelled_ws, Agent.named(AGENT), components(labelled_ws, AGENT, config))
    assert report.statuses == {("learned", "ok"): 120}
    with labelled_ws.db.read() as connection:
        values = [
            combined.value
            for combined in ledger.rewards(
                connection, Agent.named(AGENT), config, components(labelled_ws, AGENT, config)
            )
        ]
    assert len(set(values)) > 10 and all(0 < value < 1 for value in values)


def test_a_classifier_that_was_never_made_is_named(labelled_ws):
    config = RewardConfig(
        preset="none", components={"learned": ComponentConfig(settings={"classifier": "latest"})}
    )
    with pytest.raises(NotFound, match="label learn"):
        components(labelled_ws, AGENT, config)
