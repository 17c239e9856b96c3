"""A trial of a run, in a process of its own: `python -m thumbwheel.training.trial_run RUN_DIR`. Its
figures go into status.json.

It is the run itself up to its first steps: the same assembly, updates with the real optimiser, an
evaluation, the generation probe, a checkpoint. Time and memory are read from that; what they mean
for the whole run is estimate.py's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.training.hardware import GB
from thumbwheel.training.memory import Meter, meter
from thumbwheel.training.order import Order
from thumbwheel.training.process import guarded, made_to_fit, probe_of
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

if TYPE_CHECKING:
    from thumbwheel.training.assemble import Assembly
    from thumbwheel.training.checkpoint import Trained

MEASURED = 3
"""Steps that are measured, after one that warms up."""
DEV = 64
"""Dev rows that stand for all."""


def main(folder: str) -> int:
    """Make the trial of the run in `folder`; returns the exit code."""
    log.configure()
    run = RunDir(Path(folder))
    return guarded(run, lambda: _work(run))


def _work(run: RunDir) -> int:
    torch, *_ = map(
        import_module, ("torch", "transformers", "peft")
    )  # beforehand, so that what they take is known
    started = time.monotonic()
    gauge = meter("cpu")
    process = gauge.now() if gauge and not torch.cuda.is_available() else 0.0
    assembly = made_to_fit(run, run.spec(), run.read_rows())
    times = {"start": time.monotonic() - started}
    result = assembly.facts | {
        "changes": assembly.runner.budget.changes,
        "token_budget": assembly.runner.budget.tokens,
    }
    result |= {
        "steps": assembly.steps,
        "steps_an_epoch": Order.of(len(assembly.train.items), assembly.config).steps_an_epoch,
    }
    with tempfile.TemporaryDirectory(dir=run.path) as scratch:
        times |= _times(assembly, Path(scratch))
        disk = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file()) / GB
    assembly.runner.close()
    sizes = {
        "planned_tokens": assembly.planned_tokens,
        "tokens": assembly.train.tokens,
        "scored": assembly.train.scored,
    }
    figures = sizes | {"times": times, "checkpoint_gb": disk}
    memory = _memory(assembly, process, meter(assembly.engine.device.type))
    run.write_status(Status(RunState.FINISHED, result=result | figures | {"memory": memory}))
    return 0


def _times(assembly: Assembly, scratch: Path) -> dict[str, float]:
    """Seconds: `first` and `later` a row of a step in the first and in a later epoch, of an
    evaluation likewise, of probe and checkpoint.

    One update is real before anything is measured, so that all memory of the optimiser is there.
    """
    from transformers import TrainerState

    from thumbwheel.training.checkpoint import Checkpoints
    from thumbwheel.training.optimizer import prepare

    trained = prepare(assembly.model, assembly.config, assembly.steps, assembly.runner.groups())
    batches = list(
        islice(Order.of(len(assembly.train.items), assembly.config).batches(), MEASURED + 1)
    )
    steps = [[assembly.train.items[number] for number in batch] for batch in batches]
    step = _step(assembly, trained)
    step(steps[0])
    measured = steps[1:] or steps
    work = sum(
        example.rows(assembly.engine.layout.kind)
        for items in measured
        for example in assembly.runner.examples(items)
    )
    first, later = (_seconds(lambda: _each(step, measured)) / work for _ in range(2))
    probe, dev = probe_of(assembly), assembly.dev.items[:DEV]
    evaluations = (
        [
            _seconds(lambda: assembly.runner.evaluate(dev)) * _share(assembly, len(dev))
            for _ in range(2)
        ]
        if dev
        else [0.0, 0.0]
    )
    saved = _seconds(
        lambda: Checkpoints(scratch, 1).save(
            trained, TrainerState(global_step=1), assembly.runner.state()
        )
    )
    _heaviest(assembly)
    return {
        "first": first,
        "later": later,
        "evaluation_first": evaluations[0],
        "evaluation_later": evaluations[1],
        "probe": _seconds(probe.run) if probe else 0.0,
        "save": saved,
        "steps": len(measured),
    }


def _step(assembly: Assembly, trained: Trained) -> Callable[[Sequence[Any]], Any]:
    def apply(loss: float) -> float:
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
        return loss

    return lambda items: assembly.runner.train(items, 0, apply)


def _each(step: Callable[[Any], Any], several: Iterable[Any]) -> None:
    for items in several:
        step(items)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _share(assembly: Assembly, sample: int) -> float:
    """How many times the sample an evaluation of the run is; methods that answer have a limit of
    their own."""
    return (
        min(
            len(assembly.dev.items),
            getattr(assembly.config, "eval_prompts", len(assembly.dev.items)),
        )
        / sample
    )


def _heaviest(assembly: Assembly) -> None:
    """Rehearse the largest items as one step: what a run will meet sooner or later."""
    kind = assembly.engine.layout.kind
    largest = sorted(
        assembly.runner.examples(assembly.train.items), key=lambda example: -example.rows(kind)
    )
    chosen, total = largest[:1], largest[0].rows(kind)
    for example in largest[1 : assembly.config.batch_size]:
        if total + example.rows(kind) > 2 * assembly.runner.budget.tokens:
            break
        chosen.append(example)
        total += example.rows(kind)
    assembly.runner.rehearse(assembly.runner.budget.units(chosen))


def _memory(assembly: Assembly, process: float, gauge: Meter | None) -> dict[str, float]:
    """GB by what holds them; empty where nothing can be measured."""
    if gauge is None:
        return {}
    trained = (
        sum(
            parameter.numel() * parameter.element_size()
            for parameter in assembly.model.parameters()
            if parameter.requires_grad
        )
        / GB
    )
    frozen = (
        sum(
            parameter.numel() * parameter.element_size()
            for parameter in assembly.model.parameters()
            if not parameter.requires_grad
        )
        / GB
    )
    parts = {
        "process": process,
        "weights": frozen,
        "adapters": trained,
        "optimizer": 3 * trained,
        "head_tile": _head_tile(assembly) / GB,
    }
    return parts | {
        "activations": max(0.0, gauge.most() - sum(parts.values())),
        "peak": gauge.most(),
    }


def _head_tile(assembly: Assembly) -> float:
    """Bytes of the pass over the vocabulary, as engine/head.py sizes it; 0 for what has none."""
    from thumbwheel.engine.head import ROWS, TILE_BYTES, TILE_BYTES_ELSEWHERE

    module = (
        assembly.model.get_output_embeddings()
        if hasattr(assembly.model, "get_output_embeddings")
        else None
    )
    if module is None or not hasattr(module, "weight"):
        return 0.0
    vocabulary, width = module.weight.shape
    at_once = min(ROWS, assembly.runner.budget.tokens)
    columns = min(
        vocabulary,
        max(256, TILE_BYTES.get(assembly.engine.device.type, TILE_BYTES_ELSEWHERE) // (4 * width)),
    )
    widened = columns * width if module.weight.element_size() < 4 else 0
    return float(4 * (widened + at_once * (columns + 2 * width)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
