"""The reference cache: every field of the key counts, and no crash, race or damage makes it lie."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import torch

from tests.models.token_families import PAIRS, TREE, adapted
from thumbwheel.core.errors import StorageError
from thumbwheel.engine import refcache
from thumbwheel.engine.refcache import RefCache, batch_reference_logp, branch_key, reference_logps
from thumbwheel.engine.score import Role, ScoreEngine
from thumbwheel.engine.tree import Branch, Layout, build, plan

IDENTITY = ("base", "no adapter", "float32", "None", "tree:x", "1.0")


@pytest.fixture(scope="module")
def engine():
    return ScoreEngine(adapted(TREE["qwen2"], torch.float32))


def test_every_field_of_the_key_counts():
    branch = Branch((3, 4))
    keys = [branch_key(IDENTITY, (1, 2), branch)]
    keys += [
        branch_key((*IDENTITY[:index], "other", *IDENTITY[index + 1 :]), (1, 2), branch)
        for index in range(len(IDENTITY))
    ]
    keys += [branch_key(IDENTITY, (1, 5), branch), branch_key(IDENTITY, (1,), Branch((2, 3, 4)))]
    keys += [branch_key(IDENTITY, (1, 2), Branch((3, 5)))]
    keys += [branch_key(IDENTITY, (1, 2), Branch((3, 4), (True, False)))]
    keys += [branch_key(("bas", "eno adapter", *IDENTITY[2:]), (1, 2), branch)]
    assert len(set(keys)) == len(keys)
    assert branch_key(IDENTITY, (1, 2), Branch((3, 4), (True, True), role="chosen")) == keys[0]


def test_identity_follows_the_model(engine):
    same = ScoreEngine(adapted(TREE["qwen2"], torch.float32))
    with torch.no_grad():
        for name, parameter in same.model.named_parameters():
            if "lora_" in name:
                parameter.mul_(2)  # training moves the adapter, never the reference
    assert same.reference_identity == engine.reference_identity
    others = [
        ScoreEngine(adapted(TREE["qwen2"], torch.float32, seed=1)),
        ScoreEngine(adapted(TREE["qwen2"], torch.float64)),
        ScoreEngine(adapted(TREE["qwen2"], torch.float32), temperature=0.9),
        ScoreEngine(adapted(TREE["qwen2"], torch.float32), layout=Layout("padded", "asked for")),
    ]
    assert len({engine.reference_identity, *(other.reference_identity for other in others)}) == 5


def test_only_what_is_missing_is_scored(engine, tmp_path, monkeypatch):
    cache = RefCache(tmp_path / "ref.db")
    scored = []
    original = engine.score
    monkeypatch.setattr(
        engine,
        "score",
        lambda batch, role, **rest: (
            scored.append((batch.examples, role)) or original(batch, role, **rest)
        ),
    )
    (batch,) = plan(PAIRS, 1000, engine.layout)
    expected = original(batch, Role.REF).logp
    half = build(PAIRS, [1], engine.layout)
    alone = batch_reference_logp(engine, half, reference_logps(engine, PAIRS[1:2], 1000, cache))
    assert torch.equal(alone, original(half, Role.REF).logp)
    torch.testing.assert_close(
        batch_reference_logp(engine, batch, reference_logps(engine, PAIRS, 1000, cache)),
        expected,
        atol=1e-6,
        rtol=0,
    )
    assert scored == [((PAIRS[1],), Role.REF), ((PAIRS[0], PAIRS[2]), Role.REF)]
    again = batch_reference_logp(
        engine, batch, reference_logps(engine, PAIRS, 1000, RefCache(tmp_path / "ref.db"))
    )
    torch.testing.assert_close(again, expected, atol=1e-6, rtol=0)
    assert len(scored) == 2


def test_a_wrong_count_or_a_damaged_entry_is_a_miss(engine, tmp_path):
    cache = RefCache(tmp_path / "ref.db")
    (batch,) = plan(PAIRS, 1000, engine.layout)
    expected = batch_reference_logp(engine, batch, reference_logps(engine, PAIRS, 1000, cache))
    key = refcache._batch_keys(engine, batch)[0]
    assert cache.get({key: 5}) == {}
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE logps SET data = zeroblob(length(data))")
        connection.execute("UPDATE logps SET data = x'66', crc = 12345 WHERE key = ?", (key,))
    assert cache.get({key: 6}) == {}
    torch.testing.assert_close(
        batch_reference_logp(engine, batch, reference_logps(engine, PAIRS, 1000, cache)), expected
    )
    assert torch.equal(cache.get({key: 6})[key], expected[:6])


def test_a_damaged_file_says_what_to_do(tmp_path):
    (tmp_path / "ref.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StorageError, match="delete it"):
        RefCache(tmp_path / "ref.db")


def test_fp64_and_empty_entries_survive(tmp_path):
    cache = RefCache(tmp_path / "ref.db")
    values = {b"a" * 32: torch.randn(7, dtype=torch.float64), b"b" * 32: torch.zeros(0)}
    cache.put(values)
    entries = cache.get({b"a" * 32: 7, b"b" * 32: 0, b"c" * 32: 1})
    assert (
        torch.equal(entries[b"a" * 32], values[b"a" * 32])
        and entries[b"b" * 32].shape == (0,)
        and len(entries) == 2
    )


WRITER = """
import sys, torch
from thumbwheel.engine.refcache import RefCache
cache, who = RefCache(sys.argv[1]), int(sys.argv[2])
for number in range(int(sys.argv[3])):
    logps = {}
    for part in range(20):
        key = bytes([who, number // 256, number % 256, part]) * 8
        logps[key] = torch.full((50,), float(number))
    cache.put(logps)
    print(number, flush=True)
"""


def _writer(path, who, rounds):
    command = [sys.executable, "-c", WRITER, str(path), str(who), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


@pytest.mark.slow
def test_kill_9_leaves_whole_puts(tmp_path):
    path = tmp_path / "ref.db"
    process = _writer(path, 1, 100_000)
    for _ in range(20):
        last = int(process.stdout.readline())
    time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    cache = RefCache(path)
    for number in range(last + 1):
        keys = {bytes([1, number // 256, number % 256, part]) * 8: 50 for part in range(20)}
        entries = cache.get(keys)
        assert len(entries) == 20 and all(
            torch.equal(values, torch.full((50,), float(number))) for values in entries.values()
        )
    stored = cache._query("SELECT count(*), 0, 0, x'' FROM logps")[0][0]
    assert stored % 20 == 0


@pytest.mark.slow
def test_concurrent_writers_and_readers(tmp_path):
    path = tmp_path / "ref.db"
    RefCache(path).close()
    processes = [_writer(path, who, 25) for who in (1, 2)]
    cache, problems = RefCache(path), []

    def read():
        for _ in range(100):
            entries = cache.get({bytes([1, 0, 3, part]) * 8: 50 for part in range(20)})
            if len(entries) not in (0, 20):
                problems.append(len(entries))

    threads = [threading.Thread(target=read) for _ in range(2)]
    [thread.start() for thread in threads]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    [thread.join() for thread in threads]
    assert not problems and all(process.returncode == 0 for process in processes)
    assert all(output.split()[-1] == "24" for output in outputs)
    assert (
        len(
            cache.get(
                {
                    bytes([who, 0, number, part]) * 8: 50
                    for who in (1, 2)
                    for number in range(25)
                    for part in range(20)
                }
            )
        )
        == 1000
    )
