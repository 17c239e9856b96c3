"""Hosting profiles: the right one for a machine, and every number where the server that it is for
really reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from thumbwheel.core.hardware import Gpu, Machine
from thumbwheel.deploy.profiles import NAMES, choose, detect

PLAIN = Machine("Intel Xeon", 8, 16, True, False, False, 32.0, 20.0, ())
RYZEN = replace(PLAIN, cpu="AMD Ryzen 9 5950X 16-Core Processor", cores=16, threads=32)
CUDA = replace(PLAIN, gpus=(Gpu("cuda", "RTX 3090", 24.0),))
APPLE = replace(PLAIN, cpu="Apple M2", gpus=(Gpu("mps", "Apple GPU", 16.0),))


@pytest.mark.parametrize(
    ("machine", "name"),
    [(PLAIN, "cpu_auto"), (RYZEN, "ryzen_optimized"), (CUDA, "gpu_auto"), (APPLE, "apple_silicon")],
)
def test_a_machine_finds_its_profile(machine: Machine, name: str) -> None:
    assert detect(machine) == name == choose("auto", machine).name


def test_the_numbers_of_a_cpu() -> None:
    assert choose("auto", RYZEN).ollama_parameters() == {
        "num_ctx": 4096,
        "num_thread": 14,
        "num_gpu": 0,
    }
    assert choose("auto", PLAIN).ollama_parameters() == {
        "num_ctx": 4096,
        "num_thread": 6,
        "num_gpu": 0,
    }
    small = choose("cpu_auto", replace(PLAIN, cores=2, threads=2, ram_gb=8.0))
    assert (small.parallel, small.context, small.threads) == (1, 2048, 1)
    in_a_container = choose("cpu_auto", replace(RYZEN, threads=4))
    assert in_a_container.threads == 4


def test_an_accelerator_leaves_layers_and_threads_to_the_server() -> None:
    assert choose("auto", CUDA).ollama_parameters() == {"num_ctx": 8192}


def test_the_environment_has_only_variables_that_ollama_serve_reads() -> None:
    for name in NAMES:
        environment = choose(name, RYZEN).ollama_environment()
        assert set(environment) <= {
            "OLLAMA_NUM_PARALLEL",
            "OLLAMA_MAX_LOADED_MODELS",
            "OLLAMA_FLASH_ATTENTION",
        }
