"""GGUF files of strangers as bases: files of some kilobytes that ask for time, memory or a disk
full of weights are refused before anything of that size is made."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.core.errors import ModelError
from thumbwheel.models.gguf import base
from thumbwheel.models.gguf.architectures import config_of
from thumbwheel.models.gguf.header import read_header
from thumbwheel.models.gguf.tokenizer import build_tokenizer

gguf = pytest.importorskip("gguf")

SETTINGS = {
    "embedding_length": 32,
    "attention.head_count": 2,
    "feed_forward_length": 64,
    "block_count": 1,
    "context_length": 64,
}
SECONDS = 20


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def member(key: str, value: Any) -> bytes:
    """A metadata value: a text, a whole number, a float or a list of one of these."""
    if isinstance(value, list):
        kind, first = 9, value[0]
        item_kind = 8 if isinstance(first, str) else 6 if isinstance(first, float) else 5
        items = b"".join(map(text, value)) if item_kind == 8 else b""
        if item_kind != 8:
            items = struct.pack(f"<{len(value)}{'f' if item_kind == 6 else 'i'}", *value)
        content = struct.pack("<IQ", item_kind, len(value)) + items
    elif isinstance(value, str):
        kind, content = 8, text(value)
    elif isinstance(value, float):
        kind, content = 6, struct.pack("<f", value)
    else:
        kind, content = 10, struct.pack("<Q", value)
    return text(key) + struct.pack("<I", kind) + content


def written(
    path: Path,
    values: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, int, int]],
    n_bytes: int,
) -> Path:
    """A file with these values, and tensors of the type F16: name -> (rows, columns, offset)."""
    members = [member(key, value) for key, value in values.items()]
    entries = [
        text(name) + struct.pack("<IQQIQ", 2, columns, rows, 1, offset)
        for name, (rows, columns, offset) in tensors.items()
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(members))
    content = head + b"".join(members) + b"".join(entries)
    path.write_bytes(content + bytes(-len(content) % 32) + bytes(n_bytes))
    return path


def model(**changed: Any) -> dict[str, Any]:
    """The values of a llama, with other settings than SETTINGS where `changed` has them."""
    settings = {f"llama.{name}": value for name, value in SETTINGS.items()}
    settings["llama.attention.layer_norm_rms_epsilon"] = 1e-5
    renamed = {f"llama.{name.replace('__', '.')}": value for name, value in changed.items()}
    return {"general.architecture": "llama", **settings, **renamed}


EMBEDDING = {"token_embd.weight": (300, 32, 0)}


def test_tensors_over_the_same_bytes_do_not_fill_a_disk(tmp_path: Path) -> None:
    layers = {f"blk.{number}.ffn_up.weight": (1 << 10, 1 << 10, 0) for number in range(500)}
    path = written(tmp_path / "model.gguf", model(), EMBEDDING | layers, 1 << 21)
    with pytest.raises(ModelError, match="same bytes"):
        read_header(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"block_count": 2_000_000},
        {"feed_forward_length": 1 << 60},
        {"context_length": 1 << 60},
        {"attention__head_count": 1 << 40},
        {"attention__key_length": 1 << 40},
        {"rope__freq_base": 0.0},
        {"rope__freq_base": float("nan")},
        {"rope__freq_base": "ten thousand"},
        {"rope__scaling__type": "linear", "rope__scaling__factor": "two"},
        {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0},
        {"attention__layer_norm_rms_epsilon": "small"},
    ],
    ids=lambda changed: ",".join(changed),
)
def test_settings_that_nothing_can_have_are_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = written(tmp_path / "model.gguf", model(**changed), EMBEDDING, 300 * 64)
    with pytest.raises(ModelError):
        config_of(read_header(path))


def test_settings_that_a_model_has_are_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", model(), EMBEDDING, 300 * 64)
    assert config_of(read_header(path))["num_hidden_layers"] == 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_long_token_takes_no_hours(tmp_path: Path, kind: str) -> None:
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["a" * 3_000_000]
    values = model() | {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens}
    path = written(tmp_path / "model.gguf", values, EMBEDDING, 300 * 64)
    header = read_header(path)
    began = time.process_time()
    with pytest.raises(ModelError, match="characters"):
        build_tokenizer(header)
    assert time.process_time() - began < SECONDS


def test_a_list_of_small_numbers_takes_no_eightfold_memory(tmp_path: Path) -> None:
    n_items = 24_000_000
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    path = tmp_path / "model.gguf"
    path.write_bytes(head + text("k") + struct.pack("<IIQ", 9, 0, n_items) + bytes(n_items))
    tracemalloc.start()
    with pytest.raises(ModelError, match="items"):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * n_items


def test_the_cache_has_nothing_of_a_refused_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "cache_folder", lambda: tmp_path / "cache")
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["a" * 100_000]
    values = model() | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    path = written(tmp_path / "model.gguf", values, EMBEDDING, 300 * 64)
    with pytest.raises(ModelError):
        base.folder_of(path)
    assert not list((tmp_path / "cache").glob("*"))
