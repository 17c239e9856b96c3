"""Fresh answers from the model in this process: one prefill a prompt, the cache forked for its
answers, ended rows dropped.

Nothing of the model's own generation settings (temperature, penalties) has any influence. Prompts
of like length share a left-padded batch. This module decides which answers are decoded together and
when each of them ends; decode.py runs the model, sample_token.py draws, merged.py makes the merged
copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from thumbwheel.core.errors import ModelError
from thumbwheel.core.log import Advance, say
from thumbwheel.engine import decode, decode_trial
from thumbwheel.engine.forward import language_model
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
"""Answers that are decoded together, where nobody says how many."""
MOST_ROWS = 512
"""Answers that a GPU with much free memory decodes together."""
LOGIT_COPIES = 6
"""Times that an answer's logits are in memory while a token is drawn, as numbers of four bytes."""
SHARE = 0.25
"""Share of a GPU's free memory that answers may fill: their batch is copied when rows leave it."""
DROP = {"cuda": 2}
"""Ended rows leave the batch when they are one in so many, by device; elsewhere in OFTEN. Each time
the whole cache is copied, and a GPU records its step anew."""
OFTEN = 8
TOKENS_UNSEEN = {"cuda": 16}
"""Tokens that every answer draws before Python looks at them, by device: a GPU waits for each look.
Elsewhere each token is looked at, so that no row goes on after its end."""

Prompt = tuple[int, ...]
Batch = dict[Prompt, Sequence[int]]
"""Prompt -> the numbers of its answers that are decoded together with the others."""
Notify = Callable[[Prompt, int, Rollout], None]
"""Takes the prompt, the number of the answer to it and the answer, as soon as that has ended."""


class GroupSampler(RolloutSource):
    """Answers of `model` under its active adapter; the model's mode is put back.

    With `merge` a merged copy decodes, which `sync` brings up to date after the weights have
    changed. `exact` is False then: the copy is the policy up to rounding, so a trainer scores the
    sampled tokens itself. `rows` answers are decoded together; without it ROWS, and on a GPU as
    many as fit (`rows_that_fit`). `label` is the name of the run's policy on servers that are
    given it, the same in all ranks.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        merge: bool = False,
        rows: int | None = None,
        label: str = "policy",
    ) -> None:
        self.policy, self.tokenizer, self.label = model, tokenizer, label
        self._most_rows = rows
        """None until somebody says it, or memory runs out."""
        self._merged: MergedCopy | None = None
        if merge and (reason := obstacle(model)):
            say(f"Sampling without a merged copy of the weights, which is slower: {reason}.")
        elif merge:
            self._merged = MergedCopy(model)
        self._start: Callable[..., decode.Decoding] | None = None

    @classmethod
    def of(cls, settings: Any, policy_sampler: GroupSampler) -> GroupSampler:
        """Return the policy's own sampler, whatever the settings."""
        return policy_sampler

    @property
    def exact(self) -> bool:
        """Whether the weights that sample are the policy's own."""
        return self._merged is None

    def start_with(self, kind: Callable[..., decode.Decoding]) -> None:
        """Decode by this kind, without a trial of the model."""
        self._start = kind

    def sync(self, step: int) -> None:
        """Sample from the policy's current weights from now on."""
        if self._merged is not None:
            self._merged.sync()

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        on_rollout: RolloutCallback | None = None,
        advance: Advance | None = None,
    ) -> list[list[Rollout]]:
        """Sample `n` answers to each prompt, in the order given; at temperature 0 equal prompts are
        answered once.

        A prompt that leaves no room in the model's context has empty answers that were cut off.
        `advance` moves by distinct prompts.
        """
        import torch

        greedy = sampling.temperature == 0
        wanted: Counter[Prompt] = Counter()
        indices: dict[Prompt, list[int]] = {}
        for index, ids in enumerate(prompts):
            prompt = tuple(ids)
            wanted[prompt] = 1 if greedy else wanted[prompt] + n
            indices.setdefault(prompt, []).append(index)

        def notify(prompt: Prompt, number: int, rollout: Rollout) -> None:
            if on_rollout is None:
                return
            if greedy:  # the one answer is that of every equal prompt
                for index in indices[prompt]:
                    on_rollout(index, rollout)
            else:
                on_rollout(indices[prompt][number // n], rollout)

        longest = max(map(len, wanted), default=0) + sampling.max_new_tokens
        rows = self._most_rows or rows_that_fit(self._model, longest)
        answers: dict[Prompt, list[Rollout]] = {}
        training = self.policy.training
        self.policy.eval()
        try:
            with torch.inference_mode():
                for batch in _batches(wanted, rows):
                    for prompt, rollouts in self._decode_or_halve(batch, sampling, notify):
                        answers.setdefault(prompt, []).extend(rollouts)
                    if advance is not None:
                        advance(len(batch))
        finally:
            self.policy.train(training)
        if greedy:
            return [answers[tuple(prompt)] * n for prompt in prompts]
        return _in_order(prompts, n, answers)

    @property
    def _model(self) -> Any:
        return self.policy if self._merged is None else self._merged.model

    def _decode_or_halve(
        self, batch: Batch, sampling: Sampling, notify: Notify
    ) -> Iterator[tuple[Prompt, list[Rollout]]]:
        """Yield the answers of `batch`; if memory runs out, decode it in halves, and later batches
        in smaller ones. An answer depends on its prompt and its number only, so it stays the same;
        `notify` may be called twice for an answer that had ended."""
        try:
            rollouts = self._decode(batch, sampling, notify)
        except Exception as error:
            if not out_of_memory(error) or _answers(batch) == 1:
                raise
        else:
            yield from rollouts.items()
            return
        self._most_rows = max(1, _answers(batch) // 2)
        say(f"Out of memory while sampling: {self._most_rows} answers at once from now on.")
        for half in _halves(batch):
            yield from self._decode_or_halve(half, sampling, notify)

    def _decode(
        self, batch: Batch, sampling: Sampling, notify: Notify
    ) -> dict[Prompt, list[Rollout]]:
        # a draft for every answer; those of a prompt that fills the context end at once, empty
        context = decode.context_of(self._model)
        stop_condition = StopCondition(sampling, self.tokenizer)
        drafts: dict[Prompt, list[_Draft]] = {}
        open_prompts = [prompt for prompt in batch if len(prompt) < context]
        for prompt, numbers in batch.items():
            limit = min(sampling.max_new_tokens, context - len(prompt))
            drafts[prompt] = [_Draft(limit, partial(notify, prompt, number)) for number in numbers]

        # one row for every answer to an open prompt
        rows_of_prompts: list[int] = []
        answers: list[tuple[Prompt, int]] = []
        open_drafts: list[_Draft] = []
        for row, prompt in enumerate(open_prompts):
            rows_of_prompts += [row] * len(batch[prompt])
            answers += [(prompt, number) for number in batch[prompt]]
            open_drafts += drafts[prompt]
        if open_prompts:
            state = self._begin(open_prompts)
            if len(rows_of_prompts) > len(open_prompts):
                state.select(rows_of_prompts)
            token_sampler = TokenSampler.of(sampling, answers, state.logits.device)
            _run(state, token_sampler, open_drafts, stop_condition)

        rollouts: dict[Prompt, list[Rollout]] = {}
        for prompt, of_prompt in drafts.items():
            rollouts[prompt] = [draft.done or draft.finish(stop_condition) for draft in of_prompt]
        return rollouts

    def _begin(self, prompts: Sequence[Prompt]) -> decode.Decoding:
        if self._start is None:
            self._start, reason = decode_trial.choose(self._model)
            if reason:
                say(f"Decoding without a cache, which is slow: {reason}.")
        return self._start(self._model, prompts)


def rows_that_fit(model: Any, length: int) -> int:
    """Return how many answers of `length` tokens, with their prompts, are decoded together: ROWS,
    and more on a GPU whose free memory holds their keys, values and logits."""
    free = _free_bytes(next(model.parameters()).device)
    config = language_model(model).config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if free is None or not heads:
        return ROWS
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    states = (getattr(config, "num_key_value_heads", None) or heads) * size
    token = 2 * config.num_hidden_layers * states * next(model.parameters()).element_size()
    logits = 4 * LOGIT_COPIES * config.vocab_size
    fitting = int(SHARE * free / (length * token + logits))
    return min(MOST_ROWS, max(ROWS, fitting))


def _free_bytes(device: Any) -> int | None:
    """Return the memory of a GPU that nothing holds; None for other devices."""
    import torch

    if device.type != "cuda":
        return None
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def _batches(wanted: Counter[Prompt], rows: int) -> Iterator[Batch]:
    """Yield prompts of similar length with the numbers of their answers, at most `rows` answers in
    a batch unless one prompt needs more."""
    batch: Batch = {}
    for prompt in sorted(wanted, key=lambda prompt: (len(prompt), prompt)):
        if batch and _answers(batch) + wanted[prompt] > rows:
            yield batch
            batch = {}
        batch[prompt] = range(wanted[prompt])
    if batch:
        yield batch


def _in_order(
    prompts: Sequence[Sequence[int]], n: int, answers: dict[Prompt, list[Rollout]]
) -> list[list[Rollout]]:
    """Return `n` answers for each of `prompts`; equal prompts share out their common answers."""
    remaining = {prompt: iter(rollouts) for prompt, rollouts in answers.items()}
    groups: list[list[Rollout]] = []
    for prompt in prompts:
        stream = remaining[tuple(prompt)]
        groups.append([next(stream) for _ in range(n)])
    return groups


def _answers(batch: Batch) -> int:
    return sum(len(numbers) for numbers in batch.values())


def _halves(batch: Batch) -> tuple[Batch, Batch]:
    """Split a batch in two by prompts, or the answers of its only prompt."""
    items = list(batch.items())
    if len(items) > 1:
        return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    ((prompt, numbers),) = items
    return {prompt: numbers[: len(numbers) // 2]}, {prompt: numbers[len(numbers) // 2 :]}


def _run(
    state: decode.Decoding,
    token_sampler: TokenSampler,
    rows: list[_Draft],
    stop_condition: StopCondition,
) -> None:
    """Decode until the last of `rows`, one draft for each row of `state`, has ended."""
    import torch

    device = state.logits.device.type
    step = 0
    while True:
        # draw some tokens, looking at none, but never beyond the longest answer
        longest = max(draft.limit - len(draft.ids) for draft in rows if draft.open)
        unseen = min(TOKENS_UNSEEN.get(device, 1), longest)
        tokens, logps = token_sampler.tokens(state.logits, step)
        drawn, drawn_logps = [tokens], [logps]
        for _ in range(unseen - 1):
            # a token that is none ends the run below, and no model has a row for it
            state.advance(tokens.clamp(max=state.logits.shape[-1] - 1))
            step += 1
            tokens, logps = token_sampler.tokens(state.logits, step)
            drawn.append(tokens)
            drawn_logps.append(logps)

        # look at all of them; what a row drew after its answer had ended is dropped
        tokens_by_step = torch.stack(drawn).tolist()
        logps_by_step: list[list[float | None]] = [[None] * len(rows)] * unseen
        known_logps = [logps for logps in drawn_logps if logps is not None]
        if known_logps:
            logps_by_step = torch.stack(known_logps).tolist()
        for row_tokens, row_logps in zip(tokens_by_step, logps_by_step, strict=True):
            _check_finite(row_tokens, state.logits.shape[-1])
            for draft, token, logp in zip(rows, row_tokens, row_logps, strict=True):
                if draft.open:
                    draft.add(token, logp, stop_condition)

        alive = [row for row, draft in enumerate(rows) if draft.open]
        if not alive:
            return
        if (len(rows) - len(alive)) * DROP.get(device, OFTEN) >= len(rows):
            state.select(alive)
            token_sampler.select(alive)
            tokens, rows = tokens[alive], [rows[row] for row in alive]
        state.advance(tokens)
        step += 1


@dataclass
class _Draft:
    """An answer that is being written, of at most `limit` tokens."""

    limit: int
    notify: Callable[[Rollout], None]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    ended: bool = False
    done: Rollout | None = None

    @property
    def open(self) -> bool:
        return not self.ended and len(self.ids) < self.limit

    def add(self, token: int, logp: float | None, stop_condition: StopCondition) -> None:
        self.ids.append(token)
        if logp is not None:
            self.logps.append(logp)
        self.ended = stop_condition.reached(self.ids)
        if not self.open:
            self.finish(stop_condition)

    def finish(self, stop_condition: StopCondition) -> Rollout:
        self.done = Rollout(
            ids=tuple(self.ids),
            logps=tuple(self.logps) if len(self.logps) == len(self.ids) else None,
            finish="stop" if self.ended else "length",
            text=stop_condition.text(self.ids, self.ended),
        )
        self.notify(self.done)
        return self.done


def _check_finite(tokens: list[int], vocabulary: int) -> None:
    """Raise ModelError if the token sampler gave the token `vocabulary`, which means that logits
    are not finite."""
    if vocabulary in tokens:
        raise ModelError(
            "the model",
            "its logits are not finite, so no token can be sampled",
            "Go back to an earlier checkpoint",
        )
