"""The programs in examples/ do what they say, as they stand; and what `thumbwheel.open` refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import thumbwheel
from tests.servers.thumbwheel_server import LOOPBACK, running
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.llm.fake import FakeServer, Reply, Request

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
THUMBWHEEL = (sys.executable, "-P", "-m", "thumbwheel")
LANGFUSE = [
    {
        "id": f"lf{number}",
        "timestamp": "2026-05-01T08:00:00Z",
        "input": "How do I reset it?",
        "output": f"Way {number}.",
        "scores": [
            {"id": f"s{number}", "name": "user-feedback", "value": value, "dataType": "BOOLEAN"}
        ],
    }
    for number, value in enumerate((1, 1, 0))
]


def output_of(*command: str | Path, folder: Path, **variables: str) -> str:
    """Run a command, which has to succeed, and return what it prints."""
    environment = os.environ | LOOPBACK | {"THUMBWHEEL_HOME": str(folder / "home")} | variables
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def installed(package: str, folder: Path) -> dict[str, str]:
    """Install a package of the examples; return the variable with which it is there."""
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    site = folder / "site"
    output_of(sys.executable, *pip, "--target", site, EXAMPLES / package, folder=folder)
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


def support_desk(request: Request) -> Reply:
    """Answer as a model of OpenAI does."""
    message = {"role": "assistant", "content": "Hold the button."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return Reply(
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": request.body["model"],
            "choices": [choice],
            "usage": usage,
        }
    )


@pytest.mark.slow
def test_an_app_of_openai_goes_through_the_gateway(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with FakeServer(support_desk) as upstream:
        upstream.pages["/v1/models"] = {"data": [{"id": "gpt"}]}
        endpoint = ("models", "endpoint", upstream.url, "--agent", "support", "--model", "gpt")
        output_of(*THUMBWHEEL, *endpoint, folder=tmp_path)
        deploy = ("deploy", "v0", "--agent", "support", "--target", "remote")
        output_of(*THUMBWHEEL, *deploy, folder=tmp_path)
        with running(home) as server:
            address = f"{server.url}/a/support/v1"
            program = (sys.executable, EXAMPLES / "openai_app.py", address, "How do I reset it?")
            assert output_of(*program, folder=tmp_path).strip() == "Hold the button."
    listed = output_of(
        *THUMBWHEEL, "traces", "list", "--agent", "support", "--json", folder=tmp_path
    )
    (trace,) = json.loads(listed)["traces"]
    assert (trace["subject"], trace["feedback"]) == ("customer-17", ["thumb up"])


@pytest.mark.slow
def test_an_export_of_langfuse_is_planned(tmp_path: Path) -> None:
    (tmp_path / "traces.json").write_text(json.dumps(LANGFUSE))
    program = (sys.executable, EXAMPLES / "langfuse_import.py", "traces.json", "support")
    printed = output_of(*program, folder=tmp_path)
    assert "3 rows read, 3 stored, 0 refused" in printed
    assert "'desirable': 2, 'undesirable': 1" in printed
    assert "3 rows read, 0 stored" in output_of(*program, folder=tmp_path)


@pytest.mark.slow
def test_a_reward_function_is_known_once_its_package_is_installed(tmp_path: Path) -> None:
    path = installed("polite_reward", tmp_path)
    lines = [
        {"type": "trace", "id": "kind", "input": "Hi", "output": "Hello, welcome back."},
        {"type": "trace", "id": "rude", "input": "Hi", "output": "What."},
    ]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "thumbwheel.yaml").write_text("rewards: {components: {polite: {weight: 1}}}\n")
    import_ = ("import", "jsonl", "lines.jsonl", "--agent", "shop")
    output_of(*THUMBWHEEL, *import_, folder=tmp_path, **path)
    reward = ("reward", "run", "--agent", "shop", "--component", "polite")
    output_of(*THUMBWHEEL, *reward, folder=tmp_path, **path)
    for trace, value in (("kind", "1.0000"), ("rude", "0.0000")):
        explain = ("reward", "explain", trace, "--agent", "shop")
        assert f"): {value}" in output_of(*THUMBWHEEL, *explain, folder=tmp_path, **path)


@pytest.mark.slow
def test_a_method_trains_once_its_package_is_installed(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    path = installed("simpo_method", tmp_path)
    pairs = [
        {"prompt": f"Name fruit {number}.", "chosen": f"Fruit {number}: plum.", "rejected": "No."}
        for number in range(60)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    base = tiny_base(tmp_path / "base")
    import_ = ("import", "preference", "pairs.jsonl", "--agent", "shop")
    output_of(*THUMBWHEEL, *import_, folder=tmp_path, **path)
    train = ("train", "simpo", "--agent", "shop", "--base", base, "--max-steps", "3", "--json")
    result = json.loads(output_of(*THUMBWHEEL, *train, folder=tmp_path, **path))
    assert result["state"] in ("finished", "nothing_learned")
    assert "rewards/margins" in json.dumps(result["metrics"])


@pytest.mark.slow
def test_a_notebook_turns_the_wheel(tmp_path: Path) -> None:
    output_of(*THUMBWHEEL, "demo", "--emit", "world", folder=tmp_path)
    printed = output_of(sys.executable, EXAMPLES / "notebook.py", "world", folder=tmp_path)
    assert printed.rstrip().splitlines()[-1] in ("approved", "approved for a canary", "rejected")
    assert "v1: " in printed


def test_a_home_is_opened_by_path_and_names_what_it_has(tmp_path: Path) -> None:
    with thumbwheel.open(tmp_path / "home") as home:
        assert (home.path, home.agents) == (tmp_path / "home", [])
        with pytest.raises(NotFound, match="desk"):
            home.agent("desk").plan()
    with thumbwheel.open(str(tmp_path / "home")) as home:
        (tmp_path / "one.jsonl").write_text('{"type": "trace", "input": "a", "output": "b"}\n')
        desk = home.agent("desk")
        assert desk.import_(tmp_path / "one.jsonl", dry_run=True).read == 1
        assert home.agents == []
        assert desk.import_(tmp_path / "one.jsonl").stored == 1
        assert home.agents == ["desk"]


def test_a_callback_has_to_stand_in_a_module(tmp_path: Path) -> None:
    class Local:
        """A callback inside a function."""

    with thumbwheel.open(tmp_path / "home") as home:
        (tmp_path / "one.jsonl").write_text('{"type": "trace", "input": "a", "output": "b"}\n')
        home.agent("desk").import_(tmp_path / "one.jsonl")
        with pytest.raises(InputError, match="another process"):
            home.agent("desk").train("sft", base="nowhere", callbacks=[Local])


APP = """
import thumbwheel
from thumbwheel.training.algorithms.kto import KtoConfig
from thumbwheel.training.types import TrainConfig
TrainConfig(), KtoConfig(learning_rate=1e-4)
with thumbwheel.open("home") as home:
    reveal_type(home.agents)
    desk = home.agent("desk")
    reveal_type(desk.import_("feedback.jsonl").stored)
    reveal_type(desk.plan())
    reveal_type(desk.build("kto").counts)
    reveal_type(desk.train("kto", "base").version)
    reveal_type(desk.versions)
    reveal_type(desk.gate(desk.evaluate()).verdict)
with thumbwheel.connect("http://127.0.0.1:8787", key="k") as served:
    reveal_type(served.agents)
    shop = served.agent("desk")
    reveal_type(shop.import_("feedback.jsonl").stored)
    reveal_type(shop.plan())
    reveal_type(shop.build("kto").counts)
    reveal_type(shop.train("kto", "base").version)
    reveal_type(shop.versions)
    reveal_type(shop.gate(shop.evaluate()).verdict)
    reveal_type(shop.deploy().switch)
reveal_type(thumbwheel.trace("desk", input="a", output="b"))
"""
OF_A_HOME = (
    "list[str]",
    "int",
    "DataPlan",
    "Mapping[str, int]",
    "str | None",
    "list[ModelVersion]",
    "GateVerdict",
)
REVEALED = (*OF_A_HOME, *OF_A_HOME, "Switch | None", "str")
"""The types of APP, in order, without their modules."""


@pytest.mark.slow
def test_an_app_sees_real_types(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    done = subprocess.run(
        # with the settings and the cache of `make check`, which is strict, too
        [sys.executable, "-m", "mypy", str(tmp_path / "app.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error" not in done.stdout, done.stdout
    revealed = re.findall(r'Revealed type is "(.+)"', done.stdout)
    assert tuple(re.sub(r"\w+\.", "", name) for name in revealed) == REVEALED, done.stdout
