"""Fresh answers from OpenAI-compatible servers: their token ids and log-probabilities, or a
refusal; nothing is guessed.

The servers have to answer with the weights that the trainer believes they have, over the same
vocabulary. Unless they are known to serve the policy itself (log-probabilities "none"), the
log-probability of every sampled token is needed, so that a loss can correct for the difference.
Servers report those of the model's raw logits, that is at temperature 1 ("raw"), unless they are
set otherwise ("processed", as vLLM's `--logprobs-mode processed_logprobs`); at another temperature
raw ones are refused.

Several servers share out the prompts of a batch: a faster one gets more of them, and those of a
server that fails go to the others. Seeds follow from the prompt, so that an answer does not depend
on who gives it. Who gets which prompt is prompt_queue.py's, the adapter of each step
served_policy.py's, HTTP llm/client.py's.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.prompt_queue import PromptQueue
from thumbwheel.engine.rollout import (
    Rollout,
    RolloutCallback,
    RolloutSource,
    Sampling,
    StopCondition,
)
from thumbwheel.engine.served_policy import ServedPolicy, model_entries
from thumbwheel.llm.client import Client, RequestRefused

if TYPE_CHECKING:
    from thumbwheel.engine.sampler import GroupSampler

KEY = "THUMBWHEEL_ENDPOINT_KEY"
"""The environment variable with the server's key, which is stored nowhere."""
Server = Literal["vllm", "llama-server", "openai"]
LogProbs = Literal["raw", "processed", "none"]
"""What a server reports: log-probabilities at temperature 1, those as sampled, or none that are
needed because it serves the very policy that is trained."""
EXTRAS: dict[str, dict[str, Any]] = {
    "vllm": {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "return_token_ids": True},
    "llama-server": {
        "n": 1,
        "top_k": 0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "cache_prompt": True,
        "return_tokens": True,
        "verbose": True,
    },
    "openai": {},
}
"""What is sent beyond OpenAI's own parameters, so that a server's defaults change nothing about the
distribution, and so that it gives token ids. llama-server refuses more answers at once than it has
slots."""
LOADS_ADAPTERS = frozenset({"vllm"})
"""Servers that take an adapter while they run; llama-server takes its adapters when it starts."""
ATTEMPTS, ATTEMPTS_BESIDE_OTHERS = 4, 2
"""Attempts of a request to the only server, and to one of several, before its prompts go on."""
LIKELY = 5
"""Most likely tokens that are compared to tell whether two servers serve the same base."""
SHARED, GAP = 3, 1.0
"""So many of them are the same on two servers of one base, and their log-probabilities differ by
less than so many nats, as those of a quantized base do."""
PROBE = "The quick brown fox jumps over the lazy dog."
FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "eos": "stop", "length": "length"}


class ServerFailedError(Exception):
    """A server cannot answer now; another one may."""


class EndpointSource(RolloutSource):
    """Answers of the model behind each of `clients`, which is given token ids, at most
    `concurrency` prompts at once.

    With `logprobs` "none" the rollouts have none. With `served_policy` the servers are given the
    adapter of each step, and a server whose adapter is older than that allows is not asked.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        tokenizer: Any,
        *,
        server: Server = "vllm",
        logprobs: LogProbs = "raw",
        concurrency: int = 8,
        served_policy: ServedPolicy | None = None,
    ) -> None:
        self._endpoints = [Endpoint(client, tokenizer, server, logprobs) for client in clients]
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._concurrency, self._served = concurrency, served_policy
        self._pool = ThreadPoolExecutor(concurrency * len(clients), "endpoint")
        self._failed: dict[Endpoint, str] = {}
        self._lock = threading.Lock()
        self._step: int | None = None

    @classmethod
    def of(cls, settings: Any, policy_sampler: GroupSampler) -> EndpointSource:
        """Connect to the servers that a run names in its `endpoint_` settings (training/online.py).
        Raises ConfigError if one is missing."""
        urls = settings.endpoint_url
        if not urls or not settings.endpoint_model:
            missing = "endpoint_model" if urls else "endpoint_url"
            raise ConfigError(
                "rollouts from an endpoint",
                f"{missing} is not set",
                "Give endpoint_url, as http://127.0.0.1:8000/v1, and endpoint_model",
            )
        key = os.environ.get(KEY)
        attempts = ATTEMPTS if len(urls) == 1 else ATTEMPTS_BESIDE_OTHERS
        served_policy = None
        if settings.endpoint_adapters is not None:
            served_policy = ServedPolicy(
                policy_sampler.policy,
                policy_sampler.label,
                Path(settings.endpoint_adapters),
                settings.max_lag,
            )
        return cls(
            [Client(url, settings.endpoint_model, api_key=key, attempts=attempts) for url in urls],
            policy_sampler.tokenizer,
            server=settings.endpoint_server,
            logprobs=settings.endpoint_logprobs,
            served_policy=served_policy,
        )

    @property
    def off_policy(self) -> bool:
        """Unless the policy itself is served."""
        return self._logprobs != "none"

    def sync(self, step: int) -> None:
        """Ask every server again from now on, also those that failed; of several, see that they
        serve the same base; give them the adapter of `step`, if they are to have it."""
        self._step, self._failed = step, {}
        name = None if self._served is None else self._served.write(step)
        if len(self._endpoints) > 1:
            self._on_each(lambda endpoint: endpoint.describe())
            self._compare()
        if self._served is None or name is None:
            return

        # A server that could not load this adapter may go on with the one that it has, for a while.
        served, why = self._served, dict[Endpoint, str]()

        def load(endpoint: Endpoint) -> None:
            try:
                served.load(endpoint.client, name)
                endpoint.policy = name
            except ModelError as error:
                why[endpoint] = error.why

        self._on_each(load)
        for endpoint, reason in why.items():
            if self._is_current(endpoint.policy):
                log.say(f"{endpoint.client.url} answers with an older adapter: {reason}")
            else:
                self._fail(endpoint, f"it could not load the adapter of step {step}: {reason}")
        served.remove_before(step - served.max_lag, self._clients())

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        on_rollout: RolloutCallback | None = None,
    ) -> list[list[Rollout]]:
        """Sample as RolloutSource does. Raises ConfigError for settings whose log-probabilities
        would be wrong, ModelError for unusable replies and if every server fails."""
        if self._logprobs == "raw" and sampling.temperature not in (0, 1):
            raise ConfigError(
                f"temperature {sampling.temperature:g} with rollouts from {self._urls()}",
                "servers report log-probabilities at temperature 1, so the importance weights "
                "would be wrong",
                "Sample at temperature 1, or serve processed ones (vLLM: --logprobs-mode "
                "processed_logprobs; endpoint_logprobs: processed)",
            )
        if self._step is None:
            self.sync(0)
        request = GroupRequest(n, sampling, StopCondition(sampling, self._tokenizer))
        tasks = numbered(prompts)

        # Every server takes a prompt for each of its workers, then the next one, and so on.
        queue = PromptQueue[list[Rollout]](len(tasks))
        endpoints = [endpoint for endpoint in self._endpoints if endpoint not in self._failed]
        slots = shares([endpoint.speed for endpoint in endpoints], len(tasks), self._concurrency)
        for endpoint, count in zip(endpoints, slots, strict=True):
            endpoint.begin()
            for _ in range(count):
                queue.add_worker()
                self._pool.submit(self._work, endpoint, queue, tasks, request)
        groups: dict[int, list[Rollout]] = {}
        for index, group in queue.results():
            groups[index] = group
            if on_rollout is not None:
                for rollout in group:
                    on_rollout(index, rollout)
        for endpoint in endpoints:
            endpoint.end()
        if len(groups) < len(tasks):
            raise self._all_failed()
        return [groups[index] for index in range(len(tasks))]

    def close(self) -> None:
        """Remove the adapters from the servers, and end the threads and the connections."""
        if self._served is not None:
            self._served.remove_all(self._clients())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for endpoint in self._endpoints:
            endpoint.client.close()

    def _work(
        self,
        endpoint: Endpoint,
        queue: PromptQueue[list[Rollout]],
        tasks: Sequence[PromptTask],
        request: GroupRequest,
    ) -> None:
        """Let a server answer prompts of the queue, until there are none or it fails."""
        try:
            while endpoint not in self._failed:
                index = queue.take()
                if index is None:
                    break
                try:
                    group = endpoint.answer(tasks[index], request, self._step_of)
                except ServerFailedError as failure:
                    self._fail(endpoint, str(failure))
                    queue.give_back(index)
                else:
                    queue.done(index, group)
        except Exception as error:  # noqa: BLE001 - raised where the results are read
            queue.fail(error)
        finally:
            queue.remove_worker()

    def _step_of(self, name: Any) -> int | None:
        """Return the step of the policy that a server answered with; None if it was given none.
        Raises ServerFailedError for an adapter that is too old, or is none of this run's."""
        if self._served is None:
            return None
        step = self._served.step_of(name)
        if step is None or not self._is_current(name):
            newest = f"this is step {self._step} and max_lag {self._served.max_lag}"
            raise ServerFailedError(f"it answered with the adapter {name!r}, and {newest}")
        return step

    def _is_current(self, name: str | None) -> bool:
        step = None if self._served is None else self._served.step_of(name)
        if self._served is None or self._step is None or step is None:
            return False
        return self._step - step <= self._served.max_lag

    def _fail(self, endpoint: Endpoint, why: str) -> None:
        """Ask a server nothing more in this step."""
        with self._lock:
            is_new = endpoint not in self._failed
            self._failed.setdefault(endpoint, why)
            endpoint.facts = None  # it may come back as another one
        if is_new and len(self._endpoints) > 1:
            log.say(f"{endpoint.client.url} is left out of this step: {why}")

    def _on_each(self, work: Callable[[Endpoint], None]) -> None:
        """Do something with all servers at once, but for those that failed; a server with which it
        fails is left out of this step."""

        def attempt(endpoint: Endpoint) -> None:
            try:
                work(endpoint)
            except ModelError as error:
                self._fail(endpoint, error.why)

        present = [endpoint for endpoint in self._endpoints if endpoint not in self._failed]
        list(self._pool.map(attempt, present))

    def _compare(self) -> None:
        """Raise ConfigError if two servers do not serve the same base."""
        described = [(each.client.url, each.facts) for each in self._endpoints if each.facts]
        for (url, facts), (other_url, other_facts) in pairwise(described):
            difference = facts.difference(other_facts)
            if difference:
                raise ConfigError(
                    f"endpoint_url: {url} and {other_url}",
                    f"they do not serve the same base: {difference}",
                    "Start all of them with the base that is trained",
                )

    def _clients(self) -> list[Client]:
        return [each.client for each in self._endpoints if each not in self._failed]

    def _urls(self) -> str:
        return ", ".join(endpoint.client.url for endpoint in self._endpoints)

    def _all_failed(self) -> ModelError:
        model = self._endpoints[0].client.model
        reasons = "; ".join(self._failed.values())
        if len(self._failed) > 1:
            reasons = "; ".join(f"{each.client.url}: {why}" for each, why in self._failed.items())
        return ModelError(
            f"model {model!r} at {self._urls()}",
            reasons,
            "Check that the server runs, its URL, the model's name and the key",
        )


@dataclass(frozen=True, slots=True)
class PromptTask:
    """A prompt, and how many equal ones come before it in the batch."""

    prompt: tuple[int, ...]
    number: int


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What is asked about every prompt of a batch."""

    n: int
    sampling: Sampling
    stop_condition: StopCondition


def numbered(prompts: Sequence[Sequence[int]]) -> list[PromptTask]:
    """Count equal prompts, so that their answers differ, whichever others are asked with them."""
    counts: Counter[tuple[int, ...]] = Counter()
    tasks: list[PromptTask] = []
    for ids in prompts:
        prompt = tuple(ids)
        tasks.append(PromptTask(prompt, counts[prompt]))
        counts[prompt] += 1
    return tasks


def shares(speeds: Sequence[float | None], prompts: int, most: int) -> list[int]:
    """Return how many of the `prompts` each server gets at once, by its speed; one whose speed is
    unknown counts as the mean of the others.

    >>> shares([3.0, 1.0, None], 12, 8), shares([None, None], 3, 8)
    ([6, 2, 4], [2, 2])
    """
    measured = [speed for speed in speeds if speed is not None]
    mean = sum(measured) / len(measured) if measured else 1.0
    weights = [mean if speed is None else speed for speed in speeds]
    whole = sum(weights)
    return [max(1, min(most, -int(-prompts * weight // whole))) for weight in weights]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What tells the base of a server: the size of its vocabulary, where it says that, and its most
    likely first tokens of an answer, with their log-probabilities."""

    vocabulary: int | None
    likely: dict[str, float]

    def difference(self, other: ServerFacts) -> str | None:
        """Return how two bases differ, or None if they are the same, as far as servers say it."""
        sizes = {self.vocabulary, other.vocabulary} - {None}
        if len(sizes) > 1:
            return f"their vocabularies have {self.vocabulary} and {other.vocabulary} tokens"
        if not self.likely or not other.likely:
            return None
        shared = self.likely.keys() & other.likely.keys()
        gaps = [abs(self.likely[token] - other.likely[token]) for token in shared]
        if len(shared) < min(SHARED, len(self.likely), len(other.likely)):
            return f"of the {LIKELY} most likely first tokens of an answer, {len(shared)} are equal"
        if max(gaps) > GAP:
            return f"the log-probability of an equal token differs by {max(gaps):.1f} nats"
        return None


class Endpoint:
    """One server: how it is asked, and what its replies mean.

    `policy` is the newest adapter that it has loaded, `facts` tell its base, and `speed` is the
    prompts a second of its last batch.
    """

    def __init__(self, client: Client, tokenizer: Any, server: Server, logprobs: LogProbs) -> None:
        self.client, self._tokenizer = client, tokenizer
        self._server, self._logprobs = server, logprobs
        added = tokenizer.added_tokens_decoder
        self._special = {number for number, token in added.items() if token.special}
        self.policy: str | None = None
        self.facts: ServerFacts | None = None
        self.speed: float | None = None
        self._begin, self._end, self._answered = 0.0, 0.0, 0

    def begin(self) -> None:
        """Begin to measure the speed of a batch."""
        self._begin, self._end, self._answered = time.monotonic(), 0.0, 0

    def end(self) -> None:
        """Keep the speed of the batch, if the server answered any of its prompts."""
        if self._answered:
            self.speed = self._answered / max(1e-6, self._end - self._begin)

    def describe(self) -> None:
        """Ask the server for what tells its base, unless that is known. Raises ModelError."""
        if self.facts is not None:
            return
        entry = model_entries(self.client).get(self.client.model, {})
        # llama-server's way to say it, and the embedded server's.
        vocabulary = (entry.get("meta") or {}).get("n_vocab") or entry.get("vocabulary")
        prompt = self._tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        body = self._request(tuple(prompt), 1, Sampling(max_new_tokens=1, temperature=0.0), 0)
        reply = self.client.post("completions", body | {"logprobs": LIKELY})
        self.facts = ServerFacts(vocabulary, _likely(self._choices(reply)[0].get("logprobs")))

    def answer(
        self, task: PromptTask, request: GroupRequest, step_of: Callable[[Any], int | None]
    ) -> list[Rollout]:
        """Return the answers to a prompt; `step_of` turns the name of the model that answered into
        the step of the policy. Raises ServerFailedError, ModelError for unusable replies."""
        rollouts: list[Rollout] = []
        while len(rollouts) < request.n:  # a server may give fewer answers than it was asked for
            missing = request.n - len(rollouts)
            seed = _seed(request.sampling.seed, task.prompt, task.number, len(rollouts))
            body = self._request(task.prompt, missing, request.sampling, seed)
            if self.policy is not None:
                body["model"] = self.policy
            try:
                reply = self.client.post("completions", body)
            except RequestRefused:
                raise
            except ModelError as error:
                raise ServerFailedError(error.why) from None
            step = step_of(reply.get("model"))
            choices = self._choices(reply)
            self._check_prompt(task.prompt, reply, choices[0])
            if self._server == "llama-server":
                # its log-probabilities leave out tokens that are parts of a character
                choices[0] |= {"token_ids": (reply.get("__verbose") or {}).get("tokens")}
            rollouts += [
                self._rollout(choice, request.sampling, request.stop_condition, step)
                for choice in choices[:missing]
            ]
        self._end, self._answered = time.monotonic(), self._answered + 1
        return rollouts

    def _choices(self, reply: dict[str, Any]) -> list[dict[str, Any]]:
        choices = reply.get("choices")
        if not isinstance(choices, list) or not choices:
            raise self._unusable(
                "the reply has no choices",
                "Check that it is an OpenAI-compatible completion endpoint",
            )
        return choices

    def _request(
        self, prompt: tuple[int, ...], n: int, sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n": n,
            "max_tokens": sampling.max_new_tokens,
            "seed": seed,
            "logprobs": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        body |= EXTRAS[self._server]
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        # llama-server withholds what it knows of the tokens of a stop text
        if sampling.stop and self._server != "llama-server":
            body["stop"] = list(sampling.stop)
        if self._server == "vllm":
            body["stop_token_ids"] = list(sampling.stop_ids)
        return body

    def _check_prompt(
        self, prompt: tuple[int, ...], reply: dict[str, Any], choice: dict[str, Any]
    ) -> None:
        ids = reply.get("prompt_token_ids") or choice.get("prompt_token_ids")
        count = len(ids) if ids else (reply.get("usage") or {}).get("prompt_tokens")
        if (ids and tuple(ids) != prompt) or (count is not None and count != len(prompt)):
            raise self._unusable(
                f"it read {count} tokens that are not the {len(prompt)} of the prompt",
                "Serve the base that is trained, with its own tokenizer, and add no tokens to "
                "prompts",
            )

    def _rollout(
        self,
        choice: dict[str, Any],
        sampling: Sampling,
        stop_condition: StopCondition,
        step: int | None,
    ) -> Rollout:
        finish = FINISH.get(str(choice.get("finish_reason")))
        if finish is None:
            raise self._unusable(
                f"an answer has the finish_reason {choice.get('finish_reason')!r}",
                "Only stop and length are understood",
            )

        # where the answer ends by our own rules
        ids, logps = self._tokens(choice)
        end: int | None = None
        for length in range(1, len(ids) + 1):
            if stop_condition.reached(ids[:length]):
                end = length
                break
        if end is None and finish == "stop":
            if ids and ids[-1] in self._special:  # a token that ends answers there and not here
                end = len(ids)
            else:  # the server kept the token that ended the answer to itself
                logps = []
                if sampling.stop_ids and not sampling.stop:
                    ids = [*ids, sampling.stop_ids[0]]
                    end = len(ids)

        needed = self._logprobs != "none" and sampling.temperature != 0
        if needed and len(logps) < len(ids[:end]):
            raise self._unusable(
                "it gives no log-probability for every sampled token, so off-policy answers "
                "cannot be corrected for",
                "Start it with log-probabilities (llama-server has none for parts of a character, "
                "vLLM has all), or say that it serves the "
                "very policy that is trained (endpoint_logprobs: none)",
            )
        return Rollout(
            ids=tuple(ids[:end]),
            logps=tuple(logps[:end]) if needed else None,
            finish="stop" if end else finish,
            text=stop_condition.text(ids[:end], end is not None),
            policy_step=step,
        )

    def _tokens(self, choice: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Return the sampled ids, and the log-probabilities of the leading ones whose token is
        certain."""
        reported = _reported(choice.get("logprobs"))
        if self._server == "llama-server" and choice.get("token_ids") is None:
            raise self._unusable(
                "it does not return the sampled tokens",
                "Update it to a release that takes `verbose` in a request",
            )
        ids: list[Any] = choice.get("token_ids") or self._tokenize(choice, reported.texts)
        vocabulary = len(self._tokenizer)
        if not all(isinstance(token, int) and 0 <= token < vocabulary for token in ids):
            raise self._unusable(
                "some of its token ids are not in this vocabulary",
                "Serve the model that is trained",
            )
        if not reported.ids:
            return ids, reported.logps if len(reported.logps) == len(ids) else []
        logps: list[float] = []
        for named, sampled, logp in zip(reported.ids, ids, reported.logps, strict=False):
            if named != sampled:
                break
            logps.append(logp)
        return ids, logps

    def _tokenize(self, choice: dict[str, Any], texts: list[str]) -> list[int]:
        """Return the ids of the answer's text. Raises an error if they are not the tokens that the
        server reported."""
        text = choice.get("text", "")
        ids: list[int] = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if texts and [self._tokenizer.decode([token]) for token in ids] != texts:
            raise self._unusable(
                f"it gives no token ids, and its {len(texts)} tokens are not the {len(ids)} that "
                "its text has here",
                "Use a server that returns token ids: vLLM, llama-server",
            )
        return ids

    def _unusable(self, why: str, fix: str) -> ModelError:
        return ModelError(f"rollouts of {self.client.model!r} at {self.client.url}", why, fix)


@dataclass(frozen=True, slots=True)
class _Reported:
    """What a server says about the sampled tokens; a list is empty where it says nothing."""

    texts: list[str] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


def _reported(logprobs: Any) -> _Reported:
    """Read either of OpenAI's forms of log-probabilities; llama-server adds ids to the newer
    one."""
    if not isinstance(logprobs, dict):
        return _Reported()
    content = logprobs.get("content")
    if isinstance(content, list):
        return _Reported(
            texts=[token.get("token", "") for token in content],
            logps=[float(token["logprob"]) for token in content],
            ids=[token["id"] for token in content if "id" in token],
        )
    texts = list(logprobs.get("tokens") or [])
    logps = logprobs.get("token_logprobs")
    if not isinstance(logps, list) or None in logps:
        return _Reported(texts)
    return _Reported(texts, [float(logp) for logp in logps])


def _likely(logprobs: Any) -> dict[str, float]:
    """Return the most likely tokens of the first place of an answer, in either of OpenAI's forms;
    an empty dict if the server names none."""
    if not isinstance(logprobs, dict):
        return {}
    content, top = logprobs.get("content"), logprobs.get("top_logprobs")
    if isinstance(content, list) and content:
        return {
            str(token.get("token")): float(token["logprob"])
            for token in content[0].get("top_logprobs") or ()
        }
    if isinstance(top, list) and top and isinstance(top[0], dict):
        return {str(token): float(logp) for token, logp in top[0].items()}
    return {}


def _seed(seed: int, prompt: Sequence[int], number: int, answer: int) -> int:
    """Return the seed of an answer to the prompt that is the `number`-th of its kind."""
    digest = hashlib.sha256(json.dumps([seed, list(prompt), number, answer]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
