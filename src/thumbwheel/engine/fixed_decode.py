"""Decoding whose steps write to the same places, so that a GPU can repeat a recorded one.

A step of a small model is hundreds of short kernels, and a GPU waits for Python to start each.
`Fixed` gives the cache, the mask and the token fixed buffers with room for SPAN tokens. On CUDA the
first step after a change of the batch runs as usual, the second one is recorded as a graph, and
each further one is one call. Elsewhere it computes the same without a graph, which tests compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.decode import Cached, context_of, growing_layer
from thumbwheel.engine.forward import language_model

if TYPE_CHECKING:
    import torch

SPAN = 256
"""Tokens for which the buffers have room. Attention reads the room that is empty, too."""


class Fixed(Cached):
    """A `Cached` batch with fixed buffers.

    Raises TypeError for a model whose layers do not all keep the whole past, or that counts
    positions itself.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], share: bool = True) -> None:
        super().__init__(model, prompts, share)
        if not self._positions:
            raise TypeError("its forward takes no positions")
        keeps_all = all(isinstance(layer, growing_layer()) for layer in self._cache.layers)
        # GPT-Neo counts its window back from the end of the buffers, whatever the mask says
        if not keeps_all or hasattr(language_model(model).config, "window_size"):
            raise TypeError("it has layers that forget")
        self._step: _Step | None = None

    def select(self, rows: Sequence[int]) -> None:
        self._release()
        super().select(rows)

    def advance(self, tokens: torch.Tensor) -> None:
        if self._step is None or self._length == self._step.end:
            self._release()
            self._step = _Step(self)
        self.logits = self._step.run(tokens)
        self._length += 1
        self._last_positions = self._step.positions

    def _release(self) -> None:
        """Let the cache grow again, and the mask cover what was written."""
        if self._step is None:
            return
        self._step = None
        for layer in self._cache.layers:
            layer.release(self._length)
        missing = self._length - self._mask.shape[1]
        if missing > 0:
            self._mask = _appended(self._mask, missing)


class _Step:
    """One step of a batch: the buffers that it reads and writes, and its graph."""

    def __init__(self, state: Fixed) -> None:
        import torch

        self._model, self._cache = state._model, state._cache
        self._last_only = state._last_only
        self._highest = context_of(state._model) - 1
        self.end = state._length + SPAN
        device = state._mask.device
        dtype = next(state._model.parameters()).dtype

        self._tokens = torch.zeros(len(state._mask), 1, dtype=torch.long, device=device)
        self.positions = state._last_positions.clone()
        self._next = torch.tensor([state._length], device=device)
        # added to the scores, as every implementation of attention takes it
        hidden = torch.finfo(dtype).min
        self._mask = torch.full((len(state._mask), 1, 1, self.end), hidden, dtype=dtype).to(device)
        written = state._mask[:, : state._length].bool()[:, None, None]
        self._mask[..., : state._length].masked_fill_(written, 0.0)

        for layer in self._cache.layers:
            layer.fix(self.end, self._next)
        self._logits: torch.Tensor | None = None
        self._graph: Any = None
        self._ran = False

    def run(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append one token [rows] to every row; return the logits [rows, V] of the next one."""
        self._tokens.copy_(tokens[:, None])
        if self._tokens.device.type != "cuda" or not self._ran:
            self._compute()
            self._ran = True
        elif self._graph is None:
            self._record()
        else:
            self._graph.replay()
        assert self._logits is not None  # noqa: S101 - each way above computes them
        return self._logits.clone()

    def _compute(self) -> None:
        self._mask.index_fill_(3, self._next, 0.0)
        # a row that has ended goes on counting, beyond the positions that a model has learned
        self.positions.add_(1).clamp_(max=self._highest)
        output = self._model(
            input_ids=self._tokens,
            attention_mask=self._mask,
            position_ids=self.positions,
            past_key_values=self._cache,
            use_cache=True,
            **self._last_only,
        )
        self._logits = output.logits[:, -1]
        self._next.add_(1)

    def _record(self) -> None:
        """Record a step, which computes nothing, and replay it once."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        graph.replay()
        self._graph = graph


def _appended(mask: torch.Tensor, count: int) -> torch.Tensor:
    import torch

    return torch.cat([mask, mask.new_ones(len(mask), count)], 1)
