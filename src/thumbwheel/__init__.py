"""Thumbwheel: turns the feedback that people give an LLM app or agent into a better model, on their own machine."""

from thumbwheel.sdk import feedback, trace

__version__ = "0.1.0"
__all__ = ["__version__", "feedback", "trace"]
