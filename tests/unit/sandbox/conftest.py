"""The sandbox of these tests. Where there is none they are skipped with the reason; with
THUMBWHEEL_REQUIRE_SANDBOX set they fail."""

from __future__ import annotations

import pytest

from tests.required import missing
from thumbwheel.sandbox import canaries
from thumbwheel.sandbox.pool import Pool
from thumbwheel.sandbox.types import Limits

LIMITS = Limits(
    wall_seconds=20,
    cpu_seconds=10,
    memory_mb=128,
    processes=16,
    files_mb=8,
    inodes=256,
    output_kb=16,
)


@pytest.fixture(scope="session")
def report() -> canaries.Report:
    found = canaries.examine()
    if not found.allowed:
        said = f"code may not run on this machine: {found.reason}. {found.fix}"
        missing("sandbox", said)
    return found


@pytest.fixture(scope="module")
def pool(report):
    made = Pool(LIMITS, workers=1, level=report.level)
    yield made
    made.close()
