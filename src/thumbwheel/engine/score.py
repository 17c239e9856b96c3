"""Scores of a TreeBatch under a role: the base of every method.

`ScoreEngine` is the one place that runs the model for training and evaluation. A `Role` is whose
scores are asked for; its `RoleModel` is an adapter on the one frozen base and, for a critic or a
reward model, a scalar head. Losses are the methods' own; reference values are cached in
refcache.py.
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
from thumbwheel.engine.head import divergence, divergence_from, entropy_of, score_targets, wide
from thumbwheel.engine.ranks import Ranks
from thumbwheel.engine.replicas import Replicas, even_token_share, parallel_batches
from thumbwheel.engine.shards import shard_layers
from thumbwheel.engine.tree import Example, Layout, TreeBatch, plan

if TYPE_CHECKING:
    import torch

S = TypeVar("S")
T = TypeVar("T")
Gradients: TypeAlias = "Sequence[torch.Tensor | None]"
SCORE_NAMES = frozenset({"logp", "entropy", "value", "last"})
OF_VOCABULARY = frozenset({"logp", "entropy"})
"""Scores that need a product with the vocabulary; the others need the role's head."""
LOGP, LAST = frozenset({"logp"}), frozenset({"last"})
NOT_REQUESTED: Any = None
ROUND = 64
"""Micro-batches a rank between two exchanges of results."""


class Role(StrEnum):
    """Whose scores are asked for."""

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
    """The scores that were asked for, fp32 (fp64 in fp64 models); the others are None.

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

    All dropout of the model is set to 0 (but that of `lora.set_dropout`, which is there only where
    gradients are computed) and it is put into evaluation mode (training mode with
    `checkpointing`, which recomputes activations in the backward pass). `layout` says how batches
    have to be planned and why rows are padded. `temperature` divides the logits, as when sampling.
    `role_models` adds to or replaces the two roles that are always there: POLICY, the model as it
    is when the engine is made, and REF, the base with adapters off. Several `ranks` share out the
    micro-batches.
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
        ranks: Ranks | None = None,
    ) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}")
        self.model, self.temperature, self.head_chunk = model, temperature, head_chunk
        self.language_model = language_model(model)
        self.ranks = ranks or Ranks()

        possible, self._head = capability.choose(model)
        if layout is not None and layout.kind == "tree" and possible.kind == "padded":
            raise ModelError(
                "a tree layout was asked for",
                possible.reason,
                "Leave the layout to the engine; it takes the padded path",
            )
        self.layout = layout or possible

        self._fused, self.fused_layers = fused_lora, 0
        self._adapters = lora.adapter_layers(model)
        self._active_adapter = lora.active_adapter(model, self._adapters)
        self._dropout = lora.dropout_draw(model)
        self._fingerprints: dict[str, str] = {}
        self._is_replica = False
        self.is_sharded = False
        self._replicas: dict[int, Replicas[ScoreEngine]] = {}

        self._role_models: dict[Role, RoleModel] = {}
        defaults = {Role.POLICY: RoleModel(self._active_adapter), Role.REF: RoleModel(None)}
        for role, role_model in (defaults | dict(role_models or {})).items():
            self.add(role, role_model)
        self.checkpointing = False
        self.set_checkpointing(checkpointing)

    def draw_dropout(self, *position: int) -> None:
        """Choose anew what the adapters' dropout leaves out, from the run's seed and a position
        (step, update). A model without dropout is not touched."""
        if self._dropout is not None:
            self._dropout.move_to(*position)

    def add(self, role: Role, role_model: RoleModel) -> None:
        """Make `role_model` answer for `role` from now on. It does not change which parameters
        train: see `parameters_of`. Raises ModelError for an adapter that the model does not
        have."""
        adapters = getattr(self.model, "peft_config", {})
        if role_model.adapter is not None and role_model.adapter not in adapters:
            raise ModelError(
                f"the role {role.value!r}",
                f"the model has no adapter {role_model.adapter!r}",
                f"Load it first; known: {', '.join(adapters) or 'none'}",
            )
        if role_model.head is not None:
            role_model = replace(role_model, head=role_model.head.to(self.device))
        self._role_models[role] = role_model
        self._fingerprints = {}
        self.drop_replicas()
        disable_dropout(self.model)
        self._adapters = lora.adapter_layers(self.model)
        self.fused_layers = lora.install(self.model) if self._fused else 0

    def parameters_of(self, role: Role) -> list[torch.nn.Parameter]:
        """Return the tensors that belong to this role alone: its adapter and its head; in a model
        without adapters, all that train."""
        role_model = self.role_model(role)
        head: list[torch.nn.Parameter] = []
        if role_model.head is not None:
            head += role_model.head.parameters()
        if role_model.adapter is not None:
            adapter = lora.parameters_of(self._adapters, role_model.adapter)
            return list(dict.fromkeys(adapter + head))
        if self._adapters:
            return head
        return [weight for weight in self.model.parameters() if weight.requires_grad] + head

    def role_model(self, role: Role) -> RoleModel:
        """Return the model of `role`. Raises ModelError for a role that was never added."""
        if role not in self._role_models:
            raise ModelError(
                f"the role {role.value!r}",
                "this engine has no model for it",
                "Add one with engine.add",
            )
        return self._role_models[role]

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that have a model."""
        return frozenset(self._role_models)

    def set_checkpointing(self, wanted: bool) -> None:
        """Recompute activations in the backward pass from now on, or store them."""
        if wanted and not self.checkpointing:
            self.language_model.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": self._recompute}
            )
        self.checkpointing = wanted
        self.model.train(wanted)
        self.drop_replicas()

    def drop_replicas(self) -> None:
        """End the threads that compute side by side; the next ones see the changes."""
        for replicas in self._replicas.values():
            replicas.close()
        self._replicas = {}

    @property
    def modules(self) -> list[Any]:
        """The model and all heads."""
        role_models = self._role_models.values()
        return [self.model, *(each.head for each in role_models if each.head is not None)]

    @property
    def trainable(self) -> list[torch.nn.Parameter]:
        """Every parameter of the model and its heads that trains, once."""
        parameters: dict[torch.nn.Parameter, None] = {}
        for module in self.modules:
            parameters |= dict.fromkeys(p for p in module.parameters() if p.requires_grad)
        return list(parameters)

    def zero_grad(self) -> None:
        """Clear the gradients of the model and of all heads."""
        for module in self.modules:
            for parameter in module.parameters():
                parameter.grad = None

    def map_batches(
        self, examples: Sequence[Example], tokens: int, work: Callable[[ScoreEngine, TreeBatch], T]
    ) -> Iterator[tuple[TreeBatch, T]]:
        """Yield batches of `examples`, `tokens` at once, with the result of `work` for each; `work`
        gets the engine that it has to use.

        On a CPU, first come large batches, each computed by all threads, then small ones, of which
        several are under way on threads of their own. The first error ends all. Batches and order
        depend on the examples, the tokens and the numbers of torch's threads and of ranks only. Of
        several ranks each computes a share and gets the results of all; batches are smaller, if
        that makes the shares more even.
        """
        batches = self._plan(examples, tokens)
        yield from self._shared_out(batches, work, lambda result: result, work)

    def backward(
        self,
        examples: Sequence[Example],
        tokens: int,
        work: Callable[[ScoreEngine, TreeBatch], tuple[torch.Tensor, T]],
    ) -> Iterator[tuple[TreeBatch, tuple[torch.Tensor, T]]]:
        """Do the same as `map_batches`, and add the gradients of the losses that `work` returns to
        the parameters'; losses come back without graphs. Of several ranks each has the gradients of
        its share (Ranks.sum_gradients)."""

        def work_and_gradients(
            engine: ScoreEngine, batch: TreeBatch
        ) -> tuple[Gradients, tuple[torch.Tensor, T]]:
            loss, result = work(engine, batch)
            return engine._gradients(loss), (loss.detach(), result)

        def add_gradients(
            outcome: tuple[Gradients, tuple[torch.Tensor, T]],
        ) -> tuple[torch.Tensor, T]:
            gradients, result = outcome
            if gradients:
                self._add_gradients(gradients)
            return result

        def without_effect(engine: ScoreEngine, batch: TreeBatch) -> Gradients:
            loss, _ = work(engine, batch)
            return engine._gradients(loss * 0)

        batches = self._plan(examples, tokens)
        yield from self._shared_out(batches, work_and_gradients, add_gradients, without_effect)

    def _shared_out(
        self,
        batches: _Batches,
        work: Callable[[ScoreEngine, TreeBatch], S],
        keep: Callable[[S], T],
        without_effect: Callable[[ScoreEngine, TreeBatch], Any],
    ) -> Iterator[tuple[TreeBatch, T]]:
        """Yield each batch with the part of its result that `keep` returns; what it does not return
        stays in the rank that computed it. Ranks that hold parts of the base compute equally many
        batches, some of them `without_effect`."""
        if self.ranks.world == 1:
            for batch, result in self._computed(batches, work):
                yield batch, keep(result)
            return
        for part in batches.rounds(ROUND * self.ranks.world):
            order = [*part.alone, *part.parallel]
            owners = self.ranks.owners([batch.cells for batch in order])
            here = [index for index, owner in enumerate(owners) if owner == self.ranks.rank]
            if self.is_sharded:
                # They meet in every layer, and none waits there for one that is late.
                self.ranks.agree()
            results = [keep(result) for _, result in self._computed(part.only(here), work)]
            if self.is_sharded:
                smallest = min(order, key=lambda batch: batch.cells)
                most = max(owners.count(rank) for rank in range(self.ranks.world))
                for _ in range(most - len(here)):
                    without_effect(self, smallest)
            yield from zip(order, self.ranks.gather(results, owners, "results"), strict=True)

    def _computed(
        self, batches: _Batches, work: Callable[[ScoreEngine, TreeBatch], S]
    ) -> Iterator[tuple[TreeBatch, S]]:
        """Yield each batch with its result, computed in this process."""
        for batch in batches.alone:
            yield batch, work(self, batch)
        if batches.parallel:
            if batches.threads not in self._replicas:
                copies = [self._replica() for _ in range(batches.threads)]
                self._replicas[batches.threads] = Replicas(copies)
            results = self._replicas[batches.threads].map(batches.parallel, work)
            yield from zip(batches.parallel, results, strict=True)

    def shard_base(self) -> None:
        """Leave this rank its part of the base's layers, if there are several ranks. From now on
        all of them have to run the model together: `map_batches`, `backward` and `from_first` see
        to that."""
        if self.ranks.world == 1:
            return
        _ = self.reference_identity  # it needs the whole base
        self.drop_replicas()
        shard_layers(self.language_model, self.ranks, self.device)
        self.is_sharded = True

    def from_first(self, make: Callable[[], T], what: str) -> T:
        """Return what `make`, which runs the model, returns in the first rank. The others call it
        too if each of them holds a part of the base."""
        if not self.is_sharded:
            return self.ranks.from_first(make, what)
        self.ranks.agree()
        value = make()
        return self.ranks.from_first(lambda: value, what)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Compute everything in this rank inside the context, without the others."""
        ranks, self.ranks = self.ranks, Ranks()
        try:
            yield
        finally:
            self.ranks = ranks

    def _gradients(self, loss: torch.Tensor) -> Gradients:
        """Add the gradients of `loss` to the parameters'. A replica, beside which others compute,
        returns them instead, one for each of `trainable`."""
        import torch

        if self._is_replica:
            return torch.autograd.grad(loss, self.trainable, allow_unused=True)
        torch.autograd.backward(loss)
        return ()

    def _add_gradients(self, gradients: Gradients) -> None:
        for parameter, gradient in zip(self.trainable, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)

    def peak_rows(self, examples: Sequence[Example], tokens: int) -> int:
        """Return the most rows, padding included, that `map_batches` computes at one time."""
        batches = self._plan(examples, tokens)
        parallel = sorted((batch.cells for batch in batches.parallel), reverse=True)
        return max([sum(parallel[: batches.threads]), *(batch.cells for batch in batches.alone)])

    def threads(self, rows: Sequence[int], tokens: int) -> int:
        """Return how many micro-batches are computed side by side, for examples with these `rows`
        under a budget of `tokens`; 1 on a GPU."""
        return parallel_batches(rows, tokens) if self._can_run_replicas else 1

    def _plan(self, examples: Sequence[Example], tokens: int) -> _Batches:
        if not examples:
            return _Batches(1, [], [])
        rows = [example.rows(self.layout.kind) for example in examples]
        threads, ranks = self.threads(rows, tokens), self.ranks.world
        if threads == 1:
            share = even_token_share(rows, tokens, threads, ranks)
            return _Batches(1, plan(examples, share, self.layout), [])

        # what fits into one thread's share of the budget is computed side by side
        small = [index for index, count in enumerate(rows) if count * threads <= tokens]
        share = even_token_share([rows[index] for index in small], tokens, threads, ranks)
        parallel = self._plan_some(examples, small, share)
        if len(parallel) < 2:
            return _Batches(1, plan(examples, tokens, self.layout), [])
        large = sorted(set(range(len(rows))) - set(small))
        return _Batches(threads, self._plan_some(examples, large, tokens), parallel)

    def _plan_some(
        self, examples: Sequence[Example], members: Sequence[int], tokens: int
    ) -> list[TreeBatch]:
        """Plan batches of the `members` of `examples`, under their indices among all examples."""
        batches: list[TreeBatch] = []
        for batch in plan([examples[index] for index in members], tokens, self.layout):
            ids = tuple(members[number] for number in batch.example_ids)
            batches.append(replace(batch, example_ids=ids))
        return batches

    @property
    def _can_run_replicas(self) -> bool:
        """Whether another thread is a processor's, costs no more memory than its activations, and
        may run PEFT's forward beside others."""
        quantized = getattr(self.language_model.config, "quantization_config", None) is not None
        trains = not self._adapters and bool(self.trainable)
        needs_memory = quantized or trains or lora.heavy(self._adapters)
        return self.device.type == "cpu" and not needs_memory and not self.is_sharded

    def _replica(self) -> ScoreEngine:
        """Copy the engine for another thread: the same roles over the same parameters, in separate
        modules."""
        shared: dict[int, Any] = {id(self._fingerprints): self._fingerprints}
        for module in self.modules:
            for tensor in (*module.parameters(), *module.buffers()):
                shared[id(tensor)] = tensor
        shared |= {id(self._replicas): {}, id(self.ranks): self.ranks}
        replica = copy.deepcopy(self, shared)
        replica._is_replica = True
        return replica

    def _recompute(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a checkpointed layer's forward, and of its second one in the
        backward pass, which must run under the same adapter."""
        return nullcontext(), lora.switched(self.model, self._adapters, self._active_adapter)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def reference_identity(self) -> tuple[str, ...]:
        """What a reference log-probability depends on besides the tokens: base, adapter, dtype,
        quantization, layout and attention, temperature."""
        from thumbwheel.engine.load import base_fingerprint, fingerprint_of

        if not self._fingerprints:
            adapter = "no adapter"
            if self.role_model(Role.REF).adapter:
                adapter = fingerprint_of(enumerate(self.parameters_of(Role.REF)))
            self._fingerprints |= {"base": base_fingerprint(self.model), "adapter": adapter}
        config = self.language_model.config
        return (
            *self._fingerprints.values(),
            str(next(self.language_model.parameters()).dtype),
            str(getattr(config, "quantization_config", None)),
            f"{self.layout.kind}:{config._attn_implementation}",
            repr(self.temperature),
        )

    def score(
        self, batch: TreeBatch, role: Role, outputs: frozenset[str] = LOGP, grad: bool = False
    ) -> Scores:
        """Score `batch` under `role`; `grad` keeps the graph for a backward pass (entropy never has
        one).

        Only the scores in `outputs` are computed: "value" and "last" need no product with the
        vocabulary.
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
        self._check_outputs(role, role_model, outputs)
        with self._as_role(role, role_model), nullcontext() if grad else torch.no_grad():
            return self._score(batch.to(self.device), role_model.head, outputs)

    @property
    def knows_head(self) -> bool:
        """Whether distributions are computed here from hidden states, and not by the model."""
        return self._head is not None

    def base_states(self, batch: TreeBatch) -> torch.Tensor:
        """Return what the base predicts the targets from, for `divergence`: its last hidden states
        [M, H], or its logits [M, V] where the arithmetic of its head is not known here."""
        import torch

        with self._as_role(Role.REF, self.role_model(Role.REF)), torch.no_grad():
            return self._states(batch.to(self.device))

    def divergence(self, batch: TreeBatch, base_states: torch.Tensor) -> torch.Tensor:
        """Return the Kullback-Leibler divergence [M] in nats of the policy's distributions from the
        base's, at each target of `batch`, with a graph for a backward pass."""
        import torch

        reference = base_states.to(self.device)
        if self._head is not None:
            with self._as_role(Role.REF, self.role_model(Role.REF)), torch.no_grad():
                reference = self._head.logits(reference)
        with self._as_role(Role.POLICY, self.role_model(Role.POLICY)):
            states = self._states(batch.to(self.device))
            if self._head is None:
                return divergence(reference, states, self.temperature)
            return divergence_from(reference, self._head, states, self.temperature)

    def _states(self, batch: TreeBatch) -> torch.Tensor:
        """Return the last hidden states [M, H] that predict the targets, or the logits [M, V] where
        the arithmetic of the head is not known here."""
        if self._head is None:
            return model_logits(self.model, batch)
        return self._hidden(batch)[batch.pred_index]

    def _hidden(self, batch: TreeBatch) -> torch.Tensor:
        """Return the last hidden states [T, H] of all rows."""
        trunk = tree_hidden if batch.kind == "tree" else padded_hidden
        return trunk(self.language_model, batch)

    def _check_outputs(self, role: Role, role_model: RoleModel, outputs: frozenset[str]) -> None:
        scorer = is_scorer(self.model)
        of_vocabulary, of_head = outputs & OF_VOCABULARY, outputs - OF_VOCABULARY
        if of_vocabulary and scorer:
            raise ModelError(
                f"{sorted(of_vocabulary)} of a reward model",
                "it has no vocabulary behind it",
                'Ask it for "last"',
            )
        if of_head and role_model.head is None and not (scorer and outputs == {"last"}):
            raise ModelError(
                f"{sorted(of_head)} of the role {role.value!r}",
                "it has no head",
                "Give its RoleModel one",
            )

    def _score(self, batch: TreeBatch, head: Any, outputs: frozenset[str]) -> Scores:
        # an encoder that scores pairs of texts has its head inside
        if head is None and "last" in outputs:
            scores = classifier_scores(self.model, batch)
            return Scores(last=scores.to(wide(scores)))

        of_vocabulary, entropy = bool(outputs & OF_VOCABULARY), "entropy" in outputs
        results: dict[str, Any] = {}
        if of_vocabulary and self._head is None:
            results |= self._score_by_model(batch, entropy)
            of_vocabulary = False

        # everything else is computed from the last hidden states
        if of_vocabulary or outputs - OF_VOCABULARY:
            hidden = self._hidden(batch)
            if "value" in outputs:
                results["value"] = scalars(head, hidden[batch.pred_index])
            if "last" in outputs:
                results["last"] = scalars(head, hidden[batch.last_index])
            if of_vocabulary and self._head is not None:
                predictors = hidden[batch.pred_index]
                results["logp"], results["entropy"] = score_targets(
                    self._head,
                    predictors,
                    batch.target_ids,
                    self.temperature,
                    self.head_chunk,
                    entropy,
                )
        return Scores(**{name: results[name] for name in outputs})

    def _score_by_model(self, batch: TreeBatch, entropy: bool) -> dict[str, Any]:
        """Return log-probabilities and entropies from the logits of the model's own forward."""
        logits = model_logits(self.model, batch)
        logps = (logits.to(wide(logits)) / self.temperature).log_softmax(-1)
        return {
            "logp": logps.gather(1, batch.target_ids[:, None])[:, 0],
            "entropy": entropy_of(logps.detach()) if entropy else None,
        }

    @contextmanager
    def _as_role(self, role: Role, role_model: RoleModel) -> Iterator[None]:
        trains = any(parameter.requires_grad for parameter in self.model.parameters())
        if role is Role.REF and trains and not hasattr(self.model, "peft_config"):
            raise ModelError(
                "the reference model",
                "the model has no adapter and trains itself, so its start is gone",
                "Train with LoRA",
            )
        before, self._active_adapter = self._active_adapter, role_model.adapter
        try:
            with lora.switched(self.model, self._adapters, role_model.adapter):
                yield
        finally:
            self._active_adapter = before


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches that are computed one after the other, each by all threads (`alone`), and such of
    which `threads` are computed side by side (`parallel`)."""

    threads: int
    alone: list[TreeBatch]
    parallel: list[TreeBatch]

    def only(self, indices: Sequence[int]) -> _Batches:
        """Return the batches with these indices, those that are `alone` counted first."""
        n_alone = len(self.alone)
        return _Batches(
            self.threads,
            [self.alone[index] for index in indices if index < n_alone],
            [self.parallel[index - n_alone] for index in indices if index >= n_alone],
        )

    def rounds(self, size: int) -> Iterator[_Batches]:
        """Yield the batches in their order, `size` at a time."""
        count = len(self.alone) + len(self.parallel)
        for start in range(0, count, size):
            yield self.only(range(start, min(start + size, count)))


def scalars(head: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return [n] from `rows` [n, H] through nn.Linear(H, 1), in fp32 (fp64 in fp64 models)."""
    from torch.nn.functional import linear

    dtype = wide(rows)
    bias = None if head.bias is None else head.bias.to(dtype)
    return linear(rows.to(dtype), head.weight.to(dtype), bias)[:, 0]


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
