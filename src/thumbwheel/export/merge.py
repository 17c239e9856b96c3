"""The trained model as one set of weights: merged in float32 from the pristine base, then cast once to the base's precision.

Merging in bfloat16, or into a base that was merged before, adds rounding that nobody trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_adapter, load_base
from thumbwheel.export.types import Source

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def merged(source: Source) -> PreTrainedModel:
    """Base and adapter as one model in the base's dtype; raises ModelError for an adapter that has no merged form."""
    dtype = stored_dtype(source.base)
    model, _ = load_base(source.base, "float32")
    if source.adapter is not None:
        peft = load_adapter(model, source.adapter)
        if any(config.is_prompt_learning for config in peft.peft_config.values()):
            raise ModelError(
                "a prompt-learning adapter", "its virtual tokens are no weights of the base", "Export it with --format adapter"
            )
        model = _merge(peft)
    return model.to(dtype)  # type: ignore[no-any-return]


def _merge(peft: Any) -> Any:
    try:
        return peft.merge_and_unload(safe_merge=True)
    except (ValueError, NotImplementedError) as error:
        raise ModelError("the adapter", f"it cannot be merged ({error})", "Export it with --format adapter") from error


def stored_dtype(base: str) -> torch.dtype:
    """The precision that the base's own configuration states; float32 where it states none."""
    import torch
    from transformers import AutoConfig

    stated = getattr(AutoConfig.from_pretrained(base).get_text_config(), "dtype", None)
    return stated if isinstance(stated, torch.dtype) else torch.float32
