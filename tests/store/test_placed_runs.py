"""Runs that Ray places on other hosts of a home: the same result as here, whoever is killed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bucket_hosts import Hosts
from tests.held_runs import hold_after, is_held
from tests.models.tiny_models import tiny_base
from tests.servers.postgres_server import Databases
from tests.servers.ray_cluster import RayCluster
from tests.training_rows import QUICK, frozen
from tests.waiting import until
from thumbwheel.core.config import Sources
from thumbwheel.core.errors import ConfigError, Conflict, Fenced, ThumbwheelError
from thumbwheel.datasets.types import Dataset
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import versions
from thumbwheel.training import store
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, runs, train
from thumbwheel.training.types import Run, RunResult, RunState

pytestmark = [pytest.mark.postgresql, pytest.mark.slow, pytest.mark.timeout(1800)]
AGENT = Agent.named("a")
HOSTS = ("second", "third")
LEASE = 6.0
OPTIONS: dict[str, Any] = QUICK | {
    "max_steps": 4,
    "save_steps": 1,
    "eval_steps": 4,
    "require_gain": False,
}


class PlacedWorld:
    """A home on three hosts. The first one has the worker; Ray runs on those that a test starts."""

    def __init__(self, hosts: Hosts, ray: RayCluster, folder: Path) -> None:
        self.hosts, self.ray, self.folder = hosts, ray, folder
        self.holds = folder / "holds"
        hosts.join("third")
        self.base = tiny_base(folder / "base")

    def of_host(self, name: str) -> dict[str, str]:
        """The variables with which Ray is started on a host."""
        return self.hosts.variables | {
            "THUMBWHEEL_HOME": str(self.hosts.home(name).path),
            "HOLDS": str(self.holds),
            "OMP_NUM_THREADS": "1",
        }

    def opened(self, **placement: Any) -> Workspace:
        """The home of the worker's host, with these settings of placement."""
        settings = {"placement": {"launcher": "ray", **placement}, "jobs": {"lease_seconds": LEASE}}
        return Workspace.open(
            self.hosts.home("first"), Sources(settings, "none", self.hosts.variables)
        )

    def dataset(self, ws: Workspace) -> Dataset:
        return frozen(ws, "a", "pairs", 16, 4)

    def train(self, ws: Workspace, dataset: Dataset, **options: Any) -> RunResult:
        base = find_base(str(self.base), ws.home.cache)
        return train(ws, AGENT, "dpo", base, dataset=dataset, options=OPTIONS | options)

    def train_here(self, dataset: Dataset, **options: Any) -> list[dict[str, Any]]:
        """The curve of the same run on this host."""
        with self.hosts.opened("first") as ws:
            result = self.train(ws, dataset, **options)
            return curve(ws, result.run_id)


def curve(ws: Workspace, run_id: str) -> list[dict[str, Any]]:
    lines = RunDir(ws.home.runs / run_id).read_metrics()
    return [{key: line[key] for key in line if key != "step_seconds"} for line in lines]


def assert_same(lines: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    for line, expected_line in zip(lines, expected, strict=True):
        assert line == pytest.approx(expected_line, rel=1e-5, abs=1e-5)


@pytest.fixture
def world(
    tmp_path: Path, databases: Databases, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PlacedWorld]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with RayCluster() as ray:
        for name, value in ray.variables.items():
            monkeypatch.setenv(name, value)
        url = databases.migrated()
        yield PlacedWorld(Hosts(tmp_path, url, bucket), ray, tmp_path)
    databases.drop(url)


def test_a_run_on_another_host_is_the_same_as_here(world: PlacedWorld) -> None:
    world.ray.start_head(world.of_host("second"), "--num-cpus", "1")
    with world.opened() as ws:
        dataset = world.dataset(ws)
        result = world.train(ws, dataset)
        assert (result.state, result.version) == (RunState.FINISHED, "v1")
        lines = curve(ws, result.run_id)
        folder = RunDir(ws.home.runs / result.run_id)
        assert (folder.adapter / "adapter_model.safetensors").is_file()
        assert "preparing" in folder.driver_log.read_text() or folder.log.read_text()
    assert list(world.hosts.home("second").cache.glob("placed/*")) == []
    assert_same(lines, world.train_here(dataset))


def disturbed(
    world: PlacedWorld, ws: Workspace, dataset: Dataset, disturb: Callable[[], None], **options: Any
) -> RunResult:
    """Train, with something that happens while the run holds after its second step."""
    hold_after(world.holds, 2)
    options |= {"callbacks": ["training_callbacks:Held"]}
    problems: list[BaseException] = []

    def wait_and_disturb() -> None:
        try:
            until(lambda: is_held(world.holds, 2), 600)
            # both steps are in a checkpoint of the worker's folder
            until(lambda: steps_here(ws) >= 2, 60)
            disturb()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=wait_and_disturb)
    thread.start()
    try:
        return world.train(ws, dataset, **options)
    finally:
        thread.join()
        assert not problems, problems


def steps_here(ws: Workspace) -> int:
    folders = (ws.home.runs / runs(ws, AGENT)[-1].id / "checkpoints").glob("checkpoint-*")
    return max((int(path.name.removeprefix("checkpoint-")) for path in folders), default=0)


def fence(ws: Workspace, run: Run) -> int | None:
    with ws.db.read() as connection:
        return store.fence_of(connection, run.id)


def assert_gone_on(world: PlacedWorld, ws: Workspace, result: RunResult, dataset: Dataset) -> None:
    """The run lost its place at least once, and ended as an undisturbed one does."""
    assert (result.state, result.version) == (RunState.FINISHED, "v1")
    run = find_run(ws, result.run_id)
    assert (fence(ws, run) or 0) >= 1
    assert result.metrics["resumed"]
    assert_same(curve(ws, run.id), world.train_here(dataset))


def children_of(home: Path) -> list[int]:
    """The processes that train in the cache of a home."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if "thumbwheel.training.process" in command and str(home / "cache") in command:
            pids.append(int(folder.name))
    return pids


def test_two_ranks_on_two_hosts_go_on_when_the_daemon_of_one_is_killed(world: PlacedWorld) -> None:
    world.ray.start_head(world.of_host("first"), "--num-cpus", "0")
    nodes = [world.ray.start_host(world.of_host(name), "--num-cpus", "1") for name in HOSTS]

    def kill_one() -> None:
        assert all(children_of(world.hosts.home(name).path) for name in HOSTS)
        (raylet,) = nodes[1].members("raylet/raylet")
        raylet.kill()
        nodes[1].kill()
        world.ray.start_host(world.of_host("third"), "--num-cpus", "1")

    with world.opened(hosts=2) as ws:
        dataset = world.dataset(ws)
        result = disturbed(world, ws, dataset, kill_one, ranks=2)
        assert_gone_on(world, ws, result, dataset)


def test_a_run_goes_on_when_its_actor_is_killed(world: PlacedWorld) -> None:
    node = world.ray.start_head(world.of_host("second"), "--num-cpus", "1")

    def kill_actor() -> None:
        (actor,) = node.members("ray::PlacedHost")
        (child,) = children_of(world.hosts.home("second").path)
        actor.kill()
        until(lambda: child not in children_of(world.hosts.home("second").path), 10)

    with world.opened() as ws:
        dataset = world.dataset(ws)
        result = disturbed(world, ws, dataset, kill_actor)
        assert_gone_on(world, ws, result, dataset)


def test_a_run_goes_on_when_the_head_was_killed_and_is_there_again(world: PlacedWorld) -> None:
    head = world.ray.start_head(world.of_host("first"), "--num-cpus", "0")
    host = world.ray.start_host(world.of_host("second"), "--num-cpus", "1")

    def kill_head() -> None:
        head.kill()
        # its daemons end with it, and with them what they started
        until(lambda: not children_of(world.hosts.home("second").path), 180)
        host.kill()
        world.ray.start_head(world.of_host("first"), "--num-cpus", "0")
        world.ray.start_host(world.of_host("second"), "--num-cpus", "1")

    with world.opened() as ws:
        dataset = world.dataset(ws)
        result = disturbed(world, ws, dataset, kill_head)
        assert_gone_on(world, ws, result, dataset)


def test_a_host_that_hung_writes_nothing_after_the_run_went_on_elsewhere(
    world: PlacedWorld,
) -> None:
    world.ray.start_head(world.of_host("first"), "--num-cpus", "0")
    frozen_node = world.ray.start_host(world.of_host("second"), "--num-cpus", "1")
    zombie = world.hosts.home("second").path
    hung: list[int] = []

    def freeze() -> None:
        hung.extend(children_of(zombie))
        frozen_node.signal(signal.SIGSTOP)
        world.ray.start_host(world.of_host("third"), "--num-cpus", "1")

    with world.opened() as ws:
        dataset = world.dataset(ws)
        try:
            result = disturbed(world, ws, dataset, freeze)
            before = rows_of(ws, result.run_id), world.hosts.bucket.sizes("")
        finally:
            frozen_node.signal(signal.SIGCONT)
        assert hung and children_of(zombie) in ([], hung)
        until(lambda: not children_of(zombie), LEASE + 10)
        assert (rows_of(ws, result.run_id), world.hosts.bucket.sizes("")) == before
        assert_gone_on(world, ws, result, dataset)


def rows_of(ws: Workspace, run_id: str) -> tuple[Any, ...]:
    """What the database has of a run."""
    with ws.db.read() as connection:
        checkpoints = store.checkpoints_of(connection, run_id)
    return find_run(ws, run_id), checkpoints, versions(ws, AGENT)


def test_a_host_stops_when_another_process_has_taken_the_run_over(world: PlacedWorld) -> None:
    world.ray.start_head(world.of_host("second"), "--num-cpus", "1")
    with world.opened() as ws:
        dataset = world.dataset(ws)

        def take_over() -> None:
            run = runs(ws, AGENT)[-1]
            ws.db.write(lambda connection: store.restart(connection, run.id, folder_id(ws.home)))
            until(lambda: not children_of(world.hosts.home("second").path), LEASE + 10)

        with pytest.raises(Fenced, match="another process goes on with it"):
            disturbed(world, ws, dataset, take_over)
        (run,) = runs(ws, AGENT)
        assert (run.state, fence(ws, run)) == (RunState.RUNNING, 1)
        assert [version.number for version in versions(ws, AGENT)] == [0]


def refusal(world: PlacedWorld, **placement: Any) -> ThumbwheelError:
    """The error of a run that is placed so."""
    with world.opened(**placement) as ws:
        with pytest.raises(ThumbwheelError) as refused:
            world.train(ws, world.dataset(ws), ranks=placement.get("hosts", 1))
        assert [run.state for run in runs(ws, AGENT)][-1:] in ([], [RunState.FAILED])
        assert len(versions(ws, AGENT)) <= 1
    return refused.value


def test_what_is_no_place_for_a_run_is_refused(
    world: PlacedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = refusal(world)
    assert isinstance(error, Conflict) and "cannot be reached" in error.why
    world.ray.start_head({"THUMBWHEEL_HOME": str(world.folder / "nowhere")}, "--num-cpus", "1")
    assert "the run asks 2 hosts with 1 processor, there is 1" in refusal(world, hosts=2).why
    assert "1 host with 4 GPUs, there are 0" in refusal(world, gpus_per_host=4).why
    assert "no folder of this home" in refusal(world).why

    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    error = refusal(world)
    assert isinstance(error, ConfigError) and "refuses the token" in error.why
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    error = refusal(world)
    assert isinstance(error, ConfigError) and "RAY_AUTH_MODE is not `token`" in error.why


def test_a_cluster_without_tokens_or_of_another_version_is_refused(
    world: PlacedWorld,
) -> None:
    world.ray.auth_mode = "disabled"
    world.ray.start_head(world.of_host("second"), "--num-cpus", "1")
    error = refusal(world)
    assert isinstance(error, ConfigError) and "lets in everybody" in error.why
    world.ray.claim_version("2.59.0")
    error = refusal(world)
    assert isinstance(error, ConfigError) and "another version" in error.why
    assert "2.59.0" in error.why
