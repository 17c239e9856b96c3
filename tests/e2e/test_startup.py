"""Processes that hold a model load what they use, and nothing else: the real ones, as users start
them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import SHORT_TRAINING, frozen
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.training.train import train

UNNEEDED = {
    "bitsandbytes",  # for quantised bases
    "triton",  # with torch's compiler, which bitsandbytes loads
    "torch._inductor.compile_fx",
    "scipy.optimize",  # transformers loads it for models that find objects in pictures
    "scipy.stats",  # with a hundred distributions; ours are functions of scipy.special
    "sklearn",
    "pandas",
    "datasets",
    "matplotlib",
    "torchvision",
    "trl",
    "onnx",
    "sqlalchemy",
    "thumbwheel.db",
}
NOT_FOR_RECORDED_ANSWERS = {"thumbwheel.llm", "thumbwheel.training.online_step", "fastapi"}
SERVING = """
import sys
from pathlib import Path
import thumbwheel.deploy.embedded as embedded
import uvicorn
uvicorn.run = lambda *arguments, **options: print(*sys.modules)
embedded.main(sys.argv[1:])
"""


@pytest.fixture
def one_thread_ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
    return Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {}))


@pytest.mark.slow
def test_a_training_child_and_the_server_of_its_adapter(
    one_thread_ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tiny_base(tmp_path / "base")
    names = tmp_path / "modules"
    monkeypatch.setenv("MODULES_FILE", str(names))
    options = SHORT_TRAINING | {"num_train_epochs": 1, "callbacks": ["training_callbacks:Modules"]}
    with one_thread_ws:
        dataset = frozen(one_thread_ws, "a", "pairs", 12, 4)
        base_model = find_base(str(base), one_thread_ws.home.cache)
        run = train(
            one_thread_ws, Agent.named("a"), "dpo", base_model, dataset=dataset, options=options
        )
        adapter = one_thread_ws.home.runs / run.run_id / "adapter"
    loaded = set(names.read_text().split())
    assert {"peft", "transformers.training_args"} <= loaded
    assert loaded & (UNNEEDED | NOT_FOR_RECORDED_ANSWERS) == set()

    folder = tmp_path / "embedded"
    folder.mkdir()
    (folder / "spec.json").write_text(f'{{"base": "{base}", "dtype": "auto", "device": "cpu"}}')
    (folder / "models.json").write_text(f'{{"v1": "{adapter}"}}')
    done = subprocess.run(
        [sys.executable, "-c", SERVING, str(folder), "1", "127.0.0.1"],
        env=os.environ | {"THUMBWHEEL_EMBEDDED_TOKEN": "t"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "peft" in loaded
    assert loaded & UNNEEDED == set()
