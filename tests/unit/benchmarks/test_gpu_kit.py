"""The kit for a GPU server without a network, and the command that checks and measures there."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu import kit
from install import locked

ROOT = Path(__file__).parents[3]
RUN = ROOT / "gpu" / "run"
SKIPPED = '<testsuites><testsuite tests="3" skipped="1"/></testsuites>'


def test_the_kit_is_what_the_server_lacks() -> None:
    names = kit.missing_packages(set(), "3.12")
    assert {"transformers", "peft", "trl", "sqlalchemy", "pytest-timeout"} <= set(names)
    assert not {"torch", "numpy", "scipy", "pyarrow", "thumbwheel"} & set(names)
    assert not [name for name in names if name.startswith(("nvidia", "triton"))]
    assert set(names) <= set(locked())
    assert set(kit.missing_packages({"scipy"}, "3.12")) == {*names, "scipy"}


def test_a_part_has_its_limit_and_a_skip_on_cuda_fails(tmp_path: Path) -> None:
    script = runpy.run_path(str(RUN), run_name="gpu_run")
    options = argparse.Namespace(out=tmp_path, patience=1.0, python=sys.executable)

    def ended(name: str, code: str, limit: float = 60, on_cuda: bool = False) -> dict[str, Any]:
        part = script["Part"](("-c", code), limit, "a trial")
        result: dict[str, Any] = script["run"](name, part, 60, options, dict(os.environ), on_cuda)
        return result

    assert ended("good", "print('hello')")["passed"]
    assert (tmp_path / "good.txt").read_text() == "hello\n"
    assert ended("bad", "raise SystemExit(3)")["problem"] == "exit code 3"
    # a part is ended with all that it has started
    forked = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    assert ended("endless", forked, limit=1)["problem"] == "not done after 1 s"

    (tmp_path / "tests.xml").write_text(SKIPPED)
    assert ended("tests", "pass")["passed"]
    assert "1 tests were skipped" in ended("tests", "pass", on_cuda=True)["problem"]


def test_all_parts_fit_into_nine_minutes_and_write_json() -> None:
    script = runpy.run_path(str(RUN), run_name="gpu_run")
    options = argparse.Namespace(out="out", size="494m", steps=3, methods="dpo", tokens=8)
    parts = script["parts"](options)
    assert list(parts) == ["tests", "nf4", "training", "profile", "sampler", "memory"]
    assert sum(part.limit for part in parts.values()) <= script["LIMIT"] < 9 * 60
    for name in ("training", "profile", "sampler", "memory"):
        assert f"out/{name}.json" in parts[name].command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("flights",), "no part flights"), ((), "no wheels in .gpu-kit/")],
)
def test_what_cannot_be_run_is_said(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout" / "gpu"
    checkout.mkdir(parents=True)
    (checkout / "run").write_bytes(RUN.read_bytes())
    command = [sys.executable, str(checkout / "run"), "--out", str(tmp_path / "out"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and words in done.stderr


def test_an_interpreter_that_is_named_runs_all_contestants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers

    assert peers.python_of("trl-1.16", "here") == Path(sys.executable)
    assert peers.python_of(peers.OURS, "/usr/bin/python3") == Path("/usr/bin/python3")
    parser = argparse.ArgumentParser()
    peers.option(parser)
    assert json.dumps(vars(parser.parse_args([]))) == '{"python": null}'
