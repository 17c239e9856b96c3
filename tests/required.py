"""What tests need of a machine. Where it is missing they are skipped, unless the variable that
demands it is set: then they fail.

THUMBWHEEL_REQUIRE_TOOLS (llama.cpp's programs), THUMBWHEEL_REQUIRE_SANDBOX,
THUMBWHEEL_REQUIRE_DATA (the public data) and THUMBWHEEL_REQUIRE_PEERS (servers of others) each
demand one thing. THUMBWHEEL_REQUIRE_ALL makes a failure of every skip but those of MACHINE, so that
no test is left out in CI without a word.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

MACHINE = (
    "x32 is of x86_64",
    "no cgroup:",
    "run as an ordinary user already",
    "a small disk can be mounted by root only",
    "neither CUDA nor Metal",
    "bitsandbytes' 4 bits are CUDA's",
    "needs a real Ollama",
    "needs a Go toolchain",
    "transformers 4.57 cannot be installed here",
    "bloom rounds its softmax",
    "is Linux's",
    "reading of Linux",
    "read from /proc",
    "when it next reads its pipe",
    "memory cannot be measured here",
    "needs /dev/full",
    "cannot be installed from the index of packages",
    "an embedded PostgreSQL has no ICU",
    "of llama.cpp not compiled",
)
"""Reasons that lie in the machine or the processor, and that no installation would change; and that
of llama.cpp, whose server CI compiles where a change reaches what it serves, and then demands."""


def missing(what: str, why: str) -> NoReturn:
    """The test cannot run for want of `what` (tools, sandbox, data)."""
    if os.environ.get(f"THUMBWHEEL_REQUIRE_{what.upper()}"):
        pytest.fail(why)
    pytest.skip(why)


def unexcused(reason: str) -> bool:
    """Whether a skip for this reason is a failure here."""
    return bool(os.environ.get("THUMBWHEEL_REQUIRE_ALL")) and not any(
        excuse in reason for excuse in MACHINE
    )
