"""Where the time of an optimiser step of ours goes, and how far it is from what this machine's
matrix products allow.

`python benchmarks/floor.py [--methods ...] [--sizes ...] [--json FILE]`. One step, reference cache
cold, in one process: its floating point operations (counted as they are executed: matrix products
and attention), the machine's measured rate of products of such shapes, and from both the floor, the
seconds that the products alone would take. `distance` is the measured step over that floor. The
shares are of a step that was profiled on one thread: `products` are the frozen layers' and `lora`
the adapters' inside them, `head` everything from hidden states to log-probs, `other` what is
element by element (norms, activations, rotations, copies), `python` what is in none of torch's
operations.
"""

from __future__ import annotations

import os

import raw

from thumbwheel.training.children import PRIMITIVE_CACHES

os.environ |= PRIMITIVE_CACHES | {
    "OMP_WAIT_POLICY": "PASSIVE"
}  # as in a run; they are read when torch is loaded

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import material
import ours
import peers
import torch
from onerun import RANK, Spec
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode
from training import METHODS, Match, parser, reward_model, stamp

from thumbwheel.engine.refcache import RefCache

SHARES = ("sampling", "products", "lora", "attention", "head", "optimiser", "other", "python")
INSIDE = {
    "FrozenHead": "head",
    "FrozenHeadBackward": "head",
    "sampling": "sampling",
    "Optimizer.step#AdamW.step": "optimiser",
}
"""Names under which everything counts as one share."""


def main() -> None:
    """Measure, print, write."""
    arguments = options()
    torch.set_num_threads(arguments.threads)
    material.make(peers.BENCH / "material", *arguments.sizes.split(","))
    rows = []
    for size in arguments.sizes.split(","):
        for method in arguments.methods.split(","):
            rows.append(
                {"method": method, "size": size}
                | measure(Match(method, size, "pairs", "cold"), arguments.threads)
            )
            print(line(rows[-1]), flush=True)
    raw.write(arguments.json, **stamp(arguments), rows=rows)


def options() -> argparse.Namespace:
    """Those of the training benchmark that apply."""
    options_parser = parser("floor")
    options_parser.description = __doc__
    options_parser.set_defaults(methods=",".join(METHODS), runs=3, steps=1)
    arguments = options_parser.parse_args()
    head = "".join(f"{name:>10}" for name in SHARES)
    print(
        f"{'method':14}{'size':6}{'GFLOP':>8}{'GFLOP/s':>9}"
        f"{'floor s':>9}{'step s':>8}{'distance':>9}{head}"
    )
    return arguments


def line(row: dict[str, Any]) -> str:
    """Of the table."""
    shares = "".join(f"{row['shares'].get(name, 0.0):10.0%}" for name in SHARES)
    figures = (
        f"{row['gflop']:8.0f}{row['gflops_a_second']:9.0f}{row['floor']:9.2f}"
        f"{row['seconds']:8.2f}{row['distance']:9.2f}"
    )
    return f"{row['method']:14}{row['size']:6}{figures}{shares}"


def measure(match: Match, threads: int) -> dict[str, Any]:
    """Operations, seconds and shares of one step."""
    if match.method == "ppo":
        os.environ["BENCH_REWARD_MODEL"] = reward_model(match.spec(1), threads)
    with tempfile.TemporaryDirectory() as out:
        spec = match.spec(2)
        assembly = ours.prepared(spec, Path(out))
        step = stepper(assembly, spec, Path(out))
        step()
        seconds = statistics.median(timed(step) for _ in range(3))
        torch.set_num_threads(
            1
        )  # counters see the thread that they were started in, and with one there are no others
        with FlopCounterMode(display=False, custom_mapping=uncounted()) as counter:
            step()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            whole = timed(step)
        torch.set_num_threads(threads)
        rate = matmul_rate(assembly.model)
        assembly.runner.close()
    gflop = counter.get_total_flops() / 1e9
    floor = gflop / rate
    figures = {
        "gflop": gflop,
        "gflops_a_second": rate,
        "floor": floor,
        "seconds": seconds,
        "distance": seconds / floor,
    }
    return figures | {"shares": shares(profiled.events(), whole)}


def stepper(assembly: Any, spec: Spec, folder: Path) -> Callable[[], None]:
    """One optimiser step on the same rows each time, with a new reference cache."""
    groups = assembly.runner.groups() or [
        {
            "params": [
                parameter for parameter in assembly.model.parameters() if parameter.requires_grad
            ]
        }
    ]
    optimizer = torch.optim.AdamW(groups, lr=assembly.config.peak_rate)
    caches = (RefCache(folder / f"{number}.db") for number in count())
    source = getattr(assembly.runner, "source", None)
    if source is not None:
        sample = source.sample

        def sampling(*arguments: Any) -> Any:
            with record_function("sampling"):
                return sample(*arguments)

        source.sample = sampling

    def apply(loss: float) -> float:
        norm = sum(
            float(torch.nn.utils.clip_grad_norm_(group["params"], 1.0))
            for group in optimizer.param_groups
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def step() -> None:
        if hasattr(assembly.runner, "_cache"):
            assembly.runner._cache = next(caches)
        assembly.runner.train(assembly.train.items[: spec.a_step], 0, apply)

    return step


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def uncounted() -> dict[Any, Any]:
    """Operations that torch's counter does not know: in-place products and attention on a CPU."""

    def product(_: Any, left: Sequence[int], right: Sequence[int], *__: Any, **___: Any) -> int:
        return 2 * left[0] * left[1] * right[1]

    def attention(query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
        return 4 * query[1] * query[2] * key[2] * query[3] // (2 if query[2] == key[2] else 1)

    def attention_back(
        _: Any, query: Sequence[int], key: Sequence[int], *__: Any, **___: Any
    ) -> int:
        return 5 * attention(query, key) // 2

    ops = torch.ops.aten
    return {
        ops.addmm_: product,
        ops._scaled_dot_product_flash_attention_for_cpu: attention,
        ops._scaled_dot_product_flash_attention_for_cpu_backward: attention_back,
    }


def matmul_rate(model: Any) -> float:
    """GFLOP a second of products [1024, H] x [H, I] in the model's dtype, the best of many: what
    the machine can do."""
    config = model.get_base_model().config
    dtype = next(parameter.dtype for parameter in model.parameters() if not parameter.requires_grad)
    left, right = (
        torch.randn(1024, config.hidden_size).to(dtype),
        torch.randn(config.hidden_size, config.intermediate_size).to(dtype),
    )
    best = min(timed(lambda: left @ right) for _ in range(100))
    flop = 2 * 1024 * left.shape[1] * right.shape[1]
    return flop / best / 1e9


def shares(events: Any, whole: float) -> dict[str, float]:
    """Share of the profiled seconds by kind, from each operation's own time."""
    seconds_of: defaultdict[str, float] = defaultdict(float)
    for event in events:
        seconds_of[kind(event)] += event.self_cpu_time_total / 1e6
    seconds_of.pop("", None)
    seconds_of["python"] = max(0.0, whole - sum(seconds_of.values()))
    return {name: seconds / whole for name, seconds in seconds_of.items()}


def kind(event: Any) -> str:
    """The share that an operation belongs to; empty for what the profiler itself puts in."""
    if event.name.startswith(("profiler", "ProfilerStep", "USDT")):
        return ""
    parent = event
    while parent is not None:
        if parent.name in INSIDE:
            return INSIDE[parent.name]
        parent = parent.cpu_parent
    if "attention" in event.name or event.name in (
        "aten::bmm",
        "aten::_softmax",
        "aten::_softmax_backward_data",
    ):
        return "attention"
    if event.name in ("aten::mm", "aten::addmm", "aten::addmm_"):
        sides = {side for shape in event.input_shapes[:3] for side in shape}
        return "lora" if RANK in sides else "products"
    return "python" if event.name == "sampling" or not event.name.startswith("aten::") else "other"


if __name__ == "__main__":
    main()
