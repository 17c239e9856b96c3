"""One token a row: at a temperature, from the top k and the top p, with a random stream for every
answer.

An answer's random numbers depend on the seed, its prompt's tokens and its number among the answers
to that prompt, and on nothing else. So the same answer comes out of any batch, in any order, as
long as the model gives the same logits. (Batches of other shapes round differently, so a draw that
falls on the border between two tokens may differ.)
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
    """Draws the tokens of a batch of answers.

    `uniforms` [rows, max_new_tokens] are the random numbers in 0..1, one a token; None at
    temperature 0, which takes the most likely token.
    """

    def __init__(self, sampling: Sampling, uniforms: torch.Tensor | None) -> None:
        self._sampling, self._uniforms = sampling, uniforms

    @classmethod
    def of(
        cls, sampling: Sampling, answers: Sequence[tuple[Sequence[int], int]], device: torch.device
    ) -> TokenSampler:
        """Create the sampler for `answers`, each a prompt and the number of the answer to it."""
        import torch

        if sampling.temperature == 0:
            return cls(sampling, None)
        rows = []
        for prompt, number in answers:
            rng = _random_stream(sampling.seed, prompt, number)
            rows.append(rng.random(sampling.max_new_tokens, dtype=np.float32))
        return cls(sampling, torch.from_numpy(np.stack(rows)).to(device))

    def select(self, rows: Sequence[int]) -> None:
        """Continue with these rows."""
        if self._uniforms is not None:
            self._uniforms = self._uniforms[list(rows)]

    def tokens(self, logits: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (tokens [rows], log-probabilities [rows]) of step `step` for `logits` [rows, V];
        there are no log-probabilities (None) at temperature 0.

        Where a row has logits that are no numbers, its token is V.
        """
        import torch

        if self._uniforms is None:
            return logits.argmax(-1), None
        scaled = logits if logits.dtype == torch.float64 else logits.float()
        if self._sampling.temperature != 1:
            scaled = scaled / self._sampling.temperature

        # draw from what top-k and top-p leave
        highest = scaled.amax(-1, keepdim=True)
        mass = (scaled - highest).exp_()
        truncates = self._truncates(mass.shape[-1])
        candidates = self._truncate(mass) if truncates else mass
        tokens, total = _pick(candidates, self._uniforms[:, step, None])

        # log-probabilities are over the whole vocabulary
        if truncates:
            total = mass.sum(-1, keepdim=True)
        drawn = scaled.gather(1, tokens.clamp(max=logits.shape[-1] - 1))
        logps = drawn - highest - total.log()
        return tokens[:, 0], logps[:, 0]

    def _truncates(self, vocabulary: int) -> bool:
        return 0 < self._sampling.top_k < vocabulary or self._sampling.top_p < 1

    def _truncate(self, mass: torch.Tensor) -> torch.Tensor:
        """Return `mass` [rows, V] with the tokens that top-k and top-p leave out set to 0."""
        vocabulary = mass.shape[-1]
        top_k = min(self._sampling.top_k or vocabulary, vocabulary)
        ordered, tokens = mass.topk(top_k, dim=-1)
        more_likely = ordered.cumsum(-1) - ordered  # 0 for the first one, which so is always left
        nucleus = self._sampling.top_p * ordered.sum(-1, keepdim=True)
        ordered = ordered.masked_fill(more_likely >= nucleus, 0.0)
        return mass.new_zeros(mass.shape).scatter_(1, tokens, ordered)


def _pick(mass: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (token [rows, 1], total mass [rows, 1]) by inverting the cumulative sum of `mass`
    [rows, V] at the random numbers `uniform` [rows, 1]; token V if the masses are not finite.

    First the block of tokens is looked up, then the token in it: a running sum over the whole
    vocabulary is slow and rounds more.
    """
    import torch

    vocabulary = mass.shape[-1]
    blocks = torch.nn.functional.pad(mass, (0, -vocabulary % BLOCK)).unflatten(-1, (-1, BLOCK))
    block_ends = blocks.sum(-1).cumsum(-1)
    total = block_ends[:, -1:]

    point = _below(uniform * total, total)
    last_block = block_ends.shape[-1] - 1
    block = torch.searchsorted(block_ends, point, right=True).clamp(max=last_block)
    block_start = torch.where(block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), 0.0)

    token_ends = blocks.gather(1, block[..., None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1)
    point_in_block = _below(point - block_start, token_ends[:, -1:])
    token = torch.searchsorted(token_ends, point_in_block, right=True)
    return torch.where(total.isfinite(), block * BLOCK + token, vocabulary), total


def _below(point: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return `point`, or the number just below `end` if rounding has carried it beyond."""
    import torch

    return torch.minimum(point, end.nextafter(torch.zeros_like(end)))


def _random_stream(seed: int, prompt: Sequence[int], number: int) -> np.random.Generator:
    digest = hashlib.sha256(json.dumps([seed, number, list(prompt)]).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
