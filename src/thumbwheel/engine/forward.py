"""Running a transformers model on a TreeBatch: as a tree, as padded rows, or through the whole
forward with the model's own head.

Here is where the trunk of a model is, and how a batch becomes its arguments. Which of the three a
model may take is decided in capability.py; the fused head is head.py's, roles are score.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thumbwheel.engine.attention import TreeMask

if TYPE_CHECKING:
    import torch

    from thumbwheel.engine.tree import TreeBatch


def language_model(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_scorer(model: Any) -> bool:
    """Return whether the model is a scorer: the sequence-classification form, without a vocabulary
    after its trunk."""
    return type(language_model(model)).__name__.endswith("ForSequenceClassification")


def is_encoder(config: Any) -> bool:
    """Return whether the model of `config` reads a row in both directions (BERT, DeBERTa, MiniLM)
    instead of continuing it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    decodes = getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False)
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not decodes


def trunk_of(model: Any) -> Any:
    """Return the network below the head, or the model itself if it names none."""
    return getattr(model, model.base_model_prefix, model) if model.base_model_prefix else model


def tree_hidden(model: Any, batch: TreeBatch, mask: TreeMask | None = None) -> torch.Tensor:
    """Return [T, H] last hidden states, correct in the rows that predict a target or end a branch
    (see last_layer_skip.py).

    The 4-D mask only tells transformers to build none of its own.
    """
    mask = mask or TreeMask.of(batch.runs, batch.n_rows, batch.read_rows)
    hidden: torch.Tensor = trunk_of(model)(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        attention_mask=(batch.input_ids[:1] >= 0).view(1, 1, 1, 1),
        use_cache=False,
        tree=mask,
    )[0]
    return hidden[0]


def padded_arguments(batch: TreeBatch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return input_ids and attention_mask [rows, longest], padded on the right, and the cell [T] of
    each flat token."""
    import torch

    longest = max(batch.lengths)
    lengths = torch.tensor(batch.lengths, device=batch.input_ids.device)
    mask = torch.arange(longest, device=lengths.device)[None] < lengths[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long, device=lengths.device)
    ids[mask] = batch.input_ids
    return {"input_ids": ids, "attention_mask": mask.long()}, mask.flatten().nonzero()[:, 0]


def padded_hidden(model: Any, batch: TreeBatch) -> torch.Tensor:
    """Return [T, H] last hidden states of the real tokens, in the flat order of the batch."""
    arguments, cells = padded_arguments(batch)
    hidden: torch.Tensor = trunk_of(model)(**arguments, use_cache=False)[0]
    return hidden.flatten(0, 1)[cells]


def classifier_scores(model: Any, batch: TreeBatch) -> torch.Tensor:
    """Return [n_branches] scores by the whole forward of an encoder, in its pair form: the prompt
    is the first text, the answer the second."""
    import torch

    arguments, cells = padded_arguments(batch)
    if getattr(language_model(model).config, "type_vocab_size", 0) > 1:
        # token type 0 for the prompt, 1 for the answer
        prompt_lengths: list[int] = []
        for example in batch.examples:
            prompt_lengths += [len(example.prompt)] * len(example.branches)
        answer_starts = torch.tensor(prompt_lengths, device=cells.device).repeat_interleave(
            torch.tensor(batch.lengths, device=cells.device)
        )
        types = torch.zeros_like(arguments["input_ids"])
        types.view(-1)[cells] = (batch.position_ids >= answer_starts).long()
        arguments["token_type_ids"] = types
    logits: torch.Tensor = model(**arguments).logits
    return logits[:, 0]


def model_logits(model: Any, batch: TreeBatch) -> torch.Tensor:
    """Return [M, V] logits from the model's whole forward on padded rows; virtual tokens in front
    (prompt tuning) are skipped."""
    arguments, cells = padded_arguments(batch)
    longest = arguments["input_ids"].shape[1]
    logits: torch.Tensor = model(**arguments, use_cache=False).logits[:, -longest:]
    return logits.flatten(0, 1)[cells[batch.pred_index]]
