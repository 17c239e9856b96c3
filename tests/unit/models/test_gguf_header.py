"""The header of a GGUF file: read as its writer wrote it; one that lies is refused soon, in little
memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core.errors import ModelError
from thumbwheel.models.gguf.header import is_gguf, read_header
from thumbwheel.models.gguf.tensors import read_tensor

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_string("general.name", "Größe")
    writer.add_float32("llama.rope.freq_base", 5e5)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_token_list(["a", "é", "<s>"])
    writer.add_token_types([1, 1, 3])
    writer.add_token_scores([0.5, -1.0, 0.0])
    numbers = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("plain", numbers)
    writer.add_tensor("half", numbers.astype(np.float16))
    blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_what_was_written_is_read(file: Path) -> None:
    header = read_header(file)
    assert header.architecture == "llama"
    assert header.setting("block_count") == 2
    assert header.metadata["general.name"] == "Größe"
    assert header.setting("rope.freq_base") == 5e5
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "é", "<s>"]
    assert header.metadata["tokenizer.ggml.scores"] == [0.5, -1.0, 0.0]
    kinds = {name: (tensor.type, tensor.shape) for name, tensor in header.tensors.items()}
    assert kinds == {
        "plain": ("F32", (3, 32)),
        "half": ("F16", (3, 32)),
        "blocks": ("Q8_0", (3, 32)),
    }
    numbers = np.arange(96, dtype=np.float32).reshape(3, 32)
    for name, distance in (("plain", 0), ("half", 0), ("blocks", 0.5)):
        read = read_tensor(header, header.tensors[name])
        assert read.dtype == np.float32
        assert float(np.abs(read - numbers).max()) <= distance


def test_what_is_no_gguf_file_is_told_apart(file: Path, tmp_path: Path) -> None:
    other, fifo = tmp_path / "other.gguf", tmp_path / "fifo.gguf"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    os.mkfifo(fifo)
    assert is_gguf(file)
    assert not any(is_gguf(path) for path in (other, fifo, tmp_path, tmp_path / "none"))
    with pytest.raises(ModelError, match="does not begin as"):
        read_header(other)


@given(st.data())
def test_a_cut_or_changed_file_is_refused_or_read(
    file: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(file.read_bytes())
    end = data.draw(st.integers(4, len(content)))
    changes = st.tuples(st.integers(4, len(content) - 1), st.integers(0, 255))
    for position, byte in data.draw(st.lists(changes, max_size=4)):
        content[position] = byte
    path = tmp_path_factory.mktemp("changed") / "model.gguf"
    path.write_bytes(content[:end])
    try:
        header = read_header(path)
    except ModelError:
        return
    for tensor in header.tensors.values():
        assert tensor.start + tensor.size <= end


@pytest.mark.parametrize("count", [2**63, 2**40, 10**9])
@pytest.mark.parametrize("field", ["values", "tensors", "text", "list", "numbers", "tensor"])
def test_a_length_without_bytes_behind_it_is_refused(
    field: str, count: int, tmp_path: Path
) -> None:
    head = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k"
    entry = struct.pack("<Q", 1) + b"t" + struct.pack("<IQQIQ", 2, count, 32, 0, 0)
    content = {
        "values": head + struct.pack("<QQ", 0, count),
        "tensors": head + struct.pack("<QQ", count, 0),
        "text": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 8, count),
        "list": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, count),
        "numbers": head + struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 5, count),
        "tensor": head + struct.pack("<QQ", 1, 0) + entry,
    }[field]
    path = tmp_path / "model.gguf"
    path.write_bytes(content + bytes(64))
    with pytest.raises(ModelError):
        read_header(path)
