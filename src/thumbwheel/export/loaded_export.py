"""Opens an exported folder with public libraries: the tokenizer with transformers, and the model
where it is one of transformers or PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import DataError
from thumbwheel.engine.render import render_chat, template_of
from thumbwheel.export.format import POSITIONS
from thumbwheel.export.types import Messages

if TYPE_CHECKING:
    import torch


class Tokenized:
    """The tokenizer of `folder` as a user of transformers loads it. A format that has its own model
    adds the rest of `Opened`."""

    notes: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tokenizer(self) -> Any:
        """Loaded when first used."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Return the tokens that apply_chat_template gives with the saved template; an empty list
        if the template refuses the messages."""
        template, variables = template_of(self.tokenizer), self.tokenizer.special_tokens_map
        try:
            text = render_chat(template, messages, generation=True, variables=variables)
        except DataError:
            return []
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_ids(self, text: str) -> list[int]:
        """Return the tokens without BOS."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def ends(self) -> frozenset[int]:
        """Return the eos tokens of the saved generation settings."""
        from transformers import GenerationConfig

        eos = GenerationConfig.from_pretrained(self.folder).eos_token_id
        return frozenset([eos] if isinstance(eos, int) else eos or [])

    def close(self) -> None:
        """Free the memory."""
        self.__dict__.clear()


class Loaded(Tokenized):
    """An export with a model of transformers or PEFT."""

    def __init__(self, model: Any, folder: Path, dtype: str) -> None:
        super().__init__(folder)
        self.model, self.dtype = model.eval(), dtype

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the logits by one forward pass a row."""
        return logits(self.model, rows)

    def greedy(self, row: Sequence[int], most: int) -> list[int]:
        """Generate with transformers' `generate`."""
        return greedy(self.model, row, most, self.ends())


def logits(model: Any, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return float32 logits [positions, vocabulary] at the last `POSITIONS` positions of each row,
    one row at a time."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = [
            model(input_ids=torch.tensor([list(row)]), use_cache=False).logits[0, -POSITIONS:]
            for row in rows
        ]
    return [output.float().clone() for output in outputs]


def greedy(model: Any, row: Sequence[int], most: int, ends: frozenset[int]) -> list[int]:
    """Return the most likely continuation of `row`, up to and including the first token of `ends`,
    in at most `most` tokens."""
    import torch

    ids = torch.tensor([list(row)])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(ends) or None,
            pad_token_id=min(ends, default=0),
            repetition_penalty=1.0,
        )
    return [int(token) for token in out[0, len(row) :]]
