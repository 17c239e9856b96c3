"""Answers requests about one GGUF file through llama.cpp's library: `python -m
thumbwheel.llm.library_child LIBRARY BINDINGS`.

A process of its own, because a library in C ends the whole process when something is wrong. A
request is a line of JSON on standard input; an answer is a line of JSON on what was standard
output, followed by as many bytes as it says.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEFAULTS = {"nthread": 0, "ftype": 7, "output_tensor_type": 43}
"""What the quantizer's settings must be before we change any; otherwise the library is of another
version than its bindings."""


def bind(library: Path, bindings: Path) -> Any:
    """Return the functions of `library`, without the ones that it is too old for. Raises
    RuntimeError if its version differs from the bindings'."""
    folder = library.parent
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    package: Any = types.ModuleType("llama_cpp")  # the package itself would import a web server
    package.__path__ = [str(bindings.parent)]
    sys.modules["llama_cpp"] = package
    from llama_cpp import _ctypes_extensions as extensions  # type: ignore[import-not-found,unused-ignore]

    whole = extensions.ctypes_function_for_shared_library
    extensions.ctypes_function_for_shared_library = lambda lib: _optional(lib, whole(lib))
    suffix = library.suffix
    ggml = ctypes.CDLL(str(folder / f"libggml{suffix}"), mode=ctypes.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    from llama_cpp import llama_cpp as api  # type: ignore[attr-defined,unused-ignore]

    settings = api.llama_model_quantize_default_params()
    if any(getattr(settings, name) != value for name, value in DEFAULTS.items()):
        raise RuntimeError(f"{library} is of another version than {bindings}")
    api.llama_backend_init()
    return api


def _optional(lib: Any, decorate: Callable[..., Any]) -> Callable[..., Any]:
    def function(name: str, *arguments: Any, **options: Any) -> Any:
        if "enabled" not in options:
            options["enabled"] = hasattr(lib, name)
        return decorate(name, *arguments, **options)

    return function


class Child:
    """The verbs that a request may name; each returns a JSON value, or that and bytes."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def quantize(self, whole: str, out: str, type: int) -> int:
        """Quantise a file; return 0 on success."""
        settings = self.api.llama_model_quantize_default_params()
        settings.ftype = type
        return int(
            self.api.llama_model_quantize(whole.encode(), out.encode(), ctypes.byref(settings))
        )

    def open(self, model: str, adapter: str | None, context: int, threads: int) -> dict[str, Any]:
        """Load `model` for rows of up to `context` tokens."""
        api = self.api
        settings = api.llama_model_default_params()
        settings.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(model.encode(), settings)
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        chosen = api.llama_context_default_params()
        chosen.n_ctx = chosen.n_batch = chosen.n_ubatch = context
        chosen.n_threads = chosen.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, chosen)
        if not self.context:
            raise RuntimeError(f"{model} cannot be used with a context of {context} tokens")
        if adapter:
            self._adapt(adapter)
        self.vocab = api.llama_model_get_vocab(self.model)
        self.size = api.llama_vocab_n_tokens(self.vocab)
        ends = [token for token in range(self.size) if api.llama_vocab_is_eog(self.vocab, token)]
        return {
            "vocabulary": self.size,
            "ends": ends,
            "context": api.llama_model_n_ctx_train(self.model),
        }

    def vocabulary(self, model: str) -> int:
        """Load the vocabulary of `model` and nothing else; returns its size."""
        settings = self.api.llama_model_default_params()
        settings.vocab_only = True
        self.model = self.api.llama_model_load_from_file(model.encode(), settings)
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        self.vocab = self.api.llama_model_get_vocab(self.model)
        return int(self.api.llama_vocab_n_tokens(self.vocab))

    def _adapt(self, adapter: str) -> None:
        loaded = self.api.llama_adapter_lora_init(self.model, adapter.encode())
        if not loaded:
            raise RuntimeError(f"{adapter} is no adapter of this model")
        adapters, scales = (type(loaded) * 1)(loaded), (ctypes.c_float * 1)(1.0)
        if self.api.llama_set_adapters_lora(self.context, adapters, 1, scales):
            raise RuntimeError(f"{adapter} cannot be applied to this model")

    def tokens(self, text: str, special: bool) -> list[int]:
        """Return the tokens of `text`, with special tokens in it parsed; `special` adds the ones
        that the model wants around every text."""
        raw = text.encode()
        room = (self.api.llama_token * (len(raw) + 8))()
        count = self.api.llama_tokenize(self.vocab, raw, len(raw), room, len(room), special, True)
        return list(room[: max(count, 0)])

    def logits(self, rows: list[list[int]], last: int) -> tuple[list[int], bytes]:
        """Return (number of positions of each row, their float32 logits as bytes)."""
        counts, data = [], bytearray()
        for row in rows:
            count = min(last, len(row))
            self._decode(row, 0, count)
            for position in range(len(row) - count, len(row)):
                logits = self.api.llama_get_logits_ith(self.context, position)
                data += ctypes.string_at(logits, 4 * self.size)
            counts.append(count)
        return counts, bytes(data)

    def greedy(self, row: list[int], most: int) -> list[int]:
        """Return the most likely continuation, up to and including a token that ends an answer."""
        import numpy as np

        self._decode(row, 0, 1)
        tokens: list[int] = []
        position = len(row) - 1
        while len(tokens) < most:
            pointer = self.api.llama_get_logits_ith(self.context, position)
            logits = np.ctypeslib.as_array(pointer, (self.size,))
            tokens.append(int(logits.argmax()))
            if self.api.llama_vocab_is_eog(self.vocab, tokens[-1]) or len(tokens) == most:
                break
            self._decode(tokens[-1:], len(row) + len(tokens) - 1, 1)
            position = 0
        return tokens

    def _decode(self, row: list[int], start: int, last: int) -> None:
        """Compute `row` from position `start` on, with logits for its `last` positions."""
        api = self.api
        if start == 0:
            api.llama_memory_clear(api.llama_get_memory(self.context), True)
        batch = api.llama_batch_init(len(row), 0, 1)
        batch.n_tokens = len(row)
        for index, token in enumerate(row):
            batch.token[index], batch.pos[index] = token, start + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index >= len(row) - last
        code = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode ended with {code}")

    def describe(self, file: str, reader: str) -> dict[str, Any]:
        """Return the content of a GGUF file: its file type, architecture, chat template, and the
        number of its tensors of two dimensions and more by type."""
        sys.path.insert(0, reader)
        from gguf import GGUFReader

        gguf = GGUFReader(file)
        facts: dict[str, Any] = {}
        for name in ("general.file_type", "general.architecture", "tokenizer.chat_template"):
            if name in gguf.fields:
                facts[name] = gguf.fields[name].contents()
        types: Counter[str] = Counter()
        for tensor in gguf.tensors:
            if len(tensor.shape) > 1 and min(tensor.shape) > 1:
                types[tensor.tensor_type.name] += 1
        return facts | {"types": dict(types)}


def main(library: str, bindings: str) -> None:
    """Answer requests until standard input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library prints where answers go
    child = Child(bind(Path(library), Path(bindings)))
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(child, request.pop("do"))(**request)
        value, data = answer if isinstance(answer, tuple) else (answer, b"")
        out.write(json.dumps({"value": value, "bytes": len(data)}).encode() + b"\n" + data)
        out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
