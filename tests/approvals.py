"""A version that the gate itself approved: an evaluation of answers that were right or wrong, kept
and decided on as any other."""

from __future__ import annotations

from itertools import count

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Pair
from thumbwheel.evaluation.evaluate import store_evaluation
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.types import SUCCESS, Evaluation, EvaluationConfig, HeldOutCase
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, ModelVersion

NUMBERS = count()
CASES, GAINS = 60, 40


def evaluation_of(
    ws: Workspace, version: ModelVersion, basis: Basis, gains: int = GAINS, losses: int = 0
) -> Evaluation:
    """Kept in the home: of 60 cases `gains` became right, `losses` wrong, all others stayed
    wrong."""
    base = versions.versions(ws, Agent.named(version.agent))[0]
    cases = [
        HeldOutCase(str(number), str(number), "", _asked(number), None, None, None, {})
        for number in range(CASES)
    ]
    pairs = [
        Pair(case, float(number >= CASES - losses), float(number < gains))
        for number, case in enumerate(cases)
    ]
    before, after = (
        [f"Case {case.id} is settled by the {word} form." for case in cases]
        for word in ("old", "new")
    )
    primary = compare.success(SUCCESS, pairs, 0.95)
    name = f"evl_approval{next(NUMBERS)}"
    evaluation = Evaluation(
        id=name,
        agent=version.agent,
        candidate_id=version.id,
        candidate=version.name,
        against_id=base.id,
        against=base.name,
        basis=basis,
        fresh=True,
        primary=primary,
        preferences=(),
        guards=(),
        slices=(),
        examples=compare.most_changed(pairs, before, after, 10),
        reads=1,
        suite="success",
        detectable=compare.detectable(primary),
        dropped={},
        notes=(),
        rows="",
        key=name,
        config=EvaluationConfig(),
        weights=version.weights,
    )
    return store_evaluation(ws, evaluation)


def _asked(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What about case {number}?"}]


def approve(ws: Workspace, version: ModelVersion, basis: Basis, losses: int = 0) -> ModelVersion:
    """`version` as the gate approved it: on gold for everybody, on feedback for a canary."""
    evaluation = evaluation_of(ws, version, basis, losses=losses)
    gate(ws, evaluation, GatePolicy(unmeasured_guard="allow"))
    approved = versions.by_id(ws, version.id)
    assert approved.basis is basis, approved
    return approved
