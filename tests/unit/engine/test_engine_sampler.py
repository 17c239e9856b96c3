"""Sampling in this process: batches change nothing, answers end where they should, greedy is
Hugging Face's, chance is the model's."""

from __future__ import annotations

import random

import pytest
import torch

from tests.models.tiny_models import tiny_base
from thumbwheel.core.errors import ModelError
from thumbwheel.engine import decode_trial, fixed_decode
from thumbwheel.engine import sampler as sampler_module
from thumbwheel.engine.decode import Cached
from thumbwheel.engine.fixed_decode import Fixed
from thumbwheel.engine.rollout import Rollout, Sampling
from thumbwheel.engine.sampler import GroupSampler

FAMILIES = {
    "qwen2": {},
    "gpt2": {},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "mistral": {"sliding_window": 8},
    "gpt_neo": {"window_size": 16, "attention_types": [[["global", "local"], 1]]},
}


def load(folder, family="qwen2", **settings):
    from thumbwheel.engine.load import load_base

    return load_base(str(tiny_base(folder / family, family, **settings)), "float32")


def some_prompts(count, seed=0, longest=40):
    chance = random.Random(seed)
    return [
        [chance.randrange(10, 250) for _ in range(chance.randint(1, longest))] for _ in range(count)
    ]


def greedy(model, tokenizer, prompts, stops, limit, rows, advance=None) -> list[Rollout]:
    sampling = Sampling(max_new_tokens=limit, temperature=0.0, stop_ids=tuple(stops))
    return [
        rollout
        for (rollout,) in GroupSampler(model, tokenizer, rows=rows).sample(
            prompts, 1, sampling, advance=advance
        )
    ]


@pytest.mark.parametrize("opening", [0, 30])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_padded_batches_equal_single_rows_and_hugging_face(tmp_path, family, opening):
    model, tokenizer = load(tmp_path, family, **FAMILIES[family])
    prompts = [list(range(10, 10 + opening)) + prompt for prompt in some_prompts(13)]
    stops = {tokenizer.eos_token_id, 17, 41, 99}
    batched = greedy(model, tokenizer, prompts, stops, 20, 5)
    assert batched == greedy(model, tokenizer, prompts, stops, 20, 1)
    assert batched == greedy(model, tokenizer, prompts, stops, 20, 13)
    for prompt, rollout in zip(prompts, batched, strict=True):
        with torch.no_grad():
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=20,
                eos_token_id=sorted(stops),
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        assert list(rollout.ids) == out
        ended = out[-1] in stops
        assert rollout.finish == ("stop" if ended else "length")
        assert rollout.text == tokenizer.decode(
            out[:-1] if ended else out, skip_special_tokens=True
        )


@pytest.mark.parametrize(
    ("family", "expected"), [("qwen2", 30 + 3 * 5), ("gpt_neo", 30 + 3 * 5), ("mistral", 3 * 35)]
)
def test_what_all_prompts_open_with_is_computed_once_unless_a_window_would_count_the_padding(
    tmp_path, family, expected
):
    from thumbwheel.engine.forward import language_model

    model, tokenizer = load(tmp_path, family, **FAMILIES[family])
    prompts = [[*range(10, 40), *ends] for ends in ([41], [42, 43, 44, 45, 46], [47, 48])]
    sampler = GroupSampler(model, tokenizer)
    sampler.sample(prompts, 1, Sampling(max_new_tokens=1, temperature=0.0))
    seen = []
    language_model(model).register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    sampler.sample(prompts, 1, Sampling(max_new_tokens=1, temperature=0.0))
    assert sum(seen) == expected


def test_rows_end_at_different_steps_and_keep_their_own_text(tmp_path):
    model, tokenizer = load(tmp_path)
    prompts = some_prompts(40, seed=2)
    free = greedy(model, tokenizer, prompts, set(), 12, 8)
    assert all(rollout.finish == "length" and len(rollout.ids) == 12 for rollout in free)
    stops = {token for rollout in free for token in rollout.ids[3:9:3]}
    cut = greedy(model, tokenizer, prompts, stops, 12, 8)
    assert len({len(rollout.ids) for rollout in cut}) > 3
    for whole, part in zip(free, cut, strict=True):
        first = next((index + 1 for index, token in enumerate(whole.ids) if token in stops), None)
        assert part.ids == whole.ids[:first]
        assert part.finish == ("length" if first is None else "stop")


def test_equal_prompts_are_answered_once_by_greedy_and_order_is_kept(tmp_path):
    model, tokenizer = load(tmp_path)
    prompt, other = some_prompts(2)
    seen = []
    rollouts = greedy(
        model,
        tokenizer,
        [prompt, other, prompt],
        set(),
        5,
        4,
        lambda steps=1, note="": seen.append(steps),
    )
    assert rollouts[0] == rollouts[2] != rollouts[1]
    assert rollouts[0].logps is None
    assert sum(seen) == 2


def test_every_prompt_gets_what_the_context_has_room_for_whatever_its_batch(tmp_path):
    model, tokenizer = load(tmp_path, "gpt2", n_positions=32)
    prompts = [[12], [11] * 30, [11] * 32, [11] * 40]
    for rows in (1, 8):
        rollouts = greedy(model, tokenizer, prompts, set(), 10, rows)
        assert [len(rollout.ids) for rollout in rollouts] == [10, 2, 0, 0]
        assert (rollouts[2].finish, rollouts[2].text) == ("length", "")


def test_a_row_that_has_ended_at_the_end_of_the_context_stops_no_other(tmp_path):
    model, tokenizer = load(tmp_path, "gpt2", n_positions=32)
    rollouts = greedy(model, tokenizer, [[11] * 30, *([[12]] * 8)], set(), 10, 16)
    assert [len(rollout.ids) for rollout in rollouts] == [2, *[10] * 8]


def test_soft_capping_keeps_its_cache_once_the_engine_is_there(tmp_path):
    from thumbwheel.engine.score import ScoreEngine

    soft = {
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    }
    model, tokenizer = load(tmp_path, "gemma2", **soft)
    prompts = [[11] * 9, [12, 13]]
    plain = greedy(model, tokenizer, prompts, set(), 8, 4)
    ScoreEngine(model)
    assert decode_trial.choose(model.eval())[1] == ""
    assert [rollout.ids for rollout in greedy(model, tokenizer, prompts, set(), 8, 4)] == [
        rollout.ids for rollout in plain
    ]


def test_the_models_own_generation_settings_and_mode_are_left_alone(tmp_path):
    model, tokenizer = load(tmp_path)
    prompts = some_prompts(3)
    plain = greedy(model, tokenizer, prompts, set(), 8, 4)
    model.generation_config.update(
        do_sample=True, temperature=9.0, repetition_penalty=5.0, max_length=3
    )
    model.train()
    assert greedy(model, tokenizer, prompts, set(), 8, 4) == plain
    assert model.training


def plain_logps(model, prompt, ids, temperature):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return (
        (logits.double() / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_tokens_keep_their_log_probability(tmp_path, family):
    model, tokenizer = load(tmp_path, family, **FAMILIES[family])
    prompts = some_prompts(4, seed=1)
    sampling = Sampling(max_new_tokens=20, temperature=0.7, stop_ids=(17, 41, 99, 120, 130), seed=3)
    for prompt, group in zip(
        prompts, GroupSampler(model, tokenizer).sample(prompts, 3, sampling), strict=True
    ):
        for rollout in group:
            expected = plain_logps(model, prompt, rollout.ids, 0.7)
            torch.testing.assert_close(
                torch.tensor(rollout.logps).double(), expected, atol=2e-5, rtol=0
            )


def test_an_answer_depends_on_seed_prompt_and_number_only(tmp_path):
    model, tokenizer = load(tmp_path)
    model.double()  # rounding between batches of other shapes is then far below any border
    first, second, third = some_prompts(3, seed=4)
    sampling = Sampling(max_new_tokens=16, stop_ids=(17, 41), seed=11)

    def ids(prompts, n, rows=64, sampling=sampling):
        return [
            [rollout.ids for rollout in group]
            for group in GroupSampler(model, tokenizer, rows=rows).sample(prompts, n, sampling)
        ]

    whole = ids([first, second, third], 4)
    assert whole == ids([first, second, third], 4)
    assert ids([third, first], 2) == [whole[2][:2], whole[0][:2]]
    assert ids([first, second, third], 4, rows=1) == whole
    assert ids([second, first, second], 2)[0] + ids([second, first, second], 2)[2] == whole[1]
    assert len({answer for group in whole for answer in group}) == 12
    other = ids(
        [first, second, third], 4, sampling=Sampling(max_new_tokens=16, stop_ids=(17, 41), seed=12)
    )
    assert not {answer for group in whole for answer in group} & {
        answer for group in other for answer in group
    }


def test_frequencies_are_the_models_probabilities(tmp_path):
    model, tokenizer = load(tmp_path)
    (prompt,) = some_prompts(1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    for temperature, n in ((1.0, 6000), (0.5, 6000)):
        (group,) = GroupSampler(model, tokenizer).sample(
            [prompt], n, Sampling(max_new_tokens=1, temperature=temperature)
        )
        counts = torch.bincount(
            torch.tensor([rollout.ids[0] for rollout in group]), minlength=len(logits)
        ).double()
        expected = (logits.double() / temperature).softmax(-1) * n
        common = expected >= 5
        statistic = ((counts - expected)[common] ** 2 / expected[common]).sum()
        freedom = int(common.sum()) - 1
        assert abs(float(statistic) - freedom) < 5 * (2 * freedom) ** 0.5


def test_top_k_and_top_p_keep_what_hugging_face_keeps(tmp_path):
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    model, tokenizer = load(tmp_path)
    (prompt,) = some_prompts(1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[:, -1]
    for k, p in ((5, 1.0), (0, 0.3), (0, 1e-9), (9, 0.6)):
        reference = TemperatureLogitsWarper(0.8)(None, logits)
        reference = TopKLogitsWarper(k)(None, reference) if k else reference
        reference = TopPLogitsWarper(p)(None, reference) if p < 1 else reference
        (group,) = GroupSampler(model, tokenizer).sample(
            [prompt], 1500, Sampling(max_new_tokens=1, temperature=0.8, top_k=k, top_p=p)
        )
        likely = reference.softmax(-1)[0] > 0.005
        seen = {rollout.ids[0] for rollout in group}
        assert (
            set(likely.nonzero()[:, 0].tolist())
            <= seen
            <= set(reference[0].isfinite().nonzero()[:, 0].tolist())
        )
        whole = (logits[0].double() / 0.8).log_softmax(-1)
        assert all(
            rollout.logps[0] == pytest.approx(float(whole[rollout.ids[0]]), abs=1e-5)
            for rollout in group
        )


def test_a_stop_text_ends_the_answer_wherever_tokens_begin(tmp_path):
    model, tokenizer = load(tmp_path)
    prompts = some_prompts(6, seed=5)
    free = [
        rollout
        for (rollout,) in GroupSampler(model, tokenizer).sample(
            prompts, 1, Sampling(max_new_tokens=24)
        )
    ]
    stops = tuple(
        rollout.text[len(rollout.text) // 2 : len(rollout.text) // 2 + 3] for rollout in free
    )
    rollouts = [
        rollout
        for (rollout,) in GroupSampler(model, tokenizer).sample(
            prompts, 1, Sampling(max_new_tokens=24, stop=stops)
        )
    ]
    for whole, part in zip(free, rollouts, strict=True):
        texts = [
            tokenizer.decode(whole.ids[:count], skip_special_tokens=True) for count in range(1, 25)
        ]
        count = next(
            length for length, text in enumerate(texts, 1) if any(stop in text for stop in stops)
        )
        assert part.ids == whole.ids[:count]
        assert part.logps == pytest.approx(whole.logps[:count], abs=1e-4)
        assert part.finish == "stop"
        assert part.text == min(
            (texts[count - 1].split(stop)[0] for stop in stops if stop in texts[count - 1]), key=len
        )
    assert any(len(rollout.ids) > 1 for rollout in rollouts)


def test_a_stop_text_that_is_a_special_token_ends_the_answer_like_its_id(tmp_path):
    model, tokenizer = load(tmp_path)
    prompts = some_prompts(30, seed=6)
    by_id, by_text = (
        GroupSampler(model, tokenizer).sample(prompts, 4, Sampling(max_new_tokens=30, **stops))
        for stops in (
            {"stop_ids": (tokenizer.convert_tokens_to_ids("<|im_start|>"),)},
            {"stop": ("<|im_start|>",)},
        )
    )
    assert by_id == by_text
    assert any(rollout.finish == "stop" for group in by_id for rollout in group)


def test_one_prefill_a_prompt_and_ended_rows_cost_nothing(tmp_path):
    model, tokenizer = load(tmp_path)
    first, second = [11] * 7, [12] * 9
    sampler = GroupSampler(model, tokenizer)
    free = sampler.sample([first, second], 4, Sampling(max_new_tokens=8))
    shapes = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    stops = tuple(
        {answer.ids[index] for index, answer in enumerate(free[0] + free[1]) if index < 6}
    )
    sampler.sample([first, second], 4, Sampling(max_new_tokens=8, stop_ids=stops))
    handle.remove()
    assert shapes[0] == (2, 9)
    rows = [count for count, _ in shapes[1:]]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] < 8
    assert rows[-1] <= 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_told_once_as_soon_as_it_has_ended(tmp_path, temperature):
    model, tokenizer = load(tmp_path)
    prompts = [[11] * 7, [12] * 9, [11] * 7]
    sampler, steps, reports = GroupSampler(model, tokenizer), [], []
    handle = model.register_forward_pre_hook(lambda *_: steps.append(0))
    free = sampler.sample(prompts, 4, Sampling(max_new_tokens=8, temperature=temperature))
    stops = (free[1][0].ids[2],)
    steps.clear()
    sampling = Sampling(max_new_tokens=8, temperature=temperature, stop_ids=stops)
    groups = sampler.sample(
        prompts,
        4,
        sampling,
        lambda index, rollout: reports.append((index, id(rollout), len(steps))),
    )
    handle.remove()
    assert {(index, name) for index, name, _ in reports} == {
        (index, id(rollout)) for index, group in enumerate(groups) for rollout in group
    }
    assert len(reports) == (3 if temperature == 0 else 12)
    assert min(step for *_, step in reports) < len(steps)  # while others were still being written


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "mistral"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_that_are_looked_at_together_give_the_same_answers_with_fewer_looks(
    tmp_path, family, temperature, monkeypatch
):
    model, tokenizer = load(tmp_path, family)
    prompts = some_prompts(5, seed=3)
    options = {"max_new_tokens": 21, "temperature": temperature, "seed": 5}
    free = GroupSampler(model, tokenizer).sample(prompts, 3, Sampling(**options))
    stop_ids = (free[0][0].ids[4], free[2][0].ids[9])
    stop_text = tokenizer.decode(free[1][0].ids[6:9])
    sampling = Sampling(**options, stop_ids=stop_ids, stop=(stop_text,) if stop_text else ())

    looks, read = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: looks.append(1) or read(tensor))
    answers, counts = [], []
    for unseen in (1, 8):
        monkeypatch.setattr(sampler_module, "TOKENS_UNSEEN", {"cpu": unseen})
        sampler = GroupSampler(model, tokenizer)
        sampler.sample(prompts[:1], 1, Sampling(max_new_tokens=1))  # which tries the cache
        looks.clear()
        answers.append(sampler.sample(prompts, 3, sampling))
        counts.append(len(looks))
    assert answers[0] == answers[1]
    rollouts = [rollout for group in answers[0] for rollout in group]
    assert "stop" in {rollout.finish for rollout in rollouts}
    # one look at tokens and one at log-probabilities, for 1 and for 8 tokens
    steps = max(len(rollout.ids) for rollout in rollouts)
    tensors = 1 if temperature == 0 else 2
    assert steps > 8
    assert counts == [steps * tensors, -(-steps // 8) * tensors]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen2", Fixed),
        ("gpt2", Fixed),
        ("gemma2", Cached),
        ("mistral", Cached),
        ("gpt_neo", Cached),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_fixed_buffers_give_the_same_answers(tmp_path, family, kind, temperature, monkeypatch):
    """Also where the buffers are made anew in between, and for models that have a window, which
    they are not used for."""
    model, tokenizer = load(tmp_path, family, **FAMILIES[family])
    prompts = [[11] * 20 + prompt for prompt in some_prompts(7, seed=3)]
    sampling = Sampling(max_new_tokens=23, temperature=temperature, stop_ids=(17, 41, 99), seed=5)
    growing = GroupSampler(model, tokenizer).sample(prompts, 3, sampling)
    monkeypatch.setattr(decode_trial, "FIXED_ON", {"cpu"})
    monkeypatch.setattr(fixed_decode, "SPAN", 10)
    sampler = GroupSampler(model, tokenizer)
    fixed = sampler.sample(prompts, 3, sampling)
    assert type(sampler._begin([(11, 12)])) is kind
    assert [[rollout.ids for rollout in group] for group in fixed] == [
        [rollout.ids for rollout in group] for group in growing
    ]
    ended = {rollout.finish for group in fixed for rollout in group}
    assert ended == {"stop", "length"} or temperature == 0


def test_a_step_with_fixed_buffers_allocates_no_cache(tmp_path):
    """What a graph repeats reads and writes where it was recorded."""
    model, _ = load(tmp_path)
    with torch.inference_mode():
        state = Fixed(model.eval(), [[11, 12, 13], [14]])
        state.advance(torch.tensor([15, 16]))
        first = [layer.keys.data_ptr() for layer in state._cache.layers]
        for _ in range(5):
            state.advance(torch.tensor([17, 18]))
        assert [layer.keys.data_ptr() for layer in state._cache.layers] == first
        state.select([1])
        assert state._cache.layers[0].keys.shape[2] == 3 + 6


@pytest.mark.parametrize(
    # an answer: 50 tokens of 2 layers with 2 heads of 8 numbers, twice; 6 times 336 logits
    ("free", "rows"),
    [(None, 64), (0, 64), (4 * 100 * 4 * (50 * 64 + 6 * 336), 100), (1 << 60, 512)],
)
def test_a_gpu_decodes_as_many_answers_as_a_quarter_of_its_free_memory_holds(
    tmp_path, free, rows, monkeypatch
):
    model, _ = load(tmp_path)
    monkeypatch.setattr(sampler_module, "_free_bytes", lambda device: free)
    assert sampler_module.rows_that_fit(model, 50) == rows


def test_logits_that_are_no_numbers_end_a_run_that_looks_later(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler_module, "TOKENS_UNSEEN", {"cpu": 8})
    model, tokenizer = load(tmp_path)
    sampler = GroupSampler(model, tokenizer)
    sampling = Sampling(max_new_tokens=12)
    sampler.sample([[11, 12]], 2, sampling)
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        sampler.sample([[11, 12]], 2, sampling)


@pytest.mark.parametrize("fits", [1, 3, 7])
def test_out_of_memory_fewer_answers_are_decoded_at_once_and_they_are_the_same_ones(
    tmp_path, fits, capsys
):
    model, tokenizer = load(tmp_path)
    prompts = some_prompts(6, seed=5)
    sampling = Sampling(
        max_new_tokens=12, temperature=1.0, stop_ids=(tokenizer.eos_token_id,), seed=3
    )
    whole = GroupSampler(model, tokenizer).sample(prompts, 4, sampling)
    sampler, reports, sizes = GroupSampler(model, tokenizer), [], []
    begin = sampler._begin

    def scarce(open_):
        state = begin(open_)
        select = state.select

        def selected(rows):
            sizes.append(len(rows))
            if len(rows) > fits:
                raise RuntimeError(
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
                )
            select(rows)

        state.select = selected
        return state

    sampler._begin = scarce
    groups = sampler.sample(
        prompts, 4, sampling, lambda index, rollout: reports.append((index, id(rollout)))
    )
    assert [[rollout.ids for rollout in group] for group in groups] == [
        [rollout.ids for rollout in group] for group in whole
    ]
    assert {(index, id(rollout)) for index, group in enumerate(groups) for rollout in group} <= set(
        reports
    )
    assert "Out of memory while sampling" in capsys.readouterr().err
    first = len(sizes)
    sampler.sample(prompts, 4, sampling)
    assert (
        sum(size > max(4, fits) for size in sizes[first:]) == 0
    )  # it remembers, as far as a prompt's answers go


def test_what_is_no_lack_of_memory_is_raised(tmp_path):
    model, tokenizer = load(tmp_path)
    sampler = GroupSampler(model, tokenizer)

    def broken(open_):
        raise RuntimeError("shapes do not match")

    sampler._begin = broken
    with pytest.raises(RuntimeError, match="shapes"):
        sampler.sample(some_prompts(3), 2, Sampling(max_new_tokens=4))


def test_impossible_settings_are_refused():
    for wrong in (
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"stop": ("",)},
    ):
        with pytest.raises(ValueError, match="impossible"):
            Sampling(**({"max_new_tokens": 4} | wrong))
