"""What the suites of one evaluation may use: held-out rows, the agent's reward functions, its
reward models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import store
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.rows import HeldOut
from thumbwheel.evaluation.suite import Material, Opinion, Scorer
from thumbwheel.evaluation.types import Answer, EvaluationConfig
from thumbwheel.models import reward_models, versions
from thumbwheel.models.types import ModelVersion, RewardModelRecord
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import StoredCase
from thumbwheel.rewards.component import components, resolve_paths
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status

CHUNK = 32
"""Pairs that a judge is asked about before its verdicts are kept."""
SAID = frozenset({"feedback", "mates"})
"""What nobody has about a fresh answer: functions that read it have nothing to judge."""


def material_of(
    ws: Workspace, candidate: ModelVersion, rows: HeldOut, config: EvaluationConfig
) -> Material:
    """For the evaluation of `candidate`; nothing is loaded before it is used."""
    known = [one for one in reward_models.reward_models(ws, candidate.agent) if not one.tainted]
    optimised = frozenset(optimised_by(ws, candidate))
    others = [one.name for one in known if one.name not in optimised]
    named = config.reward_model or (others[-1] if others and "reward" in config.suite else None)
    opinions = {one.name: _opinion(ws, one) for one in known if one.name == named}
    reward_config = ledger.settings(ws, candidate.agent)
    return Material(
        rows.cases,
        rows.given,
        config,
        rewards=_rewards(ws, candidate.agent, optimised),
        opinions=opinions,
        optimised=optimised,
        verdicts=_verdicts(ws, candidate.agent),
        checkers=resolve_paths(ws, candidate.agent, reward_config.checkers),
        home=str(ws.home.path),
        identity=[reward_config.fingerprint(), sorted(opinions)],
    )


def optimised_by(ws: Workspace, candidate: ModelVersion) -> tuple[str, ...]:
    """The judges that the candidate was trained to please, a reward model by its own name (rm1)
    whatever the run called it."""
    with ws.db.read() as connection:
        named = set(store.optimised(connection, candidate.run_id))
    known = reward_models.reward_models(ws, candidate.agent) if named else []
    earlier = [one for one in known if one.recorded_at <= candidate.recorded_at]
    meant = {
        one.name
        for one in earlier
        if named & {one.id, one.name, str(one.number)} or ("latest" in named and one is earlier[-1])
    }
    return tuple(sorted(named | meant))


def _rewards(
    ws: Workspace, agent: str, optimised: frozenset[str]
) -> Callable[[Sequence[Case]], dict[str, list[Score]]]:
    """The components of the agent's reward that can judge a fresh answer, without a reward model
    that was optimised."""

    def score(cases: Sequence[Case]) -> dict[str, list[Score]]:
        config = ledger.settings(ws, agent)
        parts = config.parts()
        usable = [
            name
            for name, part in parts.items()
            if _named(ws, agent, part.settings.get("model")) not in optimised
        ]
        able = [
            one
            for one in components(ws, agent, config, usable)
            if usable and not one.function.reads & SAID
        ]
        stored = [StoredCase(case, True) for case in cases]
        found = {one.name: one.judge(stored) for one in able}
        combine = config.combiner()
        values = [
            combine({name: scores[place] for name, scores in found.items()})
            for place in range(len(cases))
        ]
        missing = Score.none(Status.NOT_APPLICABLE, "no reward function applies")
        return {"": [missing if value is None else Score(value) for value in values], **found}

    return score


def _verdicts(ws: Workspace, agent: str) -> Scorer:
    """What a judge said is kept, chunk by chunk; a verdict that it could not give is asked for
    again, but not while it is down."""
    agent_id = versions.require_agent(ws, agent)

    def score(function: RewardFunction[Any], cases: Sequence[Case]) -> list[Score]:
        judge = ids.fingerprint([type(function).__name__, function.version, function.identity()])
        keys = [ids.fingerprint([one.prompt, one.text, one.mates]) for one in cases]
        with ws.db.read() as connection:
            kept = store.kept_answers(connection, judge, "verdicts", set(keys))
        found = {key: Score(value, evidence=evidence) for key, (value, evidence) in kept.items()}
        missing = {key: one for key, one in zip(keys, cases, strict=True) if key not in found}
        with log.progress("verdicts of the judge", len(missing), "pairs") as advance:
            for start in range(0, len(missing), CHUNK):
                some = list(missing)[start : start + CHUNK]
                scores = dict(
                    zip(some, function.score([missing[key] for key in some]), strict=True)
                )
                values = {
                    key: [one.value, one.evidence]
                    for key, one in scores.items()
                    if one.value is not None
                }
                ws.db.write(
                    partial(
                        store.keep_answers,
                        agent_id=agent_id,
                        model=judge,
                        kind="verdicts",
                        values=values,
                    )
                )
                found |= scores
                advance(len(scores))
                if blocked(scores.values()).total() == len(scores):
                    return [found.get(key, scores[some[0]]) for key in keys]
        return [found[key] for key in keys]

    return score


def _named(ws: Workspace, agent: str, model: str | None) -> str | None:
    """A reward model by its own name."""
    return model and reward_models.find(ws, agent, model).name


def _opinion(ws: Workspace, one: RewardModelRecord) -> Opinion:
    """The scores of a reward model, the answers of all sides to a prompt after the same turns of
    it; nan for what is too long."""

    def score(prompts: Sequence[Any], sides: Sequence[Sequence[Answer]]) -> list[list[float]]:
        from thumbwheel.engine.reward_model import RewardInput, RewardModel
        from thumbwheel.training.hardware import device

        model = RewardModel.load(reward_models.folder(ws, one), device=device())
        compared: list[list[RewardInput]] = []
        for prompt, *answers in zip(prompts, *sides, strict=True):
            compared.append(
                [RewardInput(prompt, answer.text.strip(), answer.finish) for answer in answers]
            )
        by_prompt = model.score_together(compared)
        return [[scores[side] for scores in by_prompt] for side in range(len(sides))]

    return score
