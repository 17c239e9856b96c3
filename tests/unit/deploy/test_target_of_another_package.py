"""A format and a target of other packages meet by the kind of the format."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.third_party import installed
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict
from thumbwheel.deploy import prepare
from thumbwheel.export import store
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import export
from thumbwheel.export.types import GGUF_MODEL, HF_MODEL, ModelKind

TENSORRT = ModelKind("tensorrt")


class TensorRtFormat:
    kind = TENSORRT
    library, quants = "tensorrt_llm", ("FP8", "INT4")

    def default(self) -> str:
        return "FP8"


FORMAT: Any = TensorRtFormat()


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    location = f"{__name__}:FORMAT"
    located = {**FORMATS.locations, "tensorrt": location, "tensorrt-fast": location}
    monkeypatch.setattr(FORMATS, "locations", located)


@pytest.mark.usefixtures("formats")
def test_a_target_gets_the_format_with_its_layout(deployed: DeployWorld) -> None:
    version = deployed.version(0)
    plan = prepare.plan(deployed.ws, version, "triton", (ModelKind("tensorrt"), GGUF_MODEL), None)
    assert (plan.format, plan.kind, plan.quant) == ("tensorrt", TENSORRT, "FP8")
    plan = prepare.plan(deployed.ws, version, "triton", (TENSORRT,), "int4")
    assert plan.quant == "INT4" and plan.folder.name.endswith("-v1-tensorrt-INT4")


@pytest.mark.usefixtures("formats")
def test_an_adapter_layout_is_for_versions_with_an_adapter(deployed: DeployWorld) -> None:
    base = prepare.base_of(deployed.ws, deployed.version(0))
    with pytest.raises(Conflict, match="LoRA adapters only"):
        prepare.plan(deployed.ws, base, "triton", (ModelKind("lora", base=TENSORRT),), None)


@pytest.mark.slow
def test_an_export_of_the_same_kind_is_deployed_again(
    deployed: DeployWorld, tmp_path: Path
) -> None:
    version = deployed.version(0)
    with installed(tmp_path / "site"):
        sharded = export(deployed.ws, version, "sharded", tmp_path / "sharded")
        plan = prepare.plan(deployed.ws, version, "triton", (HF_MODEL,), None)
        assert (plan.format, plan.folder) == ("sharded", sharded.path)
        assert plan.export is not None and plan.export.id == sharded.id
        package = prepare.files(deployed.ws, version, plan)
        assert package.folder == sharded.path and package.export_id == sharded.id

        # The target's own format goes first, however old it is.
        merged = export(deployed.ws, version, "merged", tmp_path / "merged")
        export(deployed.ws, version, "sharded", tmp_path / "sharded-again")
        plan = prepare.plan(deployed.ws, version, "triton", (HF_MODEL,), None)
        assert plan.export is not None and plan.export.id == merged.id

    # The package is gone, and so is what knows the kind of its files.
    shutil.rmtree(merged.path)
    plan = prepare.plan(deployed.ws, version, "triton", (HF_MODEL,), None)
    assert plan.export is None and plan.format == "merged"


@pytest.mark.usefixtures("formats")
def test_another_precision_of_the_same_kind_is_not_deployed(
    deployed: DeployWorld, tmp_path: Path
) -> None:
    version = deployed.version(0)
    merged = export(deployed.ws, version, "merged", tmp_path / "merged")
    fast = replace(merged, id=ids.new("exp"), format="tensorrt-fast", quant="INT4")
    deployed.ws.db.write(lambda connection: store.add(connection, deployed.ws.home, version, fast))
    assert prepare.plan(deployed.ws, version, "triton", (TENSORRT,), "fp8").export is None
    plan = prepare.plan(deployed.ws, version, "triton", (TENSORRT,), "int4")
    assert plan.export is not None and plan.export.id == fast.id
