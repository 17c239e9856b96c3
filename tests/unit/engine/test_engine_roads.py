"""Head, fused LoRA and the choice of road, each against the plain computation."""

from __future__ import annotations

import copy
import math

import peft
import pytest
import torch
import transformers as tf

from tests.models.token_families import GROUPED, PAIRS, SHAPE, TREE, VOCAB, adapted, plain
from thumbwheel.core.errors import ModelError
from thumbwheel.engine import attention, head, lora
from thumbwheel.engine.head import Head, score_targets
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Layout, build

EVERYTHING = build(PAIRS, range(len(PAIRS)), Layout())


def _policy(model, **options):
    engine = ScoreEngine(model, **options)
    return engine, engine.score(
        build(PAIRS, range(len(PAIRS)), engine.layout), Role.POLICY, grad=True
    ).logp


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("scale", "softcap", "temperature"),
    [(1.0, None, 1.0), (0.3, 2.0, 1.7), (1.0, 5.0, 1.0), (2.0, None, 0.5)],
)
def test_the_frozen_head_is_the_plain_one(bias, scale, softcap, temperature, monkeypatch):
    monkeypatch.setitem(head.TILE_BYTES, "cpu", 256 * 8 * 16)  # several tiles
    torch.manual_seed(0)
    module = torch.nn.Linear(16, 1000, bias=bias).double().requires_grad_(False)
    module.weight.mul_(8)
    output_head, targets = Head(module, scale, softcap), torch.randint(0, 1000, (37,))
    left = torch.randn(37, 16, dtype=torch.float64, requires_grad=True)
    right = left.detach().clone().requires_grad_()
    logp, entropy = score_targets(output_head, left, targets, temperature, 10, True)
    logs = (output_head.finish(module(right)) / temperature).log_softmax(-1)
    torch.testing.assert_close(logp, logs.gather(1, targets[:, None])[:, 0], atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy, -(logs.exp() * logs).sum(-1), atol=1e-10, rtol=0)
    weights = torch.randn(37, dtype=torch.float64)
    (logp * weights).sum().backward()
    (logs.gather(1, targets[:, None])[:, 0] * weights).sum().backward()
    torch.testing.assert_close(left.grad, right.grad, atol=1e-12, rtol=1e-9)
    module.requires_grad_(True)
    again, spread = score_targets(output_head, left, targets, temperature, 10, True)
    torch.testing.assert_close(again, logp, atol=1e-12, rtol=0)
    torch.testing.assert_close(spread, entropy, atol=1e-10, rtol=0)
    (again * weights).sum().backward()
    assert module.weight.grad is not None


def test_logits_are_fp32_under_bf16():
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 5000, bias=False).bfloat16().requires_grad_(False)
    hidden, targets = (torch.randn(50, 64) * 20).bfloat16(), torch.randint(0, 5000, (50,))
    logp, _ = score_targets(Head(module), hidden, targets, 1.0, None, False)
    exact = (
        (hidden.double() @ module.weight.double().t())
        .log_softmax(-1)
        .gather(1, targets[:, None])[:, 0]
    )
    assert logp.dtype == torch.float32 and (logp - exact).abs().max() < 1e-4
    rounded = (hidden @ module.weight.t()).float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    assert (rounded - exact).abs().max() > 1e-2  # so that the bound above says something
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


@pytest.fixture
def products_into_fp32():
    """Give the processor the product that only CUDA has: bf16 factors, an fp32 result."""
    library = torch.library.Library("aten", "IMPL")

    def product(left, right, out_dtype, *, out):
        calls.append(left.dtype)
        return torch.mm(left.to(out_dtype), right.to(out_dtype), out=out)

    calls = []
    library.impl("mm.dtype_out", product, "CPU")
    yield calls
    library._destroy()


def test_bf16_products_summed_up_in_fp32_are_the_products_of_widened_weights(
    products_into_fp32, monkeypatch
):
    monkeypatch.setitem(head.TILE_BYTES, "cpu", 256 * 4 * 64)  # several tiles
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 1000, bias=True).bfloat16().requires_grad_(False)
    hidden, targets = (torch.randn(50, 64) * 20).bfloat16(), torch.randint(0, 1000, (50,))
    results = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(head, "WIDE_PRODUCTS", devices)
        rows = hidden.clone().requires_grad_()
        logp, entropy = score_targets(Head(module), rows, targets, 0.7, None, True)
        (logp * torch.linspace(-1, 1, 50)).sum().backward()
        results.append((logp.detach(), entropy, rows.grad))
    assert products_into_fp32 == [torch.bfloat16] * 4
    widened, narrow = results
    assert narrow[0].dtype == torch.float32
    torch.testing.assert_close(narrow, widened, atol=1e-4, rtol=1e-4)


def test_an_adapted_head_and_a_trained_head_take_the_recomputed_road():
    model = adapted(TREE["phi-head-bias"], targets=["q_proj", "lm_head"])
    engine, logp = _policy(copy.deepcopy(model))
    expected = plain(model, PAIRS, torch.float64)
    torch.testing.assert_close(logp, expected, atol=1e-9, rtol=0)
    logp.sum().backward()
    expected.sum().backward()
    parameters = dict(model.named_parameters())
    grads = {name: p.grad for name, p in engine.model.named_parameters() if p.grad is not None}
    assert any("lm_head" in name for name in grads)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, parameters[name].grad, atol=1e-9, rtol=1e-6)


class TwiceQwen(tf.Qwen2ForCausalLM):
    """A head that no configuration describes."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output


def test_an_unknown_head_is_left_to_the_model():
    model = twice_qwen()
    expected = plain(model, PAIRS, torch.float64)
    engine, logp = _policy(model)
    assert engine.layout.kind == "padded" and "one linear layer" in engine.layout.reason
    torch.testing.assert_close(logp, expected, atol=1e-9, rtol=0)
    assert logp.requires_grad


def twice_qwen():
    """A model under LoRA whose head is not known."""
    torch.manual_seed(0)
    inner = TwiceQwen(TREE["qwen2"]()).double().requires_grad_(False)
    lora_config = peft.LoraConfig(
        r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(inner, lora_config).double().eval()


def plain_divergence(model):
    """KL(base || policy) at every target of PAIRS, by the model's own forward row by row."""
    divergences = []
    for example in PAIRS:
        for branch in example.branches:
            ids = torch.tensor([[*example.prompt, *branch.ids]])
            predicting = [len(example.prompt) + offset - 1 for offset in branch.targets]
            with torch.no_grad(), model.disable_adapter():
                base = model(input_ids=ids).logits[0, predicting].log_softmax(-1)
            policy = model(input_ids=ids).logits[0, predicting].log_softmax(-1)
            divergences.append((base.exp() * (base - policy)).sum(-1))
    return torch.cat(divergences)


@pytest.mark.parametrize(
    "model_of",
    [
        lambda: adapted(TREE["gemma2-softcaps"]),
        lambda: adapted(TREE["phi-head-bias"], targets=["q_proj", "lm_head"]),
        twice_qwen,
    ],
    ids=["frozen head", "adapted head", "unknown head"],
)
def test_the_divergence_from_the_base_is_the_plain_one(model_of, monkeypatch):
    monkeypatch.setattr(head, "COMPARED_ROWS", 5)  # several parts
    model = model_of()
    engine = ScoreEngine(copy.deepcopy(model))
    batch = build(PAIRS, range(len(PAIRS)), engine.layout)
    divergence = engine.divergence(batch, engine.base_states(batch))
    expected = plain_divergence(model)
    assert expected.min() > 0
    torch.testing.assert_close(divergence, expected, atol=1e-6, rtol=0)
    divergence.sum().backward()
    expected.sum().backward()
    parameters = dict(model.named_parameters())
    for name, parameter in engine.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, parameters[name].grad, atol=1e-6, rtol=1e-4)


class LeakyQwen(tf.Qwen2ForCausalLM):
    """Mixes neighbouring rows outside the attention; nothing in its configuration says so."""

    def __init__(self, config):
        super().__init__(config)
        self.model.layers[0].mlp.register_forward_hook(
            lambda module, args, output: output + output.roll(1, dims=1) * 0.1
        )


def test_a_model_that_leaks_between_rows_is_found_out():
    torch.manual_seed(0)
    engine = ScoreEngine(LeakyQwen(TREE["qwen2"]()).requires_grad_(False))
    assert engine.layout.kind == "padded" and "trial tree differed" in engine.layout.reason
    assert engine.language_model.config._attn_implementation != attention.NAME
    with pytest.raises(ModelError, match="trial tree"):
        ScoreEngine(engine.model, layout=Layout("tree"))


def test_a_window_that_the_attention_is_not_told_is_found_out(monkeypatch):
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

    model = adapted(TREE["qwen2-sliding"])
    for module in model.modules():
        if isinstance(module, Qwen2Attention):
            module.sliding_window = None
    engine = ScoreEngine(model)
    assert engine.layout.kind == "padded" and "sliding window" in engine.layout.reason


def test_prompt_learning_takes_padded_rows_and_is_right():
    torch.manual_seed(0)
    inner = tf.AutoModelForCausalLM.from_config(TREE["llama"]()).double()
    model = (
        peft.get_peft_model(
            inner, peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
        )
        .double()
        .eval()
    )
    engine, logp = _policy(model)
    assert engine.layout.kind == "padded" and "virtual tokens" in engine.layout.reason
    example = PAIRS[0]
    ids = torch.tensor([example.prompt + example.branches[0].ids])
    logs = model(input_ids=ids).logits[0, 3:].log_softmax(-1)
    expected = torch.stack(
        [
            logs[len(example.prompt) + offset - 1, token]
            for offset, token in enumerate(example.branches[0].ids)
        ]
    )
    torch.testing.assert_close(logp[:6], expected, atol=1e-9, rtol=0)
    reference = engine.score(build(PAIRS, range(3), engine.layout), Role.REF).logp
    base = inner(input_ids=ids).logits[0].log_softmax(-1)
    wanted = torch.stack(
        [
            base[len(example.prompt) + offset - 1, token]
            for offset, token in enumerate(example.branches[0].ids)
        ]
    )
    torch.testing.assert_close(reference[:6], wanted, atol=1e-9, rtol=0)


def test_the_installed_attention_still_generates():
    for family in ("qwen2", "gemma2-softcaps"):
        model = adapted(TREE[family])
        ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
        before = model.generate(
            input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        engine = ScoreEngine(model)
        assert engine.language_model.config._attn_implementation == attention.NAME
        after = model.generate(
            input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert torch.equal(before, after)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_fused_lora_is_pefts_arithmetic(family):
    model = adapted(TREE[family])
    left, right = copy.deepcopy(model), copy.deepcopy(model)
    slow, expected = _policy(left, fused_lora=False)
    fast, logp = _policy(right)
    assert (slow.fused_layers, fast.fused_layers) == (0, 14 if family == "qwen2" else 8)
    torch.testing.assert_close(logp, expected, atol=1e-11, rtol=0)
    expected.sum().backward()
    logp.sum().backward()
    for (name, p), (_, q) in zip(left.named_parameters(), right.named_parameters(), strict=True):
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, atol=1e-11, rtol=1e-8, msg=name)


@pytest.mark.parametrize("state", ["merged", "two adapters", "dora", "dropout back"])
def test_what_the_fused_forward_does_not_cover_stays_with_peft(state):
    torch.manual_seed(0)
    options = {"use_dora": True} if state == "dora" else {}
    inner = tf.AutoModelForCausalLM.from_config(TREE["qwen2"]()).double()
    config = peft.LoraConfig(
        r=2,
        target_modules="all-linear",
        init_lora_weights=False,
        lora_dropout=0.5,
        task_type="CAUSAL_LM",
        **options,
    )
    model = peft.get_peft_model(inner, config).double()
    if state == "two adapters":
        model.add_adapter("second", config)
        model.double().base_model.set_adapter(["default", "second"])
    ids = torch.tensor([[4, 5, 6, 7]])
    expected = model.eval()(ids).logits
    lora.install(model)
    if state == "merged":
        model.merge_adapter()
    if state == "dropout back":
        layer = next(
            module for module in model.modules() if type(module) is peft.tuners.lora.Linear
        )
        assert not lora._fusible(layer, "default")
    torch.testing.assert_close(model(ids).logits, expected, atol=1e-10, rtol=0)


def test_a_deep_copy_follows_its_own_adapter():
    model = adapted(TREE["qwen2"])
    ScoreEngine(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    _, logp = _policy(twin)
    with torch.no_grad(), model.disable_adapter():
        torch.testing.assert_close(logp, plain(model, PAIRS, torch.float64), atol=1e-9, rtol=0)


def test_a_model_that_trains_itself_has_no_reference():
    engine = ScoreEngine(tf.AutoModelForCausalLM.from_config(TREE["qwen2"]()))
    with pytest.raises(ModelError, match="LoRA"):
        engine.score(EVERYTHING, Role.REF)
    engine.model.requires_grad_(False)
    assert torch.equal(
        engine.score(EVERYTHING, Role.REF).logp, engine.score(EVERYTHING, Role.POLICY).logp
    )


def test_dropout_is_off_and_wrong_batches_are_refused():
    config = tf.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.5,
        attn_pdrop=0.5,
        embd_pdrop=0.5,
    )
    engine = ScoreEngine(tf.AutoModelForCausalLM.from_config(config).requires_grad_(False))
    engine.model.train()
    assert torch.equal(
        engine.score(EVERYTHING, Role.POLICY).logp, engine.score(EVERYTHING, Role.POLICY).logp
    )
    with pytest.raises(ValueError, match="padded batch"):
        engine.score(build(PAIRS, [0], Layout("padded")), Role.POLICY)
    with pytest.raises(ValueError, match="speed"):
        engine.score(EVERYTHING, Role.POLICY, frozenset({"speed"}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_explicit_and_flash_attention_agree_and_so_do_their_gradients(dtype):
    torch.manual_seed(0)
    inputs = [
        torch.randn(1, heads, length, 16, dtype=dtype, requires_grad=True)
        for heads, length in ((4, 9), (2, 14), (2, 14))
    ]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    bias = attention.causal_bias(5, 9, 6, inputs[0])
    flash = attention.attend_run(*exact, bias.double(), 0.3, None)
    explicit = attention.explicit_attention(*inputs, bias, 0.3)
    atol = 1e-12 if dtype == torch.float64 else 3e-2
    torch.testing.assert_close(explicit.double(), flash, atol=atol, rtol=0)
    slope = torch.randn(flash.shape, dtype=dtype)
    flash.backward(slope.double())
    explicit.backward(slope)
    for tensor, reference in zip(inputs, exact, strict=True):
        torch.testing.assert_close(tensor.grad.double(), reference.grad, atol=2 * atol, rtol=atol)
    assert bias[0].tolist() == [
        0.0 if 0 <= 5 - position < 6 else -math.inf for position in range(14)
    ]


def test_a_forward_pass_keeps_no_attention_shares():
    q, k, v = (
        torch.randn(1, heads, 9, 16, dtype=torch.bfloat16, requires_grad=True)
        for heads in (4, 2, 2)
    )
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda part: shapes.append(part.shape) or part, lambda part: part
    ):
        attention.explicit_attention(q, k, v, None, None)
    assert shapes and not any(shape[-1] == 9 and shape.numel() >= 4 * 9 * 9 for shape in shapes), (
        shapes
    )


def test_long_bf16_rows_leave_the_explicit_road(monkeypatch):
    model = adapted(TREE["qwen2"], torch.float32)
    for parameter in model.parameters():
        parameter.data = parameter.data if parameter.requires_grad else parameter.data.bfloat16()
    _, near = _policy(copy.deepcopy(model))
    monkeypatch.setattr(attention, "EXPLICIT_MAX_SCORES", 0)
    _, flash = _policy(model)
    assert 0 < (near - flash).abs().max() < 0.1


def _by_itself(model, prompt, branch):
    logs = (
        model(input_ids=torch.tensor([[*prompt, *branch.ids]]))
        .logits[0, len(prompt) - 1 : -1]
        .log_softmax(-1)
    )
    logp = logs.gather(1, torch.tensor(branch.ids)[:, None])[:, 0]
    return logp[branch.targets]


def test_a_moe_router_and_mixed_windows_pass_the_trial():
    for config in (
        tf.MixtralConfig(**SHAPE, **GROUPED, num_local_experts=4),
        tf.Cohere2Config(**SHAPE, **GROUPED, sliding_window=4),
    ):
        model = tf.AutoModelForCausalLM.from_config(config).requires_grad_(False)
        engine = ScoreEngine(model)
        assert engine.layout.kind == "tree"
        for example in PAIRS:
            with torch.no_grad():
                logp = engine.score(build([example], [0], engine.layout), Role.POLICY).logp
                alone = torch.cat(
                    [_by_itself(model, example.prompt, branch) for branch in example.branches]
                )
            assert (logp - alone).abs().max() < 1e-4
