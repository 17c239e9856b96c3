"""The same feedback as a prompt: which examples are shown, how many fit, and whether the weights
pay."""

import pytest

from tests.models.tiny_models import tiny_tokenizer
from tests.worlds.feedback_world import AGENT
from tests.worlds.taught_world import QUICK
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.evaluation.compare import measure
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.few_shot import Shots, shown, similarity
from thumbwheel.evaluation.types import Evaluation, RecordedAnswer, weights_pay
from thumbwheel.models import versions


def row(question, answer, good=True):
    return RecordedAnswer(
        question,
        question,
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": question}],
        None,
        answer,
        good,
    )


def test_the_nearest_good_answers_are_shown_nearest_last():
    rows = [
        row("where is my invoice", "Here."),
        row("how do I log in", "There."),
        row("invoice wrong", "Sorry."),
        row("invoice", "no", False),
    ]
    shots = Shots.of(rows)
    assert len(shots.shots) == 3
    (near,) = shots.nearest([[{"role": "user", "content": "where is the invoice"}]], 2)
    assert [answer["content"] for _, answer in near] == ["Sorry.", "Here."]


def test_similarity_is_cosine():
    similarities = similarity(["a red fox", "nothing alike"], ["a red fox", "red", "dog"])
    assert (
        similarities[0][0] == pytest.approx(1)
        and similarities[0][0] > similarities[0][1] > similarities[0][2] == 0
        and not similarities[1].any()
    )


def test_examples_that_do_not_fit_are_left_out_the_least_near_first():
    builder = PromptBuilder(tiny_tokenizer())
    prompt = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "fox 7"}]
    shots = [
        ({"role": "user", "content": text}, {"role": "assistant", "content": "den"})
        for text in ("far " * 20, "near", "nearest")
    ]
    whole = shown(prompt, shots, builder, 1000)
    assert [message["role"] for message in whole] == [
        "system",
        *["user", "assistant"] * 3,
        "user",
    ] and whole[-1] == prompt[-1]
    fitting = shown(prompt, shots, builder, len(builder.prompt(whole)) - 1)
    assert [message["content"] for message in fitting[1::2]] == ["near", "nearest", "fox 7"]
    assert shown(prompt, shots, builder, 1) == prompt


@pytest.mark.slow
def test_weights_that_a_prompt_cannot_match_pay(home_with_feedback):
    ws, add = home_with_feedback(cases=34)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert (
        evaluation.prompting is not None
        and evaluation.prompting.after == 1.0
        and evaluation.prompting.low > 0
    )
    assert evaluation.weights_pay.startswith("the weights pay: v1 succeeds in 100.0%")
    assert Evaluation(**evaluation.model_dump(mode="json")) == evaluation
    zero = evaluate(ws, versions.version(ws, AGENT, add("zero")), QUICK)
    assert "do not clearly beat a prompt" in zero.weights_pay
    off = evaluate(ws, versions.version(ws, AGENT, "v2"), QUICK.model_copy(update={"few_shot": 0}))
    assert off.prompting is None and off.weights_pay == ""


def test_the_words_recommend_the_prompt():
    same = measure("s", [1.0] * 9 + [0.0], [1.0] * 8 + [0.0] * 2, range(10), 0.95)
    assert weights_pay("v3", same).endswith("; use the prompt")
