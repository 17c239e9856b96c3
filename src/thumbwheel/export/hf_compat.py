"""Makes an exported folder load anywhere: transformers 4.x and 5.x, vLLM, converters.

transformers 5 writes `rope_parameters` alone, and 4.x then silently computes with a rope theta of
10000; it names tokenizer classes that 4.x does not have; its list of extra special tokens stops
4.x. So both spellings are written. Does not live here: what the weights are (merge.py), whether the
result is right (parity.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine.load import load_tokenizer
from thumbwheel.engine.prompt import PromptBuilder

ONLY_V5 = {
    "TokenizersBackend": "PreTrainedTokenizerFast",
    "SentencePieceBackend": "PreTrainedTokenizer",
}
"""Tokenizer classes of transformers 5 -> the class of 4.x that reads the same files."""


LOADING = ("is_local", "backend", "local_files_only")
"""Settings of the load that transformers 5 saves as if they were the tokenizer's."""


def write_tokenizer(base: str, folder: Path) -> None:
    """Tokenizer files with the template that training used, and the generation settings that end an
    answer where training ended it."""
    tokenizer = load_tokenizer(base)
    builder = PromptBuilder(tokenizer)
    stops, tokenizer.chat_template = builder.stop_ids, with_bos(builder)
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
    """The chat template, beginning with BOS where training put one that the template does not
    write.

    Whoever renders the template and tokenises without special tokens (transformers, vLLM) then sees
    what training saw.
    """
    template, tokenizer = builder.tokenizer.chat_template, builder.tokenizer
    question = [{"role": "user", "content": "a"}]
    missing = builder.prompt(question)[:1] == [tokenizer.bos_token_id] and not builder.render(
        question
    ).startswith(tokenizer.bos_token)
    return "{{ bos_token }}" + template if missing and isinstance(template, str) else template


def tokenizer_settings(config: Mapping[str, Any], template: str) -> dict[str, Any]:
    """`config` of tokenizer_config.json in the spelling that 4.x and 5.x both read."""
    known = {key: value for key, value in config.items() if key not in LOADING}
    if known.get("tokenizer_class") in ONLY_V5:
        known["tokenizer_class"] = ONLY_V5[known["tokenizer_class"]]
    if isinstance(known.get("extra_special_tokens"), list):
        known["additional_special_tokens"] = known.pop("extra_special_tokens")
    return known | {"chat_template": template}


def generation_settings(
    config: Mapping[str, Any], base: str, pad: int | None, stops: tuple[int, ...]
) -> dict[str, Any]:
    """`config` (or the base's) with every id that ends an answer, those of the base first."""
    known = dict(config) or _base_generation(base)
    stated = known.get("eos_token_id")
    first = [] if stated is None else [stated] if isinstance(stated, int) else list(stated)
    ends = list(dict.fromkeys([*first, *stops]))
    known["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    known.setdefault("pad_token_id", pad if pad is not None else ends[0])
    return known


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
    """`config` with the keys of 4.x beside those of 5.x, in every nested part as well
    (text_config)."""
    out = {
        key: both_spellings(value) if key.endswith("_config") and isinstance(value, dict) else value
        for key, value in config.items()
    }
    if "dtype" in out:
        out["torch_dtype"] = out["dtype"]
    ropes = out.get("rope_parameters")
    return out | _old_ropes(ropes) if isinstance(ropes, dict) else out


def _old_ropes(ropes: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` as 4.x reads them; layer types with ropes of their own become
    theta and local base frequency."""
    if "full_attention" in ropes:
        local = ropes.get("sliding_attention") or {}
        frequency = {"rope_local_base_freq": local["rope_theta"]} if "rope_theta" in local else {}
        return _old_ropes(ropes["full_attention"] or {}) | frequency
    kept = {key: ropes[key] for key in ("rope_theta", "partial_rotary_factor") if key in ropes}
    if ropes.get("rope_type", "default") == "default":
        return kept
    return kept | {"rope_scaling": {key: value for key, value in ropes.items() if key not in kept}}


def _change(path: Path, change: Any) -> None:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(
        json.dumps(change(found), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
