"""The types of this stage: the source of an export, its parity with the trained model, and the
finished export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.models.template_settings import TemplateSettings

Messages = list[dict[str, Any]]
"""One chat: messages with `role` and `content`."""


@dataclass(frozen=True)
class ModelKind:
    """The kind of model files that a format writes. A target can serve every format whose kind it
    takes; kinds are equal when their names and bases are."""

    name: str
    base: ModelKind | None = None
    """The kind of the base over which an adapter is loaded; None for a whole model."""


HF_MODEL = ModelKind("merged")
"""A Hugging Face folder."""
PEFT_ADAPTER = ModelKind("adapter", base=HF_MODEL)
"""A PEFT adapter."""
GGUF_MODEL = ModelKind("gguf")
"""One GGUF file."""
GGUF_ADAPTER = ModelKind("lora_gguf", base=GGUF_MODEL)
"""An adapter in a GGUF file."""


@dataclass(frozen=True)
class ExportSource:
    """The trained model that a format writes. `adapter`: its verified folder; None for a plain
    base."""

    base: str
    """Folder of the base."""
    adapter: Path | None
    name: str
    """The base's public name: a hub id, or the folder's absolute path."""
    quant: str | None = None
    """The requested precision, in capitals (Q4_K_M); None for the format's own choice."""
    scratch: Path | None = None
    """Folder for intermediate files that the next precision of the same model reuses; None where
    they are not shared."""
    template: TemplateSettings | None = None
    """How the chat template is used where none was saved with the adapter."""
    gguf: Path | None = None
    """The GGUF file from which the base was made; None for a base that has none."""

    @property
    def loadable(self) -> str:
        """What transformers loads as the base: its name, or the folder that was made of a file."""
        return self.name if self.gguf is None else self.base


@dataclass(frozen=True)
class Acceptance:
    """A person who accepts a failed check, by name and with a reason."""

    name: str
    reason: str

    @classmethod
    def read(cls, text: str) -> Acceptance:
        """Parse "Ada Byron: only for the demo". Raises InputError if either part is missing."""
        name, _, reason = (part.strip() for part in text.partition(":"))
        if not (name and reason):
            raise InputError(
                f"--accept {text!r}",
                "it needs a name and a reason",
                'Write: --accept "Ada Byron: only for the demo"',
            )
        return cls(name, reason)


@dataclass(frozen=True)
class ParityLimits:
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
    """The scores of the exported and of the trained model on the same cases of the agent."""

    cases: int
    """Cases that both answered."""
    score: float
    """Share of right answers of the exported model."""
    trained: float
    """What the trained model itself scores."""
    low: float
    """Of the interval of the difference, exported less trained."""
    high: float
    """Upper end of that interval."""


@dataclass(frozen=True)
class Parity:
    """The exported folder, loaded without our code, against the trained model in float32."""

    prompts: int
    """Prompts that were compared."""
    tokens: int
    """Positions that were compared."""
    dtype: str
    """Precision of the exported weights."""
    max_abs_diff: float
    """Largest difference of two logits, after each position's mean was taken away (softmax does not
    see it)."""
    mean_kl: float
    """Mean KL(trained || exported) a token, in nats."""
    top1: float
    """Share of positions at which both name the same most likely token."""
    effect_kl: float | None
    """Nats of KL(trained || base): how much the adapter changes at all; None for a plain base."""
    same_prompts: bool
    """The exported tokenizer and chat template give the token ids that training saw."""
    limits: ParityLimits
    """How far apart they may be."""
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
    """Scores on cases of the agent; null where none were compared."""
    notes: tuple[str, ...] = ()
    """Remarks about the comparison."""

    @property
    def failures(self) -> list[str]:
        """What is beyond its limit, in words; empty if the export may be used."""
        limits = self.limits
        failures = []
        if not self.same_prompts:
            failures.append(
                "its tokenizer or chat template gives other prompt tokens than training saw"
            )
        if not self.same_text:
            failures.append("its tokenizer splits plain text otherwise than the trained one")
        if self.ends:
            failures.append(f"its answers do not end at {', '.join(self.ends)}")
        # written so that a NaN fails
        if not self.mean_kl <= limits.mean_kl:
            failures.append(f"mean KL {self.mean_kl:.2g} is above {limits.mean_kl:.2g}")
        if not self.top1 >= limits.top1:
            failures.append(f"top-1 agreement {self.top1:.4f} is below {limits.top1}")
        if limits.logits is not None and not self.max_abs_diff <= limits.logits:
            failures.append(f"a logit differs by {self.max_abs_diff:.2g}, above {limits.logits}")
        if self._rounded_away:
            failures.append(
                f"mean KL {self.mean_kl:.2g} is not small beside what was trained "
                f"({self._effect:.2g}): rounding loses it"
            )
        if self._nearer_to_base:
            failures.append(
                f"it is nearer to the base (KL {self.base_kl or 0:.2g}) than to the trained model "
                f"({self.mean_kl:.2g})"
            )
        return failures

    @property
    def _effect(self) -> float:
        return self.effect_kl or 0.0

    @property
    def _rounded_away(self) -> bool:
        share = self.limits.of_effect
        if share is None or not self._effect > VISIBLE:
            return False
        return not self.mean_kl <= self._effect * share

    @property
    def _nearer_to_base(self) -> bool:
        if self.base_kl is None or not self._effect > VISIBLE:
            return False
        return not self.mean_kl < self.base_kl


VISIBLE = 1e-8
"""Nats per token below which an adapter's effect is itself numerical noise. KL grows with the
square: a quarter is half the change."""


@dataclass(frozen=True)
class Export:
    """One finished export. `files`: relative name -> {"sha256", "size"}."""

    id: str
    """Id of the export."""
    agent: str
    """Agent of the version."""
    version: str
    """Version that was exported (v3)."""
    format: str
    """adapter, merged, gguf, lora_gguf or onnx."""
    path: Path
    """Folder with the files."""
    files: Mapping[str, Mapping[str, Any]]
    """File name -> its `sha256` and `size` in bytes."""
    parity: Parity
    """How near the files are to the trained model."""
    quant: str | None = None
    """Precision, such as Q8_0; null for the format's own."""
    accepted: str | None = None
    """Who accepted a failed parity, and why ("name: reason"); None where nothing failed."""
    stops: tuple[str, ...] = ()
    """Texts of the tokens that end an answer; what serves the files has to stop at each."""
    host: str | None = None
    """The name of the other host of the home that has the files; None if they are here."""

    @property
    def deployable(self) -> bool:
        """Whether parity held, or somebody answers for it by name."""
        return not self.parity.failures or self.accepted is not None


@dataclass(frozen=True)
class CheckedExport(Export):
    """An export with what its parity permits, as programs read it."""

    deployable: bool = False
    """Whether parity held, or somebody accepted the failure by name."""

    @classmethod
    def of(cls, export: Export) -> CheckedExport:
        """Return the export with its field `deployable`."""
        return cls(**vars(export), deployable=export.deployable)
