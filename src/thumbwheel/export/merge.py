"""The trained model as one set of weights: merged in float32 from the pristine base, then cast once
to the precision it is stored in.

Merging in bfloat16, or into a base that was merged before, adds rounding that nobody trained. The
files of the base are copied and the layers that were trained are replaced in the copies, one after
the other, so that memory holds the adapter and one layer, never a model. PEFT itself merges each
layer. Does not live here: the files beside the weights (hf_compat.py), reading the base's
(weights.py).
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
from thumbwheel.export.types import Source
from thumbwheel.export.weights import Place, layout, read, stored_dtype, write
from thumbwheel.training.memory import trim

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

UNMERGEABLE = "Export it with --format adapter"


def merge(source: Source, folder: Path) -> None:
    """Write weights, their index and the config of base and adapter as one model into `folder`, in
    the precision of the base.

    Raises ModelError for an adapter that has no merged form.
    """
    files, places = layout(Path(source.base))
    try:
        model, changed = _outline(source)
        layers = [
            (name, layer, _stored(model, name, layer, places))
            for name, layer in _outermost(model, changed)
        ]
    except _WholeError as reason:
        log.say(f"merging in memory, where the whole model has to fit: {reason}")
        whole(source).to(stored_dtype(source.base)).save_pretrained(folder)  # type: ignore[arg-type] # torch states no type for it
        return
    for file in files:
        shutil.copyfile(Path(source.base) / file, folder / file)
    with log.progress("merging", len(layers), "layers") as advance:
        for name, layer, direct in layers:
            _replace(model, name, layer, direct, places, folder)
            advance()
    model.config.dtype = stored_dtype(source.base)
    model.config.save_pretrained(folder)


def whole(source: Source) -> PreTrainedModel:
    """Base and adapter as one model in float32, in memory; raises ModelError for an adapter that
    has no merged form."""
    model, _ = load_base(source.base, "float32")
    if source.adapter is None:
        return model  # type: ignore[no-any-return]
    peft = load_adapter(model, source.adapter)
    _check_kind(peft)
    try:
        return peft.merge_and_unload(safe_merge=True)  # type: ignore[no-any-return]
    except (ValueError, NotImplementedError) as error:
        raise _unmergeable(error) from error


class _WholeError(Exception):
    """The adapter cannot be merged layer by layer into the files of the base; says why."""


def _outline(source: Source) -> tuple[Any, list[Any]]:
    """(the model, of whose weights only the shapes are in memory; the layers that its adapter
    changes, with the adapter's weights).

    A weight is one zero, seen in the weight's shape: on the meta device PEFT would put the
    adapter's there too. The embeddings are zeros that cost memory once they are written to, as PEFT
    does where it saved them with the adapter. Raises _WholeError.
    """
    import numpy as np
    import torch
    from peft import PeftConfig
    from transformers import AutoModelForCausalLM

    config = load_config(source.base)
    with torch.device("meta"), quiet_transformers():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if type(model).__name__ not in (config.architectures or [type(model).__name__]):
        raise _WholeError(
            f"the base holds a {', '.join(config.architectures)}, of which this is a part"
        )
    if source.adapter is None:
        return model, []
    if PeftConfig.from_pretrained(str(source.adapter)).to_dict().get("bias", "none") != "none":
        raise _WholeError("biases were trained besides the adapter")
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            lazy = id(module) in ends
            zeros = (
                torch.from_numpy(np.zeros(tensor.shape, np.float32))
                if lazy
                else torch.zeros(1).expand(tensor.shape)
            )
            setattr(module, name, torch.nn.Parameter(zeros, requires_grad=False))
    peft = load_adapter(model, source.adapter)
    _check_kind(peft)
    return model, adapter_layers(peft)


def _check_kind(peft: Any) -> None:
    if any(config.is_prompt_learning for config in peft.peft_config.values()):
        raise ModelError(
            "a prompt-learning adapter",
            "its virtual tokens are no weights of the base",
            UNMERGEABLE,
        )


def _outermost(model: Any, changed: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(name, layer) of those in `changed` that are in no other."""
    inside = {id(part) for layer in changed for part in layer.modules() if part is not layer}
    wanted = {id(layer) for layer in changed} - inside
    return ((name, module) for name, module in model.named_modules() if id(module) in wanted)


def _base_of(layer: Any) -> Any:
    return layer.original_module if hasattr(layer, "original_module") else layer.get_base_layer()


def _stored(model: Any, name: str, layer: Any, places: Mapping[str, Place]) -> bool:
    """Whether the files hold the layer's tensors as the model does, and not split or joined; raises
    _WholeError where they do neither."""
    own = {
        f"{name}.{leaf}": tensor.to("meta") for leaf, tensor in _base_of(layer).named_parameters()
    }
    parts = _as_stored(model, own, places)
    for stored, tensor in parts.items():
        if (
            stored not in places
            or places[stored].shape != tuple(tensor.shape)
            or places[stored].dtype is None
        ):
            raise _WholeError(
                f"{stored} is not among the base's weights, or not as floating-point numbers"
            )
    direct = {id(tensor) for tensor in parts.values()} == {id(tensor) for tensor in own.values()}
    if not (direct or _adds(layer) or _stands_alone(layer)):
        raise _WholeError(f"the base stores the weights of {name} in another form")
    return direct


def _adds(layer: Any) -> bool:
    """Whether it adds to its base what does not depend on it."""
    from peft.tuners.lora import layer as kinds

    plain = isinstance(layer, kinds.Linear) and not layer.lora_variant
    return plain or isinstance(layer, kinds.ParamWrapper)


def _stands_alone(layer: Any) -> bool:
    """Whether it is a whole layer that takes the place of its base."""
    from peft.tuners.ln_tuning.layer import LNTuningLayer
    from peft.utils import ModulesToSaveWrapper

    return isinstance(layer, (LNTuningLayer, ModulesToSaveWrapper))


def _as_stored(model: Any, tensors: dict[str, Any], places: Mapping[str, Place]) -> dict[str, Any]:
    """`tensors` under the names, and in the parts, that the files have: experts one by one, some
    without the model's prefix."""
    from transformers.core_model_loading import revert_weight_conversion

    prefix = f"{model.base_model_prefix}."
    found = revert_weight_conversion(model, tensors)
    return {
        key if key in places else key.removeprefix(prefix): tensor for key, tensor in found.items()
    }


def _replace(
    model: Any, name: str, layer: Any, direct: bool, places: Mapping[str, Place], folder: Path
) -> None:
    """Put the merged tensors of one layer into the files of `folder`."""
    import torch

    base = _base_of(layer)
    for leaf, tensor in list(base.named_parameters()) if direct else []:
        (stored,) = _as_stored(model, {f"{name}.{leaf}": tensor}, places)
        tensor.data = read(folder, places[stored]).float()
    merged = {
        f"{name}.{leaf}": tensor.detach() for leaf, tensor in _unloaded(layer).named_parameters()
    }
    for stored, tensor in _as_stored(model, merged, places).items():
        place = places[stored]
        write(
            folder,
            place,
            tensor if direct or _stands_alone(layer) else read(folder, place).float() + tensor,
        )
    for tensor in layer.parameters():
        tensor.data = torch.empty(0)
    trim()


def _unloaded(layer: Any) -> torch.nn.Module:
    """What PEFT leaves in the place of `layer` when it merges."""
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
