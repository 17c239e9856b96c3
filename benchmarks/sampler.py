"""Sampling by ours against transformers' `generate`, in one process: `python benchmarks/sampler.py
--folder DIR [--json FILE]`.

The model (random, LoRA of rank 16 on every linear layer, as in training), prompts, number of
answers and tokens are the same; no answer ends early, so both decode every token. The contestants
take turns, the first turn is not counted, and the medians are compared: above 1 is in our favour.
`policy` samples through the adapter, `merged` from a merged copy, and `sync` is what bringing that
copy up to date costs. With CUDA all of it happens there, in bf16; steps are replayed from a graph
there, and `growing` is `merged` without it. `tokens_a_second` are those of
all answers together, prefills included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import material
import raw
import torch
import transformers
from onerun import DEVICE, wait

from thumbwheel.engine.decode import Cached
from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.score import ScoreEngine


def prompts_of(folder: Path, tokenizer: Any, count: int) -> list[list[int]]:
    """The first prompts of the benchmark's pairs, as ids."""
    pairs = json.loads((folder / "pairs.json").read_text())
    return [tokenizer(pair["prompt"])["input_ids"] for pair in pairs[:count]]


def generate(model: Any, prompts: list[list[int]], answers: int, tokens: int) -> None:
    """What TRL does: every answer's prompt is a left-padded row of its own."""
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts for _ in range(answers)]
    mask = [
        [0] * (longest - len(prompt)) + [1] * len(prompt)
        for prompt in prompts
        for _ in range(answers)
    ]
    with torch.inference_mode():
        sequences = model.generate(
            input_ids=torch.tensor(rows, device=DEVICE),
            attention_mask=torch.tensor(mask, device=DEVICE),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
    assert sequences.shape == (len(rows), longest + tokens)


def adapted(folder: Path) -> tuple[Any, Any]:
    """(model under a new adapter, tokenizer), on the device of the benchmark."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if DEVICE == "cuda" else "float32"
    model, tokenizer = load_base(str(folder), dtype, local_only=True)
    return attach_lora(model.to(DEVICE), LoraSettings(), seed=0)[0], tokenizer


def contestants(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """name -> one sampling of everything."""
    peer, tokenizer = adapted(folder / options.size)
    prompts = prompts_of(folder, tokenizer, options.prompts)
    policy = ScoreEngine(adapted(folder / options.size)[0]).model
    sampling = Sampling(max_new_tokens=options.tokens)
    plain, merged = GroupSampler(policy, tokenizer), GroupSampler(policy, tokenizer, merge=True)
    growing = GroupSampler(policy, tokenizer, merge=True)
    growing.start_with(Cached)

    def sample(sampler: GroupSampler) -> None:
        groups = sampler.sample(prompts, options.answers, sampling)
        assert all(len(rollout.ids) == options.tokens for group in groups for rollout in group)

    return {
        "generate": lambda: generate(peer.eval(), prompts, options.answers, options.tokens),
        "policy": lambda: sample(plain),
        "merged": lambda: sample(merged),
        **({"growing": lambda: sample(growing)} if DEVICE == "cuda" else {}),
        "sync": lambda: merged.sync(0),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the models are made")
    raw.option(parser, "sampler")
    parser.add_argument("--size", default="26m", choices=list(material.SIZES))
    for name, default in {"prompts": 2, "answers": 8, "tokens": 64, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    material.make(options.folder, options.size)
    samplers = contestants(options.folder, options)
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(options.rounds + 1):
        for name, run in samplers.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    tokens = options.prompts * options.answers * options.tokens
    report = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE,
        "size": options.size,
        "prompts": options.prompts,
        "answers": options.answers,
        "tokens": options.tokens,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "seconds": medians,
        "tokens_a_second": {
            name: tokens / second for name, second in medians.items() if name != "sync"
        },
        "ratio": {name: medians["generate"] / medians[name] for name in ("policy", "merged")},
        "ratio_with_sync": medians["generate"] / (medians["merged"] + medians["sync"]),
    }
    print(json.dumps(report, indent=2))
    raw.write(options.json, **report)


if __name__ == "__main__":
    main()
