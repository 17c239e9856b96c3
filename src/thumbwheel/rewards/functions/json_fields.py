"""`json_fields`: the answer is a JSON object whose fields equal those of the reference.

Strict, as `rewards/json_answer.py` says. Well-formed means: it parses, and the expected fields are
there.
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.json_answer import equal, parse_object


class JsonFieldsConfig(Config):
    """Settings of `json_fields`."""

    fields: tuple[str, ...] | None = None
    """Only these fields count [default: all fields of the reference]."""
    weights: dict[str, float] | None = None
    """Weight of a field; the value is then the weighted share that is right, instead of all or
    nothing. Unnamed fields weigh 1."""
    allow_extra: bool = True
    """Further fields in the answer do no harm; otherwise they make it ill-formed and wrong."""

    @model_validator(mode="after")
    def _weights_are_positive(self) -> JsonFieldsConfig:
        if self.weights is not None and (
            min(self.weights.values(), default=1.0) < 0 or not sum(self.weights.values())
        ):
            raise ValueError("weights must not be negative, and one must be above zero")
        return self


class JsonFields(RewardFunction[JsonFieldsConfig]):
    Config = JsonFieldsConfig
    case_settings = frozenset({"allow_extra", "fields", "weights"})
    version = 2

    def judge(self, case: Case) -> Score:
        """Return 1 if all fields are right, else 0 (or the weighted share); evidence names the
        wrong, missing and extra fields."""
        reference = self._reference(case.reference)
        names = self.config.fields or (tuple(reference) if reference is not None else ())
        try:
            answer = parse_object(case.text)
        except ValueError as error:
            problem, answer = str(error), None
        if reference is None:
            well_formed = (answer is not None and set(names) <= set(answer)) if names else None
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "the case has no JSON object as its reference",
                well_formed,
            )
        lacking = [name for name in names if name not in reference]
        if lacking:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                f"the reference has no field {', '.join(lacking)}, so nothing says what is right",
            )
        if answer is None:
            return Score(0.0, evidence={"parsed": False, "problem": problem}, well_formed=False)
        return self._compare(answer, reference, names)

    def _compare(
        self, answer: dict[str, Any], reference: dict[str, Any], names: tuple[str, ...]
    ) -> Score:
        missing = [name for name in names if name not in answer]
        present = [name for name in names if name in answer]
        wrong = [name for name in present if not equal(answer[name], reference[name])]
        extra: list[str] = []
        if not (self.config.allow_extra and names):
            extra = [name for name in answer if name not in reference and name not in names]
        evidence = {"parsed": True, "wrong": wrong, "missing": missing, "extra": extra}
        value = 0.0 if extra else self._value(names, {*wrong, *missing})
        return Score(value, evidence=evidence, well_formed=not missing and not extra)

    def _value(self, names: tuple[str, ...], bad: set[str]) -> float:
        if self.config.weights is None:
            return float(not bad)
        weights = {name: self.config.weights.get(name, 1.0) for name in names}
        total = sum(weights.values())
        if not total:
            return float(not bad)
        return sum(weight for name, weight in weights.items() if name not in bad) / total

    def _reference(self, reference: Any) -> dict[str, Any] | None:
        if isinstance(reference, str):
            try:
                return parse_object(reference)
            except ValueError:
                return None
        return reference if isinstance(reference, dict) else None
