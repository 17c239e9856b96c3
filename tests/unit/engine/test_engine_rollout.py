"""Greedy decoding: batches change nothing, rows stop where they should, and it is what Hugging Face's greedy search gives."""

import random

import pytest

from thumbwheel.engine.rollout import greedy
from tiny_models import tiny_base

FAMILIES = {
    "qwen2": {},
    "gpt2": {},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": 8},
}


def load(folder, family, **settings):
    import torch

    from thumbwheel.engine.load import load_base

    torch.set_num_threads(1)
    return load_base(str(tiny_base(folder / family, family, **settings)), "float32")


def some_prompts(count, seed=0, longest=40):
    chance = random.Random(seed)
    return [[chance.randrange(10, 250) for _ in range(chance.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_batches_equal_single_rows_and_hugging_face(tmp_path, family):
    import torch

    model, tokenizer = load(tmp_path, family, **FAMILIES[family])
    prompts = some_prompts(13)
    stops = {tokenizer.eos_token_id, 17, 41, 99}
    batched = greedy(model, prompts, stops, 20, 5)
    assert batched == greedy(model, prompts, stops, 20, 1)
    assert batched == greedy(model, prompts, stops, 20, 13)
    for prompt, found in zip(prompts, batched, strict=True):
        with torch.no_grad():
            out = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False, max_new_tokens=20,
                eos_token_id=sorted(stops), pad_token_id=0,
            )[0, len(prompt) :].tolist()  # fmt: skip
        ended = out[-1] in stops
        assert found.ended == ended
        assert list(found.ids) == (out[:-1] if ended else out)
        assert found.length == len(out)


def test_rows_end_at_different_steps_and_keep_their_own_text(tmp_path):
    model, _ = load(tmp_path, "qwen2")
    prompts = some_prompts(40, seed=2)
    free = greedy(model, prompts, set(), 12, 8)
    assert all(not one.ended and len(one.ids) == 12 for one in free)
    stops = {token for one in free for token in one.ids[3:9:3]}
    cut = greedy(model, prompts, stops, 12, 8)
    assert len({one.length for one in cut}) > 3
    for whole, part in zip(free, cut, strict=True):
        first = next((at for at, token in enumerate(whole.ids) if token in stops), None)
        assert part.ids == whole.ids[:first]
        assert part.ended == (first is not None)


def test_equal_prompts_are_answered_once_and_order_is_kept(tmp_path):
    model, _ = load(tmp_path, "qwen2")
    one, other = some_prompts(2)
    seen = []
    found = greedy(model, [one, other, one], set(), 5, 4, lambda steps=1, note="": seen.append(steps))
    assert found[0] == found[2] != found[1]
    assert sum(seen) == 2


def test_a_prompt_that_fills_the_context_has_an_empty_answer(tmp_path):
    model, _ = load(tmp_path, "gpt2", n_positions=32)
    found = greedy(model, [*some_prompts(1, longest=1), [11] * 30, [11] * 32], set(), 10, 1)
    assert [one.length for one in found] == [10, 2, 0]
    assert not found[2].ended


def test_the_models_own_generation_settings_and_mode_are_left_alone(tmp_path):
    model, _ = load(tmp_path, "qwen2")
    prompts = some_prompts(3)
    plain = greedy(model, prompts, set(), 8, 4)
    model.generation_config.update(do_sample=True, temperature=9.0, repetition_penalty=5.0, max_length=3)
    model.train()
    assert greedy(model, prompts, set(), 8, 4) == plain
    assert model.training
