"""The steps of a method that learns from fresh answers: collect a batch, learn from it, look at dev
answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError, DataError
from thumbwheel.engine.ranks import Ranks
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
from thumbwheel.training.guard import DriftGuard, EvaluationRecord
from thumbwheel.training.judge import JudgeRequest, PendingJudgement, Reward, RewardJudge
from thumbwheel.training.memory import Budget
from thumbwheel.training.online import AnswerBatch, Experience, OnlineAlgorithm, RolloutPrompt
from thumbwheel.training.order import Order
from thumbwheel.training.sampling import policy, source_of
from thumbwheel.training.step import means

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.reward_model import RewardModel

MEASURED = 4
"""Answers to each training prompt before the first step of a curriculum."""
PASS = 1 << 20
"""Seeds of a run's steps lie below it; the curriculum's first pass and repeated answers draw from
above."""


class EngineSweep:
    """Scores of examples under a role, per example, without gradient."""

    def __init__(self, engine: ScoreEngine, budget: Budget) -> None:
        self.engine, self._budget = engine, budget

    def __call__(self, examples: Sequence[Example], role: Role) -> list[torch.Tensor]:
        """Return, for every example, its log-probs [targets]."""
        return self.several(examples, role, "logp")["logp"]

    def several(
        self, examples: Sequence[Example], role: Role, *wants: str
    ) -> dict[str, list[torch.Tensor]]:
        """Return, for each of `wants`, the flat values of every example: [targets], or [branches]
        for `last`."""
        return self._budget.run(examples, lambda: self._scored(examples, role, wants))

    def _scored(
        self, examples: Sequence[Example], role: Role, wants: Sequence[str]
    ) -> dict[str, list[torch.Tensor]]:
        import torch

        def score(engine: ScoreEngine, batch: TreeBatch) -> dict[str, torch.Tensor]:
            scores = engine.score(batch, role, outputs=frozenset(wants))
            return {want: getattr(scores, want).detach().cpu() for want in wants}

        # The batches come in any order: values are kept by the number of their unit.
        by_unit: dict[str, dict[int, torch.Tensor]] = {want: {} for want in wants}
        units = self._budget.units(examples)
        for batch, scores in self.engine.map_batches(units, self._budget.tokens, score):
            n_branches = [len(unit.branches) for unit in batch.examples]
            n_targets = [
                sum(len(branch.targets) for branch in unit.branches) for unit in batch.examples
            ]
            for want in wants:
                sizes = n_branches if want == "last" else n_targets
                parts = torch.split(scores[want], sizes)
                by_unit[want] |= dict(zip(batch.example_ids, parts, strict=True))

        # An example is one unit, or as many as it has branches.
        counts = [len(example.branches) if self._budget.divided else 1 for example in examples]
        by_example: dict[str, list[torch.Tensor]] = {want: [] for want in wants}
        for start, end in pairwise(accumulate(counts, initial=0)):
            for want, values in by_unit.items():
                parts_of_example = [values[number] for number in range(start, end)]
                by_example[want].append(torch.cat(parts_of_example))
        return by_example


class OnlineRunner:
    """The steps of an online method over one engine; `source` gives the answers that are learned
    from."""

    def __init__(self, method: OnlineAlgorithm[Any], parts: Parts) -> None:
        self.method, self.config = method, method.config
        self.engine, self._builder = parts.engine, parts.builder
        self.engine.temperature = self.config.temperature
        method.begin(parts)
        self.budget = Budget(self.engine, self.config.token_budget, divisible=True)
        self._sweep = EngineSweep(self.engine, self.budget)
        self._sample_from(policy(parts, self.config.memory_limit_gb))
        self.reward_model = reward_model_of(parts)
        self._judge, self._watchers = judges(self.config, parts, self.reward_model)
        self._guard = DriftGuard(self.config.kl_budget, self.config.length_creep)
        self._curriculum: Curriculum | None = None

    def _sample_from(self, policy_sampler: GroupSampler) -> None:
        self._policy_sampler = policy_sampler
        self.source = source_of(self.config, policy_sampler)

    def groups(self) -> list[dict[str, Any]]:
        """Return the method's parameter groups."""
        return self.method.groups(self.engine)

    def order(self, items: Sequence[RolloutPrompt]) -> Order:
        """Return a shuffled order, or with `curriculum` one from easy to hard."""
        plain = Order.of(len(items), self.config)
        if not self.config.curriculum:
            return plain
        self._curriculum = Curriculum(
            plain.rows,
            plain.batch_size,
            plain.steps,
            plain.seed,
            lambda: self._success_rates(items),  # the first pass waits until the run begins
        )
        return self._curriculum

    def train(self, items: Sequence[RolloutPrompt], step: int, apply: Apply) -> StepResult:
        """Collect a batch and learn from it."""
        n_answers = self.config.num_generations

        # Sample and judge; some methods have prompts answered anew that taught nothing.
        self.source.sync(step)
        collected = rewarded(self.collect(items, n_answers, self._sampling(step)))
        for attempt in count(1):
            numbers = self.method.tasks_to_resample(collected, attempt)
            if not numbers:
                break
            tasks = [items[number] for number in numbers]
            sampling = self._sampling(step + attempt * PASS)
            collected = collected.replaced(numbers, self.collect(tasks, n_answers, sampling))
        if self._curriculum:
            for row, rate in success(collected):
                self._curriculum.record(row, rate)

        # Advantages, then the updates.
        experience = self.method.experience(collected, self._sweep)
        loss, metrics, tokens = self._updates(experience, step, apply)
        metrics = collected_metrics(collected) | experience.metrics | metrics
        metrics |= policy_lag(collected, step)
        return StepResult(loss, metrics, tokens, self._guard.step(metrics))

    def collect(
        self,
        tasks: Sequence[RolloutPrompt],
        n: int,
        sampling: Sampling,
        source: RolloutSource | None = None,
    ) -> AnswerBatch:
        """Sample `n` answers of `source` (by default `self.source`) to every task and judge them.
        Of several ranks each answers some of the prompts, and has the answers of all."""
        source, ranks = source or self.source, self.engine.ranks
        owners = task_owners(ranks, tasks)
        numbers = [number for number, owner in enumerate(owners) if owner == ranks.rank]
        # Judging begins as soon as an answer ends. Answers are told apart by their id(); that they
        # are held here keeps an id from being given to another one.
        pending: dict[tuple[int, int], tuple[Rollout, PendingJudgement]] = {}

        def start_judging(index: int, rollout: Rollout) -> None:
            judgement = self._judge.start(_judge_request(tasks[numbers[index]], rollout))
            pending[numbers[index], id(rollout)] = rollout, judgement

        sampled: list[list[Rollout]] = []
        if numbers:
            prompts = [tasks[number].prompt for number in numbers]
            sampled = source.sample(prompts, n, sampling, start_judging)
        fields = [[_fields(rollout) for rollout in group] for group in sampled]
        rollouts = [
            [Rollout(*each) for each in group] for group in ranks.gather(fields, owners, "answers")
        ]
        # Its own answers stay the objects that are being judged.
        for number, group in zip(numbers, sampled, strict=True):
            rollouts[number] = group
        rewards = self._rewards(self._judge, tasks, rollouts, pending)
        return AnswerBatch(tasks, rollouts, rewards, source.off_policy)

    def _rewards(
        self,
        judge: RewardJudge,
        tasks: Sequence[RolloutPrompt],
        rollouts: Sequence[Sequence[Rollout]],
        pending: Mapping[tuple[int, int], tuple[Rollout, PendingJudgement]],
    ) -> list[list[Reward]]:
        """Return the rewards [task][answer]; answers that a source did not announce while it
        sampled are judged now. The functions of a rank judge what it answered."""
        ranks = self.engine.ranks
        requests: list[JudgeRequest] = []
        owners: list[int] = []
        judgements: list[PendingJudgement] = []
        for number, owner in enumerate(task_owners(ranks, tasks)):
            for rollout in rollouts[number]:
                request = _judge_request(tasks[number], rollout)
                requests.append(request)
                owners.append(owner)
                if (number, id(rollout)) in pending:
                    judgements.append(pending[number, id(rollout)][1])
                elif owner == ranks.rank:
                    judgements.append(judge.start(request))
        replies = ranks.gather(judge.replies(judgements), owners, "judgements")
        rewards = judge.rewards(requests, replies)
        ends = accumulate((len(group) for group in rollouts), initial=0)
        return [rewards[start:end] for start, end in pairwise(ends)]

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

    def _success_rates(self, items: Sequence[RolloutPrompt]) -> dict[int, float]:
        """Return row -> how well recorded answers to the prompt did; if some prompts have none, row
        -> the mean reward of a few answers of the base, for all."""
        recorded = {
            number: item.row["success"]
            for number, item in enumerate(items)
            if item.row.get("success") is not None
        }
        if len(recorded) == len(items):
            return recorded
        size = max(1, self.config.batch_size * self.config.num_generations // MEASURED)
        rates: dict[int, float] = {}
        for start in range(0, len(items), size):
            sampling = self._sampling(PASS - 1 - start // size)
            collected = self.collect(items[start : start + size], MEASURED, sampling)
            rates |= success(collected)
        return rates

    def _updates(
        self, experience: Experience, step: int, apply: Apply
    ) -> tuple[float, dict[str, float], int]:
        """Make all updates on one batch; return (mean loss, mean metrics, computed tokens)."""
        losses: list[float] = []
        by_update: list[dict[str, float]] = []
        tokens = 0
        for number, numbers in enumerate(self._minibatches(len(experience.examples), step)):
            self.engine.draw_dropout(step, number)
            minibatch = experience.select(numbers)
            loss, metrics, computed = self.budget.run(
                minibatch.examples, partial(self._gradients, minibatch)
            )
            tokens += computed
            verdict = self.method.verdict(metrics)
            if verdict == "update":
                losses.append(loss)
                metrics = {"grad_norm": apply(loss)} | metrics
            else:
                self.engine.zero_grad()
            by_update.append(metrics)
            if verdict == "leave":
                break
        averaged: dict[str, float] = {}
        for name in dict.fromkeys(name for metrics in by_update for name in metrics):
            averaged[name] = _mean([metrics[name] for metrics in by_update if name in metrics])
        averaged["updates"] = float(len(losses))
        return _mean(losses), averaged, tokens

    def _minibatches(self, examples: int, step: int) -> Iterator[list[int]]:
        size = max(1, self.method.minibatch(examples))
        for epoch in range(self.method.passes(step)):
            order = list(range(examples))
            if size < examples:
                random.Random(f"{self.config.seed}:{step}:{epoch}").shuffle(order)
            for start in range(0, examples, size):
                yield sorted(order[start : start + size])

    def _gradients(self, experience: Experience) -> tuple[float, dict[str, float], int]:
        """Compute the gradients of one update; return (loss, metrics, computed tokens)."""
        import torch

        whole = {name: torch.cat(values) for name, values in experience.tokens.items()}
        if self.budget.divided:
            experience = experience.divided()
        losses: list[torch.Tensor] = []
        by_batch: list[Metrics] = []
        tokens = 0

        def work(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, Metrics]:
            values = experience.for_batch(batch)
            out = self.method.loss(engine, batch.to(engine.device), values, whole)
            return out.loss, out.metrics

        batches = self.engine.backward(experience.examples, self.budget.tokens, work)
        for batch, (loss, metrics) in batches:
            losses.append(loss)
            by_batch.append(metrics)
            tokens += batch.n_rows
        return float(sum(losses)), means(by_batch), tokens

    def evaluate(self, items: Sequence[RolloutPrompt]) -> StepResult:
        """Judge greedy answers to dev prompts; the loss is the negative reward, so that less is
        better there too."""
        self._policy_sampler.sync(0)
        sampling = self._sampling(0, greedy=True)
        with log.progress("answering dev prompts", len(items), "dev prompts"):
            collected = rewarded(self.collect(items, 1, sampling, self._policy_sampler))
        rollouts = [rollout for (rollout,) in collected.rollouts]
        rewards = [reward.value for (reward,) in collected.rewards]
        metrics = collected_metrics(collected)
        evaluation = EvaluationRecord(rewards, [len(rollout.ids) for rollout in rollouts], metrics)

        # What a reward model might let pass, and what is only watched.
        if self.reward_model is not None:
            evaluation.kept = guarded_values(collected)
            for name, values in evaluation.kept.items():
                metrics |= _mean_metric(name, values)
        if self._watchers:
            watched = self._rewards(self._watchers, items, collected.rollouts, {})
            evaluation.held_out = {
                name: [reward.parts.get(name) for (reward,) in watched]
                for name in self.config.held_out
            }
            for name, watched_values in evaluation.held_out.items():
                metrics |= _mean_metric(f"held_out/{name}", watched_values)

        losses = [None if reward is None else -reward for reward in rewards]
        return StepResult(
            -metrics["reward"],
            metrics,
            0,
            stop=self._guard.evaluation(evaluation),
            unfit=self._guard.unfit(),
            rows={"reward": rewards, "loss": losses},
        )

    def base_logps(self, examples: Sequence[Example]) -> list[float]:
        """Return the base's log-probability of each example's one answer, in nats."""
        return [float(logp.double().sum()) for logp in self._sweep(examples, Role.REF)]

    def examples(self, items: Sequence[RolloutPrompt]) -> Sequence[Example]:
        """Return every prompt with its answers at full length, no two of them alike."""
        rest = (0,) * (self.config.max_completion_length - 1)
        answers = tuple(Branch((number, *rest)) for number in range(self.config.num_generations))
        return [Example(task.prompt, answers, task.group) for task in items]

    def rehearse(self, units: Sequence[Example]) -> None:
        """Compute the policy's log-probs of such answers, a critic's values, and their gradients;
        then drop the gradients."""
        values = frozenset({"value"})

        def work(engine: ScoreEngine, batch: TreeBatch) -> tuple[torch.Tensor, None]:
            total = engine.score(batch, Role.POLICY, grad=True).logp.sum()
            if Role.CRITIC in engine.roles:
                total = total + engine.score(batch, Role.CRITIC, values, grad=True).value.sum()
            return total, None

        for _ in self.engine.backward(units, self.budget.tokens, work):
            pass
        self.engine.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return the state of the method, the guard, the token budget, the sampler and the
        curriculum."""
        state = {
            "method": self.method.state(),
            "guard": self._guard.state(),
            "budget": self.budget.state(),
            "exact": self._policy_sampler.exact,
        }
        if self._curriculum:
            state["curriculum"] = self._curriculum.state()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        self.method.restore(state["method"])
        self._guard.restore(state["guard"])
        self.budget.restore(state["budget"])
        # A merged copy is the policy up to rounding, which can decide a token.
        if state["exact"] != self._policy_sampler.exact:
            merge = not state["exact"]
            label = self._policy_sampler.label
            tokenizer = self._builder.tokenizer
            self.source.close()
            self._sample_from(GroupSampler(self.engine.model, tokenizer, merge=merge, label=label))
        if self._curriculum:
            self._curriculum.restore(state["curriculum"])

    def close(self) -> None:
        """End the judges' processes and the source."""
        self.source.close()
        self._judge.close()
        if self._watchers:
            self._watchers.close()


def reward_model_of(parts: Parts) -> RewardModel | None:
    """Return the configured reward model: on the policy's own base if it fits there, else loaded on
    its own. None if none is configured."""
    if parts.reward_model is None:
        return None
    from thumbwheel.engine.reward_model import RewardModel

    mounted = RewardModel.on_engine(parts.engine, parts.builder.tokenizer, parts.reward_model)
    if mounted is not None:
        return mounted
    device, ranks = str(parts.engine.device), parts.engine.ranks
    return RewardModel.load(parts.reward_model, device=device, ranks=ranks)


def judges(
    config: Any, parts: Parts, model: RewardModel | None
) -> tuple[RewardJudge, RewardJudge | None]:
    """Return the judge that rewards, and the one that only watches, or None for it. Raises
    ConfigError if nothing rewards."""
    functions = dict(weighted(name) for name in config.reward_functions)
    if not functions and model is None:
        raise ConfigError(
            "reward_functions and reward_model",
            "no judge is left",
            "Name a function or a reward model",
        )

    # Settings of a function that does neither go to the judge, which refuses them.
    watched = dict.fromkeys(config.held_out, 1.0)
    judge_settings: dict[str, Any] = {}
    watcher_settings: dict[str, Any] = {}
    for name, settings in config.reward_settings.items():
        if name in watched:
            watcher_settings[name] = settings
        if name in functions or name not in watched:
            judge_settings[name] = settings
    judge = RewardJudge(
        functions,
        model,
        config.reward_model_weight,
        config.reward_timeout,
        config.reward_workers,
        judge_settings,
        parts.checkers,
    )
    if not watched:
        return judge, None
    timeout = config.reward_timeout
    return judge, RewardJudge(watched, None, 0.0, timeout, 1, watcher_settings, parts.checkers)


def weighted(text: str) -> tuple[str, float]:
    """Return a function's name with its weight, 1 if none is given. Raises ConfigError.

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
            f"{weight!r} is not a weight",
            'Write it as "checker=2", with a number above 0',
        )
    return name, value


def task_owners(ranks: Ranks, tasks: Sequence[RolloutPrompt]) -> list[int]:
    """Return the rank that answers each task. Equal prompts go to the same one, because the random
    numbers of an answer depend on its number among the answers to its prompt."""
    counts = Counter(task.prompt for task in tasks)
    owner_of = dict(zip(counts, ranks.owners(list(counts.values())), strict=True))
    return [owner_of[task.prompt] for task in tasks]


def _fields(rollout: Rollout) -> tuple[Any, ...]:
    return rollout.ids, rollout.logps, rollout.finish, rollout.text, rollout.policy_step


def _judge_request(task: RolloutPrompt, rollout: Rollout) -> JudgeRequest:
    return JudgeRequest(task.row, rollout.text, rollout.finish, task.row["prompt"])


def rewarded(collected: AnswerBatch) -> AnswerBatch:
    """Return `collected` unchanged. Raises DataError if no answer has a reward."""
    rewards = [reward for group in collected.rewards for reward in group]
    if any(reward.value is not None for reward in rewards):
        return collected
    failures: set[str] = set()
    for reward in rewards:
        failures |= {f"{name}: {kind}" for name, kind in reward.failures.items()}
    why = "; ".join(sorted(failures)) or "nothing that judges applies to these rows"
    raise DataError(
        f"{len(rewards)} answers to {len(collected.tasks)} prompts",
        f"none of them has a reward ({why})",
        "Give the rows a checker and a reference, or set reward_functions or reward_model",
    )


def success(collected: AnswerBatch) -> list[tuple[int, float]]:
    """Return (row, mean reward) of every task that has a reward."""
    rates: list[tuple[int, float]] = []
    for task, rewards in zip(collected.tasks, collected.values, strict=True):
        present = [reward for reward in rewards if reward is not None]
        if present:
            rates.append((task.number, _mean(present)))
    return rates


def collected_metrics(collected: AnswerBatch) -> dict[str, float]:
    """Return mean reward and its parts, failures, and lengths and endings of the answers; a missing
    reward is left out of the mean."""
    rewards = [reward for group in collected.rewards for reward in group]
    rollouts = [rollout for group in collected.rollouts for rollout in group]
    values = [reward.value for reward in rewards if reward.value is not None]
    lengths = [float(len(rollout.ids)) for rollout in rollouts]
    eos_rate = _mean([float(rollout.finish == "stop") for rollout in rollouts])
    metrics = {
        "reward": _mean(values),
        "reward_std": spread(values),
        "reward_failures": _mean([float(reward.value is None) for reward in rewards]),
        "eos_rate": eos_rate,
        "completions/clipped_ratio": 1 - eos_rate,
        "completions/mean_length": _mean(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
    }
    metrics |= _mean_metric("format_rate", [reward.well_formed for reward in rewards])
    for name in dict.fromkeys(name for reward in rewards for name in reward.parts):
        parts = [reward.parts.get(name) for reward in rewards]
        metrics |= _mean_metric(f"rewards/{name}/mean", parts)
    return metrics


def policy_lag(collected: AnswerBatch, step: int) -> dict[str, float]:
    """Return the mean number of steps by which the answers' policy is older than `step`; an empty
    dict if no server was given the policy."""
    lags: list[float] = []
    for group in collected.rollouts:
        steps = [rollout.policy_step for rollout in group]
        lags += [float(step - policy_step) for policy_step in steps if policy_step is not None]
    return {"sampling/policy_lag": _mean(lags)} if lags else {}


def guarded_values(collected: AnswerBatch) -> dict[str, list[float | None]]:
    """Return, for each metric of divergence.GUARDED_RATES, one value per task: whether its only
    answer has the property that training must not remove, or None if unknown."""
    values: dict[str, list[float | None]] = {name: [] for name in GUARDED_RATES}
    for task, (rollout,), (reward,) in zip(
        collected.tasks, collected.rollouts, collected.rewards, strict=True
    ):
        well_formed, liked_value = reward.well_formed, None
        liked = task.row.get("liked")
        if liked:
            like_checker = checker(None, None, liked, "what people liked", {})
            (score,) = like_checker.score([Case(rollout.text, liked)])
            liked_value = score.value
            if well_formed is None:
                well_formed = score.well_formed
        values["format_rate"].append(None if well_formed is None else float(well_formed))
        values["eos_rate"].append(float(rollout.finish == "stop"))
        values["liked_rate"].append(liked_value)
    return values


def _mean_metric(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """Return the mean of the values that are not None; an empty dict if there are none."""
    present = [float(value) for value in values if value is not None]
    return {name: _mean(present)} if present else {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
