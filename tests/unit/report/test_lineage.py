"""From a version back to single pieces of feedback, and from one of them forward to the versions
that learned from it."""

from __future__ import annotations

import json

import pytest

from thumbwheel.core.errors import InputError, NotFound, StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion
from thumbwheel.report.lineage import lineage, tree, uses


def test_a_version_back_to_its_feedback(empty_ws: Workspace, turn: ModelVersion) -> None:
    versions.point(empty_ws, turn, "live")
    version_lineage = lineage(empty_ws, versions.version(empty_ws, "support", "live"))
    assert (
        version_lineage.version["name"],
        version_lineage.parent["name"] if version_lineage.parent else None,
        version_lineage.aliases,
    ) == ("v1", "v0", ["live"])
    assert version_lineage.run
    assert version_lineage.dataset
    assert version_lineage.sources
    assert (version_lineage.run["id"], version_lineage.dataset["id"]) == ("run_1", "dst_pairs")
    assert version_lineage.sources.rows == {"train": 3, "dev": 2, "gate": 1}
    assert version_lineage.sources.feedback == {
        "train": ["fbk_0", "fbk_1", "fbk_2"],
        "dev": ["fbk_3", "fbk_4"],
        "gate": ["fbk_5"],
    }
    assert version_lineage.sources.subjects["gate"] == ["sub_1"]
    assert version_lineage.sources.origins == {"correction": 3, "preference": 3}
    assert [record["id"] for record in version_lineage.evaluations] == ["evl_1"]
    assert [record["decision"] for record in version_lineage.decisions] == ["approved"]
    assert [record["path"] for record in version_lineage.exports] == ["/models/support-v1"]
    assert (
        json.loads(json.dumps(version_lineage.to_json()))["version"]["base_fingerprint"]
        == "ab" * 32
    )


def test_a_base_has_no_run_but_children(empty_ws: Workspace, turn: ModelVersion) -> None:
    version_lineage = lineage(empty_ws, versions.version(empty_ws, "support", "v0"))
    assert (
        version_lineage.run,
        version_lineage.dataset,
        version_lineage.sources,
        version_lineage.parent,
    ) == (None, None, None, None)
    assert version_lineage.children == ["v1"]
    assert version_lineage.evaluations == []


def test_the_tree_names_every_link(empty_ws: Workspace, turn: ModelVersion) -> None:
    lines = list(tree(lineage(empty_ws, versions.version(empty_ws, "support", "v1"))))
    assert lines[0][0] == 0
    text = "\n".join(f"{depth} {line}" for depth, line in lines)
    for link in (
        "run_1",
        "dst_pairs",
        "evl_1",
        "approved",
        "/models/support-v1",
        "train: rows 3, feedback 3, traces 6, subjects 2",
    ):
        assert link in text
    assert list(tree(lineage(empty_ws, versions.version(empty_ws, "support", "v0"))))[-1] == (
        1,
        "trained further: v1",
    )


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("fbk_1", "learned"),
        ("fbk_3", "selected"),
        ("fbk_5", "judged"),
        ("trc_0", "learned"),
        ("f4", "selected"),
    ],
)
def test_what_a_source_was_used_for(
    empty_ws: Workspace, recorded: None, source: str, role: str
) -> None:
    source_uses = uses(empty_ws, "support", source)
    assert [(use.version, use.role, sum(use.rows.values())) for use in source_uses] == [
        ("v1", role, 1)
    ]


def test_a_subject_is_found_over_all_splits(empty_ws: Workspace, recorded: None) -> None:
    (source_uses,) = uses(empty_ws, "support", "sub_1")
    assert source_uses.rows == {"train": 1, "dev": 1, "gate": 1}
    assert source_uses.role == "learned"


def test_recorded_but_unused_differs_from_unknown(empty_ws: Workspace, recorded: None) -> None:
    assert uses(empty_ws, "support", "fbk_99") == []
    with pytest.raises(NotFound, match="no feedback, trace or subject"):
        uses(empty_ws, "support", "fbk_unknown")
    with pytest.raises(InputError):
        uses(empty_ws, "../support", "fbk_1")


def test_a_damaged_dataset_is_an_error_and_no_empty_lineage(
    empty_ws: Workspace, turn: ModelVersion
) -> None:
    version_lineage = lineage(empty_ws, versions.version(empty_ws, "support", "v1"))
    assert version_lineage.dataset
    next(
        empty_ws.home.blobs.rglob(version_lineage.dataset["manifest"]["files"]["train"])
    ).write_bytes(b"x")
    with pytest.raises(StorageError, match="damaged or changed"):
        lineage(empty_ws, versions.version(empty_ws, "support", "v1"))
