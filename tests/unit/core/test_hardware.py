"""What is read of a machine: /proc and control groups of other machines, and this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thumbwheel.core import hardware
from thumbwheel.core.errors import TrainingError
from thumbwheel.core.hardware import (
    BF16_FLAGS,
    Gpu,
    choose_dtype,
    group_limits,
    machine,
    memory_gb,
    read_cpuinfo,
    resident_gb,
)

RYZEN = """processor\t: {n}
vendor_id\t: AuthenticAMD
model name\t: AMD Ryzen 9 5950X 16-Core Processor
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu sse2 avx avx2 fma
"""
XEON = (
    "processor : 0\nmodel name : Intel(R) Xeon(R) Platinum 8480+\nflags : avx2 avx512f avx512_bf16 "
    "amx_bf16\n"
)
ARM = (
    "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\n\nHardware\t: board\nModel\t\t: Raspberry Pi "
    "5\n"
)


def test_processors_by_their_cpuinfo() -> None:
    flags, name, cores = read_cpuinfo("\n".join(RYZEN.format(n=n, core=n % 16) for n in range(32)))
    assert (name, cores) == ("AMD Ryzen 9 5950X 16-Core Processor", 16)
    assert flags is not None and "avx2" in flags and not flags & (BF16_FLAGS | {"avx512f"})
    flags, name, cores = read_cpuinfo(XEON)
    assert (
        flags is not None
        and {"avx512f", "avx512_bf16"} <= flags
        and cores is None
        and name.startswith("Intel")
    )
    flags, _, _ = read_cpuinfo(ARM)
    assert flags is not None and flags & BF16_FLAGS


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_limits_of_control_groups(tmp_path: Path) -> None:
    two = write(
        tmp_path / "two",
        {
            "proc/self/cgroup": "0::/user/job\n",
            "sys/fs/cgroup/user/job/memory.max": "max\n",
            "sys/fs/cgroup/user/job/memory.current": "900\n",
            "sys/fs/cgroup/user/job/memory.stat": "anon 100\n",
            "sys/fs/cgroup/user/memory.max": "8000\n",
            "sys/fs/cgroup/user/memory.current": "3000\n",
            "sys/fs/cgroup/user/memory.stat": "anon 2000\ninactive_file 600\n",
        },
    )
    assert group_limits(two) == [(8000, 2400)]
    root = write(
        tmp_path / "one",
        {
            # a container: the path is the host's
            "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
        },
    )
    assert group_limits(root) == [(4000, 900)]
    free = write(
        tmp_path / "free",
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            "sys/fs/cgroup/memory/memory.stat": "",
        },
    )
    assert group_limits(free) == [] == group_limits(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="compares with psutil's reading of Linux")
def test_this_machine_as_psutil_sees_it() -> None:
    import psutil

    here, (total, available) = machine(), memory_gb()
    assert machine() is here
    assert here.threads == len(psutil.Process().cpu_affinity())
    assert (
        total is not None
        and available is not None
        and 0 < available <= total <= psutil.virtual_memory().total / 1e9 + 1e-9
    )
    assert here.gpus is not None


def test_precision_pays_on_large_models_where_the_machine_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    for able, dtype in ((True, "bfloat16"), (False, "float32"), (None, "float32")):
        monkeypatch.setattr(hardware, "machine", lambda able=able: replace(machine(), bf16=able))
        assert choose_dtype("auto", 26_000_000, "cpu") == dtype
        assert choose_dtype("auto", 1_000_000, "cpu") == "float32"
        assert choose_dtype("bfloat16", 1, "cpu") == "bfloat16"


@pytest.mark.parametrize(
    ("gpus", "asked", "device"),
    [
        ((), "auto", "cpu"),
        ((), "cpu", "cpu"),
        ((Gpu("mps", "some GPU", 16),), "auto", "mps"),
        ((Gpu("rocm", "some GPU", 16),), "cuda", "cuda"),
        ((Gpu("cuda", "some GPU", 16),), "cpu", "cpu"),
    ],
)
def test_the_device_is_one_that_is_there(
    gpus: tuple[Gpu, ...], asked: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    here = replace(machine(), gpus=gpus)
    monkeypatch.setattr(hardware, "machine", lambda: here)
    assert hardware.device(asked) == device


@pytest.mark.parametrize(
    ("gpus", "asked"), [((), "mps"), ((), "cuda"), ((Gpu("cuda", "some GPU", 16),), "mps")]
)
def test_an_accelerator_that_is_not_there_is_refused(
    gpus: tuple[Gpu, ...], asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    here = replace(machine(), gpus=gpus)
    monkeypatch.setattr(hardware, "machine", lambda: here)
    with pytest.raises(TrainingError, match="does not find this accelerator"):
        hardware.device(asked)


def test_without_torch_the_accelerators_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find_spec", lambda name: None)
    assert machine.__wrapped__().gpus is None


@pytest.mark.skipif(sys.platform != "linux", reason="the devices of Linux")
@pytest.mark.parametrize("has_device", [False, True])
def test_accelerators_are_looked_for_where_linux_shows_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_device: bool
) -> None:
    device = tmp_path / "nvidiactl"
    if has_device:
        device.touch()
    monkeypatch.setattr(hardware, "GPU_DEVICES", (str(device),))
    properties = SimpleNamespace(name="H200", total_memory=139 * 2**30)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda number: properties,
    )
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(hardware, "find_spec", lambda name: name)
    gpus = machine.__wrapped__().gpus
    assert [gpu.name for gpu in gpus] == (["H200"] if has_device else [])


def test_the_memory_of_a_process_is_that_of_the_kernel() -> None:
    held = resident_gb(os.getpid())
    assert (held is not None) == (sys.platform == "linux")
    assert held is None or 0.005 < held < 200
    assert resident_gb(2**22 + 1) is None
