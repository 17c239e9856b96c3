"""One token a row: at a temperature, from the top k and the top p, with a stream of chance of its
own for every answer.

An answer's chance depends on the seed, its prompt's tokens and its number among the answers to that
prompt, and on nothing else: the same answer comes out of any batch, in any order, as long as the
model gives the same logits (batches of other shapes round differently, so a draw that falls on the
border between two tokens may differ).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thumbwheel.engine.rollout import Sampling

if TYPE_CHECKING:
    import torch

BLOCK = 256
"""Tokens of a vocabulary that are summed up together."""


class TokenSampler:
    """Draws the tokens of a batch of answers; `chances` [rows, max_new_tokens] in 0..1, none for
    temperature 0."""

    def __init__(self, sampling: Sampling, chances: torch.Tensor | None) -> None:
        self._sampling, self._chances = sampling, chances

    @classmethod
    def of(
        cls, sampling: Sampling, answers: Sequence[tuple[Sequence[int], int]], device: torch.device
    ) -> TokenSampler:
        """For answers given as (prompt, number of the answer)."""
        import torch

        if sampling.temperature == 0:
            return cls(sampling, None)
        streams = [
            _stream(sampling.seed, prompt, number).random(sampling.max_new_tokens, dtype=np.float32)
            for prompt, number in answers
        ]
        return cls(sampling, torch.from_numpy(np.stack(streams)).to(device))

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows."""
        if self._chances is not None:
            self._chances = self._chances[list(rows)]

    def tokens(self, logits: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(tokens [rows], log-probabilities [rows]) of step `step` for `logits` [rows, V]; most
        likely tokens have no log-probabilities.

        Where a row has logits that are no numbers, its token is V.
        """
        import torch

        if self._chances is None:
            return logits.argmax(-1), None
        wide = logits if logits.dtype == torch.float64 else logits.float()
        scaled = wide / self._sampling.temperature if self._sampling.temperature != 1 else wide
        highest = scaled.amax(-1, keepdim=True)
        mass = (scaled - highest).exp_()
        tokens, whole = _pick(self._cut(mass), self._chances[:, step, None])
        if self._cuts(mass):
            whole = mass.sum(-1, keepdim=True)
        logps = scaled.gather(1, tokens.clamp(max=logits.shape[-1] - 1)) - highest - whole.log()
        return tokens[:, 0], logps[:, 0]

    def _cuts(self, mass: torch.Tensor) -> bool:
        return 0 < self._sampling.top_k < mass.shape[-1] or self._sampling.top_p < 1

    def _cut(self, mass: torch.Tensor) -> torch.Tensor:
        """`mass` [rows, V] with what top-k and top-p leave out at 0."""
        if not self._cuts(mass):
            return mass
        ordered, places = mass.topk(
            min(self._sampling.top_k or mass.shape[-1], mass.shape[-1]), dim=-1
        )
        before = (
            ordered.cumsum(-1) - ordered
        )  # mass of the more likely tokens; the first one is always kept
        ordered = ordered.masked_fill(
            before >= self._sampling.top_p * ordered.sum(-1, keepdim=True), 0.0
        )
        return mass.new_zeros(mass.shape).scatter_(1, places, ordered)


def _pick(mass: torch.Tensor, chance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(token [rows, 1], whole mass [rows, 1]): the token in whose part of `mass` [rows, V] the
    `chance` [rows, 1] falls; V for no numbers.

    First the block of tokens, then the token in it: a running sum over the whole vocabulary is slow
    and rounds more.
    """
    import torch

    size = mass.shape[-1]
    blocks = torch.nn.functional.pad(mass, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    borders = blocks.sum(-1).cumsum(-1)
    whole = borders[:, -1:]
    place = _below(chance * whole, whole)
    block = torch.searchsorted(borders, place, right=True).clamp(max=borders.shape[-1] - 1)
    inside = blocks.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1)
    before = torch.where(block > 0, borders.gather(1, (block - 1).clamp(min=0)), 0.0)
    token = torch.searchsorted(inside, _below(place - before, inside[:, -1:]), right=True)
    return torch.where(whole.isfinite(), block * BLOCK + token, size), whole


def _below(place: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """`place`, or the number just below `end` where rounding has carried it beyond."""
    import torch

    return torch.minimum(place, end.nextafter(torch.zeros_like(end)))


def _stream(seed: int, prompt: Sequence[int], number: int) -> np.random.Generator:
    digest = hashlib.sha256(json.dumps([seed, number, list(prompt)]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
