"""Per-token scores of a TreeBatch under a role; what every method stands on.

Lives here: `ScoreEngine`, the one place that runs the model for training and evaluation, and `Role`. Roles are adapters on one
frozen base: POLICY is the active adapter, REF the base with adapters off. Does not live here: losses, caching
(refcache.py). To add a role, add it to `Role` and say in `_as_role` which adapters it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ModelError
from thumbwheel.engine import capability, lora
from thumbwheel.engine.forward import language_model, own_logits, padded_hidden, tree_hidden
from thumbwheel.engine.head import entropy_of, score_targets, wide
from thumbwheel.engine.tree import Example, Layout, TreeBatch, build

if TYPE_CHECKING:
    import torch

WANTS = frozenset({"logp", "entropy"})
LOGP = frozenset({"logp"})


class Role(StrEnum):
    """Whose opinion is asked."""

    POLICY = "policy"
    REF = "ref"


@dataclass(frozen=True, slots=True)
class Scores:
    """In the order of the batch's targets: `logp` [M] and, where wanted, `entropy` [M], nats, fp32 (fp64 in fp64 models)."""

    logp: torch.Tensor
    entropy: torch.Tensor | None = None


class ScoreEngine:
    """A causal LM (plain or under PEFT) that scores token trees.

    All dropout of the model is set to 0 and it is put into evaluation mode (training mode with `checkpointing`, which
    recomputes activations in the backward pass). `layout` says how batches have to be planned and `layout_reason` why
    rows are padded. `temperature` divides the logits, as when sampling.
    """

    def __init__(
        self,
        model: Any,
        *,
        layout: Layout | None = None,
        temperature: float = 1.0,
        head_chunk: int | None = None,
        fused_lora: bool = True,
        checkpointing: bool = False,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}")
        self.model, self.temperature, self.head_chunk = model, temperature, head_chunk
        self.language_model = language_model(model)
        disable_dropout(model)
        able, self._head = capability.choose(model)
        if layout is not None and layout.kind == "tree" and able.kind == "padded":
            raise ModelError("a tree layout was asked for", able.reason, "Leave the layout to the engine; it takes the padded path")
        self.layout = layout or able
        self.fused_layers = lora.install(model) if fused_lora else 0
        self._adapters = lora.adapter_layers(model)
        self._fingerprint = ""
        self._set_mode(checkpointing)

    def _set_mode(self, checkpointing: bool) -> None:
        if checkpointing:
            self.language_model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train(checkpointing)

    @property
    def layout_reason(self) -> str:
        """Why rows are padded; empty for a tree."""
        return self.layout.reason

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def reference_identity(self) -> tuple[str, ...]:
        """What a reference log-probability depends on besides the tokens: base, adapter, dtype, quantisation, road, temperature."""
        from thumbwheel.engine.load import base_fingerprint

        if not self._fingerprint:
            self._fingerprint = base_fingerprint(self.model)
        config = self.language_model.config
        dtype = str(next(self.language_model.parameters()).dtype)
        return (
            self._fingerprint,
            "no adapter",
            dtype,
            str(getattr(config, "quantization_config", None)),
            f"{self.layout.kind}:{config._attn_implementation}",
            repr(self.temperature),
        )

    def score(self, batch: TreeBatch, role: Role, want: frozenset[str] = LOGP, grad: bool = False) -> Scores:
        """Scores of `batch` under `role`; `grad` keeps the graph for a backward pass (entropy never has one)."""
        import torch

        if unknown := want - WANTS:
            raise ValueError(f"wants {sorted(unknown)}; known: {sorted(WANTS)}")
        if batch.kind != self.layout.kind:
            raise ValueError(f"a {batch.kind} batch for an engine of layout {self.layout.kind}; plan with engine.layout")
        with self._as_role(role), nullcontext() if grad else torch.no_grad():
            return self._score(batch.to(self.device), "entropy" in want)

    def _score(self, batch: TreeBatch, entropy: bool) -> Scores:
        if self._head is None:
            return self._score_whole(batch, entropy)
        hidden = tree_hidden(self.language_model, batch) if batch.kind == "tree" else padded_hidden(self.language_model, batch)
        rows = hidden[batch.pred_index]
        return Scores(*score_targets(self._head, rows, batch.target_ids, self.temperature, self.head_chunk, entropy))

    def _score_whole(self, batch: TreeBatch, entropy: bool) -> Scores:
        logits = own_logits(self.model, batch)
        logs = (logits.to(wide(logits)) / self.temperature).log_softmax(-1)
        return Scores(logs.gather(1, batch.target_ids[:, None])[:, 0], entropy_of(logs.detach()) if entropy else None)

    def self_verify(self, example: Example) -> float:
        """Largest absolute difference in log-probability, over one real example, between this engine and the model's own
        plain forward of each sequence alone; the caller decides what is too much."""
        import torch

        found = self.score(build([example], [0], self.layout), Role.POLICY).logp
        gaps = []
        for branch, part in zip(example.branches, build([example], [0], self.layout).branch_slices, strict=True):
            alone = Example(example.prompt, (branch,), example.group)
            batch = build([alone], [0], Layout("padded")).to(self.device)
            with torch.no_grad():
                plain = self._score_whole(batch, entropy=False).logp
            gaps += [float((found[part] - plain).abs().max())] if len(plain) else []
        return max(gaps, default=0.0)

    @contextmanager
    def _as_role(self, role: Role) -> Iterator[None]:
        if role is Role.POLICY:
            yield
            return
        with lora.adapters_off(self.model, self._adapters):
            yield


def disable_dropout(model: Any) -> None:
    """Set every dropout to 0: the reference, the old and the new policy have to be the same function of the tokens."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
