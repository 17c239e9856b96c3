"""A user's next message as a weak label: what it says, whose answer it is about, what people's
thumbs make of it, and that it decides nothing."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.public_data import public_data
from tests.unit.rewards.test_ledger import AGENT, LedgerWorld, feedback_line
from thumbwheel.capture.feedback import list_feedback
from thumbwheel.core.errors import DataError, InputError, NotFound
from thumbwheel.datasets.build import build, load_rows, split_rows
from thumbwheel.datasets.calibrate_next_turn import calibrate_next_turn
from thumbwheel.datasets.ledger_rewards import ledger_values, with_reward
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.llm.fake import FakeServer, Reply
from thumbwheel.models.types import Agent
from thumbwheel.review.label_documents import fitted_documents
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.next_turn import NextTurnReward
from thumbwheel.rewards.label import judgements
from thumbwheel.rewards.next_turn import PRIORS, Calibration, ReplyReading, read_next_turn
from thumbwheel.rewards.rewrite import rewrite
from thumbwheel.rewards.rewrite_config import RewriteConfig
from thumbwheel.rewards.types import LabelConfig

START = datetime(2026, 1, 5, tzinfo=UTC)
WEAK_ONLY = {"preset": "none", "components": {"next_turn": {}}}


@pytest.fixture
def make_ledger(tmp_path):
    worlds = []

    def make(settings=None):
        worlds.append(LedgerWorld(tmp_path, settings))
        return worlds[-1]

    yield make
    for opened in worlds:
        opened.ws.db.close()


QUESTION = "How do I change the oil of my car?"


@pytest.mark.parametrize(
    ("message", "reading", "hint"),
    [
        ("Thanks, that worked!", ReplyReading.THANKS, False),
        ("Vielen Dank, das hat geholfen.", ReplyReading.THANKS, False),
        ("Merci beaucoup !", ReplyReading.THANKS, False),
        ("Gracias, ya funciona", ReplyReading.THANKS, False),
        ("how do I change the oil of my car", ReplyReading.REPEAT, False),
        ("Can you repeat that please?", ReplyReading.REPEAT, False),
        ("How can I change the oil in my car?", ReplyReading.REPHRASE, False),
        ("What I mean is the gearbox", ReplyReading.REPHRASE, False),
        ("That's wrong.", ReplyReading.COMPLAINT, False),
        ("That is wrong, it has to be done while the engine is warm", ReplyReading.COMPLAINT, True),
        ("Das funktioniert leider nicht", ReplyReading.COMPLAINT, False),
        ("Das ist viel zu lang, bitte nur drei Sätze", ReplyReading.COMPLAINT, True),
        ("You didn't answer my question", ReplyReading.COMPLAINT, False),
        ("No, it's a diesel, and they differ", ReplyReading.CORRECTION, True),
        ("I meant the oil of the gearbox", ReplyReading.CORRECTION, True),
        ("Nein, es ist ein Diesel und kein Benziner", ReplyReading.CORRECTION, True),
        ("And how do I change the brakes?", None, False),
        ("No thanks", None, False),
        ("Thanks, but which oil?", None, False),
        ("Thanks in advance for the list of tools", None, False),
        ("Write a thank you note to my mechanic", None, False),
        ("How do I also change the oil of my other car?", None, False),
        ("Yes, please.", None, False),
        ("", None, False),
    ],
)
def test_what_a_message_says_about_the_answer_before(message, reading, hint):
    turn = read_next_turn(QUESTION, message)
    assert turn.reading == reading
    if hint:
        assert turn.hint


def test_the_rules_on_messages_that_real_people_wrote():
    """CLINC150 was written by crowd workers, and no rule quotes one of its lines. It is no proof on
    unseen text: the bounds below were set with these figures at hand. Thanks and requests to repeat
    are among its intents; the rest says nothing."""
    lines = public_data("intents/clinc150-test.jsonl").read_text(encoding="utf-8").splitlines()
    readings: dict[str, Counter] = {}
    for line in lines:
        row = json.loads(line)
        intent = row["intent"] if row["intent"] in ("thank_you", "repeat", "no") else "other"
        turn = read_next_turn("what is on my calendar for tomorrow", row["text"])
        readings.setdefault(intent, Counter())[turn.reading] += 1
    assert readings["thank_you"][ReplyReading.THANKS] / readings["thank_you"].total() >= 0.8
    assert readings["repeat"][ReplyReading.REPEAT] / readings["repeat"].total() >= 0.6
    others = readings["other"]
    assert others.total() > 2500
    assert (others.total() - others[None]) / others.total() <= 0.005


def turn_line(name, session, minutes, asked, output, **more):
    return {
        "type": "trace",
        "id": name,
        "session": session,
        "input": asked,
        "output": output,
        "occurred_at": (START + timedelta(minutes=minutes)).isoformat(),
        **more,
    }


def next_turn_rewards(world):
    world.run()
    return {
        name: reward.scores["next_turn"]
        for name, reward in world.rewards().items()
        if reward.scores["next_turn"].value is not None
    }


def test_the_message_after_an_answer_is_found_by_the_history_or_by_the_session(make_ledger):
    opened = make_ledger(WEAK_ONLY)
    history = [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "In Bonn."},
        {"role": "user", "content": "No, it's in Berlin, I think"},
    ]
    other_branch = [
        {"role": "user", "content": "Which day?"},
        {"role": "assistant", "content": "Monday."},
        {"role": "user", "content": "Thanks, that helped"},
    ]
    opened.add(
        {"type": "trace", "id": "asked", "input": "Where is it?", "output": "In Bonn."},
        {"type": "trace", "id": "followed", "input": history, "output": "In Berlin."},
        # single messages of one session, with another person's in between
        turn_line("a1", "s1", 0, "How long does it take?", "An hour."),
        turn_line("b1", "s2", 1, "What does it cost?", "Ten euros."),
        turn_line("a2", "s1", 2, "Thank you, that helped!", "You are welcome."),
        turn_line("b2", "s2", 3, "And by when can I have it?", "Tomorrow."),
        # another answer to the same question is no next turn, and neither is another branch
        turn_line("c1", "s3", 0, "Which day?", "Tuesday."),
        turn_line("c2", "s3", 1, "Which day?", "Wednesday."),
        turn_line("c3", "s3", 2, other_branch, "Fine."),
    )
    rewards = next_turn_rewards(opened)
    assert set(rewards) == {"asked", "a1"}
    assert rewards["asked"].value == PRIORS[ReplyReading.CORRECTION]
    assert rewards["a1"].value == PRIORS[ReplyReading.THANKS]


def test_an_answer_is_judged_once_its_next_turn_has_come(make_ledger):
    opened = make_ledger(WEAK_ONLY)
    before = opened.add(turn_line("a1", "s1", 0, "How long does it take?", "An hour."))
    assert next_turn_rewards(opened) == {}
    opened.add(turn_line("a2", "s1", 2, "That is wrong.", "Two hours."))
    assert next_turn_rewards(opened)["a1"].value == PRIORS[ReplyReading.COMPLAINT]
    assert opened.run(as_of=before).statuses["next_turn", "ok"] == 0


def test_a_score_says_that_it_is_weak_and_how_sure_it_is():
    case = Case("An hour.", prompt=[{"role": "user", "content": "How long?"}])
    function = NextTurnReward.create()
    thanks = Case(case.text, prompt=case.prompt, next_turns=("Thanks a lot!",))
    score = function.score([thanks])[0]
    assert score.value == 0.8
    assert score.evidence["weak"] is True
    assert score.evidence["confidence"] == pytest.approx(0.6)
    assert score.evidence["thumbs_behind"] == [0]
    careful = NextTurnReward.create({"least_confidence": 0.7})
    assert careful.score([thanks])[0].status is JudgementStatus.NOT_APPLICABLE
    assert function.score([case])[0].status is JudgementStatus.NOT_APPLICABLE


def test_a_fresh_answer_has_no_next_turn_so_a_gate_that_named_it_would_get_no_value():
    function = NextTurnReward.create()
    assert function.may_not_gate()
    assert function.score([Case("anything", reference="anything")])[0].value is None


# --- what it is worth, by people's thumbs


def conversations(count, good_after, seed=7):
    """`count` sessions of two runs: a thumb about the first answer, and a next message that is
    thanks or a complaint. `good_after`: how often the thumb is up, by the message."""
    random.seed(seed)
    messages = {"Thanks, that helped!": good_after[0], "That is wrong.": good_after[1]}
    lines = []
    for number in range(count):
        message = random.choice(list(messages))
        up = random.random() < messages[message]
        asked = f"What is item {number * 7919} of the list number {number}?"
        lines += [
            turn_line(f"a{number}", f"s{number}", 0, asked, f"It is {number}."),
            turn_line(f"b{number}", f"s{number}", 1, message, "Fine."),
            feedback_line("thumb", up, f"a{number}", rater=f"r{number % 9}"),
        ]
    return lines


def test_a_calibration_is_the_share_of_thumbs_on_training_rows_and_is_measured_on_dev(make_ledger):
    opened = make_ledger(WEAK_ONLY)
    opened.add(*conversations(300, (0.6, 0.3)))
    rules = DatasetConfig(dev=0.3, gate=0.2)
    name, document = calibrate_next_turn(opened.ws, Agent.named(AGENT), rules)
    calibration = Calibration.of(document)
    fitted = sum(calibration.judged(reading) for reading in ReplyReading)
    assert document["fitted_on"] == {"split": "train", "rows": fitted, "salt": rules.salt}
    assert 120 < fitted < 180, "half of the rows, and none of dev or gate"
    assert document["report"]["rows"] < 120
    # the world's chances, not the assumed 0.8 and 0.15
    assert calibration.chance(ReplyReading.THANKS) == pytest.approx(0.6, abs=0.12)
    assert calibration.chance(ReplyReading.COMPLAINT) == pytest.approx(0.3, abs=0.12)
    report = document["report"]
    assert report["brier"] < report["brier_of_the_share"]
    again, _ = calibrate_next_turn(opened.ws, Agent.named(AGENT), rules)
    assert again == name

    # in use: a stored document by name, whose content is part of the component's version
    opened.configure({"components": {"next_turn": {"settings": {"calibration": "latest"}}}})
    opened.run()
    scores = [reward.scores.get("next_turn") for reward in opened.rewards().values()]
    values = {round(score.value, 6) for score in scores if score and score.value is not None}
    assert values == {
        round(calibration.chance(ReplyReading.THANKS), 6),
        round(calibration.chance(ReplyReading.COMPLAINT), 6),
    }


def test_too_few_thumbs_give_no_calibration(make_ledger):
    opened = make_ledger(WEAK_ONLY)
    opened.add(*conversations(10, (0.6, 0.3)))
    with pytest.raises(DataError, match="20 are needed"):
        calibrate_next_turn(opened.ws, Agent.named(AGENT), DatasetConfig())
    opened.configure({"components": {"next_turn": {"settings": {"calibration": "latest"}}}})
    with pytest.raises(NotFound, match="reward calibrate"):
        opened.run()


@pytest.mark.parametrize(
    "document",
    [{}, {"counts": {"joy": [1, 2]}, "classifier": "rules"}, {"counts": {"thanks": [1, -2]}}],
)
def test_a_document_that_is_no_calibration_is_refused(document):
    with pytest.raises(InputError, match="reward calibrate"):
        Calibration.of(document)


def test_a_calibration_of_another_reader_is_blocked(tmp_path):
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({"counts": {"thanks": [5, 1]}, "classifier": "qwen3"}))
    function = NextTurnReward.create({"calibration": str(file)})
    score = function.score([Case("x", next_turns=("Thanks!",))])[0]
    assert score.status is JudgementStatus.BLOCKED
    assert "qwen3" in score.evidence["reason"]


# --- it decides about no version


def test_no_row_that_an_evaluation_reads_holds_its_word(make_ledger):
    """The gate reads ratings of the split `gate`. Weak labels of as many answers add rows to train,
    and change nothing there."""
    opened = make_ledger({"preset": "default"})
    opened.add(*conversations(100, (0.9, 0.1)))
    silent = []
    for number in range(100):
        asked = f"Where is thing {number * 104729} of the store {number}?"
        message = "Thanks, that helped!" if number % 2 else "That is wrong."
        silent += [
            turn_line(f"w{number}", f"w{number}", 0, asked, f"There, {number}."),
            turn_line(f"x{number}", f"w{number}", 1, message, "Fine."),
        ]
    opened.add(*silent)
    rules = DatasetConfig(reward="ledger", gate=0.3)

    def rows_by_split():
        opened.run()
        dataset = build(opened.ws, AGENT, "labels", rules)
        return {
            split: [
                (tuple(row["trace_ids"]), row["label"])
                for row in split_rows(opened.ws, dataset, split)
            ]
            for split in ("train", "gate")
        }

    before = rows_by_split()
    opened.configure({"components": {"next_turn": {"weight": 5.0}}})
    after = rows_by_split()
    assert after["gate"] == before["gate"]
    assert len(before["gate"]) > 15
    assert len(after["train"]) > len(before["train"]) + 30


def test_a_number_beside_a_persons_thumb_holds_nothing_weak(make_ledger):
    opened = make_ledger({"preset": "default", "components": {"next_turn": {"weight": 5.0}}})
    opened.add(
        turn_line("a1", "s1", 0, "How long does it take?", "An hour."),
        turn_line("a2", "s1", 1, "That is wrong.", "Two."),
        feedback_line("thumb", True, "a1", rater="ann"),
        feedback_line("score", 0.9, "a1", rater="ben"),
    )
    opened.run()
    (reward,) = ledger_values(opened.ws, Agent.named(AGENT)).values()
    assert reward.value < 0.5 < reward.firm
    with opened.ws.db.read() as connection:
        (feedback,) = judgements(connection, Agent.named(AGENT))
    judged = with_reward(feedback, feedback.trace_id, reward, LabelConfig())
    assert judged.good is True
    assert judged.value.raw == reward.firm
    assert not judged.automatic


# --- by a model, and rewritten answers


def reply_with(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_a_model_may_read_the_messages(make_ledger):
    def script(request):
        system, user = (message["content"] for message in request.body["messages"])
        nonce = re.search(r'"nonce": "(\w+)"', system)[1]
        reading = "complaint" if "hopeless" in json.loads(user)["next"] else "nothing"
        return Reply(reply_with(json.dumps({"nonce": nonce, "reading": reading})))

    cases = [Case("An hour.", next_turns=(text,)) for text in ("How hopeless.", "And the price?")]
    with FakeServer(script) as server:
        function = NextTurnReward.create({"url": server.url, "model": "reader"})
        bad, silent = function.score(cases)
    assert (bad.value, bad.evidence["read_by"]) == (PRIORS[ReplyReading.COMPLAINT], "reader")
    assert silent.status is JudgementStatus.NOT_APPLICABLE


@pytest.mark.parametrize("text", ["thanks", '{"nonce": "old", "reading": "thanks"}', "{}", ""])
def test_what_a_model_says_without_the_nonce_is_no_reading(text):
    with FakeServer(lambda request: Reply(reply_with(text))) as server:
        function = NextTurnReward.create({"url": server.url, "model": "reader"})
        (score,) = function.score([Case("x", next_turns=("Thanks!",))])
    assert score.status is JudgementStatus.FAILED


def test_a_model_that_is_down_blocks_and_falls_back_to_nothing():
    function = NextTurnReward.create({"url": "http://127.0.0.1:9/v1", "model": "reader"})
    (score,) = function.score([Case("x", next_turns=("Thanks!",))])
    assert score.status is JudgementStatus.BLOCKED


def complaint_lines():
    return [
        turn_line("a1", "s1", 0, "Where is it?", "It is in Bonn."),
        turn_line("a2", "s1", 1, "No, it is in Berlin since last year", "Sorry, Berlin."),
        turn_line("b1", "s2", 0, "What does it cost?", "Ten euros."),
        turn_line("b2", "s2", 1, "That is wrong.", "Sorry."),
    ]


def test_a_complaint_with_a_hint_becomes_a_rewritten_answer_and_a_pair_marked_as_a_models(
    make_ledger,
):
    opened = make_ledger()
    opened.add(*complaint_lines())
    agent = Agent.named(AGENT)
    with FakeServer(lambda request: Reply(reply_with("It is in Berlin."))) as server:
        config = RewriteConfig(url=server.url, model="writer")
        result = rewrite(opened.ws, agent, config)
        again = rewrite(opened.ws, agent, config)
        asked = [json.loads(request.body["messages"][1]["content"]) for request in server.requests]
    assert [question["hint"] for question in asked] == ["No, it is in Berlin since last year"]
    assert len(result.feedback) == 1
    assert again.feedback == []

    (stored,) = list_feedback(opened.ws, AGENT, kind="correction")
    assert (stored["source"], stored["value"]) == ("next_turn", "It is in Berlin.")
    rules = DatasetConfig(dev=0, gate=0)
    (pair,) = load_rows(opened.ws, build(opened.ws, AGENT, "pairs", rules).id, "train")
    assert (pair.chosen, pair.rejected) == ("It is in Berlin.", "It is in Bonn.")

    # never in the gate, and a person's edit replaces it
    with pytest.raises(DataError):
        build(opened.ws, AGENT, "pairs", DatasetConfig(dev=0, gate=0.99))
    opened.add(feedback_line("correction", "It is in Potsdam.", "a1", rater="ann"))
    (pair,) = load_rows(opened.ws, build(opened.ws, AGENT, "pairs", rules).id, "train")
    assert pair.chosen == "It is in Potsdam."


def test_what_is_no_rewritten_answer_is_left_out_with_its_reason(make_ledger):
    opened = make_ledger()
    opened.add(*complaint_lines())
    for text, reason in (
        ("", "the model wrote nothing"),
        ("it is in bonn.", "the model changed nothing"),
        ("Sorry, it is in Berlin.", "it answers the complaint, not the question"),
        ("Berlin " * 1000, "it is far longer than the answer"),
    ):
        with FakeServer(lambda request, text=text: Reply(reply_with(text))) as server:
            config = RewriteConfig(url=server.url, model="writer")
            result = rewrite(opened.ws, Agent.named(AGENT), config)
        assert (result.feedback, dict(result.left_out)) == ([], {reason: 1})


def test_a_calibration_is_among_what_an_erasure_of_labels_deletes(make_ledger):
    opened = make_ledger(WEAK_ONLY)
    opened.add(*conversations(200, (0.8, 0.2)))
    calibrate_next_turn(opened.ws, Agent.named(AGENT), DatasetConfig())
    hashes = fitted_documents(opened.ws, AGENT)["calibrations"]
    assert len(hashes) == 1
