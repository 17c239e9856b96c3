"""One ONNX graph with a key-value cache, for onnxruntime. A prompt starts with an empty cache, and
further tokens extend it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import MissingExtra, ModelError
from thumbwheel.export import hf_compat
from thumbwheel.export.format import POSITIONS, Opened
from thumbwheel.export.loaded_export import Tokenized
from thumbwheel.export.merge import whole
from thumbwheel.export.types import ExportSource, ModelKind

if TYPE_CHECKING:
    import numpy as np
    import torch

GRAPH = "decode"
NEEDED = ("onnx", "onnxscript", "onnxruntime")


class OnnxFormat:
    """decode.onnx in float32, weights in decode.onnx.data, tokenizer and generation settings."""

    kind = ModelKind("onnx")
    library = "onnxruntime"
    quants = ()

    def default(self) -> str | None:
        """Return None: the precision is always float32."""
        return None

    def write(self, source: ExportSource, folder: Path) -> None:
        """Merge in float32, and trace a step that takes any number of tokens and a cache of any
        length."""
        for module in NEEDED:
            if find_spec(module) is None:
                raise MissingExtra.of("an ONNX export", module, "onnx")
        _exported(whole(source)).save_pretrained(folder)
        hf_compat.write_tokenizer(source.base, folder, source.adapter, source.template)
        hf_compat.complete_config(folder)

    def open(self, folder: Path, dtype: Any) -> Opened:
        """Load the model in onnxruntime, on the CPU."""
        return Session(folder)

    def usage(self, folder: str) -> str:
        """Return Python code that uses onnxruntime and the tokenizer."""
        return USAGE.format(folder=folder, graph=str(Path(folder, f"{GRAPH}.onnx")))


def _exported(model: Any) -> Any:
    """Trace the model. Raises ModelError if it cannot be traced."""
    import torch
    from transformers import DynamicCache
    from transformers.exporters.base import ExportedComponent, ExportedModel
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter
    from transformers.exporters.utils import decompose_for_generation

    step: Any
    model.eval()
    mask = torch.tensor(
        [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    )  # two rows of different length: a size of 1 would become a constant
    example = {
        "input_ids": mask,
        "attention_mask": mask,
        "past_key_values": DynamicCache(),
    }  # a cache of one kind for every layer
    try:
        with _silent():
            step, inputs = decompose_for_generation(model, example, multi_token_decode=True)[GRAPH]
            program, traced = OnnxExporter().export_program(step, inputs, OnnxConfig(dynamic=True))
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise ModelError(
            f"a {type(model).__name__} as ONNX",
            f"it cannot be traced ({why})",
            "Export it with --format merged or gguf",
        ) from error
    return ExportedModel(
        {GRAPH: ExportedComponent(program, traced)}, "onnx", model.config, model.generation_config
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep torch.onnx from printing to standard output and from warning about operators that the
    models do not have."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


class Session(Tokenized):
    """The graph in onnxruntime. Every row goes through the cache in all ways in which generation
    uses it: many tokens on an empty cache, many on a short one, one on a long one."""

    dtype = "float32"

    @cached_property
    def graph(self) -> Any:
        """Loaded when first used."""
        import onnxruntime

        return onnxruntime.InferenceSession(
            self.folder / f"{GRAPH}.onnx", providers=["CPUExecutionProvider"]
        )

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the logits of the first half of a row at once, then of the next quarter, then
        token by token."""
        import torch

        return [torch.from_numpy(self._row(row)[-POSITIONS:]) for row in rows]

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """Generate one token at a time."""
        ends, cache = self.ends(), self._empty()
        tokens: list[int] = []
        new = list(row)
        while len(tokens) < most and not (tokens and tokens[-1] in ends):
            logits = self._step(new, len(row) + len(tokens) - len(new), cache)
            new = [int(logits[-1].argmax())]
            tokens += new
        return tokens

    def _row(self, row: Sequence[int]) -> np.ndarray[Any, Any]:
        import numpy as np

        cache = self._empty()
        size = len(row)
        half = size // 2
        cuts = sorted({0, half, (half + size) // 2, *range(max(half, size - 8), size), size})
        parts = [self._step(row[start:end], start, cache) for start, end in pairwise(cuts)]
        return np.concatenate(parts)

    def _empty(self) -> dict[str, Any]:
        import numpy as np

        past = [node for node in self.graph.get_inputs() if "past_key_values" in node.name]
        return {
            node.name: np.zeros((1, int(node.shape[1]), 0, int(node.shape[3])), np.float32)
            for node in past
        }

    def _step(self, new: Sequence[int], done: int, cache: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Return the logits [tokens, vocabulary] of `new` after `done` tokens, and add `new` to
        `cache`."""
        import numpy as np

        end = done + len(new)
        inputs = {
            "input_ids": [list(new)],
            "attention_mask": [[1] * end],
            "position_ids": [list(range(done, end))],
        }
        wanted = {node.name for node in self.graph.get_inputs()}
        feed = {name: np.array(value, np.int64) for name, value in inputs.items() if name in wanted}
        names = [node.name for node in self.graph.get_outputs()]
        outputs = dict(zip(names, self.graph.run(None, feed | cache), strict=True))
        cache.update({name: outputs[name.replace("input.", "output.", 1)] for name in cache})
        logits: np.ndarray[Any, Any] = outputs["logits"][0]
        return logits


USAGE = """\
import numpy as np
import onnxruntime
from transformers import AutoTokenizer, GenerationConfig

tokenizer = AutoTokenizer.from_pretrained({folder!r})
ends = np.atleast_1d(GenerationConfig.from_pretrained({folder!r}).eos_token_id)
session = onnxruntime.InferenceSession({graph!r})
inputs = {{node.name: node for node in session.get_inputs()}}


def answer(messages, most=256):
    new = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    cache = {{}}
    for name, node in inputs.items():
        if "past" in name:
            cache[name] = np.zeros((1, int(node.shape[1]), 0, int(node.shape[3])), "float32")
    seen, tokens = 0, []
    while len(tokens) < most:
        end = seen + len(new)
        values = {{
            "input_ids": [new],
            "attention_mask": [[1] * end],
            "position_ids": [list(range(seen, end))],
        }}
        feed = {{name: np.array(values[name], "int64") for name in values if name in inputs}}
        logits, *past = session.run(None, feed | cache)
        cache, seen, new = dict(zip(cache, past)), end, [int(logits[0, -1].argmax())]
        if new[0] in ends:
            break
        tokens += new
    return tokenizer.decode(tokens)


print(answer([{{"role": "user", "content": "Hello"}}], most=32))
"""


ONNX = OnnxFormat()
