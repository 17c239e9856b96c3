"""Which reward function judges a case: the one that its row names, else the one that its kind of reference has."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status
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


def waits(name: str | None) -> bool:
    """Whether this function judges by what is said about an answer later, so that a fresh one has no score; also False for an unknown."""
    return name in FUNCTIONS.names() and "feedback" in FUNCTIONS.get(name).reads


class NoSettings(Config):
    """`checker` has no settings of its own: the case brings them."""


class Checked(RewardFunction[NoSettings]):
    """The component `checker`: judges by what the trace's own case names, or what its kind of reference has."""

    Config = NoSettings
    low, high = -math.inf, math.inf
    reads = frozenset({"text", "reference", "prompt", "steps", "finish", "status", "metadata"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """What the named function depends on, and which it is."""
        try:
            function = self._function(case)
        except (NotFound, ConfigError) as error:
            return {"unusable": str(error)}
        if function is None:
            return {}
        return {"function": self._name(case), "version": function.version, "identity": function.identity(), **function.inputs(case)}

    def judge(self, case: Case) -> Score:
        """The score of that function; blocked where there is none of that name or its settings are impossible."""
        try:
            function = self._function(case)
        except (NotFound, ConfigError) as error:
            return Score.none(Status.BLOCKED, str(error))
        if function is None:
            return Score.none(Status.NOT_APPLICABLE, "no case with a reference or a checker belongs to it")
        (found,) = function.score([case])
        return replace(found, evidence={"checker": self._name(case), **found.evidence})

    def _name(self, case: Case) -> str:
        return str(case.metadata.get("checker") or checker_of(case.reference))

    def _function(self, case: Case) -> RewardFunction[Any] | None:
        if case.reference is None and not case.metadata.get("checker"):
            return None
        return checker(case.metadata.get("checker"), case.metadata.get("checker_config"), case.reference, "its case")
