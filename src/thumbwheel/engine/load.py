"""Loading bases and adapters, and identifying a base by its weights.

Bases are loaded from safetensors only, and without code of their own; adapters come from PEFT.
`base_fingerprint` says which base it is. Model versions and artifacts are the stage `models`'.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.errors import MissingExtra, ModelError
from thumbwheel.core.plugins import nearest
from thumbwheel.engine.adapter_check import check_adapter
from thumbwheel.engine.config_check import check_config
from thumbwheel.engine.control_tokens import panics_as_errors
from thumbwheel.engine.forward import is_encoder, is_scorer, trunk_of
from thumbwheel.engine.libraries import BITSANDBYTES, tell_of_bitsandbytes
from thumbwheel.models.base import NAMES, require_regular_files

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
Quantization = Literal["none", "nf4", "int8"]
BLOCK = 1 << 20
"""Bytes that are hashed at the start, in the middle and at the end of a large tensor."""


class LoraSettings(Config):
    """The adapter that is trained."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank of the two factors; small ranks are enough for preferences"""
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's output is multiplied by alpha / rank"""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get an adapter: all linear ones but the head, or names of modules"""
    rslora: bool = False
    """Scale by alpha / sqrt(rank) instead"""


def load_base(
    path_or_hub_id: str,
    dtype: Dtype = "auto",
    *,
    local_only: bool = False,
    quantization: Quantization = "none",
    device: str = "cpu",
) -> tuple[Any, Any]:
    """Load (model, tokenizer) of a Hugging Face causal LM, frozen; "auto" is the dtype that it was
    saved in.

    A quantised one is loaded onto `device` at once and computes in `dtype`; others are left on the
    CPU for the caller to move. Raises ModelError for an unknown base, for weights that are no
    safetensors and for a model that needs its own code, MissingExtra without bitsandbytes.
    """
    model, tokenizer, _ = _pretrained(
        "AutoModelForCausalLM", path_or_hub_id, dtype, local_only, quantization, device
    )
    return model, tokenizer


def load_trunk(path_or_hub_id: str, *, local_only: bool = False) -> tuple[Any, Any, str]:
    """Load (model, tokenizer, fingerprint) as `load_base` does, without a head and in fp32: the
    layers that give hidden states."""
    model, tokenizer, fresh = _pretrained(
        "AutoModel", path_or_hub_id, "float32", local_only, "none", "cpu"
    )
    # what the files do not have (a pooler) is drawn at random, and not used
    parameters = sorted(model.named_parameters())
    stored = [(name, parameter) for name, parameter in parameters if name not in fresh]
    return model, tokenizer, fingerprint_of(stored)


def load_scorer(
    path_or_hub_id: str,
    dtype: Dtype = "auto",
    *,
    local_only: bool = False,
    quantization: Quantization = "none",
    device: str = "cpu",
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load (model, tokenizer) as `load_base` does, in the sequence-classification form with one
    output, which a reward model has.

    Layers that the files do not have are drawn by `seed`, the last of them from N(0, 1 / sqrt(width
    + 1)) without bias (Stiennon et al. 2020), so that first scores are near 0. An encoder is never
    in half precision: its own forward joins it with a head that is not.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, tokenizer, fresh = _pretrained(
            "AutoModelForSequenceClassification",
            path_or_hub_id,
            dtype,
            local_only,
            quantization,
            device,
            num_labels=1,
            ignore_mismatched_sizes=True,
        )
        for name, layer in model.named_modules():
            if f"{name}.weight" in fresh and layer.weight.shape[0] == 1:
                torch.nn.init.normal_(layer.weight, std=(layer.weight.shape[1] + 1) ** -0.5)
                if layer.bias is not None:
                    torch.nn.init.zeros_(layer.bias)
    if is_encoder(model.config) and model.dtype.itemsize < 4:
        model.float()
    if model.config.pad_token_id is None:
        # transformers' own forward needs one to find the last token; ours does not look at it
        pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        model.config.pad_token_id = eos if pad is None else pad
    return model, tokenizer


def _pretrained(
    auto_class: str,
    path_or_hub_id: str,
    dtype: Dtype,
    local_only: bool,
    quantization: Quantization,
    device: str,
    **options: Any,
) -> tuple[Any, Any, set[str]]:
    """Load (model of the class `auto_class`, tokenizer, names of the weights that were drawn
    because the files do not have them)."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtra.of("training", error.name or "torch", "train") from None
    torch_dtype = "auto" if dtype == "auto" else getattr(torch, dtype)
    source = {
        "trust_remote_code": False,
        "local_files_only": local_only or Path(path_or_hub_id).exists(),
    }
    quantized = _quantization_options(quantization, torch_dtype, device)
    _check_folder(path_or_hub_id)
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(path_or_hub_id, **source)
            model, report = getattr(transformers, auto_class).from_pretrained(
                path_or_hub_id,
                dtype=torch_dtype,
                use_safetensors=True,
                output_loading_info=True,
                **source,
                **quantized,
                **options,
            )
    except Exception as error:  # noqa: BLE001 - a strange config may raise anything in the library
        if type(error).__module__.startswith("safetensors"):
            raise _damaged(path_or_hub_id, error) from None
        raise _load_error(path_or_hub_id, error) from None
    _check_tokenizer(tokenizer, path_or_hub_id)
    if BITSANDBYTES in sys.modules:
        tell_of_bitsandbytes()  # the files of a base may be quantised, too
    if quantized:
        for module in model.modules():
            # bitsandbytes' kernel for it has no gradient, and does not say so
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
    drawn = set(report["missing_keys"]) | {name for name, *_ in report["mismatched_keys"]}
    return model.requires_grad_(False).eval(), tokenizer, drawn


def _quantization_options(quantization: Quantization, dtype: Any, device: str) -> dict[str, Any]:
    """Return the options of from_pretrained for a quantized base: 4-bit NormalFloat with quantized
    constants (QLoRA), or LLM.int8(); empty without quantization."""
    if quantization == "none":
        return {}
    if find_spec("bitsandbytes") is None:
        raise MissingExtra.of(f"a base in {quantization}", "bitsandbytes", "qlora")
    from transformers import BitsAndBytesConfig

    if quantization == "nf4":
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    else:
        config = BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": config, "device_map": {"": device}}


def load_tokenizer(path_or_hub_id: str) -> Any:
    """Load the tokenizer of a base, without its weights. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                path_or_hub_id,
                trust_remote_code=False,
                local_files_only=Path(path_or_hub_id).exists(),
            )
    except Exception as error:  # noqa: BLE001 - as of a base
        raise _load_error(path_or_hub_id, error) from None
    _check_tokenizer(tokenizer, path_or_hub_id)
    return tokenizer


def load_config(folder: str | Path) -> Any:
    """Load the configuration of the base in `folder`. Raises ModelError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - as of a base
        raise _load_error(str(folder), error) from None


def count_parameters(folder: str | Path) -> int:
    """Count the parameters of the model in `folder`, from its configuration alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = load_config(folder)
    model_class: Any = AutoModelForMaskedLM if is_encoder(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model = model_class.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers inside the context: no progress bars, no deprecations, errors only in
    the log."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(max(level, ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            # PEFT warns of norms in attach_full, whose arithmetic is their own
            warnings.filterwarnings("ignore", "Unsupported layer type", UserWarning)
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def _check_tokenizer(tokenizer: Any, base: str) -> None:
    if not isinstance(tokenizer.chat_template, str | dict | None):
        kind = type(tokenizer.chat_template).__name__
        raise ModelError(
            f"base model {base!r}",
            f"the chat_template of its tokenizer is {kind}, not a text",
            "Correct or remove it",
        )
    try:
        with panics_as_errors():
            tokenizer("Hello, world", add_special_tokens=False)
    except Exception as error:  # noqa: BLE001 - strange settings show when it is used
        why = f"its tokenizer cannot be used ({' '.join(str(error).split())[:200]})"
        raise ModelError(f"base model {base!r}", why, "Copy its tokenizer files again") from None
    special = {str(token) for token in tokenizer.all_special_tokens}
    # transformers makes an empty one where there are no files
    if not any(token not in special for token in tokenizer.get_vocab()):
        raise ModelError(
            f"base model {base!r}",
            "it has no tokenizer",
            "Add its tokenizer files: tokenizer.save_pretrained(folder)",
        )


def _damaged(base: str, error: Exception) -> ModelError:
    return ModelError(
        f"base model {base!r}", f"a weight file is damaged ({error})", "Download or copy it again"
    )


def _check_folder(base: str) -> None:
    folder = Path(base).expanduser()
    if not folder.is_dir():
        if folder.exists() or base.startswith((".", "/", "~")):
            why = "it is a file" if folder.exists() else "there is no such folder"
            raise ModelError(f"base model {base!r}", why, f"Name {NAMES}")
        return
    require_regular_files(folder)
    if not (folder / "config.json").is_file():
        is_adapter = (folder / "adapter_config.json").is_file()
        hint = " (it holds an adapter: name its base)" if is_adapter else ""
        raise ModelError(
            f"base model {base!r}",
            f"the folder has no config.json{hint}",
            "Name a folder saved with save_pretrained",
        )
    if not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"base model {base!r}",
            "it has no safetensors, and other weight files can run code when they are read",
            "Convert it where you trust it: model.save_pretrained(folder, safe_serialization=True)",
        )
    check_config(folder)


def _load_error(base: str, error: Exception) -> ModelError:
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text or "custom code" in text:
        return ModelError(
            f"base model {base!r}",
            "it needs code from its own repository, which is never run",
            "Choose a model that transformers knows",
        )
    if "safetensors" in text:
        return ModelError(
            f"base model {base!r}",
            "it has no safetensors, and other weight files can run code",
            "Choose one that has them",
        )
    return ModelError(
        f"base model {base!r}",
        text[:300],
        "Give a folder saved with save_pretrained, or a Hugging Face id with network or in its "
        "cache",
    )


def attach_lora(
    model: Any, settings: LoraSettings, *, seed: int | None = None
) -> tuple[Any, list[str]]:
    """Return (PEFT model, names of the adapted modules); adapter weights are fp32 masters whatever
    the base (fp64 on fp64).

    In a scorer the modules after its trunk (pooler, head) train wholly and are saved with the
    adapter. Stacked weights of experts are no layers: they get an adapter if PEFT knows the
    architecture, or by name. Raises ModelError if nothing matches. `seed` makes the initial adapter
    reproducible.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    # stacked weights of experts that are asked for by name are parameters to PEFT, not modules
    targets: str | list[str]
    experts: list[str] = []
    if isinstance(settings.targets, str):
        targets = settings.targets
    else:
        stacked = [name for name, weight in model.named_parameters() if weight.ndim == 3]

        def is_stacked(target: str) -> bool:
            return any(name.endswith(f".{target}") for name in stacked)

        experts = [target for target in settings.targets if is_stacked(target)]
        targets = [target for target in settings.targets if target not in experts]
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type] # PEFT divides it; a float is as good
        target_modules=targets,
        target_parameters=experts or None,
        use_rslora=settings.rslora,
        lora_dropout=0.0,
        bias="none",
        modules_to_save=_modules_after_trunk(model) if is_scorer(model) else None,
        task_type="SEQ_CLS" if is_scorer(model) else "CAUSAL_LM",
    )
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            with quiet_transformers():
                adapted = get_peft_model(model, config)
        except ValueError as error:
            raise _no_targets(model, settings, error) from None
    for parameter in adapted.parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < 4:
            parameter.data = parameter.data.float()
    return adapted, adapted_modules(adapted)


def attach_full(model: Any) -> tuple[Any, list[str]]:
    """Return (PEFT model, names of the trained modules) for full fine-tuning: every layer between
    embeddings and head has a trained copy.

    The copies are an adapter of PEFT's kind LN_TUNING, which holds whole layers. So the base stays
    where it is, as the reference, and the trained weights are saved, loaded, switched off and
    merged like any adapter. Embeddings and head stay the base's.
    """
    from peft import LNTuningConfig, get_peft_model

    after_trunk = _modules_after_trunk(model) if is_scorer(model) else []
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    names: list[str] = []
    for name, module in model.named_modules():
        has_weights = next(module.parameters(recurse=False), None) is not None
        is_embedding = id(module) in ends or "Embedding" in type(module).__name__
        saved_whole = any(part in after_trunk for part in name.split("."))
        if has_weights and not is_embedding and not saved_whole:
            names.append(name)
    task = "SEQ_CLS" if is_scorer(model) else "CAUSAL_LM"
    with quiet_transformers():
        adapted = get_peft_model(
            model,
            LNTuningConfig(
                target_modules=names, modules_to_save=after_trunk or None, task_type=task
            ),
        )
    return adapted, adapted_modules(adapted)


def _modules_after_trunk(model: Any) -> list[str]:
    """Return the names of the modules after the trunk of a scorer: its head, and a pooler."""
    trunk = trunk_of(model)
    names: list[str] = []
    for name, module in model.named_children():
        if module is not trunk and any(True for _ in module.parameters()):
            names.append(name)
    return names + [name for name, _ in trunk.named_children() if name == "pooler"]


def _no_targets(model: Any, settings: LoraSettings, error: Exception) -> ModelError:
    linear_layers: set[str] = set()
    for name, module in model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            linear_layers.add(name.rsplit(".", 1)[-1])
    if isinstance(settings.targets, str) or not linear_layers:
        return ModelError(
            "LoRA on all linear layers", str(error).split("\n")[0], "Name the modules with targets"
        )
    names = sorted(linear_layers)
    hints = "".join(nearest(name, names) for name in settings.targets)
    return ModelError(
        f"LoRA targets {list(settings.targets)!r}",
        "no layer of this model has that name",
        f"Known: {', '.join(names)}.{hints}",
    )


def adapted_modules(model: Any) -> list[str]:
    """Return the names of the modules of a PEFT model that carry an adapter."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]


def load_adapter(model: Any, directory: str | Path, *, trainable: bool = False) -> Any:
    """Return `model` with the adapter of `directory`, whose own metadata decides rank and targets.
    Raises ModelError if it does not fit."""
    from peft import PeftModel

    folder = Path(directory)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / name).is_file():
            raise ModelError(
                f"adapter {str(directory)!r}",
                f"it has no {name}",
                "Name a folder that PEFT's save_pretrained wrote, with safetensors",
            )
    check_adapter(folder)
    try:
        with quiet_transformers():
            return PeftModel.from_pretrained(model, str(folder), is_trainable=trainable)
    except Exception as error:  # noqa: BLE001 - as of a base
        raise ModelError(
            f"adapter {str(directory)!r}",
            " ".join(str(error).split())[:300],
            "Load it on the base that it was trained on",
        ) from None


def adapter_base(directory: str | Path) -> str:
    """Return the base that an adapter was trained on, by its own metadata; empty if it names none.
    Raises ModelError if the metadata cannot be read."""
    from peft import PeftConfig

    try:
        return str(PeftConfig.from_pretrained(str(directory)).base_model_name_or_path or "")
    except Exception as error:  # noqa: BLE001 - as of a base
        raise ModelError(
            f"adapter {str(directory)!r}",
            " ".join(str(error).split())[:200],
            "Name a folder that PEFT's save_pretrained wrote",
        ) from None


def base_fingerprint(source: Any) -> str:
    """Return the sha256 over name, shape, dtype and content of the base's tensors, without
    adapters.

    `source` is a model or the folder of one. A tensor above 3 MiB is read in its first, middle and
    last MiB only, so that a large base costs seconds; a fine-tune changes them all. A folder and
    the model loaded from it differ if tied weights or the dtype do.
    """
    tensors = (
        _stored_tensors(Path(source))
        if isinstance(source, (str, Path))
        else _base_parameters(source)
    )
    return fingerprint_of(sorted(tensors, key=lambda pair: pair[0]))


def fingerprint_of(tensors: Iterable[tuple[Any, torch.Tensor]]) -> str:
    """Return the sha256 over (name, tensor) pairs in order; large tensors are sampled as in
    `base_fingerprint`."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name}\0{tuple(tensor.shape)}\0{tensor.dtype}\0".encode())
        for block in _blocks(tensor.detach()):
            digest.update(block)
    return digest.hexdigest()


def _base_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    adapted = hasattr(model, "peft_config")
    prefix = "base_model.model." if adapted else ""
    of_adapters = ("lora_", "ln_tuning_layers", "modules_to_save", "prompt_encoder")
    for name, parameter in model.named_parameters():
        trained = adapted and parameter.requires_grad
        if trained or any(part in name for part in of_adapters):
            continue
        name = name.removeprefix(prefix)
        name = name.replace(".base_layer", "").replace(".original_module", "")
        yield name, parameter.detach()


def _stored_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    _check_folder(str(folder))
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - no mapping
                    yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise _damaged(str(folder), error) from None


def _blocks(tensor: torch.Tensor) -> Iterator[bytes]:
    """Yield the bytes of a small tensor, or the first, middle and last block of a large one."""
    import torch

    if tensor.numel() == 0:
        yield b""
        return
    flat = tensor.contiguous().flatten().view(torch.uint8)
    size = flat.shape[0]
    if size <= 3 * BLOCK:
        yield flat.cpu().numpy().tobytes()
        return
    for start in (0, (size - BLOCK) // 2, size - BLOCK):
        yield flat[start : start + BLOCK].cpu().numpy().tobytes()
