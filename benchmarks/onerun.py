"""What every measured run shares, whatever environment it is in: what it is told, the adapter's
start, the clock, what it prints.

A run is a process of its own, `SCRIPT.py SPEC` with the fields of `Spec` as JSON; it prints one
line, `RESULT` and JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

RANK, ALPHA, RATE = 16, 32, 1e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Spec:
    """`rows` is a JSON file; `kind` is ours, shared (ppo), default or tuned; `precision` auto (that
    of `kind`) or fp32; `a_step` rows are one update, by all `processes` together."""

    method: str
    model: str
    rows: str
    kind: str
    precision: str
    cache: str
    steps: int
    a_step: int
    new_tokens: int = 64
    group: int = 8
    processes: int = 1

    @classmethod
    def read(cls) -> Spec:
        """The one of this process, whose threads are set too."""
        torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
        return cls(**json.loads(sys.argv[1]))

    def text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    def load(self) -> list[dict[str, Any]]:
        """The rows of all steps."""
        return list(json.loads(Path(self.rows).read_text())[: self.steps * self.a_step])


class Clock(TrainerCallback):
    """Seconds and loss of each optimiser step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start."""
        wait()
        self.start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop."""
        wait()
        self.seconds.append(time.perf_counter() - self.start)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **__: Any) -> None:
        """Keep the loss."""
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


def wait() -> None:
    """Until the device has done what it was given."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def has_bf16() -> bool:
    """Whether the device multiplies in bf16; one that does not emulates it, several times slower
    than fp32."""
    if DEVICE == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def same_start(model: Any) -> None:
    """LoRA's A and a reward head from a generator that only their place decides, so that all
    contestants begin alike (B begins at 0)."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ("lora_A" in name or "score" in name):
            layer = re.search(r"layers\.\d+\.[\w.]*?(?=\.lora_A)|score", name)
            draw = torch.Generator().manual_seed(
                zlib.crc32((layer.group() if layer else name).encode())
            )
            start = torch.randn(parameter.shape, generator=draw) * parameter.shape[1] ** -0.5
            parameter.data.copy_(start)


def peak_bytes(process: str = "self") -> int:
    """The most that this process has had resident, and each of those that it has started and that
    still run; on a GPU, of its memory."""
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated()
    of = Path("/proc", process)
    line = next(
        line for line in (of / "status").read_text().splitlines() if line.startswith("VmHWM")
    )
    children = {
        child
        for task in (of / "task").iterdir()
        for child in (task / "children").read_text().split()
    }
    return int(line.split()[1]) * 1024 + sum(map(peak_bytes, children))


def report(
    seconds: Sequence[float],
    losses: Sequence[float],
    scored: int | None = None,
    tokens: Sequence[int] = (),
    peak: int | None = None,
) -> None:
    """The line that the driver reads; `scored` tokens over all steps, where they are fixed
    beforehand, and `tokens` of each step."""
    figures = {
        "seconds": list(seconds),
        "losses": list(losses),
        "scored": scored,
        "tokens": list(tokens),
        "peak_bytes": peak or peak_bytes(),
    }
    print("RESULT " + json.dumps(figures))
