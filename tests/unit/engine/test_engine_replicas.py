"""Micro-batches side by side: the same numbers as one after the other, whatever happens to the
engine or to a thread in between."""

from __future__ import annotations

import copy
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import peft
import pytest
import torch
import transformers as tf

from tests.models.token_families import GROUPED, PADDED, SHAPE, TREE, VOCAB, adapted
from thumbwheel.engine import precision, replicas
from thumbwheel.engine.score import Role, RoleModel, ScoreEngine
from thumbwheel.engine.tree import Branch, Example

BUDGET = 180


@pytest.fixture(autouse=True)
def _three_threads(monkeypatch):
    """Micro-batches of 60 tokens on three threads; the suite's conftest puts the number of threads
    back."""
    monkeypatch.setattr(replicas, "MIN_TOKENS", 32)
    torch.set_num_threads(3)


def examples(count=16, longest=20):
    draw = random.Random(3)

    def ids(least, most):
        return tuple(draw.randrange(2, VOCAB) for _ in range(draw.randint(least, most)))

    return [
        Example(ids(4, longest), (Branch(ids(1, 6)), Branch(ids(1, 6))), str(number))
        for number in range(count)
    ]


def learned(engine, batch):
    scores = engine.score(batch, Role.POLICY, grad=True)
    return scores.logp.square().sum(), (scores.logp.detach(), threading.get_ident())


def step(engine, dataset, budget=BUDGET):
    """(log-probs in the order of the examples, the gradients, the threads that were at work)."""
    engine.zero_grad()
    logps, seen = {}, set()
    for batch, (_, (logp, thread)) in engine.backward(dataset, budget, learned):
        seen.add(thread)
        parts = [logp[part] for part in batch.branch_slices]
        logps |= {
            (batch.example_ids[owner], branch): parts[branch]
            for branch, owner in enumerate(batch.example_of.tolist())
        }
    flat = torch.cat(
        [parameter.grad.flatten() for parameter in engine.trainable if parameter.grad is not None]
    )
    return torch.cat([logps[key] for key in sorted(logps)]), flat, seen


def alone(engine, dataset, budget=BUDGET):
    """The same batches, one after the other."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        plan_batches = ScoreEngine._plan

        def one_by_one(*arguments):
            batches = plan_batches(*arguments)
            return replace(batches, threads=1, alone=batches.alone + batches.parallel, parallel=[])

        patch.setattr(ScoreEngine, "_plan", one_by_one)
        return step(engine, dataset, budget)


@pytest.mark.parametrize("family", [*TREE, *PADDED])
def test_they_give_what_they_give_one_after_the_other(family):
    config = TREE[family] if family in TREE else PADDED[family][0]
    exact = family not in ("gpt-oss", "bloom")  # whose experts know no fp64, whose softmax is fp32
    targets = ["in_proj", "x_proj"] if family == "mamba" else "all-linear"
    engine = ScoreEngine(
        adapted(config, torch.float32 if family == "gpt-oss" else torch.float64, targets=targets)
    )
    dataset = examples()
    logps, gradients, seen = step(engine, dataset)
    wanted, slopes, threads = alone(engine, dataset)
    assert len(seen) > 1 and len(threads) == 1
    torch.testing.assert_close(logps, wanted, atol=1e-10 if exact else 1e-4, rtol=0)
    torch.testing.assert_close(
        gradients, slopes, atol=1e-8 if exact else 1e-3, rtol=1e-9 if exact else 1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_thread_computes_what_decides_nothing(dtype):
    engine, dataset = ScoreEngine(adapted(TREE["qwen2"], dtype)), examples(40)
    first = step(engine, dataset)
    assert len(first[2]) > 1
    for _ in range(5):
        again = step(engine, dataset)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


@pytest.mark.slow
def test_narrow_products_of_one_thread_leave_rotations_of_another_alone():
    """Positions above 256 are no bf16 numbers: a rotation that was computed in bf16 would be
    another one."""
    config = TREE["qwen2"]()
    config.max_position_embeddings = 1024
    engine = ScoreEngine(adapted(lambda: config, torch.bfloat16))
    dataset = examples(24, longest=700)
    torch.set_num_threads(2)
    beside, single = step(engine, dataset, 1600), alone(engine, dataset, 1600)
    torch.set_num_threads(1)
    for index in range(2):
        assert (
            float(
                (beside[index].float() - single[index].float()).norm()
                / single[index].float().norm()
            )
            < 0.02
        )


def test_threads_are_in_narrow_products_or_elsewhere_and_never_both():
    inside, mixed = {"narrow": 0, "other": 0}, []
    lock = threading.Lock()

    def note(name, change):
        with lock:
            inside[name] += change
            if all(inside.values()):
                mixed.append(dict(inside))
            narrow = torch.backends.mkldnn.matmul.fp32_precision == "bf16"
            if narrow != bool(inside["narrow"]) and change > 0:
                mixed.append(narrow)

    def work(seed):
        draw = random.Random(seed)
        for _ in range(30):
            with precision.exact_products():
                note("other", 1)
                time.sleep(draw.random() / 2000)
                note("other", -1)
                with precision.bf16_products():
                    note("narrow", 1)
                    time.sleep(draw.random() / 2000)
                    note("narrow", -1)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not mixed and not any(thread.is_alive() for thread in threads)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


def test_replicas_see_what_changes():
    """Weights that an optimiser moves, another role, activations computed twice, another number of
    threads."""
    engine, dataset = ScoreEngine(adapted(TREE["llama"])), examples()
    before = step(engine, dataset)
    with torch.no_grad():
        for parameter in engine.trainable:
            parameter.add_(torch.randn_like(parameter) * 0.05)
    moved = step(engine, dataset)
    assert (moved[0] - before[0]).abs().max() > 1e-3
    for change in (
        lambda: engine.add(Role.CRITIC, RoleModel("default", torch.nn.Linear(32, 1).double())),
        lambda: engine.set_checkpointing(True),
        lambda: torch.set_num_threads(2),
    ):
        change()
        again = step(engine, dataset)
        torch.testing.assert_close(again[0], moved[0], atol=1e-10, rtol=0)
        torch.testing.assert_close(again[1], moved[1], atol=1e-8, rtol=1e-9)
    values = [
        value
        for _, value in engine.map_batches(
            dataset,
            BUDGET,
            lambda replica, batch: replica.score(batch, Role.CRITIC, frozenset({"value"})).value,
        )
    ]
    assert sum(len(value) for value in values) == len(moved[0])


def test_a_gradient_that_is_switched_off_is_none():
    engine, dataset = ScoreEngine(adapted(TREE["qwen2"])), examples()
    whole = step(engine, dataset)[1]
    first, *rest = engine.trainable
    first.requires_grad_(False)
    assert len(engine.trainable) == len(rest)
    torch.testing.assert_close(
        step(engine, dataset)[1], whole[first.numel() :], atol=1e-8, rtol=1e-9
    )
    assert first.grad is None


def test_the_first_error_ends_all_and_the_engine_goes_on():
    engine, dataset = ScoreEngine(adapted(TREE["qwen2"])), examples(40)
    running, lock = [0], threading.Lock()

    def work(replica, batch):
        with lock:
            running[0] += 1
        try:
            if 7 in batch.example_ids:
                raise torch.OutOfMemoryError("out of memory")
            return learned(replica, batch)
        finally:
            with lock:
                running[0] -= 1

    with pytest.raises(torch.OutOfMemoryError):
        list(engine.map_batches(dataset, BUDGET, work))
    assert running == [0]
    wanted = alone(engine, dataset)
    torch.testing.assert_close(step(engine, dataset)[1], wanted[1], atol=1e-8, rtol=1e-9)


def test_one_who_stops_looking_waits_for_what_is_under_way():
    engine, dataset = ScoreEngine(adapted(TREE["qwen2"])), examples(40)
    under_way = []

    def work(replica, batch):
        under_way.append(1)
        time.sleep(0.02)
        under_way.pop()

    results = engine.map_batches(dataset, BUDGET, work)
    next(results)
    results.close()
    assert not under_way


def test_no_more_tokens_at_once_than_the_budget_says():
    """One example that is larger than the budget is computed alone, with every thread."""
    engine = ScoreEngine(adapted(TREE["qwen2"]))
    huge = Example(tuple(2 + number % 50 for number in range(200)), (Branch((5, 6)),), "huge")
    dataset = [*examples(30), huge]
    rows, most, lock = [0], [0], threading.Lock()

    def work(replica, batch):
        with lock:
            rows[0] += batch.n_rows
            most[0] = max(most[0], rows[0])
            if batch.n_rows * 3 > BUDGET:
                assert (
                    rows[0] == batch.n_rows and replica is engine and torch.get_num_threads() == 3
                )
            else:
                assert replica is not engine and torch.get_num_threads() == 1
        time.sleep(0.002)
        with lock:
            rows[0] -= batch.n_rows

    seen = [
        example_id
        for batch, _ in engine.map_batches(dataset, BUDGET, work)
        for example_id in batch.example_ids
    ]
    assert sorted(seen) == list(range(len(dataset)))
    assert most[0] == engine.peak_rows(dataset, BUDGET) == 202
    most[0] = 0
    list(engine.map_batches(dataset[:-1], BUDGET, work))
    assert 0 < most[0] <= engine.peak_rows(dataset[:-1], BUDGET) <= BUDGET


def test_what_costs_a_thread_more_than_activations_is_computed_alone():
    """Experts, whose adapted weight is folded anew in every pass, and a model that trains whole."""
    mixtral = tf.AutoModelForCausalLM.from_config(
        tf.MixtralConfig(**SHAPE, **GROUPED, num_local_experts=2, num_experts_per_tok=1)
    )
    lora = peft.LoraConfig(
        r=2,
        target_modules=["q_proj"],
        target_parameters=["experts.down_proj"],
        task_type="CAUSAL_LM",
    )
    experts = peft.get_peft_model(mixtral, lora)
    whole = tf.AutoModelForCausalLM.from_config(tf.Qwen2Config(**SHAPE, **GROUPED))
    for model in (
        experts,
        whole,
        peft.get_peft_model(
            copy.deepcopy(whole), peft.LNTuningConfig(target_modules=["norm", "q_proj"])
        ),
    ):
        engine = ScoreEngine(model)
        assert step(engine, examples())[2] == {threading.get_ident()}
