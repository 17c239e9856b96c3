"""Trains a small base for a world: a tokenizer and a Qwen2 of a few million parameters, taught by
examples of answers.

Kept in a folder by the content of all that decides it. The tokenizer and the network are those of
the demo's base; the size is the world's.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from thumbwheel.demo.base import (
    CHAT_TEMPLATE,
    BaseConfig,
    Row,
    answer_row,
    batch_loss,
    batches,
    make_model,
    make_tokenizer,
    publish,
)
from worlds.world import Chat

REVISION = 2
"""Raise it when a change of this file changes what is trained."""


FOUR_MILLION = BaseConfig(vocabulary=4096, intermediate=768, layers=4, batch=16, learning_rate=1e-3)


@dataclass(frozen=True)
class Course:
    """What a base learns: so many passes over chats that end with an answer. `texts` are read by
    the tokenizer alone."""

    name: str
    chats: Sequence[Chat]
    epochs: int
    texts: Sequence[str] = ()
    size: BaseConfig = FOUR_MILLION


def ensure(course: Course, cache: Path) -> Path:
    """The folder of the base that `course` makes; trained where it is not in `cache` yet, and
    published by one rename."""
    target = cache / f"{course.name}-{fingerprint(course)}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{course.name}-", dir=cache))
    try:
        model, tokenizer = train(course)
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def fingerprint(course: Course) -> str:
    """Hash of all that decides the base."""
    content = json.dumps([REVISION, CHAT_TEMPLATE, asdict(course)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def train(course: Course) -> tuple[Any, Any]:
    """(model, tokenizer)."""
    text_chats = [[{"role": "text", "content": text}] for text in course.texts]
    tokenizer = make_tokenizer(course.size, [*course.chats, *text_chats])
    rows = [answer_row(tokenizer, chat) for chat in course.chats]
    torch.manual_seed(course.size.seed)
    model = make_model(course.size, tokenizer)
    fit(model, rows * course.epochs, course)
    model.eval()
    return model, tokenizer


def fit(model: Any, rows: Sequence[Row], course: Course) -> None:
    """One pass over `rows` with AdamW, warm-up and a cosine schedule."""
    rng = random.Random(course.size.seed)
    rate = course.size.learning_rate
    cut = list(batches(rows, course.size.batch, rng))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=len(cut) + 1, pct_start=0.1
    )
    model.train()
    started = time.monotonic()
    for step, batch in enumerate(cut, start=1):
        loss = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == len(cut):
            seconds = time.monotonic() - started
            sys.stderr.write(
                f"base {course.name}: step {step} of {len(cut)}, loss {loss.item():.3f}, "
                f"{seconds:.0f} s\n"
            )
