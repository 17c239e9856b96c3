"""A small test of fresh answers during training: do greedy generations on dev prompts still end,
and still have the format of good answers?

Losses can look healthy while generation has fallen apart, so the answers themselves are looked at.
No judgement of quality lives here; that is evaluation's business, on other rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.tree import Example

if TYPE_CHECKING:
    from thumbwheel.engine.prompt import PromptBuilder

BATCH = 16
"""Prompts that are answered together."""


class Probe:
    """`prompts` [n] token ids; `run` answers them and says which share ended (`eos_rate`) and had
    the format (`format_rate`)."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Sequence[Sequence[int]],
        stops: Sequence[int],
        limit: int,
        as_json: bool,
    ) -> None:
        self._sampler = GroupSampler(model, tokenizer, rows=BATCH)
        self._sampling = Sampling(max_new_tokens=limit, temperature=0.0, stop_ids=tuple(stops))
        self.prompts, self._as_json = prompts, as_json

    @classmethod
    def of(
        cls,
        model: Any,
        builder: PromptBuilder,
        dev: Sequence[Example],
        good_roles: frozenset[str],
        count: int,
        limit: int,
    ) -> Probe | None:
        """Return a probe on up to `count` different dev prompts, or None if nothing can be probed.
        Good answers determine the expected format and length."""
        tokenizer = builder.tokenizer
        answers: list[Sequence[int]] = []
        for example in dev:
            answers += [branch.ids for branch in example.branches if branch.role in good_roles]
        prompts = list(dict.fromkeys(example.prompt for example in dev))[:count]
        if not answers or not prompts:
            return None
        longest = max(len(ids) for ids in answers)
        limit = min(limit, longest + longest // 2 + 8)
        as_json = all(_is_json(_text(builder, ids)) for ids in answers)
        return cls(model, tokenizer, prompts, builder.stop_ids, limit, as_json)

    def run(self) -> dict[str, float]:
        """Return rates between 0 and 1: `eos_rate`, and `format_rate` if good answers are JSON."""
        rollouts = [rollout for (rollout,) in self._sampler.sample(self.prompts, 1, self._sampling)]
        rates = {"eos_rate": _rate([rollout.finish == "stop" for rollout in rollouts])}
        if self._as_json:
            rates["format_rate"] = _rate([_is_json(rollout.text.strip()) for rollout in rollouts])
        return rates


def _rate(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def _text(builder: PromptBuilder, ids: Sequence[int]) -> str:
    words = builder.without_end(ids)
    text: str = builder.tokenizer.decode(words, skip_special_tokens=True)
    return text.strip()


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), (dict, list))
    except ValueError:
        return False
