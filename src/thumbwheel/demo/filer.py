"""The app of the demo: the filer that answers mails with the model of a directory, as an app in
production would.

Lives here: greedy and sampled answering with plain transformers. Does not live here: training,
judging, files.
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


class Answer(NamedTuple):
    """What the model said; `finish_reason` is `stop` or `length`."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Filer:
    """A model directory with its tokenizer, ready to answer."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory)
        self.model.eval()  # type: ignore[no-untyped-call]
        self.end = int(self.tokenizer.get_vocab()[END])

    def answer(
        self, chats: Sequence[list[dict[str, str]]], temperature: float, seed: int
    ) -> list[Answer]:
        """One answer per chat, in order; `temperature` 0 is greedy. Prompts of equal length share a
        batch, so none is padded."""
        import torch

        prompts = [self.tokenizer(prompt_text(self.tokenizer, chat))["input_ids"] for chat in chats]
        by_length: dict[int, list[int]] = defaultdict(list)
        for place, prompt in enumerate(prompts):
            by_length[len(prompt)].append(place)
        generator = torch.Generator().manual_seed(seed)
        answers: dict[int, Answer] = {}
        for length, places in sorted(by_length.items()):
            for cut in range(0, len(places), BATCH):
                part = places[cut : cut + BATCH]
                drawn = self._draw(torch.tensor([prompts[i] for i in part]), temperature, generator)
                answers.update(
                    {i: self._read(ids, length) for i, ids in zip(part, drawn, strict=True)}
                )
        return [answers[i] for i in range(len(prompts))]

    def _draw(
        self, prompts: torch.Tensor, temperature: float, generator: torch.Generator
    ) -> list[list[int]]:
        """Completion ids `[B, <=MAX_ANSWER]` of prompts `[B, T]`, with a key-value cache."""
        import torch

        drawn: list[torch.Tensor] = []
        done = torch.zeros(len(prompts), dtype=torch.bool)
        past, step = None, prompts
        with torch.inference_mode():
            while len(drawn) < MAX_ANSWER and not done.all():
                out = self.model(
                    input_ids=step, past_key_values=past, use_cache=True, logits_to_keep=1
                )
                past, logits = out.past_key_values, out.logits[:, -1].float()
                if temperature:
                    step = torch.multinomial(
                        (logits / temperature).softmax(-1), 1, generator=generator
                    )
                else:
                    step = logits.argmax(-1, keepdim=True)
                drawn.append(step)
                done |= step[:, 0] == self.end
        return [[int(i) for i in row] for row in torch.cat(drawn, 1)]

    def _read(self, ids: list[int], prompt_tokens: int) -> Answer:
        stop = ids.index(self.end) if self.end in ids else len(ids)
        text = str(self.tokenizer.decode(ids[:stop], skip_special_tokens=False))
        return Answer(
            text, "stop" if self.end in ids else "length", prompt_tokens, min(stop + 1, len(ids))
        )
