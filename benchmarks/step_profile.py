"""What an optimiser step of ours does on the device: launches, time in kernels against the clock,
and the twenty kernels that take most of it.

`python benchmarks/step_profile.py [--methods ...] [--sizes 494m] [--json FILE]`. One step,
reference cache cold, profiled after two that warm up, and timed without a profiler beside it. On
CUDA a launch is a kernel, a copy or a fill; on a processor, which launches nothing, an operation of
torch that calls no other one. `busy` is the share of the step in which the device computes.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import material
import ours
import peers
import raw
import torch
from floor import stepper, timed
from onerun import DEVICE, wait
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training import Match, parser, stamp

SHOWN = 20
"""Kernels in the list."""


def main() -> None:
    """Measure, print, write."""
    options_parser = parser("step-profile")
    options_parser.description = __doc__
    options_parser.set_defaults(methods="dpo,kto,sft,grpo", sizes="494m", runs=3, steps=1)
    arguments = options_parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = arguments.sizes.split(",")
    material.make(peers.BENCH / "material", *sizes)
    print(f"{'method':10}{'size':6}{'step s':>8}{'kernels s':>11}{'busy':>6}{'launches':>10}")
    rows = []
    for size in sizes:
        for method in arguments.methods.split(","):
            match = Match(method, size, "pairs", "cold")
            row = {"method": method, "size": size} | measure(match, arguments.runs)
            rows.append(row)
            figures = f"{row['seconds']:8.3f}{row['kernel_seconds']:11.3f}{row['busy']:6.0%}"
            print(f"{method:10}{size:6}{figures}{row['launches']:10}", flush=True)
            # a part that is cut short leaves what it has measured
            raw.write(arguments.json, **stamp(arguments), rows=rows)


def measure(match: Match, runs: int) -> dict[str, Any]:
    """The figures of one method and size."""
    with tempfile.TemporaryDirectory() as out:
        spec = match.spec(2)
        assembly = ours.prepared(spec, Path(out))
        step = stepper(assembly, spec, Path(out))

        def whole_step() -> None:
            wait()
            step()
            wait()

        whole_step()
        whole_step()
        seconds = statistics.median(timed(whole_step) for _ in range(runs))
        activities = [ProfilerActivity.CPU]
        if DEVICE == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiled:
            whole_step()
        assembly.runner.close()
    figures = kernels(profiled.events())
    kernel_seconds = sum(kernel["seconds"] for kernel in figures)
    return {
        "seconds": seconds,
        "kernel_seconds": kernel_seconds,
        "busy": kernel_seconds / seconds,
        "launches": sum(kernel["launches"] for kernel in figures),
        "kernels": figures[:SHOWN],
    }


def kernels(events: Any) -> list[dict[str, Any]]:
    """Name, launches and seconds of each kernel, the longest first."""
    by_name: dict[str, dict[str, Any]] = {}
    for event in events:
        on_device = event.device_type == DeviceType.CUDA
        if DEVICE == "cuda":
            is_launch, microseconds = on_device, event.self_device_time_total
        else:
            is_launch = event.name.startswith("aten::") and not event.cpu_children
            microseconds = event.self_cpu_time_total
        if not is_launch:
            continue
        kernel = by_name.setdefault(event.name, {"name": event.name, "launches": 0, "seconds": 0.0})
        kernel["launches"] += 1
        kernel["seconds"] += microseconds / 1e6
    return sorted(by_name.values(), key=lambda kernel: -kernel["seconds"])


if __name__ == "__main__":
    main()
