"""The suites. Adding one: a file here, and a line in this table."""

from __future__ import annotations

from thumbwheel.core.plugins import VariantTable
from thumbwheel.evaluation.suite import Suite

SUITES: VariantTable[type[Suite]] = VariantTable(
    "suite",
    "thumbwheel.suites",
    {
        "success": "thumbwheel.evaluation.suites.success:Success",
        "preference": "thumbwheel.evaluation.suites.preference:PreferenceSuite",
        "json_agent": "thumbwheel.evaluation.suites.json_agent:JsonAgent",
        "reward": "thumbwheel.evaluation.suites.reward:RewardSuite",
        "regression": "thumbwheel.evaluation.suites.regression:RegressionSuite",
        "judge": "thumbwheel.evaluation.suites.judge:JudgeSuite",
        "benchmark": "thumbwheel.evaluation.suites.benchmark:Benchmark",
        "code": "thumbwheel.evaluation.suites.code:Code",
    },
)
"""In the order in which they are shown; the first one that judged anything is the primary one."""
