"""The merged copy of the policy: what the policy would answer, after every sync, and the policy
itself untouched."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from peft import LoraConfig, get_peft_model

from tests.models.token_families import PADDED, SHAPE, TREE, adapted
from thumbwheel.engine import merged
from thumbwheel.engine.merged import MergedCopy, obstacle
from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sampler import GroupSampler
from thumbwheel.engine.score import ScoreEngine

IDS = torch.tensor([[5, 9, 2, 17, 30, 8]])


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def change(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)


@pytest.mark.parametrize("family", TREE)
@pytest.mark.parametrize("large", [merged.LARGE, 1])
def test_the_copy_answers_like_the_policy_and_follows_it(family, large, monkeypatch):
    monkeypatch.setattr(merged, "LARGE", large)
    model = adapted(TREE[family], torch.float32)
    ScoreEngine(model)  # as in training: fused layers, another attention
    assert not obstacle(model)
    before = {
        name: (parameter.clone(), parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    copy = MergedCopy(model)
    torch.testing.assert_close(logits(copy.model), logits(model), atol=2e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.requires_grad == before[name][1]
    stale = logits(copy.model)
    change(model, 1)
    assert torch.equal(logits(copy.model), stale)
    copy.sync()
    torch.testing.assert_close(logits(copy.model), logits(model), atol=2e-5, rtol=1e-5)


def test_many_syncs_in_bfloat16_round_once():
    model = adapted(TREE["llama"], torch.bfloat16)
    start = [parameter.clone() for parameter in model.parameters()]
    copy = MergedCopy(model)
    first = logits(copy.model)
    for seed in range(20):
        change(model, seed)
        copy.sync()
    assert not torch.equal(logits(copy.model), first)
    with torch.no_grad():
        for parameter, was in zip(model.parameters(), start, strict=True):
            parameter.copy_(was)
    copy.sync()
    assert torch.equal(logits(copy.model), first)


def test_full_fine_tuning_is_followed_too(monkeypatch):
    monkeypatch.setattr(merged, "LARGE", 1)
    model = tf.AutoModelForCausalLM.from_config(TREE["qwen2"]()).float().eval()
    copy = MergedCopy(model)
    change(model, 1)
    copy.sync()
    torch.testing.assert_close(logits(copy.model), logits(model), atol=2e-5, rtol=1e-5)


def test_only_the_active_adapter_is_merged():
    model = adapted(TREE["llama"], torch.float32)
    alone = logits(model)
    model.add_adapter(
        "critic",
        LoraConfig(
            r=2, init_lora_weights=False, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    torch.testing.assert_close(logits(MergedCopy(model).model), alone, atol=2e-5, rtol=1e-5)


def test_what_cannot_be_merged_is_said_and_sampled_by_the_policy_itself(bpe, capsys):
    model = get_peft_model(
        tf.AutoModelForCausalLM.from_config(TREE["llama"]()),
        LoraConfig(r=2, use_dora=True, target_modules="all-linear"),
    )
    sampler = GroupSampler(model, bpe(), merge=True)
    assert sampler.exact
    assert "without a merged copy" in capsys.readouterr().err
    assert len(sampler.sample([[3, 4]], 2, Sampling(max_new_tokens=3))[0]) == 2


def test_a_merged_sampler_draws_what_the_policy_draws(bpe):
    model = adapted(TREE["qwen2"], torch.float64)
    sampling = Sampling(max_new_tokens=12, stop_ids=(7,), seed=5)
    prompts = [[3, 4, 5], [9] * 8]
    plain, quick = GroupSampler(model, bpe()), GroupSampler(model, bpe(), merge=True)
    assert (plain.exact, quick.exact) == (True, False)
    change(model, 3)
    expected = plain.sample(prompts, 3, sampling)
    assert quick.sample(prompts, 3, sampling) != expected
    quick.sync(1)
    groups = quick.sample(prompts, 3, sampling)
    assert [[rollout.ids for rollout in group] for group in groups] == [
        [rollout.ids for rollout in group] for group in expected
    ]


@pytest.mark.parametrize("family", [*TREE, *PADDED])
def test_every_architecture_samples_from_its_own_distribution(family, bpe):
    config = TREE[family] if family in TREE else PADDED[family][0]
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config()).eval()
    prompts = [[3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2], [20]]
    for prompt, group in zip(
        prompts,
        GroupSampler(model, bpe()).sample(prompts, 2, Sampling(max_new_tokens=12, seed=2)),
        strict=True,
    ):
        for rollout in group:
            with torch.no_grad():
                rows = model(
                    input_ids=torch.tensor([[*prompt, *rollout.ids]]), use_cache=False
                ).logits[0, len(prompt) - 1 : -1]
            expected = rows.log_softmax(-1).gather(1, torch.tensor(rollout.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(rollout.logps), expected, atol=2e-5, rtol=0)


def test_a_model_whose_cache_fails_the_trial_is_recomputed_and_says_so(bpe, capsys):
    class Forgetful(tf.LlamaForCausalLM):
        def forward(self, *args, past_key_values=None, **kwargs):
            return super().forward(*args, **kwargs)

    torch.manual_seed(0)
    model = Forgetful(tf.LlamaConfig(**SHAPE)).eval()
    plain = tf.LlamaForCausalLM(model.config).eval()
    plain.load_state_dict(model.state_dict())
    sampling = Sampling(max_new_tokens=6, seed=1)
    groups = GroupSampler(model, bpe()).sample([[3, 4], [5]], 2, sampling)
    assert "Decoding without a cache" in capsys.readouterr().err
    expected = GroupSampler(plain, bpe()).sample([[3, 4], [5]], 2, sampling)
    assert [[rollout.ids for rollout in group] for group in groups] == [
        [rollout.ids for rollout in group] for group in expected
    ]
