"""Where a run's fresh answers come from: the policy in this process, or another source of the
table."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from thumbwheel.core import log
from thumbwheel.core.hardware import GB
from thumbwheel.engine import merged
from thumbwheel.engine.rollout import SOURCES, RolloutSource
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.training.algorithm import Parts
from thumbwheel.training.memory import free_gb

if TYPE_CHECKING:
    from thumbwheel.training.online import OnlineConfig

SHARE = 0.5
"""Of the free memory a copy of the weights may take so much; the updates need the rest."""


def policy(parts: Parts, limit: float | None) -> GroupSampler:
    """Return the sampler of the policy's own answers: through a merged copy if there is room for
    one in every rank."""
    model, device, ranks = parts.engine.model, parts.engine.device.type, parts.engine.ranks
    size, free = merged.size(model) / GB, free_gb(device, limit, ranks.world)
    has_room = free is None or size <= SHARE * free
    merge = all(ranks.exchange(has_room, "room for a merged copy"))
    if not has_room:
        log.say(
            f"Sampling without a merged copy of the weights, which is slower: it takes {size:.2f} "
            f"GB, and {free:.2f} GB are free."
        )
    label = ranks.from_first(lambda: f"policy-{secrets.token_hex(4)}", "name of the policy")
    return GroupSampler(model, parts.builder.tokenizer, merge=merge, label=label)


def source_of(config: OnlineConfig, policy_sampler: GroupSampler) -> RolloutSource:
    """Return the source of the answers that the run learns from."""
    if config.top_k or config.top_p < 1:
        log.say(
            "top_k and top_p cut the distribution that answers are drawn from; it is learned from "
            "as if they did not."
        )
    source: RolloutSource = SOURCES.get(config.rollouts).of(config, policy_sampler)
    return source
