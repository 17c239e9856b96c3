"""What a source of fresh answers takes and gives, and where an answer ends.

The model in this process is `sampler.py`, an OpenAI-compatible server `endpoint.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from thumbwheel.core.plugins import VariantTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the most likely token; `top_k` 0 and `top_p` 1 cut
    nothing off.

    An answer ends with the first of `stop_ids` or with the token that completes one of the texts in
    `stop`.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.max_new_tokens < 1
            or self.temperature < 0
            or self.top_k < 0
            or not 0 < self.top_p <= 1
            or "" in self.stop
        ):
            raise ValueError(f"impossible sampling settings: {self}")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer.

    `ids` include the token that ended the answer, which is learned like the others. `logps` are
    nats at the sampling temperature over the whole vocabulary, before top-k and top-p; None where
    they are not known and where nothing was drawn (temperature 0). `text` is without the ending.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...] | None
    finish: Literal["stop", "length"]
    text: str
    policy_step: int | None = None


RolloutCallback = Callable[[int, Rollout], None]
"""Takes (index of the prompt, answer) as soon as an answer has ended, in any order, while others
are still being written."""


class RolloutSource(Protocol):
    """Where fresh answers come from. A class in the table is made by `of(settings,
    policy_sampler)`: the settings of a run, and the sampler of the policy itself."""

    @property
    def off_policy(self) -> bool:
        """Whether the distribution may be another one than the policy's; all rollouts then have
        log-probs, to correct for it."""
        return False

    def sync(self, step: int) -> None:
        """Sample from the policy's current weights, those of `step`, from now on, as far as the
        source can."""
        return

    def close(self) -> None:
        """Close threads and connections."""
        return

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        on_rollout: RolloutCallback | None = None,
    ) -> list[list[Rollout]]:
        """Sample `n` answers to each prompt (token ids), as [prompt][n] in the order given;
        `on_rollout` gets each of these objects."""


class StopCondition:
    """Where an answer ends, and its text without the ending. A stop text that is one token of the
    vocabulary by itself is that token."""

    def __init__(self, sampling: Sampling, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_vocab() if sampling.stop else {}
        self._ids = {*sampling.stop_ids, *(added[text] for text in sampling.stop if text in added)}
        self._texts = [text for text in sampling.stop if text not in added]
        # tokens that may hold the longest text: a token has at least a byte, a special one none
        self._window = max((len(text.encode()) for text in self._texts), default=0) + 8

    def reached(self, ids: Sequence[int]) -> bool:
        """Return whether the last of `ids` ended the answer."""
        if ids[-1] in self._ids:
            return True
        if not self._texts:
            return False
        tail = self._decoded(ids[-self._window :])
        return any(text in tail for text in self._texts)

    def stop_text(self, ids: Sequence[int]) -> str | None:
        """Return the stop text at which the answer ended, or None if a token ended it."""
        if not self._texts or ids[-1] in self._ids:
            return None
        answer = self._decoded(ids)
        present = [text for text in self._texts if text in answer]
        return min(present, key=answer.find, default=None)

    def text(self, ids: Sequence[int], ended: bool) -> str:
        """Return the answer as text, without special tokens, and up to the stop text that ended
        it."""
        if ended and ids[-1] in self._ids:
            ids = ids[:-1]
        answer = self._decoded(ids)
        starts = [answer.find(text) for text in self._texts if text in answer]
        return answer[: min(starts)] if ended and starts else answer

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


SOURCES: VariantTable[Any] = VariantTable(
    "rollout source",
    "thumbwheel.rollout_sources",
    {
        "local": "thumbwheel.engine.sampler:GroupSampler",
        "endpoint": "thumbwheel.engine.endpoint:EndpointSource",
    },
)
"""Where rollouts can come from; a backend for another server is one more line."""
