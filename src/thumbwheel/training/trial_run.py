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
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.hardware import GB
from thumbwheel.engine.libraries import load_libraries
from thumbwheel.training.memory import Meter, meter, parameter_gb
from thumbwheel.training.order import Order
from thumbwheel.training.process import guarded, made_to_fit, probe_of
from thumbwheel.training.rundir import RunDir, open_rows
from thumbwheel.training.types import RunState, Status

if TYPE_CHECKING:
    from thumbwheel.training.algorithm import Method
    from thumbwheel.training.assemble import Assembly

MEASURED = 3
"""Steps that are measured, after one that warms up."""
DEV = 64
"""Dev rows that stand for all."""


def main(folder: str) -> int:
    """Make the trial of the run in `folder` and return the exit code."""
    log.configure()
    run = RunDir(Path(folder))
    return guarded(run, lambda: _work(run))


def _work(run: RunDir) -> int:
    load_libraries()  # beforehand, so that what they take is known
    import torch

    started = time.monotonic()
    gauge = meter("cpu")
    process = gauge.now() if gauge and not torch.cuda.is_available() else 0.0
    spec = run.spec()
    assembly = made_to_fit(run, spec, open_rows(spec), is_trial=True)
    times = {"start": time.monotonic() - started}
    facts = assembly.facts | {
        "changes": assembly.runner.budget.changes,
        "token_budget": assembly.runner.budget.tokens,
        "steps": assembly.steps,
        "steps_an_epoch": Order.of(len(assembly.train.items), assembly.config).steps_an_epoch,
    }
    with tempfile.TemporaryDirectory(dir=run.path) as scratch:
        times |= _times(assembly, Path(scratch))
        disk = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file()) / GB
    assembly.runner.close()
    figures = {
        "planned_tokens": assembly.planned_tokens,
        "tokens": assembly.train.tokens,
        "scored": assembly.train.scored,
        "times": times,
        "checkpoint_gb": disk,
        "memory": _memory(assembly, process, meter(assembly.engine.device.type)),
    }
    run.write_status(Status(RunState.FINISHED, result=facts | figures))
    return 0


def _times(assembly: Assembly, scratch: Path) -> dict[str, float]:
    """Measure seconds: `first` and `later` per row of a step in the first and in a later epoch,
    those of an evaluation likewise, and those of probe and checkpoint."""
    from transformers import TrainerState

    from thumbwheel.training.checkpoint import Checkpoints
    from thumbwheel.training.optimizer import prepare

    runner, config = assembly.runner, assembly.config
    trained = prepare(assembly.model, config, assembly.steps, runner.groups())

    def apply(loss: float) -> float:
        trained.optimizer.step()
        trained.optimizer.zero_grad(set_to_none=True)
        return loss

    # An update by one item comes before anything is measured, so that all memory of the optimiser
    # is there.
    batches = islice(Order.of(len(assembly.train.items), config).batches(), MEASURED + 1)
    steps = [[assembly.train.items[number] for number in batch] for batch in batches]
    runner.train(steps[0][:1], 0, apply)
    measured = steps[1:] or steps

    def train_measured() -> None:
        for items in measured:
            runner.train(items, 0, apply)

    kind = assembly.engine.layout.kind
    n_rows = 0
    for items in measured:
        n_rows += sum(example.rows(kind) for example in runner.examples(items))
    first = later = _seconds(train_measured) / n_rows
    if _compares(assembly.method, "reference"):
        later = _seconds(train_measured) / n_rows

    # A part of the dev rows stands for all.
    probe, dev = probe_of(assembly), assembly.dev.items[:DEV]
    evaluation_first = evaluation_later = 0.0
    if dev:
        scale = len(assembly.dev.items) / len(dev)
        evaluation_first = evaluation_later = scale * _seconds(lambda: runner.evaluate(dev))
        if _compares(assembly.method, "dev_reference"):
            evaluation_later = scale * _seconds(lambda: runner.evaluate(dev))

    checkpoints = Checkpoints(scratch, 1)
    state = TrainerState(global_step=1)
    save = _seconds(lambda: checkpoints.save(trained, state, runner.state()))
    _heaviest(assembly)
    return {
        "first": first,
        "later": later,
        "evaluation_first": evaluation_first,
        "evaluation_later": evaluation_later,
        "probe": _seconds(probe.run) if probe else 0.0,
        "save": save,
        "steps": len(measured),
    }


def _compares(method: Method[Any], name: str) -> bool:
    """Return whether a later pass over rows differs from the first: it finds the log-probs of the
    base in the cache. `name` is the attribute that says so of recorded answers."""
    return bool(getattr(method, name, True))


def _seconds(work: Callable[[], Any]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def _heaviest(assembly: Assembly) -> None:
    """Rehearse the largest items as one step, which a run will meet sooner or later."""
    kind, budget = assembly.engine.layout.kind, assembly.runner.budget
    examples = assembly.runner.examples(assembly.train.items)
    largest = sorted(examples, key=lambda example: -example.rows(kind))
    chosen, total = largest[:1], largest[0].rows(kind)
    for example in largest[1 : assembly.config.batch_size]:
        if total + example.rows(kind) > 2 * budget.tokens:
            break
        chosen.append(example)
        total += example.rows(kind)
    assembly.runner.rehearse(budget.units(chosen))


def _memory(assembly: Assembly, process: float, gauge: Meter | None) -> dict[str, float]:
    """Return the GB of each consumer of memory; empty if nothing can be measured."""
    if gauge is None:
        return {}
    trained = parameter_gb(assembly.model, trains=True)
    parts = {
        "process": process,
        "weights": parameter_gb(assembly.model, trains=False),
        "adapters": trained,
        "optimizer": 3 * trained,
        "head_tile": _head_tile(assembly) / GB,
    }
    peak = gauge.most()
    return parts | {"activations": max(0.0, peak - sum(parts.values())), "peak": peak}


def _head_tile(assembly: Assembly) -> float:
    """Return the bytes of the pass over the vocabulary, as engine/head.py sizes it; 0 for a model
    without an output layer."""
    from thumbwheel.engine.head import ROWS, TILE_BYTES, TILE_BYTES_ELSEWHERE

    module = None
    if hasattr(assembly.model, "get_output_embeddings"):
        module = assembly.model.get_output_embeddings()
    if module is None or not hasattr(module, "weight"):
        return 0.0
    vocabulary, width = module.weight.shape
    rows = min(ROWS, assembly.runner.budget.tokens)
    tile_bytes = TILE_BYTES.get(assembly.engine.device.type, TILE_BYTES_ELSEWHERE)
    columns = min(vocabulary, max(256, tile_bytes // (4 * width)))
    widened = columns * width if module.weight.element_size() < 4 else 0
    return float(4 * (widened + rows * (columns + 2 * width)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
