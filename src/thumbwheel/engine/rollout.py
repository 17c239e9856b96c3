"""Fresh answers: greedy decoding of many prompts with a Hugging Face causal LM.

Deterministic by construction: the most likely token, nothing of the model's own generation settings (temperature, penalties). Prompts of
like length share a left-padded batch, and rows that have ended leave it, so a batch costs what its unfinished rows cost.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from thumbwheel.core.log import Advance

if TYPE_CHECKING:
    import torch


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

    `ids` include the token that ended the answer, which is learned like the others. `logps` are nats at the sampling temperature (1
    where it is 0) over the whole vocabulary, before top-k and top-p; None where they are not known. `text` is without the ending.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...] | None
    finish: Literal["stop", "length"]
    text: str


class RolloutSource(Protocol):
    """Where fresh answers come from."""

    def sample(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Rollout]]:
        """`n` answers to each prompt (token ids), as [prompt][n] in the order given."""


@dataclass(frozen=True)
class Generation:
    """The tokens of one answer, without the one that ended it; `ended` is False where the limit cut it off."""

    ids: tuple[int, ...]
    ended: bool

    @property
    def length(self) -> int:
        """Tokens that were decoded, the ending one included."""
        return len(self.ids) + self.ended


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    stop_ids: Collection[int],
    max_new_tokens: int,
    batch_size: int,
    advance: Advance | None = None,
) -> list[Generation]:
    """The greedy answer to every prompt (token ids, never empty), in their order; equal prompts are answered once.

    A prompt that leaves no room in the model's context has an empty answer that has not ended.
    """
    import torch

    distinct = sorted({tuple(prompt) for prompt in prompts}, key=lambda prompt: (len(prompt), prompt))
    answers: dict[tuple[int, ...], Generation] = {}
    training = model.training
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(distinct), batch_size):
            batch = distinct[start : start + batch_size]
            answers.update(zip(batch, _batch(model, batch, stop_ids, max_new_tokens), strict=True))
            if advance is not None:
                advance(len(batch))
    model.train(training)
    return [answers[tuple(prompt)] for prompt in prompts]


def _batch(model: Any, prompts: Sequence[Sequence[int]], stop_ids: Collection[int], max_new_tokens: int) -> list[Generation]:
    import torch

    steps = min(max_new_tokens, _context(model) - max(map(len, prompts)))
    tokens: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    alive = list(range(len(prompts)))
    state = _Decoding(model, prompts)
    for _ in range(steps):
        chosen = state.logits.argmax(-1)
        kept = []
        for place, token in enumerate(chosen.tolist()):
            if token in stop_ids:
                ended[alive[place]] = True
            else:
                tokens[alive[place]].append(token)
                kept.append(place)
        if not kept:
            break
        if len(kept) < len(alive):
            alive = [alive[place] for place in kept]
            state.keep(torch.tensor(kept, device=chosen.device))
            chosen = chosen[torch.tensor(kept, device=chosen.device)]
        if len(tokens[alive[0]]) < steps:
            state.advance(chosen)
    return [Generation(tuple(ids), end) for ids, end in zip(tokens, ended, strict=True)]


class _Decoding:
    """A left-padded batch in the middle of decoding: key-value cache, mask, positions, and the logits [B, V] of the next token."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        import torch

        self._model = model
        accepted = inspect.signature(_plain(model).forward).parameters
        self._positions = "position_ids" in accepted
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        width, device = max(map(len, prompts)), next(model.parameters()).device
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        self._mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        self._cache: Any = None
        self._forward(ids, (self._mask.cumsum(1) - 1).clamp(min=0))

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        placed = {"position_ids": positions} if self._positions else {}
        out = self._model(
            input_ids=ids, attention_mask=self._mask, past_key_values=self._cache, use_cache=True, **placed, **self._last_only
        )
        self._cache, self.logits = out.past_key_values, out.logits[:, -1]

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but these; columns that are padding in all of them stay."""
        self._cache.reorder_cache(rows)
        self._mask = self._mask[rows]

    def advance(self, chosen: torch.Tensor) -> None:
        """Append one token to every row."""
        self._mask = _one_more(self._mask)
        self._forward(chosen[:, None], (self._mask.sum(1, keepdim=True) - 1))


def _one_more(mask: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([mask, mask.new_ones(len(mask), 1)], 1)


def _plain(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _context(model: Any) -> int:
    """Longest sequence of the model; unlimited where its configuration names none."""
    return int(getattr(_plain(model).config.get_text_config(), "max_position_embeddings", None) or 1 << 40)
