"""llama.cpp's library in a child process: logits, tokens and answers of a GGUF file, and quantizing
without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thumbwheel.core.child import die_with_parent
from thumbwheel.core.errors import ModelError, StorageError
from thumbwheel.llm import tools
from thumbwheel.llm.llama_server import default_threads

TYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "F32": 0,
    "F16": 1,
    "BF16": 32,
}
"""Precision -> the number that llama.cpp gives it, which is also written into the file."""


class Library:
    """Requests to a child process inside `with Library() as library`; a child that ends is a
    ModelError with its last words."""

    def __init__(self) -> None:
        paths = [str(Path(__file__).parents[2])]
        if existing := os.environ.get("PYTHONPATH"):
            paths.append(existing)
        command = [sys.executable, "-P", "-m", "thumbwheel.llm.library_child"]
        command += [str(tools.require("library").path), str(tools.require("bindings").path)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            preexec_fn=die_with_parent,
        )

    def ask(self, do: str, **request: Any) -> tuple[Any, bytes]:
        """Send a request, and return (value, bytes) of its answer."""
        assert self._process.stdin and self._process.stdout  # noqa: S101
        try:
            self._process.stdin.write(json.dumps({"do": do} | request).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or "null")
        except BrokenPipeError:
            answer = None
        if answer is None:
            raise self._ended(do)
        return answer["value"], self._process.stdout.read(answer["bytes"])

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream:
                with suppress(OSError):  # what was buffered for a process that has ended
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ended(self, do: str) -> ModelError:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").splitlines()
        lines = [line for line in lines if line.strip()]
        return ModelError(
            f"llama.cpp's library ({do})",
            f"it ended with {code}:\n" + "\n".join(lines[-5:]),
            "Check that the file is complete",
        )


class Model(Library):
    """One GGUF file, with at most one adapter over it."""

    def __init__(self, file: Path, adapter: Path | None = None, context: int = 1280) -> None:
        super().__init__()
        try:
            facts, _ = self.ask(
                "open",
                model=str(file),
                adapter=str(adapter) if adapter else None,
                context=context,
                threads=default_threads(),
            )
        except BaseException:
            self.close()
            raise
        self.vocabulary = int(facts["vocabulary"])
        self.ends = frozenset(int(token) for token in facts["ends"])

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the tokens of `text`, with special tokens in it parsed; `special` adds the ones
        that the model wants around every text (BOS)."""
        return list(self.ask("tokens", text=text, special=special)[0])

    def logits(self, rows: Sequence[Sequence[int]], last: int) -> list[Any]:
        """Return float32 arrays [positions, vocabulary] at the last `last` positions of each
        row."""
        import numpy as np

        logits = []
        for row in rows:
            counts, data = self.ask("logits", rows=[list(row)], last=last)
            logits.append(np.frombuffer(data, np.float32).reshape(counts[0], self.vocabulary))
        return logits

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """Return the most likely continuation of `row`, up to and including a token that ends an
        answer."""
        return list(self.ask("greedy", row=list(row), most=most)[0])


def tokenize(file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text in llama.cpp: control tokens in it are parsed, and none is
    added. Only the vocabulary of the file is loaded; it may hold nothing else."""
    with Library() as library:
        library.ask("vocabulary", model=str(file))
        return [library.ask("tokens", text=text, special=False)[0] for text in texts]


def describe(file: Path) -> dict[str, Any]:
    """Return the actual content of a GGUF file: `precision` from its header, `template`, and
    `types`: type -> number of weight tensors."""
    reader = tools.require("converter").path.parent / "gguf-py"
    with Library() as library:
        facts, _ = library.ask("describe", file=str(file), reader=str(reader))
    named = [name for name, number in TYPES.items() if number == facts.get("general.file_type")]
    precisions = named or sorted(facts["types"]) or ["unknown"]  # an adapter's header names none
    return {
        "precision": precisions[0],
        "template": facts.get("tokenizer.chat_template"),
        "types": dict(facts["types"]),
    }


def quantize(whole: Path, out: Path, precision: str) -> None:
    """Write the GGUF file `whole` in a smaller precision. Raises StorageError if it cannot be
    written."""
    with Library() as library:
        code, _ = library.ask("quantize", whole=str(whole), out=str(out), type=TYPES[precision])
    if code:
        why = f"llama.cpp's library could not write it (code {code})"
        raise StorageError(
            f"{str(whole)!r} as {precision}",
            why,
            "Check whether the disk is full or the file incomplete",
        )
