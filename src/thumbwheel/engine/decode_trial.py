"""How a model decodes: a trial on the model itself decides (`choose`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.capability import FAILED, tolerance
from thumbwheel.engine.decode import SHARE_AT_LEAST, Cached, Decoding, Recomputed
from thumbwheel.engine.fixed_decode import Fixed
from thumbwheel.engine.forward import language_model

if TYPE_CHECKING:
    import torch

FIXED_ON = frozenset({"cuda"})
"""Kinds of device on which a step is repeated from fixed buffers."""
TRIAL = 18
"""Tokens of the trial that decides how a model decodes."""


def choose(model: Any) -> tuple[Callable[..., Decoding], str]:
    """Choose how `model` (in evaluation mode) decodes; return that, and why it cannot use its
    cache, or an empty text.

    The trial forks, drops and continues rows of different lengths on a tiny batch, and must give
    the same as the plain computation, with fixed buffers, too, where those are used. Another trial
    follows a common prefix; if it fails, prefixes are not shared.
    """
    vocabulary = int(language_model(model).config.get_text_config().vocab_size)
    ids = [(7 + 31 * index) % vocabulary for index in range(TRIAL + SHARE_AT_LEAST)]
    trial, prefix = ids[:TRIAL], ids[TRIAL:]
    if reason := _difference(Cached, model, trial, []):
        return Recomputed, reason
    kind: Callable[..., Decoding] = Cached
    device = next(model.parameters()).device.type
    if device in FIXED_ON and not _difference(Fixed, model, trial, []):
        kind = Fixed
    shares = not _difference(kind, model, trial, prefix)
    return partial(kind, share=shares), ""


def _difference(
    kind: Callable[..., Decoding], model: Any, ids: list[int], prefix: list[int]
) -> str:
    """Describe how decoding by `kind` differed from the plain computation; empty if it did not."""
    logits = _trial(kind, model, ids, prefix)
    if isinstance(logits, str):
        return logits
    expected = _trial(Recomputed, model, ids, prefix)
    assert not isinstance(expected, str), expected  # noqa: S101 - a model that cannot run at all
    gap = float((logits - expected).abs().max()) / max(float(expected.abs().max()), 1e-6)
    if gap <= tolerance(expected):
        return ""
    return (
        f"a trial of its cache differed from the plain computation by {gap:.1e} of the largest "
        "value"
    )


def _trial(
    kind: Callable[..., Decoding], model: Any, ids: list[int], prefix: list[int]
) -> torch.Tensor | str:
    """Return the logits after forking, dropping and continuing rows, or why that failed."""
    import torch

    try:
        with torch.inference_mode():
            state = kind(model, [prefix + ids[:5], prefix + ids[5:7]])
            state.select([1, 0, 1])
            state.advance(torch.tensor(ids[7:10], device=state.logits.device))
            state.select([2, 1])
            for start in range(10, TRIAL, 2):  # a graph is recorded, and replayed
                tokens = torch.tensor(ids[start : start + 2], device=state.logits.device)
                state.advance(tokens)
            return state.logits
    except FAILED as error:
        return f"a trial of its cache failed ({type(error).__name__}: {str(error)[:120]})"
