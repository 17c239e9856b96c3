"""A call that has ended as an import line: what was asked and answered, who answered and why, how
long it took and what it cost.

Lives here: the form of the line. Not here: what the bytes say (`protocol`), how a line becomes
durable (sdk/segment.py), how it becomes rows (capture/inbox.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from thumbwheel.core import ids
from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.reply_draft import CallReply, Usage
from thumbwheel.gateway.routing import Choice, Price
from thumbwheel.importers.recordable import name_of, storable
from thumbwheel.importers.thoughts import without_thoughts

METADATA_KEY = "gateway"
"""Where a trace's metadata has what the gateway itself has to say; the other keys are the app's."""


@dataclass(frozen=True)
class Timing:
    """When a call came, and how long it took: seconds of a clock that is never set back, so that no
    step ends before it starts."""

    started_at: datetime
    """Aware."""
    first_token: float | None
    """Until the first piece of the answer; None where none came."""
    total: float

    def after(self, seconds: float) -> str:
        """Return the time `seconds` after the start, in ISO 8601 as in a line."""
        return (self.started_at + timedelta(seconds=seconds)).isoformat()


def trace_id_of(call: CallRequest) -> str:
    """Return the trace id of the call: the id under which its app will give feedback, or a new
    one."""
    return call.context.feedback_id or ids.new("call")


def trace_line(
    call: CallRequest,
    reply: CallReply,
    choice: Choice | None,
    timing: Timing,
    *,
    agent: str,
    trace_id: str,
) -> dict[str, Any]:
    """Build the inbox line of the call. `choice` is None if no upstream answered.

    If the answer has tool calls, the trace has no output: the text beside the calls is in the step.
    Text between <think> and </think> before the answer is not part of the output either.
    """
    reply = _without_thoughts(reply)
    status = "ok"
    if reply.error is not None:
        status = "cancelled" if reply.cancelled else "error"
    context = call.context
    line = {
        "agent": agent,
        "type": "trace",
        "id": trace_id,
        "session": context.session,
        "subject": context.subject,
        "parent": context.parent,
        "input": call.messages,
        "output": None if reply.tool_calls else reply.text,
        "status": status,
        "occurred_at": timing.after(0),
        "metadata": {**(context.metadata or {}), METADATA_KEY: _remarks(call, reply)},
    }
    steps = [_step(call, reply, choice, timing, status)]
    if reply.reasoning:
        steps.insert(0, {"kind": "reasoning", "output": reply.reasoning})
    return _without_none(line) | {"steps": steps}


def _without_thoughts(reply: CallReply) -> CallReply:
    """Return the reply with the thoughts in its text moved to its reasoning, as servers with a
    parser for them do. Token ids and log-probabilities belong to the whole text and are dropped."""
    if reply.text is None or ("<think>" not in reply.text and "</think>" not in reply.text):
        return reply
    thought, text = without_thoughts(reply.text)
    if not thought:
        return reply
    reasoning = "\n\n".join(filter(None, [reply.reasoning, thought]))
    return replace(reply, text=text, reasoning=reasoning, token_ids=None, token_logprobs=None)


def cost_of(usage: Usage, price: Price) -> float | None:
    """Return the cost of the tokens at a price per million; None if a needed count or price is
    unknown.

    >>> cost_of(Usage(prompt=1000, completion=500), Price(prompt=2.0, completion=8.0))
    0.006
    """
    cost = 0.0
    for count, rate in ((usage.prompt, price.prompt), (usage.completion, price.completion)):
        if count == 0 or rate == 0:
            continue
        if count is None or rate is None:
            return None
        cost += count * rate / 1e6
    return cost


def _step(
    call: CallRequest, reply: CallReply, choice: Choice | None, timing: Timing, status: str
) -> dict[str, Any]:
    usage = reply.usage
    step: dict[str, Any] = {
        "kind": call.protocol.step_kind,
        "input": {"tools": call.tools} if call.tools else None,
        "output": _output(reply),
        "status": status,
        "started_at": timing.after(0),
        "ended_at": timing.after(timing.total),
        "model": name_of(call.model),
        "served_model": reply.served_model,
        "finish_reason": reply.finish_reason,
        "sampling": call.sampling or None,
        "tokens": _without_none(vars(usage)) or None,
        "token_ids": reply.token_ids,
        "token_logprobs": reply.token_logprobs,
        "complete": reply.complete and not call.conversation.truncated,
        "error": reply.error,
    }
    if timing.first_token is not None:
        step["first_token_at"] = timing.after(timing.first_token)
    if call.protocol.step_kind != "llm":
        step["name"] = call.protocol.name
    if choice is not None:
        draw = choice.draw
        routing = {
            "arm": choice.arm,
            "assigned": draw.arm if draw and draw.arm != choice.arm else None,
            "experiment": draw.experiment if draw else None,
            "stratum": draw.stratum if draw else None,
            "unit": draw.unit if draw else None,
            "probabilities": dict(choice.probabilities) or None,
            "fails_everywhere": choice.fails_everywhere or None,
            "reason": storable(choice.reason[:2000]) or None,
        }
        step |= {
            "model_version": choice.version,
            "deployment": choice.deployment,
            "routing": _without_none(routing) or None,
            "cost": cost_of(usage, choice.upstream.price),
        }
    return _without_none(step)


def _output(reply: CallReply) -> dict[str, Any] | None:
    """Return the answer with its tool calls and alternatives; None if it is only text."""
    output: dict[str, Any] = {}
    if reply.tool_calls:
        output["tool_calls"] = reply.tool_calls
    if reply.alternatives:
        output["alternatives"] = reply.alternatives
    return {"content": reply.text, **output} if output else None


def _remarks(call: CallRequest, reply: CallReply) -> dict[str, Any]:
    """Return how the call was made and which parts of it are missing from the record."""
    remarks: dict[str, Any] = {"protocol": call.protocol.name, "reply_id": reply.id}
    truncated = {"input": call.conversation.truncated, "output": reply.truncated}
    remarks["truncated"] = [part for part, is_cut in truncated.items() if is_cut] or None
    remarks["problem"] = reply.problem
    return _without_none(remarks)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
