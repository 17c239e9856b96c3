"""What a user's app imports: `trace()`, `feedback()`, and for agents `TraceCollector` and
`hook_into_agent`. No torch, nothing of the rest.

Lives here: writing to the home's inbox (`record`), a run of an agent while it happens
(`collector`), its form on disk (`tracefile`), recording an agent's own methods (`hook`). Not here:
reading, training, or anything that looks at the database.

    import thumbwheel

    answer = thumbwheel.trace("support", input="How do I reset it?", output="Hold the button for ten
    seconds.") thumbwheel.feedback("support", answer, thumb=True, rater="customer-17")
"""

from thumbwheel.sdk.collector import TraceCollector
from thumbwheel.sdk.hook import Hook, hook_into_agent
from thumbwheel.sdk.judgement import SIGNALS
from thumbwheel.sdk.record import feedback, flush, home, spool, trace
from thumbwheel.sdk.tracefile import ExecutionTrace, ReasoningStep, ToolCallTrace
from thumbwheel.sdk.tracing import Trace

__all__ = [
    "SIGNALS",
    "ExecutionTrace",
    "Hook",
    "ReasoningStep",
    "ToolCallTrace",
    "Trace",
    "TraceCollector",
    "feedback",
    "flush",
    "home",
    "hook_into_agent",
    "spool",
    "trace",
]
