"""What a user's app imports: `trace()` and `feedback()`. No torch, nothing of the rest.

Lives here: writing to the home's inbox (`record`) or to a server (`remote`), and a run while it
happens (`tracing`). Not here: reading, training, or anything that looks at the database.

    import thumbwheel

    answer = thumbwheel.trace("support", input="How do I reset it?", output="Hold the button for ten
    seconds.") thumbwheel.feedback("support", answer, thumb=True, rater="customer-17")
"""

from thumbwheel.sdk.judgement import SIGNALS
from thumbwheel.sdk.record import feedback, flush, home, spool, trace
from thumbwheel.sdk.tracing import Trace

__all__ = [
    "SIGNALS",
    "Trace",
    "feedback",
    "flush",
    "home",
    "spool",
    "trace",
]
