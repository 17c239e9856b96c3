"""Files of old versions go, unless something needs them; rows, and so lineage, stay."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.models.tiny_models import pair_files, record
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.homes.retention import Retained, retain
from thumbwheel.models import versions
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent, ModelVersion, VersionState
from thumbwheel.report.lineage import lineage

LATER = datetime.now(UTC) + timedelta(days=40)
AGENT = "desk"


@pytest.fixture
def thirty_versions_kept(tmp_path: Path) -> Iterator[Workspace]:
    sources = Sources({"retention": {"versions": 30}}, "none", {})
    with Workspace.open(Home.at(tmp_path / "home"), sources) as workspace:
        yield workspace


def trained(ws: Workspace, content: str, parent: ModelVersion | None = None) -> ModelVersion:
    """A candidate whose adapter has this content, and the folder of its run."""
    base = parent or versions.ensure_base(ws, AGENT, "base", "ab" * 32)
    files = pair_files(Artifacts.of(ws), ws.home.path)
    dataset = record(ws, schema.datasets, AGENT, shape="pairs", manifest={"files": files})
    run = record(
        ws,
        schema.runs,
        AGENT,
        dataset_id=dataset,
        algorithm="sft",
        base="base",
        state="finished",
    )
    folder = ws.home.runs / run
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "weights").write_text(content)
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "state").write_text(content)
    (folder / "spec.json").write_text("{}")
    return versions.add_candidate(ws, base, run, folder / "adapter")


def only(results: list[Retained]) -> Retained:
    (result,) = results
    return result


def has_files(ws: Workspace, version: ModelVersion) -> bool:
    assert version.adapter is not None
    return set(version.adapter.values()) <= set(Artifacts.of(ws).all())


def test_files_of_a_version_that_nothing_needs_go_and_its_lineage_stays(
    thirty_versions_kept: Workspace,
) -> None:
    old, twin = trained(thirty_versions_kept, "weights"), trained(thirty_versions_kept, "other")
    assert only(retain(thirty_versions_kept)).retired == [], "they are of today"
    planned = only(retain(thirty_versions_kept, now=LATER, dry_run=True))
    assert planned.retired == ["v1", "v2"]
    assert (
        has_files(thirty_versions_kept, old)
        and (thirty_versions_kept.home.runs / str(old.run_id) / "checkpoint-1").is_dir()
    )
    versions_folder = versions.adapter_folder(thirty_versions_kept, old)
    assert only(retain(thirty_versions_kept, now=LATER)).retired == planned.retired
    gone = versions.by_id(thirty_versions_kept, old.id)
    assert (gone.state, gone.adapter) == (VersionState.RETIRED, old.adapter)
    assert not has_files(thirty_versions_kept, old) and not has_files(thirty_versions_kept, twin)
    assert versions_folder is not None and not versions_folder.exists()
    assert [path.name for path in (thirty_versions_kept.home.runs / str(old.run_id)).iterdir()] == [
        "spec.json"
    ]
    with pytest.raises(Conflict, match="run reproduce"):
        versions.adapter_folder(thirty_versions_kept, gone)
    assert lineage(thirty_versions_kept, gone)
    assert only(retain(thirty_versions_kept, now=LATER)).retired == [], "it is done once"


def test_what_is_needed_stays_and_says_why(thirty_versions_kept: Workspace) -> None:
    names = ("aliased", "rolled back to", "deployed", "arm", "parent", "asked", "answered", "free")
    by_name = {name: trained(thirty_versions_kept, name) for name in names}
    trained(thirty_versions_kept, "child", by_name["parent"])
    for number, name in enumerate(("rolled back to", "aliased")):
        record(
            thirty_versions_kept,
            schema.switches,
            AGENT,
            id=f"swi_{number}",
            alias="live",
            from_id=by_name["rolled back to"].id if number else None,
            to_id=by_name[name].id,
            evidence={},
        )
    record(
        thirty_versions_kept,
        schema.aliases,
        AGENT,
        id="x",
        name="live",
        version_id=by_name["aliased"].id,
    )
    record(
        thirty_versions_kept,
        schema.deployments,
        AGENT,
        version_id=by_name["deployed"].id,
        state="warm",
    )
    plan = {"arms": [{"version_id": by_name["arm"].id}]}
    record(thirty_versions_kept, schema.experiments, AGENT, plan=plan, state="won", collected={})
    record(
        thirty_versions_kept,
        schema.loop_decisions,
        AGENT,
        version_id=by_name["asked"].id,
        state="waiting",
        cycle_id=None,
    )
    message = record(
        thirty_versions_kept, schema.messages, AGENT, role="user", content={"content": "Question?"}
    )
    for trace in ("trc_in", "trc_out"):
        record(
            thirty_versions_kept,
            schema.traces,
            AGENT,
            id=trace,
            source="t",
            external_id=trace,
            input_id=message,
        )
    record(
        thirty_versions_kept,
        schema.steps,
        AGENT,
        trace_id="trc_in",
        model_version_id=by_name["answered"].id,
    )
    record(
        thirty_versions_kept,
        schema.steps,
        AGENT,
        trace_id="trc_out",
        model_version_id=by_name["free"].id,
    )

    from thumbwheel.homes import retention

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "_used", lambda *_: {"trc_in"})
        result = only(retain(thirty_versions_kept, now=LATER))
    assert result.versions_stay == {
        "an alias": 1,
        "what was live before": 1,
        "a deployment": 1,
        "an experiment": 1,
        "a version that was trained from it": 1,
        "a decision that waits": 1,
        "rows of a dataset": 1,
    }
    assert result.retired == [by_name["free"].name, "v9"]
    assert all(has_files(thirty_versions_kept, by_name[name]) for name in names[:-1])


def test_a_decision_of_late_and_a_file_that_another_version_has_too_stay(
    thirty_versions_kept: Workspace,
) -> None:
    old, judged, same = (
        trained(thirty_versions_kept, "same"),
        trained(thirty_versions_kept, "judged"),
        trained(thirty_versions_kept, "same"),
    )
    evaluation = record(
        thirty_versions_kept, schema.evaluations, AGENT, candidate_id=judged.id, against_id=old.id
    )
    record(
        thirty_versions_kept,
        schema.decisions,
        AGENT,
        version_id=judged.id,
        evaluation_id=evaluation,
        recorded_at=LATER,
    )
    record(thirty_versions_kept, schema.deployments, AGENT, version_id=same.id, state="warm")
    assert only(retain(thirty_versions_kept, now=LATER)).retired == [old.name]
    assert has_files(thirty_versions_kept, judged)
    assert has_files(thirty_versions_kept, same), "the same file is needed by another version"


def test_an_erasure_after_it_finds_nothing_missing(thirty_versions_kept: Workspace) -> None:
    version = trained(thirty_versions_kept, "weights")
    subject = record(thirty_versions_kept, schema.subjects, AGENT, external_id="anna")
    message = record(
        thirty_versions_kept, schema.messages, AGENT, role="user", content={"content": "Question?"}
    )
    record(
        thirty_versions_kept,
        schema.traces,
        AGENT,
        source="t",
        external_id="t1",
        input_id=message,
        subject_id=subject,
    )
    assert only(retain(thirty_versions_kept, now=LATER)).retired == [version.name]
    assert erase(thirty_versions_kept, Agent.named(AGENT), "anna").state == "done"
    with thirty_versions_kept.db.read() as connection:
        assert connection.execute(sa.select(schema.traces.c.id)).all() == []
