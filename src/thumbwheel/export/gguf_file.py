"""GGUF files: their precisions, writing one from a Hugging Face folder, and opening one with
llama.cpp."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import DataError, InputError, ModelError, ThumbwheelError
from thumbwheel.engine.load import load_config, load_tokenizer
from thumbwheel.engine.prompt import PromptBuilder, trained_builder
from thumbwheel.engine.render import render_chat, template_of
from thumbwheel.export import hf_compat
from thumbwheel.export.format import POSITIONS
from thumbwheel.export.loaded_export import Tokenized
from thumbwheel.export.types import GGUF_ADAPTER, ExportSource, Messages, ModelKind
from thumbwheel.export.weights import stored_dtype
from thumbwheel.llm import convert, tools
from thumbwheel.llm.library import Model, describe, tokenize
from thumbwheel.models.gguf.tokenizer import first_difference

if TYPE_CHECKING:
    import torch

QUANTS = (
    "F32",
    "BF16",
    "F16",
    "Q8_0",
    "Q6_K",
    "Q5_K_M",
    "Q5_K_S",
    "Q5_1",
    "Q5_0",
    "Q4_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "Q2_K",
)
"""Finest first."""
WHOLE = {"torch.bfloat16": "BF16", "torch.float16": "F16"}
"""Precision of the base -> that of the file from which smaller ones are quantised; F32 for any
other base, so that nothing is rounded twice."""
BY_MEMORY = ((32, "Q8_0"), (16, "Q6_K"), (8, "Q4_K_M"), (4, "Q3_K_M"), (0, "Q2_K"))
"""(memory in GB, precision): what fits on a machine with at least that much memory."""
SUFFIX = ".gguf"


def recommend(memory_gb: float | None) -> str:
    """Return the precision for a machine with this much memory; Q4_K_M if it is unknown. Raises
    InputError for a negative size.

    >>> recommend(15.6)
    'Q4_K_M'
    """
    if memory_gb is not None and memory_gb < 0:
        raise InputError(
            f"memory {memory_gb!r} GB",
            "memory cannot be negative",
            "Give its memory in GB, or leave it out",
        )
    if memory_gb is None:
        return "Q4_K_M"
    return next(quant for least, quant in BY_MEMORY if memory_gb >= least)


def whole(base: str) -> str:
    """Return the precision that holds every weight of `base` exactly."""
    return WHOLE.get(str(stored_dtype(base)), "F32")


def family(base: str) -> str:
    """Return the model type of `base`: `qwen2`, `llama`."""
    return str(load_config(base).get_text_config().model_type)


def write(merged: Path, base: str, quant: str, out: Path, scratch: Path) -> None:
    """Write the model folder `merged`, whose base is `base`, as the GGUF file `out`. Larger
    intermediate files stay in `scratch`.

    Raises ModelError for an architecture that llama.cpp does not have, and where the file does not
    have the requested precision.
    """
    ends = PromptBuilder(load_tokenizer(base)).stop_ids
    has_quantiser = bool(tools.find("llama-quantize") or tools.find("library"))
    direct = quant in convert.DIRECT and (quant != "Q8_0" or not has_quantiser)
    start = quant if direct else whole(base)
    first = scratch / f"{start}{SUFFIX}"
    if not first.is_file():
        log.say(f"converting to GGUF {start}")
        convert.convert(merged, first.with_suffix(".part"), start, family(base), ends)
        first.with_suffix(".part").rename(first)
    if direct:
        try:
            os.link(first, out)
        except OSError:  # not every file system has links
            shutil.copyfile(first, out)
    else:
        log.say(f"quantising to {quant} with {convert.requantize(first, out, quant)}")
    precision = describe(out)["precision"]
    if precision != quant:
        raise ModelError(
            f"the GGUF file in {quant}",
            f"it says that it is {precision}",
            "Run: thumbwheel tools install, then try again",
        )


OVER = " over "
"""Between the precision of an adapter and that of the file over which it is served."""


def check_tokens(source: ExportSource, kind: ModelKind, probes: Sequence[Messages]) -> None:
    """Raise ModelError where a prompt would have other tokens in llama.cpp than training saw, with
    the first that has; nothing is converted for it but the vocabulary."""
    tokenizer = load_tokenizer(source.base)
    builder = trained_builder(tokenizer, source.adapter, source.template)
    prompts: dict[str, list[int]] = {}
    for messages in probes:
        # other programs read the control tokens of a text as such
        if not builder.control_tokens.occur_in(messages):
            with suppress(DataError):
                prompts[builder.render(messages)] = builder.prompt(messages)
    with tempfile.TemporaryDirectory(prefix="thumbwheel-vocabulary-") as scratch:
        file = source.gguf
        if file is None or kind != GGUF_ADAPTER:
            file = _vocabulary_file(source, builder.stop_ids, Path(scratch))
        served = dict(zip(prompts, _served_prompts(file, list(prompts), tokenizer), strict=True))
    difference = first_difference(prompts.__getitem__, served.__getitem__, prompts)
    if difference is not None:
        raise ModelError(
            f"the tokens of {source.name!r} in llama.cpp",
            f"a prompt has tokens that differ from training: {difference}",
            "Nothing was converted. Export it with --format merged or adapter, or accept it "
            'by name: --accept "NAME: REASON"',
        )


def _vocabulary_file(source: ExportSource, ends: Sequence[int], scratch: Path) -> Path:
    """Write a GGUF file with the tokenizer of an export of `source`, and return its path."""
    model = scratch / "model"
    model.mkdir()
    # the converter looks for weights, and does not read them
    for path in Path(source.base).glob("*.safetensors*"):
        (model / path.name).symlink_to(path.resolve())
    shutil.copyfile(Path(source.base) / "config.json", model / "config.json")
    hf_compat.write_tokenizer(source.base, model, source.adapter, source.template)
    hf_compat.complete_config(model)
    convert.convert_vocabulary(model, scratch / "vocabulary.gguf", family(source.base), ends)
    return scratch / "vocabulary.gguf"


def _served_prompts(file: Path, prompts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the tokens of rendered prompts in llama.cpp, with one BOS if the model wants one."""
    bos_id, bos = tokenizer.bos_token_id, tokenizer.bos_token
    adds_bos = bos_id is not None and tokenizer("a")["input_ids"][:1] == [bos_id]
    texts = [prompt.removeprefix(bos) if adds_bos and bos else prompt for prompt in prompts]
    rows = tokenize(file, texts)
    return [[bos_id, *row] for row in rows] if adds_bos else rows


class LoadedGguf(Tokenized):
    """A GGUF file in llama.cpp, with at most one adapter over it; templates are rendered by
    llama-server where it is found. `template_of_folder`: the template is that of `folder`, with
    which the file of another program is served, and not the one inside that file."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        adapter: Path | None = None,
        *,
        template_of_folder: bool = False,
    ) -> None:
        super().__init__(folder)
        header = describe(model)
        self._template = None if template_of_folder else header["template"]
        precision = header["precision"]
        if adapter:
            header = describe(adapter)
        self.dtype = header["precision"]
        self.notes = tuple(_notes(self.dtype, header["types"]))
        if template_of_folder:
            self.dtype = f"{self.dtype}{OVER}{precision}"
        with ExitStack() as stack:
            self._model = stack.enter_context(Model(model, adapter))
            self._server = None
            if tools.find("llama-server") and not template_of_folder:
                self._server = stack.enter_context(_server(model))
            self._processes = stack.pop_all()

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the logits with the library of llama.cpp."""
        import torch

        return [
            torch.from_numpy(row_logits.copy())
            for row_logits in self._model.logits(rows, POSITIONS)
        ]

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """Generate with the library of llama.cpp."""
        return self._model.greedy(row, most)

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Return the tokens that llama-server gives for a chat. Without a server, jinja2 renders
        the file's template and the library tokenises."""
        if self._server is None:
            return self._rendered(messages)
        try:
            prompt = self._server.post("/apply-template", {"messages": messages})["prompt"]
        except ThumbwheelError:
            return []
        body = {"content": prompt, "add_special": True, "parse_special": True}
        return [int(token) for token in self._server.post("/tokenize", body)["tokens"]]

    def _rendered(self, messages: Messages) -> list[int]:
        template = self._template or template_of(self.tokenizer)
        try:
            text = render_chat(
                template, messages, generation=True, variables=self.tokenizer.special_tokens_map
            )
        except DataError:
            return []
        bos = self.tokenizer.bos_token
        if bos and text.startswith(bos):
            adds_bos = self._model.tokens("a", special=True)[:1] == [self.tokenizer.bos_token_id]
            if adds_bos:
                text = text[len(bos) :]
        return self._model.tokens(text, special=True)

    def text_ids(self, text: str) -> list[int]:
        """Return the tokens of llama.cpp's tokenizer."""
        return self._model.tokens(text)

    def ends(self) -> frozenset[int]:
        """Return the tokens at which llama.cpp stops."""
        return self._model.ends

    def close(self) -> None:
        """Stop the processes."""
        self._processes.close()


def _server(model: Path) -> Any:
    from thumbwheel.llm.llama_server import LlamaServer

    return LlamaServer(model, context=1280)


def _notes(precision: str, types: Mapping[str, int]) -> list[str]:
    """Return a note on tensors that are not in the file's precision, if there are any. `types`:
    type of tensors -> how many have it. Quantised files mix several types by design."""
    expected = {precision, "F32"}
    if precision.startswith("Q"):
        expected.add("Q6_K")
        if "_K" in precision:
            expected |= {"Q2_K", "Q3_K", "Q4_K", "Q5_K"}
    other = {kind: count for kind, count in types.items() if kind not in expected}
    if not other:
        return []
    kinds = ", ".join(f"{count} in {kind}" for kind, count in sorted(other.items()))
    return [
        f"{sum(other.values())} of {sum(types.values())} weight tensors could not take "
        f"{precision}: {kinds} (rows are no multiple of 256)"
    ]
