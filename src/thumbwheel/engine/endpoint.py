"""Fresh answers from an OpenAI-compatible server: its token ids and log-probabilities, or a
refusal; nothing is guessed.

The server has to speak with the weights that the trainer believes it has, over the same vocabulary.
Where it is not told so (log-probabilities "none"), the log-probability of every sampled token is
needed, so that a loss can correct for the difference. Servers report those of the model's raw
logits, that is at temperature 1 ("raw"), unless they are set otherwise ("processed", as vLLM's
`--logprobs-mode processed_logprobs`); at another temperature raw ones are refused. Does not live
here: HTTP (llm/client.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import takewhile
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
"""What a server reports: at temperature 1, as sampled, or nothing that is needed because it speaks
with the very policy that is trained."""
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
ENDED: dict[str, Literal["stop", "length"]] = {"stop": "stop", "eos": "stop", "length": "length"}


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
        self._client, self._tokenizer, self._server, self._logprobs = (
            client,
            tokenizer,
            server,
            logprobs,
        )
        self._pool = ThreadPoolExecutor(concurrency, "endpoint")
        self._special = {
            number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        }

    @classmethod
    def of(cls, settings: Any, own: GroupSampler) -> EndpointSource:
        """The server that a run names in its `endpoint_` settings (training/online.py); raises
        ConfigError when one is missing."""
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
            own.tokenizer,
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
        ended: RolloutCallback | None = None,
    ) -> list[list[Rollout]]:
        """See RolloutSource. Raises ConfigError for settings whose log-probabilities would be
        wrong, ModelError for unusable replies."""
        if self._logprobs == "raw" and sampling.temperature not in (0, 1):
            raise ConfigError(
                f"temperature {sampling.temperature:g} with rollouts from {self._client.url}",
                "servers report log-probabilities at temperature 1, so the importance weights "
                "would be wrong",
                "Sample at temperature 1, or serve processed ones (vLLM: --logprobs-mode "
                "processed_logprobs; endpoint_logprobs: processed)",
            )
        ending = StopCondition(sampling, self._tokenizer)
        jobs = [
            self._pool.submit(self._group, tuple(prompt), place, n, sampling, ending)
            for place, prompt in enumerate(prompts)
        ]
        places = {job: place for place, job in enumerate(jobs)}
        for job in as_completed(jobs):
            for one in job.result():
                if ended is not None:
                    ended(places[job], one)
        return [job.result() for job in jobs]

    def close(self) -> None:
        """End the threads and the connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _group(
        self, prompt: tuple[int, ...], place: int, n: int, sampling: Sampling, ending: StopCondition
    ) -> list[Rollout]:
        found: list[Rollout] = []
        while len(found) < n:  # a server may give fewer answers than it was asked for
            seed = _seed(sampling.seed, prompt, place, len(found))
            reply = self._client.post(
                "completions", self._request(prompt, n - len(found), sampling, seed)
            )
            choices = reply.get("choices")
            if not isinstance(choices, list) or not choices:
                raise self._unusable(
                    "the reply has no choices",
                    "Check that it is an OpenAI-compatible completion endpoint",
                )
            self._check_prompt(prompt, reply, choices[0])
            if (
                self._server == "llama-server"
            ):  # its log-probabilities leave out tokens that are parts of a character
                choices[0] |= {"token_ids": (reply.get("__verbose") or {}).get("tokens")}
            found += [
                self._rollout(choice, sampling, ending) for choice in choices[: n - len(found)]
            ]
        return found

    def _request(
        self, prompt: tuple[int, ...], n: int, sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": list(prompt),
            "n": n,
            "max_tokens": sampling.max_new_tokens,
            "seed": seed,
            "logprobs": 1,
        }
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p} | EXTRAS[
            self._server
        ]
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if (
            sampling.stop and self._server != "llama-server"
        ):  # which withholds what it knows of the tokens of a stop text
            body["stop"] = list(sampling.stop)
        if self._server == "vllm":
            body["stop_token_ids"] = list(sampling.stop_ids)
        return body

    def _check_prompt(
        self, prompt: tuple[int, ...], reply: dict[str, Any], choice: dict[str, Any]
    ) -> None:
        seen = reply.get("prompt_token_ids") or choice.get("prompt_token_ids")
        count = len(seen) if seen else (reply.get("usage") or {}).get("prompt_tokens")
        if (seen and tuple(seen) != prompt) or (count is not None and count != len(prompt)):
            raise self._unusable(
                f"it read {count} tokens that are not the {len(prompt)} of the prompt",
                "Serve the base that is trained, with its own tokenizer, and add no tokens to "
                "prompts",
            )

    def _rollout(
        self, choice: dict[str, Any], sampling: Sampling, ending: StopCondition
    ) -> Rollout:
        finish = ENDED.get(str(choice.get("finish_reason")))
        if finish is None:
            raise self._unusable(
                f"an answer has the finish_reason {choice.get('finish_reason')!r}",
                "Only stop and length are understood",
            )
        ids, logps = self._tokens(choice)
        end = next((at for at in range(1, len(ids) + 1) if ending.reached(ids[:at])), None)
        if (
            end is None and finish == "stop" and ids and ids[-1] in self._special
        ):  # what ends answers there and does not here
            end = len(ids)
        elif end is None and finish == "stop":  # the server kept what ended the answer to itself
            logps = []
            if sampling.stop_ids and not sampling.stop:
                ids, end = [*ids, sampling.stop_ids[0]], len(ids) + 1
        needed = self.off_policy and sampling.temperature != 0
        if needed and len(logps) < len(ids[:end]):
            raise self._unusable(
                "it gives no log-probability for every sampled token, so off-policy answers "
                "cannot be corrected for",
                "Start it with log-probabilities (llama-server has none for parts of a character, "
                "vLLM has all), or say that it serves the "
                "very policy that is trained (endpoint_logprobs: none)",
            )
        known = tuple(logps[:end]) if needed else None
        return Rollout(
            tuple(ids[:end]),
            known,
            "stop" if end else finish,
            ending.text(ids[:end], end is not None),
        )

    def _tokens(self, choice: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Sampled ids, and the log-probabilities of the first of them: of those about which there
        is no doubt."""
        texts, logps, named = _logprobs(choice.get("logprobs"))
        if self._server == "llama-server" and choice.get("token_ids") is None:
            raise self._unusable(
                "it does not return the sampled tokens",
                "Update it to a release that takes `verbose` in a request",
            )
        ids: list[Any] = choice.get("token_ids") or self._retokenised(choice, texts)
        if any(not isinstance(one, int) or not 0 <= one < len(self._tokenizer) for one in ids):
            raise self._unusable(
                "some of its token ids are not in this vocabulary",
                "Serve the model that is trained",
            )
        if named:
            same = takewhile(lambda both: both[0] == both[1], zip(named, ids, logps, strict=False))
            return ids, [logp for *_, logp in same]
        return ids, logps if len(logps) == len(ids) else []

    def _retokenised(self, choice: dict[str, Any], texts: list[str]) -> list[int]:
        """The ids of the answer's text, if they are the tokens that the server sampled."""
        text = choice.get("text", "")
        ids: list[int] = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if texts and [self._tokenizer.decode([one]) for one in ids] != texts:
            raise self._unusable(
                f"it gives no token ids, and its {len(texts)} tokens are not the {len(ids)} that "
                "its text has here",
                "Use a server that returns token ids: vLLM, llama-server",
            )
        return ids

    def _unusable(self, why: str, fix: str) -> ModelError:
        return ModelError(f"rollouts of {self._client.model!r} at {self._client.url}", why, fix)


def _logprobs(given: Any) -> tuple[list[str], list[float], list[int]]:
    """(token texts, log-probabilities, token ids) in either of OpenAI's forms; llama-server adds
    ids to the newer one."""
    if not isinstance(given, dict):
        return [], [], []
    if isinstance(content := given.get("content"), list):
        ids = [one["id"] for one in content if "id" in one]
        return (
            [one.get("token", "") for one in content],
            [float(one["logprob"]) for one in content],
            ids,
        )
    logps = given.get("token_logprobs")
    if not isinstance(logps, list) or None in logps:
        return list(given.get("tokens") or []), [], []
    return list(given.get("tokens") or []), [float(one) for one in logps], []


def _seed(seed: int, prompt: Sequence[int], place: int, number: int) -> int:
    digest = hashlib.sha256(json.dumps([seed, list(prompt), place, number]).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
