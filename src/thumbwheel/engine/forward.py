"""Running a transformers causal LM on a TreeBatch: as a tree, as padded rows, or wholly through its own head.

Lives here: where the trunk of a model is and how a batch becomes its arguments. Does not live here: which road a model may
take (capability.py), the fused head (head.py), roles (score.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.engine.attention import TreeMask

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.tree import TreeBatch


def language_model(model: Any) -> Any:
    """The transformers model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def trunk_of(model: Any) -> Any:
    """The network below the head; the model itself where it names none."""
    return getattr(model, model.base_model_prefix, model) if model.base_model_prefix else model


def tree_hidden(model: Any, batch: TreeBatch, mask: TreeMask | None = None) -> torch.Tensor:
    """[T, H] last hidden states. The 4-D mask only tells transformers to build none of its own."""
    mask = mask or TreeMask.of(batch.runs, batch.n_rows)
    found = trunk_of(model)(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        attention_mask=(batch.input_ids[:1] >= 0).view(1, 1, 1, 1),
        use_cache=False,
        tree=mask,
    )
    hidden: torch.Tensor = found[0]
    return hidden[0]


def padded_arguments(batch: TreeBatch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """input_ids and attention_mask [rows, longest], padded on the right, and the cell [T] of each flat token."""
    import torch

    longest = max(batch.lengths)
    lengths = torch.tensor(batch.lengths, device=batch.input_ids.device)
    mask = torch.arange(longest, device=lengths.device)[None] < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long, device=lengths.device)
    ids[mask] = batch.input_ids
    return {"input_ids": ids, "attention_mask": mask.long()}, mask.flatten().nonzero()[:, 0]


def padded_hidden(model: Any, batch: TreeBatch) -> torch.Tensor:
    """[T, H] last hidden states of the real tokens, in the flat order of the batch."""
    arguments, cells = padded_arguments(batch)
    hidden: torch.Tensor = trunk_of(model)(**arguments, use_cache=False)[0]
    return hidden.flatten(0, 1)[cells]


def own_logits(model: Any, batch: TreeBatch) -> torch.Tensor:
    """[M, V] logits from the model's whole forward on padded rows; virtual tokens in front (prompt tuning) are skipped."""
    arguments, cells = padded_arguments(batch)
    logits: torch.Tensor = model(**arguments, use_cache=False).logits[:, -arguments["input_ids"].shape[1] :]
    return logits.flatten(0, 1)[cells[batch.pred_index]]
