"""`ABTestingFramework` of the plan: variants of an assistant, their assignment to users, and what
was measured, in this process.

A user stays with a variant for as long as the experiment's name and the variants' weights are the
same, in every process. Metrics are compared one by one. Their intervals hold at any moment, also
for a test that is stopped when it looks good; for deployed versions see `thumbwheel experiment`.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from statistics import fmean
from typing import Any

from thumbwheel.core.errors import ConfigError, InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets.split import share_of

TUNED_FOR = 1000.0
"""Users at which the intervals are tightest."""
MOST_ASSISTANTS = 1000
CONTROL = "control"
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    CONTROL: {"model": "qwq-32b", "config": {}},
    "variant_a": {"model": "qwq-32b-finetuned", "config": {}},
}


@dataclass(frozen=True)
class _Measured:
    variant: str
    value: float
    user: str


class ABTestingFramework:
    """An experiment. `variants`: name -> {model, config, weight (1 by default)}; the first one is
    what the others are compared with.

    `create_assistant(model_id=..., **config)` gives an object with `chat(query)`, or something to
    call with the query. If it takes `user_name`, as `create_agentic_assistant` does, every user
    has an assistant, so that nobody's conversation goes into an answer to somebody else; those of
    the last thousand users are kept.
    """

    def __init__(
        self,
        variants: Mapping[str, Mapping[str, Any]] | None = None,
        create_assistant: Callable[..., Any] | None = None,
        experiment: str = "ab_test",
    ) -> None:
        self.variants = {name: dict(variant) for name, variant in (variants or VARIANTS).items()}
        for name, variant in self.variants.items():
            if "model" not in variant:
                raise ConfigError(
                    f"variant {name!r}", "it names no model", 'Give one: {"model": "qwq-32b"}'
                )
        self.create_assistant = create_assistant
        self.experiment = experiment
        self.metrics: dict[str, list[_Measured]] = {}
        self._assistants: OrderedDict[tuple[str, str | None], Any] = OrderedDict()
        weights = [variant.get("weight", 1.0) for variant in self.variants.values()]
        if min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(
                f"weights {weights!r}",
                "they are shares of the users",
                "Give numbers from 0 on, one of them above 0",
            )

    def assign_variant(self, user_id: str) -> str:
        """Return the variant of a user; it is always the same."""
        total = sum(variant.get("weight", 1.0) for variant in self.variants.values())
        position = share_of(self.experiment, user_id) * total
        end = 0.0
        chosen = ""
        for name, variant in self.variants.items():
            weight = variant.get("weight", 1.0)
            end += weight
            if weight:
                chosen = name
            if weight and position < end:
                break
        return chosen

    async def run_query(self, user_id: str, query: str) -> str:
        """Return the answer of the user's variant; other queries go on meanwhile. Raises InputError
        if no assistant can be made."""
        if self.create_assistant is None:
            fix = "Give create_assistant: ABTestingFramework(variants, create_assistant)"
            raise InputError("run_query", "no assistant factory is set", fix)
        assistant = self._assistant(self.create_assistant, user_id)
        answer = await asyncio.to_thread(getattr(assistant, "chat", assistant), query)
        return str(answer)

    def _assistant(self, create: Callable[..., Any], user_id: str) -> Any:
        """Return the assistant of the user's variant, or of the user; make it if there is none."""
        name = self.assign_variant(user_id)
        variant = self.variants[name]
        config = dict(variant.get("config", {}))
        user = user_id if _takes_user_name(create) else None
        if user is not None:
            config["user_name"] = user
        if (name, user) not in self._assistants:
            self._assistants[name, user] = create(model_id=variant["model"], **config)
        self._assistants.move_to_end((name, user))
        if len(self._assistants) > MOST_ASSISTANTS:
            self._assistants.popitem(last=False)
        return self._assistants[name, user]

    def record_metric(
        self,
        variant: str,
        metric_name: str,
        value: float,
        user_id: str | None = None,
    ) -> None:
        """Note a value. Values of one user (default: each of its own) count together, as they are
        not independent. Raises InputError for an unknown variant and a value that is no finite
        number: a single one would make every mean NaN.
        """
        if variant not in self.variants:
            fix = f"Known: {', '.join(self.variants)}.{nearest(variant, self.variants)}"
            raise InputError(f"variant {variant!r}", "there is no such variant", fix)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            what = f"value {value!r} of metric {metric_name!r}"
            raise InputError(what, "it is not a finite number", "Leave it out, or correct it")
        measured = self.metrics.setdefault(metric_name, [])
        measured.append(_Measured(variant, float(value), user_id or f"value {len(measured)}"))

    def analyze_results(self, level: float = 0.95) -> dict[str, dict[str, Any]]:
        """Return metric -> variant -> n, users and mean, and for all but the first variant `gain`
        over it with the interval `low` to `high`.

        The mean of a variant without values is None, as are gain, low and high if nothing is known
        about the gain.
        """
        results = {}
        for metric, measured in self.metrics.items():
            results[metric] = self._compared(measured, level)
        return results

    def _compared(self, measured: Sequence[_Measured], level: float) -> dict[str, Any]:
        control = next(iter(self.variants))
        results: dict[str, Any] = {}
        for name in self.variants:
            values = [entry.value for entry in measured if entry.variant == name]
            users = {entry.user for entry in measured if entry.variant == name}
            results[name] = {
                "n": len(values),
                "users": len(users),
                "mean": fmean(values) if values else None,
            }
            if name != control:
                both = [entry for entry in measured if entry.variant in (control, name)]
                results[name] |= _gain(both, name, level)
        return results


def _takes_user_name(create: Callable[..., Any]) -> bool:
    try:
        return "user_name" in signature(create).parameters
    except ValueError:  # some functions written in C have none
        return False


def _gain(measured: Sequence[_Measured], variant: str, level: float) -> dict[str, float | None]:
    """Return the difference of the two means, with an interval (None if it cannot be estimated).
    The error is a jackknife over users; the interval stays valid however often it is looked at."""
    from thumbwheel.stats.paired import jackknife
    from thumbwheel.stats.sequential import Difference

    def difference(indices: Any) -> float | None:
        after = [measured[index].value for index in indices if measured[index].variant == variant]
        before = [measured[index].value for index in indices if measured[index].variant != variant]
        return fmean(after) - fmean(before) if after and before else None

    treated = {entry.user for entry in measured if entry.variant == variant}
    untreated = {entry.user for entry in measured if entry.variant != variant}
    if len(treated) < 2 or len(untreated) < 2:
        return {"gain": None, "low": None, "high": None}
    estimate = jackknife(difference, len(measured), [entry.user for entry in measured])
    if estimate.error is None:
        return {"gain": estimate.value, "low": None, "high": None}
    sequence = Difference(estimate.value, estimate.error**2, len(treated) + len(untreated))
    interval = sequence.interval(1 - level, TUNED_FOR)
    return {"gain": estimate.value, "low": interval.low, "high": interval.high}
