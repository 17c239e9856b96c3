"""The child process of a run: `python -m thumbwheel.training.process RUN_DIR [--lock-fd N]`. It
needs no database.

It holds the run's lock, dies with its parent, stops at a checkpoint on SIGINT or SIGTERM, and goes
on from the newest sound checkpoint when the folder has one. Whatever happens, except a kill, ends
up in status.json. A run of several ranks has several such processes; the first one decides and
writes.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.child import die_with_parent
from thumbwheel.core.config import build
from thumbwheel.core.errors import ConfigError, StorageError, ThumbwheelError, TrainingError
from thumbwheel.core.hardware import device
from thumbwheel.engine.libraries import load_libraries
from thumbwheel.engine.ranks import LOST, RankLostError, Ranks
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings
from thumbwheel.training.activity import ActivityFile
from thumbwheel.training.dev_budget import DevChoice
from thumbwheel.training.placement import RANK_VARIABLES
from thumbwheel.training.rundir import RunDir, open_rows, unwritable
from thumbwheel.training.types import JUDGED, RunSpec, RunState, Status, TrainConfig
from thumbwheel.training.usage import UsageFile

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardModelCard
    from thumbwheel.training.algorithm import SplitRows
    from thumbwheel.training.assemble import Assembly
    from thumbwheel.training.loop import Ending
    from thumbwheel.training.probe import Probe

INTERRUPTED = 130
"""Exit code after a clean stop, as shells have it for Ctrl-C."""


class Interrupt:
    """Set by SIGINT or SIGTERM; the loop asks between two steps."""

    def __init__(self, *, asked: bool = False) -> None:
        self.asked = asked
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked


def main(arguments: list[str]) -> int:
    """Run the folder's run and return the exit code."""
    parser = argparse.ArgumentParser(prog="thumbwheel.training.process")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--lock-fd", type=int)
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir, int(os.environ.get("RANK", "0")))
    interrupt = Interrupt()
    log.configure()
    try:
        if options.parent is not None:
            die_with(options.parent)
        _ = (
            run.lock() if options.lock_fd is None else options.lock_fd
        )  # held until this process ends
    except ThumbwheelError as error:
        log.say(f"error: {error}")
        return error.exit_code
    with ExitStack() as files:
        if run.rank == 0:
            files.enter_context(log.sent_to(ActivityFile(run)))
            files.enter_context(UsageFile(run))
        return guarded(run, lambda: _work(run, interrupt))


def die_with(parent: int) -> None:
    """Make the system kill this process when `parent` dies, so that no run goes on unseen (Linux;
    elsewhere the lock still protects the run)."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        sys.exit(1)


def guarded(run: RunDir, work: Callable[[], int]) -> int:
    """Return the exit code of `work()`; write any exception that it raises into the status."""
    try:
        return work()
    except ThumbwheelError as error:
        log.say(f"error: {error}")
        kind = {
            "class": type(error).__name__,
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
        }
        _try_status(run, Status(RunState.FAILED, reason=f"{error.what}: {error.why}", error=kind))
        return error.exit_code
    except RankLostError as error:
        log.say(f"error: {error}")
        _try_status(run, Status(RunState.FAILED, reason=str(error)))
        return LOST
    except Exception as error:  # noqa: BLE001 - whatever it was, the parent must read it
        traceback.print_exc()
        return _crashed(run, error)


def _crashed(run: RunDir, error: Exception) -> int:
    from thumbwheel.engine.out_of_memory import out_of_memory
    from thumbwheel.training.memory import SMALLER

    text = f"{type(error).__name__}: {error}"
    if out_of_memory(error):
        kind = {
            "class": "TrainingError",
            "what": f"run {run.path.name!r}",
            "why": f"out of memory ({text})",
            "fix": SMALLER,
        }
        _try_status(run, Status(RunState.FAILED, reason="out of memory", error=kind))
        return TrainingError.exit_code
    _try_status(run, Status(RunState.FAILED, reason=f"crashed: {text}"))
    return 1


def _try_status(run: RunDir, status: Status) -> None:
    try:
        run.write_status(status)
    except StorageError as error:  # a full disk leaves no place to say so but the exit code
        log.say(f"status cannot be written: {error}")


def _work(run: RunDir, interrupt: Interrupt) -> int:
    spec = run.spec()
    run.write_status(Status(RunState.RUNNING))
    started, resumed = time.monotonic(), any(run.checkpoints.iterdir())
    with log.progress(f"loading {spec.base}", None):
        load_libraries()  # before anything that needs scipy, which it keeps away from transformers
        from thumbwheel.training.judge_check import check_judge
        from thumbwheel.training.loop import Ending
        from thumbwheel.training.memory import hold_to, room_gb
        from thumbwheel.training.rater_weights import weigh

        rows = open_rows(spec)
        ranks = Ranks.join(os.environ, device(spec.config.get("device", "auto")))
        # A library that finds them would set up ranks of its own.
        for name in RANK_VARIABLES:
            os.environ.pop(name, None)
        assembly = made_to_fit(run, spec, rows, ranks)
        if assembly.config.shard_base:
            _shard(assembly)
    where = assembly.engine.device.type
    hold_to(where, room_gb(where, assembly.config.memory_limit_gb, ranks.world))
    notes = {
        "planned_steps": assembly.steps,
        "opening_notes": assembly.opening_notes,
        "evaluation": asdict(assembly.dev_choice.plan),
    }
    run.write_status(Status(RunState.RUNNING, result=notes))
    noise = weigh(assembly, rows, spec.raters)
    check = check_judge(assembly, rows.get(JUDGED, ()))
    refusal = check.refusal if check and assembly.config.require_gain else None
    if refusal:
        assembly.runner.close()
        ending = Ending(0, None)
    else:
        ending = _loop(run, assembly, interrupt)
    ranks.leave()
    if not ranks.is_first:
        return 0
    result = {
        **assembly.facts,
        "rater_error_rates": noise.error_rates if noise else None,
        "judge_check": check.to_json() if check else None,
        **_result(run, assembly, ending),
        "seconds": round(time.monotonic() - started, 1),
        "resumed": resumed,
    }
    if refusal:
        run.write_status(Status(RunState.NOTHING_LEARNED, 0, refusal, result=result))
        return 0
    return _finish(run, spec, assembly, ending, result)


def made_to_fit(
    run: RunDir,
    spec: RunSpec,
    rows: Mapping[str, SplitRows],
    ranks: Ranks | None = None,
    *,
    is_trial: bool = False,
) -> Assembly:
    """Assemble what the loop needs from the folder of a run. Raises TrainingError for a run that
    does not fit into memory."""
    from thumbwheel.training.assemble import assemble, settings
    from thumbwheel.training.fit_memory import fitted

    template = AS_IT_IS
    if spec.template is not None:
        template = build(TemplateSettings, spec.template, "template")

    # A resumed run keeps the max_length that it came down to when it began, and its dev rows.
    stored = run.fitted() if any(run.checkpoints.iterdir()) else {}
    choice = stored.get("dev_choice")
    dev_choice = DevChoice.from_json(choice) if choice else None

    def make(config: TrainConfig) -> Assembly:
        return assemble(
            spec.algorithm,
            config,
            spec.base,
            Path(spec.folder),
            rows,
            Path(spec.reference_cache),
            Path(spec.reward_model) if spec.reward_model else None,
            Path(spec.start) if spec.start else None,
            spec.checkers,
            template,
            ranks,
            dev_choice,
            is_trial,
        )

    config = settings(spec.algorithm, spec.config)
    if stored:
        config = config.model_copy(update={"max_length": stored["max_length"]})
    assembly = fitted(make, config, shorten=not stored)
    if not run.rank:
        choice = assembly.dev_choice.to_json()
        run.write_fitted({"max_length": assembly.config.max_length, "dev_choice": choice})
    for note in assembly.opening_notes:
        log.say(note)
    return assembly


def _shard(assembly: Assembly) -> None:
    """Leave this rank its part of the base, and say how much that is."""
    from thumbwheel.core.hardware import GB
    from thumbwheel.engine.shards import held_bytes

    assembly.engine.shard_base()
    held, whole = held_bytes(assembly.engine.language_model)
    log.say(f"this rank holds {held / GB:.3g} of the base's {whole / GB:.3g} GB")


def _loop(run: RunDir, assembly: Assembly, interrupt: Interrupt) -> Ending:
    from thumbwheel.training.checkpoint import Checkpoints
    from thumbwheel.training.loop import Loop
    from thumbwheel.training.metrics import MetricsFile
    from thumbwheel.training.optimizer import prepare
    from thumbwheel.training.reporting import reporters

    config, ranks = assembly.config, assembly.engine.ranks
    checkpoints = Checkpoints(run.checkpoints, config.save_total_limit)
    resume_from = ranks.from_first(checkpoints.newest_sound, "checkpoint")
    callbacks: list[Any] = []
    if ranks.is_first:
        run.forget_metrics_after(-1 if resume_from is None else resume_from)
        callbacks += reporters(config.report_to, run.path)
        callbacks += [_callback(name) for name in config.callbacks]
    order = assembly.order
    log.say(
        f"{order.rows} rows, {order.steps} steps, {order.epoch(order.steps):.3g} passes"
        if resume_from is None
        else f"going on after step {resume_from}"
    )
    trained = prepare(assembly.model, config, assembly.steps, assembly.runner.groups())
    metrics = MetricsFile(run.metrics)
    loop = Loop(
        assembly.runner,
        trained,
        config,
        assembly.train.items,
        assembly.dev.items,
        metrics,
        checkpoints,
        probe=probe_of(assembly),
        callbacks=callbacks,
        name=run.path.name,
        interrupted=interrupt,
        tokenizer=assembly.builder.tokenizer,
    )
    try:
        return loop.run(resume_from)
    finally:
        assembly.runner.close()
        metrics.close()


def probe_of(assembly: Assembly) -> Probe | None:
    """Return the generation probe of a run, or None if there is nothing to probe."""
    from thumbwheel.training.probe import Probe

    config = assembly.config
    if not config.probe_prompts or not assembly.method.good_roles:
        return None
    return Probe.of(
        assembly.model,
        assembly.builder,
        assembly.dev.items,
        assembly.method.good_roles,
        config.probe_prompts,
        config.probe_tokens,
    )


def _callback(location: str) -> Any:
    module, _, name = location.partition(":")
    try:
        return getattr(import_module(module), name)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"callback {location!r}",
            str(error),
            'Name it as "module:Class", and put the folder of its module into PYTHONPATH',
        ) from None


def _result(run: RunDir, assembly: Assembly, ending: Ending) -> dict[str, Any]:
    """Return the figures of the run: the base's evaluation, the best one, the last training step,
    the peak memory and what was planned."""
    from thumbwheel.training.memory import peak_memory_gb

    lines = run.read_metrics()
    evaluations = {line["step"]: line for line in lines if "eval_loss" in line}
    steps = [line for line in lines if "loss" in line]
    return {
        "steps": ending.step,
        "best_step": ending.best,
        "dev_base": evaluations.get(0),
        "dev_best": evaluations.get(ending.best) if ending.best else None,
        "gain": ending.gain.to_json() if ending.gain else None,
        "last_step": steps[-1] if steps else None,
        "token_budget": assembly.runner.budget.tokens,
        "changes": assembly.runner.budget.changes,
        "peak_memory_gb": peak_memory_gb(assembly.engine.device.type),
        "planned_steps": assembly.steps,
        "planned_tokens": assembly.planned_tokens,
    }


def _finish(
    run: RunDir, spec: RunSpec, assembly: Assembly, ending: Ending, result: dict[str, Any]
) -> int:
    """Write the status, and the adapter of a run that has one; return the exit code."""
    if ending.interrupted:
        run.write_status(Status(RunState.STOPPED, ending.step, "interrupted", result=result))
        return INTERRUPTED
    if ending.wrong:
        best = "no checkpoint was better than the base"
        if ending.best:
            best = f"the checkpoint of step {ending.best} was the best one"
        fix = f"Lower learning_rate (now {assembly.config.peak_rate:g})"
        if assembly.method.regularizer_setting:
            fix += f" or raise {assembly.method.regularizer_setting}"
        error = {
            "class": "TrainingError",
            "what": f"run {spec.run_id!r}",
            "why": f"it stopped itself: {ending.wrong}; {best}",
            "fix": f"{fix}, and train again",
        }
        run.write_status(Status(RunState.FAILED, ending.step, ending.wrong, error, result))
        return TrainingError.exit_code
    gain = ending.gain
    if gain is not None and gain.nothing and assembly.config.require_gain:
        run.write_status(Status(RunState.NOTHING_LEARNED, ending.step, gain.nothing, result=result))
        return 0
    write_adapter(run, spec, assembly, ending.best or ending.step, result["dev_best"] or {})
    reasons = [ending.reason]
    if gain is not None:
        reasons.append(gain.nothing or gain.unsure)
    reason = "; ".join(filter(None, reasons)) or None
    run.write_status(Status(RunState.FINISHED, ending.step, reason, result=result))
    return 0


def write_adapter(
    run: RunDir, spec: RunSpec, assembly: Assembly, step: int, dev: Mapping[str, float]
) -> None:
    """Copy the adapter of `step`, with the tokenizer files, to the run's result folder; all of it
    or nothing.

    A reward model also gets its card, with the `dev` figures of that step.
    """
    from thumbwheel.training.checkpoint import ADAPTER_FILES, Checkpoints

    source = Checkpoints(run.checkpoints, 1).folder_of(step)
    temporary = run.adapter.with_name("adapter.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in ADAPTER_FILES:
            shutil.copyfile(source / name, temporary / name)
        assembly.builder.tokenizer.save_pretrained(temporary)
        if assembly.method.produces_reward_model:
            _card(spec, assembly, dev).write(temporary)
        shutil.rmtree(run.adapter, ignore_errors=True)
        temporary.rename(run.adapter)
    except OSError as error:
        raise unwritable(run.adapter, error) from error


def _card(spec: RunSpec, assembly: Assembly, dev: Mapping[str, float]) -> RewardModelCard:
    from thumbwheel.engine.reward_model import RewardModelCard, RewardScale

    settings = assembly.config.model_dump()
    figures = {
        name.removeprefix("eval_"): value for name, value in dev.items() if name.startswith("eval_")
    }
    return RewardModelCard(
        settings["loss_type"],
        spec.base,
        spec.base_fingerprint,
        assembly.config.max_length,
        RewardScale(*settings["scale"]) if settings["scale"] else None,
        figures,
    )


def _end(exit_codes: list[int]) -> None:
    """End the process at once. Torch takes seconds to shut down, and whoever stopped the run
    waits."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_codes[-1])


if __name__ == "__main__":
    exit_codes = [1]  # of a process that raises
    atexit.register(_end, exit_codes)  # the first hook is the last that runs
    exit_codes.append(main(sys.argv[1:]))
