"""What the suites of one evaluation may use: held-out rows, the agent's reward functions, its reward models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.rows import HeldOut
from thumbwheel.evaluation.suite import Material
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.models import reward_models
from thumbwheel.models.types import ModelVersion, RewardModelRecord
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import Stored
from thumbwheel.rewards.component import components
from thumbwheel.rewards.function import Case, Score, Status

SAID = frozenset({"feedback", "mates"})
"""What nobody has about a fresh answer: functions that read it have nothing to judge."""


def material_of(ws: Workspace, candidate: ModelVersion, rows: HeldOut, config: EvaluationConfig) -> Material:
    """For the evaluation of `candidate`; nothing is loaded before it is used."""
    known = [one for one in reward_models.reward_models(ws, candidate.agent) if not one.tainted]
    optimised = frozenset(optimised_by(ws, candidate))
    others = [one.name for one in known if one.name not in optimised]
    named = config.reward_model or (others[-1] if others and "reward" in config.suite else None)
    opinions = {one.name: _opinion(ws, one) for one in known if one.name == named}
    identity = [ledger.settings(ws, candidate.agent).fingerprint(), sorted(opinions)]
    return Material(rows.cases, rows.given, config, _rewards(ws, candidate.agent, optimised), opinions, optimised, identity)


def optimised_by(ws: Workspace, candidate: ModelVersion) -> tuple[str, ...]:
    """The judges that the candidate was trained to please, a reward model by its own name (rm1) whatever the run called it."""
    with ws.db.read() as connection:
        named = set(store.optimised(connection, candidate.run_id))
    known = reward_models.reward_models(ws, candidate.agent) if named else []
    earlier = [one for one in known if one.recorded_at <= candidate.recorded_at]
    meant = {one.name for one in earlier if named & {one.id, one.name, str(one.number)} or ("latest" in named and one is earlier[-1])}
    return tuple(sorted(named | meant))


def _rewards(ws: Workspace, agent: str, optimised: frozenset[str]) -> Callable[[Sequence[Case]], dict[str, list[Score]]]:
    """The components of the agent's reward that can judge a fresh answer, without a reward model that was optimised."""

    def score(cases: Sequence[Case]) -> dict[str, list[Score]]:
        config = ledger.settings(ws, agent)
        parts = config.parts()
        usable = [name for name, part in parts.items() if _named(ws, agent, part.settings.get("model")) not in optimised]
        able = [one for one in components(ws, agent, config, usable) if usable and not one.function.reads & SAID]
        stored = [Stored(case, True) for case in cases]
        found = {one.name: one.judge(stored) for one in able}
        combine = config.combiner()
        values = [combine({name: scores[place] for name, scores in found.items()}) for place in range(len(cases))]
        missing = Score.none(Status.NOT_APPLICABLE, "no reward function applies")
        return {"": [missing if value is None else Score(value) for value in values], **found}

    return score


def _named(ws: Workspace, agent: str, model: str | None) -> str | None:
    """A reward model by its own name."""
    return model and reward_models.find(ws, agent, model).name


def _opinion(ws: Workspace, one: RewardModelRecord) -> Callable[[Sequence[Any], Sequence[str]], list[float]]:
    """The scores of a reward model; nan for what is too long for it."""

    def score(prompts: Sequence[Any], answers: Sequence[str]) -> list[float]:
        from thumbwheel.engine.reward_model import RewardModel
        from thumbwheel.training.hardware import device

        return RewardModel.load(reward_models.folder(ws, one), device=device()).score(prompts, answers)

    return score
