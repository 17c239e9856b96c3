"""The variants that the systems bring: entry-point group -> name -> "module:attribute".

Tables of variants read this module as they read the entry points of an installed package.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIANTS: Mapping[str, Mapping[str, str]] = {
    "thumbwheel.sources": {
        "flowagent": "thumbwheel.compat.isaa.source:SOURCE",
        "decisions": "thumbwheel.compat.ocd.source:SOURCE",
        "widgets": "thumbwheel.compat.command_center.source:SOURCE",
        "feedback_jsonl": "thumbwheel.compat.rlhf_plan.source:SOURCE",
        "n3": "thumbwheel.compat.n3.source:SOURCE",
    },
    "thumbwheel.reward_functions": {
        "decision": "thumbwheel.compat.ocd.decision_function:DecisionFunction",
    },
    "thumbwheel.reward_presets": {
        "isaa": "thumbwheel.compat.isaa.preset:PRESET",
        "ocd": "thumbwheel.compat.ocd.preset:PRESET",
    },
    "thumbwheel.reward_arithmetics": {
        "isaa": "thumbwheel.compat.isaa.preset:counted_value",
    },
    "thumbwheel.dialects": {
        "n3": "thumbwheel.compat.n3.routes:add_routes",
        "ocd": "thumbwheel.compat.ocd.routes:add_routes",
        "command-center": "thumbwheel.compat.command_center.routes:add_routes",
    },
    "thumbwheel.job_kinds": {
        "train policy": "thumbwheel.compat.n3.jobs:TRAIN_POLICY",
    },
    "thumbwheel.export_layouts": {
        "tree": "thumbwheel.compat.n3.version_tree:export",
    },
}
