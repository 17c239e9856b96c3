"""The app of the demo: a filer that answers mails with the model of a directory, by greedy or
sampled generation in plain transformers, as an app in production would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from thumbwheel.demo.base import END, MAX_ANSWER, prompt_text

if TYPE_CHECKING:
    import torch

BATCH = 64


class FilerAnswer(NamedTuple):
    """What the model said; `finish_reason` is `stop` or `length`."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Filer:
    """A model directory with its tokenizer, ready to answer."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        self.model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False)
        self.model.eval()  # type: ignore[no-untyped-call]
        self.end = int(self.tokenizer.get_vocab()[END])

    def answer(
        self, chats: Sequence[list[dict[str, str]]], temperature: float, seed: int
    ) -> list[FilerAnswer]:
        """Return one answer per chat, in order; `temperature` 0 is greedy. Prompts of equal length
        share a batch, so none is padded."""
        import torch

        prompts = [self.tokenizer(prompt_text(self.tokenizer, chat))["input_ids"] for chat in chats]
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, prompt in enumerate(prompts):
            by_length[len(prompt)].append(index)
        generator = torch.Generator().manual_seed(seed)
        answers: dict[int, FilerAnswer] = {}
        for length, indices in sorted(by_length.items()):
            for cut in range(0, len(indices), BATCH):
                batch = indices[cut : cut + BATCH]
                batch_prompts = torch.tensor([prompts[index] for index in batch])
                completions = self._generate(batch_prompts, temperature, generator)
                for index, ids in zip(batch, completions, strict=True):
                    answers[index] = self._decode(ids, prompt_tokens=length)
        return [answers[index] for index in range(len(prompts))]

    def _generate(
        self, prompts: torch.Tensor, temperature: float, generator: torch.Generator
    ) -> list[list[int]]:
        """Return completion ids `[B, <=MAX_ANSWER]` of prompts `[B, T]`, with a key-value cache."""
        import torch

        generated: list[torch.Tensor] = []
        finished = torch.zeros(len(prompts), dtype=torch.bool)
        cache, tokens = None, prompts
        with torch.inference_mode():
            while len(generated) < MAX_ANSWER and not finished.all():
                output = self.model(
                    input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                cache = output.past_key_values
                logits = output.logits[:, -1].float()
                if temperature:
                    chances = (logits / temperature).softmax(-1)
                    tokens = torch.multinomial(chances, 1, generator=generator)
                else:
                    tokens = logits.argmax(-1, keepdim=True)
                generated.append(tokens)
                finished |= tokens[:, 0] == self.end
        completions: list[list[int]] = torch.cat(generated, 1).tolist()
        return completions

    def _decode(self, ids: list[int], prompt_tokens: int) -> FilerAnswer:
        if self.end in ids:
            length = ids.index(self.end)
            text = str(self.tokenizer.decode(ids[:length], skip_special_tokens=False))
            return FilerAnswer(text, "stop", prompt_tokens, length + 1)
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False))
        return FilerAnswer(text, "length", prompt_tokens, len(ids))
