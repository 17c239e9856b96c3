"""Thumbwheel: turns the feedback that people give an LLM app or agent into a better model, on their
own machine."""

from thumbwheel.sdk import TraceCollector, feedback, flush, hook_into_agent, trace

__version__ = "0.1.0"
__all__ = ["TraceCollector", "__version__", "feedback", "flush", "hook_into_agent", "trace"]
