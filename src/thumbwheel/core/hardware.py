"""What this machine offers a run: processor, memory, accelerators, disk; the device, and the
precision that pays on it.

The base install has no torch: then the accelerators are unknown, and said to be.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from thumbwheel.core.errors import TrainingError

Device = Literal["cpu", "cuda", "mps"]

BF16_PAYS = 20_000_000
"""Parameters from which half the memory traffic outweighs the conversions on a CPU (26M: measured
in the engine's prototype)."""
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Of NVIDIA's driver, of its boards, of Windows below Linux, of ROCm."""
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""x86's and, as the last one, Arm's names in /proc/cpuinfo."""
GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """An accelerator; on Apple silicon `memory_gb` is what Metal recommends to use of the shared
    memory."""

    kind: Literal["cuda", "rocm", "mps"]
    name: str
    memory_gb: float


@dataclass(frozen=True)
class Machine:
    """What was found; None is unknown. Sizes are in 10^9 bytes; a limit on this process's group
    counts as the memory there is."""

    cpu: str
    cores: int | None
    """Physical ones."""
    threads: int
    """Logical ones that this process may use."""
    avx2: bool | None
    avx512: bool | None
    bf16: bool | None
    """Whether the processor computes in bfloat16."""
    ram_gb: float | None
    available_gb: float | None
    gpus: tuple[Gpu, ...] | None
    """None without torch."""

    @property
    def gpu(self) -> Gpu | None:
        """The accelerator that a run would use."""
        return self.gpus[0] if self.gpus else None


def usable_cores() -> int:
    """Return how many logical processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def machine() -> Machine:
    """Return the properties of this machine, read once per process."""
    flags, cpu, cores = _processor()
    total, available = memory_gb()
    return Machine(
        cpu=cpu,
        cores=cores,
        threads=usable_cores(),
        avx2="avx2" in flags if flags is not None else None,
        avx512="avx512f" in flags if flags is not None else None,
        bf16=bool(BF16_FLAGS & flags) if flags is not None else None,
        ram_gb=total,
        available_gb=available,
        gpus=_gpus() if find_spec("torch") else None,
    )


def resident_gb(pid: int) -> float | None:
    """Return the main memory that a process holds, in GB; None where Linux does not say it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / GB
    return None


def disk_free_gb(folder: Path) -> float:
    """Return the free disk space in GB where `folder` is, or would be created."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(there).free / GB


def _processor() -> tuple[set[str] | None, str, int | None]:
    """Return (lower-case feature names, model, physical cores); features and cores are None if
    unknown."""
    if sys.platform == "darwin":
        return _darwin_processor()
    try:
        return read_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None, platform.processor() or platform.machine(), None


def read_cpuinfo(text: str) -> tuple[set[str] | None, str, int | None]:
    """Return (features, model, physical cores) from the text of Linux's /proc/cpuinfo; features and
    cores are None if it does not list them."""
    blocks = [_fields(block) for block in text.strip().split("\n\n")]
    first = next((block for block in blocks if {"flags", "Features"} & set(block)), blocks[0])
    flags = first.get("flags") or first.get("Features")
    cores = {
        (block.get("physical id"), block.get("core id")) for block in blocks if "core id" in block
    }
    name = (
        first.get("model name") or first.get("Model") or platform.processor() or platform.machine()
    )
    return set(flags.lower().split()) if flags else None, name, len(cores) or None


def _fields(block: str) -> dict[str, str]:
    return dict(_pair(line) for line in block.splitlines() if ":" in line)


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _darwin_processor() -> tuple[set[str] | None, str, int | None]:
    settings = {
        "avx2": "hw.optional.avx2_0",
        "avx512f": "hw.optional.avx512f",
        "bf16": "hw.optional.arm.FEAT_BF16",
    }
    flags = {flag for flag, setting in settings.items() if _sysctl(setting) == "1"}
    cores = _sysctl("hw.physicalcpu")
    name = _sysctl("machdep.cpu.brand_string") or platform.machine()
    return flags, name, int(cores) if cores else None


def _sysctl(name: str) -> str:
    return subprocess.run(
        ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False
    ).stdout.strip()


def memory_gb() -> tuple[float | None, float | None]:
    """Return (total, available now) in GB of the memory that this process may use; (None, None) if
    unknown."""
    if sys.platform == "darwin":
        memory = _sysctl("hw.memsize")
        return (int(memory) / GB, _darwin_available() / GB) if memory else (None, None)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = dict(_pair(line) for line in lines)
        total = int(fields["MemTotal"].split()[0]) * 1024
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None, None
    for limit, used in group_limits(Path("/")):
        total, available = min(total, limit), min(available, limit - used)
    return total / GB, max(0, available) / GB


def _darwin_available() -> int:
    text = subprocess.run(["/usr/bin/vm_stat"], capture_output=True, text=True, check=False).stdout
    pages = dict(_pair(line) for line in text.splitlines())
    kinds = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
    return sum(int(pages.get(kind, "0").rstrip(".")) for kind in kinds) * os.sysconf("SC_PAGE_SIZE")


def group_limits(root: Path) -> list[tuple[int, int]]:
    """Return (limit, used) in bytes for every control group around this process that has a limit;
    `used` excludes cache that the kernel can reclaim."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits: list[tuple[int, int]] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2
            mount = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):  # version 1
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside a container the path may be the host's.
        group = mount / path.lstrip("/")
        groups = (group, *group.parents) if group.exists() else (mount,)
        for folder in groups:
            if not folder.is_relative_to(mount):
                continue
            limit = _limit(folder, *names)
            if limit:
                limits.append(limit)
    return limits


def _limit(group: Path, limit: str, used: str, idle: str) -> tuple[int, int] | None:
    """Return (limit, used) in bytes of one control group, read from its files of these names, or
    None without a limit."""
    try:
        limit_text = (group / limit).read_text(encoding="utf-8").strip()
        used_text = (group / used).read_text(encoding="utf-8").strip()
        stat = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    # "max", or version 1's number for no limit
    if not limit_text.isdigit() or int(limit_text) >= 1 << 60:
        return None
    cached = next((int(line.split()[1]) for line in stat if line.split()[0] == idle), 0)
    return int(limit_text), int(used_text) - cached


def _may_have_gpu() -> bool:
    """Return whether a driver of an accelerator may be here, from the devices that Linux shows:
    without one there is no need to load torch, which takes a second and 200 MB."""
    return platform.system() != "Linux" or any(Path(name).exists() for name in GPU_DEVICES)


def _gpus() -> tuple[Gpu, ...]:
    if not _may_have_gpu():
        return ()
    import torch

    if torch.cuda.is_available():
        kind: Literal["cuda", "rocm"] = "rocm" if torch.version.hip else "cuda"
        numbers = range(torch.cuda.device_count())
        devices = [torch.cuda.get_device_properties(number) for number in numbers]
        # The whole memory: what is free would need a context on each.
        return tuple(Gpu(kind, device.name, device.total_memory / GB) for device in devices)
    if torch.backends.mps.is_available():
        memory = torch.mps.recommended_max_memory() / GB
        return (Gpu("mps", platform.processor() or "Apple GPU", memory),)
    return ()


def device(asked: Literal["auto"] | Device = "auto") -> Device:
    """Return `asked`, or for "auto" cuda (torch's name for ROCm, too), else mps, else cpu.

    Raises TrainingError for an accelerator that this machine does not have.
    """
    gpu = machine().gpu
    if gpu is None:
        best: Device = "cpu"
    else:
        best = "mps" if gpu.kind == "mps" else "cuda"
    if asked == "auto":
        return best
    if asked not in ("cpu", best):
        raise TrainingError(
            f"device {asked!r}",
            f"torch does not find this accelerator (it finds: {best})",
            f"Leave it out, or use {best}",
        )
    return asked


def choose_dtype(asked: str, parameters: int, where: Device | None = None) -> str:
    """Return `asked`, or for "auto" bfloat16 if the device (`where`, else the one that "auto"
    selects) supports it and the model has enough parameters to gain from it, else float32."""
    if asked != "auto":
        return asked
    return "bfloat16" if parameters >= BF16_PAYS and _has_bf16(where or device()) else "float32"


def _has_bf16(where: Device) -> bool:
    import torch

    if where == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if where == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0))
    return bool(machine().bf16)
