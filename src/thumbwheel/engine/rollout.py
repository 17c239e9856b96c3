"""What is asked of a source of fresh answers, and what it gives.

Lives here: the types only. The model in this process is `sampler.py`, an OpenAI-compatible server `endpoint.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the most likely token; `top_k` 0 and `top_p` 1 cut nothing off.

    An answer ends with the first of `stop_ids` or with the token that completes one of the texts in `stop`.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or "" in self.stop:
            raise ValueError(f"impossible sampling settings: {self}")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled answer.

    `ids` include the token that ended the answer, which is learned like the others. `logps` are nats at the sampling temperature
    over the whole vocabulary, before top-k and top-p; None where they are not known and where nothing was drawn (temperature 0).
    `text` is without the ending.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...] | None
    finish: Literal["stop", "length"]
    text: str


class RolloutSource(Protocol):
    """Where fresh answers come from."""

    def sample(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Rollout]]:
        """`n` answers to each prompt (token ids), as [prompt][n] in the order given."""
