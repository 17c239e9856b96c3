"""A model in the middle of decoding: the logits of the next token of every row, and how rows
multiply, end and grow.

`Cached` decodes with a key-value cache: one prefill of the prefix that all prompts share, one of
the rest of each prompt, then forks; `Fixed` (fixed_decode.py) is the same for a GPU. `Recomputed`
is for models whose cache does not bear that. Which one it is, decode_trial.py finds out; choosing
tokens is sample_token.py's, when an answer ends is sampler.py's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from thumbwheel.engine.forward import language_model
from thumbwheel.engine.trie import common_prefix_length

if TYPE_CHECKING:
    import torch

SHARE_AT_LEAST = 16
"""Tokens of an opening that all prompts share, from which on it is run once for all of them."""
ROOM = 64
"""Tokens for which a cache has room when it is copied; it is copied again that many steps later."""


class Decoding(Protocol):
    """`logits` [rows, V] of the next token; one row a prompt at first."""

    logits: torch.Tensor

    def select(self, rows: Sequence[int]) -> None:
        """Continue with these rows, in this order; a row may come several times."""

    def advance(self, tokens: torch.Tensor) -> None:
        """Append one token [rows] to every row."""


class Cached:
    """Non-empty prompts of different lengths as one left-padded batch with a key-value cache."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], share: bool = True) -> None:
        import torch

        self._model = model
        accepted = inspect.signature(language_model(model).forward).parameters
        self._positions = "position_ids" in accepted
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._cache = _empty_cache(language_model(model).config)
        device = next(model.parameters()).device

        # one left-padded batch
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        padded = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        ids = torch.tensor(padded, device=device)
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=device)

        # the prefix that all prompts share is run once, and its cache copied to every row
        keeps_all = all(isinstance(layer, growing_layer()) for layer in self._cache.layers)
        shared = _shared_length(prompts) if share and keeps_all else 0
        if shared:
            self._padding, self._mask, self._length = [0], mask.new_ones(1, shared), shared
            prefix = ids.new_tensor([list(prompts[0][:shared])])
            self._forward(prefix, torch.arange(shared, device=device)[None])
            for layer in self._cache.layers:
                layer.shift(padding)

        # then the rest of each prompt
        self._padding, self._mask, self._length = padding, mask, width
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        self._last_positions = positions[:, -1:]
        with _dense_head(model):
            self._forward(ids[:, shared:], positions[:, shared:])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        position_ids = {"position_ids": positions} if self._positions else {}
        mask = self._mask[:, : self._length] if any(self._padding) else None
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            **position_ids,
            **self._last_only,
        )
        self.logits = output.logits[:, -1]

    def select(self, rows: Sequence[int]) -> None:
        import torch

        index = torch.tensor(rows, device=self._mask.device)
        self._cache.reorder_cache(index)
        self._mask, self.logits = self._mask[index], self.logits[index]
        self._last_positions = self._last_positions[index]
        self._padding = [self._padding[row] for row in rows]

    def advance(self, tokens: torch.Tensor) -> None:
        import torch

        # the mask has room for tokens to come, as the cache has
        self._length += 1
        if self._length > self._mask.shape[1]:
            room = self._mask.new_ones(len(self._mask), ROOM)
            self._mask = torch.cat([self._mask, room], 1)
        # a row that has ended waits in the batch and goes on counting, beyond the positions that a
        # model has learned
        self._last_positions = (self._last_positions + 1).clamp(max=context_of(self._model) - 1)
        self._forward(tokens[:, None], self._last_positions)


@contextmanager
def _dense_head(model: Any) -> Iterator[None]:
    """Make the last hidden states of several prompts contiguous before the head. With scattered
    rows, torch's product copies the whole vocabulary once per row."""
    head = language_model(model).get_output_embeddings()
    if head is None:
        yield
        return

    def contiguous(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs[0].contiguous(), *inputs[1:]

    hook = head.register_forward_pre_hook(contiguous)
    try:
        yield
    finally:
        hook.remove()


class Recomputed:
    """Every row by itself and from its beginning at every step: slow, and right for every model."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        self._model, self._rows = model, [list(prompt) for prompt in prompts]
        self._forward()

    def _forward(self) -> None:
        import torch

        device = next(self._model.parameters()).device
        logits = []
        for ids in self._rows:
            row = torch.tensor([ids], device=device)
            logits.append(self._model(input_ids=row, use_cache=False).logits[:, -1])
        self.logits = torch.cat(logits)

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [list(self._rows[row]) for row in rows]
        self.logits = self.logits[list(rows)]

    def advance(self, tokens: torch.Tensor) -> None:
        for row, token in zip(self._rows, tokens.tolist(), strict=True):
            row.append(token)
        self._forward()


def context_of(model: Any) -> int:
    """Return the longest sequence of the model; practically unlimited if its configuration names
    none."""
    config = language_model(model).config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 40)


def _shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix of several prompts, leaving each at least one token; 0
    if it is not worth a pass of its own."""
    if len(prompts) == 1:
        return 0
    common = min(len(prompt) - 1 for prompt in prompts)
    for prompt in prompts:
        common = min(common, common_prefix_length(prompts[0], prompt))
    return common if common >= SHARE_AT_LEAST else 0


def _empty_cache(config: Any) -> Any:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    cache = DynamicCache(config=config)
    growing = growing_layer()
    cache.layers = [growing() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@cache
def growing_layer() -> Any:
    """Return the class of a cache layer, created on first use because transformers may not be
    imported with this module."""
    from transformers.cache_utils import DynamicLayer

    class Growing(DynamicLayer):
        """Full attention's keys and values [rows, heads, length, size], written in place:
        concatenation would copy them every step."""

        keys: torch.Tensor  # type: ignore[assignment] # None before the first update only
        values: torch.Tensor  # type: ignore[assignment]
        _room: tuple[torch.Tensor, torch.Tensor] | None = None
        _position: torch.Tensor | None = None
        """[1] the position of the next token, while the buffers are fixed."""

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self.keys, self.values = key_states, value_states
                return self.keys, self.values
            if self._position is not None:
                self.keys.index_copy_(2, self._position, key_states)
                self.values.index_copy_(2, self._position, value_states)
                return self.keys, self.values
            start = self.keys.shape[-2]
            stop = start + key_states.shape[-2]
            if self._room is None or self._room[0].shape[-2] < stop:
                length = stop + ROOM
                self._room = _with_room(self.keys, length), _with_room(self.values, length)
            for stored, new in zip(self._room, (key_states, value_states), strict=True):
                stored[..., start:stop, :] = new
            self.keys, self.values = (stored[..., :stop, :] for stored in self._room)
            return self.keys, self.values

        def fix(self, length: int, position: torch.Tensor) -> None:
            """Give keys and values buffers of `length` tokens; each update writes one token at
            `position` [1] and returns the buffers."""
            # what is not written yet is masked, and so must be finite
            self.keys = _with_room(self.keys, length, is_zero=True)
            self.values = _with_room(self.values, length, is_zero=True)
            self._room, self._position = None, position

        def release(self, length: int) -> None:
            """Grow again from the first `length` tokens."""
            self._room, self._position = (self.keys, self.values), None
            self.keys, self.values = (stored[..., :length, :] for stored in self._room)

        def shift(self, padding: Sequence[int]) -> None:
            """Copy the one row to a row for each of `padding`, shifted right by that many tokens
            and cut to the same length. The padding on the left is masked."""
            import torch

            length, device = self.keys.shape[-2], self.keys.device
            columns = torch.arange(length, device=device)
            source = (columns - torch.tensor(padding, device=device)[:, None]).clamp(min=0)
            self.keys = self.keys[0][:, source].transpose(0, 1).contiguous()
            self.values = self.values[0][:, source].transpose(0, 1).contiguous()

        def reorder_cache(self, beam_idx: torch.Tensor) -> None:
            length = self.keys.shape[-2]
            keys = _with_room(self.keys, length + ROOM, beam_idx)
            values = _with_room(self.values, length + ROOM, beam_idx)
            self._room = keys, values
            self.keys, self.values = keys[..., :length, :], values[..., :length, :]

    return Growing


def _with_room(
    states: torch.Tensor, length: int, rows: torch.Tensor | None = None, *, is_zero: bool = False
) -> torch.Tensor:
    """Copy `states` [rows, heads, n, size], or some of its rows, with room for `length` tokens,
    which is zero where `is_zero`."""
    import torch

    count = len(states) if rows is None else len(rows)
    shape = (count, states.shape[1], length, states.shape[3])
    copy = states.new_zeros(shape) if is_zero else states.new_empty(shape)
    filled = copy[..., : states.shape[-2], :]
    if rows is None:
        filled.copy_(states)
    else:
        torch.index_select(states, 0, rows, out=filled)
    return copy
