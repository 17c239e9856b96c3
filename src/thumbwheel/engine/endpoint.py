"""Fresh answers from an OpenAI-compatible server: its token ids and log-probabilities, or a
refusal; nothing is guessed.

The server has to answer with the weights that the trainer believes it has, over the same
vocabulary. Unless it is known to serve the policy itself (log-probabilities "none"), the
log-probability of every sampled token is needed, so that a loss can correct for the difference.
Servers report those of the model's raw logits, that is at temperature 1 ("raw"), unless they are
set otherwise ("processed", as vLLM's `--logprobs-mode processed_logprobs`); at another temperature
raw ones are refused. HTTP is llm/client.py's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.rollout import (
    Rollout,
    RolloutCallback,
    RolloutSource,
    Sampling,
    StopCondition,
)
from thumbwheel.llm.client import Client

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
FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "eos": "stop", "length": "length"}


class EndpointSource(RolloutSource):
    """Answers of the model behind `client`, which is given token ids, at most `concurrency` prompts
    at once.

    With `logprobs` "none" the rollouts have none.
    """

    def __init__(
        self,
        client: Client,
        tokenizer: Any,
        *,
        server: Server = "vllm",
        logprobs: LogProbs = "raw",
        concurrency: int = 8,
    ) -> None:
        self._client, self._tokenizer = client, tokenizer
        self._server, self._logprobs = server, logprobs
        self._pool = ThreadPoolExecutor(concurrency, "endpoint")
        added = tokenizer.added_tokens_decoder
        self._special = {number for number, token in added.items() if token.special}

    @classmethod
    def of(cls, settings: Any, policy_sampler: GroupSampler) -> EndpointSource:
        """Connect to the server that a run names in its `endpoint_` settings (training/online.py).
        Raises ConfigError if one is missing."""
        if not settings.endpoint_url or not settings.endpoint_model:
            missing = "endpoint_model" if settings.endpoint_url else "endpoint_url"
            raise ConfigError(
                "rollouts from an endpoint",
                f"{missing} is not set",
                "Give endpoint_url, as http://127.0.0.1:8000/v1, and endpoint_model",
            )
        client = Client(settings.endpoint_url, settings.endpoint_model, api_key=os.environ.get(KEY))
        return cls(
            client,
            policy_sampler.tokenizer,
            server=settings.endpoint_server,
            logprobs=settings.endpoint_logprobs,
        )

    @property
    def off_policy(self) -> bool:
        """Unless the policy itself is served."""
        return self._logprobs != "none"

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        on_rollout: RolloutCallback | None = None,
    ) -> list[list[Rollout]]:
        """Sample as RolloutSource does. Raises ConfigError for settings whose log-probabilities
        would be wrong, ModelError for unusable replies."""
        if self._logprobs == "raw" and sampling.temperature not in (0, 1):
            raise ConfigError(
                f"temperature {sampling.temperature:g} with rollouts from {self._client.url}",
                "servers report log-probabilities at temperature 1, so the importance weights "
                "would be wrong",
                "Sample at temperature 1, or serve processed ones (vLLM: --logprobs-mode "
                "processed_logprobs; endpoint_logprobs: processed)",
            )
        stop_condition = StopCondition(sampling, self._tokenizer)
        jobs: list[Future[list[Rollout]]] = []
        for index, prompt in enumerate(prompts):
            arguments = (tuple(prompt), index, n, sampling, stop_condition)
            jobs.append(self._pool.submit(self._group, *arguments))
        if on_rollout is not None:
            indices = {job: index for index, job in enumerate(jobs)}
            for job in as_completed(jobs):
                for rollout in job.result():
                    on_rollout(indices[job], rollout)
        return [job.result() for job in jobs]

    def close(self) -> None:
        """End the threads and the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _group(
        self,
        prompt: tuple[int, ...],
        index: int,
        n: int,
        sampling: Sampling,
        stop_condition: StopCondition,
    ) -> list[Rollout]:
        rollouts: list[Rollout] = []
        while len(rollouts) < n:  # a server may give fewer answers than it was asked for
            missing = n - len(rollouts)
            seed = _seed(sampling.seed, prompt, index, len(rollouts))
            request = self._request(prompt, missing, sampling, seed)
            reply = self._client.post("completions", request)
            choices = reply.get("choices")
            if not isinstance(choices, list) or not choices:
                raise self._unusable(
                    "the reply has no choices",
                    "Check that it is an OpenAI-compatible completion endpoint",
                )
            self._check_prompt(prompt, reply, choices[0])
            if self._server == "llama-server":
                # its log-probabilities leave out tokens that are parts of a character
                choices[0] |= {"token_ids": (reply.get("__verbose") or {}).get("tokens")}
            rollouts += [
                self._rollout(choice, sampling, stop_condition) for choice in choices[:missing]
            ]
        return rollouts

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
        self, choice: dict[str, Any], sampling: Sampling, stop_condition: StopCondition
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

        needed = self.off_policy and sampling.temperature != 0
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
        return ModelError(f"rollouts of {self._client.model!r} at {self._client.url}", why, fix)


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


def _seed(seed: int, prompt: Sequence[int], index: int, number: int) -> int:
    digest = hashlib.sha256(json.dumps([seed, list(prompt), index, number]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
