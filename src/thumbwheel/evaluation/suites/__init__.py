"""The suites. Adding one: a file here, and a line in this table."""

from __future__ import annotations

from thumbwheel.core.plugins import Table
from thumbwheel.evaluation.suite import Suite

SUITES: Table[type[Suite]] = Table(
    "suite",
    "thumbwheel.suites",
    {
        "success": "thumbwheel.evaluation.suites.success:Success",
        "preference": "thumbwheel.evaluation.suites.preference:Preference",
        "json_agent": "thumbwheel.evaluation.suites.json_agent:JsonAgent",
        "reward": "thumbwheel.evaluation.suites.reward:Reward",
        "regression": "thumbwheel.evaluation.suites.regression:Regression",
        "judge": "thumbwheel.evaluation.suites.judge:Judge",
        "benchmark": "thumbwheel.evaluation.suites.benchmark:Benchmark",
        "code": "thumbwheel.evaluation.suites.code:Code",
    },
)
"""In the order in which they are shown; the first one that judged anything is the primary one."""
