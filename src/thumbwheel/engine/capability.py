"""How a model can be fed: as a tree where a trial proves that branches do not see each other,
otherwise as padded rows, with the reason.

First the configuration is read for what is known not to work in a tree. Then the model itself is
tried: a tiny tree is run, its hidden states are compared with those of the plain sequences, and
every layer has to have called our attention with the sliding window of the configuration. A second
trial decides whether the head that head.py knows is the one that the model has. To allow an
architecture, make it pass the trial; nothing is listed by name.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thumbwheel.engine import attention, last_layer_skip
from thumbwheel.engine.attention import TreeMask
from thumbwheel.engine.forward import (
    is_encoder,
    is_scorer,
    language_model,
    model_logits,
    padded_hidden,
    tree_hidden,
    trunk_of,
)
from thumbwheel.engine.head import Head
from thumbwheel.engine.tree import Branch, Example, Layout, build

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from thumbwheel.engine.tree import TreeBatch

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
FAILED = (
    TypeError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    KeyError,
    AttributeError,
    IndexError,
)
"""What a model may raise when it is run in a way that its authors did not foresee."""
STATEFUL = ("ssm", "mamba", "rwkv", "xlstm", "conv_kernel", "linear_attention", "state_size")


def choose(model: Any) -> tuple[Layout, Head | None]:
    """Return the layout of `model`, and its head if head.py computes the same, else None;
    `tree_attention` stays installed for a tree."""
    lm = language_model(model)
    reason = known_reason(model)
    with _evaluation_mode(model):
        if not reason:
            reason = _trial_tree(lm)
        head = None if _prompt_learning(model) else _trial_head(lm)
    if head is None and not reason and not is_scorer(lm):
        reason = "its logits come from more than one linear layer that is known here"
    layout = Layout("padded", reason) if reason else Layout("tree")
    return layout, head


def known_reason(model: Any) -> str:
    """Return why the configuration alone rules a tree out, or an empty text."""
    lm = language_model(model)
    config = lm.config.get_text_config()
    layer_kinds = set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS
    ropes = getattr(config, "rope_parameters", None) or {}
    alibi = bool(getattr(config, "alibi", False)) or config.model_type in ("bloom", "mpt")
    stateful = any(word in config.model_type for word in STATEFUL)
    stateful = stateful or any(name.startswith(STATEFUL) for name in config.to_dict())
    multimodal = hasattr(lm.config, "vision_config") or hasattr(lm.config, "audio_config")
    replaceable = getattr(lm, "_supports_attention_backend", False)
    checks = {
        "an encoder reads every row in both directions": is_encoder(config),
        "prompt-learning adapters put virtual tokens before every row": _prompt_learning(model),
        "ALiBi adds a bias by distance in the row": alibi,
        f"layers of kind {', '.join(sorted(layer_kinds))} carry state along the row": bool(
            layer_kinds
        ),
        "a state-space or recurrent layer carries state along the row": stateful,
        "attention sinks are no part of the tree's softmax": _has_sinks(lm),
        "multimodal rotary positions (MRoPE)": "mrope_section" in ropes,
        "a vision or audio part": multimodal,
        "its attention cannot be replaced in this version of transformers": not replaceable,
    }
    return next((reason for reason, applies in checks.items() if applies), "")


def _prompt_learning(model: Any) -> bool:
    adapters = getattr(model, "peft_config", {}).values()
    return any(getattr(config, "is_prompt_learning", False) for config in adapters)


def _has_sinks(model: Any) -> bool:
    sinks = ("sinks", "sink", "attention_sink_bias")
    return any(name.rsplit(".", 1)[-1] in sinks for name, _ in model.named_parameters())


def _trial_example(model: Any) -> Example:
    """Return a prompt of six and branches of four and three tokens that are not special tokens in
    most vocabularies."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = tuple((7 + 31 * index) % vocabulary for index in range(13))
    return Example(ids[:6], (Branch(ids[6:10]), Branch(ids[10:13])), "trial")


def _trial_tree(model: Any) -> str:
    import torch

    attention_before = model.config._attn_implementation
    example = _trial_example(model)
    tree, plain = build([example], [0], Layout("tree")), build([example], [0], Layout("padded"))
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            expected = padded_hidden(model, plain.to(device))[plain.pred_index]
            model.set_attn_implementation(attention.register())
            mask = TreeMask.of(tree.runs, tree.n_rows)
            hidden = tree_hidden(model, tree.to(device), mask)[tree.pred_index]
    except FAILED as error:
        reason = f"a trial of the tree failed ({type(error).__name__}: {str(error)[:120]})"
    else:
        reason = _leak(model, mask, hidden, expected)
    if reason:
        model.set_attn_implementation(attention_before)
    else:
        _trial_last_layer_skip(model, tree.to(device), hidden)
    return reason


def _trial_last_layer_skip(model: Any, tree: TreeBatch, expected: torch.Tensor) -> None:
    """Skip rows of the last layer from now on, if that gives the hidden states `expected`."""
    import torch

    undo = last_layer_skip.install(model)
    if undo is None:
        return
    try:
        with torch.no_grad():
            gap = _relative_gap(tree_hidden(model, tree)[tree.pred_index], expected)
    except FAILED:
        gap = float("inf")
    if not gap <= tolerance(expected):
        undo()


def _leak(model: Any, mask: TreeMask, hidden: torch.Tensor, expected: torch.Tensor) -> str:
    """Describe how a trial tree went wrong; empty if it did not."""
    windows = expected_windows(model.config.get_text_config())
    if mask.calls != len(windows):
        return (
            f"{mask.calls} of its {len(windows)} layers came through an attention that can be "
            "replaced"
        )
    if mask.windows != windows:
        return "its sliding window is not told to the attention"
    gap = _relative_gap(hidden, expected)
    if not gap <= tolerance(expected):
        return f"a trial tree differed from the plain computation by {gap:.1e} of the largest value"
    return ""


def _relative_gap(values: torch.Tensor, expected: torch.Tensor) -> float:
    largest = max(float(expected.abs().max()), 1e-6)
    return float((values - expected).abs().max()) / largest


def tolerance(hidden: Any) -> float:
    """Return the largest difference to the plain computation, relative to the largest value, that
    is rounding and not leakage."""
    return {8: 1e-5, 4: 1e-4, 2: 6e-2}[hidden.dtype.itemsize]


def expected_windows(config: Any) -> list[int | None]:
    """Return the sliding window of each layer by the configuration; None for full attention."""
    layers = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        kinds = ["sliding_attention" if window else "full_attention"] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _trial_head(model: Any) -> Head | None:
    """Return the known head if it gives the model's own logits on a trial, else None; nothing else
    proves a scale, a cap or a bias."""
    import torch

    head = Head.of(model)
    if head is None or trunk_of(model) is model:
        return None
    device = next(model.parameters()).device
    batch = build([_trial_example(model)], [0], Layout("padded")).to(device)
    with torch.no_grad():
        expected = model_logits(model, batch).double()
        hidden = padded_hidden(model, batch)[batch.pred_index]
        logits = head.logits(hidden).double()
    return head if _relative_gap(logits, expected) <= tolerance(hidden) else None


@contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
