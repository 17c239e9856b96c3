"""What every learner shares: what it is told, and what it prints when it is done. A learner is a
process of its own."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STARTED = time.monotonic()


@dataclass(frozen=True)
class Spec:
    """`learner` is a contestant's name. `row_files` holds the feedback as rows, by shape; `out` is
    where the adapter goes.

    `home` and `agent` are for ours, which trains from its own home.
    """

    learner: str
    base: str
    row_files: dict[str, str]
    out: str
    seed: int
    home: str = ""
    agent: str = ""
    max_new_tokens: int = 32
    checked: bool = False
    """Whether the agent has cases whose checker can judge fresh answers."""
    options: dict[str, Any] = field(default_factory=dict)
    gated: bool = True
    """Whether ours asks its gate for a verdict."""

    @classmethod
    def read(cls) -> Spec:
        """The one that this process was told."""
        return cls(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

    def write(self, path: Path) -> Path:
        """For a learner's command line."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    def rows(self, shape: str) -> list[dict[str, Any]]:
        """The rows of one shape."""
        text = Path(self.row_files[shape]).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n") if line]


def load(base: str, scores: bool = False) -> tuple[Any, Any]:
    """(model in fp32, tokenizer) as plain transformers loads them; with a new head for one number
    where it `scores`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    tokenizer = AutoTokenizer.from_pretrained(base)
    if not scores:
        return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tokenizer
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=1, dtype=torch.float32
    )
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def token_row(
    tokenizer: Any, prompt: list[dict[str, str]], text: str
) -> tuple[list[int], list[int]]:
    """(ids of the prompt, ids of the answer with its end)."""
    asked = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return tokenizer(asked)["input_ids"], tokenizer(text + tokenizer.eos_token)["input_ids"]


def cost() -> dict[str, Any]:
    """Seconds since the start, processor seconds of this process and its children, and the largest
    resident memory of one of them."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "seconds": round(time.monotonic() - STARTED, 1),
        "cpu_seconds": round(sum(usage.ru_utime + usage.ru_stime for usage in usages), 1),
        "peak_bytes": 1024 * max(usage.ru_maxrss for usage in usages),
    }


def report(spec: Spec, **more: Any) -> None:
    """Print the line that the driver reads; `more` replaces what is said by default."""
    print("RESULT " + json.dumps({"adapter": spec.out} | cost() | more), flush=True)
