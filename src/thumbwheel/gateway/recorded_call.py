"""What becomes of a call that is over: its line for the inbox, and what it used of its budgets."""

from __future__ import annotations

import time
from typing import Any

from thumbwheel.core import ids
from thumbwheel.gateway.application import Exchange
from thumbwheel.gateway.budget import Budgets
from thumbwheel.gateway.record import METADATA_KEY, Timing, trace_line
from thumbwheel.gateway.reply_draft import CallReply
from thumbwheel.gateway.spent import spent_by


def recorded_call(exchange: Exchange, budgets: Budgets) -> dict[str, Any] | None:
    """Return the line for the inbox; None for a call that is not recorded. Adds the call's tokens
    and cost to the budgets of its agent and its key."""
    reader = exchange.reader or exchange.call.reply_reader()
    reply = reader.finish(exchange.cause)
    spent = None
    if exchange.is_counted:
        was_answered = 200 <= exchange.status < 300
        spent = spent_by(exchange.call, reply, exchange.choice.upstream, was_answered)
        budgets.spend(exchange.accounts, spent.tokens, spent.cost)
    if exchange.trace_id is None:
        return None
    trace_id = exchange.trace_id
    leaves_name = exchange.call.context.feedback_id is not None and _is_failure(reply)
    if leaves_name:  # clients ask again under the same name, which belongs to the answer
        trace_id = ids.new("call")
    first_token = exchange.first_token
    timing = Timing(
        exchange.started_at,
        None if first_token is None else first_token - exchange.began,
        (exchange.ended or time.perf_counter()) - exchange.began,
    )
    line = trace_line(
        exchange.call,
        reply,
        exchange.choice,
        timing,
        agent=exchange.agent,
        trace_id=trace_id,
    )
    remarks = line["metadata"][METADATA_KEY]
    if spent is not None and spent.is_counted:
        remarks["counted_tokens"] = spent.tokens
    if leaves_name:
        remarks["feedback_id"] = exchange.trace_id
    if exchange.rate < 1.0:
        remarks["recorded_share"] = exchange.rate
    if exchange.key is not None:
        remarks["key"] = exchange.key
    if exchange.status:
        remarks["status"] = exchange.status
    return line


def _is_failure(reply: CallReply) -> bool:
    """Return whether the call failed without any text or tool call to judge."""
    return reply.error is not None and not (reply.text or reply.tool_calls)
