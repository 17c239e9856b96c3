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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEFAULTS = {"nthread": 0, "ftype": 7, "output_tensor_type": 43}
"""What the quantiser's settings must be before we change any; otherwise the library is of another
version than its bindings."""


def bind(library: Path, bindings: Path) -> Any:
    """The functions of `library`; those that it is too old for are left out. Raises RuntimeError
    for one of another version."""
    folder = library.parent
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    package: Any = types.ModuleType("llama_cpp")  # the package itself would import a web server
    package.__path__ = [str(bindings.parent)]
    sys.modules["llama_cpp"] = package
    from llama_cpp import _ctypes_extensions as extensions  # type: ignore[import-not-found,unused-ignore]

    whole = extensions.ctypes_function_for_shared_library
    extensions.ctypes_function_for_shared_library = lambda lib: _known(lib, whole(lib))
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


def _known(lib: Any, decorate: Callable[..., Any]) -> Callable[..., Any]:
    def function(name: str, *arguments: Any, **options: Any) -> Any:
        return (
            decorate(name, *arguments, enabled=hasattr(lib, name))
            if "enabled" not in options
            else decorate(name, *arguments, **options)
        )

    return function


class Child:
    """The verbs that a request may name; each returns a JSON value, or that and bytes."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def quantise(self, whole: str, out: str, type: int) -> int:
        """0 when it went well."""
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

    def _adapt(self, adapter: str) -> None:
        found = self.api.llama_adapter_lora_init(self.model, adapter.encode())
        if not found:
            raise RuntimeError(f"{adapter} is no adapter of this model")
        adapters, scales = (type(found) * 1)(found), (ctypes.c_float * 1)(1.0)
        if self.api.llama_set_adapters_lora(self.context, adapters, 1, scales):
            raise RuntimeError(f"{adapter} cannot be applied to this model")

    def tokens(self, text: str, special: bool) -> list[int]:
        """`text` with its special tokens read as such; `special` adds those that the model wants
        around every text."""
        raw = text.encode()
        room = (self.api.llama_token * (len(raw) + 8))()
        count = self.api.llama_tokenize(self.vocab, raw, len(raw), room, len(room), special, True)
        return list(room[: max(count, 0)])

    def logits(self, rows: list[list[int]], last: int) -> tuple[list[int], bytes]:
        """Positions of each row, and their float32 logits."""
        counts, found = [], bytearray()
        for row in rows:
            kept = min(last, len(row))
            self._decode(row, 0, kept)
            for place in range(len(row) - kept, len(row)):
                found += ctypes.string_at(
                    self.api.llama_get_logits_ith(self.context, place), 4 * self.size
                )
            counts.append(kept)
        return counts, bytes(found)

    def greedy(self, row: list[int], most: int) -> list[int]:
        """The most likely continuation, up to and with a token that ends an answer."""
        import numpy as np

        self._decode(row, 0, 1)
        found: list[int] = []
        place = len(row) - 1
        while len(found) < most:
            logits = np.ctypeslib.as_array(
                self.api.llama_get_logits_ith(self.context, place), (self.size,)
            )
            found.append(int(logits.argmax()))
            if self.api.llama_vocab_is_eog(self.vocab, found[-1]) or len(found) == most:
                break
            self._decode(found[-1:], len(row) + len(found) - 1, 1)
            place = 0
        return found

    def _decode(self, row: list[int], start: int, kept: int) -> None:
        api = self.api
        if start == 0:
            api.llama_memory_clear(api.llama_get_memory(self.context), True)
        batch = api.llama_batch_init(len(row), 0, 1)
        batch.n_tokens = len(row)
        for place, token in enumerate(row):
            batch.token[place], batch.pos[place] = token, start + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place >= len(row) - kept
        code = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode ended with {code}")

    def describe(self, file: str, reader: str) -> dict[str, Any]:
        """What a GGUF file holds: its file type, architecture, chat template, and its tensors of
        two dimensions and more by type."""
        sys.path.insert(0, reader)
        from gguf import GGUFReader

        found = GGUFReader(file)
        facts = {
            name: found.fields[name].contents()
            for name in ("general.file_type", "general.architecture", "tokenizer.chat_template")
            if name in found.fields
        }
        types = Counter(
            tensor.tensor_type.name
            for tensor in found.tensors
            if len(tensor.shape) > 1 and min(tensor.shape) > 1
        )
        return facts | {"types": dict(types)}


def main(library: str, bindings: str) -> None:
    """Answer until standard input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the library prints where answers go
    child = Child(bind(Path(library), Path(bindings)))
    for request in _requests():
        answer = getattr(child, request.pop("do"))(**request)
        value, data = answer if isinstance(answer, tuple) else (answer, b"")
        out.write(json.dumps({"value": value, "bytes": len(data)}).encode() + b"\n" + data)
        out.flush()


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
