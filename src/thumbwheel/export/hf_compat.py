"""Writes the files beside the weights so that an exported folder loads everywhere: in transformers
4.x and 5.x, vLLM and converters.

transformers 5 writes only `rope_parameters`, and 4.x then silently computes with a rope theta of
10000. It names tokenizer classes that 4.x does not have, and its list of extra special tokens stops
4.x. So both spellings are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_tokenizer
from thumbwheel.engine.prompt import PromptBuilder, trained_builder
from thumbwheel.models.template_settings import TemplateSettings

ONLY_V5 = {
    "TokenizersBackend": "PreTrainedTokenizerFast",
    "SentencePieceBackend": "PreTrainedTokenizer",
}
"""Tokenizer classes of transformers 5 -> the class of 4.x that reads the same files."""


LOADING = ("is_local", "backend", "local_files_only")
"""Settings of loading that transformers 5 saves with those of the tokenizer."""


def write_tokenizer(
    base: str,
    folder: Path,
    adapter: Path | None = None,
    template: TemplateSettings | None = None,
) -> None:
    """Write the tokenizer with the chat template that training used, and generation settings that
    end an answer where training ended it. `template` says how the chat template is used if none was
    saved with `adapter`."""
    tokenizer = load_tokenizer(base)
    builder = trained_builder(tokenizer, adapter, template)
    stops = builder.stop_ids  # adapts the template, which is saved with the tokenizer
    tokenizer.chat_template = with_bos(builder)
    tokenizer.save_pretrained(folder)
    _change(
        folder / "tokenizer_config.json",
        lambda config: tokenizer_settings(config, tokenizer.get_chat_template()),
    )
    _change(
        folder / "generation_config.json",
        lambda config: generation_settings(config, base, tokenizer.pad_token_id, stops),
    )


def with_bos(builder: PromptBuilder) -> Any:
    """Return the chat template, beginning with BOS if training put one that the template does not
    write.

    Programs that render the template and tokenise without special tokens (transformers, vLLM) then
    get the tokens that training had.
    """
    tokenizer = builder.tokenizer
    template = tokenizer.chat_template
    question = [{"role": "user", "content": "a"}]
    if builder.prompt(question)[:1] != [tokenizer.bos_token_id]:
        return template
    if builder.render(question).startswith(tokenizer.bos_token) or not isinstance(template, str):
        return template
    return "{{ bos_token }}" + template


def tokenizer_settings(config: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Return `config` of tokenizer_config.json in the spelling that 4.x and 5.x both read."""
    settings = {key: value for key, value in config.items() if key not in LOADING}
    if settings.get("tokenizer_class") in ONLY_V5:
        settings["tokenizer_class"] = ONLY_V5[settings["tokenizer_class"]]
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    return settings | {"chat_template": template}


def generation_settings(
    config: Mapping[str, Any], base: str, pad: int | None, stops: tuple[int, ...]
) -> dict[str, Any]:
    """Return `config` (or the base's) with all ids that end an answer, the base's first."""
    settings = dict(config) or _base_generation(base)
    eos = settings.get("eos_token_id")
    if eos is None:
        base_ends = []
    elif isinstance(eos, int):
        base_ends = [eos]
    else:
        base_ends = list(eos)
    ends = list(dict.fromkeys([*base_ends, *stops]))
    settings["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    settings.setdefault("pad_token_id", pad if pad is not None else ends[0])
    return settings


def _base_generation(base: str) -> dict[str, Any]:
    from transformers import GenerationConfig

    try:
        return dict(GenerationConfig.from_pretrained(base).to_diff_dict())
    except OSError:  # the base has no such file
        return {}
    except Exception as error:  # noqa: BLE001 - strange settings may raise anything in the library
        why = f"its generation_config.json cannot be read ({' '.join(str(error).split())[:200]})"
        raise ModelError(f"base model {base!r}", why, "Correct or remove the file") from None


def complete_config(folder: Path) -> None:
    """Write config.json in both spellings."""
    _change(folder / "config.json", both_spellings)


def both_spellings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with the keys of 4.x beside the keys of 5.x, in every nested part as well
    (text_config)."""
    spelled = dict(config)
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, dict):
            spelled[key] = both_spellings(value)
    if "dtype" in spelled:
        spelled["torch_dtype"] = spelled["dtype"]
    ropes = spelled.get("rope_parameters")
    if isinstance(ropes, dict):
        spelled |= _old_ropes(ropes)
    return spelled


def _old_ropes(ropes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_theta` and `rope_scaling` as 4.x reads them. Separate ropes for layer types
    become theta and local base frequency."""
    if "full_attention" in ropes:
        local = ropes.get("sliding_attention") or {}
        frequency = {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
        return _old_ropes(ropes["full_attention"] or {}) | frequency
    settings = {key: ropes[key] for key in ("rope_theta", "partial_rotary_factor") if key in ropes}
    if ropes.get("rope_type", "default") == "default":
        return settings
    scaling = {key: value for key, value in ropes.items() if key not in settings}
    return settings | {"rope_scaling": scaling}


def _change(path: Path, change: Any) -> None:
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(
        json.dumps(change(config), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
