"""The training loop: order -> step -> clip -> update -> log, evaluate, save; with early stopping,
and with Hugging Face's callbacks.

What a step computes is the method's (step.py, online.py); what is on disk is checkpoint.py and
rundir.py; what goes wrong is divergence.py. A resumed run does exactly what the uninterrupted one
would have done: order and schedule follow from the step number, and the checkpoint holds the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import scipy.special  # noqa: F401  the end of a run needs it, when memory may be short

from thumbwheel.core import log
from thumbwheel.core.errors import ConfigError
from thumbwheel.training.algorithm import DivergedError, MethodRunner, StepResult
from thumbwheel.training.checkpoint import Checkpoints, Trained
from thumbwheel.training.divergence import DivergenceMonitor
from thumbwheel.training.gain import Gain, Rows, gain_of
from thumbwheel.training.metrics import MetricsFile
from thumbwheel.training.probe import Probe
from thumbwheel.training.reporting import PROJECT
from thumbwheel.training.types import TrainConfig

if TYPE_CHECKING:
    from transformers import TrainerCallback

RISING = {"ratio/good", "rewards/margins", "rewards/accuracies", "reward", "accuracy"}
"""Metrics of which more is better."""


@dataclass(frozen=True)
class Ending:
    """How the loop ended: `wrong` is a reason of divergence.py, `reason` one that is no failure;
    `best` is the step to take the adapter from, `gain` what the dev rows say of it, where there are
    such rows."""

    step: int
    best: int | None
    interrupted: bool = False
    reason: str | None = None
    wrong: str | None = None
    gain: Gain | None = None


class Loop:
    """One run over `train`, evaluated on `dev` where there are such rows.

    Of several ranks the first one decides when to stop, has the callbacks, and writes metrics and
    checkpoints.
    """

    def __init__(
        self,
        runner: MethodRunner,
        trained: Trained,
        config: TrainConfig,
        train: Sequence[Any],
        dev: Sequence[Any],
        metrics: MetricsFile,
        checkpoints: Checkpoints,
        *,
        probe: Probe | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        interrupted: Callable[[], bool] = lambda: False,
        tokenizer: Any = None,
        name: str | None = None,
    ) -> None:
        from transformers import TrainerControl, TrainerState

        self.config, self.order = config, runner.order(train)
        self._runner, self._trained = runner, trained
        self._train, self._dev = train, dev
        self._metrics, self._checkpoints, self._probe = metrics, checkpoints, probe
        self._interrupted = interrupted
        self._ranks = runner.engine.ranks
        self._monitor = DivergenceMonitor(config.collapse_nll)
        self._decisive_metric: str = config.metric_for_best_model
        self.eval_steps = config.evaluation_interval
        self.save_steps = config.save_steps or self.eval_steps
        self.state = TrainerState(
            max_steps=self.order.steps,
            logging_steps=config.logging_steps,
            eval_steps=self.eval_steps,
            save_steps=self.save_steps,
            train_batch_size=config.batch_size,
        )
        self.control = TrainerControl()
        self._callbacks, self._tokenizer = callbacks, tokenizer
        self._arguments = _arguments(config, self.order.steps, name)
        self._saved_at = time.monotonic()
        self._evaluations_without_best = 0
        self._stop: str | None = None
        self._unfit: str | None = None
        self._base_rows: Mapping[str, Rows] = {}
        self._rows: Mapping[str, Rows] = {}
        self._best_rows: Mapping[str, Rows] = {}

    def run(self, resume_from: int | None = None) -> Ending:
        """Train to the end, or until something stops it, and return how it ended; `resume_from` is
        a step with an undamaged checkpoint."""
        if resume_from is not None:
            self._resume(resume_from)
        self._fire("on_train_begin")
        if not self._dev:
            log.say(
                "there are no dev rows: the last checkpoint counts as the best, nothing tells "
                "whether it gained anything, and no figure on "
                "dev rows can end the run early"
            )
        elif resume_from is None:
            self._monitor.start(self._first_evaluation())
            self._base_rows = self._rows
        ending = self._all_steps()
        if ending.best is not None and not ending.interrupted and not ending.wrong:
            over = self.config.continue_from or "the base"
            ending = replace(ending, gain=self._change(self._base_rows, self._best_rows, over))
        self._fire("on_train_end")
        return ending

    def _first_evaluation(self) -> dict[str, float]:
        """Evaluate the base. Raises ConfigError if the configured deciding metric is not one that
        the dev rows give."""
        metrics, name = self._evaluate(), self._decisive_metric
        if name in metrics:
            return metrics
        field = type(self.config).model_fields["metric_for_best_model"]
        if name == field.default:
            log.say(
                f"the dev rows give no {name} (one kind of answer only?): the dev loss decides "
                "which checkpoint is best"
            )
            self._decisive_metric = "loss"
            return metrics
        choices = ", ".join(key for key in metrics if key in get_args(field.annotation))
        raise ConfigError(
            f"metric_for_best_model {name!r}",
            "the dev rows have no such metric",
            f"Use one of: {choices}",
        )

    def _change(
        self, before: Mapping[str, Rows], after: Mapping[str, Rows], over: str
    ) -> Gain | None:
        """Return the gain from one evaluation to another, or None if one of them was not made."""
        if not before or not after:
            return None
        groups = [item.group for item in self._dev]
        name = self._decisive_metric
        return gain_of(name, name in RISING, before, after, groups, over)

    def _resume(self, step: int) -> None:
        self.state, saved = self._checkpoints.load(step, self._trained)
        if self._ranks.is_first:
            self._checkpoints.forget_after(step)
        self._runner.restore(saved["method"])
        self._base_rows = saved["base_rows"]
        self._best_rows = saved["best_rows"]
        self._rows = saved["rows"]
        self._monitor.restore(saved["monitor"])
        self._evaluations_without_best = saved["evaluations_without_best"]
        self._decisive_metric = saved["decisive_metric"]
        self._unfit = saved["unfit"]
        self.state.max_steps = self.order.steps

    def _all_steps(self) -> Ending:
        for rows in self.order.batches(self.state.global_step):
            if self.state.global_step % self.order.steps_an_epoch == 0:
                self._fire("on_epoch_begin")
            wrong = self._step([self._train[row] for row in rows]) or self._after_step()
            if wrong:
                return self._ending(wrong=wrong)
            if self.state.global_step % self.order.steps_an_epoch == 0:
                self._fire("on_epoch_end")

            # Reasons to end before the last step.
            if self._stale():
                steps = self.state.global_step - self._best_step
                return self._ending(
                    reason=f"early stopping: no better dev {self._decisive_metric} in "
                    f"{self._evaluations_without_best} evaluations, {steps} steps"
                )
            if self._stop:
                return self._stopped(self._stop)
            halt = self._ranks.from_first(self._halt, "end of a step")
            if halt == "interrupted":
                return self._ending(interrupted=True)
            if halt is not None:
                return self._ending(reason=halt)
        self._keep_annealed()
        return self._ending()

    def _halt(self) -> str | None:
        """Return the reason from outside to end the run now, or None."""
        if self._interrupted():
            return "interrupted"
        return "a callback stopped the training" if self.control.should_training_stop else None

    def _keep_annealed(self) -> None:
        """Keep the weights at the end of the schedule, unless an earlier checkpoint was better
        beyond noise.

        A checkpoint from the middle has seen no small learning rate, and among ten evaluations of
        few rows the highest is chance.
        """
        best, last = self.state.best_global_step, self.state.global_step
        if best is None or best == last or self._unfit or self.config.load_best_model_at_end:
            return
        change = self._change(self._best_rows, self._rows, f"step {best}")
        if change is not None and change.is_worse:
            figures = (
                f"dev {change.metric} {change.best:.3g} at the end, {change.base:.3g} at step "
                f"{best}"
            )
            log.say(
                f"the checkpoint of step {best} is kept, because it was better than the last one "
                f"beyond noise: {figures}"
            )
            return
        self.state.best_global_step, self._best_rows = last, self._rows

    def _ending(
        self, *, wrong: str | None = None, reason: str | None = None, interrupted: bool = False
    ) -> Ending:
        """Return how the run ended; the last state is saved too, unless something is wrong with
        it."""
        best, step = self.state.best_global_step, self.state.global_step
        if best is None and self._unfit and not interrupted:
            wrong, reason = wrong or self._unfit, None
        if wrong:
            return Ending(step, best or None, wrong=wrong, reason=reason, interrupted=interrupted)
        if step not in self._checkpoints.steps():
            self._save()
        return Ending(step, best or step, reason=reason, interrupted=interrupted)

    def _stopped(self, reason: str) -> Ending:
        """Return an ending with the best adapter so far, or the last one that was saved before this
        step; without any there is nothing to keep."""
        step = self.state.global_step
        best = self.state.best_global_step
        if not best and not self._unfit:
            best = max((saved for saved in self._checkpoints.steps() if saved < step), default=None)
        if not best:
            return Ending(step, None, wrong=reason)
        return Ending(step, best, reason=reason)

    def _step(self, items: Sequence[Any]) -> str | None:
        """Take one step; return the reason if it must not be taken, else None."""
        self._fire("on_step_begin")
        started = time.monotonic()
        rate = self._trained.scheduler.get_last_lr()[0]
        budget = self._runner.budget.tokens
        try:
            outcome = self._runner.train(items, self.state.global_step, self._apply)
        except DivergedError as wrong:
            return f"{wrong} at step {self.state.global_step + 1}"
        self._trained.scheduler.step()
        self.state.global_step += 1
        self.state.epoch = self.order.epoch(self.state.global_step)
        self.state.num_input_tokens_seen += outcome.tokens
        self._stop = outcome.stop
        self._set_control()
        self._fire("on_step_end")
        self.control.should_evaluate = self._ranks.from_first(
            lambda: self.control.should_evaluate, "step"
        )
        if self.control.should_log:
            line = {
                "loss": outcome.loss,
                "learning_rate": rate,
                "num_tokens": float(self.state.num_input_tokens_seen),
                **outcome.metrics,
            }
            if self._runner.budget.tokens != budget:
                line["token_budget"] = float(self._runner.budget.tokens)
            self._log(line, {"step_seconds": round(time.monotonic() - started, 4)})
        return None

    def _apply(self, loss: float) -> float:
        """Update the parameters with the current gradients of all ranks, each parameter group
        clipped on its own; return the gradient norm. Raises DivergedError."""
        from torch.nn.utils import clip_grad_norm_

        optimizer = self._trained.optimizer
        trained: list[Any] = []
        for group in optimizer.param_groups:
            trained += group["params"]
        self._ranks.sum_gradients(trained)
        limit = self.config.max_grad_norm
        norms = [clip_grad_norm_(group["params"], limit) for group in optimizer.param_groups]
        norm = math.hypot(*map(float, norms))
        wrong = self._monitor.step(loss, norm)
        if wrong:
            raise DivergedError(wrong)
        self._fire("on_pre_optimizer_step")
        optimizer.step()
        self._fire("on_optimizer_step")
        optimizer.zero_grad(set_to_none=True)
        return norm

    def _set_control(self) -> None:
        """Set what is due after this step; callbacks may change it."""
        step = self.state.global_step
        is_last = step == self.order.steps
        self.control.should_log = step % self.config.logging_steps == 0 or is_last
        self.control.should_evaluate = bool(self._dev) and (step % self.eval_steps == 0 or is_last)
        overdue = time.monotonic() - self._saved_at > 60 * self.config.save_minutes
        self.control.should_save = step % self.save_steps == 0 or overdue

    def _after_step(self) -> str | None:
        """Evaluate and save if due; return the reason if something is wrong, else None."""
        if self.control.should_evaluate:
            metrics = self._evaluate()
            if self._stop:
                return None
            wrong = self._monitor.evaluation(metrics)
            if wrong:
                return f"{wrong} at step {self.state.global_step}"
            self._compare_with_best(metrics)
        if self.control.should_save:
            self._save()
        return None

    def _evaluate(self) -> dict[str, float]:
        """Return loss and metrics of the dev rows, and the probe's rates."""
        outcome: StepResult = self._runner.evaluate(self._dev)
        self._stop, self._unfit = self._stop or outcome.stop, outcome.unfit
        self._rows = outcome.rows
        metrics = {"loss": outcome.loss} | outcome.metrics
        if self._probe:
            metrics |= self._runner.engine.from_first(self._probe.run, "probe")
        named = {f"eval_{name}": value for name, value in metrics.items()}
        self._log(named, {})
        self._fire("on_evaluate", metrics=named)
        return metrics

    def _compare_with_best(self, metrics: Mapping[str, float]) -> None:
        """Make this evaluation the best one if it is better than all before it and its model is
        fit."""
        step = self.state.global_step
        value, best = metrics[self._decisive_metric], self.state.best_metric
        sign = 1.0 if self._decisive_metric in RISING else -1.0
        if self._unfit:
            log.say(f"step {step} cannot be the best: {self._unfit}")
            self._evaluations_without_best += 1
        elif best is None or sign * value > sign * best:
            self.state.best_metric, self.state.best_global_step = value, step
            self.state.best_model_checkpoint = self._checkpoints.folder_of(step).name
            self.control.should_save = True
            self._evaluations_without_best = 0
            self._best_rows = self._rows
        else:
            self._evaluations_without_best += 1

    @property
    def _best_step(self) -> int:
        """The step of the newest evaluation that was better than those before it; 0 before there is
        one."""
        return self.state.best_global_step or 0

    def _stale(self) -> bool:
        """Return whether the run has gone on for too long without a better evaluation.

        A short run is evaluated after every step, and single steps are noise: patience is a part
        of the epochs asked for besides.
        """
        patience = self.config.early_stopping_patience
        if patience is None or self._evaluations_without_best < patience:
            return False
        return 10 * (self.state.global_step - self._best_step) >= patience * self.order.steps

    def _save(self) -> None:
        """Write a checkpoint, if this is the first rank."""
        if not self._ranks.is_first:
            return
        saved = {
            "method": self._runner.state(),
            "monitor": self._monitor.state(),
            "evaluations_without_best": self._evaluations_without_best,
            "decisive_metric": self._decisive_metric,
            "unfit": self._unfit,
            "base_rows": dict(self._base_rows),
            "best_rows": dict(self._best_rows),
            "rows": dict(self._rows),
        }
        self._checkpoints.save(self._trained, self.state, saved)
        self._saved_at = time.monotonic()
        self._fire("on_save")

    def _log(self, values: Mapping[str, float], times: Mapping[str, float]) -> None:
        line = {
            "step": self.state.global_step,
            "epoch": round(float(self.state.epoch), 4),
            **values,
        }
        self.state.log_history.append(line)
        if self._ranks.is_first:
            self._metrics.write({**line, **times})
        self._fire("on_log", logs=dict(values))

    def _fire(self, event: str, **more: Any) -> None:
        context = {
            "model": self._trained.model,
            "processing_class": self._tokenizer,
            "optimizer": self._trained.optimizer,
            "lr_scheduler": self._trained.scheduler,
            "train_dataloader": None,
            "eval_dataloader": None,
        }
        for callback in self._callbacks:
            answer = getattr(callback, event)(
                self._arguments, self.state, self.control, **context, **more
            )
            self.control = answer or self.control


def _arguments(config: TrainConfig, steps: int, name: str | None) -> Any:
    """Return the TrainingArguments that callbacks of the Hugging Face kind read; `name` is the
    run's."""
    import torch
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=config.batch_size,
        learning_rate=config.peak_rate,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        max_steps=steps,
        logging_steps=config.logging_steps,
        metric_for_best_model=f"eval_{config.metric_for_best_model}",
        greater_is_better=config.metric_for_best_model in RISING,
        seed=config.seed,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",  # ours are made by reporting.py
        run_name=name,
        project=PROJECT,
        disable_tqdm=True,
    )
