"""Scores of a TreeBatch under a role; what every method stands on.

Lives here: `ScoreEngine`, the one place that runs the model for training and evaluation, `Role`,
and `RoleModel`, what a role means: an adapter on the one frozen base and, for a critic or a reward
model, a scalar head. Does not live here: losses, caching (refcache.py). To add a role, add it to
`Role`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from thumbwheel.core.errors import ModelError
from thumbwheel.engine import capability, lora
from thumbwheel.engine.forward import (
    classifier_scores,
    is_scorer,
    language_model,
    model_logits,
    padded_hidden,
    tree_hidden,
)
from thumbwheel.engine.head import entropy_of, score_targets, wide
from thumbwheel.engine.replicas import Replicas, even_token_share, parallel_batches
from thumbwheel.engine.tree import Example, Layout, TreeBatch, plan

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Gradients: TypeAlias = "Sequence[torch.Tensor | None]"
SCORE_NAMES = frozenset({"logp", "entropy", "value", "last"})
OF_VOCABULARY = frozenset({"logp", "entropy"})
LOGP, LAST = frozenset({"logp"}), frozenset({"last"})
NOT_REQUESTED: Any = None


class Role(StrEnum):
    """Whose opinion is asked."""

    POLICY = "policy"
    REF = "ref"
    CRITIC = "critic"
    REWARD = "reward"


@dataclass(frozen=True, slots=True)
class RoleModel:
    """What a role is on the one model: the name of a PEFT adapter (None: adapters off) and a scalar
    head, nn.Linear(H, 1)."""

    adapter: str | None
    head: Any = None


@dataclass(frozen=True, slots=True)
class Scores:
    """What was wanted, fp32 (fp64 in fp64 models); the rest is None.

    Of each target [M]: its log-probability `logp` and the `entropy` of its distribution, in nats,
    and `value`, the role's head on the row that predicts it. Of each branch [n_branches]: `last`,
    the role's head on its last token.
    """

    logp: torch.Tensor = NOT_REQUESTED
    entropy: torch.Tensor = NOT_REQUESTED
    value: torch.Tensor = NOT_REQUESTED
    last: torch.Tensor = NOT_REQUESTED


class ScoreEngine:
    """A causal LM (plain or under PEFT) that scores token trees.

    All dropout of the model is set to 0 and it is put into evaluation mode (training mode with
    `checkpointing`, which recomputes activations in the backward pass). `layout` says how batches
    have to be planned and why rows are padded. `temperature` divides the logits, as when sampling.
    `voices` adds to or replaces the two roles that are always there: POLICY, the model as it stands
    when the engine is made, and REF, the base with adapters off.
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
        role_models: Mapping[Role, RoleModel] | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}")
        self.model, self.temperature, self.head_chunk = model, temperature, head_chunk
        self.language_model = language_model(model)
        able, self._head = capability.choose(model)
        if layout is not None and layout.kind == "tree" and able.kind == "padded":
            raise ModelError(
                "a tree layout was asked for",
                able.reason,
                "Leave the layout to the engine; it takes the padded path",
            )
        self.layout = layout or able
        self._fused, self.fused_layers, self._adapters = fused_lora, 0, lora.adapter_layers(model)
        self._role_models: dict[Role, RoleModel] = {}
        self._speaking = lora.active_adapter(model, self._adapters)
        self._fingerprints: dict[str, str] = {}
        self._replica, self._replicas = False, dict[int, Replicas[ScoreEngine]]()
        for role, role_model in (
            {Role.POLICY: RoleModel(self._speaking), Role.REF: RoleModel(None)}
            | dict(role_models or {})
        ).items():
            self.add(role, role_model)
        self.checkpointing = False
        self.set_checkpointing(checkpointing)

    def add(self, role: Role, role_model: RoleModel) -> None:
        """Let `voice` answer for `role` from now on. What trains is left as it is: see
        `parameters_of`."""
        if role_model.adapter is not None and role_model.adapter not in getattr(
            self.model, "peft_config", {}
        ):
            known = ", ".join(getattr(self.model, "peft_config", {})) or "none"
            raise ModelError(
                f"the role {role.value!r}",
                f"the model has no adapter {role_model.adapter!r}",
                f"Load it first; known: {known}",
            )
        self._role_models[role] = replace(
            role_model, head=None if role_model.head is None else role_model.head.to(self.device)
        )
        self._fingerprints = {}
        self.drop_replicas()
        disable_dropout(self.model)
        self._adapters = lora.adapter_layers(self.model)
        self.fused_layers = lora.install(self.model) if self._fused else 0

    def parameters_of(self, role: Role) -> list[torch.nn.Parameter]:
        """The tensors that are this role's alone: its adapter and its head; of a model without
        adapters, what trains."""
        role_model = self.role_model(role)
        head = list(role_model.head.parameters()) if role_model.head is not None else []
        if role_model.adapter is not None:
            return list(
                dict.fromkeys(lora.parameters_of(self._adapters, role_model.adapter) + head)
            )
        return [
            one for one in self.model.parameters() if one.requires_grad and not self._adapters
        ] + head

    def role_model(self, role: Role) -> RoleModel:
        """What `role` is now; raises ModelError for one that was never added."""
        if role not in self._role_models:
            raise ModelError(
                f"the role {role.value!r}",
                "this engine has no voice for it",
                "Add one with engine.add",
            )
        return self._role_models[role]

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that have a voice."""
        return frozenset(self._role_models)

    def set_checkpointing(self, wanted: bool) -> None:
        """Compute activations again in the backward pass from now on, or keep them."""
        if wanted and not self.checkpointing:
            self.language_model.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": self._recompute}
            )
        self.checkpointing = wanted
        self.model.train(wanted)
        self.drop_replicas()

    def drop_replicas(self) -> None:
        """End the threads that compute side by side; the next ones see what has changed."""
        for one in self._replicas.values():
            one.close()
        self._replicas = {}

    @property
    def modules(self) -> list[Any]:
        """The model and all heads."""
        return [
            self.model,
            *(
                role_model.head
                for role_model in self._role_models.values()
                if role_model.head is not None
            ),
        ]

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """Every parameter of them that trains, once."""
        return list(
            dict.fromkeys(
                one for module in self.modules for one in module.parameters() if one.requires_grad
            )
        )

    def zero_grad(self) -> None:
        """Forget the gradients of the model and of all heads."""
        for one in (parameter for module in self.modules for parameter in module.parameters()):
            one.grad = None

    def map_batches(
        self, examples: Sequence[Example], tokens: int, work: Callable[[ScoreEngine, TreeBatch], T]
    ) -> Iterator[tuple[TreeBatch, T]]:
        """Batches of `examples`, `tokens` at once, with what `work` makes of each; `work` gets the
        engine that it has to use.

        On a CPU, first come large batches, each computed by all threads, then small ones, of which
        several are under way on threads of their own. The first error ends all. Batches and order
        depend on the examples, the tokens and the number of torch's threads only.
        """
        count, alone, beside = self._laid_out(examples, tokens)
        for batch in alone:
            yield batch, work(self, batch)
        if beside:
            if count not in self._replicas:
                self._replicas[count] = Replicas([self._copied() for _ in range(count)])
            yield from zip(beside, self._replicas[count].map(beside, work), strict=True)

    def backward(
        self,
        examples: Sequence[Example],
        tokens: int,
        work: Callable[[ScoreEngine, TreeBatch], tuple[torch.Tensor, T]],
    ) -> Iterator[tuple[TreeBatch, tuple[torch.Tensor, T]]]:
        """As `each`; the gradients of the losses that `work` gives are added to the parameters',
        and losses come back without graphs."""

        def learn(
            engine: ScoreEngine, batch: TreeBatch
        ) -> tuple[Gradients, tuple[torch.Tensor, T]]:
            loss, found = work(engine, batch)
            return engine._gradients(loss), (loss.detach(), found)

        for batch, (gradients, found) in self.map_batches(examples, tokens, learn):
            self._add(gradients)
            yield batch, found

    def _gradients(self, loss: torch.Tensor) -> Gradients:
        """Add those of `loss` to the parameters'. A replica, which is not alone, gives them back,
        one for each of the `trained`."""
        import torch

        if self._replica:
            return torch.autograd.grad(loss, self.trainable, allow_unused=True)
        torch.autograd.backward(loss)
        return ()

    def _add(self, found: Gradients) -> None:
        """Add what a replica gave back."""
        for parameter, one in zip(self.trainable, found, strict=True) if found else ():
            if one is not None:
                parameter.grad = one if parameter.grad is None else parameter.grad.add_(one)

    def peak_rows(self, examples: Sequence[Example], tokens: int) -> int:
        """Most rows, padding included, that `each` has under way at one time."""
        count, alone, beside = self._laid_out(examples, tokens)
        together = sorted((batch.cells for batch in beside), reverse=True)[:count]
        return max([sum(together), *(batch.cells for batch in alone)])

    def _laid_out(
        self, examples: Sequence[Example], tokens: int
    ) -> tuple[int, list[TreeBatch], list[TreeBatch]]:
        """(threads, batches that are computed one after the other, batches that are computed side
        by side)."""
        if not examples:
            return 1, [], []
        rows = [one.rows(self.layout.kind) for one in examples]
        count = parallel_batches(rows, tokens) if self._light else 1
        small = [at for at, scorer in enumerate(rows) if scorer * count <= tokens]
        share = even_token_share([rows[at] for at in small], tokens, count)
        beside = self._planned(examples, small, share) if count > 1 else []
        if len(beside) < 2:
            return 1, plan(examples, tokens, self.layout), []
        return (
            count,
            self._planned(examples, sorted({*range(len(rows))} - {*small}), tokens),
            beside,
        )

    def _planned(
        self, examples: Sequence[Example], members: Sequence[int], tokens: int
    ) -> list[TreeBatch]:
        """Batches of some of `examples`, under their places among all."""
        batches = plan([examples[at] for at in members], tokens, self.layout)
        return [
            replace(batch, example_ids=tuple(members[at] for at in batch.example_ids))
            for batch in batches
        ]

    @property
    def _light(self) -> bool:
        """Whether another thread is a processor's, costs no more memory than its activations, and
        may run PEFT's forward beside others."""
        quantised = getattr(self.language_model.config, "quantization_config", None) is not None
        trains = not self._adapters and bool(self.trainable)
        return (
            self.device.type == "cpu"
            and not quantised
            and not trains
            and not lora.heavy(self._adapters)
        )

    def _copied(self) -> ScoreEngine:
        """The same voices over the same parameters, in modules of its own, for another thread."""
        tensors = [
            one for module in self.modules for one in (*module.parameters(), *module.buffers())
        ]
        shared = {id(one): one for one in (*tensors, self._fingerprints)}
        made = copy.deepcopy(self, shared | {id(self._replicas): {}})
        made._replica = True
        return made

    def _recompute(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Around a checkpointed layer's forward, and around its second one in the backward pass:
        that one is under the same adapter."""
        return nullcontext(), lora.switched(self.model, self._adapters, self._speaking)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def reference_identity(self) -> tuple[str, ...]:
        """What a reference log-probability depends on besides the tokens: base, adapter, dtype,
        quantisation, road, temperature."""
        from thumbwheel.engine.load import base_fingerprint, fingerprint_of

        if not self._fingerprints:
            adapter = self.role_model(Role.REF).adapter
            scorer = (
                fingerprint_of(enumerate(self.parameters_of(Role.REF))) if adapter else "no adapter"
            )
            self._fingerprints |= {"base": base_fingerprint(self.model), "adapter": scorer}
        config = self.language_model.config
        dtype = str(next(self.language_model.parameters()).dtype)
        return (
            *self._fingerprints.values(),
            dtype,
            str(getattr(config, "quantization_config", None)),
            f"{self.layout.kind}:{config._attn_implementation}",
            repr(self.temperature),
        )

    def score(
        self, batch: TreeBatch, role: Role, outputs: frozenset[str] = LOGP, grad: bool = False
    ) -> Scores:
        """Scores of `batch` under `role`; `grad` keeps the graph for a backward pass (entropy never
        has one).

        Only what is in `want` is computed: "value" and "last" make no product with the vocabulary.
        """
        import torch

        if unknown := outputs - SCORE_NAMES:
            raise ValueError(f"wants {sorted(unknown)}; known: {sorted(SCORE_NAMES)}")
        if batch.kind != self.layout.kind:
            raise ValueError(
                f"a {batch.kind} batch for an engine of layout {self.layout.kind}; plan with "
                "engine.layout"
            )
        role_model = self.role_model(role)
        scorer = is_scorer(self.model)
        if outputs & OF_VOCABULARY and scorer:
            raise ModelError(
                f"{sorted(outputs & OF_VOCABULARY)} of a reward model",
                "it has no vocabulary behind it",
                'Ask it for "last"',
            )
        if (
            outputs - OF_VOCABULARY
            and role_model.head is None
            and not (scorer and outputs == {"last"})
        ):
            raise ModelError(
                f"{sorted(outputs - OF_VOCABULARY)} of the role {role.value!r}",
                "it has no head",
                "Give its RoleModel one",
            )
        with self._as_role(role, role_model), nullcontext() if grad else torch.no_grad():
            return self._score(batch.to(self.device), role_model.head, outputs)

    def _score(self, batch: TreeBatch, head: Any, outputs: frozenset[str]) -> Scores:
        found: dict[str, Any] = {}
        if head is None and "last" in outputs:
            scores = classifier_scores(self.model, batch)
            return Scores(last=scores.to(wide(scores)))
        if outputs & OF_VOCABULARY and self._head is None:
            found = self._score_whole(batch, "entropy" in outputs)
        if outputs - OF_VOCABULARY or self._head is not None:
            hidden = (
                tree_hidden(self.language_model, batch)
                if batch.kind == "tree"
                else padded_hidden(self.language_model, batch)
            )
            rows = {"value": batch.pred_index, "last": batch.last_index}
            found |= {name: scalars(head, hidden[rows[name]]) for name in outputs - OF_VOCABULARY}
            if outputs & OF_VOCABULARY and self._head is not None:
                predictors = hidden[batch.pred_index]
                logp, entropy = score_targets(
                    self._head,
                    predictors,
                    batch.target_ids,
                    self.temperature,
                    self.head_chunk,
                    "entropy" in outputs,
                )
                found |= {"logp": logp, "entropy": entropy}
        return Scores(**{name: found[name] for name in outputs})

    def _score_whole(self, batch: TreeBatch, entropy: bool = False) -> dict[str, Any]:
        logits = model_logits(self.model, batch)
        logs = (logits.to(wide(logits)) / self.temperature).log_softmax(-1)
        return {
            "logp": logs.gather(1, batch.target_ids[:, None])[:, 0],
            "entropy": entropy_of(logs.detach()) if entropy else None,
        }

    @contextmanager
    def _as_role(self, role: Role, role_model: RoleModel) -> Iterator[None]:
        if (
            role is Role.REF
            and not hasattr(self.model, "peft_config")
            and any(one.requires_grad for one in self.model.parameters())
        ):
            raise ModelError(
                "the reference model",
                "the model has no adapter and trains itself, so its start is gone",
                "Train with LoRA",
            )
        before, self._speaking = self._speaking, role_model.adapter
        try:
            with lora.switched(self.model, self._adapters, role_model.adapter):
                yield
        finally:
            self._speaking = before


def scalars(head: Any, rows: torch.Tensor) -> torch.Tensor:
    """[n, H] -> [n] through nn.Linear(H, 1), in fp32 (fp64 in fp64 models)."""
    from torch.nn.functional import linear

    kind = wide(rows)
    bias = None if head.bias is None else head.bias.to(kind)
    return linear(rows.to(kind), head.weight.to(kind), bias)[:, 0]


def disable_dropout(model: Any) -> None:
    """Set every dropout to 0: the reference, the old and the new policy have to be the same
    function of the tokens."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
