"""Thumbwheel by its defaults, from a home that holds the world, and what its gate says of the
result: `python ours.py SPEC.json`.

`learner` is `ours METHOD`. grpo and ppo come after a reward model that learns from the same
feedback, unless checkers judge. `ours reward` is a reward model itself. `ours plan` is what the
data plan recommends, `ours dev` the candidate that a comparison of all eligible methods on the dev
rows chooses.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from learners.learner import Spec, cost, report
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation.dev import compare_on_dev
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.gate import gate
from thumbwheel.models import reward_models, versions
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import adapter_folder, version
from thumbwheel.training.data_plan import data_plan
from thumbwheel.training.train import train

SAMPLING = ("grpo", "ppo")


def main() -> None:
    """Train, and hand the adapter over; without one where nothing was learned."""
    spec = Spec.read()
    what = spec.learner.split()[1]
    with Workspace.open(Home.at(Path(spec.home)), Sources({}, "the benchmark", {})) as ws:
        if what == "reward":
            learned = reward_model(ws, spec)
            report(spec, **learned, adapter=spec.out if Path(spec.out).is_dir() else None)
            return
        if what == "plan":
            plan = data_plan(ws, spec.agent)
            learned = {} if plan.recommended is None else trained(ws, spec, plan.recommended)
            learned |= {"recommended": plan.recommended}
        elif what == "dev":
            learned = best_on_dev(ws, spec)
        else:
            learned = trained(ws, spec, what)
        name, learned = learned.get("version"), learned | cost()
        adapter = adapter_folder(ws, version(ws, spec.agent, name)) if name else None
        if adapter:
            shutil.copytree(adapter, spec.out)
        if adapter and spec.gated:
            learned |= judged(ws, spec.agent, str(name))
    report(spec, **learned, adapter=spec.out if adapter else None)


def trained(ws: Workspace, spec: Spec, method: str) -> dict[str, Any]:
    """The version that `method` makes, or why it makes none."""
    options: dict[str, Any] = dict(spec.options)
    if method in SAMPLING:
        options["max_completion_length"] = spec.max_new_tokens
    if method in SAMPLING and not spec.checked:
        judge = train(
            ws,
            Agent.named(spec.agent),
            "reward",
            find_base(spec.base, ws.home.cache),
            options={"loss_type": "classification"},
        )
        if judge.reward_model is None:
            return {"reason": f"the reward model: {judge.reason}"}
        options["reward_model"] = judge.reward_model
    try:
        result = train(
            ws,
            Agent.named(spec.agent),
            method,
            find_base(spec.base, ws.home.cache),
            options=options,
        )
    except ThumbwheelError as error:
        return {"reason": str(error)}
    return {
        "version": result.version,
        "method": method,
        "reason": result.reason,
        "step": result.metrics.get("best_step"),
    }


def reward_model(ws: Workspace, spec: Spec) -> dict[str, Any]:
    """Train a reward model from pairs into `spec.out`, or say why there is none."""
    try:
        result = train(
            ws,
            Agent.named(spec.agent),
            "reward",
            find_base(spec.base, ws.home.cache),
            options=spec.options,
        )
    except ThumbwheelError as error:
        return {"reason": str(error)}
    if result.reward_model is None:
        return {"reason": result.reason}
    learned = {"method": "reward", "reason": result.reason} | cost()
    shutil.copytree(
        reward_models.folder(ws, reward_models.find(ws, spec.agent, result.reward_model)), spec.out
    )
    return learned


def judged(ws: Workspace, agent: str, name: str) -> dict[str, Any]:
    """What the gate says of a version."""
    decision = gate(ws, evaluate(ws, versions.version(ws, agent, name))).decision
    return {"verdict": decision.verdict.value, "verdict_reasons": list(decision.reasons)}


def best_on_dev(ws: Workspace, spec: Spec) -> dict[str, Any]:
    """The best of all eligible methods by the dev rows."""
    methods = data_plan(ws, spec.agent).eligible
    candidates = [trained(ws, spec, method) for method in methods]
    by_version = {
        candidate["version"]: candidate for candidate in candidates if candidate.get("version")
    }
    if not by_version:
        return {"reason": "; ".join(str(candidate["reason"]) for candidate in candidates)}
    chosen = compare_on_dev(ws, [versions.version(ws, spec.agent, name) for name in by_version])
    if chosen.best is None:
        return {"reason": "; ".join(chosen.reasons)}
    return by_version[chosen.best]


if __name__ == "__main__":
    main()
