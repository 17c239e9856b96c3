"""What the suites of one evaluation may use: held-out rows, the agent's reward functions, its
reward models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from thumbwheel.core import ids, log
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.evaluation import store
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.program_parts import program_scorer
from thumbwheel.evaluation.rows import HeldOut
from thumbwheel.evaluation.suite import RewardModelScorer, Scorer, SuiteContext
from thumbwheel.evaluation.types import EvaluationConfig, ModelAnswer
from thumbwheel.models import reward_models
from thumbwheel.models.types import ModelVersion, RewardModelRecord
from thumbwheel.rewards import ledger
from thumbwheel.rewards.cases import StoredCase
from thumbwheel.rewards.combine import RewardConfig
from thumbwheel.rewards.component import components, resolve_paths
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.presets import CHECKER, ComponentConfig

CHUNK = 32
"""Pairs that a judge is asked about before its verdicts are stored."""
NOT_OF_FRESH_ANSWERS = frozenset({"feedback", "mates"})
"""What a fresh answer never has: reward functions that read it have nothing to judge."""

BY_CASE = {CHECKER: ComponentConfig()}
"""The reward of a fresh answer where the agent's own reward is made of feedback alone."""


def suite_context(
    ws: Workspace, candidate: ModelVersion, rows: HeldOut, config: EvaluationConfig
) -> SuiteContext:
    """Return the context of the evaluation of `candidate`. Models are loaded when they are first
    used."""
    untainted = [
        model for model in reward_models.reward_models(ws, candidate.agent) if not model.tainted
    ]
    optimised = frozenset(optimised_by(ws, candidate))
    chosen = config.reward_model
    if not chosen and "reward" in config.suite:
        independent = [model.name for model in untainted if model.name not in optimised]
        chosen = independent[-1] if independent else None
    scorers = {
        model.name: _reward_model_scorer(ws, model) for model in untainted if model.name == chosen
    }
    reward_config = ledger.settings(ws, candidate.agent)
    return SuiteContext(
        rows.cases,
        rows.recorded_answers,
        config,
        rewards=_reward_scorer(ws, candidate.agent, optimised),
        reward_models=scorers,
        optimised=optimised,
        score_by_judge=_judge_scorer(ws, candidate.agent_id),
        run_programs=program_scorer(ws, candidate.agent),
        checkers=resolve_paths(ws, candidate.agent, reward_config.checkers),
        home=str(ws.home.path),
        identity=[reward_config.fingerprint(), sorted(scorers)],
    )


def optimised_by(ws: Workspace, candidate: ModelVersion) -> tuple[str, ...]:
    """Return the judges that the candidate was trained to please. A reward model is listed under
    its name (rm1), whatever the run called it."""
    with ws.db.read() as connection:
        names = set(store.optimised(connection, candidate.run_id))
    if not names:
        return ()
    models = reward_models.reward_models(ws, candidate.agent)
    earlier = [model for model in models if model.recorded_at <= candidate.recorded_at]
    resolved = set()
    for model in earlier:
        if names & {model.id, model.name, str(model.number)}:
            resolved.add(model.name)
    if "latest" in names and earlier:
        resolved.add(earlier[-1].name)
    return tuple(sorted(names | resolved))


def _usable_parts(
    ws: Workspace, agent: str, config: RewardConfig, optimised: frozenset[str]
) -> list[str]:
    """Return the components of the reward, without the reward models that the candidate was trained
    against."""
    usable = []
    for name, part in config.parts().items():
        model = part.settings.get("model")
        if model:
            model = reward_models.find(ws, agent, model).name
        if model not in optimised:
            usable.append(name)
    return usable


def _reward_scorer(
    ws: Workspace, agent: str, optimised: frozenset[str]
) -> Callable[[Sequence[Case]], dict[str, list[Score]]]:
    """Return a scorer by the components of the agent's reward that can judge a fresh answer. A
    reward model that the candidate was trained against is left out."""

    def score(cases: Sequence[Case]) -> dict[str, list[Score]]:
        config = ledger.settings(ws, agent)
        stored = [StoredCase(case, True) for case in cases]
        scores_of: dict[str, list[Score]] = {}
        usable = _usable_parts(ws, agent, config, optimised)
        if usable:
            for component in components(ws, agent, config, usable):
                if not component.function.reads & NOT_OF_FRESH_ANSWERS:
                    scores_of[component.name] = component.judge(stored)
        if not scores_of:
            # a reward that feedback alone makes says nothing of fresh answers: their cases do
            config = RewardConfig(preset="none", components=BY_CASE, checkers=config.checkers)
            for component in components(ws, agent, config):
                scores_of[component.name] = component.judge(stored)
        combine = config.combiner()
        combined = []
        for index in range(len(cases)):
            value = combine({name: scores[index] for name, scores in scores_of.items()})
            if value is None:
                combined.append(
                    Score.none(JudgementStatus.NOT_APPLICABLE, "no reward function applies")
                )
            else:
                combined.append(Score(value))
        return {"": combined, **scores_of}

    return score


def _judge_scorer(ws: Workspace, agent_id: str) -> Scorer:
    """Return a scorer by a judging model. Verdicts are stored chunk by chunk. A missing verdict is
    asked for again, but not while the judge is down."""

    def score(function: RewardFunction[Any], cases: Sequence[Case]) -> list[Score]:
        judge = ids.fingerprint([type(function).__name__, function.version, function.identity()])
        keys = [ids.fingerprint([case.prompt, case.text, case.mates]) for case in cases]
        with ws.db.read() as connection:
            stored = store.stored_answers(connection, judge, "verdicts", set(keys))
        scores = {key: Score(value, evidence=evidence) for key, (value, evidence) in stored.items()}
        missing = {key: case for key, case in zip(keys, cases, strict=True) if key not in scores}
        missing_keys = list(missing)
        with log.progress("verdicts of the judge", len(missing), "pairs") as advance:
            for start in range(0, len(missing), CHUNK):
                chunk = missing_keys[start : start + CHUNK]
                chunk_scores = function.score([missing[key] for key in chunk])
                values = {}
                for key, verdict in zip(chunk, chunk_scores, strict=True):
                    scores[key] = verdict
                    if verdict.value is not None:
                        values[key] = [verdict.value, verdict.evidence]
                write = partial(
                    store.store_answers,
                    agent_id=agent_id,
                    model=judge,
                    kind="verdicts",
                    values=values,
                )
                ws.db.write(write, of_agent(agent_id))
                advance(len(chunk))
                if blocked(chunk_scores).total() == len(chunk):  # the judge is down
                    return [scores.get(key, chunk_scores[0]) for key in keys]
        return [scores[key] for key in keys]

    return score


def _reward_model_scorer(ws: Workspace, reward_model: RewardModelRecord) -> RewardModelScorer:
    """Return a scorer by a reward model: it reads the answers of all responders to a prompt after
    the same turns of it. An answer that is too long scores nan."""

    def score(
        prompts: Sequence[Any], responders: Sequence[Sequence[ModelAnswer]]
    ) -> list[list[float]]:
        from thumbwheel.core.hardware import device
        from thumbwheel.engine.reward_model import RewardInput, RewardModel

        folder = reward_models.folder(ws, reward_model)
        model = RewardModel.load(folder, device=device(), cache=ws.home.cache)
        by_prompt: list[list[RewardInput]] = []
        for prompt, *answers in zip(prompts, *responders, strict=True):
            reads = [RewardInput(prompt, answer.text.strip(), answer.finish) for answer in answers]
            by_prompt.append(reads)
        scores_by_prompt = model.score_together(by_prompt)
        return [[scores[index] for scores in scores_by_prompt] for index in range(len(responders))]

    return score
