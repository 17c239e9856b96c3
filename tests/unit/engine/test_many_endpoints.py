"""Several servers share out a batch: who gets which prompt, what happens to those of a server that
fails, and which servers are refused. Over real HTTP, from servers that draw evenly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import peft
import pytest
import transformers as tf
from pydantic import ValidationError

from tests.servers.rollout_server import Uniform
from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.endpoint import EndpointSource, shares
from thumbwheel.engine.prompt_queue import PromptQueue
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.served_policy import ServedPolicy
from thumbwheel.llm.client import Client
from thumbwheel.llm.fake import FakeServer, Reply, Request
from thumbwheel.training.assemble import settings

PROMPTS = [[10 + number, 20, 30] for number in range(12)]
SAMPLING = Sampling(max_new_tokens=4, seed=3)


class Tokenizer:
    """What a source asks of one."""

    added_tokens_decoder: ClassVar[dict[int, Any]] = {}

    def __len__(self) -> int:
        return 400

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(map(str, ids))


class Server(Uniform):
    """Draws evenly, once `may_answer` is true; `status` is its answer to everything, `likely` are
    its most likely tokens, and `refuses` the steps whose adapter it does not load."""

    def __init__(self) -> None:
        self.may_answer: Callable[[], object] = lambda: True
        self.asked, self._changed = 0, threading.Condition()
        self.status = 200
        self.likely = {"a": -0.5, "b": -1.5, "c": -2.5, "d": -3.0, "e": -4.0}
        self.refuses: tuple[str, ...] = ()
        self.answers_as: str | None = None

    def is_asked(self, count: int) -> bool:
        """Wait until the server was asked for so many answers."""
        with self._changed:
            return self._changed.wait_for(lambda: self.asked >= count, 100)

    def __call__(self, request: Request) -> Reply:
        if self.status != 200:
            with self._changed:
                self.asked += 1
                self._changed.notify_all()
            return Reply({"error": "the test"}, self.status)
        if request.path != "completions":
            refused = request.body["lora_name"].endswith(self.refuses or ("none",))
            return Reply({"ok": True}, 404 if refused else 200)
        reply = super().__call__(request)
        if request.body["logprobs"] > 1:
            reply.content["choices"][0]["logprobs"]["top_logprobs"] = [self.likely]
        else:
            with self._changed:
                self.asked += 1
                self._changed.notify_all()
            assert self.may_answer()
        reply.content["model"] = self.answers_as or request.body["model"]
        return reply


@contextmanager
def servers(count: int) -> Iterator[list[tuple[Server, FakeServer]]]:
    """Servers of one base."""
    fakes = [FakeServer(Server()) for _ in range(count)]
    pairs = [(fake.script, fake) for fake in fakes]
    for fake in fakes:
        fake.pages["/v1/models"] = {"data": [{"id": "base", "vocabulary": 400}]}
        fake.__enter__()
    try:
        yield pairs  # type: ignore[misc]
    finally:
        for fake in fakes:
            fake.__exit__(None, None, None)


def source_of(*fakes: FakeServer, **options: Any) -> EndpointSource:
    clients = [Client(fake.url, "base", attempts=1) for fake in fakes]
    return EndpointSource(clients, Tokenizer(), **options)


def asked(fake: FakeServer) -> list[Request]:
    """The requests for answers, without those that compare the bases."""
    return [
        request
        for request in fake.requests
        if request.path == "completions" and request.body["logprobs"] == 1
    ]


def test_answers_do_not_depend_on_how_many_servers_and_prompts_there_are() -> None:
    with servers(3) as ((script, first), (near, second), (far, third)):
        single, three = source_of(first), source_of(first, second, third)
        prompts = [*PROMPTS, PROMPTS[0]]
        groups = single.sample(prompts, 2, SAMPLING)
        script.may_answer = lambda: near.is_asked(1) and far.is_asked(1)
        assert three.sample(prompts, 2, SAMPLING) == groups
        # Equal prompts have other answers, and a part of the batch has those of the whole.
        assert groups[0] != groups[-1]
        assert single.sample(prompts[3:5], 2, SAMPLING) == groups[3:5]
        for source in (single, three):
            source.close()


def test_the_prompts_of_a_server_that_fails_go_to_the_others() -> None:
    with servers(2) as ((healthy, first), (script, second)):
        source = source_of(first, second)
        expected = source.sample(PROMPTS, 2, SAMPLING)
        script.status = 500
        before = script.asked
        healthy.may_answer = lambda: script.is_asked(before + 1)
        announced: list[int] = []
        groups = source.sample(PROMPTS, 2, SAMPLING, lambda index, _: announced.append(index))
        assert groups == expected
        assert sorted(announced) == sorted([*range(len(PROMPTS))] * 2)
        # It is asked again in the next step, and takes part once it answers.
        failed = len(second.requests)
        healthy.may_answer = lambda: True
        source.sample(PROMPTS, 2, SAMPLING)
        assert len(second.requests) == failed
        script.status = 200
        source.sync(1)
        again = script.asked
        healthy.may_answer = lambda: script.is_asked(again + 1)
        assert source.sample(PROMPTS, 2, SAMPLING) == expected
        source.close()


def test_all_servers_fail_and_each_is_named() -> None:
    with servers(2) as ((near, first), (far, second)):
        source = source_of(first, second)
        source.sample(PROMPTS[:2], 1, SAMPLING)
        near.status = far.status = 500
        with pytest.raises(ModelError, match="HTTP 500") as refused:
            source.sample(PROMPTS, 1, SAMPLING)
        assert first.url in str(refused.value) and second.url in str(refused.value)
        source.close()


def test_an_unusable_reply_ends_the_batch_instead_of_going_to_another_server() -> None:
    with servers(2) as ((healthy, first), (script, second)):
        source = source_of(first, second)
        source.sync(0)
        script.silent = True
        healthy.may_answer = lambda: script.is_asked(1)
        with pytest.raises(ModelError, match="no log-probability") as refused:
            source.sample(PROMPTS, 1, SAMPLING)
        assert second.url in str(refused.value)
        source.close()


def test_a_slow_server_gets_fewer_prompts() -> None:
    with servers(2) as ((healthy, first), (script, second)):
        healthy.may_answer = lambda: script.is_asked(1)
        script.may_answer = lambda: healthy.is_asked(len(PROMPTS) - 1)
        source = source_of(first, second, concurrency=1)
        source.sample(PROMPTS, 1, SAMPLING)
        assert (len(asked(first)), len(asked(second))) == (len(PROMPTS) - 1, 1)
        # At once it gets fewer from then on, too.
        fast, slow = (endpoint.speed for endpoint in source._endpoints)
        assert fast is not None and slow is not None and fast > slow
        source.close()
    assert shares([None], 3, 8) == [3] and shares([None], 30, 8) == [8]
    assert shares([4.0, 1.0], 10, 8) == [8, 2]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (
            lambda script, fake: fake.pages.update(
                {"/v1/models": {"data": [{"id": "base", "meta": {"n_vocab": 500}}]}}
            ),
            "vocabularies have 400 and 500 tokens",
        ),
        (
            lambda script, fake: setattr(script, "likely", {"x": -0.5, "a": -1.0, "y": -2.0}),
            "first tokens of an answer, 1 are equal",
        ),
        (
            lambda script, fake: script.likely.update(a=-2.0),
            r"differs by 1\.5 nats",
        ),
    ],
    ids=["vocabulary", "tokens", "probabilities"],
)
def test_servers_of_different_bases_are_refused(
    spoil: Callable[[Server, FakeServer], None], why: str
) -> None:
    with servers(3) as ((_, first), (script, second), (_, third)):
        spoil(script, second)
        source = source_of(first, second, third)
        with pytest.raises(ConfigError, match=why) as refused:
            source.sample(PROMPTS, 1, SAMPLING)
        assert first.url in refused.value.what and second.url in refused.value.what
        assert not [*asked(first), *asked(second), *asked(third)]
        source.close()


@pytest.fixture(scope="module")
def policy() -> Any:
    """A model with a LoRA adapter."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = tf.AutoModelForCausalLM.from_config(tf.Qwen2Config(**shape, **heads))
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, lora)


def loaded(fake: FakeServer, call: str) -> list[str]:
    """Names of the adapters that the server had to load or unload."""
    return [request.body["lora_name"] for request in fake.requests if request.path == call]


def test_every_step_has_an_adapter_and_one_that_is_too_old_is_not_asked(
    policy: Any, tmp_path: Path
) -> None:
    with servers(2) as ((healthy, first), (script, second)):
        served = ServedPolicy(policy, "p", tmp_path, max_lag=1)
        source = source_of(first, second, served_policy=served)
        source.sync(0)
        groups = source.sample(PROMPTS[:1], 1, SAMPLING)
        assert {rollout.policy_step for (rollout,) in groups} == {0}
        assert (tmp_path / "p-0" / "adapter_model.safetensors").is_file()

        # The second server keeps the adapter of step 0. At step 1 it may answer, at step 2 not.
        second.requests.clear()
        script.refuses = ("-1", "-2")
        source.sync(1)
        before = script.asked
        healthy.may_answer = lambda: script.is_asked(before + 1)
        groups = source.sample(PROMPTS, 1, SAMPLING)
        assert {rollout.policy_step for (rollout,) in groups} == {0, 1}
        assert {request.body["model"] for request in asked(second)} == {"p-0"}
        count = len(asked(second))
        source.sync(2)
        groups = source.sample(PROMPTS, 1, SAMPLING)
        assert {rollout.policy_step for (rollout,) in groups} == {2}
        assert len(asked(second)) == count
        assert loaded(first, "load_lora_adapter") == ["p-0", "p-1", "p-2"]
        assert loaded(first, "unload_lora_adapter") == ["p-0"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p-1", "p-2"]

        source.close()
        assert loaded(first, "unload_lora_adapter") == ["p-0", "p-1", "p-2"]
        assert not list(tmp_path.iterdir())


def test_an_answer_of_another_adapter_than_the_one_asked_for_is_refused(
    policy: Any, tmp_path: Path
) -> None:
    with servers(2) as ((healthy, first), (script, second)):
        source = source_of(first, second, served_policy=ServedPolicy(policy, "p", tmp_path, 0))
        source.sync(0)
        source.sync(1)
        script.answers_as = "p-0"
        healthy.may_answer = lambda: script.is_asked(1)
        groups = source.sample(PROMPTS, 1, SAMPLING)
        assert {rollout.policy_step for (rollout,) in groups} == {1}
        script.answers_as = None
        source.sync(2)
        first.script.answers_as = script.answers_as = "base"  # type: ignore[attr-defined]
        with pytest.raises(ModelError, match=r"answered with the adapter 'base', .* step 2"):
            source.sample(PROMPTS, 1, SAMPLING)
        source.close()


def test_nothing_is_sent_to_a_server_that_is_not_named() -> None:
    with servers(2) as ((_, first), (_, unnamed)):

        def redirect(request: Request) -> Reply:
            to = {"Location": f"{unnamed.url}/{request.path}"}
            return Reply("", 307, to)

        first.script = redirect
        source = source_of(first)
        with pytest.raises(ModelError, match="HTTP 307"):
            source.sample(PROMPTS[:2], 1, SAMPLING)
        assert first.requests and not unnamed.requests
        source.close()


def test_an_adapter_that_another_rank_has_loaded_is_there(policy: Any, tmp_path: Path) -> None:
    with servers(1) as ((_, server),):
        served = ServedPolicy(policy, "p", tmp_path, 0)
        name = served.write(4)
        written = (tmp_path / name / "adapter_model.safetensors").stat().st_mtime_ns
        assert ServedPolicy(policy, "p", tmp_path, 0).write(4) == name
        assert (tmp_path / name / "adapter_model.safetensors").stat().st_mtime_ns == written
        # vLLM refuses to load it twice.
        server.script = lambda request: Reply({"error": "it has already been loaded"}, 400)
        client = Client(server.url, "base", attempts=1)
        with pytest.raises(ModelError, match="already been loaded"):
            served.load(client, name)
        server.pages["/v1/models"]["data"].append({"id": name, "parent": "base"})
        served.load(client, name)
        client.close()


@pytest.mark.parametrize(
    ("settings_of_run", "why"),
    [
        ({"endpoint_url": ["http://a/v1", "http://a/v1/"]}, "named twice"),
        ({"endpoint_adapters": "adapters"}, "is relative"),
        ({"endpoint_adapters": "/a", "endpoint_server": "llama-server"}, "loads no adapter while"),
        ({"max_lag": 1}, "servers get no adapters"),
        (
            {"max_lag": 1, "endpoint_adapters": "/a", "endpoint_logprobs": "none"},
            "may have an older one",
        ),
        ({"rollouts": "local", "endpoint_adapters": "/a"}, "set rollouts to endpoint"),
    ],
    ids=["twice", "relative", "llama-server", "lag", "none", "local"],
)
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_settings_that_contradict_each_other_are_refused(
    method: str, settings_of_run: dict[str, Any], why: str
) -> None:
    whole = {"rollouts": "endpoint", "endpoint_model": "base"} | settings_of_run
    with pytest.raises((ConfigError, ValidationError), match=why):
        settings(method, whole)


def test_one_server_may_be_named_without_a_list() -> None:
    config = settings("grpo", {"rollouts": "endpoint", "endpoint_url": "http://127.0.0.1:9/v1"})
    assert config.model_dump()["endpoint_url"] == ("http://127.0.0.1:9/v1",)
    assert settings("grpo", {"endpoint_url": None}).model_dump()["endpoint_url"] == ()


def test_a_prompt_that_is_given_back_goes_to_a_worker_that_waits() -> None:
    queue = PromptQueue[str](1)
    queue.add_worker()
    queue.add_worker()
    assert queue.take() == 0
    indices: list[int | None] = []

    def work() -> None:
        indices.append(queue.take())
        queue.done(0, "answer")
        queue.remove_worker()

    waiting = threading.Thread(target=work)
    waiting.start()
    queue.give_back(0)
    queue.remove_worker()
    assert list(queue.results()) == [(0, "answer")]
    waiting.join()
    assert indices == [0] and queue.take() is None
