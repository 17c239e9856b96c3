"""Rows of every shape, a home with such a dataset, and a ready loop over a tiny model: shared by
the tests of training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thumbwheel.core import ids
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import (
    ChatRow,
    Dataset,
    GroupRow,
    LabelRow,
    PairRow,
    PromptRow,
    Row,
    ScoredRow,
)
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.ranks import Ranks
from thumbwheel.training.assemble import Assembly, assemble, settings
from thumbwheel.training.checkpoint import Checkpoints
from thumbwheel.training.loop import Loop
from thumbwheel.training.metrics import MetricsFile
from thumbwheel.training.optimizer import prepare

SHORT_TRAINING: dict[str, Any] = {
    "batch_size": 4,
    "num_train_epochs": 3,
    "min_steps": 1,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "max_length": 128,
    "eval_steps": 10,
    "save_steps": 3,
    "probe_prompts": 0,
    "require_gain": False,
}
"""Options of a run that is short and saves often, so that it can be killed between."""
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "Größe",
    "naïve",
    "return",
    "def",
    "add",
)
QUICK = {
    "batch_size": 4,
    "num_train_epochs": 1,
    "min_steps": 1,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "lora_alpha": 8,
    "max_length": 128,
    "probe_prompts": 0,
    "min_rows": 1,
}


def row(shape: str, number: int, split: str = "train") -> Any:
    """A deterministic row; lengths differ, every third prompt has a system message."""
    chance = random.Random(number)

    def text(low, high):
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(low, high)))

    prompt = [{"role": "system", "content": "Be brief."}] * (number % 3 == 0) + [
        {"role": "user", "content": text(2, 12)}
    ]
    fields = {
        "row_id": f"row_{number:05d}",
        "group": f"g{number}",
        "split": split,
        "prompt": prompt,
        "tools": None,
        "weight": 1.0,
        "origin": "test",
        "feedback_ids": [f"fbk_{number}"],
        "trace_ids": [f"trc_{number}"],
        "subject_ids": [],
    }
    if shape == "chats":
        return ChatRow(**fields, completion=text(1, 8), finish_reason=None, token_ids=None)
    if shape == "pairs":
        return PairRow(**fields, chosen=text(1, 8), rejected=text(1, 10))
    if shape == "prompts":
        return PromptRow(
            **fields,
            reference=None,
            checker="regex",
            checker_config={"pattern": "[aeiou]"},
            case_id=None,
        )
    if shape == "groups":
        texts = [text(1, 8) for _ in range(3)]
        blank: list[Any] = [None] * 3
        return GroupRow(
            **fields,
            completions=texts,
            values=[1.0, 0.25, 0.0],
            finish_reasons=blank,
            token_ids=blank,
            logps=blank,
        )
    if shape == "scored":
        return ScoredRow(
            **fields, completion=text(1, 8), value=float(chance.randint(1, 5)), scale=[1.0, 5.0]
        )
    return LabelRow(**fields, completion=text(1, 8), label=chance.random() < 0.6)


def plain_rows(shape: str, train: int, dev: int = 0) -> list[dict[str, Any]]:
    """Rows as a run reads them."""
    from dataclasses import asdict

    rows = [row(shape, number) for number in range(train)] + [
        row(shape, 10_000 + number, "dev") for number in range(dev)
    ]
    return [asdict(row) for row in rows]


def by_split(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Split -> its rows, as a run is put together from them."""
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    for row in rows:
        splits[row["split"]].append(row)
    return splits


def frozen(
    ws: Workspace, agent: str, shape: str, train: int, dev: int = 0, **changes: Any
) -> Dataset:
    """A dataset of such rows in `ws`, stored as the datasets stage stores one."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from thumbwheel.models.versions import ensure_agent

    ensure_agent(ws, agent)
    rows = [row(shape, number) for number in range(train)] + [
        row(shape, 10_000 + number, "dev") for number in range(dev)
    ]
    rows = [replace(row, **changes) for row in rows]
    fingerprint = ids.fingerprint([shape, train, dev, sorted(map(str, changes.items()))])
    manifest = {"counts": {"train": train, "dev": dev, "gate": 0}}
    dataset = Dataset(
        ids.derived("dst", agent, fingerprint),
        agent,
        shape,
        fingerprint,
        manifest,
        datetime.now(UTC),
    )
    return stored(ws, dataset, rows)


def stored(ws: Workspace, dataset: Dataset, rows: Sequence[Row]) -> Dataset:
    """`dataset` with `rows`, a file a split."""
    from tempfile import TemporaryDirectory

    from thumbwheel.datasets.build import freeze
    from thumbwheel.datasets.files import write_parquet
    from thumbwheel.datasets.types import SPLITS

    with TemporaryDirectory() as folder:
        paths = {split: Path(folder) / f"{split}.parquet" for split in SPLITS}
        for split, path in paths.items():
            write_parquet(
                path, SHAPES.get(dataset.shape).row, [row for row in rows if row.split == split]
            )
        return freeze(ws, dataset, paths)


def assembled(
    algorithm: str,
    base: Path,
    folder: Path,
    rows: list[dict[str, Any]],
    start: Path | None = None,
    judge: Path | None = None,
    members: Ranks | None = None,
    **changes: Any,
) -> Assembly:
    """Everything a loop needs, over `base`, from a new adapter or that of `start`; the reward model
    `judge` judges too. Several ranks are the `members` of the run."""
    config = settings(algorithm, QUICK | changes)
    cache = folder / "reference.db"
    splits = by_split(rows)
    return assemble(algorithm, config, str(base), base, splits, cache, judge, start, ranks=members)


def judge_of(base: Path, folder: Path, rows: list[dict[str, Any]], steps: int) -> Path:
    """A reward model over `base` that learned from pairs for so many steps."""
    import shutil

    from thumbwheel.engine.load import base_fingerprint
    from thumbwheel.engine.reward_model import RewardModelCard

    assembly = assembled(
        "reward",
        base,
        folder,
        rows,
        max_steps=steps,
        learning_rate=1e-2,
        early_stopping_patience=None,
    )
    loop_of(assembly, folder).run()
    shutil.copytree(folder / "checkpoints" / f"checkpoint-{steps}", folder / "judge")
    assembly.builder.tokenizer.save_pretrained(folder / "judge")
    RewardModelCard("bradley_terry", str(base), base_fingerprint(base), 128).write(folder / "judge")
    return folder / "judge"


def loop_of(assembly: Assembly, folder: Path, **more: Any) -> Loop:
    """A loop that writes below `folder`."""
    trained = prepare(assembly.model, assembly.config, assembly.steps, assembly.runner.groups())
    checkpoints = Checkpoints(folder / "checkpoints", assembly.config.save_total_limit)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    metrics = MetricsFile(folder / "metrics.jsonl")
    return Loop(
        assembly.runner,
        trained,
        assembly.config,
        assembly.train.items,
        assembly.dev.items,
        metrics,
        checkpoints,
        **more,
    )


def shake(model: Any, seed: int = 5, scale: float = 0.1) -> None:
    """A random non-zero adapter, so that policy and reference differ."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = (
                torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter)
                * scale
            )


def logps(
    model: Any, prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0
) -> Any:
    """Of the answer's tokens, by one plain forward pass."""
    import torch

    ids = torch.tensor([[*prompt, *answer]])
    rows = (model(ids).logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return rows.gather(1, ids[0, len(prompt) :, None])[:, 0]
