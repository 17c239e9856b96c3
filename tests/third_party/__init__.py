"""`kennel`, a package of variants as a third party writes it, and its installation for a test."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thumbwheel.core.plugins import VariantTable

FOLDER = Path(__file__).parent
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]


def names(table: VariantTable[object]) -> list[str]:
    """The built-in variants of `table`, then those of the package."""
    return [*table.names(), *PROJECT["entry-points"].get(table.group, {})]


def install(site: Path) -> Path:
    """Copy the package into `site` with the metadata that pip makes of its pyproject.toml. With
    `site` on the path of Python, it is installed."""
    shutil.copytree(FOLDER / "kennel", site / "kennel")
    metadata = site / f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    lines: list[str] = []
    for group, points in PROJECT["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {location}" for name, location in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def tables() -> list[VariantTable[object]]:
    """The tables that the package has a variant for."""
    from thumbwheel.deploy.targets import TARGETS
    from thumbwheel.evaluation.suites import SUITES
    from thumbwheel.export.formats import FORMATS
    from thumbwheel.importers.sources import SOURCES
    from thumbwheel.rewards.functions import FUNCTIONS
    from thumbwheel.training.algorithms import ALGORITHMS

    return [SOURCES, FUNCTIONS, ALGORITHMS, SUITES, FORMATS, TARGETS]


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """Inside, the package is installed for this process."""
    sys.path.insert(0, str(install(site)))
    for table in tables():
        vars(table).pop("locations", None)  # a table remembers which packages are installed
    try:
        yield
    finally:
        sys.path.remove(str(site))
        for table in tables():
            vars(table).pop("locations", None)
        for name in [name for name in sys.modules if name.partition(".")[0] == "kennel"]:
            del sys.modules[name]
