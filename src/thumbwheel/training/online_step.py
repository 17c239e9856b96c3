"""The steps of a method that learns from fresh answers: collect a batch, learn from it, look at dev
answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ConfigError, DataError
from thumbwheel.engine.rollout import Rollout, RolloutSource, Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Example, TreeBatch
from thumbwheel.rewards.checker import checker
from thumbwheel.rewards.function import Case
from thumbwheel.training.algorithm import Apply, Metrics, Parts, StepResult
from thumbwheel.training.curriculum import Curriculum
from thumbwheel.training.divergence import GUARDED_RATES
from thumbwheel.training.group import spread
from thumbwheel.training.guard import EvaluationRecord, Guard
from thumbwheel.training.judge import Judge, JudgeRequest, PendingJudgement, Reward
from thumbwheel.training.memory import Budget
from thumbwheel.training.online import Collected, Experience, OnlineAlgorithm, RolloutPrompt
from thumbwheel.training.order import Order
from thumbwheel.training.sampling import policy, source_of
from thumbwheel.training.step import means

if TYPE_CHECKING:
    import torch

MEASURED = 4
"""Answers to each training prompt before the first step of a curriculum."""
PASS = 1 << 20
"""Seeds of a run's steps lie below it; evaluation and the curriculum's first pass draw from above."""


class EngineSweep:
    """Scores of examples under a role, per example, without gradient."""

    def __init__(self, engine: ScoreEngine, budget: Budget) -> None:
        self.engine, self._budget = engine, budget

    def __call__(self, examples: Sequence[Example], role: Role) -> list[torch.Tensor]:
        """For every example its log-probs, [targets]."""
        return self.several(examples, role, "logp")["logp"]

    def several(
        self, examples: Sequence[Example], role: Role, *wants: str
    ) -> dict[str, list[torch.Tensor]]:
        """By what is wanted, for every example its flat values: [targets], or [branches] for
        `last`."""
        return self._budget.run(examples, lambda: self._scored(examples, role, wants))

    def _scored(
        self, examples: Sequence[Example], role: Role, wants: Sequence[str]
    ) -> dict[str, list[torch.Tensor]]:
        import torch

        found: dict[str, dict[int, torch.Tensor]] = {want: {} for want in wants}
        units = self._budget.units(examples)
        score = lambda engine, batch: engine.score(batch, role, outputs=frozenset(wants))  # noqa: E731 - for the batches of this call
        for batch, scores in self.engine.map_batches(units, self._budget.tokens, score):
            for want in wants:
                sizes = [
                    len(one.branches)
                    if want == "last"
                    else sum(len(part.targets) for part in one.branches)
                    for one in batch.examples
                ]
                parts = torch.split(getattr(scores, want).detach().cpu(), sizes)
                found[want] |= dict(zip(batch.example_ids, parts, strict=True))
        counts = [len(one.branches) if self._budget.divided else 1 for one in examples]
        ends = list(accumulate(counts, initial=0))
        return {
            want: [torch.cat([values[at] for at in range(*span)]) for span in pairwise(ends)]
            for want, values in found.items()
        }


class OnlineRunner:
    """The steps of an online method over one engine; `source` gives the answers that are learned
    from."""

    def __init__(self, method: OnlineAlgorithm[Any], parts: Parts) -> None:
        self.method, self.engine, self._builder, self.config = (
            method,
            parts.engine,
            parts.builder,
            method.config,
        )
        self.engine.temperature = self.config.temperature
        method.begin(parts)
        self.budget = Budget(self.engine, self.config.token_budget, divisible=True)
        self._sweep = EngineSweep(self.engine, self.budget)
        self._answer_by(policy(parts, self.config.memory_limit_gb))
        self._judge, self._watchers = judges(self.config, parts)
        self._learned_judge = parts.reward_model is not None
        self._guard = Guard(self.config.kl_budget, self.config.length_creep)
        self._curriculum: Curriculum | None = None

    def _answer_by(self, policy_sampler: GroupSampler) -> None:
        self._own, self.source = policy_sampler, source_of(self.config, policy_sampler)

    def groups(self) -> list[dict[str, Any]]:
        """The method's parameter groups."""
        return self.method.groups(self.engine)

    def order(self, items: Sequence[RolloutPrompt]) -> Order:
        """Shuffled, or from easy to hard."""
        plain = Order.of(len(items), self.config)
        if not self.config.curriculum:
            return plain
        measure = lambda: self._measured(items)  # noqa: E731 - the first pass waits until the run begins
        self._curriculum = Curriculum(
            plain.rows, plain.batch_size, plain.steps, plain.seed, measure
        )
        return self._curriculum

    def train(self, items: Sequence[RolloutPrompt], step: int, apply: Apply) -> StepResult:
        """Collect a batch and learn from it."""
        self.source.sync()
        collected = rewarded(self.collect(items, self.config.num_generations, self._sampling(step)))
        for turn in count(1):
            again = self.method.again(collected, turn)
            if not again:
                break
            others = self.collect(
                [items[number] for number in again],
                self.config.num_generations,
                self._sampling(step + turn * PASS),
            )
            collected = collected.replaced(again, others)
        if self._curriculum:
            for task, rate in success(collected):
                self._curriculum.record(task, rate)
        experience = self.method.experience(collected, self._sweep)
        loss, metrics, tokens = self._updates(experience, step, apply)
        metrics = collected_metrics(collected) | experience.metrics | metrics
        return StepResult(loss, metrics, tokens, self._guard.step(metrics))

    def collect(
        self,
        tasks: Sequence[RolloutPrompt],
        n: int,
        sampling: Sampling,
        source: RolloutSource | None = None,
    ) -> Collected:
        """`n` answers of `source` (by default the one that is learned from) to every task, judged."""
        source = source or self.source
        started: dict[
            tuple[int, int], tuple[Rollout, PendingJudgement]
        ] = {}  # holds the answers, so that no other one gets the name of one

        def ended(task_index: int, rollout: Rollout) -> None:
            started[task_index, id(rollout)] = rollout, self._judge.start(_ask(tasks[task_index], rollout))

        rollouts = source.sample([task.prompt for task in tasks], n, sampling, ended)
        return Collected(
            tasks, rollouts, self._judged(self._judge, tasks, rollouts, started), source.off_policy
        )

    def _judged(
        self,
        judge: Judge,
        tasks: Sequence[RolloutPrompt],
        rollouts: Sequence[Sequence[Rollout]],
        started: Mapping[tuple[int, int], tuple[Rollout, PendingJudgement]],
    ) -> list[list[Reward]]:
        """The rewards; what a source did not tell of while it sampled is judged now."""
        judging = [
            started[place, id(one)][1]
            if (place, id(one)) in started
            else judge.start(_ask(tasks[place], one))
            for place, several in enumerate(rollouts)
            for one in several
        ]
        rewards = iter(judge.finish(judging))
        return [[next(rewards) for _ in several] for several in rollouts]

    def _sampling(self, step: int, greedy: bool = False) -> Sampling:
        config = self.config
        return Sampling(
            max_new_tokens=config.max_completion_length,
            temperature=0.0 if greedy else config.temperature,
            top_k=0 if greedy else config.top_k,
            top_p=1.0 if greedy else config.top_p,
            stop=config.stop,
            stop_ids=tuple(self._builder.stop_ids),
            seed=config.seed * 1_000_003 + step,
        )

    def _measured(self, items: Sequence[RolloutPrompt]) -> dict[int, float]:
        """Row -> how well recorded answers to the prompt did; where some prompts have none, what a
        few answers of the base earn."""
        logged = {
            start: item.row["success"]
            for start, item in enumerate(items)
            if item.row.get("success") is not None
        }
        if len(logged) == len(items):
            return logged
        size = max(1, self.config.batch_size * self.config.num_generations // MEASURED)
        rates: dict[int, float] = {}
        for start in range(0, len(items), size):
            rates |= success(
                self.collect(items[start : start + size], MEASURED, self._sampling(PASS - 1 - start // size))
            )
        return rates

    def _updates(
        self, experience: Experience, step: int, apply: Apply
    ) -> tuple[float, dict[str, float], int]:
        """(mean loss, mean metrics, computed tokens) of all updates on one batch."""
        losses: list[float] = []
        update_metrics: list[dict[str, float]] = []
        tokens = 0
        for members in self._minibatches(len(experience.examples), step):
            loss, metrics, computed = self._update(experience, members)
            tokens += computed
            verdict = self.method.verdict(metrics)
            if verdict == "update":
                losses.append(loss)
                metrics = {"grad_norm": apply(loss)} | metrics
            else:
                self.engine.zero_grad()
            update_metrics.append(metrics)
            if verdict == "leave":
                break
        names = dict.fromkeys(name for one in update_metrics for name in one)
        averaged = {name: _mean([one[name] for one in update_metrics if name in one]) for name in names}
        return _mean(losses), averaged | {"updates": float(len(losses))}, tokens

    def _minibatches(self, examples: int, step: int) -> Iterator[list[int]]:
        size = max(1, self.method.minibatch(examples))
        for turn in range(self.method.passes(step)):
            order = list(range(examples))
            if size < examples:
                random.Random(f"{self.config.seed}:{step}:{turn}").shuffle(order)
            yield from (sorted(order[start : start + size]) for start in range(0, examples, size))

    def _update(
        self, experience: Experience, members: Sequence[int]
    ) -> tuple[float, dict[str, float], int]:
        chosen = experience.only(members)
        return self.budget.run(chosen.examples, lambda: self._gradients(chosen))

    def _gradients(self, experience: Experience) -> tuple[float, dict[str, float], int]:
        import torch

        whole = {name: torch.cat(values) for name, values in experience.tokens.items()}
        experience = experience.divided() if self.budget.divided else experience
        losses: list[torch.Tensor] = []
        batch_metrics: list[Metrics] = []
        tokens = 0

        def work(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, Metrics]:
            out = self.method.loss(engine, batch.to(engine.device), experience.of(batch), whole)
            return out.loss, out.metrics

        for batch, (loss, metrics) in self.engine.backward(
            experience.examples, self.budget.tokens, work
        ):
            losses.append(loss)
            batch_metrics.append(metrics)
            tokens += batch.n_rows
        return float(sum(losses)), means(batch_metrics), tokens

    def evaluate(self, items: Sequence[RolloutPrompt]) -> StepResult:
        """Greedy answers to dev prompts; the loss is the reward turned round, so that less is
        better there too."""
        tasks = items[: self.config.eval_prompts]
        self._own.sync()
        collected = rewarded(self.collect(tasks, 1, self._sampling(0, greedy=True), self._own))
        metrics = collected_metrics(collected)
        seen = EvaluationRecord(
            [one.value for (one,) in collected.rewards],
            [len(one.ids) for (one,) in collected.rollouts],
            metrics,
        )
        if self._learned_judge:
            seen.kept = _kept(collected)
            for name in GUARDED_RATES:
                metrics |= _known(name, seen.kept[name])
        if self._watchers:
            watched = self._judged(self._watchers, tasks, collected.rollouts, {})
            seen.held_out = {
                name: [one.parts.get(name) for (one,) in watched] for name in self.config.held_out
            }
            for name, values in seen.held_out.items():
                metrics |= _known(f"held_out/{name}", values)
        losses = [None if value is None else -value for value in seen.rewards]
        rows = {"reward": seen.rewards, "loss": losses}
        return StepResult(
            -metrics["reward"], metrics, 0, self._guard.evaluation(seen), self._guard.unfit(), rows
        )

    def examples(self, items: Sequence[RolloutPrompt]) -> Sequence[Example]:
        """Every prompt with its answers at full length, no two of them alike."""
        rest = (0,) * (self.config.max_completion_length - 1)
        answers = tuple(Branch((number, *rest)) for number in range(self.config.num_generations))
        return [Example(task.prompt, answers, task.group) for task in items]

    def rehearse(self, units: Sequence[Example]) -> None:
        """The policy's log-probs of such answers, a critic's values, and their gradients."""

        def work(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, None]:
            total = engine.score(batch, Role.POLICY, grad=True).logp.sum()
            if Role.CRITIC in engine.roles:
                total = (
                    total
                    + engine.score(batch, Role.CRITIC, frozenset({"value"}), grad=True).value.sum()
                )
            return total, None

        for _ in self.engine.backward(units, self.budget.tokens, work):
            pass
        self.engine.zero_grad()

    def state(self) -> dict[str, Any]:
        """The method's, the guard's, the token budget and the curriculum's."""
        state = {
            "method": self.method.state(),
            "guard": self._guard.state(),
            "budget": self.budget.state(),
            "exact": self._own.exact,
        }
        return state | ({"curriculum": self._curriculum.state()} if self._curriculum else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        self.method.restore(state["method"])
        self._guard.restore(state["guard"])
        self.budget.restore(state["budget"])
        if (
            state["exact"] != self._own.exact
        ):  # a copy is the policy up to rounding, which can decide a token
            self._answer_by(
                GroupSampler(self.engine.model, self._builder.tokenizer, merge=not state["exact"])
            )
        if self._curriculum:
            self._curriculum.restore(state["curriculum"])

    def close(self) -> None:
        """End the judges' processes and the source."""
        self.source.close()
        self._judge.close()
        if self._watchers:
            self._watchers.close()


def judges(config: Any, parts: Parts) -> tuple[Judge, Judge | None]:
    """What rewards, and what only watches, where something does. Raises ConfigError when nothing
    rewards."""
    functions = dict(weighted(name) for name in config.reward_functions)
    model = None
    if parts.reward_model is not None:
        from thumbwheel.engine.reward_model import RewardModel

        beside = RewardModel.on_engine(parts.engine, parts.builder.tokenizer, parts.reward_model)
        model = beside or RewardModel.load(parts.reward_model, device=str(parts.engine.device))
    if not functions and model is None:
        raise ConfigError(
            "reward_functions and reward_model",
            "nothing is left that judges",
            "Name a function or a reward model",
        )
    watched = dict.fromkeys(config.held_out, 1.0)
    settings = config.reward_settings
    watching = {name: values for name, values in settings.items() if name in watched}
    judging = {
        name: values for name, values in settings.items() if name in functions or name not in watched
    }
    rewards = Judge(
        functions,
        model,
        config.reward_model_weight,
        config.reward_timeout,
        config.reward_workers,
        judging,
        parts.checkers,
    )
    watcher = (
        Judge(watched, None, 0.0, config.reward_timeout, 1, watching, parts.checkers)
        if watched
        else None
    )
    return rewards, watcher


def weighted(text: str) -> tuple[str, float]:
    """A function's name with its weight, 1 where none is given; raises ConfigError.

    >>> weighted("mine:polite=0.5"), weighted("checker")
    (('mine:polite', 0.5), ('checker', 1.0))
    """
    name, _, weight = text.partition("=")
    try:
        value = float(weight or 1)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ConfigError(
            f"reward function {text!r}",
            f"{weight!r} is no weight",
            'Write it as "checker=2", with a number above 0',
        )
    return name, value


def _ask(task: RolloutPrompt, rollout: Rollout) -> JudgeRequest:
    return JudgeRequest(task.row, rollout.text, rollout.finish, task.row["prompt"])


def rewarded(collected: Collected) -> Collected:
    """The same; raises DataError when not one answer has a reward."""
    rewards = [reward for several in collected.rewards for reward in several]
    if all(reward.value is None for reward in rewards):
        why = "; ".join(
            sorted({f"{name}: {kind}" for reward in rewards for name, kind in reward.failures.items()})
        )
        raise DataError(
            f"{len(rewards)} answers to {len(collected.tasks)} prompts",
            f"none of them has a reward ({why or 'nothing that judges applies to these rows'})",
            "Give the rows a checker and a reference, or set reward_functions or reward_model",
        )
    return collected


def success(collected: Collected) -> list[tuple[int, float]]:
    """(row, mean reward) of every task that has one."""
    rewards_of_rows = [
        (task.number, [value for value in values if value is not None])
        for task, values in zip(collected.tasks, collected.values, strict=True)
    ]
    return [(row, _mean(values)) for row, values in rewards_of_rows if values]


def collected_metrics(collected: Collected) -> dict[str, float]:
    """Mean reward and its parts, failures, and the shape of the answers; a reward that is missing
    leaves its mean."""
    rewards = [one for several in collected.rewards for one in several]
    rollouts = [one for several in collected.rollouts for one in several]
    lengths = [float(len(one.ids)) for one in rollouts]
    ended = _mean([float(one.finish == "stop") for one in rollouts])
    found = {
        "reward": _mean([one.value for one in rewards if one.value is not None]),
        "reward_std": spread([one.value for one in rewards if one.value is not None]),
        "reward_failures": _mean([float(one.value is None) for one in rewards]),
        "eos_rate": ended,
        "completions/clipped_ratio": 1 - ended,
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
    }
    found |= _known(
        "format_rate",
        [None if one.well_formed is None else float(one.well_formed) for one in rewards],
    )
    for name in dict.fromkeys(name for one in rewards for name in one.parts):
        found |= _known(f"rewards/{name}/mean", [one.parts.get(name) for one in rewards])
    return found


def _kept(collected: Collected) -> dict[str, list[float | None]]:
    """By the metrics of divergence.GUARDED_RATES, whether each answer, one a task, has what training must not
    take from it; None where nobody knows."""
    found: dict[str, list[float | None]] = {name: [] for name in GUARDED_RATES}
    for task, (answer,), (reward,) in zip(
        collected.tasks, collected.rollouts, collected.rewards, strict=True
    ):
        liked = task.row.get("liked")
        same = (
            checker(None, None, liked, "what people liked", {}).score([Case(answer.text, liked)])[0]
            if liked
            else None
        )
        formed = same.well_formed if same and reward.well_formed is None else reward.well_formed
        found["format_rate"].append(None if formed is None else float(formed))
        found["eos_rate"].append(float(answer.finish == "stop"))
        found["liked_rate"].append(same.value if same else None)
    return found


def _known(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """The mean of those that there are; nothing without any."""
    present = [value for value in values if value is not None]
    return {name: _mean(present)} if present else {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
