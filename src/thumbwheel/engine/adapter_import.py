"""Adapters that were trained with another tool, in the form in which ours are stored.

PEFT folders of Unsloth, Axolotl, TRL and LLaMA-Factory differ in names of tensors, in how they say
which modules are adapted, and in what they save beside the adapter. Here the tensors decide: each
has to belong to a layer of the base and to fit it. The configuration is written anew from them, so
no expression of a stranger is evaluated later. A feature that would be lost is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.adapted_template import stored_template
from thumbwheel.engine.adapter_check import CONFIG, WEIGHTS, check_sizes, read_config
from thumbwheel.engine.load import load_config, load_tokenizer
from thumbwheel.models.base import Base, require_regular_files

if TYPE_CHECKING:
    import torch

REFUSED = {
    "layer_replication": "it repeats layers of the base",
    "trainable_token_indices": "it trains single tokens of the embedding",
    "target_parameters": "it adapts parameters that are no layers (experts)",
    "lora_bias": "its matrices have biases",
    "use_qalora": "it is a QA-LoRA",
    "use_bdlora": "it is a block-diagonal LoRA",
    "arrow_config": "it routes between several adapters",
    "alora_invocation_tokens": "it begins at certain tokens only (aLoRA)",
    "velora_config": "it is a VeLoRA",
    "kasa_config": "it is a KaSA",
    "monteclora_config": "it samples its weights",
    "megatron_config": "it was made for Megatron's layers",
}
"""Settings of PEFT that change what an adapter computes, or what it needs of the base, and that are
not honoured here -> why an adapter with them is refused."""
CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga", "eva_residual")
"""Beginnings of `init_lora_weights` that take a part out of the base's weights."""
PREFIX = "base_model.model."
WRAPPERS = re.compile(r"_fsdp_wrapped_module\.|_orig_mod\.|^module\.")
"""Parts of names that other ways to wrap a model leave."""
PART = re.compile(r"(.+)\.lora_(A|B|magnitude_vector)(?:\.default)?(?:\.weight)?")
EMBEDDING = re.compile(r".+\.lora_embedding_[AB](?:\.default)?")
NESTED = ("model.language_model.", "language_model.model.", "language_model.")
"""How models with pictures call the text model that is trained here as `model.`."""
LARGEST_TEMPLATE = 1 << 20

Tensors = dict[str, dict[str, "torch.Tensor"]]
"""Module -> part of it -> tensor."""


@dataclass(frozen=True)
class ImportedAdapter:
    """What was found in the folder of an adapter."""

    modules: int
    """Layers that it adapts."""
    ranks: tuple[int, ...]
    """All that occur."""
    kind: str
    """LoRA, rsLoRA or DoRA."""
    saved: tuple[str, ...]
    """Modules of which it has a whole copy."""
    has_template: bool
    """Whether it brings the chat template that it was trained with."""


def import_adapter(source: Path, base: Base, target: Path) -> ImportedAdapter:
    """Write the adapter of the folder `source` into the empty folder `target`, for `base`.

    Raises ModelError for a folder without an adapter, for one that does not fit the base, and for
    one with features that are not supported here.
    """
    from safetensors.torch import save_file

    _check_files(source)
    config = read_config(source)
    check_sizes(source, config)
    _check_features(source, config)
    layers = _Layers(base)
    adapter = _read(source, config, layers)
    _check_tokens(source, base)
    save_file(adapter.tensors, target / WEIGHTS, metadata={"format": "pt"})
    written = _written_config(source, config, adapter, layers, base)
    (target / CONFIG).write_text(
        json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    template = stored_template(source)
    if template is not None and len(template) <= LARGEST_TEMPLATE:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    kind = "DoRA" if written["use_dora"] else "rsLoRA" if written["use_rslora"] else "LoRA"
    return ImportedAdapter(
        modules=len(adapter.ranks),
        ranks=tuple(sorted(set(adapter.ranks.values()))),
        kind=kind,
        saved=adapter.saved,
        has_template=template is not None,
    )


def _refusal(source: Path, why: str, fix: str = "") -> ModelError:
    advice = "Merge it with the tool that made it, and give the result as --base"
    return ModelError(f"adapter {str(source)!r}", why, fix or advice)


def _check_files(source: Path) -> None:
    if not source.is_dir():
        fix = "Name the folder that PEFT's save_pretrained wrote"
        raise _refusal(source, "there is no such folder", fix)
    require_regular_files(source)
    if (source / WEIGHTS).is_file() and (source / CONFIG).is_file():
        return
    why = f"it has no {WEIGHTS}" if (source / CONFIG).is_file() else f"it has no {CONFIG}"
    fix = "Name the folder that PEFT's save_pretrained wrote, with safetensors"
    if (source / "adapter_model.bin").is_file():
        why += ", and other weight files can run code when they are read"
    raise _refusal(source, why, fix)


def _check_features(source: Path, config: Mapping[str, Any]) -> None:
    """Raise ModelError for an adapter that would compute something different here."""
    import dataclasses

    from peft import LoraConfig

    if config.get("peft_type") != "LORA":
        raise _refusal(source, f"it is of the kind {config.get('peft_type')!r:.40}, not LoRA")
    for name, why in REFUSED.items():
        if config.get(name):
            raise _refusal(source, why)
    if config.get("bias", "none") != "none":
        raise _refusal(source, f"it trained biases of the base ({config.get('bias')!r:.40})")
    start = str(config.get("init_lora_weights", True)).lower()
    if start.startswith(CHANGES_BASE):
        raise _refusal(
            source,
            f"it began with {start!r:.40}, which takes a part out of the base's weights",
            "Save it as a plain LoRA there: PEFT's save_pretrained with "
            "path_initial_model_for_weight_conversion",
        )
    setting_names = {field.name for field in dataclasses.fields(LoraConfig)}
    for name, value in config.items():
        # tools add remarks of their own; what is no plain remark may change what it computes
        if name not in setting_names and isinstance(value, dict | list) and value:
            raise _refusal(source, f"its setting {name!r:.60} is unknown here")


class _Layers:
    """The layers and weights of a base, without memory for them."""

    def __init__(self, base: Base) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        config = load_config(base.folder)
        with torch.device("meta"):
            self.model = AutoModelForCausalLM.from_config(config)
        self.modules = dict(self.model.named_modules())
        self.folder = base.folder

    def find(self, name: str) -> str | None:
        """Return the base's own name of the module `name`, or None if it has none."""
        if name in self.modules:
            return name
        for prefix in NESTED:
            candidate = "model." + name.removeprefix(prefix).removeprefix("model.")
            if name.startswith(prefix) and candidate in self.modules:
                return candidate
        return None

    def shape(self, module: str) -> tuple[int, int] | None:
        """Return (outputs, inputs) of a linear layer, or None for any other module."""
        layer = self.modules[module]
        kind = type(layer).__name__
        if kind == "Linear":
            return int(layer.weight.shape[0]), int(layer.weight.shape[1])
        if kind == "Conv1D":
            return int(layer.weight.shape[1]), int(layer.weight.shape[0])
        return None


@dataclass(frozen=True)
class _Adapter:
    """The tensors of an adapter under PEFT's names."""

    tensors: dict[str, torch.Tensor]
    ranks: dict[str, int]
    """Adapted module -> its rank."""
    saved: tuple[str, ...]


def _read(source: Path, config: Mapping[str, Any], layers: _Layers) -> _Adapter:
    """Read all tensors of the file. Raises ModelError for one that does not belong to the base."""
    parts: Tensors = {}
    copies: Tensors = {}
    for stored, tensor in _tensors(source):
        module, part, is_matrix = _place(source, stored, layers)
        (parts if is_matrix else copies).setdefault(module, {})[part] = tensor
    if not parts:
        raise _refusal(source, "it holds no low-rank matrices", "See whether it was saved whole")

    tensors: dict[str, torch.Tensor] = {}
    ranks = {}
    for module, matrices in parts.items():
        ranks[module] = _check_matrices(source, module, matrices, config, layers)
        for part, tensor in matrices.items():
            leaf = "" if part == "magnitude_vector" else ".weight"
            tensors[f"{PREFIX}{module}.lora_{part}{leaf}"] = tensor
    saved = _saved_modules(source, config, copies, layers)
    for module in saved:
        for leaf, tensor in copies[module].items():
            tensors[f"{PREFIX}{module}.{leaf}"] = tensor
    for name, tensor in tensors.items():
        tensors[name] = _checked(source, name, tensor)
    return _Adapter(tensors, ranks, saved)


def _place(source: Path, stored: str, layers: _Layers) -> tuple[str, str, bool]:
    """Return (module of the base, part of it, whether that is a low-rank matrix) of a stored
    tensor."""
    name = WRAPPERS.sub("", stored).removeprefix(PREFIX)
    if EMBEDDING.fullmatch(name):
        raise _refusal(source, "it adapts the embedding by low-rank matrices")
    if match := PART.fullmatch(name):
        module = layers.find(match[1])
        if module is None:
            raise _refusal(
                source,
                f"its tensor {stored!r:.120} belongs to no layer of this base",
                "Name the base that it was trained on with --base",
            )
        return module, match[2], True
    module_name, _, leaf = name.replace(".modules_to_save.default", "").rpartition(".")
    module = layers.find(module_name)
    if module is None or leaf not in dict(layers.modules[module].named_parameters()):
        raise _refusal(source, f"its tensor {stored!r:.120} is unknown here")
    return module, leaf, False


def _saved_modules(
    source: Path, config: Mapping[str, Any], copies: Tensors, layers: _Layers
) -> tuple[str, ...]:
    """Return the modules of which the adapter has a whole copy; any other module must equal the
    base's own."""
    wanted = [str(name) for name in config.get("modules_to_save") or []]
    saved = []
    for module, copy in copies.items():
        if _is_saved(module, wanted):
            _check_copy(source, module, copy, layers)
            saved.append(module)
        else:
            _check_equal(source, module, copy, layers)
    for name in wanted:
        if not any(_is_saved(module, [name]) for module in saved):
            raise _refusal(source, f"its weights have no copy of {name!r:.60}, which it names")
    return tuple(sorted(saved))


def _tensors(source: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(source / WEIGHTS, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        fix = "Download or copy it again"
        raise _refusal(source, f"its weight file is damaged ({error})", fix) from None


def _checked(source: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in float32. Raises ModelError if it contains anything but finite
    numbers."""
    if not tensor.dtype.is_floating_point or not bool(tensor.isfinite().all()):
        raise _refusal(source, f"its tensor {name!r:.120} holds no finite numbers")
    return tensor.float().contiguous()


def _check_matrices(
    source: Path,
    module: str,
    matrices: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    layers: _Layers,
) -> int:
    """Return the rank of an adapted layer. Raises ModelError if its matrices do not fit the
    layer."""
    shape = layers.shape(module)
    if shape is None:
        raise _refusal(source, f"it adapts {module!r}, which is no linear layer")
    expected = {"A", "B"} | ({"magnitude_vector"} if config.get("use_dora") else set())
    if set(matrices) != expected:
        missing = ", ".join(sorted(expected ^ set(matrices)))
        raise _refusal(source, f"layer {module!r} has {missing} too few or too many")
    outputs, inputs = shape
    rank = int(matrices["A"].shape[0])
    fits = tuple(matrices["A"].shape) == (rank, inputs)
    fits = fits and tuple(matrices["B"].shape) == (outputs, rank)
    if config.get("use_dora"):
        fits = fits and matrices["magnitude_vector"].numel() == outputs
    if not fits:
        shapes = {part: tuple(tensor.shape) for part, tensor in matrices.items()}
        raise _refusal(
            source,
            f"its matrices of {module!r} have the shapes {shapes}, and the base's layer has "
            f"{outputs} outputs and {inputs} inputs",
            "Name the base that it was trained on with --base",
        )
    return rank


def _is_saved(module: str, wanted: list[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _check_copy(
    source: Path, module: str, copy: Mapping[str, torch.Tensor], layers: _Layers
) -> None:
    """Raise ModelError for a copy of a module whose shape differs from the base's."""
    for leaf, parameter in layers.modules[module].named_parameters():
        if leaf not in copy or tuple(copy[leaf].shape) != tuple(parameter.shape):
            shape = tuple(copy[leaf].shape) if leaf in copy else "none"
            raise _refusal(
                source,
                f"its copy of {module}.{leaf} has the shape {shape}, the base's "
                f"{tuple(parameter.shape)}: its vocabulary was changed, or it is for another base",
            )


def _check_equal(
    source: Path, module: str, copy: Mapping[str, torch.Tensor], layers: _Layers
) -> None:
    """Raise ModelError for a copy that `modules_to_save` does not name, unless it equals the
    base's: PEFT saves embeddings beside an adapter when it cannot tell."""
    import torch
    from safetensors import safe_open

    for file in sorted(layers.folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            names = set(weights.keys())
            for leaf, tensor in copy.items():
                name = f"{module}.{leaf}"
                if name == "lm_head.weight" and name not in names:
                    name = "model.embed_tokens.weight"  # the two are tied
                if name not in names:
                    continue
                stored = weights.get_tensor(name)
                if stored.shape == tensor.shape and torch.allclose(
                    stored.float(), tensor.float(), rtol=1e-2, atol=1e-6
                ):
                    return
    raise _refusal(
        source,
        f"it has weights of {module!r} that are not the base's, and does not name it in "
        "modules_to_save: its vocabulary was changed, or it is for another base",
    )


def _check_tokens(source: Path, base: Base) -> None:
    """Raise ModelError for an adapter whose tokenizer has tokens that the base's does not have."""
    try:
        text = (source / "tokenizer_config.json").read_text(encoding="utf-8")
        added = dict(json.loads(text)).get("added_tokens_decoder") or {}
        contents = {int(number): str(token["content"]) for number, token in added.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    vocabulary = load_tokenizer(str(base.folder)).get_vocab()
    for number, content in contents.items():
        if vocabulary.get(content) != number:
            raise _refusal(
                source,
                f"its tokenizer has the token {content!r:.60} as number {number}, and the base's "
                f"has {vocabulary.get(content, 'none of that name')}",
            )


def _written_config(
    source: Path,
    config: Mapping[str, Any],
    adapter: _Adapter,
    layers: _Layers,
    base: Base,
) -> dict[str, Any]:
    """Return the configuration of the adapter as its tensors define it, with plain names of
    modules."""
    rank = int(config.get("r") or next(iter(adapter.ranks.values())))
    alpha = _number(source, "lora_alpha", config.get("lora_alpha", 8))
    patterns = config.get("alpha_pattern") or {}
    ranks = {module: own_rank for module, own_rank in adapter.ranks.items() if own_rank != rank}
    alphas = {}
    for module in adapter.ranks:
        value = _by_pattern(source, patterns, module, alpha)
        if value != alpha:
            alphas[module] = value
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": bool(config.get("use_rslora")),
        "use_dora": bool(config.get("use_dora")),
        "fan_in_fan_out": bool(config.get("fan_in_fan_out")),
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": _target_modules(adapter.ranks, layers),
        "modules_to_save": list(adapter.saved) or None,
        "ensure_weight_tying": bool(config.get("ensure_weight_tying")),
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _number(source: Path, name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e6:
        raise _refusal(source, f"its {name} is {value!r:.60}")
    return value  # type: ignore[no-any-return]


def _by_pattern(source: Path, patterns: Mapping[str, Any], module: str, default: float) -> float:
    """Return the value of the first of `patterns` that the module's name ends with, as PEFT reads
    them, else `default`. The expressions were checked."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return _number(source, "alpha_pattern", value)
        except re.error as error:
            why = f"its alpha_pattern {pattern!r:.60} is no expression ({error})"
            raise _refusal(source, why) from None
    return default


def _target_modules(ranks: Mapping[str, int], layers: _Layers) -> list[str]:
    """Return the adapted modules: by the last part of their names if no other linear layer has it,
    else by their full names."""
    last_parts = {module.rpartition(".")[2] for module in ranks}
    same = {
        module
        for module in layers.modules
        if module.rpartition(".")[2] in last_parts and layers.shape(module) is not None
    }
    return sorted(last_parts if same == set(ranks) else ranks)
