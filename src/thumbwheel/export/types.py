"""Nouns of this stage: what is exported, how well it matched, where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Messages = list[dict[str, Any]]
"""One chat: messages with `role` and `content`."""


@dataclass(frozen=True)
class Source:
    """The trained model that a format writes. `adapter`: its verified folder; None for a plain base."""

    base: str
    """Folder of the base."""
    adapter: Path | None
    name: str
    """What others call the base: a hub id, or the folder's absolute path."""


@dataclass(frozen=True)
class Limits:
    """How far the exported model may be from the trained one, per token of the probes."""

    mean_kl: float
    """Nats of KL(trained || exported)."""
    top1: float
    """Least share of positions where both name the same most likely token."""


@dataclass(frozen=True)
class Parity:
    """The exported folder, loaded without our code, against the trained model; both computed in float32."""

    prompts: int
    tokens: int
    dtype: str
    """Precision of the exported weights."""
    max_abs_diff: float
    """Largest difference of two logits, after each position's mean was taken away (softmax does not see it)."""
    mean_kl: float
    top1: float
    effect_kl: float | None
    """Nats of KL(trained || base): how much the adapter changes at all; None for a plain base."""
    same_prompts: bool
    """The exported tokenizer and chat template give the token ids that training saw."""
    limits: Limits

    @property
    def failures(self) -> list[str]:
        """What is beyond its limit, in words; empty when the export may be used."""
        checks = {
            "its tokenizer or chat template gives other prompt tokens than training saw": not self.same_prompts,
            f"mean KL {self.mean_kl:.2g} is above {self.limits.mean_kl:.2g}": not self.mean_kl <= self.limits.mean_kl,
            f"top-1 agreement {self.top1:.4f} is below {self.limits.top1}": not self.top1 >= self.limits.top1,
            f"mean KL {self.mean_kl:.2g} is not small beside what was trained ({self._effect:.2g}): rounding loses it": self._drowned,
        }
        return [text for text, failed in checks.items() if failed]

    @property
    def _effect(self) -> float:
        return self.effect_kl or 0.0

    @property
    def _drowned(self) -> bool:
        return self._effect > VISIBLE and not self.mean_kl <= self._effect / 4


VISIBLE = 1e-8
"""Nats per token below which an adapter's effect is itself numerical noise. KL grows with the square: a quarter is half the change."""


@dataclass(frozen=True)
class Export:
    """One finished export. `files`: relative name -> {"sha256", "size"}."""

    id: str
    agent: str
    version: str
    format: str
    path: Path
    files: Mapping[str, Mapping[str, Any]]
    parity: Parity
