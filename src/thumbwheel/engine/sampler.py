"""Fresh answers from the model in this process: one prefill a prompt, the cache forked for its
answers, ended rows dropped.

Nothing of the model's own generation settings (temperature, penalties) has any influence. Prompts
of like length share a left-padded batch. Lives here: which answers are decoded together and when
each of them ends. Does not live here: running the model (decode.py), chance (sample_token.py), the merged
copy (merged.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.core.log import Advance, say
from thumbwheel.engine import decode
from thumbwheel.engine.merged import MergedCopy, obstacle
from thumbwheel.engine.out_of_memory import out_of_memory
from thumbwheel.engine.rollout import (
    Rollout,
    RolloutCallback,
    RolloutSource,
    Sampling,
    StopCondition,
)
from thumbwheel.engine.sample_token import TokenSampler

ROWS = 64
"""Answers that are decoded together."""
DROP = 8
"""Ended rows leave when they are one in so many: each time the whole cache is copied."""

Prompt = tuple[int, ...]
Batch = dict[Prompt, Sequence[int]]
"""Prompt -> the numbers of its answers that are decoded together with the others."""
Tell = Callable[[Prompt, int, Rollout], None]


class GroupSampler(RolloutSource):
    """Answers of `model` as its active adapter speaks; the model's mode is put back.

    With `merge` a merged copy decodes, which `sync` brings up to date after the weights have
    changed. `exact` is False then: the copy is the policy up to rounding, so a trainer scores the
    sampled tokens itself. `rows` answers are decoded together.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, merge: bool = False, rows: int = ROWS
    ) -> None:
        self._policy, self.tokenizer, self._rows = model, tokenizer, rows
        self._merged: MergedCopy | None = None
        if merge and (reason := obstacle(model)):
            say(f"Sampling without a merged copy of the weights, which is slower: {reason}.")
        elif merge:
            self._merged = MergedCopy(model)
        self._start: Callable[..., decode.Decoding] | None = None

    @classmethod
    def of(cls, settings: Any, own: GroupSampler) -> GroupSampler:
        """The policy's own, whatever the settings."""
        return own

    @property
    def exact(self) -> bool:
        """Whether the weights that sample are the policy's own."""
        return self._merged is None

    def sync(self) -> None:
        """Sample from the weights that the policy has now."""
        if self._merged is not None:
            self._merged.sync()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        ended: RolloutCallback | None = None,
        advance: Advance | None = None,
    ) -> list[list[Rollout]]:
        """`n` answers to each prompt, in the order given; at temperature 0 equal prompts are
        answered once.

        A prompt that leaves no room in the model's context has empty answers that were cut off.
        `advance` moves by distinct prompts.
        """
        import torch

        greedy = sampling.temperature == 0
        wanted = Counter(
            {tuple(prompt): 1 for prompt in prompts}
            if greedy
            else [tuple(prompt) for prompt in prompts for _ in range(n)]
        )
        places: dict[Prompt, list[int]] = {}
        for place, prompt in enumerate(prompts):
            places.setdefault(tuple(prompt), []).append(place)

        def tell(prompt: Prompt, number: int, one: Rollout) -> None:
            if ended is not None:
                for place in places[prompt] if greedy else places[prompt][number // n :][:1]:
                    ended(place, one)

        answers: dict[Prompt, list[Rollout]] = {}
        training = self._policy.training
        self._policy.eval()
        try:
            with torch.inference_mode():
                for batch in self._batches(wanted):
                    for prompt, found in self._decoded(batch, sampling, tell):
                        answers.setdefault(prompt, []).extend(found)
                    if advance is not None:
                        advance(len(batch))
        finally:
            self._policy.train(training)
        if greedy:
            return [answers[tuple(prompt)] * n for prompt in prompts]
        streams = {prompt: iter(found) for prompt, found in answers.items()}
        return [[next(streams[tuple(prompt)]) for _ in range(n)] for prompt in prompts]

    @property
    def _model(self) -> Any:
        return self._policy if self._merged is None else self._merged.model

    def _batches(self, wanted: Counter[Prompt]) -> Iterator[Batch]:
        """Prompts of like length with the answers that each has to have, at most `rows` of them
        unless one prompt needs more."""
        batch: Batch = {}
        for prompt in sorted(wanted, key=lambda prompt: (len(prompt), prompt)):
            if batch and _answers(batch) + wanted[prompt] > self._rows:
                yield batch
                batch = {}
            batch[prompt] = range(wanted[prompt])
        if batch:
            yield batch

    def _decoded(
        self, batch: Batch, sampling: Sampling, tell: Tell
    ) -> Iterator[tuple[Prompt, list[Rollout]]]:
        """The answers of `batch`; out of memory it is decoded in halves, and what follows in
        smaller batches. An answer depends on its prompt and its number only, so it is the same one;
        `tell` may be told twice of one that had ended."""
        try:
            found = self._decode(batch, sampling, tell)
        except Exception as error:
            if not out_of_memory(error) or _answers(batch) == 1:
                raise
        else:
            yield from found.items()
            return
        self._rows = max(1, _answers(batch) // 2)
        say(f"Out of memory while sampling: {self._rows} answers at once from now on.")
        for half in _halves(batch):
            yield from self._decoded(half, sampling, tell)

    def _decode(self, batch: Batch, sampling: Sampling, tell: Tell) -> dict[Prompt, list[Rollout]]:
        room, ending = decode.context_of(self._model), StopCondition(sampling, self.tokenizer)
        drafts = {
            prompt: {
                number: _Draft(
                    min(sampling.max_new_tokens, room - len(prompt)), partial(tell, prompt, number)
                )
                for number in numbers
            }
            for prompt, numbers in batch.items()
        }
        open_ = [prompt for prompt in batch if len(prompt) < room]
        if open_:
            rows = [at for at, prompt in enumerate(open_) for _ in batch[prompt]]
            state = self._begin(open_)
            if len(rows) > len(open_):
                state.select(rows)
            answers = [(prompt, number) for prompt in open_ for number in batch[prompt]]
            draw = TokenSampler.of(sampling, answers, state.logits.device)
            _run(state, draw, [drafts[prompt][number] for prompt, number in answers], ending)
        return {
            prompt: [draft.done or draft.finish(ending) for draft in found.values()]
            for prompt, found in drafts.items()
        }

    def _begin(self, prompts: Sequence[Prompt]) -> decode.Decoding:
        if self._start is None:
            self._start, reason = decode.choose(self._model)
            if reason:
                say(f"Decoding without a cache, which is slow: {reason}.")
        return self._start(self._model, prompts)


def _answers(batch: Batch) -> int:
    return sum(len(numbers) for numbers in batch.values())


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """By prompts, or the answers of the only one."""
    items = list(batch.items())
    if len(items) > 1:
        return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    ((prompt, numbers),) = items
    return {prompt: numbers[: len(numbers) // 2]}, {prompt: numbers[len(numbers) // 2 :]}


def _run(
    state: decode.Decoding, draw: TokenSampler, rows: list[_Draft], ending: StopCondition
) -> None:
    """Decode until the last of `rows`, one draft for each row of `state`, has ended."""
    step = 0
    while True:
        tokens, logps = draw.tokens(state.logits, step)
        known = [None] * len(rows) if logps is None else logps.tolist()
        for draft, token, logp in zip(
            rows, _valid(tokens.tolist(), state.logits.shape[-1]), known, strict=True
        ):
            if draft.open:
                draft.add(token, logp, ending)
        alive = [row for row, draft in enumerate(rows) if draft.open]
        if not alive:
            return
        if (len(rows) - len(alive)) * DROP >= len(rows):
            state.select(alive)
            draw.select(alive)
            tokens, rows = tokens[alive], [rows[row] for row in alive]
        state.advance(tokens)
        step += 1


@dataclass
class _Draft:
    """An answer that is being written; `limit` tokens have room."""

    limit: int
    tell: Callable[[Rollout], None]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    ended: bool = False
    done: Rollout | None = None

    @property
    def open(self) -> bool:
        return not self.ended and len(self.ids) < self.limit

    def add(self, token: int, logp: float | None, ending: StopCondition) -> None:
        self.ids.append(token)
        self.logps += [] if logp is None else [logp]
        self.ended = ending.reached(self.ids)
        if not self.open:
            self.finish(ending)

    def finish(self, ending: StopCondition) -> Rollout:
        logps = tuple(self.logps) if len(self.logps) == len(self.ids) else None
        self.done = Rollout(
            tuple(self.ids),
            logps,
            "stop" if self.ended else "length",
            ending.text(self.ids, self.ended),
        )
        self.tell(self.done)
        return self.done


def _valid(tokens: list[int], size: int) -> list[int]:
    if size in tokens:
        raise ModelError(
            "the model",
            "its logits are not finite, so no token can be drawn",
            "Go back to an earlier checkpoint",
        )
    return tokens
