"""Datasets of the n3 server: scored answers for a reward model, prompts for PPO.

The caller's rows are never changed. Scores are normalised by the range of the training rows, and
that scale goes with the validation rows. Rows of one prompt stay on one side of the split, which a
hash decides.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ConfigError, DataError, InputError

SALT = "n3"


@dataclass(frozen=True)
class FeedbackExample:
    """One scored answer."""

    prompt: str
    response: str
    score: float
    run_id: str = ""
    notes: str | None = None

    @property
    def text(self) -> str:
        """Prompt, a blank line, response."""
        return f"{self.prompt}\n\n{self.response}"


class FeedbackDataset:
    """Scored answers as token ids, padded to the longest of a batch by `collate`.

    `scale` is (lowest, highest) raw score, which stand at -1 and 1; unset, those of the rows.
    Scores that are all equal stay as they are.
    """

    def __init__(
        self,
        examples: Iterable[FeedbackExample | Mapping[str, Any]],
        tokenizer: Any = None,
        max_length: int = 512,
        normalize_scores: bool = True,
        scale: tuple[float, float] | None = None,
    ) -> None:
        self.examples = [example_of(row) for row in examples]
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.normalize_scores = normalize_scores
        self.scale = scale or _range(self.examples)

    def __len__(self) -> int:
        return len(self.examples)

    def score(self, index: int) -> float:
        """The score that is learned: from -1 to 1 where scores are normalised, beyond it for rows
        outside of the scale."""
        raw = self.examples[index].score
        low, high = self.scale
        return 2 * (raw - low) / (high - low) - 1 if self.normalize_scores and low < high else raw

    def __getitem__(self, index: int) -> dict[str, Any]:
        """input_ids and attention_mask (lists) and the score."""
        if self.tokenizer is None:
            raise InputError(
                "FeedbackDataset",
                "it has no tokenizer",
                "Give one: FeedbackDataset(rows, tokenizer)",
            )
        encoded = self.tokenizer(
            self.examples[index].text, truncation=True, max_length=self.max_length
        )
        return {
            "input_ids": list(encoded["input_ids"]),
            "attention_mask": list(encoded["attention_mask"]),
            "score": self.score(index),
        }

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Tensors of a batch: ids and mask [rows, longest], padded on the right, and scores
        [rows]."""
        import torch

        batch = self.tokenizer.pad(
            [{key: row[key] for key in ("input_ids", "attention_mask")} for row in rows],
            padding_side="right",
            return_tensors="pt",
        )
        return dict(batch) | {"score": torch.tensor([row["score"] for row in rows])}


class PPODataset:
    """Prompts, each once, as token ids. A longer one is cut to its last `max_prompt_length`
    tokens."""

    def __init__(
        self, prompts: Iterable[str], tokenizer: Any = None, max_prompt_length: int = 256
    ) -> None:
        self.prompts = list(dict.fromkeys(prompts))
        self.tokenizer = tokenizer
        self.max_prompt_length = max_prompt_length

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.tokenizer(self.prompts[index])["input_ids"] if self.tokenizer else []
        return {"query": self.prompts[index], "input_ids": list(ids)[-self.max_prompt_length :]}


def example_of(row: FeedbackExample | Mapping[str, Any]) -> FeedbackExample:
    """A row as an example; raises InputError for a missing key, a prompt or response that is no
    text, and a score that is no finite number.
    """
    if isinstance(row, FeedbackExample):
        return row
    try:
        score = float(row["score"])
        run_id = str(row.get("run_id", row.get("runId")) or "")
        for key in ("prompt", "response"):
            if not isinstance(row[key], str):
                raise TypeError(f"{key} {row[key]!r} is no text")
        example = FeedbackExample(row["prompt"], row["response"], score, run_id, row.get("notes"))
    except (KeyError, TypeError, ValueError) as error:
        fix = "A row has prompt, response and score"
        raise InputError("a feedback row", f"{type(error).__name__}: {error}", fix) from None
    if not math.isfinite(score):
        raise InputError(
            f"score {score!r}", "it is no finite number", "Leave the row out, or correct it"
        )
    return example


def prepare_feedback_dataset(
    feedbacks: Iterable[Mapping[str, Any]],
    tokenizer: Any = None,
    max_length: int = 512,
    normalize_scores: bool = True,
    train_split: float = 0.8,
) -> tuple[FeedbackDataset, FeedbackDataset]:
    """(training rows, validation rows); raises ConfigError for a share beyond 0 to 1, DataError
    where there are no rows to train on."""
    if not 0 < train_split <= 1:
        raise ConfigError(
            f"train_split {train_split!r}",
            "it is the share of the prompts to train on",
            "Give a number up to 1, as 0.8",
        )
    examples = [example_of(row) for row in feedbacks]
    train = [example for example in examples if _position(example.prompt) < train_split]
    validation = [example for example in examples if _position(example.prompt) >= train_split]
    if not train:
        raise DataError(
            f"{len(examples)} feedback rows",
            f"a train_split of {train_split} leaves none to train on",
            "Collect more",
        )
    training = FeedbackDataset(train, tokenizer, max_length, normalize_scores)
    return training, FeedbackDataset(
        validation, tokenizer, max_length, normalize_scores, training.scale
    )


def prepare_ppo_dataset(
    feedbacks: Iterable[Mapping[str, Any]], tokenizer: Any = None, max_prompt_length: int = 256
) -> PPODataset:
    """The prompts of feedback rows."""
    return PPODataset([example_of(row).prompt for row in feedbacks], tokenizer, max_prompt_length)


def save_dataset(dataset: FeedbackDataset, path: str | Path) -> None:
    """Write {examples, max_length}, the scores as they are learned."""
    rows = [
        asdict(example) | {"score": dataset.score(index)}
        for index, example in enumerate(dataset.examples)
    ]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"examples": rows, "max_length": dataset.max_length}, indent=2, ensure_ascii=False
    )
    # a lone surrogate has no bytes in UTF-8, and only its JSON escape is read again
    target.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


def load_dataset(path: str | Path, tokenizer: Any = None) -> FeedbackDataset:
    """Read what `save_dataset` wrote; scores stay as they are."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return FeedbackDataset(
            document["examples"], tokenizer, document["max_length"], normalize_scores=False
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it is no saved dataset ({type(error).__name__}: {error})"
        raise InputError(
            f"file {str(path)!r}", why, "Name a file that save_dataset wrote"
        ) from None


def _range(examples: Sequence[FeedbackExample]) -> tuple[float, float]:
    scores = [example.score for example in examples]
    return (min(scores), max(scores)) if scores else (0.0, 1.0)


def _position(prompt: str) -> float:
    """A number between 0 and 1 that depends on the prompt alone."""
    digest = hashlib.sha256(
        f"{SALT}:{' '.join(prompt.casefold().split())}".encode("utf-8", "surrogatepass")
    ).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
