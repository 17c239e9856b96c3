"""Layouts of exports on disk, beside the plain folder that `package.export` writes. Plugins bring
them; a layout takes what `package.export` takes.
"""

from __future__ import annotations

from collections.abc import Callable

from thumbwheel.core.plugins import VariantTable
from thumbwheel.export.types import Export

LAYOUTS: VariantTable[Callable[..., Export]] = VariantTable(
    "layout", "thumbwheel.export_layouts", {}
)
