"""Merges an adapter into its base: in float32 from the pristine base, then cast once to the stored
precision.

Merging in bfloat16, or into a base that was merged before, adds rounding errors. The files of the
base are copied, and the trained layers are overwritten in the copies one after the other, so that
memory holds the adapter and one layer, never the model. PEFT itself merges each layer. The files
beside the weights are written in hf_compat.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_adapter, load_base, load_config, quiet_transformers
from thumbwheel.engine.lora import adapter_layers
from thumbwheel.export.types import ExportSource
from thumbwheel.export.weights import Slot, layout, read, stored_dtype, write
from thumbwheel.training.memory import trim

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

UNMERGEABLE = "Export it with --format adapter"


def merge(source: ExportSource, folder: Path) -> None:
    """Write weights, their index and the config of base and adapter as one model into `folder`, in
    the precision of the base.

    Raises ModelError for an adapter that has no merged form.
    """
    files, slots = layout(Path(source.base))
    try:
        model, changed = _skeleton(source)
        layers = []
        for name, layer in _outermost(model, changed):
            layers.append((name, layer, _stored_directly(model, name, layer, slots)))
    except _NeedsWholeModelError as reason:
        log.say(f"merging in memory, where the whole model has to fit: {reason}")
        whole(source).to(stored_dtype(source.base)).save_pretrained(folder)  # type: ignore[arg-type] # torch states no type for it
        return
    for file in files:
        shutil.copyfile(Path(source.base) / file, folder / file)
    with log.progress("merging", len(layers), "layers") as advance:
        for name, layer, direct in layers:
            _replace(model, name, layer, direct, slots, folder)
            advance()
    model.config.dtype = stored_dtype(source.base)
    model.config.save_pretrained(folder)


def whole(source: ExportSource) -> PreTrainedModel:
    """Load base and adapter as one model in float32, in memory. Raises ModelError for an adapter
    that has no merged form."""
    model, _ = load_base(source.base, "float32")
    if source.adapter is None:
        return model  # type: ignore[no-any-return]
    peft = load_adapter(model, source.adapter)
    _check_kind(peft)
    try:
        return peft.merge_and_unload(safe_merge=True)  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError) as error:
        raise _unmergeable(error) from error


class _NeedsWholeModelError(Exception):
    """Why the adapter cannot be merged into the files of the base layer by layer."""


def _skeleton(source: ExportSource) -> tuple[Any, list[Any]]:
    """Return (the model without memory for its weights; the layers that its adapter changes, with
    the adapter's weights).

    A weight is a single zero, expanded to the weight's shape: on the meta device PEFT would put the
    adapter's weights there too. The embeddings are zeros that take memory only when written to,
    which PEFT does where it saved them with the adapter. Raises _NeedsWholeModelError.
    """
    import numpy as np
    import torch
    from peft import PeftConfig
    from transformers import AutoModelForCausalLM

    config = load_config(source.base)
    with torch.device("meta"), quiet_transformers():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if type(model).__name__ not in (config.architectures or [type(model).__name__]):
        raise _NeedsWholeModelError(
            f"the base holds a {', '.join(config.architectures)}, of which this is a part"
        )
    if source.adapter is None:
        return model, []
    if PeftConfig.from_pretrained(str(source.adapter)).to_dict().get("bias", "none") != "none":
        raise _NeedsWholeModelError("biases were trained besides the adapter")
    embeddings = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            if id(module) in embeddings:
                zeros = torch.from_numpy(np.zeros(tensor.shape, np.float32))
            else:
                zeros = torch.zeros(1).expand(tensor.shape)
            setattr(module, name, torch.nn.Parameter(zeros, requires_grad=False))
    peft = load_adapter(model, source.adapter)
    _check_kind(peft)
    return model, adapter_layers(peft)


def _check_kind(peft: Any) -> None:
    if any(config.is_prompt_learning for config in peft.peft_config.values()):
        raise ModelError(
            "a prompt-learning adapter",
            "its virtual tokens are not weights of the base",
            UNMERGEABLE,
        )


def _outermost(model: Any, changed: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Return an iterator over (name, layer) of the layers in `changed` that are not part of
    another."""
    inside = {id(part) for layer in changed for part in layer.modules() if part is not layer}
    wanted = {id(layer) for layer in changed} - inside
    return ((name, module) for name, module in model.named_modules() if id(module) in wanted)


def _base_of(layer: Any) -> Any:
    return layer.original_module if hasattr(layer, "original_module") else layer.get_base_layer()


def _stored_directly(model: Any, name: str, layer: Any, slots: Mapping[str, Slot]) -> bool:
    """Return whether the files hold the layer's tensors in the model's form, neither split nor
    joined. Raises _NeedsWholeModelError if they cannot be found."""
    parameters = _base_of(layer).named_parameters()
    tensors = {f"{name}.{leaf}": tensor.to("meta") for leaf, tensor in parameters}
    parts = _as_stored(model, tensors, slots)
    for stored, tensor in parts.items():
        if (
            stored not in slots
            or slots[stored].shape != tuple(tensor.shape)
            or slots[stored].dtype is None
        ):
            raise _NeedsWholeModelError(
                f"{stored} is not among the base's weights, or not as floating-point numbers"
            )
    stored_ids = {id(tensor) for tensor in parts.values()}
    direct = stored_ids == {id(tensor) for tensor in tensors.values()}
    if not (direct or _is_additive(layer) or _replaces_base(layer)):
        raise _NeedsWholeModelError(f"the base stores the weights of {name} in another form")
    return direct


def _is_additive(layer: Any) -> bool:
    """Return whether the layer adds to its base a term that does not depend on the base."""
    from peft.tuners.lora import layer as kinds

    plain = isinstance(layer, kinds.Linear) and not layer.lora_variant
    return plain or isinstance(layer, kinds.ParamWrapper)


def _replaces_base(layer: Any) -> bool:
    """Return whether the layer as a whole replaces its base."""
    from peft.tuners.ln_tuning.layer import LNTuningLayer
    from peft.utils import ModulesToSaveWrapper

    return isinstance(layer, (LNTuningLayer, ModulesToSaveWrapper))


def _as_stored(model: Any, tensors: dict[str, Any], slots: Mapping[str, Slot]) -> dict[str, Any]:
    """Return `tensors` under the names and in the parts of the files: experts one by one, some
    names without the model's prefix."""
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{model.base_model_prefix}."
    stored = {}
    for name, tensor in revert_weight_conversion(model, tensors).items():
        stored[name if name in slots else name.removeprefix(prefix)] = tensor
    return stored


def _replace(
    model: Any, name: str, layer: Any, direct: bool, slots: Mapping[str, Slot], folder: Path
) -> None:
    """Write the merged tensors of one layer into the files of `folder`.

    Where the files hold the layer's tensors directly, the base's are loaded before PEFT merges.
    Else PEFT merges into zeros, and the result is added to the parts in the files.
    """
    import torch

    if direct:
        for leaf, tensor in list(_base_of(layer).named_parameters()):
            (stored,) = _as_stored(model, {f"{name}.{leaf}": tensor}, slots)
            tensor.data = read(folder, slots[stored]).float()
    parameters = _unloaded(layer).named_parameters()
    merged = {f"{name}.{leaf}": tensor.detach() for leaf, tensor in parameters}
    for stored, tensor in _as_stored(model, merged, slots).items():
        slot = slots[stored]
        if not direct and not _replaces_base(layer):
            tensor = read(folder, slot).float() + tensor
        write(folder, slot, tensor)
    # free its memory before the next layer
    for tensor in layer.parameters():
        tensor.data = torch.empty(0)
    trim()


def _unloaded(layer: Any) -> torch.nn.Module:
    """Merge `layer`, and return the module that PEFT leaves in its place. Raises ModelError if it
    cannot be merged."""
    try:
        if hasattr(layer, "unload_and_optionally_merge_module"):
            merged: torch.nn.Module = layer.unload_and_optionally_merge_module(
                merge=True, safe_merge=True, adapter_names=None
            )
            return merged
        layer.merge(safe_merge=True)
    except (ValueError, NotImplementedError) as error:
        raise _unmergeable(error) from error
    return layer.get_base_layer()  # type: ignore[no-any-return]


def _unmergeable(error: Exception) -> ModelError:
    return ModelError("the adapter", f"it cannot be merged ({error})", UNMERGEABLE)
