"""What a call used of the budgets of its agent and its key, also where the server does not tell.

OpenAI's and vLLM's servers tell the tokens of a stream only where the request asks for them. What
they leave out is counted by the text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from thumbwheel.gateway.budget import Account
from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.record import cost_of
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.gateway.reply_draft import CallReply
from thumbwheel.gateway.routing import Upstream
from thumbwheel.gateway.token_count import prompt_tokens, reply_tokens


@dataclass(frozen=True)
class Spent:
    """What a call used."""

    tokens: int
    """Of prompt and answer."""
    cost: float
    is_counted: bool
    """Whether a part of the tokens is counted by the text."""


def spent_by(call: CallRequest, reply: CallReply, upstream: Upstream, was_answered: bool) -> Spent:
    """Return the tokens and the cost of the call. `was_answered`: whether the server accepted the
    call; without an answer only the counts it reported are charged."""
    usage = reply.usage
    if was_answered:
        prompt = prompt_tokens(call) if usage.prompt is None else usage.prompt
        completion = reply_tokens(reply) if usage.completion is None else usage.completion
        usage = replace(usage, prompt=prompt, completion=completion)
    told_tokens = (reply.usage.prompt or 0) + (reply.usage.completion or 0)
    spent = (usage.prompt or 0) + (usage.completion or 0)
    return Spent(spent, cost_of(usage, upstream.price) or 0.0, is_counted=spent != told_tokens)


def require_price(accounts: list[Account], upstream: Upstream) -> None:
    """Raise Refusal if a cost limit cannot be enforced, because the remote server has no price."""
    has_price = None not in (upstream.price.prompt, upstream.price.completion)
    if has_price or upstream.target != "remote":
        return
    for account in accounts:
        if account.allowance.cost_per_day is not None:
            raise Refusal(
                402,
                f"{account.name} may cost {account.allowance.cost_per_day:g} a day, and version "
                f"{upstream.version} has no price: give it one (thumbwheel models endpoint URL "
                "--price-in --price-out; 0 where it costs nothing)",
            )
