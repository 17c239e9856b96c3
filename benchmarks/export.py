"""What an export costs: minutes and peak memory of each format with its parity check, and of the
merge alone beside PEFT's own.

`python benchmarks/export.py [--size 135m] [--formats merged,gguf,onnx] [--json FILE]`. A random
Qwen2 base in bfloat16 shards, a random LoRA adapter of rank 16 on every linear layer. Every row is
a process of its own; memory is its peak over what it held when the libraries were loaded and had
merged a tiny model, with the largest program that it started (llama-server, llama-quantize) beside
it. `merge` is what is written layer by layer, `peft` the same by merge_and_unload and
save_pretrained.

`python benchmarks/export.py --ladder [--json FILE]`: instead, what each precision of GGUF costs the
tests' random Qwen2 of hidden size 256 with a LoRA, by the parity check in llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import material
import raw
from peers import BENCH

SHARD = "100MB"
RANK = 16
QUANT = "Q4_K_M"
RUNGS = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
LONG = [
    [
        {
            "role": "user",
            "content": f"{start}: the quick brown fox jumps over 17 lazy dogs, naïve ones. " * 4,
        }
    ]
    for start in range(5)
]
"""Probes of the ladder besides those of every export."""


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--size", choices=list(material.SIZES), default="135m")
    options.add_argument("--formats", default="merged,gguf,onnx")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument(
        "--ladder", action="store_true", help="what each precision of GGUF costs, instead"
    )
    raw.option(options, "export")
    options.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.part:
        print("RESULT", json.dumps(part(*arguments.part)))
        return
    figures = (
        ladder()
        if arguments.ladder
        else costs(arguments.size, arguments.formats.split(","), arguments.threads)
    )
    raw.write(arguments.json, rows=figures)


def costs(size: str, formats: list[str], threads: int) -> dict[str, Any]:
    """Minutes, memory and parity of the merge and of `formats`, a line each."""
    material.make(BENCH / "material", size, "1m")
    with tempfile.TemporaryDirectory() as scratch:
        base, adapter = prepare(BENCH / "material" / size, Path(scratch))
        tiny = prepare(BENCH / "material" / "1m", Path(scratch) / "tiny")
        shards = [file.stat().st_size / 1e6 for file in base.glob("*.safetensors")]
        sizes = {"base_mb": sum(shards), "largest_shard_mb": max(shards), "adapter_mb": mb(adapter)}
        print(", ".join(f"{name} {value:.0f}" for name, value in sizes.items()), flush=True)
        rows = []
        for name in ["merge", "peft", *formats]:
            rows.append({"part": name} | child(name, base, adapter, tiny, threads))
            shown = (
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in rows[-1].items()
            )
            print("  ".join(shown), flush=True)
    return {"size": size, "threads": threads, "shard": SHARD} | sizes | {"rows": rows}


def ladder() -> dict[str, Any]:
    """How far each precision of GGUF is from the trained model, a line each."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.models.tiny_models import tiny_adapter
    from tests.servers.llama_tools import wide_base
    from thumbwheel.export import parity
    from thumbwheel.export.formats import FORMATS
    from thumbwheel.export.types import ExportSource

    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        base = wide_base(Path(scratch) / "base")
        source = ExportSource(
            str(base),
            tiny_adapter(base, Path(scratch) / "adapter"),
            str(base),
            scratch=Path(scratch),
        )
        form, reference = FORMATS.get("gguf"), parity.reference(source, [*parity.PROBES, *LONG])
        print(
            f"{'':8} {'max difference':>15} {'mean KL':>10} {'same token':>11} {'positions':>10} "
            f"{'LoRA moved it':>14}",
            flush=True,
        )
        for quant in RUNGS:
            folder = Path(scratch) / quant
            folder.mkdir()
            form.write(replace(source, quant=quant), folder)
            difference = parity.compare_folder(reference, form, folder)
            row: dict[str, Any] = {
                "max_abs_diff": difference.max_abs_diff,
                "mean_kl": difference.mean_kl,
                "top1": difference.top1,
                "positions": difference.tokens,
            }
            rows.append({"quant": quant} | row | {"effect_kl": difference.effect_kl})
            shown = (
                f"{difference.max_abs_diff:15.2g} {difference.mean_kl:10.2g} "
                f"{difference.top1:11.1%} "
                f"{difference.tokens:10}"
            )
            print(f"{quant:8} {shown} {difference.effect_kl or 0:14.2g}", flush=True)
    return {"rows": rows}


def mb(folder: Path) -> float:
    """Of all files in it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def prepare(model: Path, folder: Path) -> tuple[Path, Path]:
    """(base in bfloat16 shards, adapter) made of `model` below `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    loaded.save_pretrained(folder / "base", max_shard_size=SHARD)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder / "base")
    config = LoraConfig(
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules="all-linear",
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(loaded, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    adapted.save_pretrained(str(folder / "adapter"))
    return folder / "base", folder / "adapter"


def child(
    name: str, base: Path, adapter: Path, tiny: tuple[Path, Path], threads: int
) -> dict[str, Any]:
    """One part, measured in a process of its own."""
    arguments = [
        name,
        json.dumps([str(base), str(adapter)]),
        json.dumps([str(path) for path in tiny]),
        str(base.parent / f"out-{name}"),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, __file__, "--part", *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    figures: dict[str, Any] = json.loads(done.stdout.rsplit("RESULT ", 1)[1])
    return figures


def part(name: str, model: str, tiny: str, out: str) -> dict[str, Any]:
    """Minutes and peak megabytes of one part."""
    from thumbwheel.export.types import ExportSource
    from thumbwheel.training.memory import meter

    gauge = meter("cpu")
    assert gauge is not None, "memory cannot be measured here"
    (base, adapter), (small, its_adapter) = json.loads(model), json.loads(tiny)
    do(
        "peft" if name == "peft" else "merge",
        ExportSource(small, Path(its_adapter), small),
        Path(out) / "tiny",
    )
    gauge.reset()
    before, began = gauge.now(), time.perf_counter()
    figures = do(
        name,
        ExportSource(base, Path(adapter), base, QUANT if name == "gguf" else None),
        Path(out) / "whole",
    )
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    minutes = (time.perf_counter() - began) / 60
    return {
        "minutes": minutes,
        "peak_mb": (gauge.peak() - before) * 1e3,
        "programs_mb": started,
        "mb": mb(Path(out) / "whole"),
    } | figures


def do(name: str, source: Any, folder: Path) -> dict[str, Any]:
    """Carry it out; what parity found, where the part has it."""
    from thumbwheel.export import parity
    from thumbwheel.export.formats import FORMATS
    from thumbwheel.export.merge import merge, whole
    from thumbwheel.export.weights import stored_dtype

    folder.mkdir(parents=True)
    if name == "merge":
        merge(source, folder)
        return {}
    if name == "peft":
        model: Any = whole(source)
        model.to(stored_dtype(source.base)).save_pretrained(folder)
        return {}
    began = time.perf_counter()
    FORMATS.get(name).write(source, folder)
    wrote = (time.perf_counter() - began) / 60
    difference = parity.check(FORMATS.get(name), folder, source, parity.PROBES)
    return {
        "write_minutes": wrote,
        "mean_kl": difference.mean_kl,
        "top1": difference.top1,
        "tokens_per_second": difference.tokens_per_second,
    }


if __name__ == "__main__":
    main()
