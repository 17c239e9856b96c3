"""The reward function that judges a case: the one that its row names, else the default for its kind
of reference.

A case is data, and may come from a stranger. It may bring the settings that the function declares
for that (`case_settings`); all others come from the owner (`rewards.checkers` in the settings).
This is checked at import (`refusal`) and again when a case is judged (`checker`), because a home
may hold cases from before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.errors import ConfigError, NotFound
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.functions import FUNCTIONS

OwnerSettings = Mapping[str, Mapping[str, Any]]
"""Name of a reward function -> the settings that the owner gives it where a case names it."""


def checker(
    name: str | None,
    settings: Mapping[str, Any] | None,
    reference: Any,
    where: str,
    owner: OwnerSettings,
) -> RewardFunction[Any]:
    """Return the function for a case, with the owner's settings and those that the case may set.

    Raises NotFound for an unknown function, ConfigError, named after `where`, for impossible
    settings and for settings that no case may set.
    """
    function_name = name or checker_of(reference)
    function = FUNCTIONS.get(function_name)
    if (reason := refusal(name, settings, reference)) is not None:
        raise ConfigError(
            f"checker_config of {where}",
            reason,
            f"Remove it from the case, or set it for all cases: rewards: {{checkers: "
            f"{{{function_name}: ...}}}}",
        )
    merged = {**owner.get(function_name, {}), **(settings or {})}
    return function.create(merged, f"checker {function_name!r} of {where}")


def refusal(name: str | None, settings: Mapping[str, Any] | None, reference: Any) -> str | None:
    """Return why a case may not set these settings, or None if it may, and for a function that is
    not installed: it judges nothing."""
    function_name = name or checker_of(reference)
    if not settings or function_name not in FUNCTIONS.names():
        return None
    allowed = FUNCTIONS.get(function_name).case_settings
    fields = FUNCTIONS.get(function_name).Config.model_fields
    forbidden = [key for key in settings if key in fields and key not in allowed]
    if not forbidden:
        return None
    permitted = ", ".join(sorted(allowed)) or "nothing"
    return (
        f"it sets {', '.join(map(repr, forbidden))} of {function_name!r}, which only the owner's "
        f"settings may; a case may set {permitted}"
    )


def checker_of(reference: Any) -> str:
    """Return the function for a case that names none: fields for a JSON object (also as text),
    otherwise the exact answer."""
    if isinstance(reference, dict):
        return "json_fields"
    if isinstance(reference, str) and reference.lstrip().startswith("{"):
        try:
            return "json_fields" if isinstance(json.loads(reference), dict) else "exact_answer"
        except (ValueError, RecursionError):
            return "exact_answer"
    return "exact_answer"


def needs_feedback(name: str | None) -> bool:
    """Return whether this function judges by later feedback on an answer, so that a fresh one has
    no score; False for an unknown function."""
    return name in FUNCTIONS.names() and "feedback" in FUNCTIONS.get(name).reads


class CheckerConfig(Config):
    """Settings of `checker`: what the owner gives the functions that cases name. The case brings
    the rest."""

    functions: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Function -> its settings; filled in from `rewards.checkers`."""


class CaseChecker(RewardFunction[CheckerConfig]):
    """The component `checker`: judges by what the trace's own case names, or what its kind of
    reference has."""

    Config = CheckerConfig
    low, high = -math.inf, math.inf
    reads = frozenset({"text", "reference", "prompt", "steps", "finish", "status", "metadata"})

    def identity(self) -> Any:
        """Return an empty object: the identity of the function that judges a case is among its
        `inputs`, so a setting of one function re-judges only the cases that name it."""
        return {}

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the inputs of the named function, with its name, version and identity."""
        try:
            function = self._function(case)
        except (NotFound, ConfigError) as error:
            return {"unusable": str(error)}
        if function is None:
            return {}
        return {
            "function": self._name(case),
            "version": function.version,
            "identity": function.identity(),
            **function.inputs(case),
        }

    def judge(self, case: Case) -> Score:
        """Return the score of that function; blocked if the function is unknown or its settings are
        impossible."""
        try:
            function = self._function(case)
        except (NotFound, ConfigError) as error:
            return Score.none(JudgementStatus.BLOCKED, str(error))
        if function is None:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "no case with a reference or a checker belongs to it",
            )
        (score,) = function.score([case])
        return replace(score, evidence={"checker": self._name(case), **score.evidence})

    def _name(self, case: Case) -> str:
        return str(case.metadata.get("checker") or checker_of(case.reference))

    def _function(self, case: Case) -> RewardFunction[Any] | None:
        if case.reference is None and not case.metadata.get("checker"):
            return None
        settings = case.metadata.get("checker_config")
        return checker(
            case.metadata.get("checker"),
            settings,
            case.reference,
            "its case",
            self.config.functions,
        )
