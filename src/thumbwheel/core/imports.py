"""Tells whether code is being imported.

An exception that comes from outside, as one that a signal handler raises, must not reach an import:
it leaves a half-initialised module behind, and every later import of it in the process fails.
"""

from __future__ import annotations

from types import FrameType

MACHINERY = "<frozen importlib._bootstrap>"
"""The file of the frames that import a module."""


def is_importing(frame: FrameType | None) -> bool:
    """Return whether `frame`, or one that called it, imports a module."""
    while frame is not None:
        if frame.f_code.co_filename == MACHINERY:
            return True
        frame = frame.f_back
    return False
