"""`thumbwheel.connect`: the methods are those of an open home, the requests those of the routes,
and a real server answers as the home itself does."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
from tests.servers.thumbwheel_server import ThumbwheelServer, running
from thumbwheel.app import remote_home
from thumbwheel.app.python_api import FrozenDataset, OpenAgent, OpenHome
from thumbwheel.app.remote_home import (
    CALLS,
    DATASET_FILES,
    EXPORT_FILE,
    TRAIN,
    RemoteAgent,
    RemoteDataset,
    RemoteHome,
)
from thumbwheel.core.errors import (
    ConfigError,
    Conflict,
    DataError,
    Forbidden,
    InputError,
    NotFound,
    ThumbwheelError,
    Unauthenticated,
)
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.server.api.routers import operations
from thumbwheel.training.algorithms import ALGORITHMS

PAIRS = ((OpenHome, RemoteHome), (OpenAgent, RemoteAgent), (FrozenDataset, RemoteDataset))
OF_THE_OWN_MACHINE = {
    "import_": {"rejects"},
    "train": {"callbacks"},
    "deploy": {"settings"},
}
"""Method -> parameters that a request may not have, because they name what is on the machine of the
home."""
OF_A_PATH = {"path": "url"}
"""Property of an open home -> that of a served one."""
OTHER_CLASSES = {
    "OpenHome": "RemoteHome",
    "OpenAgent": "RemoteAgent",
    "FrozenDataset": "RemoteDataset",
}
HTTP_ONLY = {"agents.list", "runs.metrics", EXPORT_FILE}
LINES = (
    {"type": "trace", "id": "t1", "input": "Where is it?", "output": "On its way."},
    {"type": "trace", "id": "t2", "input": "And now?", "output": "Here."},
    {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": True, "rater": "c"},
    {"type": "feedback", "target": {"trace": "t2"}, "kind": "rating", "value": 2, "rater": "d"},
)


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def parameters(function: Any, without: set[str]) -> dict[str, tuple[Any, Any, str]]:
    """Return name -> (kind, default, annotation) of the parameters of a method."""
    described = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in without:
            annotation = str(parameter.annotation)
            for local, served in OTHER_CLASSES.items():
                annotation = annotation.replace(local, served)
            described[name] = (parameter.kind, parameter.default, annotation)
    return described


@pytest.mark.parametrize(("opened", "served"), PAIRS, ids=lambda cls: cls.__name__)
def test_a_served_home_has_the_methods_of_an_open_one(opened: type, served: type) -> None:
    local, there = public(opened), public(served)
    assert {OF_A_PATH.get(name, name) for name in local} == set(there)
    for name, method in local.items():
        if isinstance(method, property):
            assert isinstance(there[OF_A_PATH.get(name, name)], property), name
            continue
        hidden = OF_THE_OWN_MACHINE.get(name, set())
        assert hidden <= set(inspect.signature(method).parameters), name
        assert parameters(method, hidden) == parameters(there[name], set()), name
        returned = str(inspect.signature(method).return_annotation)
        assert OTHER_CLASSES.get(returned, returned) == (
            inspect.signature(there[name]).return_annotation
        ), name


def test_every_request_of_a_served_home_is_a_route() -> None:
    by_id = {operation.route.operation: operation for operation in operations().values()}
    for call in CALLS:
        if call.operation in HTTP_ONLY:
            continue
        answers = by_id[call.operation].signature.answer_type
        forms = (answers, *typing.get_args(answers))
        assert call.answer._type in forms, call.operation
    for method in ALGORITHMS.names():
        answers = by_id[f"train.{method}"].signature.answer_type
        assert TRAIN._type in typing.get_args(answers), method
    assert by_id[DATASET_FILES].route.download == "to"


def test_every_call_is_listed() -> None:
    calls = [value for value in vars(remote_home).values() if isinstance(value, type(CALLS[0]))]
    assert calls == list(CALLS)


def test_a_client_loads_no_torch() -> None:
    code = (
        "import sys, thumbwheel; thumbwheel.connect('http://127.0.0.1:9', key='k'); "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "thumbwheel.app.remote_home" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "pandas", "fastapi"}


def test_what_is_no_server_is_said() -> None:
    for url in ("ftp://h", "http://u:p@h", "h:8787"):
        with pytest.raises(InputError, match="address of a server"):
            thumbwheel.connect(url)
    with pytest.raises(Conflict, match="nothing answers there"):
        _ = thumbwheel.connect("http://127.0.0.1:9", key="k").agents


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "home"
    with thumbwheel.open(folder):
        pass
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ThumbwheelServer]:
    with running(home, workers=1) as server:
        yield server


@pytest.fixture
def served(home: Path, server: ThumbwheelServer) -> RemoteHome:
    key = (home / "access.token").read_text().strip()
    return thumbwheel.connect(server.url, key=key)


def error_of(ask: Any) -> tuple[type[ThumbwheelError], str]:
    with pytest.raises(ThumbwheelError) as raised:
        ask()
    return type(raised.value), str(raised.value)


@pytest.mark.slow
def test_a_server_answers_as_the_home_itself(
    home: Path, served: RemoteHome, server: ThumbwheelServer, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    desk = served.agent("desk")
    assert desk.import_(file, dry_run=True).read == 4
    assert served.agents == []
    report = desk.import_(str(file), "jsonl")
    assert (report.stored, report.path, report.dry_run) == (4, "lines.jsonl", False)
    assert served.agents == ["desk"]

    dataset = desk.build("chats", dev=0.0, gate=0.0)
    with thumbwheel.open(home) as opened:
        local = opened.agent("desk")
        plan, own_plan = desk.plan(dev=0.2), local.plan(dev=0.2)
        assert (plan.why, plan.methods) == (own_plan.why, own_plan.methods)
        frozen = local.dataset(dataset.id)
        assert (dataset.counts, desk.dataset().record.fingerprint) == (
            frozen.counts,
            frozen.record.fingerprint,
        )
        for split in ("train", "dev"):
            rows = [json.loads(json.dumps(row)) for row in frozen.rows(split)]
            assert list(dataset.rows(split)) == rows
        assert dataset.to_hf()["train"].to_list() == frozen.to_hf()["train"].to_list()
        assert list(dataset.to_pandas()["row_id"]) == list(frozen.to_pandas()["row_id"])
        assert desk.versions == local.versions
        traces = desk.traces()
        assert {trace.external_id for trace in traces} == {"t1", "t2"}
        assert traces == local.traces() and desk.trace("t1") == local.trace("t1")
        for chosen in ({"most": 1}, {"judged": "bad"}, {"text": "Where", "rated": True}):
            assert len(desk.traces(**chosen)) == 1
            assert desk.traces(**chosen) == local.traces(**chosen)
        assert error_of(lambda: desk.traces(judgd="bad")) == error_of(
            lambda: local.traces(judgd="bad")
        )

        # errors are those of the home itself
        evaluation = Evaluation.model_construct(id="evl_none")
        for name in ("plan", "build", "evaluate"):
            there = error_of(getattr(served.agent("none"), name))
            assert there == error_of(getattr(opened.agent("none"), name)), name
        assert error_of(lambda: desk.version("v9")) == error_of(lambda: local.version("v9"))
        assert error_of(lambda: desk.dataset("v9")) == error_of(lambda: local.dataset("v9"))
        assert error_of(lambda: desk.build("pairs"))[0] is DataError
        assert error_of(lambda: desk.gate(evaluation))[0] is NotFound

    # settings and files that no request has
    for settings in ({"salte": "x"}, {"agent": "other"}, {"wait": 3}):
        with pytest.raises(ConfigError, match="no such setting"):
            desk.build("chats", **settings)
    with pytest.raises(ConfigError, match="a query has no way"):
        desk.plan(margin=None)
    with pytest.raises(ConfigError, match="no such setting"):
        desk.train("sft", "small", dry_run=True)
    with pytest.raises(NotFound, match=r"train\.none"):
        desk.train("none", "small")
    with pytest.raises(InputError, match="accepts no folders"):
        desk.import_(tmp_path)
    with pytest.raises(Unauthenticated):
        _ = thumbwheel.connect(server.url, key="wrong").agents


@pytest.mark.slow
def test_a_key_lists_the_agents_that_it_may_read(
    served: RemoteHome, server: ThumbwheelServer, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    for name in ("shop", "bank"):
        served.agent(name).import_(file, "jsonl")
    command = ("keys", "add", "shopper", "--agent", "shop", "--verb", "read", "--json")
    printed = subprocess.run(
        [sys.executable, "-m", "thumbwheel", "--home", str(home), *command],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    shopper = thumbwheel.connect(server.url, key=json.loads(printed)["secret"])
    assert shopper.agents == ["shop"]
    assert shopper.agent("shop").versions == []
    with pytest.raises(Forbidden):
        shopper.agent("shop").build("chats")
    with pytest.raises(Forbidden):
        shopper.agent("bank").plan()


@pytest.mark.slow
def test_a_whole_turn_is_made_over_a_server(tmp_path: Path) -> None:
    from tests.models.tiny_models import tiny_base

    lines: list[dict[str, Any]] = []
    for number in range(120):
        word = ("plum", "pear", "fig")[number % 3]
        trace = {"type": "trace", "id": f"t{number}", "input": f"Fruit {number}?", "output": word}
        thumb = {"type": "feedback", "target": {"trace": f"t{number}"}, "kind": "thumb"}
        case = {"type": "case", "id": f"c{number}", "input": f"Which fruit is {number}?"}
        judged = {"reference": word, "checker": "exact_answer", "group": f"g{number}"}
        lines += [trace, {**thumb, "value": True, "rater": "ann"}, {**case, **judged}]
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    folder = tmp_path / "home"
    with thumbwheel.open(folder):
        pass
    (folder / "bases").mkdir()
    (folder / "bases" / "tiny").symlink_to(tiny_base(tmp_path / "base"))
    with running(folder, workers=1) as server:
        key = (folder / "access.token").read_text().strip()
        agent = thumbwheel.connect(server.url, key=key).agent("shop")
        agent.import_(file, "jsonl", gold=True)
        dataset = agent.build(method="sft")
        result = agent.train(
            "sft", "tiny", dataset=dataset, max_steps=3, min_rows=1, require_gain=False
        )
        assert (result.version, [version.name for version in agent.versions]) == (
            "v1",
            ["v0", "v1"],
        )
        assert agent.version().id == result.version_id
        (run,) = agent.runs
        assert (run.id, run.version, run.config["max_steps"]) == (result.run_id, "v1", 3)
        metrics = agent.metrics(run.id)
        assert {line["step"] for line in metrics} >= {1, 2, 3}
        evaluation = agent.evaluate("v1", max_new_tokens=4)
        decision = agent.gate(evaluation)
        assert decision.id.startswith("dec_") and decision.reasons
        assert agent.gate(evaluation) == decision
        export = agent.export("v1", "adapter", to=tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == set(export.files)
    with thumbwheel.open(folder) as home:
        local = home.agent("shop")
        assert local.gate(local.evaluate("v1", max_new_tokens=4)) == decision
        assert local.versions == agent_versions(local)
        assert (local.runs, local.metrics(run.id)) == ([run], metrics)


def agent_versions(local: OpenAgent) -> list[Any]:
    return [local.version("v0"), local.version("v1")]
