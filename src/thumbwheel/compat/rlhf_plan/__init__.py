"""The room of the plan for feedback, PPO and A/B tests: its `rlhf:` file of settings, as ours."""

from thumbwheel.compat.rlhf_plan.settings import Converted, convert_settings

__all__ = ["Converted", "convert_settings"]
