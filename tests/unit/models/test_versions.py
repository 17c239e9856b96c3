"""Versions from v0, the table of moves, lineage parents, names and aliases."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from tests.models.tiny_models import record
from thumbwheel.core.errors import Conflict, InputError, NotFound, StorageError
from thumbwheel.db.schema import datasets, model_versions, runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import MOVES, Agent, Basis, ModelVersion, VersionState

LEGAL = {
    ("candidate", "approved"),
    ("candidate", "rejected"),
    ("candidate", "retired"),
    ("rejected", "retired"),
    ("approved", "retired"),
}

SUPPORT = Agent.named("support")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "adapter_config.json").write_text("{}")
    return folder


def candidate(ws: Workspace, adapter: Path, agent: str = "support") -> ModelVersion:
    base = versions.ensure_base(ws, agent, "base", "f" * 64)
    return versions.add_candidate(ws, base, run_of(ws, base), adapter)


def run_of(ws: Workspace, base: ModelVersion) -> str:
    """A run row (with its dataset) that the version may point at."""
    return record(ws, runs, base.agent, dataset_id=record(ws, datasets, base.agent))


def in_state(ws: Workspace, adapter: Path, state: VersionState) -> ModelVersion:
    version = candidate(ws, adapter)
    path = {
        VersionState.CANDIDATE: [],
        VersionState.RETIRED: [VersionState.REJECTED, VersionState.RETIRED],
    }.get(state, [state])
    for step in path:
        version = versions.move(ws, version, step, Basis.GOLD)
    return version


def taint(ws: Workspace, version: ModelVersion) -> None:
    ws.db.write(
        lambda connection: connection.execute(
            model_versions.update().where(model_versions.c.id == version.id).values(tainted=True)
        )
    )


def test_v0_is_what_runs_today_and_is_registered_once(empty_ws: Workspace) -> None:
    first = versions.ensure_base(empty_ws, "support", "/models/base", "a" * 64)
    assert (first.name, first.state, first.adapter, first.parent_id) == (
        "v0",
        VersionState.APPROVED,
        None,
        None,
    )
    assert versions.ensure_base(empty_ws, "support", "/moved/base", "a" * 64) == first
    assert versions.ensure_base(empty_ws, "support", "/models/base", "b" * 64).name == "v1"
    assert versions.ensure_base(empty_ws, "other", "/models/base", "a" * 64).name == "v0"


def test_bases_registered_at_once_are_one_version(empty_ws: Workspace) -> None:
    threads = [
        threading.Thread(target=versions.ensure_base, args=(empty_ws, "support", "base", "a" * 64))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [version.name for version in versions.versions(empty_ws, SUPPORT)] == ["v0"]


def test_numbers_follow_and_lineage_points_at_the_parent(
    empty_ws: Workspace, adapter: Path
) -> None:
    candidates = [candidate(empty_ws, adapter) for _ in range(3)]
    assert [version.name for version in candidates] == ["v1", "v2", "v3"]
    base = versions.version(empty_ws, "support", "v0")
    assert {version.parent_id for version in candidates} == {base.id}
    assert {version.base_fingerprint for version in candidates} == {base.base_fingerprint}
    assert all(
        version.run_id
        and version.state is VersionState.CANDIDATE
        and version.basis is None
        and not version.tainted
        for version in candidates
    )
    child = versions.add_candidate(empty_ws, candidates[0], run_of(empty_ws, base), adapter)
    assert child.parent_id == candidates[0].id


def test_candidates_added_at_once_get_different_numbers(empty_ws: Workspace, adapter: Path) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    runs = [run_of(empty_ws, base) for _ in range(8)]
    threads = [
        threading.Thread(target=versions.add_candidate, args=(empty_ws, base, run, adapter))
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [version.number for version in versions.versions(empty_ws, SUPPORT)] == list(range(9))


def test_a_run_gives_one_version(empty_ws: Workspace, adapter: Path) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    run = run_of(empty_ws, base)
    first = versions.add_candidate(empty_ws, base, run, adapter)
    assert versions.add_candidate(empty_ws, base, run, adapter) == first


def test_the_adapter_comes_back_verified(empty_ws: Workspace, adapter: Path) -> None:
    version = candidate(empty_ws, adapter)
    folder = versions.adapter_folder(empty_ws, version)
    assert folder
    assert (folder / "adapter_model.safetensors").read_bytes() == b"weights"
    assert version.adapter
    blob = next(empty_ws.home.blobs.rglob(version.adapter["adapter_model.safetensors"]))
    blob.write_bytes(b"changed")
    with pytest.raises(StorageError, match="damaged or changed"):
        versions.adapter_folder(empty_ws, version)
    assert versions.adapter_folder(empty_ws, versions.version(empty_ws, "support", "v0")) is None


@pytest.mark.parametrize(("start", "target"), list(itertools.product(VersionState, VersionState)))
def test_every_move_of_the_table(
    empty_ws: Workspace, adapter: Path, start: VersionState, target: VersionState
) -> None:
    version = in_state(empty_ws, adapter, start)
    if (start.value, target.value) in LEGAL:
        moved = versions.move(empty_ws, version, target, Basis.FEEDBACK)
        assert (moved.state, moved.basis) == (target, Basis.FEEDBACK)
    else:
        with pytest.raises(Conflict, match=f"it is {start}"):
            versions.move(empty_ws, version, target)
        assert versions.by_id(empty_ws, version.id) == version


def test_the_table_is_the_one_of_the_design() -> None:
    assert {
        (start.value, target.value) for start, targets in MOVES.items() for target in targets
    } == LEGAL


def test_a_move_is_checked_against_what_is_stored_and_keeps_its_basis(
    empty_ws: Workspace, adapter: Path
) -> None:
    stale = candidate(empty_ws, adapter)
    versions.move(empty_ws, stale, VersionState.APPROVED, Basis.GOLD)
    with pytest.raises(Conflict, match="it is approved"):
        versions.move(empty_ws, stale, VersionState.REJECTED)
    assert versions.move(empty_ws, stale, VersionState.RETIRED).basis is Basis.GOLD


def test_a_tainted_version_is_never_approved(empty_ws: Workspace, adapter: Path) -> None:
    version = candidate(empty_ws, adapter)
    taint(empty_ws, version)
    with pytest.raises(Conflict, match="tainted"):
        versions.move(empty_ws, version, VersionState.APPROVED, Basis.GOLD)
    assert versions.move(empty_ws, version, VersionState.REJECTED).tainted


@pytest.mark.parametrize(
    "state", [state for state in VersionState if state is not VersionState.APPROVED]
)
def test_only_an_approved_version_gets_an_alias(
    empty_ws: Workspace, adapter: Path, state: VersionState
) -> None:
    with pytest.raises(Conflict, match=f"it is {state}"):
        versions.point(empty_ws, in_state(empty_ws, adapter, state), "canary")
    assert versions.aliases_of(empty_ws, SUPPORT) == {}


def test_tainted_and_feedback_only_versions_do_not_go_live(
    empty_ws: Workspace, adapter: Path
) -> None:
    version = versions.move(
        empty_ws, candidate(empty_ws, adapter), VersionState.APPROVED, Basis.FEEDBACK
    )
    with pytest.raises(Conflict, match="canary only"):
        versions.point(empty_ws, version, "live")
    versions.point(empty_ws, version, "canary")
    taint(empty_ws, version)
    with pytest.raises(Conflict, match="tainted"):
        versions.point(empty_ws, version, "canary")


def test_an_alias_switches_in_one_step(empty_ws: Workspace, adapter: Path) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    tuned = versions.move(empty_ws, candidate(empty_ws, adapter), VersionState.APPROVED, Basis.GOLD)
    versions.point(empty_ws, base, "live")
    stop, seen = threading.Event(), set()

    def watch() -> None:
        while not stop.is_set():
            seen.add(versions.aliases_of(empty_ws, SUPPORT).get("live"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(40):
        versions.point(empty_ws, tuned if turn % 2 else base, "live")
    stop.set()
    watcher.join()
    assert seen <= {base.id, tuned.id}
    assert versions.version(empty_ws, "support", "live") == tuned


def test_a_switch_that_failed_is_taken_back_unless_the_alias_moved_since(
    empty_ws: Workspace, adapter: Path
) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    first = in_state(empty_ws, adapter, VersionState.APPROVED)
    begun = versions.point(empty_ws, base, "live")
    failed = versions.point(empty_ws, first, "live")
    versions.take_back(empty_ws, SUPPORT, failed)
    assert versions.aliases_of(empty_ws, SUPPORT) == {"live": base.id}
    assert [switch.id for switch in versions.switches(empty_ws, SUPPORT, "live")] == [begun.id]
    versions.take_back(empty_ws, SUPPORT, begun)
    assert versions.aliases_of(empty_ws, SUPPORT) == {}
    assert versions.switches(empty_ws, SUPPORT, "live") == []

    late = versions.point(empty_ws, first, "live")
    newer = versions.point(empty_ws, base, "live")
    versions.take_back(empty_ws, SUPPORT, late)
    assert versions.aliases_of(empty_ws, SUPPORT) == {"live": base.id}
    history = [switch.id for switch in versions.switches(empty_ws, SUPPORT, "live")]
    assert history == [late.id, newer.id]


@pytest.mark.parametrize("alias", ["latest", "v1", "12", "../live", "", "Live now"])
def test_an_alias_cannot_mean_a_version_or_a_path(empty_ws: Workspace, alias: str) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    with pytest.raises(InputError):
        versions.point(empty_ws, base, alias)


def test_an_alias_stays_within_its_agent(empty_ws: Workspace) -> None:
    versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    other = versions.ensure_base(empty_ws, "other", "base", "f" * 64)
    switch = versions.point(empty_ws, other, "live")
    assert versions.aliases_of(empty_ws, SUPPORT) == {}
    assert versions.aliases_of(empty_ws, Agent.named("other")) == {"live": switch.to_id}


def test_names_of_a_version(empty_ws: Workspace, adapter: Path) -> None:
    base = versions.ensure_base(empty_ws, "support", "base", "f" * 64)
    versions.point(empty_ws, base, "live")
    tuned = candidate(empty_ws, adapter)
    for name, expected in {
        "v0": base,
        "0": base,
        "live": base,
        base.id: base,
        "v1": tuned,
        "latest": tuned,
    }.items():
        assert versions.version(empty_ws, "support", name) == expected


def test_a_near_name_is_offered(empty_ws: Workspace) -> None:
    versions.point(empty_ws, versions.ensure_base(empty_ws, "support", "base", "f" * 64), "canary")
    with pytest.raises(NotFound, match="Did you mean 'canary'"):
        versions.version(empty_ws, "support", "cannary")
    with pytest.raises(NotFound, match="Did you mean 'support'"):
        versions.version(empty_ws, "suport", "v0")
    with pytest.raises(InputError):
        versions.version(empty_ws, "../support", "v0")
    with pytest.raises(NotFound, match="no such version"):
        versions.by_id(empty_ws, "ver_unknown")
    with pytest.raises(InputError):
        versions.ensure_base(empty_ws, "../x", "base", "f" * 64)
