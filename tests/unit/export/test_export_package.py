"""`export`: whole and checked or not there; recorded with the hash of every file; honest about
tainted, changed and unmergeable models."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.tiny_models import tiny_adapter, tiny_base, tuned_version
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError, ModelError, NotFound, StorageError
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.load import base_fingerprint
from thumbwheel.export.formats import merged
from thumbwheel.export.formats.merged import MergedFormat
from thumbwheel.export.merge import whole
from thumbwheel.export.package import export, exports
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, EndpointAddress, ModelVersion, VersionState
from thumbwheel.models.versions import version as named


@pytest.fixture
def version(empty_ws: Workspace, tiny_model: Path, adapter: Path) -> ModelVersion:
    return tuned_version(empty_ws, tiny_model, adapter)


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name not in ("home",)]


@pytest.mark.parametrize("format", ["adapter", "merged"])
def test_an_export_is_recorded_with_every_hash(
    empty_ws: Workspace, version: ModelVersion, tiny_model: Path, format: str, tmp_path: Path
) -> None:
    versions.move(empty_ws, version, VersionState.APPROVED, Basis.GOLD)
    done = export(empty_ws, named(empty_ws, "support", "v1"), format, tmp_path / "deep" / "out")
    manifest = json.loads((done.path / "thumbwheel.json").read_text())
    hashes = {
        path.relative_to(done.path).as_posix() for path in done.path.rglob("*") if path.is_file()
    }
    assert set(manifest["files"]) == hashes - {"thumbwheel.json"} == set(done.files)
    for name, entry in done.files.items():
        content = (done.path / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert (manifest["version"], manifest["state"], manifest["basis"], manifest["base"]) == (
        "v1",
        "approved",
        "gold",
        str(tiny_model),
    )
    assert manifest["run_id"] == version.run_id
    assert manifest["parity"]["mean_kl"] < 1e-5 < manifest["parity"]["effect_kl"]
    assert exports(empty_ws, version) == [done]
    assert left_over(tmp_path / "deep") == ["out"]
    assert oct(done.path.stat().st_mode & 0o777) == "0o700"


def test_the_adapter_export_names_its_base_for_good(
    empty_ws: Workspace, version: ModelVersion, tiny_model: Path, tmp_path: Path
) -> None:
    done = export(empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "out")
    assert json.loads((done.path / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(tiny_model.resolve())
    assert {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "adapter_model.safetensors",
    } <= set(done.files)


def test_a_base_is_exported_merged_only(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path
) -> None:
    done = export(empty_ws, named(empty_ws, "support", "v0"), "merged", tmp_path / "base")
    assert done.parity.effect_kl is None
    assert done.parity.max_abs_diff == 0
    with pytest.raises(ModelError, match="no adapter"):
        export(empty_ws, named(empty_ws, "support", "v0"), "adapter", tmp_path / "out")
    assert left_over(tmp_path) == ["base"]


def test_unknown_names(empty_ws: Workspace, version: ModelVersion) -> None:
    with pytest.raises(NotFound, match="Did you mean 'merged'"):
        export(empty_ws, named(empty_ws, "support", "v1"), "mergd")
    with pytest.raises(NotFound, match="no such version"):
        export(empty_ws, named(empty_ws, "support", "v9"))


def test_nothing_is_overwritten(empty_ws: Workspace, version: ModelVersion, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(Conflict, match="already contains files"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out")
    assert left_over(tmp_path / "out") == ["thesis.txt"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Conflict, match="already contains files"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "file")
    with pytest.raises(InputError, match="folder"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "file" / "out")
    (tmp_path / "empty").mkdir()
    assert export(empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "empty").files


def test_a_tainted_version_stays_here(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path
) -> None:
    empty_ws.db.write(
        lambda c: c.execute(
            model_versions.update().where(model_versions.c.id == version.id).values(tainted=True)
        )
    )
    assert not version.tainted  # the value is older than the erasure
    with pytest.raises(Conflict, match="tainted"):
        export(empty_ws, version, "merged", tmp_path / "out")
    assert left_over(tmp_path) == []


def test_a_changed_base_is_noticed(empty_ws: Workspace, adapter: Path, tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "home" / "base")
    version = tuned_version(empty_ws, base, adapter, fingerprint=base_fingerprint(base))
    tiny_base(base, seed=5)
    with pytest.raises(ModelError, match="differ from those that the version was trained on"):
        export(empty_ws, version, "merged", tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("named", ["another base", "a/hub-id"])
def test_an_adapter_of_another_base_is_refused(
    empty_ws: Workspace, tiny_model: Path, named: str, tmp_path: Path
) -> None:
    other = tiny_base(tmp_path / "home" / "other", seed=7) if named == "another base" else named
    foreign = tiny_adapter(tiny_model, tmp_path / "home" / "adapter")
    config = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(other)})
    )
    version = tuned_version(empty_ws, tiny_model, foreign)
    with pytest.raises(ModelError, match="its own metadata names the base"):
        export(empty_ws, version, "merged", tmp_path / "out")
    assert left_over(tmp_path) == []


def test_an_endpoint_has_no_weights_to_export(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path
) -> None:
    versions.add_endpoint(empty_ws, "support", EndpointAddress("http://127.0.0.1:9/v1", "gpt"))
    with pytest.raises(ModelError, match="its weights are not here"):
        export(empty_ws, named(empty_ws, "support", "latest"), "merged", tmp_path / "out")


def test_a_base_that_has_moved_is_told_by_its_weights(
    empty_ws: Workspace, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(tiny_model, tmp_path / "home" / "moved")
    tuned_version(empty_ws, moved, adapter)
    assert export(empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "out").files


def broken_merge(change: Any) -> Any:
    def merge(source: Any, folder: Path) -> None:
        model = whole(source)
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)

    return merge


BROKEN = {
    "one row of one weight": lambda model: model.model.layers[0].mlp.up_proj.weight[0].add_(0.5),
    "rope theta": lambda model: model.config.rope_parameters.update(rope_theta=10000.0),
    "the head": lambda model: model.lm_head.weight.mul_(1.02),
    "a NaN": lambda model: model.model.norm.weight[0].fill_(float("nan")),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_wrong_merge_is_an_error_that_leaves_nothing(
    empty_ws: Workspace,
    version: ModelVersion,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merged, "merge", broken_merge(BROKEN[what]))
    with pytest.raises(ModelError, match="differs from the trained model"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out")
    assert left_over(tmp_path) == []
    assert exports(empty_ws, version) == []


def test_a_wrong_template_is_an_error(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = MergedFormat.write

    def write(self: MergedFormat, source: Any, folder: Path) -> None:
        whole(self, source, folder)
        (folder / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        )

    monkeypatch.setattr(MergedFormat, "write", write)
    with pytest.raises(ModelError, match="chat template gives other prompt tokens"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_a_change_that_rounding_would_lose_is_not_merged(
    empty_ws: Workspace, tmp_path: Path
) -> None:
    base = tiny_base(tmp_path / "home" / "base", dtype="bfloat16", initializer_range=0.1)
    weak = tiny_adapter(base, tmp_path / "home" / "weak", lora_alpha=1, r=1)
    from safetensors.torch import load_file, save_file

    weights = load_file(weak / "adapter_model.safetensors")
    save_file(
        {name: tensor * 0.03 for name, tensor in weights.items()},
        weak / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    tuned_version(empty_ws, base, weak)
    with pytest.raises(ModelError, match="rounding loses it"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out")
    assert left_over(tmp_path) == []
    assert (
        export(
            empty_ws, named(empty_ws, "support", "v1"), "adapter", tmp_path / "out"
        ).parity.mean_kl
        < 1e-10
    )


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import package, parity
from thumbwheel.models.versions import version as named
home, out, how = sys.argv[1:]
if how == "kill":
    package.parity.compare_folder = lambda *_: os.kill(os.getpid(), 9)
with Workspace.open(Home(Path(home)), Sources({}, "", {})) as ws:
    if how == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    try:
        package.export(ws, named(ws, "support", "v1"), "merged", Path(out))
    except Exception as error:
        print(type(error).__name__, getattr(error, "exit_code", None), error)
"""


def child(home: Path, out: Path, how: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(home), str(out), how],
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.slow
def test_a_full_disk_and_a_kill_leave_nothing_finished(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        version = tuned_version(ws, tiny_model, adapter)
        versions.adapter_folder(ws, version)
    full = child(tmp_path / "home", tmp_path / "out", "full")
    assert full.stdout.startswith("StorageError 7 export to"), full.stdout + full.stderr
    assert left_over(tmp_path) == []
    assert child(tmp_path / "home", tmp_path / "out", "kill").returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert all(
        name.endswith(".unfinished") and not (tmp_path / name / "thumbwheel.json").exists()
        for name in left_over(tmp_path)
    )
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        assert exports(ws, version) == []
        assert export(ws, named(ws, "support", "v1"), "merged", tmp_path / "out").files
    assert left_over(tmp_path) == ["out"]


def test_what_cannot_be_recorded_is_not_left(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(*_: object) -> None:
        raise StorageError("the database", "it is locked", "Wait")

    monkeypatch.setattr("thumbwheel.export.store.add", locked)
    with pytest.raises(StorageError, match="locked"):
        export(empty_ws, version, "adapter", tmp_path / "out")
    assert left_over(tmp_path) == []


def test_a_damaged_adapter_is_not_exported(
    empty_ws: Workspace, version: ModelVersion, tmp_path: Path
) -> None:
    assert version.adapter
    next(empty_ws.home.blobs.rglob(version.adapter["adapter_model.safetensors"])).write_bytes(
        b"damaged"
    )
    with pytest.raises(StorageError, match="damaged or changed"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out")
    assert left_over(tmp_path) == []


@pytest.mark.slow
def test_the_command_answers_in_json_and_says_errors(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        tuned_version(ws, tiny_model, adapter)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "thumbwheel",
        "--home",
        str(tmp_path / "home"),
        "export",
        "v1",
        "--agent",
        "support",
    ]
    done = subprocess.run(
        [*command, "--format", "adapter", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    answer = json.loads(done.stdout)
    assert Path(answer["path"]) == tmp_path / "support-v1-adapter"
    assert set(answer["files"]) == {
        path.name for path in (tmp_path / "support-v1-adapter").iterdir()
    } - {"thumbwheel.json"}
    again = subprocess.run(
        [*command, "--format", "adapter"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert (again.returncode, again.stdout) == (3, "")
    assert "it already contains files" in again.stderr
