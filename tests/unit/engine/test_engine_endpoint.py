"""Rollouts from a server: over real HTTP, from a fake that speaks with a tiny model in the forms of
vLLM, llama-server and OpenAI."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.models.tiny_models import tiny_base
from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.endpoint import EndpointSource
from thumbwheel.engine.rollout import SOURCES, Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.llm.client import Client
from thumbwheel.llm.fake import FakeServer, Reply, Request

PROMPTS = [[11, 12, 13], [40, 41, 42, 43, 44]]
STOPS = (17, 41, 99, 120, 130, 200)


class Served:
    """The fake's script: a tiny model behind the forms of three servers; `spoil` changes a choice
    before it goes out."""

    def __init__(self, folder, server="vllm"):
        from thumbwheel.engine.load import load_base

        self.model, self.tokenizer = load_base(str(tiny_base(folder)), "float32")
        self.server, self.spoil, self.most, self.ignores_stop_texts = (
            server,
            lambda choice: choice,
            64,
            False,
        )

    def __call__(self, request: Request) -> Reply:
        body = request.body
        prompt = body["prompt"]
        sampling = Sampling(
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            stop=() if self.ignores_stop_texts else tuple(body.get("stop", ())),
            stop_ids=tuple(body.get("stop_token_ids", STOPS)),
            seed=body["seed"],
        )
        (group,) = GroupSampler(self.model, self.tokenizer).sample(
            [prompt], min(body["n"], self.most), sampling
        )
        choices = [self.spoil(self.choice(rollout)) for rollout in group]
        verbose = (
            {"__verbose": {"tokens": list(group[0].ids)}} if self.server == "llama-server" else {}
        )
        return Reply({"choices": choices, "usage": {"prompt_tokens": len(prompt)}} | verbose)

    def choice(self, rollout):
        texts = [self.tokenizer.decode([token]) for token in rollout.ids]
        logps = list(rollout.logps or [0.0] * len(rollout.ids))
        choice = {
            "finish_reason": rollout.finish,
            "text": rollout.text,
            "logprobs": {"tokens": texts, "token_logprobs": logps},
        }
        if self.server == "vllm":
            choice["token_ids"] = list(rollout.ids)
        if self.server == "llama-server":
            choice["logprobs"] = {
                "content": [{"token": t, "logprob": p} for t, p in zip(texts, logps, strict=True)]
            }
        return choice


@pytest.fixture
def ask(tmp_path):
    """ask(prompts, n, sampling, server=..., script=..., ...) -> rollouts; the served model is at
    ask.served."""
    served = Served(tmp_path)

    def run(prompts, n, sampling, *, server="vllm", script=None, **options):
        served.server = server
        with FakeServer(script or served) as fake:
            run.fake = fake
            client = Client(fake.url, "tiny", attempts=2)
            source = EndpointSource([client], served.tokenizer, server=server, **options)
            try:
                return source.sample(prompts, n, sampling)
            finally:
                source.close()
                client.close()

    run.served = served
    return run


def logps(model, prompt, ids):
    with torch.no_grad():
        rows = (
            model(input_ids=torch.tensor([[*prompt, *ids]]))
            .logits[0, len(prompt) - 1 : -1]
            .log_softmax(-1)
        )
    return rows.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["vllm", "llama-server"])
def test_token_ids_and_log_probabilities_are_those_that_were_sampled(ask, server):
    sampling = Sampling(max_new_tokens=12, stop_ids=STOPS, seed=4)
    groups = ask(PROMPTS, 3, sampling, server=server)
    assert [len(group) for group in groups] == [3, 3]
    assert len({rollout.ids for group in groups for rollout in group}) == 6
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for rollout in group:
            assert rollout.logps == pytest.approx(
                logps(ask.served.model, prompt, rollout.ids), abs=1e-4
            )
            assert rollout.finish == ("stop" if rollout.ids[-1] in STOPS else "length")
            answer_ids = rollout.ids[:-1] if rollout.finish == "stop" else rollout.ids
            assert rollout.text == ask.served.tokenizer.decode(answer_ids, skip_special_tokens=True)
    assert groups == ask(PROMPTS, 3, sampling, server=server)
    sent = ask.fake.requests[0]
    assert sent.path == "completions"
    assert (sent.body["model"], sent.body["top_p"], sent.body["top_k"], sent.body["min_p"]) == (
        "tiny",
        1.0,
        0,
        0.0,
    )


def test_fewer_choices_than_asked_for_are_asked_for_again(ask):
    ask.served.most = 2
    (group,) = ask(PROMPTS[:1], 5, Sampling(max_new_tokens=8, stop_ids=STOPS))
    assert len({rollout.ids for rollout in group}) == 5
    assert [request.body["n"] for request in ask.fake.requests] == [5, 3, 1]


def test_without_log_probabilities_it_refuses_unless_the_policy_is_served(ask):
    def silent(choice):
        return {key: value for key, value in choice.items() if key != "logprobs"}

    ask.served.spoil = silent
    sampling = Sampling(max_new_tokens=8, stop_ids=STOPS, temperature=1.0)
    with pytest.raises(ModelError, match="no log-probability for every sampled token"):
        ask(PROMPTS, 2, sampling)
    groups = ask(PROMPTS, 2, sampling, logprobs="none")
    assert all(rollout.logps is None and rollout.ids for group in groups for rollout in group)
    ask.served.spoil = lambda choice: (
        choice | {"logprobs": {"token_logprobs": [-1.0], "tokens": ["x"]}}
    )
    with pytest.raises(ModelError, match="no log-probability for every"):
        ask(PROMPTS, 2, sampling)


def test_log_probabilities_at_another_temperature_are_refused_unless_processed(ask):
    sampling = Sampling(max_new_tokens=8, temperature=0.5)
    with pytest.raises(ConfigError, match="temperature 1"):
        ask(PROMPTS, 2, sampling)
    assert ask(PROMPTS, 2, sampling, logprobs="processed")[0][0].logps
    assert ask(PROMPTS, 2, Sampling(max_new_tokens=8, temperature=0.0))[0][0].logps is None


def test_text_without_token_ids_is_taken_only_if_its_tokens_are_those_sampled(ask):
    text, tokenizer = "The quick brown fox", ask.served.tokenizer
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = [tokenizer.decode([token]) for token in ids]

    def script(request):
        logprobs = {"tokens": script.texts, "token_logprobs": [-1.0] * len(script.texts)}
        return Reply(
            {
                "choices": [{"text": text, "finish_reason": "length", "logprobs": logprobs}],
                "usage": {},
            }
        )

    script.texts = texts
    (group,) = ask(PROMPTS[:1], 1, Sampling(max_new_tokens=8), server="openai", script=script)
    assert (group[0].ids, group[0].text, group[0].logps) == (tuple(ids), text, (-1.0,) * len(ids))
    script.texts = [texts[0][:1], texts[0][1:], *texts[1:]]
    with pytest.raises(ModelError, match="no token ids"):
        ask(PROMPTS[:1], 1, Sampling(max_new_tokens=8), server="openai", script=script)


def test_a_prompt_that_the_server_reads_differently_is_refused(ask):
    def script(request):
        reply = ask.served(request)
        return Reply(reply.content | {"usage": {"prompt_tokens": 4}})

    with pytest.raises(ModelError, match="it read 4 tokens that are not the 3 of the prompt"):
        ask(PROMPTS[:1], 1, Sampling(max_new_tokens=4), script=script)


def test_the_ending_token_that_a_server_keeps_is_put_back_where_no_log_probability_is_needed(
    ask,
):
    def shorn(choice):
        ended = choice["finish_reason"] == "stop"
        logprobs = {
            name: values[:-1] if ended else values for name, values in choice["logprobs"].items()
        }
        return choice | {
            "token_ids": choice["token_ids"][:-1] if ended else choice["token_ids"],
            "logprobs": logprobs,
        }

    ask.served.spoil = shorn
    sampling = Sampling(max_new_tokens=20, stop_ids=STOPS)
    rollouts = [
        rollout for group in ask(PROMPTS, 4, sampling, logprobs="none") for rollout in group
    ]
    assert any(rollout.finish == "stop" for rollout in rollouts)
    assert all(rollout.ids[-1] == STOPS[0] for rollout in rollouts if rollout.finish == "stop")
    with pytest.raises(ModelError, match="no log-probability for every"):
        ask(PROMPTS, 4, sampling)
    either = Sampling(max_new_tokens=20, stop_ids=STOPS, stop=("zzz",))
    open_ended = [
        rollout for group in ask(PROMPTS, 4, either, logprobs="none") for rollout in group
    ]
    assert [rollout.text for rollout in open_ended] == [rollout.text for rollout in rollouts]
    last_tokens = {token for rollout in open_ended for token in rollout.ids[-1:]}
    assert not last_tokens & {*STOPS}, "which of the two ended it is not known"


def test_a_token_that_ends_answers_there_and_not_here_is_an_ending_with_its_log_probability(ask):
    ids = [
        *ask.served.tokenizer("The quick")["input_ids"],
        ask.served.tokenizer.convert_tokens_to_ids("<s>"),
    ]
    choice_logprobs = {"tokens": ["x"] * len(ids), "token_logprobs": [-1.0] * len(ids)}
    choice = {
        "text": "The quick",
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": choice_logprobs,
    }
    for logprobs, logps in (("raw", (-1.0,) * len(ids)), ("none", None)):
        script = lambda request: Reply({"choices": [choice], "usage": {}})  # noqa: E731
        ((rollout,),) = ask(
            PROMPTS[:1],
            1,
            Sampling(max_new_tokens=8, stop_ids=(STOPS[0],)),
            script=script,
            logprobs=logprobs,
        )
        assert (rollout.ids, rollout.logps, rollout.finish, rollout.text) == (
            tuple(ids),
            logps,
            "stop",
            "The quick",
        )


def test_a_llama_server_that_keeps_its_tokens_is_refused(ask):
    def script(request):
        return Reply({**ask.served(request).content, "__verbose": {}})

    with pytest.raises(ModelError, match="does not return the sampled tokens"):
        ask(PROMPTS[:1], 1, Sampling(max_new_tokens=8), server="llama-server", script=script)


def test_an_answer_is_cut_where_a_stop_text_is_complete(ask):
    whole = ask(PROMPTS, 3, Sampling(max_new_tokens=20, stop_ids=STOPS), logprobs="none")
    letters = max(
        "etaoins ",
        key=lambda letter: sum(letter in rollout.text for group in whole for rollout in group),
    )
    sampling = Sampling(max_new_tokens=20, stop_ids=STOPS, stop=(letters,))
    rollouts = [rollout for group in ask(PROMPTS, 3, sampling) for rollout in group]
    ask.served.ignores_stop_texts = True
    again = [rollout for group in ask(PROMPTS, 3, sampling) for rollout in group]
    assert [(rollout.ids, rollout.finish, rollout.text) for rollout in again] == [
        (rollout.ids, rollout.finish, rollout.text) for rollout in rollouts
    ]
    for rollout in (*rollouts, *again):
        assert letters not in rollout.text and len(rollout.logps) == len(rollout.ids)
    assert any(rollout.finish == "stop" and rollout.ids[-1] not in STOPS for rollout in rollouts)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"choices": []}, "no choices"),
        ({}, "no choices"),
        ("[1]", "no JSON object"),
        ("<html>", "no JSON object"),
        ({"choices": [{"finish_reason": "content_filter", "text": ""}]}, "finish_reason"),
        ({"choices": [{"finish_reason": "stop", "token_ids": [1 << 20]}]}, "vocabulary"),
    ],
)
def test_replies_that_make_no_sense_are_refused(ask, content, why):
    with pytest.raises(ModelError, match=why):
        ask(PROMPTS[:1], 1, Sampling(max_new_tokens=4), script=lambda request: Reply(content))


def test_failures_that_pass_are_tried_again_and_others_are_not(ask):
    replies = [Reply("busy", 503, {"Retry-After": "0"}), Reply("slow down", 429)]

    def script(request):
        return replies.pop(0) if replies else ask.served(request)

    with pytest.raises(ModelError, match="2 attempts failed, the last with HTTP 429: slow down"):
        ask(PROMPTS[:1], 1, Sampling(max_new_tokens=4), script=script)
    replies.append(Reply("busy", 503))
    assert ask(PROMPTS[:1], 1, Sampling(max_new_tokens=4), script=script)
    with pytest.raises(ModelError, match="HTTP 401: who are you"):
        ask(
            PROMPTS[:1],
            1,
            Sampling(max_new_tokens=4),
            script=lambda request: Reply("who are you", 401),
        )
    assert len(ask.fake.requests) == 1


def test_a_server_that_is_not_there_or_does_not_answer(ask):
    client = Client("http://127.0.0.1:9/v1", "m", attempts=2)
    with pytest.raises(ModelError, match="ConnectError"):
        client.post("completions", {})
    answers = threading.Event()

    def hang(request):
        answers.wait(60)
        return Reply({})

    with FakeServer(hang) as fake:
        slow = Client(fake.url, "m", timeout=0.1, attempts=1)
        with pytest.raises(ModelError, match="Timeout"):
            slow.post("completions", {})
        answers.set()


def test_only_so_many_prompts_are_asked_at_once_and_the_key_is_sent(ask):
    three_are_asked = threading.Barrier(3)

    def script(request):
        three_are_asked.wait(60)
        return ask.served(request)

    groups = ask(
        [[11, token] for token in range(20, 32)],
        1,
        Sampling(max_new_tokens=2),
        script=script,
        concurrency=3,
    )
    assert len(groups) == 12
    assert ask.fake.busiest == 3
    with FakeServer(lambda request: Reply({})) as fake:
        Client(fake.url, "m", api_key="sesame").post("completions", {})
        assert fake.requests[0].headers["Authorization"] == "Bearer sesame"


def test_sources_are_a_table():
    assert SOURCES.names() == ["local", "endpoint"]
    assert SOURCES.get("local") is GroupSampler
    assert SOURCES.get("endpoint") is EndpointSource
