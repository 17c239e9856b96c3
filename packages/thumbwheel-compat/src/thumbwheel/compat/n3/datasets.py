"""Datasets of the n3 server: scored answers for a reward model, prompts for PPO.

The caller's rows are never changed. Scores are normalised by the range of the training rows, and
that scale goes with the validation rows. Rows of one prompt stay on one side of the split, both
sides have low and high scores, and the order of the rows decides nothing. Items are tensors, padded
to their full length on the right, as the default collation of a DataLoader wants them.
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


@dataclass
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
    """Scored answers as token ids.

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
        """Return the score that is learned: from -1 to 1 if scores are normalised, beyond that for
        rows outside the scale."""
        raw = self.examples[index].score
        low, high = self.scale
        return 2 * (raw - low) / (high - low) - 1 if self.normalize_scores and low < high else raw

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return input_ids and attention_mask [max_length], score (a tensor), prompt, response."""
        import torch

        if self.tokenizer is None:
            raise InputError(
                "FeedbackDataset",
                "it has no tokenizer",
                "Give one: FeedbackDataset(rows, tokenizer)",
            )
        example = self.examples[index]
        encoded = self.tokenizer(example.text, truncation=True, max_length=self.max_length)
        return padded(list(encoded["input_ids"]), self.max_length, self.tokenizer) | {
            "score": torch.tensor(self.score(index), dtype=torch.float32),
            "prompt": example.prompt,
            "response": example.response,
        }


class PPODataset:
    """Prompts, each once, as token ids. A longer one is cut to its last `max_prompt_length`
    tokens."""

    def __init__(
        self,
        examples: Iterable[FeedbackExample | str],
        tokenizer: Any = None,
        max_prompt_length: int = 256,
    ) -> None:
        prompts = (example if isinstance(example, str) else example.prompt for example in examples)
        self.prompts = list(dict.fromkeys(prompts))
        self.tokenizer = tokenizer
        self.max_prompt_length = max_prompt_length

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the prompt, and input_ids and attention_mask [max_prompt_length]."""
        if self.tokenizer is None:
            raise InputError(
                "PPODataset", "it has no tokenizer", "Give one: PPODataset(rows, tokenizer)"
            )
        ids = list(self.tokenizer(self.prompts[index])["input_ids"])[-self.max_prompt_length :]
        return padded(ids, self.max_prompt_length, self.tokenizer) | {"prompt": self.prompts[index]}


def padded(ids: list[int], length: int, tokenizer: Any) -> dict[str, Any]:
    """Return input_ids and attention_mask [length] of token ids, padded on the right."""
    import torch

    filler = tokenizer.pad_token_id
    if filler is None:
        filler = tokenizer.eos_token_id or 0
    missing = length - len(ids)
    return {
        "input_ids": torch.tensor(ids + [filler] * missing),
        "attention_mask": torch.tensor([1] * len(ids) + [0] * missing),
    }


def example_of(row: FeedbackExample | Mapping[str, Any]) -> FeedbackExample:
    """Return a row as an example. Raises InputError for a missing key, for a prompt or response
    that is not text, and for a score that is not a finite number."""
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
            f"score {score!r}", "it is not a finite number", "Leave the row out, or correct it"
        )
    return example


def prepare_feedback_dataset(
    feedbacks: Iterable[Mapping[str, Any]],
    tokenizer: Any = None,
    max_length: int = 512,
    normalize_scores: bool = True,
    train_split: float = 0.8,
) -> tuple[FeedbackDataset, FeedbackDataset]:
    """Return training rows and validation rows, in exact shares where no prompt has several rows.

    Raises ConfigError for a share beyond 0 to 1, DataError where there are no rows.
    """
    if not 0 < train_split <= 1:
        raise ConfigError(
            f"train_split {train_split!r}",
            "it is the share of the prompts to train on",
            "Give a number up to 1, as 0.8",
        )
    examples = [example_of(row) for row in feedbacks]
    if not examples:
        raise DataError("0 feedback rows", "there is nothing to train on", "Collect some")
    # rows go to training first
    held_out = len(examples) - max(1, int(len(examples) * train_split))
    prompts = _validation_prompts(examples, held_out)
    train = [example for example in examples if _normal(example.prompt) not in prompts]
    validation = [example for example in examples if _normal(example.prompt) in prompts]
    training = FeedbackDataset(train, tokenizer, max_length, normalize_scores)
    return training, FeedbackDataset(
        validation, tokenizer, max_length, normalize_scores, training.scale
    )


def prepare_ppo_dataset(
    feedbacks: Iterable[Mapping[str, Any]], tokenizer: Any = None, max_prompt_length: int = 256
) -> PPODataset:
    """Return the prompts of feedback rows as a dataset."""
    return PPODataset([example_of(row) for row in feedbacks], tokenizer, max_prompt_length)


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


@dataclass(frozen=True)
class _Prompt:
    """A prompt with its rows: their mean score, how many there are, and a number of its text."""

    text: str
    mean: float
    rows: int
    digest: str


def _validation_prompts(examples: Sequence[FeedbackExample], rows: int) -> set[str]:
    """Return prompts with `rows` rows together, or with fewer if no choice gives exactly as many.

    They are spread over the scores: the prompts in the order of their scores make as many strata as
    rows are wanted, and of each stratum a hash chooses one.
    """
    by_prompt: dict[str, list[float]] = {}
    for example in examples:
        by_prompt.setdefault(_normal(example.prompt), []).append(example.score)
    prompts = [
        _Prompt(text, sum(sorted(scores)) / len(scores), len(scores), _digest(text))
        for text, scores in by_prompt.items()
    ]
    prompts.sort(key=lambda prompt: (prompt.mean, prompt.digest))

    strata: dict[int, list[_Prompt]] = {}
    before = 0
    for prompt in prompts:
        middle = before + prompt.rows / 2
        strata.setdefault(int(middle * rows / len(examples)), []).append(prompt)
        before += prompt.rows
    by_hash = [sorted(stratum, key=lambda prompt: prompt.digest) for stratum in strata.values()]
    chosen: set[str] = set()
    missing = rows
    for stratum in by_hash:
        for prompt in stratum:
            if prompt.rows <= missing:
                chosen.add(prompt.text)
                missing -= prompt.rows
                break
    for prompt in sorted(prompts, key=lambda prompt: (-prompt.rows, prompt.digest)):
        if prompt.text not in chosen and prompt.rows <= missing < len(examples):
            chosen.add(prompt.text)
            missing -= prompt.rows
    return chosen


def _normal(prompt: str) -> str:
    return " ".join(prompt.casefold().split())


def _digest(text: str) -> str:
    return hashlib.sha256(f"{SALT}:{text}".encode("utf-8", "surrogatepass")).hexdigest()
