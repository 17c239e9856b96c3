"""A model in the middle of decoding: the logits of the next token of every row, and how rows
multiply, end and grow.

Lives here: the key-value cache (one prefill of what all prompts open with, one of the rest of each
prompt, then forked) and the plain recomputation for models whose cache does not bear that, which a
trial on the model itself decides. Does not live here: choosing tokens (sample_token.py), when an answer
ends (sampler.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from thumbwheel.engine.capability import tolerance
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
        """Go on with these rows, in this order; a row may come several times."""

    def advance(self, tokens: torch.Tensor) -> None:
        """Append one token [rows] to every row."""


class Cached:
    """Prompts of different lengths (never empty) as one left-padded batch with a key-value cache."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], share: bool = True) -> None:
        import torch

        self._model = model
        accepted = inspect.signature(language_model(model).forward).parameters
        self._positions = "position_ids" in accepted
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._cache = _empty_cache(language_model(model).config)
        width, device = max(map(len, prompts)), next(model.parameters()).device
        padding = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor(
            [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)],
            device=device,
        )
        mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in padding], device=device)
        shared = (
            _opening(prompts)
            if share and all(isinstance(layer, _growing()) for layer in self._cache.layers)
            else 0
        )
        if shared:
            self._padding, self._mask = [0], mask.new_ones(1, shared)
            self._forward(
                ids.new_tensor([list(prompts[0][:shared])]),
                torch.arange(shared, device=device)[None],
            )
            for layer in self._cache.layers:
                layer.shift(padding)
        self._padding, self._mask = padding, mask
        with _dense_head(model):
            self._forward(ids[:, shared:], (mask.cumsum(1) - 1).clamp(min=0)[:, shared:])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        placed = {"position_ids": positions} if self._positions else {}
        mask = self._mask if any(self._padding) else None
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=self._cache,
            use_cache=True,
            **placed,
            **self._last_only,
        )
        self.logits = out.logits[:, -1]

    def select(self, rows: Sequence[int]) -> None:
        """Rows of the cache are copied."""
        import torch

        index = torch.tensor(rows, device=self._mask.device)
        self._cache.reorder_cache(index)
        self._mask, self.logits = self._mask[index], self.logits[index]
        self._padding = [self._padding[row] for row in rows]

    def advance(self, tokens: torch.Tensor) -> None:
        """One step with the cache."""
        import torch

        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], 1)
        # a row that has ended waits in the batch and goes on counting, beyond the places that a
        # model has learned
        self._forward(
            tokens[:, None],
            (self._mask.sum(1, keepdim=True) - 1).clamp(max=context_of(self._model) - 1),
        )


@contextmanager
def _dense_head(model: Any) -> Iterator[None]:
    """Bring the last rows of several prompts together: of rows that lie apart torch's product
    copies the whole vocabulary once a row."""
    head = language_model(model).get_output_embeddings()
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda _, given: (given[0].contiguous(), *given[1:]))
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
        rows = [torch.tensor([ids], device=device) for ids in self._rows]
        self.logits = torch.cat(
            [self._model(input_ids=row, use_cache=False).logits[:, -1] for row in rows]
        )

    def select(self, rows: Sequence[int]) -> None:
        """Rows of ids are copied."""
        self._rows, self.logits = [list(self._rows[row]) for row in rows], self.logits[list(rows)]

    def advance(self, tokens: torch.Tensor) -> None:
        """Everything once more."""
        for row, token in zip(self._rows, tokens.tolist(), strict=True):
            row.append(token)
        self._forward()


def choose(model: Any) -> tuple[Callable[..., Decoding], str]:
    """How `model` (in evaluation mode) decodes, and why it cannot use its cache, where it cannot.

    On a tiny batch, rows of different lengths are forked, dropped and continued, and have to give
    what the plain computation gives; once more after an opening that all of them share, which is
    not shared where that fails.
    """
    size = int(language_model(model).config.get_text_config().vocab_size)
    ids = [(7 + 31 * at) % size for at in range(12 + SHARE_AT_LEAST)]
    if reason := _differs(Cached, model, ids[:12], []):
        return Recomputed, reason
    return partial(Cached, share=not _differs(Cached, model, ids[:12], ids[12:])), ""


def _differs(kind: Callable[..., Decoding], model: Any, ids: list[int], opening: list[int]) -> str:
    found, expected = (_trial(one, model, ids, opening) for one in (kind, Recomputed))
    if isinstance(found, str):
        return found
    assert not isinstance(expected, str), expected  # noqa: S101 - a model that cannot run at all
    gap = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    return (
        ""
        if gap <= tolerance(expected)
        else f"a trial of its cache differed from the plain computation by {gap:.1e} of the "
        "largest "
        "value"
    )


def _trial(
    kind: Callable[..., Decoding], model: Any, ids: list[int], opening: list[int]
) -> torch.Tensor | str:
    import torch

    try:
        with torch.inference_mode():
            state = kind(model, [opening + ids[:5], opening + ids[5:7]])
            state.select([1, 0, 1])
            state.advance(torch.tensor(ids[7:10], device=state.logits.device))
            state.select([2, 1])
            state.advance(torch.tensor(ids[10:], device=state.logits.device))
            return state.logits
    except (
        TypeError,
        ValueError,
        RuntimeError,
        NotImplementedError,
        KeyError,
        AttributeError,
        IndexError,
    ) as error:
        return f"a trial of its cache failed ({type(error).__name__}: {str(error)[:120]})"


def context_of(model: Any) -> int:
    """Longest sequence of the model; unlimited where its configuration names none."""
    return int(
        getattr(language_model(model).config.get_text_config(), "max_position_embeddings", None)
        or 1 << 40
    )


def _opening(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all of several prompts open with, leaving each at least one; 0 where it is not
    worth a pass of its own."""
    common = min(
        min(common_prefix_length(prompts[0], prompt), len(prompt) - 1) for prompt in prompts
    )
    return common if common >= SHARE_AT_LEAST and len(prompts) > 1 else 0


def _empty_cache(config: Any) -> Any:
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    made = DynamicCache(config=config)
    made.layers = [_growing()() if type(layer) is DynamicLayer else layer for layer in made.layers]
    return made


@cache
def _growing() -> Any:
    """The class of a cache layer; made on first use because transformers may not be imported with
    this module."""
    from transformers.cache_utils import DynamicLayer

    class Growing(DynamicLayer):
        """Full attention's keys and values [rows, heads, length, size], written in place:
        concatenation would copy them every step."""

        keys: torch.Tensor  # type: ignore[assignment] # None before the first update only
        values: torch.Tensor  # type: ignore[assignment]
        _room: tuple[torch.Tensor, torch.Tensor] | None = None

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
                self.keys, self.values = key_states, value_states
                return self.keys, self.values
            start = self.keys.shape[-2]
            stop = start + key_states.shape[-2]
            if self._room is None or self._room[0].shape[-2] < stop:
                self._room = _roomy(self.keys, stop), _roomy(self.values, stop)
            for stored, new in zip(self._room, (key_states, value_states), strict=True):
                stored[..., start:stop, :] = new
            self.keys, self.values = (stored[..., :stop, :] for stored in self._room)
            return self.keys, self.values

        def shift(self, padding: Sequence[int]) -> None:
            """The one row becomes a row for each of `padding`, so much further right, cut to its
            length; what comes in is masked."""
            import torch

            length = self.keys.shape[-2]
            from_ = (
                torch.arange(length, device=self.keys.device)
                - torch.tensor(padding, device=self.keys.device)[:, None]
            )
            self.keys, self.values = (
                one[0][:, from_.clamp(min=0)].transpose(0, 1).contiguous()
                for one in (self.keys, self.values)
            )

        def reorder_cache(self, beam_idx: torch.Tensor) -> None:
            length = self.keys.shape[-2]
            self._room = _roomy(self.keys, length, beam_idx), _roomy(self.values, length, beam_idx)
            self.keys, self.values = (stored[..., :length, :] for stored in self._room)

    return Growing


def _roomy(given: torch.Tensor, length: int, rows: torch.Tensor | None = None) -> torch.Tensor:
    """A copy of `given` [rows, heads, n, size], or of some of its rows, with room for `length` +
    ROOM tokens."""
    import torch

    count = len(given) if rows is None else len(rows)
    made = given.new_empty(count, given.shape[1], length + ROOM, given.shape[3])
    kept = made[..., : given.shape[-2], :]
    if rows is None:
        kept.copy_(given)
    else:
        torch.index_select(given, 0, rows, out=kept)
    return made
