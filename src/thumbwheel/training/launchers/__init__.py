"""The launchers, one file each: where the processes of a run are started. To add one: its file here
and its line below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thumbwheel.core.plugins import VariantTable

if TYPE_CHECKING:
    from thumbwheel.training.launcher import Launcher

LAUNCHERS: VariantTable[Launcher] = VariantTable(
    "launcher",
    "thumbwheel.launchers",
    {
        "here": "thumbwheel.training.launchers.here:LAUNCHER",
        "ray": "thumbwheel.training.launchers.ray_cluster:LAUNCHER",
    },
)
