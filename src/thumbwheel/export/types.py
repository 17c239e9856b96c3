"""Nouns of this stage: what is exported, how well it matched, where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError

Messages = list[dict[str, Any]]
"""One chat: messages with `role` and `content`."""


@dataclass(frozen=True)
class Source:
    """The trained model that a format writes. `adapter`: its verified folder; None for a plain
    base."""

    base: str
    """Folder of the base."""
    adapter: Path | None
    name: str
    """What others call the base: a hub id, or the folder's absolute path."""
    quant: str | None = None
    """The precision that was asked for, in capitals (Q4_K_M); None for the format's own choice."""
    scratch: Path | None = None
    """Where intermediate files may stay for the next precision of the same model; None: they are
    made anew."""


@dataclass(frozen=True)
class Acceptance:
    """Somebody who takes an export that failed parity, by name and with a reason."""

    name: str
    reason: str

    @classmethod
    def read(cls, text: str) -> Acceptance:
        """Of "Ada Byron: only for the demo"; raises InputError where either is missing."""
        name, _, reason = (part.strip() for part in text.partition(":"))
        if not (name and reason):
            raise InputError(
                f"--accept {text!r}",
                "it needs a name and a reason",
                'Write: --accept "Ada Byron: only for the demo"',
            )
        return cls(name, reason)


@dataclass(frozen=True)
class Limits:
    """How far the exported model may be from the trained one, per token of the probes."""

    mean_kl: float
    """Nats of KL(trained || exported)."""
    top1: float
    """Least share of positions where both name the same most likely token."""
    of_effect: float | None = 0.25
    """Most that the mean KL may be of what training moved; None where it may be noise of any size
    that leaves the change standing."""
    logits: float | None = None
    """Most that a logit may differ by; None where the mean KL says enough."""


@dataclass(frozen=True)
class TaskScore:
    """How the exported model answers cases of the agent, beside the trained model on the same ones."""

    cases: int
    score: float
    trained: float
    """What the trained model itself scores."""
    low: float
    """Of the interval of the difference, exported less trained."""
    high: float


@dataclass(frozen=True)
class Parity:
    """The exported folder, loaded without our code, against the trained model computed in float32."""

    prompts: int
    tokens: int
    dtype: str
    """Precision of the exported weights."""
    max_abs_diff: float
    """Largest difference of two logits, after each position's mean was taken away (softmax does not
    see it)."""
    mean_kl: float
    top1: float
    effect_kl: float | None
    """Nats of KL(trained || base): how much the adapter changes at all; None for a plain base."""
    same_prompts: bool
    """The exported tokenizer and chat template give the token ids that training saw."""
    limits: Limits
    base_kl: float | None = None
    """Nats of KL(base || exported): above `mean_kl` as long as what was trained survives."""
    same_text: bool = True
    """The exported tokenizer splits plain text, with accents, scripts, digits and special tokens in
    it, as the trained one does."""
    ends: tuple[str, ...] = ()
    """Tokens that end an answer in training and not in the exported model."""
    size: int = 0
    """Bytes of the folder's weights."""
    tokens_per_second: float | None = None
    """Generated on this machine."""
    task: TaskScore | None = None
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> list[str]:
        """What is beyond its limit, in words; empty when the export may be used."""
        checks = {
            "its tokenizer or chat template gives other prompt tokens than training saw": not self.same_prompts,
            "its tokenizer splits plain text otherwise than the trained one": not self.same_text,
            f"its answers do not end at {', '.join(self.ends)}": bool(self.ends),
            f"mean KL {self.mean_kl:.2g} is above {self.limits.mean_kl:.2g}": not self.mean_kl
            <= self.limits.mean_kl,
            f"top-1 agreement {self.top1:.4f} is below {self.limits.top1}": not self.top1
            >= self.limits.top1,
            f"a logit differs by {self.max_abs_diff:.2g}, above {self.limits.logits}": self._apart,
            f"mean KL {self.mean_kl:.2g} is not small beside what was trained "
            f"({self._effect:.2g}): rounding loses it": self._drowned,
            f"it is nearer to the base (KL {self.base_kl or 0:.2g}) than to the trained model "
            f"({self.mean_kl:.2g})": self._lost,
        }
        return [text for text, failed in checks.items() if failed]

    @property
    def _effect(self) -> float:
        return self.effect_kl or 0.0

    @property
    def _apart(self) -> bool:
        return self.limits.logits is not None and not self.max_abs_diff <= self.limits.logits

    @property
    def _drowned(self) -> bool:
        share = self.limits.of_effect
        return (
            share is not None
            and self._effect > VISIBLE
            and not self.mean_kl <= self._effect * share
        )

    @property
    def _lost(self) -> bool:
        return (
            self.base_kl is not None and self._effect > VISIBLE and not self.mean_kl < self.base_kl
        )


VISIBLE = 1e-8
"""Nats per token below which an adapter's effect is itself numerical noise. KL grows with the
square: a quarter is half the change."""


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
    quant: str | None = None
    accepted: str | None = None
    """Who took it in spite of a failed parity, and why ("name: reason"); None where nothing failed."""
    stops: tuple[str, ...] = ()
    """Texts of the tokens that end an answer; what serves the files has to stop at each."""

    @property
    def deployable(self) -> bool:
        """Whether parity held, or somebody answers for it by name."""
        return not self.parity.failures or self.accepted is not None
