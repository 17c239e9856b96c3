"""Where a run can be placed, and what the ranks of each host are told."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.required import missing
from thumbwheel.core.errors import ConfigError, MissingExtra, NotFound
from thumbwheel.engine.ranks import LISTENER, LOST
from thumbwheel.training.launchers import LAUNCHERS, ray_cluster
from thumbwheel.training.placement import (
    HostShare,
    Placement,
    PlacementConfig,
    free_listener,
    interface_towards,
    variables_of,
)
from thumbwheel.training.types import RunState, Status


def placement(**settings: object) -> Placement:
    return Placement(PlacementConfig.model_validate({"launcher": "ray", **settings}))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"thumbwheel\[ray\]"):
        LAUNCHERS.get("ray").require(1, "auto", placement())
    with pytest.raises(NotFound, match="Known: here, ray"):
        LAUNCHERS.get("rey")


def test_ranks_are_divided_among_hosts_with_gpus() -> None:
    if find_spec("ray") is None:
        missing("ray", "Ray is not installed: pip install -e '.[ray]'")
    launcher = LAUNCHERS.get("ray")
    # the worker's host needs no GPU
    launcher.require(8, "cuda", placement(hosts=2, gpus_per_host=4))
    with pytest.raises(ConfigError, match="cannot be divided among 2 hosts"):
        launcher.require(3, "auto", placement(hosts=2))
    with pytest.raises(ConfigError, match="2 hosts with 2 GPUs") as refused:
        launcher.require(8, "cuda", placement(hosts=2, gpus_per_host=2))
    assert "Set ranks to 4" in refused.value.fix


def test_a_place_is_lost_when_its_driver_says_so_or_is_gone() -> None:
    ray, here = LAUNCHERS.get("ray"), LAUNCHERS.get("here")
    running, failed = Status(RunState.RUNNING), Status(RunState.FAILED)
    assert ray.is_lost(LOST, failed) and ray.is_lost(-6, running) and ray.is_lost(1, None)
    assert not ray.is_lost(2, failed) and not ray.is_lost(0, Status(RunState.FINISHED))
    assert not here.is_lost(LOST, failed)


def test_each_host_numbers_its_ranks_on_from_those_before_it() -> None:
    with free_listener() as listener:
        port = listener.getsockname()[1]
        first = HostShare(0, 2, 4, "127.0.0.1", port, listener.fileno(), threads=3)
        second = HostShare(2, 2, 4, "127.0.0.1", port, threads=3)
        variables = [*variables_of(first, "cpu", {}), *variables_of(second, "cpu", {})]
        assert variables[0][LISTENER] == str(listener.fileno())
    assert [of_rank["RANK"] for of_rank in variables] == ["0", "1", "2", "3"]
    assert [of_rank["LOCAL_RANK"] for of_rank in variables] == ["0", "1", "0", "1"]
    assert {of_rank["WORLD_SIZE"] for of_rank in variables} == {"4"}
    assert {of_rank["LOCAL_WORLD_SIZE"] for of_rank in variables} == {"2"}
    assert {of_rank["OMP_NUM_THREADS"] for of_rank in variables} == {"3"}
    assert [LISTENER in of_rank for of_rank in variables] == [True, False, False, False]


def test_the_interface_towards_this_host_is_the_one_with_its_address() -> None:
    assert interface_towards("127.0.0.1") in ("lo", "lo0")
    # another address of the loopback network is found by the way that leads there
    assert interface_towards("127.0.0.2") == "lo"
