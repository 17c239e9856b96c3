"""A format and a target of other packages meet by the kind of the format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.deploy_world import World
from thumbwheel.core.errors import Conflict
from thumbwheel.deploy import prepare
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import GGUF_MODEL, ModelKind

TENSORRT = ModelKind("tensorrt")


class TensorRtFormat:
    kind = TENSORRT
    library, quants = "tensorrt_llm", ("FP8", "INT4")

    def default(self) -> str:
        return "FP8"


FORMAT: Any = TensorRtFormat()


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> None:
    located = {**FORMATS.locations, "tensorrt": f"{__name__}:FORMAT"}
    monkeypatch.setattr(FORMATS, "locations", located)


@pytest.mark.usefixtures("formats")
def test_a_target_gets_the_format_with_its_layout(world: World) -> None:
    version = world.version(0)
    plan = prepare.plan(world.ws, version, "triton", (ModelKind("tensorrt"), GGUF_MODEL), None)
    assert (plan.format, plan.kind, plan.quant) == ("tensorrt", TENSORRT, "FP8")
    plan = prepare.plan(world.ws, version, "triton", (TENSORRT,), "int4")
    assert plan.quant == "INT4" and plan.folder.name.endswith("-v1-tensorrt-INT4")


@pytest.mark.usefixtures("formats")
def test_an_adapter_layout_is_for_versions_with_an_adapter(world: World) -> None:
    base = prepare.base_of(world.ws, world.version(0))
    with pytest.raises(Conflict, match="LoRA adapters only"):
        prepare.plan(world.ws, base, "triton", (ModelKind("lora", base=TENSORRT),), None)
