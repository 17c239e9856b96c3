"""The canary: the promoted model passes, everything else fails, and what cannot be told apart is
said to be so."""

from __future__ import annotations

import random

import pytest

from tests.worlds.deploy_world import DeployWorld
from thumbwheel.deploy import canary
from thumbwheel.deploy.canary import ALPHA, ENOUGH, TOKENS, Duel, chance, vote
from thumbwheel.deploy.prepare import prompts
from thumbwheel.deploy.types import CanaryVerdict, Endpoint
from thumbwheel.evaluation.local_model import LocalModel
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.types import Ask, EvaluationConfig
from thumbwheel.export.parity import PROBES
from thumbwheel.llm.fake import FakeServer, Reply
from thumbwheel.models.versions import version as named


def answers_of(world: DeployWorld, promoted, trained=None) -> dict[str, str]:
    """Prompt -> what the version answers, to the prompts of `trained` if it is given."""
    asked = [*prompts(world.ws, trained or promoted), *PROBES]
    asks = [Ask(prompt, TOKENS) for prompt in asked]
    side = LocalModel(
        world.ws, base_of(world.ws, promoted), [promoted], EvaluationConfig(max_new_tokens=TOKENS)
    ).responder(promoted)
    return {
        str(ask.prompt): result[0].text
        for ask, result in zip(asks, side.answers(asks), strict=True)
    }


def check(world: DeployWorld, promoted, previous, answers, logprobs=None):
    def script(request):
        text = answers(str(request.body["messages"]))
        return Reply(
            {
                "choices": [
                    {"message": {"content": text}, "finish_reason": "length", "logprobs": logprobs}
                ]
            }
        )

    with FakeServer(script) as server:
        return canary.check(world.ws, promoted, previous, Endpoint(server.url, "m"), None)


@pytest.fixture
def rivals(deployed: DeployWorld):
    previous, promoted = deployed.version(0), deployed.version(1)
    return deployed, previous, promoted


@pytest.mark.slow
def test_the_promoted_model_passes_and_the_others_fail(rivals):
    world, previous, promoted = rivals
    texts = {
        name: answers_of(world, model)
        for name, model in (
            ("one", promoted),
            ("previous", previous),
            ("base", named(world.ws, world.agent, "v0")),
        )
    }
    passed = check(world, promoted, previous, texts["one"].get)
    assert passed.verdict is CanaryVerdict.PASSED and passed.same == passed.asked >= ENOUGH
    assert [duel.other for duel in passed.duels] == ["the base v0", "the previous v1"]
    assert all(duel.votes == duel.prompts and duel.control_votes == 0 for duel in passed.duels)
    for other in ("previous", "base"):
        assert check(world, promoted, previous, texts[other].get).verdict is CanaryVerdict.FAILED
    assert (
        check(world, promoted, previous, lambda prompt: "something else").verdict
        is CanaryVerdict.FAILED
    )


def test_a_base_is_told_from_what_was_trained_on_it_by_the_prompts_of_that_training(
    rivals, monkeypatch
):
    """A training that is held to its base answers general probes as the base does."""
    world, previous, _ = rivals
    base = named(world.ws, world.agent, "v0")
    monkeypatch.setattr(canary, "PROBES", PROBES[:1])
    assert prompts(world.ws, base) == [] and len(prompts(world.ws, previous)) >= ENOUGH
    texts = answers_of(world, base, previous)
    passed = check(world, base, previous, texts.get)
    assert passed.verdict is CanaryVerdict.PASSED
    assert [duel.other for duel in passed.duels] == ["the previous v1"]
    wrong = check(world, base, previous, answers_of(world, previous).get)
    assert wrong.verdict is CanaryVerdict.FAILED


def test_answers_that_drift_away_at_their_end_still_pass(rivals):
    world, previous, promoted = rivals
    trained_answers = answers_of(world, promoted)
    rng = random.Random(1)

    def drifting(prompt: str) -> str:
        text = trained_answers[prompt]
        cut = rng.randrange(len(text) // 2, len(text))
        return text[:cut] + " and so on"

    result = check(world, promoted, previous, drifting)
    assert result.verdict is CanaryVerdict.PASSED and result.same < result.asked


def test_models_that_answer_alike_are_inconclusive(deployed: DeployWorld):
    zero = deployed.version(2)
    result = check(deployed, zero, None, lambda prompt: "whatever")
    assert (
        result.verdict is CanaryVerdict.INCONCLUSIVE
        and "only 0 prompts tell it from the base v0" in result.summary()
    )


def test_a_control_that_passes_as_well_leaves_it_open(rivals, monkeypatch):
    """Were the base in another precision to answer as the promoted model does, an answer would
    prove nothing."""
    world, _, promoted = rivals
    trained_answers = answers_of(world, promoted)
    asked = []

    def promoted_instead(ws, base, version, config):
        asked.append(version.name)
        return LocalModel(ws, base_of(ws, promoted), [promoted], config).responder(promoted)

    monkeypatch.setattr(canary, "_control", promoted_instead)
    result = check(world, promoted, None, trained_answers.get)
    assert asked == ["v0"] and result.verdict is CanaryVerdict.INCONCLUSIVE
    assert "the base v0 in another precision would pass as well" in result.summary()
    wrong = check(world, promoted, None, answers_of(world, named(world.ws, world.agent, "v0")).get)
    assert wrong.verdict is CanaryVerdict.FAILED


@pytest.mark.parametrize(("precision", "other"), [("float32", "bfloat16"), ("bfloat16", "float16")])
def test_a_control_computes_its_answers_anew_in_another_precision(rivals, precision, other):
    world, _, promoted = rivals
    config = EvaluationConfig(max_new_tokens=4, dtype=precision)
    control = canary._control(world.ws, base_of(world.ws, promoted), promoted, config)
    assert control.local_model.dtype == other
    reference = LocalModel(world.ws, base_of(world.ws, promoted), [promoted], config).responder(
        promoted
    )
    assert control.identity != reference.identity
    assert control.answers([Ask(PROBES[0], 4)])[0][0].ids


def test_no_text_of_a_person_is_kept(rivals):
    world, previous, promoted = rivals
    record = str(check(world, promoted, previous, answers_of(world, promoted).get).to_json())
    assert "Question" not in record and all(
        text not in record for text in answers_of(world, promoted).values()
    )


def test_log_probabilities_decide_where_the_text_does_not():
    assert canary._logp_vote([-1.0, -1.0], [(-2.1, 2)], [(-9.0, 2)]) == 1
    assert canary._logp_vote([-1.0, -1.0, -0.5], [(-9.0, 2)], [(-2.1, 2)]) == -1
    assert (
        canary._logp_vote([-1.0] * 5, [(-2.1, 2)], [(-9.0, 2)]) == 0
    )  # the endpoint cut the text into other tokens


def test_the_statistic():
    assert chance(ENOUGH, ENOUGH) < ALPHA < chance(ENOUGH - 1, ENOUGH - 1)
    assert vote("same", "same" + canary.END, "same but longer") == 0
    assert vote("same" + canary.END, "same" + canary.END, "same but longer") == 1


@pytest.mark.parametrize(("votes", "passed"), [(13, False), (16, False), (17, True), (24, True)])
def test_a_duel_is_won_by_more_than_a_majority(votes: int, passed: bool) -> None:
    """Of 24 coins 17 or more show heads in 3.2 % of all throws, 16 or more in 7.6 %."""
    assert Duel("the base", 24, votes, 0).passed is passed
    assert Duel("the base", 24, 0, votes).control_passed is passed


def test_a_base_that_is_served_by_chance_passes_seldom():
    """Were every vote a coin, at most one canary in twenty would pass."""
    rng = random.Random(0)
    passed = sum(
        chance(sum(rng.random() < 0.5 for _ in range(24)), 24) < ALPHA for _ in range(4000)
    )
    assert passed / 4000 <= ALPHA
