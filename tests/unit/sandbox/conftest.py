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
def report() -> canaries.CanaryReport:
    report = canaries.examine()
    if not report.allowed:
        message = f"code may not run on this machine: {report.reason}. {report.fix}"
        missing("sandbox", message)
    return report


@pytest.fixture(scope="module")
def pool(report):
    pool = Pool(LIMITS, workers=1, level=report.level)
    yield pool
    pool.close()
