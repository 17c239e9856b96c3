"""Which reward function judges a case: the one that its row names, else the one that its kind of reference has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thumbwheel.rewards.function import RewardFunction
from thumbwheel.rewards.functions import FUNCTIONS


def checker(name: str | None, settings: Mapping[str, Any] | None, reference: Any, where: str) -> RewardFunction[Any]:
    """The function for a case; raises NotFound for an unknown one and ConfigError for impossible settings, named after `where`."""
    found = name or checker_of(reference)
    return FUNCTIONS.get(found).create(settings, f"checker {found!r} of {where}")


def checker_of(reference: Any) -> str:
    """The function for a case that names none: fields for a JSON object (also as text), otherwise the exact answer."""
    if isinstance(reference, dict):
        return "json_fields"
    if isinstance(reference, str) and reference.lstrip().startswith("{"):
        try:
            return "json_fields" if isinstance(json.loads(reference), dict) else "exact_answer"
        except (ValueError, RecursionError):
            return "exact_answer"
    return "exact_answer"
