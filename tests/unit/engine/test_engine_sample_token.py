"""Drawing one token: always one that is allowed and possible, with the log-probability that the
logits give it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.engine.rollout import Sampling
from thumbwheel.engine.sample_token import BLOCK, TokenSampler

EDGES = [0.0, 1e-9, 0.25, 0.5, 0.999999, 1 - 2**-24, 1.0]


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([1, 2, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]),
    seed=st.integers(0, 1 << 30),
    spread=st.sampled_from([0.0, 1.0, 30.0, 300.0]),
    temperature=st.sampled_from([0.1, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    top_p=st.sampled_from([1e-6, 0.5, 0.99, 1.0]),
    impossible=st.booleans(),
)
def test_a_drawn_token_is_possible_and_has_its_log_probability(
    size, seed, spread, temperature, top_k, top_p, impossible
):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(EDGES), size, generator=generator) * spread
    if impossible and size > 1:
        logits[:, torch.randperm(size, generator=generator)[: size // 2]] = -math.inf
    sampling = Sampling(max_new_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
    tokens, logps = TokenSampler(sampling, torch.tensor(EDGES)[:, None]).tokens(logits, 0)
    exact = (logits.double() / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logps.double(), exact, atol=1e-3, rtol=1e-4)
    assert logps.isfinite().all()
    ranks = (logits > logits.gather(1, tokens[:, None])).sum(-1)
    if top_k:
        assert (ranks < top_k).all()
    if top_p == 1e-6:
        assert (ranks == 0).all()


def test_chance_falls_where_the_running_sum_says():
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1))
    borders = logits.double().softmax(-1).cumsum(-1)[0]
    chances = torch.rand(2000, generator=torch.Generator().manual_seed(2))
    draw = TokenSampler(Sampling(max_new_tokens=1), chances[:, None])
    tokens, _ = draw.tokens(logits.expand(2000, -1), 0)
    expected = torch.searchsorted(borders, chances.double(), right=True)
    assert (tokens - expected).abs().max() <= 1  # at a border, rounding may choose the neighbour
    assert (tokens == expected).double().mean() > 0.99


@pytest.mark.parametrize(("top_p", "last"), [(0.79, 1), (0.81, 2), (0.49, 0), (0.51, 1)])
def test_the_nucleus_is_the_fewest_tokens_that_hold_top_p(top_p, last):
    """Of tokens with 0.5, 0.3 and 0.2, the highest random number draws the last that is left."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    sampling = Sampling(max_new_tokens=1, top_p=top_p)
    tokens, _ = TokenSampler(sampling, torch.tensor([[0.9999]])).tokens(logits, 0)
    assert tokens.tolist() == [last]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_logits_that_are_no_numbers_give_no_token(wrong):
    logits = torch.zeros(2, 600)
    logits[1, 300] = wrong
    tokens, _ = TokenSampler(Sampling(max_new_tokens=1), torch.full((2, 1), 0.5)).tokens(logits, 0)
    assert tokens.tolist()[1] == 600
    assert tokens.tolist()[0] < 600


def test_selected_rows_keep_their_own_chance():
    draw = TokenSampler.of(
        Sampling(max_new_tokens=3, seed=1), [([1], 0), ([1], 1), ([2], 0)], torch.device("cpu")
    )
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    whole = draw.tokens(logits, 2)[0]
    draw.select([2, 0])
    assert draw.tokens(logits[[2, 0]], 2)[0].tolist() == whole[[2, 0]].tolist()
